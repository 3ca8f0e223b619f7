"""Faults: classify failed attempts, and decide how long to retry. Pure; nothing here waits.

There are two kinds. A **final** error (`NotFoundError`, `PermissionDeniedError`,
`ObjectChangedError`, ...) would occur again on the next attempt, so it goes to the caller at once.
A `TransientError` may not: it goes to the retry policy, and becomes a StorageError when the policy
gives up. All backends classify with the functions below, so that a 503 means the same on every
store.

No foreign exception leaves this package: each backend wraps the calls of its client in a
`translate_errors`, a partial `Translated`.
"""

from __future__ import annotations

import enum
import re
import resource
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from streamrec.display import display_text, mask_cause, secrets_in
from streamrec.errors import (
    AlreadyExistsError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StorageTimeoutError,
    ThrottledError,
)
from streamrec.lazy import lazy_pattern
from streamrec.storage.arrivals import describe_answer
from streamrec.tracebacks import border_methods


class Cause(enum.Enum):
    """Why an attempt failed."""

    CONNECT = "no connection"
    BROKEN = "the connection broke"
    TIMED_OUT = "no answer within the time limit"
    THROTTLED = "the store asked for fewer requests"
    SERVER = "the server failed"
    CREDENTIALS = "the credentials could not be refreshed"
    REFUSED = "the credentials were refused, and newer ones are not there yet"
    WRONG_ANSWER = "the server sent something other than was asked for"
    DAMAGED = "the bytes arrived damaged at the store"


class TransientError(Exception):
    """An attempt failed, and another one may succeed.

    That is `retry_after` seconds later if the server said so.
    """

    def __init__(self, cause: Cause, reason: str, retry_after: float | None = None) -> None:
        super().__init__(cause, reason, retry_after)
        self.cause = cause
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        return display_text(f"{self.cause.value} ({self.reason})")


