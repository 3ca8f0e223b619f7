"""Cuts what is written into the parts of an upload. Pure.

- All parts but the last have the size that the store wants. Where the store limits the number of
  parts (S3), later parts are larger: see `part_bytes`.
- A full part is cut only when more bytes come, because it may be the last one, and only the last
  one carries the digest of the whole object.
- Long pieces are not copied; short ones are joined, so that a part has few pieces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamrec import kernels
from streamrec.storage.backend import ContentDigest, Pieces

PART_SIZE: Final = 8 << 20
"""Bytes of a part: large enough that the cost of a request is negligible, and a multiple of GCS's
256 KiB."""

SHORT_BYTES: Final = 64 << 10
"""Shorter pieces are copied and joined."""

GROWTH_AFTER = 1000
"""The number of parts after which they grow, if the store limits it: S3 takes 10,000, and 5 TB in
all."""

GROWTH_EVERY = 64
"""The number of parts after which their size grows by the initial size again."""


def part_bytes(index: int, first: int, grows: bool) -> int:
    """Returns the size of a part in bytes, from its index and the size of the first part.

    >>> sum(part_bytes(index, PART_SIZE, True) for index in range(10_000)) > 5e12
    True
    >>> part_bytes(999, PART_SIZE, True), part_bytes(9_999, PART_SIZE, True) < 5 << 30
    (8388608, True)
    """
    if not grows:
        return first
    return first * (1 + max(0, index - GROWTH_AFTER) // GROWTH_EVERY)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadPart:
    """One part of an upload.

    Attributes:
        index: Its number, from 0.
        start: The number of bytes in the parts before it.
        end: The same, with those of this part.
        pieces: Its bytes.
        whole: The digest of the whole object if this is the last part, otherwise None.
    """

    index: int
    start: int
    end: int
    pieces: Pieces
    whole: ContentDigest | None

    @property
    def size(self) -> int:
        """Bytes of the part."""
        return self.end - self.start


class GatheredPieces:
    """The pieces of the current part, of `size` bytes together."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview] = []
        self._short = bytearray()

    def add(self, piece: memoryview) -> None:
        """Appends bytes; a long piece is not copied, and must not be modified any more."""
        self.size += len(piece)
        if len(piece) < SHORT_BYTES:
            self._short += piece
        else:
            self._join()
            self._pieces.append(piece)

    def take(self) -> list[memoryview]:
        """Returns all pieces, the short ones joined."""
        self._join()
        return self._pieces

    def _join(self) -> None:
        """Appends the short pieces so far as one piece."""
        if self._short:
            self._pieces.append(memoryview(self._short))
            self._short = bytearray()


class PartCutter:
    """Cuts the bytes of one object into parts, and computes its size and CRC32C.

    Attributes:
        part_size: Bytes of the current part when it is full.
        cut_off: Size and CRC32C of all parts that were cut off; of the whole object after the last.

    Examples:
        >>> cutter = PartCutter(4)
        >>> rest = cutter.add(memoryview(b"abcdef"))
        >>> bytes(rest), cutter.is_full
        (b'ef', True)
        >>> part = cutter.cut()
        >>> part.start, part.end, part.whole is None, len(cutter.add(rest)), cutter.is_full
        (0, 4, True, 0, False)
        >>> last = cutter.cut(last=True)
        >>> last.index, last.start, last.whole.size
        (1, 4, 6)
    """

    def __init__(self, part_size: int, *, grows: bool = False) -> None:
        self.part_size = part_size
        self.cut_off = ContentDigest(0, 0)
        self._first_size = part_size
        self._grows = grows
        self._index = 0
        self._current = GatheredPieces()
        self._crc32c = 0  # of all bytes written, the current part included

    @property
    def is_full(self) -> bool:
        """Whether `cut` must come before more bytes."""
        return self._current.size == self.part_size

    def add(self, data: memoryview) -> memoryview:
        """Adds bytes to the current part; returns those that have no room in it."""
        count = min(len(data), self.part_size - self._current.size)
        added = data[:count]
        # The checksum is computed now, while the bytes are in the processor's cache.
        self._crc32c = kernels.crc32c(added, self._crc32c)
        self._current.add(added)
        return data[count:]

    def cut(self, last: bool = False) -> UploadPart:
        """Cuts off the current part, even if it is not full, and begins the next one."""
        start = self.cut_off.size
        end = start + self._current.size
        self.cut_off = ContentDigest(end, self._crc32c)
        part = UploadPart(
            index=self._index,
            start=start,
            end=end,
            pieces=self._current.take(),
            whole=self.cut_off if last else None,
        )
        self._current = GatheredPieces()
        self._index += 1
        self.part_size = part_bytes(self._index, self._first_size, self._grows)
        return part

    def discard(self) -> None:
        """Frees the current part."""
        self._current = GatheredPieces()
