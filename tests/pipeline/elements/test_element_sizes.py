"""What elements weigh: about as much as they keep alive, or the byte budgets mean nothing."""

import sys

import numpy as np
import pytest

from streamrec import BytesColumn, FixedLenFeature, Frames, encode_example, parse_example
from streamrec.pipeline.elements.chunk import weigh
from streamrec.tfrecord import Scattered


def test_strings_as_columns_weigh_the_records_that_they_lie_in() -> None:
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
    assert columns["word"].scattered  # type: ignore[union-attr]
    assert 40_000 <= weigh([columns]) < 50_000


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_column_weighs_its_strings_at_least(count: int) -> None:
    """In whichever order they lie."""
    spans = np.array([[8, 12], [4, 8], [0, 4]], np.int64)[:count]
    assert weigh([BytesColumn(bytes(12), spans)]) >= 4 * count
