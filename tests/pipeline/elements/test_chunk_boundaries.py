"""Chunks end between two batches, also behind repeats and prefetches: their batches are windows, not copies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset, TFRecordDataset, encode_records
from tests.servers.resuming import assert_resumes_everywhere

SHARDS, RECORDS, SIZE = 4, 511, 20_000


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Records so long that chunks hold a few hundred of them; each says where it belongs."""
    paths = []
    for shard in range(SHARDS):
        records = [b"%d.%d" % (shard, index) + bytes(SIZE) for index in range(RECORDS)]
        paths.append(str(tmp_path / f"{shard}.tfrecord"))
        Path(paths[-1]).write_bytes(encode_records(records))
    return paths


@pytest.mark.parametrize(
    "before",
    [
        lambda records: records.repeat(3),
        lambda records: records.repeat(3).prefetch(),
        lambda records: records.prefetch(1 << 20).repeat(3),
    ],
)
def test_few_batches_are_copied(files: list[str], before: Callable[[Dataset[Any]], Dataset[Any]]) -> None:
    """Windows of one copy share its buffer; epochs end in the middle of a batch, and the next one goes on in step."""
    records = TFRecordDataset(files, "", 1 << 20, SHARDS)
    batches = list(before(records).batch(100).with_options(memory_budget=256 << 20))
    alone = sum(batch.pinned < 1.5 * batch.nbytes for batch in batches)
    assert alone < len(batches) / 4  # where an epoch ends, and where something came late; out of step it is every other


def test_batches_behind_a_repeat_resume_everywhere(tmp_path: Path) -> None:
    paths = []
    for shard, count in enumerate([7, 12, 5]):
        paths.append(str(tmp_path / f"{shard}.tfrecord"))
        Path(paths[-1]).write_bytes(encode_records([b"%d.%d" % (shard, index) for index in range(count)]))
    assert_resumes_everywhere(TFRecordDataset(paths, "", 100, 2).repeat(3).batch(5))
    assert_resumes_everywhere(TFRecordDataset(paths, "", 100, 2).prefetch(100).repeat(2).prefetch().skip(3).batch(5))
