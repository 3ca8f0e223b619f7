"""Google's credentials: google-auth refreshes them by a blocking request, so here that is done in a thread.

Tokens are renewed when google-auth calls them stale (some minutes before they expire), and when the store
refuses one before its time. A token that is stale as soon as it comes, as short-lived ones are, is used until it
expires.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

import requests
from gcsfs.core import GCSFileSystem
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request

from streamrec.display import masked_cause
from streamrec.errors import PermissionDeniedError, StorageError
from streamrec.storage.resilience.credentials import Renewal
from streamrec.storage.resilience.faults import Cause, TransientError

__all__ = ["GcsCredentials", "check_token"]


def check_token(url: str, token: Any) -> None:
    """Refuses a `token` that names a file which is not there: gcsfs would send the name to Google as a token.

    Raises:
        StorageError: It is.
    """
    is_name = isinstance(token, str) and (token.endswith(".json") or token.startswith(("/", "./", "../", "~")))
    if is_name and not os.path.exists(token):
        raise StorageError(
            f"storage option token={token!r} names a file that is not there: give the whole path of a JSON file with "
            "credentials (~ is not expanded), 'google_default', 'cloud', 'anon', or an access token itself",
            url,
        )


class GcsCredentials:
    """The headers that identify us.

    Args:
        filesystem: Found the credentials; None of them is anonymous.
    """

    def __init__(self, filesystem: GCSFileSystem) -> None:
        self._held: Credentials | None = filesystem.credentials.credentials
        self._agent = dict(filesystem._get_headers(None)) if self._held is None else {}
        self._renewed: str | None = None
        self.renewal = Renewal(self._renew)

    @property
    def renewable(self) -> bool:
        """Whether a refused token may be replaced by another."""
        return self._held is not None

    async def headers(self) -> dict[str, str]:
        """The headers for a request that is sent now.

        Raises:
            PermissionDeniedError: There is no other token to be had.
            TransientError: Just now there is none.
        """
        headers = dict(self._agent)
        if self._held is not None:
            if self._is_stale(self._held):
                await self.renewal.since(self.renewal.generation)
            self._held.apply(headers)  # type: ignore[no-untyped-call]
        return headers

    def _is_stale(self, held: Credentials) -> bool:
        state = held.token_state
        return state is TokenState.INVALID or (state is TokenState.STALE and held.token != self._renewed)

    async def _renew(self) -> None:
        held = self._held
        assert held is not None, "anonymous credentials never expire"
        try:
            await asyncio.to_thread(_refresh, held)
        except (GoogleAuthError, requests.RequestException) as error:
            said = f"{type(error).__name__}: {error}"
            if getattr(error, "retryable", False) or isinstance(error, TransportError | requests.RequestException):
                raise TransientError(Cause.CREDENTIALS, said) from masked_cause(error)
            reason = f"the credentials could not be refreshed ({said}): log in again"
            raise PermissionDeniedError(reason) from masked_cause(error)
        self._renewed = held.token


def _refresh(held: Credentials) -> None:
    with requests.Session() as session:
        held.refresh(Request(session))  # type: ignore[no-untyped-call]
