"""A request's body that is sent from its pieces, without joining them.

aiohttp copies a BytesIO twice, once whole into fresh memory and once as it reads it, and who makes one has joined the
pieces before.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from typing import Any, Final

import aiohttp

__all__ = ["PiecesBody", "between"]

CHUNK_BYTES: Final = 256 << 10
"""Bytes after which the event loop may do other work."""


class PiecesBody(aiohttp.Payload):
    """What aiohttp sends, and botocore reads as a file to sign it. It may be sent again.

    Args:
        pieces: The bytes, in order; they must not be written to.

    Attributes:
        failure: What went wrong in `write` that the connection has no part in.
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
        """As text; aiohttp's payloads have it."""
        return b"".join(self._pieces).decode(encoding, errors)

    def read(self, size: int = -1) -> bytes:
        start, stop = self._position, self._length if size is None or size < 0 else self._position + size
        self._position = max(start, min(stop, self._length))
        return b"".join(between(self._pieces, start, stop))

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        return self._position

    def tell(self) -> int:
        return self._position


def between(pieces: Sequence[memoryview], start: int, stop: int) -> Sequence[memoryview]:
    """The bytes from `start` to `stop` of all pieces together.

    >>> [bytes(piece) for piece in between([memoryview(b"abc"), memoryview(b"def")], 1, 5)]
    [b'bc', b'de']
    """
    found, offset = [], 0
    for piece in pieces:
        found.append(piece[max(0, start - offset) : max(0, stop - offset)])
        offset += len(piece)
    return found
