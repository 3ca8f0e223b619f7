"""AWS credentials: renewed in time by aiobotocore where it knows when they expire; here is what it leaves open.

* A refresh function that blocks (a user's own) is called in a thread.
* A token that the store refuses before its time (a clock that is off, a session that was revoked, a credentials
  file that is rewritten) is renewed once, and the request is sent once more. Keys that the user passed
  are all there is; those are never renewed.

It hooks into botocore's events, below every verb: `before-sign` notes the generation of the credentials,
`needs-retry` is asked about each answer, and its 0.0 has the request signed and sent again.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from aiobotocore.session import AioSession
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError, CredentialRetrievalError
from s3fs import S3FileSystem

from streamrec.storage.tasks import Renewal

__all__ = ["EXPIRED", "renewed", "watch_credentials"]

EXPIRED: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken"})
"""Error codes of credentials that are too old."""

_GENERATION: Final = "streamrec_generation"


def watch_credentials(filesystem: S3FileSystem) -> Renewal | None:
    """From here on, credentials that expire are renewed; None where there are none to renew.

    Args:
        filesystem: Its session was made.
    """
    held = filesystem._s3._request_signer._credentials
    if filesystem.anon or held is None or filesystem.key is not None:
        return None
    if isinstance(held, RefreshableCredentials):
        held._refresh_using = _off_the_loop(held._refresh_using, held.method)
    watch = _Watch(held, filesystem.kwargs)
    for events in (filesystem._s3.meta.events, filesystem.session.get_component("event_emitter")):
        events.register("before-sign.s3", watch.before_sign, unique_id="streamrec-credentials-sign")
        events.register_first("needs-retry.s3", watch.needs_retry, unique_id="streamrec-credentials-retry")
    return watch.renewal


async def renewed(renewal: Renewal, context: Mapping[str, Any]) -> bool:
    """Whether there are newer credentials than those that a request was signed with; where not, its answer is final.

    Args:
        renewal: Who renews them.
        context: The request's.
    """
    try:
        await renewal.since(context.get(_GENERATION, 0))
    except (BotoCoreError, RuntimeError):  # the latter of botocore, for credentials that come expired
        return False
    return True


class _Watch:
    def __init__(self, held: Credentials, session_kwargs: dict[str, Any]) -> None:
        self._held = held
        self._session_kwargs = session_kwargs
        self.renewal = Renewal(self._renew)

    def before_sign(self, request: Any, **_: Any) -> None:
        request.context[_GENERATION] = self.renewal.generation

    async def needs_retry(self, response: Any, attempts: int, request_dict: Any, **_: Any) -> float | None:
        """Seconds until the request is sent again: at once after a renewal; None for no."""
        if response is None or attempts > 1 or not _is_expired(*response):
            return None
        return 0.0 if await renewed(self.renewal, request_dict["context"]) else None

    async def _renew(self) -> None:
        held = self._held
        if isinstance(held, RefreshableCredentials):
            async with held._refresh_lock:
                await held._protected_refresh(is_mandatory=True)
            return
        fresh = await AioSession(**self._session_kwargs).get_credentials()
        if fresh is None or (fresh.access_key, fresh.token) == (held.access_key, held.token):
            raise CredentialRetrievalError(provider=held.method, error_msg="there are no newer ones")
        held.access_key, held.secret_key, held.token = fresh.access_key, fresh.secret_key, fresh.token


def _is_expired(answer: Any, parsed: Any) -> bool:
    """Whether an answer blames the credentials' age. One to HEAD has no words, but then its status is a 400."""
    code = str(parsed.get("Error", {}).get("Code", ""))
    return code in EXPIRED or code == "400"


def _off_the_loop(refresh: Callable[[], Any], method: str) -> Callable[[], Any]:
    """Calls a refresh function in a thread, and awaits what it returns where it is async."""

    async def refreshed() -> Any:
        try:
            result = await asyncio.to_thread(refresh)
            return await result if inspect.isawaitable(result) else result
        except BotoCoreError:
            raise
        except Exception as error:
            raise CredentialRetrievalError(provider=method, error_msg=f"{type(error).__name__}: {error}") from error

    return refreshed
