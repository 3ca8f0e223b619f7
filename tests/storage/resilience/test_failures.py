"""The failures of one operation, and which of them count. No request is sent."""

import asyncio
import time

import pytest

from streamrec import RetryPolicy
from streamrec.errors import StorageError
from streamrec.storage import retry
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.retry import Failures
from streamrec.storage.traffic import Traffic

POLICY = RetryPolicy(backoff_base=0.0, patience=60.0)
THROTTLED = TransientError(Cause.THROTTLED, "a 503")
BROKEN = TransientError(Cause.BROKEN, "reset")


def failures_of(policy: RetryPolicy = POLICY) -> Failures:
    traffic = Traffic()
    return Failures(policy, "s3://b/x", traffic, traffic.tally)


async def test_a_throttled_request_counts_once_while_the_store_answers_others() -> None:
    failures = failures_of()
    for _ in range(3):
        await failures.turn()
        failures.limiter.record_success(time.monotonic())  # that of another request
        await failures.wait(THROTTLED)
        assert failures.count == 1
    assert failures.waiting


async def test_each_failure_counts_where_the_store_answers_nothing() -> None:
    failures = failures_of()
    for fault in (THROTTLED, BROKEN, THROTTLED):
        await failures.turn()
        await failures.wait(fault)
    assert failures.count == 3


async def test_a_long_wait_ends_soon_after_the_store_serves_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retry.random, "random", lambda: 0.99)  # the longest waits
    failures = failures_of(RetryPolicy(backoff_base=0.01, backoff_cap=50.0, patience=60.0))
    failures.count = 20
    await failures.turn()
    began = time.monotonic()
    waiting = asyncio.ensure_future(failures.wait(THROTTLED))
    await asyncio.sleep(0)
    failures.limiter.record_success(time.monotonic())  # that of another request
    await waiting
    assert time.monotonic() - began < 10


async def test_a_wait_that_the_store_asked_for_is_not_shortened() -> None:
    failures = failures_of(RetryPolicy(backoff_base=0.0, backoff_cap=50.0, patience=60.0))
    failures.count = 20
    await failures.turn()
    began = time.monotonic()
    waiting = asyncio.ensure_future(
        failures.wait(TransientError(Cause.THROTTLED, "a 503", retry_after=0.3))
    )
    await asyncio.sleep(0)
    failures.limiter.record_success(time.monotonic())
    await waiting
    assert time.monotonic() - began >= 0.3


async def test_progress_forgets_the_failures() -> None:
    failures = failures_of()
    await failures.turn()
    await failures.wait(BROKEN)
    assert failures.traffic.statistics.waits
    failures.progress()
    assert (failures.count, failures.waiting) == (0, False)
    assert not failures.traffic.statistics.waits


async def test_the_last_attempt_that_fails_is_an_error_with_its_cause() -> None:
    failures = failures_of(RetryPolicy(attempts=2, backoff_base=0.0))
    await failures.turn()
    await failures.wait(BROKEN)
    await failures.turn()
    with pytest.raises(StorageError, match="reset") as caught:
        await failures.wait(BROKEN)
    assert caught.value.__cause__ is BROKEN
