"""Responses of aiohttp: reads their bodies, checks their heads, and translates exceptions. For s3,
gcs and http.

This is the hot path of all reading: one await per chunk, no joining of chunks, one copy into the
caller's buffer. Bytes that did not fit are kept as a view, not copied again.

The rest of a large body is read past aiohttp (`socket_body.py`):
- Only for a plain body of known length, when aiohttp holds none of it any more, and at least
  `MIN_BYTES` are left.
- After the last byte the connection returns to aiohttp, which keeps it for the next request.
- It is a `FastPath`: if it fails (under uvloop, say), aiohttp reads the body.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import aiohttp

from streamrec.errors import StorageError
from streamrec.storage.arrivals import (
    HEAD_BYTES,
    codings_of,
    describe_answer,
    is_page,
    is_unreadable,
    may_be_page,
)
from streamrec.storage.backend import BytesBody, FastPath, ObjectInfo
from streamrec.storage.backends.http.socket_body import ALL, SocketBody
from streamrec.storage.backends.http.tls_reader import TLSReader
from streamrec.storage.faults import (
    Cause,
    RetryPolicy,
    TransientError,
    Translated,
    check_past_the_end,
    error_from_status,
    http_body_range,
    retry_after_seconds,
    too_many_files,
)

MIN_BYTES: Final = 1 << 20
"""Bytes that must be left of a body to read it past aiohttp."""

BUFFERED_BODIES: Final = FastPath(
    "receiving bodies past aiohttp (streamrec.storage.backends.http.responses)"
)


def _read_past_aiohttp(response: aiohttp.ClientResponse, remaining: int) -> SocketBody | None:
    """Takes over the connection of a response with drained `content`; None if that is not
    worthwhile or not safe.
    """
    if remaining < MIN_BYTES or not BUFFERED_BODIES.is_enabled(ALL):
        return None
    try:
        connection = response.connection
        transport: Any = None if connection is None else connection.transport
        if transport is None or connection is None or getattr(connection.protocol, "_tail", False):
            return None
        if not isinstance(transport, asyncio.Transport):
            kind = type(transport).__name__
            raise AttributeError(
                f"a {kind} is not a transport of asyncio's own: another event loop runs"
            )
        tls = TLSReader(transport) if transport.get_extra_info("sslcontext") else None
        if not transport.is_reading() or not (tls is None or tls.is_idle()):
            return None
        transport = transport if tls is None else tls.transport
        return SocketBody(transport, remaining, response.content.feed_eof, BUFFERED_BODIES, tls)
    except OSError:  # no descriptor is left, or the connection is gone: the next response may work
        return None
    except Exception as error:
        BUFFERED_BODIES.disable(ALL, error)
        return None


NO_URL = (aiohttp.InvalidURL, getattr(aiohttp, "NonHttpUrlClientError", aiohttp.InvalidURL))
"""The errors of aiohttp for a URL that it cannot fetch; the second came with 3.10."""

logger = logging.getLogger("streamrec")

_NOTHING = memoryview(b"")


class AiohttpBody:
    """A Body over a response whose head has arrived; `head` was read of it already."""

    __slots__ = ("_buffered", "_errors", "_left", "_response", "_unseen", "info", "splits")

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        info: ObjectInfo,
        start: int,
        end: int | None,
        splits: bool = True,
        head: bytes = b"",
    ) -> None:
        self.info = info
        self.splits = splits
        self._response = response
        self._errors = translate_errors(info.path, start, end)
        encoded = "Transfer-Encoding" in response.headers or "Content-Encoding" in response.headers
        # 0 if the length is unknown, or aiohttp must decode the body
        self._unseen = 0 if encoded else int(response.headers.get("Content-Length", 0)) - len(head)
        # take what came with the head now: once the connection is found broken, aiohttp does not
        # return it any more
        received = _NOTHING if response.content.exception() else self._take_received()
        self._left = memoryview(head + received) if head else received
        # read the rest past aiohttp, if possible
        self._buffered = (
            None if response.content.exception() else _read_past_aiohttp(response, self._unseen)
        )

    @property
    def has_arrived(self) -> bool:
        """Whether bytes are left of those that aiohttp has received: usually the whole of a small
        object, which came with the head.
        """
        return len(self._left) > 0

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes: those that aiohttp has received, then the rest by a SocketBody
        if possible.
        """
        with self._errors:
            left = self._left
            if self._buffered is not None:
                if not left:
                    return await self._buffered.readinto(buffer)
            elif not left:
                left = self._take_received()
            if not left:
                self._buffered = _read_past_aiohttp(self._response, self._unseen)
                if self._buffered is not None:
                    return await self._buffered.readinto(buffer)
                left = await self._next_chunk()
        count = min(len(left), len(buffer))
        buffer[:count] = left[:count]
        self._left = left[count:]
        return count

    def _take_received(self) -> memoryview:
        data = self._response.content.read_nowait()
        self._unseen -= len(data)
        return memoryview(data)

    async def _next_chunk(self) -> memoryview:
        content = self._response.content
        while True:
            data, _ = await content.readchunk()
            if data:
                self._unseen -= len(data)
                return memoryview(data)
            if content.at_eof():
                return _NOTHING

    async def aclose(self) -> None:
        """Closes the connection; a drained one has returned to the pool before."""
        self._left = _NOTHING
        if self._buffered is not None:
            self._buffered.give_back()
        self._response.close()


