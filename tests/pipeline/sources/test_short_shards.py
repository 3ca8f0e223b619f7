"""Many small shards: read together, and pulled as one chunk; what is not plainly good is read as any shard is."""

import gzip
import os
from pathlib import Path

import pytest

from streamrec import CorruptRecordError, TFRecordDataset, encode_records
from streamrec.testing.resuming import assert_resumes_everywhere

SHARDS, RECORDS = 100, 4


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    """Shards of which some have no record, some are compressed, and one is long."""
    paths = [tmp_path / f"{shard:03}" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        data = encode_records(records_of(shard))
        path.write_bytes(gzip.compress(data) if shard % 10 == 7 else data)
    return [str(path) for path in paths]


def records_of(shard: int) -> list[bytes]:
    if shard % 10 == 3:
        return []
    return [b"%d.%d" % (shard, index) + bytes(300_000 * (shard == 50)) for index in range(RECORDS)]


EVERYTHING = [record for shard in range(SHARDS) for record in records_of(shard)]


def test_all_records_come_in_order(paths: list[str]) -> None:
    """One shard after the other, and in turn."""
    assert list(TFRecordDataset(paths)) == EVERYTHING
    assert sorted(TFRecordDataset(paths, num_parallel_reads=16)) == sorted(EVERYTHING)
    assert sorted(TFRecordDataset(paths, num_parallel_reads=16, deterministic=False)) == sorted(EVERYTHING)


@pytest.mark.parametrize("reads", [1, 5])
def test_it_resumes_everywhere(paths: list[str], reads: int) -> None:
    assert_resumes_everywhere(TFRecordDataset(paths[:12], num_parallel_reads=reads).batch(3))


def test_requests_and_bytes_are_counted(paths: list[str]) -> None:
    """One request for each shard."""
    iterator = TFRecordDataset(paths[:3]).iterate()
    assert len(list(iterator)) == 3 * RECORDS
    counts = iterator.stats().storage.backends["file"]
    assert counts.requests == 3
    assert counts.bytes == sum(os.path.getsize(path) for path in paths[:3])


def test_damage_is_told_behind_the_records_before_it(paths: list[str]) -> None:
    """With the shard, and the record's place in it."""
    data = bytearray(Path(paths[20]).read_bytes())
    data[-1] ^= 1
    Path(paths[20]).write_bytes(data)
    iterator = iter(TFRecordDataset(paths))
    before = [record for shard in range(20) for record in records_of(shard)] + records_of(20)[:-1]
    assert [next(iterator) for _ in before] == before
    with pytest.raises(CorruptRecordError, match=paths[20]) as caught:
        next(iterator)
    assert caught.value.record == RECORDS - 1


@pytest.mark.parametrize("batch", [0, 3])
def test_an_error_names_the_shard_and_the_record(paths: list[str], batch: int) -> None:
    """Though the records of many shards came in one chunk."""

    def fails(element: object) -> object:
        if element == b"45.2" or (batch and b"45.2" in element):  # type: ignore[operator]
            raise ValueError("odd")
        return element

    dataset = TFRecordDataset(paths[:50])
    with pytest.raises(ValueError, match="odd") as caught:
        list((dataset.batch(batch) if batch else dataset).map(fails))
    first = EVERYTHING.index(b"45.2") // (batch or 1) * (batch or 1)
    shard, record = EVERYTHING[first].decode().split(".")
    assert f"{paths[int(shard)]}, record {record}" in caught.value.__notes__[0]