@border_methods
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How long to retry a failing request, and how soon.

    Attributes:
        patience: Seconds without progress after which a transient failure (no connection, a broken
            one, no answer, 429, 5xx) is raised.
        first_contact: The same for a server that has not answered this process so far (its address
            is usually wrong), for invalid answers, and for rotated credentials that are refused
            until new ones arrive. Never longer than `patience`.
        attempts: Attempts in a row without progress after which the failure is raised, too, at
            least 1; None: no limit.
        backoff_base: Ceiling of the first wait in seconds; it doubles with each failure.
        backoff_cap: Ceiling of all waits in seconds, except those that the server requests.
        connect_timeout: Seconds to establish a connection.
        first_byte_timeout: Seconds from the connection to the head of the response.
        stall_timeout: Seconds that a body may deliver no bytes, or a socket may be silent before
            the response's head.
        complete_timeout: Seconds for the store to assemble the parts of an upload.
        upload_rate: Minimum upload rate in bytes per second; sets the time limit of a part.
        hedge_share: The maximum share of second requests, sent when the first one is late compared
            with others; 0 sends none. See `storage.traffic`.
        hedge_allowance: Second requests allowed before the run has earned a share, for requests
            that are later than the others: a run of few requests earns none in time.
        first_byte_floor: Seconds within which no response is late enough for a second request.
        stall_floor: Seconds within which no body is late enough for a second request.
    """

    patience: float = 300.0
    first_contact: float = 30.0
    attempts: int | None = None
    backoff_base: float = 0.25
    backoff_cap: float = 8.0
    connect_timeout: float = 5.0
    first_byte_timeout: float = 15.0
    stall_timeout: float = 20.0
    complete_timeout: float = 120.0
    upload_rate: float = 256 * 1024
    hedge_share: float = 0.1
    hedge_allowance: int = 4
    first_byte_floor: float = 0.1
    stall_floor: float = 0.5

    def __post_init__(self) -> None:
        if self.attempts is not None and self.attempts < 1:
            raise ValueError(
                f"attempts is {self.attempts}; it counts the first one too, so pass 1 or more"
            )
        if not 0.0 <= self.hedge_share <= 1.0:
            raise ValueError(
                f"hedge_share is {self.hedge_share}; it is a share of requests, from 0 to 1"
            )
        if self.hedge_allowance < 0:
            raise ValueError(
                f"hedge_allowance is {self.hedge_allowance}; it counts requests, so pass 0 or more"
            )
        for name in ("patience", "first_contact"):
            if not getattr(self, name) >= 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is a time in seconds, 0 or more"
                )
        for name in ("first_byte_floor", "stall_floor"):
            if getattr(self, name) <= 0:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; it is a time in seconds, above 0"
                )

    def request_timeout(self, nbytes: int = 0) -> float:
        """Returns the seconds that a request may take until its response begins.

        Its body has `nbytes`.
        """
        return self.connect_timeout + self.first_byte_timeout + nbytes / self.upload_rate

    def patience_for(self, fault: TransientError, reached: bool) -> float:
        """Returns the seconds without progress allowed for a fault of a server that has answered
        before, or has not.
        """
        if fault.cause is Cause.REFUSED and not reached:
            return 0.0
        is_full = reached and fault.cause not in (Cause.WRONG_ANSWER, Cause.DAMAGED, Cause.REFUSED)
        return self.patience if is_full else min(self.patience, self.first_contact)


def next_delay(
    policy: RetryPolicy,
    failures: int,
    idle: float,
    fault: TransientError,
    jitter: float,
    patience: float,
) -> float | None:
    """Returns the seconds to wait before the next attempt, or None: give up.

    The last one is at the patience's end.

    Failures are counted in a row, this one included; `idle` is the time since the first of them in
    seconds. `jitter` is a random number in [0, 1).

    >>> fault = TransientError(Cause.BROKEN, "reset")
    >>> policy = RetryPolicy(backoff_base=1.0)
    >>> next_delay(policy, 3, idle=5.0, fault=fault, jitter=0.5, patience=300.0)
    2.0
    >>> next_delay(policy, 3, idle=300.0, fault=fault, jitter=0.5, patience=300.0) is None
    True
    """
    if idle >= patience or (policy.attempts is not None and failures >= policy.attempts):
        return None
    ceiling = min(policy.backoff_cap, policy.backoff_base * 2.0 ** min(failures - 1, 60))
    return min(max(jitter * ceiling, fault.retry_after or 0.0), patience - idle)


Translate = Callable[[Any, str, int | None, int | None], StorageError | TransientError]


def too_many_files() -> str:
    """What to do when the process has as many open files as it may."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"this process has reached its limit of {limit:,} open files and connections: lower "
        "num_parallel_reads (or cycle_length), or raise the limit (ulimit -n)"
    )


@dataclass(slots=True)
class Translated:
    """A block whose exceptions of the `foreign` types are translated.

    Our own errors pass unchanged.

    With `translate_errors = partial(Translated, foreign, translate)`,
    `with translate_errors(path, start, end)` raises `translate(error, path, start, end)` for an
    error in its block. As a class it costs a third of a `contextmanager`, and each block of a body
    uses one.
    """

    foreign: tuple[type[Exception], ...]
    translate: Translate
    path: str
    start: int | None = None
    end: int | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self.foreign) and not isinstance(error, StorageError | TransientError):
            raise self.translate(error, self.path, self.start, self.end) from mask_cause(
                error, secrets_in(self.path)
            )


_THROTTLED_CODES = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"}
)
_PASSING_CODES = frozenset(
    {"InternalError", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"}
)
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchUpload"})
_DENIED = (
    "the store refused access ({}): check the credentials and what they may do with this path{}"
)
_ARCHIVED = "the object is in an archive ({}): restore it (aws s3api restore-object), then read it"
_REJECTED = "check the URL and the options, and whether the server wants https://"
_PAYS = (
    "readers pay for this bucket ({}): pass requester_pays=True, and the project that pays as "
    "project="
)
_MISSING = "there is no such object or bucket ({}): check the URL"
_REGION_CODES = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
)
_CHANGED = "the object was replaced while it was being read: start again to read the new one"


