"""The JSON API of Google Cloud Storage: requests with credentials, names of resources, answers,
errors.

google-auth refreshes credentials by a blocking request, so this module does that in a thread. It
renews a token when google-auth calls it stale (some minutes before it expires), and when the store
refuses it earlier. A token that is stale when it is issued, like a short-lived one, is used until
it expires.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import requests
from gcsfs.core import GCSFileSystem
from google.auth.credentials import Credentials, TokenState
from google.auth.exceptions import GoogleAuthError, TransportError
from google.auth.transport.requests import Request
from yarl import URL

from streamrec.display import mask_cause, shorten
from streamrec.errors import StorageError
from streamrec.storage.arrivals import HEAD_BYTES, describe_answer
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.backends.http.pieces_body import PiecesBody
from streamrec.storage.backends.http.responses import check_answer, sender, translate_errors
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.tasks import Renewal
from streamrec.storage.urls import split_object

_LOG_IN = (
    ", GOOGLE_APPLICATION_CREDENTIALS, gcloud auth application-default login, or token='FILE.json'"
)


async def check(
    answer: aiohttp.ClientResponse, path: str, start: int | None = None, end: int | None = None
) -> None:
    """Raises the error of an answer with a status of 300 or above, with the store's message."""
    if answer.method == "DELETE" and answer.status not in (200, 204) and answer.status < 300:
        said = describe_answer(answer.status, answer.headers, b"", sender(answer))
        raise TransientError(Cause.WRONG_ANSWER, f"{said} where a 204 was expected")
    if answer.status >= 300:
        message = _parse_message(await answer.text(errors="replace"))
        advice = _LOG_IN if answer.status == 401 else ""
        check_answer(answer, path, start, end, message=message, advice=advice)


def _parse_message(body: str) -> str:
    """Returns the message of an error document, or the beginning of any other document."""
    try:
        return shorten(json.loads(body)["error"]["message"], 200)
    except (ValueError, LookupError, TypeError, RecursionError):
        return shorten(" ".join(body.split()), 200)


async def read_json(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """Returns the answer's JSON object; anything else is a TransientError."""
    body = await answer.read()
    said = describe_answer(answer.status, answer.headers, body[:HEAD_BYTES], sender(answer))
    if answer.status not in (200, 201):
        raise TransientError(Cause.WRONG_ANSWER, f"{said} where the store's JSON was expected")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise TransientError(
            Cause.WRONG_ANSWER, f"{said} where the store's JSON was expected"
        ) from error
    if not isinstance(found, dict) or "error" in found:
        raise TransientError(Cause.WRONG_ANSWER, f"no answer of the store: {said}")
    return found


def info_in(path: str, item: Mapping[str, Any]) -> ObjectInfo:
    """Returns size and version from an object's resource."""
    return ObjectInfo(path, int(item["size"]), str(item["generation"]), item.get("updated"))


def resource(path: str) -> str:
    """Returns an object's path below the API's root."""
    bucket, key = split_object(path)
    return f"/b/{quote(bucket, safe='')}/o/{quote(key, safe='')}"


def check_token(url: str, token: Any) -> None:
    """Refuses a `token` that names a missing file: gcsfs would send the name to Google as a
    token.
    """
    is_name = isinstance(token, str) and (
        token.endswith(".json") or token.startswith(("/", "./", "../", "~"))
    )
    if is_name and not os.path.exists(token):
        raise StorageError(
            f"storage option token={token!r} names a file that does not exist: give the full path "
            "of a JSON file with "
            "credentials (~ is not expanded), 'google_default', 'cloud', 'anon', or an access "
            "token itself",
            url,
        )


class GcsApi:
    """Sends requests to the API, with the credentials and the session of a filesystem."""

    def __init__(self, filesystem: GCSFileSystem, timeout: aiohttp.ClientTimeout) -> None:
        self.endpoint = str(filesystem._location)
        self._fs = filesystem
        self._timeout = timeout
        self._held: Credentials | None = filesystem.credentials.credentials  # None: anonymous
        self._renewed: str | None = None
        self._renewal = Renewal(self._renew)

    async def metadata(self, path: str) -> dict[str, Any]:
        """Returns the resource of an object."""
        return await self.json(path, "GET", "/storage/v1" + resource(path))

    async def json(
        self, path: str, method: str, place: str, query: Mapping[str, str | None] | None = None
    ) -> dict[str, Any]:
        """Sends a request without a body; returns the JSON of its answer."""
        with translate_errors(path):
            async with await self.send(method, place, query) as answer:
                await check(answer, path)
                return await read_json(answer)

    async def send(
        self,
        method: str,
        place: str,
        query: Mapping[str, str | None] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Sequence[memoryview] | None = None,
    ) -> aiohttp.ClientResponse:
        """Sends one request; returns when the head of the answer has arrived. The caller closes the
        answer.

        If the store refuses a token before it expires, the token is renewed once, and the request
        sent once more. `place` is the path below the endpoint, percent-encoded; or a full URL.
        Parameters with the value None are left out.
        """
        parameters = urlencode(self._fs._get_params(dict(query or {})), quote_via=quote)
        url = place if "://" in place else self._fs._location + place
        url += ("&" if "?" in url else "?") + parameters if parameters else ""
        generation = self._renewal.generation
        answer = await self._send(method, url, headers, body)
        if answer.status == 401 and self._held is not None:
            answer.close()
            await self._renewal.renew_after(generation)
            answer = await self._send(method, url, headers, body)
        return answer

    async def _send(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str] | None,
        body: Sequence[memoryview] | None,
    ) -> aiohttp.ClientResponse:
        target = URL(url, encoded=True)
        ours = (
            target.origin() == URL(self._fs._location).origin()
        )  # an upload's session may be on another host
        authorization: dict[str, str] = {}
        if ours and (held := self._held) is not None:
            state = held.token_state
            if state is TokenState.INVALID or (
                state is TokenState.STALE and held.token != self._renewed
            ):
                await self._renewal.renew_after(self._renewal.generation)
            held.apply(authorization)  # type: ignore[no-untyped-call]
        return await self._fs._session.request(  # type: ignore[no-any-return]
            method,
            target,
            headers={"Accept-Encoding": "gzip", **authorization, **(headers or {})},
            data=None if body is None else PiecesBody(body),
            timeout=self._timeout,
            allow_redirects=False,  # 308 means something else here
        )

    async def _renew(self) -> None:
        held = self._held
        assert held is not None, "anonymous credentials never expire"

        def refresh() -> None:
            with requests.Session() as session:
                held.refresh(Request(session))  # type: ignore[no-untyped-call]

        try:
            await asyncio.to_thread(refresh)
        except (GoogleAuthError, requests.RequestException) as error:
            said = f"{type(error).__name__}: {error}"
            if getattr(error, "retryable", False) or isinstance(
                error, TransportError | requests.RequestException
            ):
                raise TransientError(Cause.CREDENTIALS, said) from mask_cause(error)
            raise TransientError(Cause.REFUSED, said) from mask_cause(error)
        self._renewed = held.token

    async def aclose(self) -> None:
        """Closes the session."""
        await self._renewal.aclose()
        await self._fs.session.close()
