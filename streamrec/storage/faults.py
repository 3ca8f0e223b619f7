"""Faults: what a failed attempt means. Pure; nothing here waits.

There are two kinds. A **final** error (`NotFoundError`, `PermissionDeniedError`, `ObjectChangedError`, ...)
would be the same if one tried again, so it goes to the caller at once. A `TransientError` may pass: it goes
to the retry policy, and becomes a StorageError when that gives up. Backends decide which is which with the
functions below, so that a 503 means the same on every store.

No foreign exception leaves this package: each backend has a `translate_errors` (made by `error_translator`) around its
calls of the client below it.
"""

from __future__ import annotations

import enum
import resource
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
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

__all__ = [
    "Cause",
    "TransientError",
    "changed_error",
    "error_translator",
    "exists",
    "from_status",
    "give_up",
    "http_body_range",
    "retry_after_seconds",
    "too_many_files",
]


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
    """An attempt failed in a way that may pass.

    Args:
        cause: The kind of failure.
        reason: What the client or the server said.
        retry_after: Seconds that the server asked to wait, or None.
    """

    def __init__(self, cause: Cause, reason: str, retry_after: float | None = None) -> None:
        super().__init__(cause, reason, retry_after)
        self.cause = cause
        self.reason = reason
        self.retry_after = retry_after

    def __str__(self) -> str:
        return display_text(f"{self.cause.value} ({self.reason})")


ErrorTranslator = Callable[..., AbstractContextManager[None]]
Translate = Callable[[Any, str, int | None, int | None], StorageError | TransientError]


