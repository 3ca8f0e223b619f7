"""The policy's decisions, the classification of HTTP answers, long outages, and deadlines."""

import asyncio
import logging
import math
import os
import pickle
import random
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, RetryPolicy, TFRecordDataset, encode_records
from streamrec.errors import (
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from streamrec.pipeline.telemetry.progress import format_line
from streamrec.storage import request, retry, tasks
from streamrec.storage.faults import (
    Cause,
    TransientError,
    error_from_status,
    give_up,
    http_body_range,
    next_delay,
    retry_after_seconds,
)
from streamrec.storage.retry import attempt
from tests.servers.faults import NO_FAULTS
from tests.servers.objectstore import ObjectStore, serve_objects
from tests.storage.contract import wait_until

FAULT = TransientError(Cause.BROKEN, "reset")


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.999_999])
def test_the_defaults_wait_for_five_minutes_and_try_once_more_then(jitter: float) -> None:
    policy = RetryPolicy()
    waited = 0.0
    failures = 1
    while (
        delay := next_delay(policy, failures, waited, FAULT, jitter, policy.patience)
    ) is not None:
        waited += delay or 0.5  # the attempt takes time as well
        failures += 1
    assert 300 <= waited < 301


@pytest.mark.parametrize("cause", Cause)
def test_a_server_that_never_answered_and_a_wrong_answer_get_less_time(cause: Cause) -> None:
    policy, fault = RetryPolicy(patience=100, first_contact=7), TransientError(cause, "details")
    refused = cause is Cause.REFUSED
    hopeless = refused or cause in (Cause.WRONG_ANSWER, Cause.DAMAGED)
    assert policy.patience_for(fault, reached=False) == (0 if refused else 7)
    assert policy.patience_for(fault, reached=True) == (7 if hopeless else 100)
    assert replace(policy, patience=3).patience_for(fault, reached=True) == 3


@given(
    st.integers(1, 10_000),
    st.floats(0, 100),
    st.none() | st.floats(0, 100),
    st.floats(0, 1, exclude_max=True),
    st.builds(
        RetryPolicy,
        attempts=st.none() | st.integers(1, 20),
        backoff_base=st.floats(0, 10),
        backoff_cap=st.floats(0, 10),
        patience=st.floats(0, 60),
    ),
)
def test_waits_are_bounded(
    failures: int, idle: float, retry_after: float | None, jitter: float, policy: RetryPolicy
) -> None:
    fault = TransientError(Cause.THROTTLED, "busy", retry_after)
    delay = next_delay(policy, failures, idle, fault, jitter, policy.patience)
    left = policy.patience - idle
    if delay is None:
        assert left <= 0 or failures >= (policy.attempts or math.inf)
    else:
        assert failures < (policy.attempts or math.inf)
        assert (
            min(retry_after or 0, left)
            <= delay
            <= min(max(retry_after or 0, policy.backoff_cap), left)
        )


def test_waits_spread_over_the_whole_range() -> None:
    draw = random.Random(1)
    delays = [next_delay(RetryPolicy(), 3, 0, FAULT, draw.random(), 300) or 0 for _ in range(1000)]
    assert min(delays) < 0.02
    assert 0.98 < max(delays) < 1


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", NotFoundError),
        (404, "", NotFoundError),
        (410, "", NotFoundError),
        (401, "", PermissionDeniedError),
        (403, "SignatureDoesNotMatch", PermissionDeniedError),
        (403, "RequestTimeTooSkewed", PermissionDeniedError),
        (400, "ExpiredToken", PermissionDeniedError),
        (412, "PreconditionFailed", ObjectChangedError),
        (400, "InvalidBucketName", StorageError),
        (301, "PermanentRedirect", StorageError),
        (501, "NotImplemented", StorageError),
        (505, "", StorageError),
    ],
)
def test_final_answers(status: int, code: str, kind: type[StorageError]) -> None:
    error = error_from_status(status, "said", "s3://b/k", 1, 2, code=code)
    assert type(error) is kind
    assert "said" in str(error) or kind is ObjectChangedError
    assert (error.path, error.start, error.end) == ("s3://b/k", 1, 2)


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (503, "SlowDown", Cause.THROTTLED),
        (503, "", Cause.THROTTLED),
        (429, "", Cause.THROTTLED),
        (400, "RequestTimeout", Cause.SERVER),
        (408, "", Cause.SERVER),
        (500, "InternalError", Cause.SERVER),
        (502, "", Cause.SERVER),
        (504, "", Cause.SERVER),
    ],
)
def test_answers_that_may_pass(status: int, code: str, cause: Cause) -> None:
    error = error_from_status(status, "said", "s3://b/k", code=code, retry_after=3.0)
    assert isinstance(error, TransientError)
    assert (error.cause, error.retry_after) == (cause, 3.0)


