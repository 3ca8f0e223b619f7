"""AWS credentials: aiobotocore renews those whose expiry it knows; this module does what it does
not.

* A blocking refresh function (a user's own) is called in a thread.
* If the store refuses credentials before they expire (a wrong clock, a revoked session, a rewritten
  credentials file), they are renewed, and the request is sent once more. Without newer ones, the
  retry policy decides. Keys that the user passed are never renewed.
* Credentials that live shorter than botocore expects are renewed once in their lifetime, not for
  each request.
* A renewal that fails is tried again after a second at the earliest, however many requests wait for
  it; and aiobotocore does not log a traceback for each of them: the retries' own lines say it.

It hooks into botocore's events, below every operation: `before-sign` records the generation of the
credentials, `needs-retry` checks each answer, and returns 0.0 to have the request signed and sent
again.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from aiobotocore.session import AioSession
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError, CredentialRetrievalError
from botocore.utils import parse_timestamp
from s3fs import S3FileSystem

from streamrec.storage.backends.s3.errors import RefusedError
from streamrec.storage.tasks import Renewal

EXPIRED: Final = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidToken",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
"""Error codes for credentials that have expired, or were replaced."""

FAILED_SECONDS: Final = 1.0
"""For how long a failed renewal is not tried again. Each may start a program, or ask a broker."""

_GENERATION: Final = "streamrec_generation"
_REPORTED: Final = "_streamrec_reports_it"


def watch_credentials(filesystem: S3FileSystem) -> Renewal | None:
    """Renews expiring credentials of a filesystem with a session; returns None if it has no
    credentials.
    """
    held = filesystem._s3._request_signer._credentials
    if held is None:
        return None
    if isinstance(held, RefreshableCredentials):
        held._refresh_using = _Refresh(held._refresh_using, held.method)
    watch = _Watch(held, filesystem.kwargs)
    for events in (filesystem._s3.meta.events, filesystem.session.get_component("event_emitter")):
        events.register("before-sign.s3", watch.before_sign, unique_id="streamrec-credentials-sign")
        events.register_first(
            "needs-retry.s3", watch.needs_retry, unique_id="streamrec-credentials-retry"
        )
    return watch.renewal


async def renew(renewal: Renewal, context: Mapping[str, Any], code: str) -> None:
    """Waits for newer credentials than those with which a request was signed; RefusedError if there
    are none.
    """
    try:
        await renewal.renew_after(context.get(_GENERATION, 0))
    except (
        BotoCoreError,
        RuntimeError,
    ) as error:  # the latter of botocore, for credentials that come expired
        raise RefusedError(code=code, reason=str(error)) from error


class _Watch:
    def __init__(self, held: Credentials, session_kwargs: dict[str, Any]) -> None:
        self._held = held
        self._session_kwargs = session_kwargs
        self.renewal = Renewal(self._renew)

    def before_sign(self, request: Any, **_: Any) -> None:
        request.context[_GENERATION] = self.renewal.generation

    async def needs_retry(
        self, response: Any, attempts: int, request_dict: Any, **_: Any
    ) -> float | None:
        """Returns the seconds until the request is sent again: 0.0 after a renewal; None: it is
        not.
        """
        if response is None or attempts > 1 or _code_of(response[1]) not in {*EXPIRED, "400"}:
            return None
        await renew(self.renewal, request_dict["context"], _code_of(response[1]))
        return 0.0

    async def _renew(self) -> None:
        held = self._held
        if isinstance(held, RefreshableCredentials):
            async with held._refresh_lock:
                held._refresh_using.forget()
                await held._protected_refresh(is_mandatory=True)
            return
        fresh = await AioSession(**self._session_kwargs).get_credentials()
        if fresh is None or (fresh.access_key, fresh.token) == (held.access_key, held.token):
            raise CredentialRetrievalError(provider=held.method, error_msg="it has no newer ones")
        held.access_key = fresh.access_key
        held.secret_key = fresh.secret_key
        held.token = fresh.token


def _code_of(parsed: Any) -> str:
    """Returns the error code of an answer, or "". An answer to HEAD has no body: its code is the
    status.
    """
    return str(parsed.get("Error", {}).get("Code", ""))


class _Refresh:
    """Calls a refresh function in a thread, and again only after three quarters of the credentials'
    lifetime.

    botocore calls it for each request in the 15 minutes before the credentials expire, possibly
    their whole lifetime.
    """

    def __init__(self, refresh: Callable[[], Any], method: str) -> None:
        self._refresh = refresh
        self._method = method
        self._fresh: Any = None
        self._until = 0.0
        self._failure: BotoCoreError | None = None
        self._failed_at = 0.0

    def forget(self) -> None:
        """Drops the last credentials, because they were refused."""
        self._until = 0.0

    async def __call__(self) -> Any:
        if time.monotonic() >= self._until:
            if self._failure is not None and time.monotonic() < self._failed_at + FAILED_SECONDS:
                raise self._failure.with_traceback(None)
            try:
                self._fresh, seconds = await self._renewed()
            except BotoCoreError as error:
                setattr(error, _REPORTED, True)
                self._failure = error
                self._failed_at = time.monotonic()
                raise
            self._failure = None
            self._until = time.monotonic() + 0.75 * seconds
        return self._fresh

    async def _renewed(self) -> tuple[Any, float]:
        """New credentials, and for how many seconds they are valid."""
        try:
            result = await asyncio.to_thread(self._refresh)
            fresh = await result if inspect.isawaitable(result) else result
            lifetime = parse_timestamp(fresh["expiry_time"]) - datetime.now(UTC)
        except BotoCoreError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CredentialRetrievalError(provider=self._method, error_msg=reason) from error
        return fresh, lifetime.total_seconds()


def _is_news(record: logging.LogRecord) -> bool:
    """A filter that drops aiobotocore's traceback of a failed renewal of ours."""
    error = record.exc_info[1] if record.exc_info else None
    return not getattr(error, _REPORTED, False)


logging.getLogger("aiobotocore.credentials").addFilter(_is_news)
