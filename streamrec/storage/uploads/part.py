"""Part: what goes to a store in one request, as the pieces that were written; and its checksum, as stores write it."""

from __future__ import annotations

import base64
from typing import Final

__all__ = ["Part", "encoded"]

SHORT_BYTES: Final = 64 << 10
"""Shorter pieces are copied together."""


class Part:
    """One part of an upload.

    Attributes:
        size: Its bytes.
    """

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview] = []
        self._short = bytearray()

    def add(self, piece: memoryview) -> None:
        """Appends bytes; a long piece stays where it lies, and nobody may write to it any more."""
        self.size += len(piece)
        if len(piece) < SHORT_BYTES:
            self._short += piece
        else:
            self._gather()
            self._pieces.append(piece)

    @property
    def pieces(self) -> list[memoryview]:
        """All of it, in order."""
        self._gather()
        return self._pieces

    def _gather(self) -> None:
        """Short pieces become one."""
        if self._short:
            self._pieces.append(memoryview(self._short))
            self._short = bytearray()


def encoded(crc32c: int) -> str:
    """A CRC32C as S3 and GCS write it: base64 of its four bytes, the highest first.

    >>> encoded(0xE3069283)
    '4waSgw=='
    """
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()
