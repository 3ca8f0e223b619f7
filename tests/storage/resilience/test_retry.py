"""The policy's decisions, pure; and what an HTTP answer means."""

import math
import pickle
import random
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import (
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from streamrec.storage import RetryPolicy
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.faults import Cause, TransientError, from_status, give_up, http_body_range, retry_after_seconds
from streamrec.storage.retry import next_delay
from streamrec.storage.stream import stop_of

FAULT = TransientError(Cause.BROKEN, "reset")


@pytest.mark.parametrize("jitter", [0.0, 0.1, 0.999_999])
def test_the_defaults_wait_for_five_minutes_and_try_once_more_then(jitter: float) -> None:
    policy, waited, failures = RetryPolicy(), 0.0, 1
    while (delay := next_delay(policy, failures, waited, FAULT, jitter, policy.patience)) is not None:
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
        assert min(retry_after or 0, left) <= delay <= min(max(retry_after or 0, policy.backoff_cap), left)


def test_waits_spread_over_the_whole_range() -> None:
    draw = random.Random(1)
    delays = [next_delay(RetryPolicy(), 3, 0, FAULT, draw.random(), 300) or 0 for _ in range(1000)]
    assert min(delays) < 0.02
    assert 0.98 < max(delays) < 1


def test_a_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="pass 1 or more"):
        RetryPolicy(attempts=0)
    with pytest.raises(ValueError, match="patience is -1; it is a time in seconds"):
        RetryPolicy(patience=-1)


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
    error = from_status(status, "said", "s3://b/k", 1, 2, code=code)
    assert type(error) is kind
    assert "said" in str(error) or kind is ObjectChangedError
    assert (error.path, error.start, error.end) == ("s3://b/k", 1, 2)


@pytest.mark.parametrize(
    ("status", "code", "cause"),
    [
        (503, "SlowDown", Cause.THROTTLED),
        (429, "", Cause.THROTTLED),
        (400, "RequestTimeout", Cause.SERVER),
        (408, "", Cause.SERVER),
        (500, "InternalError", Cause.SERVER),
        (502, "", Cause.SERVER),
        (504, "", Cause.SERVER),
    ],
)
def test_answers_that_may_pass(status: int, code: str, cause: Cause) -> None:
    error = from_status(status, "said", "s3://b/k", code=code, retry_after=3.0)
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
    for part in ("s3://b/k", "bytes 10 to the end", cause.value, "details", "4 attempts", "300 s", advice):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    unknown = str(give_up(TransientError(cause, "details"), 4, 29.7, "s3://b/k", 10, None, reached=False))
    assert ("has not answered this process yet, so check its address" in unknown) is ("Retry" in advice)


def test_retry_after_as_a_date() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert retry_after_seconds(format_datetime(datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC), usegmt=True), now) == 7
    assert retry_after_seconds(format_datetime(datetime(2025, 1, 1, tzinfo=UTC), usegmt=True), now) == 0
    assert retry_after_seconds("-5", now) is None


@given(st.integers(0, 200), st.integers(1, 200), st.integers(0, 200), st.integers(0, 200), st.integers(1, 200))
def test_only_the_right_range_passes(start: int, size: int, first: int, last: int, length: int) -> None:
    end = start + length
    headers = {"Content-Range": f"bytes {first}-{last}/{size}"}
    if first == start and last + 1 == min(end, size):
        assert http_body_range(206, headers, start, end) == size
    else:
        with pytest.raises(TransientError, match="Content-Range"):
            http_body_range(206, headers, start, end)


@pytest.mark.parametrize("header", ["", "bytes", "bytes */10", "bytes 0-", "items 0-9/10", "bytes 0-9/x", "bytes 0-9"])
def test_a_206_that_makes_no_sense(header: str) -> None:
    with pytest.raises(TransientError, match="206"):
        http_body_range(206, {"Content-Range": header}, 0, 10)


def test_sizes() -> None:
    assert http_body_range(206, {"Content-Range": "bytes 5-9/*"}, 5, 10) is None
    assert http_body_range(200, {"Content-Length": "7"}, 0, None) == 7
    assert http_body_range(200, {}, 0, 5) is None
    with pytest.raises(TransientError, match="a 200 with all bytes"):
        http_body_range(200, {"Content-Length": "7"}, 1, None)
    assert stop_of(ObjectInfo("x", 5, None), None) == 5