def client_timeout(policy: RetryPolicy) -> aiohttp.ClientTimeout:
    """Returns the limits of a session: connecting, and a silent socket. The request layer enforces
    the others.
    """
    return aiohttp.ClientTimeout(
        total=None, sock_connect=policy.connect_timeout, sock_read=policy.stall_timeout
    )


def session_settings(users: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the arguments of a session in the running loop: raw bodies, an unlimited pool, and
    the user's own.

    Open shards keep their connections while they wait for their consumer: with a limited pool,
    shards without a connection would block those, and all would wait for each other. `connections`
    alone limits their number.
    """
    settings = {"auto_decompress": False, **(users or {})}
    connector = settings.get("connector") or aiohttp.TCPConnector(limit=0)
    if connector.limit or getattr(connector, "limit_per_host", 0):
        logger.warning(
            "your connector limits the number of connections: if more shards are open than it "
            "allows, they wait for "
            "each other until they time out; pass limit=0 (and no limit_per_host) to it"
        )
    return {**settings, "connector": connector}


def range_header(start: int, end: int | None) -> dict[str, str]:
    """Returns the Range header for some bytes, even for all of them: the Content-Range of the
    answer then has the object's size, which reveals a body that is too short.

    >>> range_header(0, None), range_header(5, 10)
    ({'Range': 'bytes=0-'}, {'Range': 'bytes=5-9'})
    """
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def check_answer(
    answer: aiohttp.ClientResponse,
    path: str,
    start: int | None = None,
    end: int | None = None,
    message: str = "",
    advice: str = "",
) -> None:
    """Raises the error of an answer with a status of 300 or above, with the status line's reason or
    a given message.
    """
    if answer.status >= 300:
        wait = retry_after_seconds(answer.headers.get("Retry-After"))
        reason = message or answer.reason or ""
        if answer.status < 400:
            place = answer.headers.get("Location")
            reason += f", to {place}" if place else ", a redirect that does not say where to"
        raise error_from_status(
            answer.status, reason, path, start, end, retry_after=wait, advice=advice
        )


async def body_past_the_end(
    stat: Callable[[str], Awaitable[ObjectInfo]],
    path: str,
    start: int,
    headers: Mapping[str, str],
) -> BytesBody:
    """Returns the empty body for a 416 with these headers, after checking that the object really
    ends before `start`.

    A 416 does not have the version: a HEAD has it.
    """
    info = await stat(path)
    size = check_past_the_end(headers, start, info.size)
    return BytesBody(replace(info, size=size))


async def size_of_answer(
    answer: aiohttp.ClientResponse,
    stat: Callable[[str], Awaitable[ObjectInfo]],
    path: str,
    start: int,
    end: int | None,
) -> int | None:
    """Checks that an answer has the requested bytes, and returns the object's size, or None if it
    is unknown.

    A 206 for all the rest that does not tell the object's size (`bytes 0-99/*`) may be a part of
    that: then a HEAD must have the size.
    """
    # Only an error names the sender, and aiohttp works it out of the URL each time.
    named = "" if answer.status in (200, 206) else sender(answer)
    size = http_body_range(answer.status, answer.headers, start, end, sender=named)
    if size is not None or answer.status != 206 or end is not None:
        return size
    size = (await stat(path)).size
    last = int(answer.headers["Content-Range"].partition("-")[2].partition("/")[0])
    if size != last + 1:
        raise TransientError(
            Cause.WRONG_ANSWER,
            f"a 206 with Content-Range {answer.headers['Content-Range']!r} where all bytes from "
            f"{start:,} on were requested, of {size if size is not None else 'an unknown number'}",
        )
    return size


def info_of_answer(
    path: str, size: int | None, version: str | None, headers: Mapping[str, str]
) -> ObjectInfo:
    """What the answer to a GET says of the object."""
    return ObjectInfo(path, size, version, headers.get("Last-Modified"), codings_of(headers))


def is_doubtful(response: aiohttp.ClientResponse, version: str | None) -> bool:
    """Whether `first_bytes` must look at a body before its bytes count."""
    headers = response.headers
    return is_unreadable(codings_of(headers)) or may_be_page(headers, version)


async def first_bytes(
    response: aiohttp.ClientResponse, path: str, version: str | None, *, of_store: bool
) -> bytes:
    """Returns the first bytes of a doubtful body; a page in place of the object, and a body in a
    coding that cannot be read, is a TransientError.

    A captive portal answers 200 to everything. Without this, its page would be an object that was
    written since it was listed, or a damaged shard, which `on_error` may skip.
    """
    head = b""
    if is_unreadable(codings_of(response.headers)):
        said = describe_answer(response.status, response.headers, b"", sender(response))
        raise TransientError(
            Cause.WRONG_ANSWER, f"{said} where the bytes as they are stored were requested"
        )
    while len(head) < HEAD_BYTES and (data := await response.content.readany()):
        head += data
    if is_page(head, response.headers, path, of_store=of_store, version=version):
        raise TransientError(
            Cause.WRONG_ANSWER,
            describe_answer(response.status, response.headers, head[:HEAD_BYTES], sender(response)),
        )
    return head


def sender(response: aiohttp.ClientResponse) -> str:
    """The server that sent a response, after redirects."""
    return response.url.authority if response.url.user is None else str(response.url.host)


def translate(
    error: BaseException, path: str, start: int | None = None, end: int | None = None
) -> StorageError | TransientError:
    """Returns our error for one of aiohttp or the network: what went wrong, and what to do."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return tls_failed(said, path, start, end)
    if isinstance(error, NO_URL):
        return StorageError(
            f"this is not a URL that can be fetched ({said}): check it", path, start, end
        )
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return StorageError(too_many_files(), path, start, end)
    if isinstance(error, TimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
        return TransientError(Cause.CONNECT, said)
    return TransientError(Cause.BROKEN, said)


def tls_failed(
    said: str, path: str, start: int | None = None, end: int | None = None
) -> StorageError:
    """Returns the error of a connection whose TLS failed."""
    if any(
        word in said
        for word in ("WRONG_VERSION_NUMBER", "wrong version number", "record layer failure")
    ):
        return StorageError(
            f"this port does not speak TLS ({said}): write http:// where https:// is",
            path,
            start,
            end,
        )
    advice = "name the file of its CA in SSL_CERT_FILE, or in AWS_CA_BUNDLE for S3"
    return StorageError(
        f"the server's certificate was refused ({said}): {advice}", path, start, end
    )


translate_errors = partial(Translated, (aiohttp.ClientError, OSError), translate)