@pytest.mark.parametrize("cause", Cause)
def test_giving_up_says_why_and_what_next(cause: Cause) -> None:
    error = give_up(TransientError(cause, "details"), 4, 299.7, "s3://b/k", 10, None)
    kinds = {
        Cause.THROTTLED: ThrottledError,
        Cause.TIMED_OUT: StorageTimeoutError,
        Cause.CREDENTIALS: PermissionDeniedError,
        Cause.REFUSED: PermissionDeniedError,
    }
    assert type(error) is kinds.get(cause, StorageError)
    advice = {
        Cause.CREDENTIALS: "check the credentials",
        Cause.REFUSED: "check the credentials",
        Cause.WRONG_ANSWER: "check that this is the address of a store",
    }.get(cause, "RetryPolicy(patience=")
    for part in (
        "s3://b/k",
        "bytes 10 to the end",
        cause.value,
        "details",
        "4 attempts",
        "300 s",
        advice,
    ):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    unknown = str(
        give_up(TransientError(cause, "details"), 4, 29.7, "s3://b/k", 10, None, reached=False)
    )
    assert ("has not answered this process yet, so check its address" in unknown) is (
        "Retry" in advice
    )


def test_retry_after_as_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert (
        retry_after_seconds(
            format_datetime(datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC), usegmt=True), now
        )
        == 7
    )
    assert (
        retry_after_seconds(format_datetime(datetime(2025, 1, 1, tzinfo=UTC), usegmt=True), now)
        == 0
    )
    assert retry_after_seconds("-5", now) is None


@given(
    st.integers(0, 200),
    st.integers(1, 200),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(1, 200),
)
def test_only_the_right_range_passes(
    start: int, size: int, first: int, last: int, length: int
) -> None:
    end = start + length
    headers = {"Content-Range": f"bytes {first}-{last}/{size}"}
    if first == start and last + 1 == min(end, size):
        assert http_body_range(206, headers, start, end) == size
    else:
        with pytest.raises(TransientError, match="Content-Range"):
            http_body_range(206, headers, start, end)


@pytest.mark.parametrize(
    "header", ["", "bytes", "bytes */10", "bytes 0-", "items 0-9/10", "bytes 0-9/x", "bytes 0-9"]
)
def test_a_206_that_makes_no_sense(header: str) -> None:
    with pytest.raises(TransientError, match="206"):
        http_body_range(206, {"Content-Range": header}, 0, 10)


def test_the_size_of_an_object_comes_from_the_headers() -> None:
    assert http_body_range(206, {"Content-Range": "bytes 5-9/*"}, 5, 10) is None
    assert http_body_range(200, {"Content-Length": "7"}, 0, None) == 7
    assert http_body_range(200, {}, 0, 5) is None
    with pytest.raises(TransientError, match="a 200 with all bytes"):
        http_body_range(200, {"Content-Length": "7"}, 1, None)


RECORDS = [os.urandom(2000) for _ in range(200)]
SHORT_WAITS = RetryPolicy(backoff_base=0.001, backoff_cap=0.002)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with serve_objects(tmp_path, dict.fromkeys("abcdef", encode_records(RECORDS))) as store:
        yield store


def dataset_of(url: str, key: str = "a", retry: RetryPolicy = SHORT_WAITS) -> Dataset[bytes]:
    return TFRecordDataset(
        f"s3://bucket/{key}", storage_options={"endpoint_url": url, "anon": True}, retry=retry
    )


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_any_number_of_failures_is_waited_for(store: ObjectStore, status: int) -> None:
    times = (
        12 if status in (429, 503) else 40
    )  # a store that throttles is asked five times a second
    store.faults = replace(NO_FAULTS, script=("unavailable",) * times, status=status)
    assert list(dataset_of(store.url)) == RECORDS