def error_from_status(
    status: int,
    reason: str,
    path: str | None,
    start: int | None = None,
    end: int | None = None,
    *,
    code: str = "",
    region: str = "",
    retry_after: float | None = None,
    advice: str = "",
) -> StorageError | TransientError:
    """Returns the error for an HTTP answer that reports a failure.

    A store may give its error `code` ("SlowDown") and the bucket's `region`. `advice` says what
    else to check if access is refused, and begins with a comma.
    """
    # A store's code says more than the status: S3 answers 503 and 400 with many of them. Failures
    # that may pass come first.
    said = f"{code or status}: {reason}" if reason else str(code or status)
    if code in _THROTTLED_CODES or status in (429, 503):
        return TransientError(Cause.THROTTLED, said, retry_after)
    if code in _PASSING_CODES or status == 408 or (status >= 500 and status not in (501, 505)):
        return TransientError(Cause.SERVER, said, retry_after)
    if code in _REGION_CODES or (status == 301 and region):
        return StorageError(_other_region(said, region), path, start, end)
    if code == "RequestTimeTooSkewed":
        return PermissionDeniedError(
            f"this machine's clock is off ({said}): set it (NTP)", path, start, end
        )
    if code == "InvalidObjectState":
        return StorageError(_ARCHIVED.format(said), path, start, end)
    if "requester pays" in reason:
        return PermissionDeniedError(_PAYS.format(said), path, start, end)
    if code in _DENIED_CODES or status in (401, 403):
        return PermissionDeniedError(_DENIED.format(said, advice), path, start, end)
    if code in _MISSING_CODES or status in (404, 410):
        return NotFoundError(_MISSING.format(said), path, start, end)
    if status == 412:
        return ObjectChangedError(_CHANGED, path, start, end)
    return StorageError(f"the store rejected the request ({said}): {_REJECTED}", path, start, end)


def _other_region(said: str, region: str) -> str:
    named = f", {region} ({said})" if region else f" ({said})"
    return (
        f"the bucket is in another region{named}: pass client_kwargs={{'region_name': "
        f"{region or '...'!r}}}, and no endpoint_url of another region"
    )


def changed_error(
    path: str, start: int | None = None, end: int | None = None
) -> ObjectChangedError:
    """The error for an object that was written while it was read."""
    return ObjectChangedError(_CHANGED, path, start, end)


def exists_error(path: str) -> AlreadyExistsError:
    """The error for an output whose name is taken, where `overwrite` is not set."""
    return AlreadyExistsError(
        "there is an object of this name already: remove it, write under another name, or pass "
        "overwrite=True",
        path,
    )


_FINAL = {
    Cause.THROTTLED: ThrottledError,
    Cause.TIMED_OUT: StorageTimeoutError,
    Cause.CREDENTIALS: PermissionDeniedError,
    Cause.REFUSED: PermissionDeniedError,
}


def give_up(
    fault: TransientError,
    failures: int,
    seconds: float,
    path: str,
    start: int | None,
    end: int | None,
    *,
    reached: bool = True,
) -> StorageError:
    """Returns the final error for a fault that retries did not overcome.

    `seconds` count from the first failed attempt in a row; `reached` is whether the server has
    answered this process.
    """
    tries = (
        "1 attempt"
        if failures == 1
        else f"{failures} attempts in a row, {seconds:.0f} s without progress"
    )
    advice = (
        "check that the store is up and reachable, or pass RetryPolicy(patience=...) to wait longer"
    )
    if fault.cause in (Cause.CREDENTIALS, Cause.REFUSED):
        advice = "check the credentials, and log in again where they have expired"
    elif fault.cause is Cause.WRONG_ANSWER:
        advice = "check that this is the address of a store, and which proxy or cache is in between"
    elif not reached:
        advice = (
            "this server has not answered this process yet, so check its address (endpoint_url, "
            "or the host in the URL) and the network, or pass RetryPolicy(first_contact=...) to "
            "wait longer"
        )
    reason = f"{fault} in {tries}: {advice}"
    return _FINAL.get(fault.cause, StorageError)(reason, path, start, end)


def retry_after_seconds(header: str | None, now: datetime | None = None) -> float | None:
    """Parses a Retry-After header: seconds, or an HTTP date (RFC 9110, section 10.2.3).

    None if it is neither.

    >>> retry_after_seconds("2"), retry_after_seconds(None), retry_after_seconds("soon")
    (2.0, None, None)
    """
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    from email.utils import parsedate_to_datetime

    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - (now or datetime.now(UTC))).total_seconds())


