"""Blocks: contiguous records of about one size, cut by the table of shards alone, and dealt in random order to groups.

    shards    |----------- 0 -----------|------ 1 ------|------------ 2 ------------|
    blocks    |  0  |  1  |  2  |  3    |  4  |  5 | 6  |  7  |  8  |   9   | 10    |
    permuted     4     9      1     10   |   0 ...                                         (as a whole)
    groups    |------ group 0 ------|------ group 1 ------|------ group 2 ------|    (equal numbers of records)

Rules:
- No length of a record is looked at: of a shard of n records and k blocks, block j begins at record n * j // k.
- A group is a run of records of the permuted blocks. Where two groups meet in a block, each has its part of it.
- Each group begins and ends with smaller parts, so that the window of `window.py` is filled with parts of all sizes;
  and each begins at another place of its first block, so that they do not all need a new one at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import shake_128
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from streamrec import kernels

__all__ = ["BLOCK_BYTES", "WINDOW_BYTES", "Blocks", "Numbers", "Parts", "Quality", "blocks_of", "keys_of", "permuted"]

ROUNDS = 10
KEY_BYTES = 8

Numbers = npt.NDArray[np.int64]


def keys_of(*values: Any) -> Numbers:
    """The keys of a permutation, int64 [10]: of a seed, an epoch, a name, and whatever else tells one from another.

    >>> bool((keys_of(7, 0) == keys_of(7, 0)).all()), bool((keys_of(7, 0) == keys_of(7, 1)).any())
    (True, False)
    """
    return np.frombuffer(shake_128(repr(values).encode()).digest(ROUNDS * KEY_BYTES), "<i8").astype(np.int64)


def permuted(numbers: Numbers, size: Numbers | int, keys: Numbers, variant: Numbers | int = 0) -> Numbers:
    """Where a permutation of the numbers below `size` takes these.

    Args:
        numbers: int64 [n]: each from 0 to size, exclusive.
        size: How many numbers there are, 1 to 2**62; one for all, or int64 [n].
        keys: Which permutation; see `keys_of`.
        variant: Which of the permutations of these keys; one for all, or int64 [n].

    Returns:
        int64 [n].

    >>> permuted(np.arange(6), 6, keys_of("an example")).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    sizes, variants = np.atleast_1d(np.asarray(size, np.int64)), np.atleast_1d(np.asarray(variant, np.int64))
    result: Numbers = np.frombuffer(
        memoryview(kernels.permute(np.ascontiguousarray(numbers), sizes, variants, keys)), np.int64
    )
    return result


Quality = Literal["exact", "blocks"]
"""Whether each record is drawn by itself, or blocks of them."""

BLOCK_BYTES = 4 << 20
"""About how large a block is: of the time that it takes at 60 MB/s, a third is spent waiting for the first byte."""

WINDOW_BYTES = 128 << 20
"""How many bytes of blocks all ranks together mix at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of a data set.

    Args:
        bounds: int64 [blocks + 1], growing: the number of the first record of each, and behind the last.
    """

    bounds: Numbers

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def in_order(self, seed: int, epoch: int) -> tuple[Numbers, Numbers]:
        """The permuted blocks: of each its first record, and (one more) how many records come before it."""
        order = permuted(np.arange(len(self)), max(1, len(self)), keys_of("blocks", seed, epoch))
        starts = self.bounds[order]
        before = np.concatenate([[0], np.cumsum(self.bounds[order + 1] - starts)])
        return starts, before


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What one group reads, in order: runs of records that follow each other in a shard.

    Args:
        starts: int64 [parts]: the number of each one's first record.
        counts: int64 [parts]: how many records each has, one at the least.
    """

    starts: Numbers
    counts: Numbers

    @classmethod
    def cut(cls, starts: Numbers, before: Numbers, first: int, last: int) -> Parts:
        """Records first to last (exclusive) of the permuted blocks.

        Args:
            starts, before: See `Blocks.in_order`.
            first, last: Which records, counted in the order of the permuted blocks.
        """
        if first == last:
            return cls(starts[:0], starts[:0])
        cuts = np.concatenate([[first], before[(before > first) & (before < last)], [last]])
        at = np.searchsorted(before, cuts[:-1], side="right") - 1
        return cls(starts[at] + cuts[:-1] - before[at], np.diff(cuts)).present()

    def present(self) -> Parts:
        """Without the parts that have no record."""
        return Parts(self.starts[self.counts > 0], self.counts[self.counts > 0])

    def rotated(self, phase: float) -> Parts:
        """The same records, where this share of the first part, from 0 to 1, comes last."""
        if not len(self):
            return self
        head = int(self.counts[0] * phase)
        first = [self.starts[0] + head], [self.counts[0] - head]
        last = [self.starts[0]], [head]
        starts, counts = (
            np.concatenate(each) for each in zip(first, (self.starts[1:], self.counts[1:]), last, strict=True)
        )
        return Parts(starts, counts).present()

    def tapered(self, window: int) -> Parts:
        """The same records, in parts of 1, 2, ... `window` shares of a block at the beginning, and so back at the end.

        Each of the blocks there becomes two parts, of which the smaller one comes first, or last.
        """
        many = window // 2
        if len(self) < max(window, 2):
            return self
        shares = np.arange(1, many + 1)
        starts, counts = self.starts[:many], self.counts[:many]
        small = counts * shares // window
        lasts, ends = self.starts[::-1][:many], self.counts[::-1][:many]  # the last one first
        final = ends * shares // window
        middle = slice(many, len(self) - many)
        return Parts(
            np.concatenate([starts, (starts + small)[::-1], self.starts[middle], lasts + final, lasts[::-1]]),
            np.concatenate([small, (counts - small)[::-1], self.counts[middle], ends - final, final[::-1]]),
        ).present()

    def __len__(self) -> int:
        return len(self.counts)


def blocks_of(records: Numbers, sizes: Numbers, block_bytes: int) -> Blocks:
    """Cuts shards into blocks.

    Args:
        records: int64 [shards]: how many each holds.
        sizes: int64 [shards]: its bytes.
        block_bytes: About how large a block is.

    >>> blocks_of(np.array([10, 0, 3]), np.array([1000, 0, 250]), 300).bounds.tolist()
    [0, 2, 5, 7, 10, 13]
    """
    wanted = np.minimum(-(-sizes // block_bytes), records)
    shard = np.repeat(np.arange(len(records)), wanted)
    number = np.arange(len(shard)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    begins = (np.cumsum(records) - records)[shard] + records[shard] * number // np.maximum(wanted[shard], 1)
    return Blocks(np.append(begins, records.sum()).astype(np.int64))
