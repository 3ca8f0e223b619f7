"""Many small shards: read together or whole, and pulled as one chunk; what is not plainly good is
read as any shard.
"""

import asyncio
import gzip
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from streamrec import (
    CorruptRecordError,
    NotFoundError,
    RetryPolicy,
    StorageError,
    TFRecordDataset,
    encode_records,
)
from tests.runs import flip_bit, until_error
from tests.servers.faults import Faults
from tests.servers.objectstore import ObjectStore
from tests.servers.resuming import assert_resumes_everywhere

SHARDS, RECORDS = 100, 4
QUICK = RetryPolicy(attempts=3, backoff_base=0.01, backoff_cap=0.02)


@dataclass
class Shards:
    """Shards of which some have no record, some are compressed, and two are long; local, or in a
    store.
    """

    scheme: str
    files: list[Path]
    urls: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    store: ObjectStore | None = None

    def dataset(self, count: int = SHARDS, **options: Any) -> TFRecordDataset:
        return TFRecordDataset(self.urls[:count], storage_options=self.options, **options)


def written(folder: Path) -> list[Path]:
    paths = [folder / f"{shard:03}" for shard in range(SHARDS)]
    for shard, path in enumerate(paths):
        data = encode_records(records_of(shard))
        path.write_bytes(gzip.compress(data) if shard % 10 == 7 else data)
    return paths


def records_of(shard: int) -> list[bytes]:
    if shard % 10 == 3:
        return []
    length = {50: 300_000, 60: 40_000}.get(shard, 0)
    return [b"%d.%d" % (shard, index) + bytes(length) for index in range(RECORDS)]


EVERYTHING = [record for shard in range(SHARDS) for record in records_of(shard)]


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Shards]:
    """In a store."""
    (tmp_path / "bucket").mkdir()
    files = written(tmp_path / "bucket")
    with ObjectStore(tmp_path) as store:
        yield Shards(
            "s3", files, [f"s3://bucket/{file.name}" for file in files], store.options(), store
        )


@pytest.fixture(params=["local", "stored"])
def shards(request: pytest.FixtureRequest, tmp_path: Path) -> Shards:
    """In both places."""
    if request.param == "stored":
        found: Shards = request.getfixturevalue("stored")
        return found
    files = written(tmp_path)
    return Shards("file", files, [str(file) for file in files])


def test_all_records_come_in_order(shards: Shards) -> None:
    """One shard after the other, and in turn."""
    assert list(shards.dataset()) == EVERYTHING
    assert sorted(shards.dataset(num_parallel_reads=16)) == sorted(EVERYTHING)
    assert sorted(shards.dataset(num_parallel_reads=16, deterministic=False)) == sorted(EVERYTHING)


@pytest.mark.parametrize("reads", [1, 5])
def test_short_shards_resume_everywhere(shards: Shards, reads: int) -> None:
    assert_resumes_everywhere(shards.dataset(12, num_parallel_reads=reads).batch(3))


def test_requests_and_bytes_are_counted(shards: Shards) -> None:
    """One request for each shard."""
    iterator = shards.dataset(3).iterate()
    assert len(list(iterator)) == 3 * RECORDS
    counts = iterator.stats().storage.backends[shards.scheme]
    assert counts.requests == 3
    assert counts.bytes == sum(file.stat().st_size for file in shards.files[:3])


def test_a_shard_of_a_store_is_one_request_whatever_it_is(stored: Shards) -> None:
    """Empty, compressed and long ones are told by the response, and go on with it."""
    iterator = stored.dataset(retry=RetryPolicy(hedge_share=0)).iterate()
    assert list(iterator) == EVERYTHING
    assert iterator.stats().storage.backends["s3"].requests == SHARDS
    assert iterator.stats().storage.streams == ()


def test_damage_is_reported_after_the_records_before_it(shards: Shards) -> None:
    """With the shard, and the record's place in it; or left out, where that is wanted."""
    flip_bit(shards.files[20], -1)
    found, error = until_error(shards.dataset(), CorruptRecordError, shards.urls[20])
    assert (
        found
        == [record for shard in range(20) for record in records_of(shard)] + records_of(20)[:-1]
    )
    assert error.record == RECORDS - 1
    assert not hasattr(error, "__notes__")  # it says itself where
    assert list(shards.dataset(on_error="skip_record")) == [
        record for record in EVERYTHING if record != b"20.3"
    ]


def test_broken_bodies_go_on_where_they_broke(stored: Shards) -> None:
    """And requests that were refused are made again, with the shards in order."""
    stored.store.faults = Faults(
        first_byte=0, jitter=0, seed=3, reset=0.2, cut=0.1, unavailable=0.1
    )
    iterator = stored.dataset(num_parallel_reads=4, retry=QUICK).iterate()
    found = list(iterator)
    assert found == list(
        TFRecordDataset([str(file) for file in stored.files], num_parallel_reads=4)
    )
    counts = iterator.stats().storage.backends["s3"]
    assert counts.retries["broken"] > 10
    assert counts.retries["throttled"] > 0
    assert counts.bytes == sum(file.stat().st_size for file in stored.files)


def test_records_before_a_final_network_failure_are_given_first(stored: Shards) -> None:
    """Each body of one shard ends after its first record: no attempt gets further than another
    record.
    """
    first = len(encode_records(records_of(0)[:1]))
    stored.files[0].write_bytes(encode_records([records_of(0)[0], bytes(60_000)]))
    stored.store.faults = Faults(
        first_byte=0, jitter=0, reset=1.0, at=(first + 100) / stored.files[0].stat().st_size
    )
    policy = RetryPolicy(attempts=1)
    assert (
        until_error(stored.dataset(1, retry=policy), StorageError, "1 attempt")[0]
        == records_of(0)[:1]
    )


def test_a_missing_shard_is_reported_in_its_turn(shards: Shards) -> None:
    shards.files[5].unlink()
    found, _ = until_error(shards.dataset(), NotFoundError, shards.urls[5])
    assert found == [record for shard in range(5) for record in records_of(shard)]


async def test_leaving_cancels_what_is_under_way(stored: Shards) -> None:
    """No task and no request is left, though none of the later shards has been answered."""
    stored.store.faults = Faults(first_byte=0.01, jitter=0.2)
    before = asyncio.all_tasks()
    async with stored.dataset(num_parallel_reads=8).aiterate() as records:
        assert await anext(records) == records_of(0)[0]
    assert asyncio.all_tasks() == before
    assert await asyncio.to_thread(stored.store.wait_idle)


@pytest.mark.parametrize("batch", [0, 3])
def test_an_error_names_the_shard_and_the_record(shards: Shards, batch: int) -> None:
    """Though the records of many shards came in one chunk."""

    def fails(element: object) -> object:
        if element == b"45.2" or (batch and b"45.2" in element):  # type: ignore[operator]
            raise ValueError("odd")
        return element

    dataset = shards.dataset(50)
    with pytest.raises(ValueError, match="odd") as caught:
        list((dataset.batch(batch) if batch else dataset).map(fails))
    first = EVERYTHING.index(b"45.2") // (batch or 1) * (batch or 1)
    shard, record = EVERYTHING[first].decode().split(".")
    assert f"{shards.urls[int(shard)]}, record {record}" in caught.value.__notes__[0]
