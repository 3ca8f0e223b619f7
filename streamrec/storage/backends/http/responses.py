"""Responses of aiohttp: their bodies, their heads, and what its exceptions mean. Shared by s3, gcs and http.

Cost matters here, it is the hot path of all reading: one await per chunk, no joining of chunks, one copy
into the caller's buffer. What did not fit is kept as a view, not copied again.

The rest of a large body is received past aiohttp (`socket_body.py`):
- Only a plain body of known length is taken over, when aiohttp holds none of it any more, and when at least
  `LEAST` bytes are left.
- After its last byte the connection is aiohttp's again, which keeps it for the next request.
- It is a `FastPath`: where it fails (under uvloop, say), aiohttp reads on by itself.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import aiohttp

from streamrec.errors import StorageError
from streamrec.storage.backend import BytesBody, FastPath, ObjectInfo
from streamrec.storage.backends.http.socket_body import ALL, SocketBody
from streamrec.storage.backends.http.tls_reader import TLSReader
from streamrec.storage.faults import (
    Cause,
    TransientError,
    error_translator,
    from_status,
    http_body_range,
    retry_after_seconds,
    too_many_files,
)
from streamrec.storage.retry import RetryPolicy

__all__ = [
    "BUFFERED_BODIES",
    "AiohttpBody",
    "check_answer",
    "client_timeout",
    "past_the_end",
    "range_header",
    "session_settings",
    "size_in",
    "translate",
    "translate_errors",
]

LEAST: Final = 1 << 20
"""Bytes that must be left for a body to be taken over."""

BUFFERED_BODIES: Final = FastPath("receiving bodies past aiohttp (streamrec.storage.backends.http.responses)")


def _read_past_aiohttp(response: aiohttp.ClientResponse, remaining: int) -> SocketBody | None:
    """Takes a response's connection over, if that is worth it and safe; None where it is not.

    Args:
        response: A response whose `content` was drained a moment ago.
        remaining: Bytes of its body that have not come yet.
    """
    if remaining < LEAST or not BUFFERED_BODIES.is_open(ALL):
        return None
    try:
        connection = response.connection
        transport: Any = None if connection is None else connection.transport
        if transport is None or connection is None or getattr(connection.protocol, "_tail", False):
            return None
        if not isinstance(transport, asyncio.Transport):
            kind = type(transport).__name__
            raise AttributeError(f"a {kind} is not a transport of asyncio's own: another event loop runs")
        tls = TLSReader(transport, BUFFERED_BODIES) if transport.get_extra_info("sslcontext") else None
        if not transport.is_reading() or not (tls is None or tls.is_idle()):
            return None
        finish = partial(_give_to_the_pool, response)
        return SocketBody(transport if tls is None else tls.transport, remaining, finish, BUFFERED_BODIES, tls)
    except OSError:  # no descriptor is left, or the connection is gone: the next one may be had
        return None
    except Exception as error:
        BUFFERED_BODIES.leave(ALL, error)
        return None


def _give_to_the_pool(response: aiohttp.ClientResponse) -> None:
    """Tells aiohttp that the body is whole: it keeps the connection for the next request, if the server does."""
    try:
        response.content.feed_eof()
    except Exception as error:
        BUFFERED_BODIES.leave(ALL, error)


NO_URL = (aiohttp.InvalidURL, getattr(aiohttp, "NonHttpUrlClientError", aiohttp.InvalidURL))
"""What aiohttp says of a URL that it cannot fetch; the second came with 3.10."""

logger = logging.getLogger("streamrec")

_NOTHING = memoryview(b"")


class AiohttpBody:
    """A Body over a response whose head has arrived."""

    __slots__ = ("_buffered", "_end", "_left", "_response", "_start", "_unseen", "info", "splits")

    keeps_time = False  # aiohttp's own limit ends where a buffered body begins

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        info: ObjectInfo,
        start: int,
        end: int | None,
        splits: bool = True,
    ) -> None:
        self.info = info
        self.splits = splits
        self._response = response
        self._start = start
        self._end = end
        self._unseen = _plain_length(response)
        # what came with the head is taken now: once the connection is found broken, aiohttp gives nothing out any more
        self._left = _NOTHING if response.content.exception() else self._take_received()
        # and what comes from here on goes past aiohttp, where it can
        self._buffered = None if response.content.exception() else _read_past_aiohttp(response, self._unseen)

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes: those that aiohttp has already, then the rest by a SocketBody where it can be."""
        with translate_errors(self.info.path, self._start, self._end):
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
        """What aiohttp holds of the body already."""
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
        """Closes the connection; a drained one went back to the pool before."""
        self._left = _NOTHING
        if self._buffered is not None:
            self._buffered.give_back()
        self._response.close()


