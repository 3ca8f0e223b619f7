"""The room for ranges ahead of their streams' positions: what all streams of a run may buffer.

Rules:
- Bytes that arrive ahead of a stream's position need reserved room, for which the ledger is asked
  (`Account.fits`). The reservations of all streams stay within the limit. The range at the position
  needs no reservation, so nothing can block it.
- Room is reserved block by block, while a range arrives; to request the range, room for half of its
  bytes must be free, because of the ranges in progress about half has arrived. Without room, a
  range waits, and TCP slows it down.
- An eighth of each stream's part is kept for the rests of slow ranges, which are `urgent`: all
  bytes after them wait for them.
"""

from __future__ import annotations

from typing import Final

from streamrec import kernels
from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.ledger import Account

BUFFER_BYTES: Final = 96 << 20
"""The default of the bytes that ranges may buffer ahead of their streams' positions."""

SLAB_BYTES: Final = 4 * BLOCK_BYTES
"""Four blocks are allocated together: the kernel gives huge pages for this size, with hardly a page
fault."""


class RangeRoom(Account):
    """The account of all ranges ahead of their turn, with one in it for each stream (`open`).

    Its limit says how many bytes all streams together may buffer ahead of their positions.
    """

    def __init__(self, limit: int) -> None:
        super().__init__("ranges", limit)
        self.limit: int = limit

    def try_promise(self, stream: Account, nbytes: int, *, streams: int, urgent: bool) -> bool:
        """Promises room for a range to one of `streams` that share it; False without room now."""
        half = (stream.promised + nbytes) // 2
        half_of_all = (self.promised + nbytes) // 2
        if stream.held + half > self._part(streams, urgent) or self.held + half_of_all > self.limit:
            return False
        stream.promise(nbytes)
        return True

    def try_reserve(self, stream: Account, nbytes: int, *, streams: int, urgent: bool) -> bool:
        """Reserves room for a block; False if there is none now."""
        if stream.held + nbytes > self._part(streams, urgent) or not stream.fits(nbytes):
            return False
        stream.hold(nbytes)
        return True

    def widen(self, nbytes: int) -> None:
        """Changes the limit by `nbytes`; buffered bytes stay."""
        self.limit += nbytes

    def _part(self, streams: int, urgent: bool) -> int:
        """How much one of the streams may buffer ahead."""
        part = self.limit // streams
        return part if urgent else part - part // 8


class BlockPool:
    """Uninitialized memory in blocks of BLOCK_BYTES; reused, because new memory costs more than a
    copy.
    """

    def __init__(self) -> None:
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """Returns a block."""
        if not self._free:
            slab = memoryview(kernels.allocate(SLAB_BYTES))
            self._free += [
                slab[start : start + BLOCK_BYTES] for start in range(0, SLAB_BYTES, BLOCK_BYTES)
            ]
        return self._free.pop()

    def give_back(self, block: memoryview) -> None:
        """Keeps a block for reuse."""
        self._free.append(block)

    def clear(self) -> None:
        """Frees the memory of all blocks that are not in use."""
        self._free.clear()
