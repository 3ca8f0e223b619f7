"""A store that is away for a while is waited for, and the log, `stats()` and the progress line say so."""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from streamrec import RetryPolicy, TFRecordDataset, encode_records
from streamrec.errors import NotFoundError, StorageError
from streamrec.pipeline.telemetry.progress import format_line
from streamrec.storage import tasks
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.retry import attempt
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore
from tests.storage.contract import until

RECORDS = [os.urandom(2000) for _ in range(200)]
SWIFT = RetryPolicy(backoff_base=0.001, backoff_cap=0.002)


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    for name in "abc":
        (tmp_path / "bucket" / name).write_bytes(encode_records(RECORDS))
    return tmp_path


@pytest.fixture
def store(bucket: Path) -> Iterator[ObjectStore]:
    with ObjectStore(bucket) as store:
        yield store


def dataset_of(url: str, key: str = "a", retry: RetryPolicy = SWIFT) -> TFRecordDataset:
    return TFRecordDataset(f"s3://bucket/{key}", storage_options={"endpoint_url": url, "anon": True}, retry=retry)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_any_number_of_failures_is_waited_for(store: ObjectStore, status: int) -> None:
    times = 12 if status in (429, 503) else 40  # a store that throttles is asked five times a second
    store.faults = replace(NO_FAULTS, script=("unavailable",) * times, status=status)
    assert list(dataset_of(store.url)) == RECORDS


async def test_a_server_that_restarts_is_waited_for(bucket: Path, store: ObjectStore) -> None:
    """Its port refuses connections meanwhile, more often than any old limit of attempts allowed."""
    port = int(store.url.rpartition(":")[2])
    store.faults = replace(NO_FAULTS, rate=200_000.0)
    async with dataset_of(store.url, "[abc]").aiterate() as records:
        found = [await anext(records)]
        store.close()
        await until(lambda: records.stats().storage.backends["s3"].retries["connect"] >= 30)
        with ObjectStore(bucket, port=port):
            found += [record async for record in records]
    assert found == RECORDS * 3


def test_a_server_that_never_answered_is_given_up_sooner(store: ObjectStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    policy = replace(SWIFT, first_contact=0.2)
    with pytest.raises(StorageError, match="has not answered this process yet, so check its address"):
        list(dataset_of(url, retry=policy))
    assert list(dataset_of(store.url)) == RECORDS
    store.close()  # this one has answered
    with pytest.raises(StorageError, match="check that the store is up and reachable"):
        list(dataset_of(store.url, retry=replace(policy, patience=0.3)))


def test_a_missing_object_is_an_error_at_once(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError):
        list(dataset_of(store.url, "missing"))


async def test_a_long_wait_is_told_and_ends_with_the_iterator(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.faults = replace(NO_FAULTS, unavailable=1.0, retry_after=60)
    with caplog.at_level(logging.WARNING, "streamrec"):
        async with dataset_of(store.url).aiterate() as records:
            asking = asyncio.ensure_future(anext(records))
            await until(lambda: bool(records.stats().storage.waits))
            stats = records.stats()
            asking.cancel()
        assert records.stats().storage.waits == ()
    [wait] = stats.storage.waits
    assert (wait.path, "fewer requests" in wait.reason) == ("s3://bucket/a", True)
    assert (wait.seconds < 10, 290 < wait.left <= 300) == (True, True)
    for shown in (str(stats), format_line(stats, None, 1.0)):
        assert "no progress for 0 s (s3://bucket/a: the store asked for fewer requests" in shown
        assert "300 s left" in shown
    [message] = [record.getMessage() for record in caplog.records]
    assert message.startswith("s3://bucket/a: the store asked for fewer requests")
    assert "It is tried again for 300 s more (RetryPolicy(patience=300))" in message


async def test_what_cleans_up_after_a_cancellation_waits_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "CLEANUP_PATIENCE", 0.05)
    failed = asyncio.Event()

    async def call() -> None:
        failed.set()
        raise TransientError(Cause.SERVER, "down")

    work = tasks.finish(attempt(SWIFT, "s3://bucket/a", call, "copying"), patience=math.inf)
    task = asyncio.ensure_future(work)
    await failed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StorageError, match="down"):
        await tasks.finish(attempt(SWIFT, "s3://bucket/a", call, "removing"), patience=tasks.CLEANUP_PATIENCE)
