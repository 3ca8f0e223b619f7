"""Which record goes into which shard, where several are written beside each other. Pure.

A layout is told the lengths of the records that come, in order, and says for each of its shards which of them it gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamrec.shards.writing.shard_upload import FRAME_BYTES

__all__ = ["Contiguous", "Dealt", "Layout", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """Some of the records that came, for one shard.

    Attributes:
        shard: The shard's number.
        records: Which of them, in order.
        last: Whether the shard gets no more.
    """

    shard: int
    records: slice
    last: bool = False


class Layout(Protocol):
    """Where records go."""

    def parts(self, lengths: npt.NDArray[np.int64]) -> Iterator[Part]:
        """What each shard gets of the records that come now."""


class Dealt:
    """Record i goes into shard i modulo `shards`: reading these in turn, one record of each, gives the order back.

    >>> dealt = Dealt(2)
    >>> [(part.shard, part.records) for part in dealt.parts(np.array([5, 5, 5]))]
    [(0, slice(0, 3, 2)), (1, slice(1, 3, 2))]
    >>> [(part.shard, part.records) for part in dealt.parts(np.array([5]))]
    [(1, slice(0, 1, 2))]
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._seen = 0

    def parts(self, lengths: npt.NDArray[np.int64]) -> Iterator[Part]:
        """What each shard gets; shards that get nothing are left out."""
        count = len(lengths)
        for shard in range(self._shards):
            first = (shard - self._seen) % self._shards
            if first < count:
                yield Part(shard, slice(first, count, self._shards))
        self._seen += count


class Contiguous:
    """One shard after the other: each gets records until the next one would take it above a limit.

    A single longer record has a shard to itself. Bytes are those of the shard before it is compressed.

    >>> layout = Contiguous(max_bytes=None, max_records=2)
    >>> [(part.shard, part.records, part.last) for part in layout.parts(np.array([5, 5, 5]))]
    [(0, slice(0, 2, None), False), (0, slice(2, 2, None), True), (1, slice(2, 3, None), False)]
    """

    def __init__(self, max_bytes: int | None, max_records: int | None) -> None:
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._shard = self._bytes = self._records = 0

    def parts(self, lengths: npt.NDArray[np.int64]) -> Iterator[Part]:
        """What each shard gets; a shard is said to be complete when a record comes that does not fit it."""
        ends = np.cumsum(lengths + FRAME_BYTES)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = self._fitting(ends, first, before)
            if last > first:
                yield Part(self._shard, slice(first, last))
                self._bytes += int(ends[last - 1]) - before
                self._records += last - first
                first = last
            else:
                yield Part(self._shard, slice(first, first), last=True)
                self._shard, self._bytes, self._records = self._shard + 1, 0, 0

    def _fitting(self, ends: npt.NDArray[np.int64], first: int, before: int) -> int:
        """Up to which record they fit into the shard under way; at least one, where it is empty."""
        last = len(ends)
        if self._max_bytes is not None:
            last = min(last, int(np.searchsorted(ends, before + self._max_bytes - self._bytes, "right")))
        if self._max_records is not None:
            last = min(last, first + self._max_records - self._records)
        return last if self._records else max(last, first + 1)