def is_same_time(one: datetime | float | str | None, other: datetime | float | str | None) -> bool:
    """Whether two times of modification agree; False if one is unknown.

    A Last-Modified header has whole seconds, and listings have fractions that servers cut or round.

    >>> is_same_time("Tue, 01 Jul 2025 10:00:00 GMT", "2025-07-01T10:00:00.743Z")
    True
    >>> is_same_time("Tue, 01 Jul 2025 10:00:00 GMT", None), is_same_time(7.5, 9.0)
    (False, False)
    """
    first = _seconds_of(one)
    second = _seconds_of(other)
    return first is not None and second is not None and abs(first - second) < 1.0


def _seconds_of(time: datetime | float | str | None) -> float | None:
    """Returns a time as seconds since 1970; None if it is unknown, or in an unknown format."""
    from email.utils import parsedate_to_datetime

    if time is None or isinstance(time, int | float):
        return time
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            try:
                time = parsedate_to_datetime(str(time))
            except ValueError:
                return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)", re.ASCII | re.IGNORECASE)


def http_body_range(
    status: int,
    headers: Mapping[str, str],
    start: int = 0,
    end: int | None = None,
    *,
    sender: str = "",
) -> int | None:
    """Checks that an HTTP answer has the requested bytes, and returns the object's size, or None if
    it is unknown.

    A 200 has the whole object, so it is right only for a range that begins at 0. A 206 must begin
    at `start`, and end at `end` or at the end of the object. Any other answer is a TransientError
    (Cause.WRONG_ANSWER): a 204, 202 or 205 without a body is not an empty object. `sender` is the
    server's address, for the message.
    """
    length = headers.get("Content-Length", "")
    if status not in (200, 206):
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"{describe_answer(status, headers, b'', sender)} where a 200 or a 206 has the bytes",
        )
    if status == 200:
        if start > 0:
            raise TransientError(
                Cause.WRONG_ANSWER,
                f"a {status} with all bytes where byte {start:,} was requested: this server cannot "
                "continue a body that ended early",
            )
        return int(length) if length.isdigit() else None
    return _size_in_range(headers, start, end)


def _size_in_range(headers: Mapping[str, str], start: int, end: int | None) -> int | None:
    """Checks that a 206 has the requested range, and returns the object's size, or None if it is
    unknown.
    """
    length = headers.get("Content-Length", "")
    content_range = headers.get("Content-Range", "")
    if (found := _CONTENT_RANGE.fullmatch(content_range)) is None:
        raise TransientError(Cause.WRONG_ANSWER, f"a 206 with Content-Range {content_range!r}")
    first = int(found[1])
    last = int(found[2])
    size = None if found[3] == "*" else int(found[3])
    want = end if size is None else (size if end is None else min(end, size))
    if first != start or (want is not None and last + 1 != want):
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"Content-Range {content_range!r} where bytes {start}-{'' if end is None else end - 1} "
            "were requested",
        )
    if length.isdigit() and int(length) > last + 1 - first:  # its last bytes belong to nothing
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"a 206 with Content-Range {content_range!r} and a longer body, {int(length):,} bytes",
        )
    return size


_UNSATISFIED_RANGE = lazy_pattern(r"bytes \*/(\d+)", re.ASCII | re.IGNORECASE)


def check_past_the_end(headers: Mapping[str, str], start: int, size: int | None) -> int:
    """Checks that a 416 proves that the object ends at or before `start`; returns its size.

    The `headers` are those of the 416, which may have the size in Content-Range; `size` is that of
    a HEAD, if it has one. Without a size, or with one after `start`, it is a TransientError.

    >>> check_past_the_end({"Content-Range": "bytes */10"}, 10, None)
    10
    """
    found = _UNSATISFIED_RANGE.fullmatch(headers.get("Content-Range", ""))
    sizes = [each for each in (size, int(found[1]) if found else None) if each is not None]
    if not sizes:
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"a 416 for byte {start:,} without the object's size, which proves nothing",
        )
    if max(sizes) > start:
        raise TransientError(Cause.WRONG_ANSWER, f"a 416 for byte {start:,} of {max(sizes):,}")
    return sizes[0]