def _plain_length(response: aiohttp.ClientResponse) -> int:
    """Bytes of a body that comes as it is; 0 where that is not known, or where aiohttp must decode it."""
    encoded = "Transfer-Encoding" in response.headers or "Content-Encoding" in response.headers
    return 0 if encoded else int(response.headers.get("Content-Length", 0))


def client_timeout(policy: RetryPolicy) -> aiohttp.ClientTimeout:
    """The limits of a session: connect, and a silent socket. The others are kept around each request."""
    return aiohttp.ClientTimeout(total=None, sock_connect=policy.connect_timeout, sock_read=policy.stall_timeout)


def session_settings(users: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a session is made with in the running loop: bodies as they are stored, a pool without a limit; or as told.

    (Shards that are open rest with their connections until their turn comes: where another one had to wait for a
    connection, all would wait for each other. How many there are is decided in `connections`, and nowhere else.)
    """
    settings = {"auto_decompress": False, **(users or {})}
    connector = settings.get("connector") or aiohttp.TCPConnector(limit=0)
    if connector.limit or getattr(connector, "limit_per_host", 0):
        logger.warning(
            "a connector of yours has a limit of connections: where more shards are open than it allows, they wait for "
            "each other until they time out; pass limit=0 (and no limit_per_host) to it"
        )
    return {**settings, "connector": connector}


def range_header(start: int, end: int | None) -> dict[str, str]:
    """The Range header for some bytes. It is sent for all of them too: the Content-Range of the answer then tells
    the object's size, and a body that is short without saying so is found out.

    >>> range_header(0, None), range_header(5, 10)
    ({'Range': 'bytes=0-'}, {'Range': 'bytes=5-9'})
    """
    return {"Range": f"bytes={start}-{'' if end is None else end - 1}"}


def check_answer(
    answer: aiohttp.ClientResponse,
    path: str,
    start: int | None = None,
    end: int | None = None,
    said: str = "",
    advice: str = "",
) -> None:
    """Raises what an answer of 300 and above means.

    Args:
        start: First byte that was asked for, or None.
        end: One past the last byte, or None.
        said: The server's words where its body was read; else the status line's.
        advice: As for `from_status`.
    """
    if answer.status >= 300:
        wait = retry_after_seconds(answer.headers.get("Retry-After"))
        reason = said or answer.reason or ""
        raise from_status(answer.status, reason, path, start, end, retry_after=wait, advice=advice)


def past_the_end(info: ObjectInfo, start: int) -> BytesBody:
    """The empty body that a 416 means, once the object was found to end there."""
    if info.size is not None and start < info.size:
        raise TransientError(Cause.WRONG_ANSWER, f"a 416 for byte {start:,} of {info.size:,}")
    return BytesBody(info)


def size_in(answer: aiohttp.ClientResponse, start: int = 0, end: int | None = None) -> int | None:
    """The object's size as a 200 or 206 tells it, once its range was found right (`http_body_range`)."""
    return http_body_range(answer.status, answer.headers, start, end)


def translate(
    error: BaseException, path: str, start: int | None = None, end: int | None = None
) -> StorageError | TransientError:
    """What an exception of aiohttp, or of the socket below, means."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return tls_failed(said, path, start, end)
    if isinstance(error, NO_URL):
        return StorageError(f"this is not a URL that can be fetched ({said}): check it", path, start, end)
    if isinstance(error, OSError) and error.errno == errno.EMFILE:
        return StorageError(too_many_files(), path, start, end)
    if isinstance(error, TimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
        return TransientError(Cause.CONNECT, said)
    return TransientError(Cause.BROKEN, said)


def tls_failed(said: str, path: str, start: int | None = None, end: int | None = None) -> StorageError:
    """What it means that a TLS connection cannot be made."""
    if any(word in said for word in ("WRONG_VERSION_NUMBER", "wrong version number", "record layer failure")):
        return StorageError(f"this port does not speak TLS ({said}): write http:// where https:// is", path, start, end)
    advice = "name the file of its CA in SSL_CERT_FILE, or in AWS_CA_BUNDLE for S3"
    return StorageError(f"the server's certificate was refused ({said}): {advice}", path, start, end)


translate_errors = error_translator((aiohttp.ClientError, OSError), translate)
