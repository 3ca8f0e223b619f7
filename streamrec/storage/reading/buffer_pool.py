"""Buffer pool: how many bytes may be held ahead of their turn, and the memory that they lie in."""

from __future__ import annotations

from typing import Final

from streamrec import kernels
from streamrec.storage.backend import BLOCK_BYTES

__all__ = ["BufferPool", "ByteBudget"]

SLAB_BYTES: Final = 4 * BLOCK_BYTES
"""Blocks are had by fours: from here on memory comes in huge pages, with hardly a page fault."""


class ByteBudget:
    """Bytes that may be held ahead of their turn, in all.

    Args:
        limit: So many.

    Attributes:
        held: Bytes that were taken and not given back.
        promised: Bytes that were asked for, and for which none were taken yet.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.promised = 0

    def promise(self, nbytes: int) -> bool:
        """Counts bytes that will be taken little by little; False where even half of them is not to be had."""
        if self.held + (self.promised + nbytes) // 2 > self.limit:
            return False
        self.promised += nbytes
        return True

    def withdraw(self, nbytes: int) -> None:
        """So many of the bytes that were promised are taken now, or never."""
        self.promised -= nbytes

    def take(self, nbytes: int) -> bool:
        """Takes bytes; False, and none taken, where they are not to be had now."""
        if self.held + nbytes > self.limit:
            return False
        self.held += nbytes
        return True

    def give(self, nbytes: int) -> None:
        """Gives bytes back."""
        self.held -= nbytes

    def widen(self, nbytes: int) -> None:
        """From now on so many bytes more, or less, may be held: what is held already stays."""
        self.limit += nbytes


class BufferPool:
    """Memory that ranges land in, used again and again: fresh memory costs more than the copy out of it."""

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def get(self) -> memoryview:
        """A block of BLOCK_BYTES, whose bytes are anything."""
        if not self._free:
            slab = memoryview(kernels.allocate(SLAB_BYTES))
            self._free += [slab[start : start + BLOCK_BYTES] for start in range(0, SLAB_BYTES, BLOCK_BYTES)]
        return self._free.pop()

    def put(self, block: memoryview) -> None:
        """A block that nobody looks at any more."""
        self._free.append(block)

    def clear(self) -> None:
        """Gives the memory back."""
        self._free.clear()
