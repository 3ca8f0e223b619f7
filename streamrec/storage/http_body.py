"""The body of an aiohttp response, and what aiohttp's exceptions mean. Shared by s3, gcs and http.

Cost matters here, it is the hot path of all reading: one await per chunk, no joining of chunks, one copy
into the caller's buffer. What did not fit is kept as a view, not copied again.
"""

from __future__ import annotations

import aiohttp

from streamrec.errors import StorageError
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.faults import Cause, TransientError

__all__ = ["AiohttpBody", "translate"]

_NOTHING = memoryview(b"")


class AiohttpBody:
    """A Body over a response whose head has arrived.

    Args:
        response: The response; closed with the body.
        info: The object's size and version.
        start: First byte, for errors.
        end: One past the last byte, for errors.
    """

    __slots__ = ("_end", "_left", "_response", "_start", "info")

    def __init__(self, response: aiohttp.ClientResponse, info: ObjectInfo, start: int, end: int | None) -> None:
        self.info = info
        self._response = response
        self._start = start
        self._end = end
        self._left = _NOTHING

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next chunk and copies what fits."""
        left = self._left or await self._next_chunk()
        count = min(len(left), len(buffer))
        buffer[:count] = left[:count]
        self._left = left[count:]
        return count

    async def _next_chunk(self) -> memoryview:
        content = self._response.content
        try:
            while True:
                data, _ = await content.readchunk()
                if data:
                    return memoryview(data)
                if content.at_eof():
                    return _NOTHING
        except (aiohttp.ClientError, OSError) as error:
            raise translate(error, self.info.path, self._start, self._end) from error

    async def aclose(self) -> None:
        """Closes the connection; a drained one went back to the pool before."""
        self._left = _NOTHING
        self._response.close()


def translate(
    error: BaseException, path: str, start: int | None = None, end: int | None = None
) -> StorageError | TransientError:
    """What an exception of aiohttp, or of the socket below, means."""
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, aiohttp.ClientSSLError):
        return StorageError(f"the server's certificate was refused ({said})", path, start, end)
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return StorageError(f"this is no URL that can be fetched ({said})", path, start, end)
    if isinstance(error, TimeoutError):
        return TransientError(Cause.TIMED_OUT, said)
    if isinstance(error, aiohttp.ClientConnectorError | ConnectionRefusedError):
        return TransientError(Cause.CONNECT, said)
    return TransientError(Cause.BROKEN, said)
