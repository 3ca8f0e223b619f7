"""Plain web servers, read only, over aiohttp; the session comes from fsspec's HTTPFileSystem.

Versions are ETags, or Last-Modified dates without an ETag. A strong ETag is pinned with If-Match;
in any case the version of each answer is compared, so servers may ignore the header.

Web servers have no standard way to list or write: both raise UnsupportedOperationError.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

import aiohttp
from fsspec.implementations.http import HTTPFileSystem
from yarl import URL

from streamrec.errors import StorageError, UnsupportedOperationError
from streamrec.storage.backend import (
    Backend,
    Body,
    ObjectInfo,
    PartSink,
    Precondition,
    Replaced,
    UploadTerms,
)
from streamrec.storage.backends.http.responses import (
    BUFFERED_BODIES,
    AiohttpBody,
    body_past_the_end,
    check_answer,
    client_timeout,
    first_bytes,
    info_of_answer,
    is_doubtful,
    range_header,
    sender,
    session_settings,
    size_of_answer,
    translate_errors,
)
from streamrec.storage.faults import RetryPolicy, changed_error, http_body_range
from streamrec.storage.options import (
    COMMON_OPTIONS,
    ClientOptions,
    build,
    check_names,
    parameter_names,
)
from streamrec.storage.urls import Glob

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS: Final = 10

FOR_ONE_SERVER: Final = frozenset({"headers", "auth", "cookies", "params"})
"""Options of a request that may contain credentials for the user's server, and must not reach
another one."""


async def connect(source: ClientOptions, policy: RetryPolicy) -> HttpBackend:
    """Makes a session in the running loop. `client_kwargs` go to it, other options to every
    request.
    """
    known = parameter_names(HTTPFileSystem, aiohttp.ClientSession._request) | COMMON_OPTIONS
    check_names(source.url, "storage_options", source.options, known)
    session_names = parameter_names(aiohttp.ClientSession.__init__)
    check_names(source.url, "client_kwargs", source.option("client_kwargs") or {}, session_names)
    client = {"timeout": client_timeout(policy), **session_settings(source.option("client_kwargs"))}
    filesystem = build(HTTPFileSystem, source, client_kwargs=client)
    await filesystem.set_session()
    return HttpBackend(filesystem)


class HttpBackend(Backend):
    """Web servers: objects are read, and neither listed nor written."""

    remote = True

    def __init__(self, filesystem: HTTPFileSystem) -> None:
        self._fs = filesystem
        self._session: aiohttp.ClientSession = filesystem._session
        self._bare_session: aiohttp.ClientSession | None = None
        self.fast_paths = (BUFFERED_BODIES,)

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        _refuse("list", prefix)

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        _refuse("write", path)

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        _refuse("write", target)

    async def remove(self, path: str, version: str | None = None) -> None:
        _refuse("remove", path)

    async def stat(self, path: str) -> ObjectInfo:
        with translate_errors(path):
            async with await self._send("HEAD", path, {}) as answer:
                check_answer(answer, path)
                return ObjectInfo(
                    path,
                    http_body_range(answer.status, answer.headers, sender=sender(answer)),
                    _version(answer.headers),
                    answer.headers.get("Last-Modified"),
                )

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        headers = {**range_header(start, end), **_pin(version)}
        with translate_errors(path, start, end):
            answer = await self._send("GET", path, headers)
        try:
            if answer.status == 416:
                # the stream above compares the version
                return await body_past_the_end(self.stat, path, start, answer.headers)
            check_answer(answer, path, start, end)
            found = _version(answer.headers)
            head = b""
            if is_doubtful(answer, found):
                with translate_errors(path, start, end):
                    head = await first_bytes(answer, path, found, of_store=False)
            size = await size_of_answer(answer, self.stat, path, start, end)
            info = info_of_answer(path, size, found, answer.headers)
            if version is not None and info.version != version:
                raise changed_error(path, start, end)
        except BaseException:
            answer.close()
            raise
        ranges = answer.status == 206 or answer.headers.get("Accept-Ranges") == "bytes"
        return AiohttpBody(answer, info, start, end, splits=ranges, head=head)

    async def aclose(self) -> None:
        if self._bare_session is not None:
            await self._bare_session.close()
        await self._session.close()

    async def _send(
        self, method: str, path: str, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Sends a request and follows its redirects. Another server gets no credentials of this
        one.
        """
        if "#" in path:
            raise StorageError(
                "a web server does not see what follows a #: write %23 for a # in a name", path
            )
        own_headers = {"Accept-Encoding": "identity", **headers}  # the bytes as they are stored
        session = self._session
        options = dict(self._fs.kwargs)
        options["headers"] = {**(options.get("headers") or {}), **own_headers}
        follows = options.pop("allow_redirects", True)
        url: URL = self._fs.encode_url(path)
        if url.user is not None:  # aiohttp would omit it from a redirected request
            password = b64encode(f"{url.user}:{url.password or ''}".encode()).decode()
            options["headers"].setdefault("Authorization", f"Basic {password}")
            url = url.with_user(None)
        answer = await session.request(method, url, allow_redirects=False, **options)
        redirects = 0
        while (
            follows and answer.status in REDIRECTS and (location := answer.headers.get("Location"))
        ):
            answer.release()
            if (redirects := redirects + 1) > MAX_REDIRECTS:
                raise StorageError(
                    f"the server redirects more than {MAX_REDIRECTS} times: check the URL", path
                )
            try:
                url = answer.url.join(URL(location))
            except ValueError as error:
                raise StorageError(
                    f"the server redirects to {location!r}, which is not a URL: check its address",
                    path,
                ) from error
            if session is self._session and not _is_same_server(answer.url, url):
                session = self._open_bare()
                options = {key: options[key] for key in options.keys() - FOR_ONE_SERVER}
                options["headers"] = own_headers
            answer = await session.request(method, url, allow_redirects=False, **options)
        return answer

    def _open_bare(self) -> aiohttp.ClientSession:
        """Returns a session over the same connections, without the user's headers, cookies and
        passwords.
        """
        if self._bare_session is None:
            self._bare_session = aiohttp.ClientSession(
                connector=self._session.connector,
                connector_owner=False,
                timeout=self._session.timeout,
                auto_decompress=self._session.auto_decompress,
                trust_env=self._session.trust_env,
            )
        return self._bare_session


def _is_same_server(one: URL, other: URL) -> bool:
    """Whether `other` may receive the credentials for `one`: it is the same server, or the same
    over TLS.
    """
    secured = (
        (one.scheme, other.scheme) == ("http", "https")
        and one.is_default_port()
        and other.is_default_port()
    )
    return one.host == other.host and (secured or one.origin() == other.origin())


def _version(headers: Mapping[str, str]) -> str | None:
    return headers.get("ETag") or headers.get("Last-Modified")


def _pin(version: str | None) -> dict[str, str]:
    """Returns the precondition header for a version; a weak ETag (W/"...") never matches, so it has
    none.
    """
    if version is None or version.startswith("W/"):
        return {}
    return {"If-Match" if version.startswith('"') else "If-Unmodified-Since": version}


def _refuse(verb: str, path: str) -> NoReturn:
    raise UnsupportedOperationError(
        f"a web server cannot be asked to {verb}: use an object store or files", path
    )
