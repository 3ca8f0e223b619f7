"""Counters, their agreement with the server's log, and the report in the log."""

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamrec import TFRecordDataset, encode_records, open_shard
from streamrec.storage import RetryPolicy, Statistics, Storages, collecting
from streamrec.storage.faults import Cause
from streamrec.storage.statistics import format_lines
from streamrec.storage.stream import ResumingStream
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.servers.real import Store
from tests.storage.contract import read_all
from tests.storage.reading.scattered import Scattered

RECORDS = [b"%d:" % index * 100 for index in range(10_000)]
DATA = encode_records(RECORDS)
POLICY = RetryPolicy(backoff_base=0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, {f"shard-{index}": DATA for index in range(4)}) as store:
        yield store


async def test_counts_agree_with_the_servers_log(store: ObjectStore) -> None:
    store.faults = replace(NO_FAULTS, script=("unavailable", "reset", "reset", ""), at=0.5)
    path = "s3://bucket/shard-0"
    async with Storages(store.options(), retry=POLICY) as storages:
        stream = await (await storages.at(path)).stream(path)
        ((listed, _),) = storages.statistics.snapshot().streams
        assert await read_all(stream) == DATA
        snapshot = storages.statistics.snapshot()
    assert listed == path
    assert snapshot.streams == ()
    counts = snapshot.backends["s3"]
    assert stream.tally.counts() == counts
    assert store.wait_idle()
    seen = (
        store.counters
    )  # the last answer may have come before the server has closed its books on it
    assert counts.requests == seen.requests + seen.in_flight == 4
    assert counts.bytes == len(DATA)
    assert {cause: count for cause, count in counts.retries.items() if count} == {
        "throttled": 1,
        "broken": 2,
    }
    assert counts.first_byte.count == 3
    assert counts.failures == 0


async def test_operations_without_a_stream_are_counted(store: ObjectStore) -> None:
    path = "s3://bucket/shard-0"
    store.faults = Faults(first_byte=0, jitter=0, script=("unavailable",))
    async with Storages(store.options(), retry=POLICY) as storages:
        storage = await storages.at(path)
        await storage.stat(path)
        assert [info.path async for info in storage.list("s3://bucket/")]
        counts = storages.statistics.snapshot().backends["s3"]
    seen = (
        store.counters
    )  # the last answer may have come before the server has closed its books on it
    assert counts.requests == seen.requests + seen.in_flight == 4
    assert counts.retries["throttled"] == 2


async def test_waiting_is_distinguished(store: ObjectStore) -> None:
    store.faults = Faults(first_byte=0.2, jitter=0, rate=10e6)
    path = "s3://bucket/shard-0"
    async with Storages(store.options(), retry=POLICY) as storages:
        stream = await (await storages.at(path)).stream(path)
        first = await stream.readinto(memoryview(bytearray(1000)))
        await asyncio.to_thread(store.wait_idle, 0.3)  # a consumer that has something else to do
        await read_all(stream)
    counts = stream.tally.counts()
    assert first
    assert counts.first_byte.quantile(1.0) >= 0.2
    assert counts.waited_for_consumer > 0.1
    assert counts.waited_for_store > len(DATA) / 10e6 / 4


async def test_a_read_before_the_answer_counts_no_wait() -> None:
    """The last range of an object, whose turn has come when it is made; the time since the
    machine's start was told.
    """
    backend = Scattered(DATA)
    stream = ResumingStream(backend, POLICY, "memory://x", 0, None, None)
    assert await stream.readinto(memoryview(bytearray(1000)))
    assert stream.tally.counts().waited_for_consumer < 60
    await stream.aclose()


@pytest.mark.parametrize("name", ["s3_store", "gcs_store"])
async def test_uploads_are_counted(request: pytest.FixtureRequest, name: str) -> None:
    place: Store = request.getfixturevalue(name)
    async with Storages(place.options) as storages:
        async with await (await storages.at(place.url)).upload(f"{place.url}/counted") as upload:
            await upload.write(bytes(20 << 20))
        (counts,) = storages.statistics.snapshot().backends.values()
    assert counts.requests >= 4  # three parts and the end, at the least
    assert counts.bytes == 0


async def test_storages_of_one_run_are_counted_together(store: ObjectStore) -> None:
    statistics = Statistics()
    path = "s3://bucket/shard-0"
    with collecting(statistics):
        for _ in range(2):
            async with Storages(store.options()) as storages:
                assert storages.statistics is statistics
                await (await storages.at(path)).stat(path)
    assert statistics.snapshot().backends["s3"].requests == 2
    assert Storages().statistics is not statistics


async def test_a_shard_describes_itself(store: ObjectStore) -> None:
    async with open_shard("s3://bucket/shard-1", storage_options=store.options()) as shard:
        assert [record async for record in shard] == RECORDS
        assert shard.statistics.bytes == len(DATA)
        assert shard.statistics.requests == 1


REPORTED = encode_records([b"x" * 100] * 5_000)


def test_a_line_says_what_matters() -> None:
    statistics = Statistics()
    tally = statistics.backend("s3")
    tally.request(waited=1.5)
    for name in (
        Cause.BROKEN,
        Cause.THROTTLED,
        Cause.THROTTLED,
        "hedges",
        "hedges",
        "hedges_won",
        "losses",
    ):
        tally.count(name)
    tally.count("lost_bytes", 1234)
    (line,) = format_lines(statistics.snapshot())
    assert (
        "retries: 3 (1 broken, 2 throttled), hedges: 2, of which 1 won, losses: 1, of 1,234 bytes"
        in line
    )
    assert "delayed by throttling: 1.5 s" in line


def test_a_run_is_logged_at_its_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamrec")
    with serve_objects(
        tmp_path, {"key": REPORTED}, replace(NO_FAULTS, script=("reset",), at=0.5)
    ) as store:
        dataset = TFRecordDataset("s3://bucket/key", storage_options=store.options(), retry=POLICY)
        assert sum(len(frames) for frames in dataset.batch(100)) == 5_000
    retry, end = (record.getMessage() for record in caplog.records if record.name == "streamrec")
    assert retry.startswith("s3://bucket/key: trying again in 0.0 s after the connection broke")
    assert end.startswith("at the end, s3: 0.6 MB, requests: 2")
    assert "retries: 1 (1 broken)" in end


async def test_lines_come_at_intervals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The interval is the loop's own timer, so its shortest turns will do."""
    caplog.set_level(logging.INFO, "streamrec")
    (tmp_path / "key").write_bytes(REPORTED)
    async with Storages(report_interval=0.0) as storages:
        storage = await storages.at(str(tmp_path))
        await storage.stat(str(tmp_path / "key"))
        for _ in range(10):
            await asyncio.sleep(0)
    assert caplog.records[0].getMessage().startswith("so far, file: 0.0 MB, requests: 1,")
    count = len(caplog.records)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(caplog.records) == count  # nothing is logged after the end
