"""A request body that is sent from its pieces, without joining them.

A BytesIO needs the pieces joined, and aiohttp copies it twice: once as a whole into new memory and
once to read it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

CHUNK_BYTES: Final = 256 << 10
"""Bytes after which the event loop may do other work."""


class PiecesBody(aiohttp.Payload):
    """A payload that aiohttp sends, and that botocore reads as a file to sign it. It may be sent
    again.

    `failure` is an error in `write` that the connection did not cause.
    """

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        super().__init__(pieces)
        self._pieces = pieces
        self._length = sum(map(len, pieces))
        self._position = 0
        self.failure: Exception | None = None

    @property
    def size(self) -> int:
        return self._length

    @property
    def autoclose(self) -> bool:
        return True

    def __len__(self) -> int:
        return self._length

    async def write(self, writer: Any) -> None:
        """Sends the pieces, as aiohttp asks its payloads to."""
        try:
            for piece in self._pieces:
                for start in range(0, len(piece), CHUNK_BYTES):
                    await writer.write(piece[start : start + CHUNK_BYTES])
                    await asyncio.sleep(0)
        except (OSError, aiohttp.ClientError):
            raise
        except Exception as error:
            self.failure = error
            raise

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the body as text, as required of aiohttp's payloads."""
        return b"".join(self._pieces).decode(encoding, errors)

    def read(self, size: int = -1) -> bytes:
        """Reads on from the position, as botocore does when it signs the body."""
        start = self._position
        stop = self._length if size is None or size < 0 else self._position + size
        self._position = max(start, min(stop, self._length))
        return b"".join(between(self._pieces, start, stop))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position, and returns it."""
        places = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}
        self._position = places[whence] + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position


def between(pieces: Sequence[memoryview], start: int, stop: int) -> Sequence[memoryview]:
    """Returns the bytes from `start` to `stop` of the joined pieces, without a copy.

    >>> [bytes(piece) for piece in between([memoryview(b"abc"), memoryview(b"def")], 1, 5)]
    [b'bc', b'de']
    """
    found: list[memoryview] = []
    offset = 0
    for piece in pieces:
        found.append(piece[max(0, start - offset) : max(0, stop - offset)])
        offset += len(piece)
    return found