async def test_a_server_that_restarts_is_waited_for(tmp_path: Path, store: ObjectStore) -> None:
    """Its port refuses connections meanwhile, more often than any old limit of attempts allowed.

    Three shards are open at once, and the system may send all of them after the server has ended.
    """
    port = int(store.url.rpartition(":")[2])
    store.faults = replace(NO_FAULTS, rate=200_000.0)
    async with dataset_of(store.url, "*").aiterate() as records:
        found = [await anext(records)]
        store.close()
        await wait_until(lambda: records.stats().storage.backends["s3"].retries["connect"] >= 30)
        with ObjectStore(tmp_path, port=port):
            found += [record async for record in records]
    assert found == RECORDS * 6


def test_a_server_that_never_answered_is_given_up_sooner(store: ObjectStore) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    policy = replace(SHORT_WAITS, first_contact=0.2)
    with pytest.raises(
        StorageError, match="has not answered this process yet, so check its address"
    ):
        list(dataset_of(url, retry=policy))
    assert list(dataset_of(store.url)) == RECORDS
    store.close()  # this one has answered
    with pytest.raises(StorageError, match="check that the store is up and reachable"):
        list(dataset_of(store.url, retry=replace(policy, patience=0.3)))


async def test_a_long_wait_is_reported_and_ends_with_the_iterator(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    store.faults = replace(NO_FAULTS, unavailable=1.0, retry_after=60)
    with caplog.at_level(logging.WARNING, "streamrec"):
        async with dataset_of(store.url).aiterate() as records:
            asking = asyncio.ensure_future(anext(records))
            await wait_until(lambda: bool(records.stats().storage.waits))
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
    assert "Retrying for 300 s more (RetryPolicy(patience=300))" in message


@pytest.mark.parametrize(("key", "fault"), [("a", "stall"), ("a", "slow"), ("[ab]", "slow")])
async def test_a_request_that_gives_nothing_is_reported_before_it_fails(
    store: ObjectStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    fault: str,
) -> None:
    reason = "its body gives nothing" if fault == "stall" else "no answer yet"
    for module in (request, retry):
        monkeypatch.setattr(module, "MIN_WARNING_SECONDS", 0.05)
    monkeypatch.setattr(retry, "WARNING_INTERVAL", 0.0)
    slow = replace(NO_FAULTS, slow=1.0, slow_first_byte=60.0)
    store.faults = slow if fault == "slow" else replace(NO_FAULTS, script=("stall",), at=0.5)
    policy = replace(
        SHORT_WAITS, hedge_share=0.0, hedge_allowance=0, first_contact=300.0, stall_timeout=1.0
    )
    async with dataset_of(store.url, key, policy).aiterate() as records:
        await wait_until(
            lambda: [reason in wait.reason for wait in records.stats().storage.waits] == [True]
        )
        [wait] = records.stats().storage.waits
        if fault == "stall":
            assert [record async for record in records] == RECORDS
            assert records.stats().storage.waits == ()
            counts = records.stats().storage.backends["s3"]
            assert (counts.stalls, counts.hedges, counts.retries["timed_out"]) == (1, 0, 1)
    assert 200 < wait.left < 300
    assert re.search(
        rf"{reason}; no progress for \d+ s. Retrying for (2\d\d|300) s more", caplog.text
    )


async def test_a_cleanup_after_a_cancellation_retries_for_less_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "CLEANUP_PATIENCE", 0.05)
    failed = asyncio.Event()

    async def call() -> None:
        failed.set()
        raise TransientError(Cause.SERVER, "down")

    work = tasks.finish(attempt(SHORT_WAITS, "s3://bucket/a", call, "copying"), patience=math.inf)
    task = asyncio.ensure_future(work)
    await failed.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StorageError, match="down"):
        await tasks.finish(
            attempt(SHORT_WAITS, "s3://bucket/a", call, "removing"), patience=tasks.CLEANUP_PATIENCE
        )