def too_many_files() -> str:
    """What "Too many open files" means, and what helps."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (
        f"too many files and connections are open: {limit:,}, which is all that this process may have: lower "
        "num_parallel_reads (or cycle_length), or raise the limit (ulimit -n)"
    )


def error_translator(
    foreign: tuple[type[Exception], ...], translate: Translate
) -> Callable[..., AbstractContextManager[None]]:
    """Makes a `translate_errors` for exceptions of these types; ours, among them or not, pass as they are.

    `with translate_errors(path, start, end)` translates what leaves its block; it concerns these bytes of `path`.

    Args:
        foreign: What the client below raises.
        translate: Called with the exception, the path and the range: what it means.
    """
    return partial(_Translated, foreign, translate)


class _Translated:
    """Each block of each body goes through one: as a class it costs a third of a `contextmanager`."""

    __slots__ = ("_end", "_foreign", "_path", "_start", "_translate")

    def __init__(
        self,
        foreign: tuple[type[Exception], ...],
        translate: Translate,
        path: str,
        start: int | None = None,
        end: int | None = None,
    ) -> None:
        self._foreign, self._translate = foreign, translate
        self._path, self._start, self._end = path, start, end

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._foreign) and not isinstance(error, StorageError | TransientError):
            raise self._translate(error, self._path, self._start, self._end) from mask_cause(
                error, secrets_in(self._path)
            )


_THROTTLED_CODES = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded"})
_PASSING_CODES = frozenset(
    {
        "InternalError",
        "RequestTimeout",
        "OperationAborted",
        "ConditionalRequestConflict",
    }
)
_DENIED_CODES = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_MISSING_CODES = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchUpload"})
_DENIED = "the store refused access ({}): check the credentials and what they may do with this path{}"
_ARCHIVED = "the object is in an archive ({}): restore it (aws s3api restore-object), then read it"
_REJECTED = "check the URL and the options, and whether the server wants https://"
_PAYS = "readers pay for this bucket ({}): pass requester_pays=True, and the project that pays as project="
_MISSING = "there is no such object or bucket ({}): check the URL"
_REGION_CODES = frozenset({"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"})
_CHANGED = "the object was replaced while it was being read: start again to read the new one"


def from_status(
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
    """The error that an HTTP answer means.

    Args:
        status: The HTTP status.
        reason: What the server said.
        path: The object's URL.
        start: First byte that was asked for, or None.
        end: One past the last byte, or None.
        code: The store's own error code ("SlowDown"), or empty.
        region: Where the bucket is, if the store said so; or empty.
        retry_after: Seconds that the server asked to wait, or None.
        advice: What else to check where access is refused, after a comma.

    Returns:
        A TransientError, or a final error. Never None: call it for failures only.
    """
    said = f"{code or status}: {reason}" if reason else str(code or status)
    if code in _THROTTLED_CODES or status in (429, 503):
        return TransientError(Cause.THROTTLED, said, retry_after)
    if code in _PASSING_CODES or status == 408 or (status >= 500 and status not in (501, 505)):
        return TransientError(Cause.SERVER, said, retry_after)
    if code in _REGION_CODES or (status == 301 and region):
        return StorageError(_other_region(said, region), path, start, end)
    if code == "RequestTimeTooSkewed":
        return PermissionDeniedError(f"this machine's clock is off ({said}): set it (NTP)", path, start, end)
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
    """What a store means that sends us elsewhere, and what to write."""
    named = f", {region} ({said})" if region else f" ({said})"
    return (
        f"the bucket is in another region{named}: pass client_kwargs={{'region_name': {region or '...'!r}}}, and no "
        "endpoint_url of another region"
    )


def changed_error(path: str, start: int | None = None, end: int | None = None) -> ObjectChangedError:
    """The error for an object whose version is no longer the pinned one."""
    return ObjectChangedError(_CHANGED, path, start, end)


def exists(path: str) -> AlreadyExistsError:
    """The error for a name that is taken and must not be replaced."""
    return AlreadyExistsError(
        "there is an object of this name already: remove it, write under another name, or pass overwrite=True", path
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
    """The error for the caller, when a fault did not pass.

    Args:
        fault: The last fault.
        failures: How many attempts in a row failed without a byte of progress.
        seconds: How long that took.
        path: The object's URL.
        start: First byte that was asked for, or None.
        end: One past the last byte, or None.
        reached: Whether the server has answered this process before.
    """
    tries = "1 attempt" if failures == 1 else f"{failures} attempts in a row, {seconds:.0f} s without progress"
    advice = "check that the store is up and reachable, or pass RetryPolicy(patience=...) to wait longer"
    if fault.cause in (Cause.CREDENTIALS, Cause.REFUSED):
        advice = "check the credentials, and log in again where they have expired"
    elif fault.cause is Cause.WRONG_ANSWER:
        advice = "check that this is the address of a store, and which proxy or cache is in between"
    elif not reached:
        advice = (
            "this server has not answered this process yet, so check its address (endpoint_url, or the host in the "
            "URL) and the network, or pass RetryPolicy(first_contact=...) to wait longer"
        )
    reason = f"{fault} in {tries}: {advice}"
    return _FINAL.get(fault.cause, StorageError)(reason, path, start, end)


def retry_after_seconds(header: str | None, now: datetime | None = None) -> float | None:
    """Seconds of a Retry-After header: a number, or an HTTP date (RFC 9110, section 10.2.3).

    Returns:
        Seconds, at least 0; None without a header that makes sense.

    >>> retry_after_seconds("2"), retry_after_seconds(None), retry_after_seconds("soon")
    (2.0, None, None)
    """
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    then = then if then.tzinfo else then.replace(tzinfo=UTC)
    return max(0.0, (then - (now or datetime.now(UTC))).total_seconds())


def http_body_range(status: int, headers: Mapping[str, str], start: int, end: int | None) -> int | None:
    """Checks that an HTTP answer holds the bytes asked for, and says how long the object is.

    A 200 has the whole object, so it will do only where the bytes were wanted from 0. A 206 must begin at
    `start` and end where it was asked to, or where the object ends.

    Args:
        status: 200 or 206.
        headers: Content-Range and Content-Length, under these names in any case-insensitive mapping.
        start: First byte that was asked for.
        end: One past the last byte that was asked for, or None: to the end.

    Returns:
        The object's size, or None where the server does not say.

    Raises:
        TransientError: Other bytes, Cause.WRONG_ANSWER.
    """
    length = headers.get("Content-Length")
    if status != 206:
        if start > 0:
            raise TransientError(Cause.WRONG_ANSWER, f"a {status} with all bytes where byte {start:,} was wanted")
        return int(length) if length is not None and length.isdigit() else None
    found = headers.get("Content-Range", "")
    first, last, size = _parse_content_range(found)
    want = end if size is None else (size if end is None else min(end, size))
    if first != start or (want is not None and last + 1 != want):
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"Content-Range {found!r} where bytes {start}-{'' if end is None else end - 1} were wanted",
        )
    return size


def _parse_content_range(header: str) -> tuple[int, int, int | None]:
    """First byte, last byte and size of "bytes 0-9/100" (or "/*"); a TransientError for anything else."""
    unit, _, rest = header.partition(" ")
    span, _, size = rest.partition("/")
    first, _, last = span.partition("-")
    if unit.lower() != "bytes" or not (first.isdigit() and last.isdigit() and (size.isdigit() or size == "*")):
        raise TransientError(Cause.WRONG_ANSWER, f"a 206 with Content-Range {header!r}")
    return int(first), int(last), None if size == "*" else int(size)
