"""Chunks: they end between two batches, and weigh about what they keep alive."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    FixedLenFeature,
    Frames,
    TFRecordDataset,
    encode_example,
    parse_example,
)
from streamrec.pipeline.elements.chunk import weigh
from streamrec.pipeline.elements.columns import in_turn
from streamrec.tfrecord import SCATTERED_BYTES, Scattered
from tests.runs import write_shards

SHARDS = 4
RECORDS = 511
SIZE = 20_000


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Records so long that chunks hold a few hundred of them; each says where it belongs."""
    shards = (
        [b"%d.%d" % (shard, index) + bytes(SIZE) for index in range(RECORDS)]
        for shard in range(SHARDS)
    )
    return write_shards(tmp_path, shards)


@pytest.mark.parametrize(
    "before",
    [
        lambda records: records.repeat(3),
        lambda records: records.repeat(3).prefetch(),
        lambda records: records.prefetch(1 << 20).repeat(3),
    ],
)
def test_few_batches_are_copied(
    files: list[str], before: Callable[[Dataset[Any]], Dataset[Any]]
) -> None:
    """Windows of one copy share its buffer; epochs end in the middle of a batch, and the next one
    goes on in step.
    """
    records = TFRecordDataset(files, "", 1 << 20, SHARDS)
    batches = list(before(records).batch(100).with_options(memory_budget=256 << 20))
    alone = sum(batch.pinned < 1.5 * batch.nbytes for batch in batches)
    assert (
        alone < len(batches) / 4
    )  # where an epoch ends, and where something came late; out of step it is every other


def test_one_of_many_long_records_in_a_buffer_does_not_keep_it_alive() -> None:
    records = [b"%d" % index + bytes(SCATTERED_BYTES) for index in range(4)]
    frames = in_turn([[Frames.of(records).window(0, 1)], [Frames.of(records[1:2])]], 1)
    assert frames.pinned == len(records[0]) + len(records[1])


def test_string_columns_count_the_records_that_they_keep_alive() -> None:
    """A word out of each record keeps the other features of all records alive."""
    record = encode_example({"word": b"cat", "other": np.arange(500)})
    frames = Frames.of([record] * 20)
    columns = parse_example(frames, {"word": FixedLenFeature([], bytes)}, string_columns=True)
    assert weigh([columns]) >= 19 * len(record)
    strings = parse_example(frames, {"word": FixedLenFeature([], bytes)})
    assert sum(map(sys.getsizeof, strings["word"])) < weigh([strings]) < 4 * len(record)


def test_a_column_over_many_buffers_weighs_its_strings() -> None:
    records = [encode_example({"word": b"x" * 2000}) for _ in range(20)]
    scattered = Scattered.in_turn([[Frames.of([record])] for record in records], 1)
    columns = parse_example(scattered, {"word": FixedLenFeature([], bytes)}, string_columns=True)
    assert columns["word"].is_scattered  # type: ignore[union-attr]
    assert 40_000 <= weigh([columns]) < 50_000


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_column_weighs_its_strings_at_least(count: int) -> None:
    """In whichever order they lie."""
    spans = np.array([[8, 12], [4, 8], [0, 4]], np.int64)[:count]
    assert weigh([streamrec.BytesColumn(bytes(12), spans)]) >= 4 * count
