"""The order of all records: a function of seed, epoch and the index, and of nothing else.

A position, from 0 to the number of records, has one record. `ExactOrder` permutes all of them. `BlockOrder` permutes
blocks: contiguous records of about one size, cut by the table of shards alone.

    shards    |----------- 0 -----------|------ 1 ------|------------ 2 ------------|
    blocks    |  0  |  1  |  2  |  3    |  4  |  5 | 6  |  7  |  8  |   9   | 10    |
    permuted     4     9      1     10   |   0 ...                                         (as a whole)
    groups    |------ group 0 ------|------ group 1 ------|------ group 2 ------|    (equal numbers of records)

Rules:
- No length of a record is looked at: of a shard of n records and k blocks, block j begins at record n * j // k.
- Positions are assigned to groups of slots: of each `unit` of positions, group 0 has the first ones, group 1 the next,
  and so on. So a rank whose slots are those of some groups reads the blocks of these groups alone.
- A group has a range of records of the permuted blocks. Where two groups meet in a block, each has its part of it.
- Each group begins and ends with smaller parts, so that its window is filled with parts of all sizes; and each begins
  at another place of its first block, so that they do not all need a new one at the same time.
- A group is read in rounds. Round t mixes parts t to t + window - 1. A part stays for `window` rounds (at both ends of
  the group for fewer), and each of them has an equal share of its records, drawn at random; the records of a round are
  permuted. So one part comes and one goes in each round, what is read flows evenly, and each record is mixed with those
  of `window` parts. Any place of the group is found in O(window), without the places before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_128
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels

__all__ = [
    "BlockOrder",
    "ExactOrder",
    "GroupOrder",
    "Numbers",
    "Round",
    "cut_blocks",
    "groups_for",
    "keys_of",
    "permute",
]

Numbers = npt.NDArray[np.int64]


def keys_of(*values: Any) -> Numbers:
    """The keys of a permutation, int64 [10]: of a seed, an epoch, a name, and whatever else tells one from another.

    >>> bool((keys_of(7, 0) == keys_of(7, 0)).all()), bool((keys_of(7, 0) == keys_of(7, 1)).any())
    (True, False)
    """
    return np.frombuffer(shake_128(repr(values).encode()).digest(10 * 8), "<i8").astype(np.int64)


def permute(numbers: Numbers, size: Numbers | int, keys: Numbers, variant: Numbers | int = 0) -> Numbers:
    """Where a permutation of the numbers below `size` takes these.

    Args:
        numbers: int64 [n]: each from 0 to size, exclusive.
        size: How many numbers there are, 1 to 2**62; one for all, or int64 [n].
        keys: Which permutation; see `keys_of`.
        variant: Which of the permutations of these keys; one for all, or int64 [n].

    Returns:
        int64 [n].

    >>> permute(np.arange(6), 6, keys_of("an example")).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    sizes, variants = np.atleast_1d(np.asarray(size, np.int64)), np.atleast_1d(np.asarray(variant, np.int64))
    result: Numbers = np.frombuffer(
        memoryview(kernels.permute(np.ascontiguousarray(numbers), sizes, variants, keys)), np.int64
    )
    return result


def cut_blocks(records: Numbers, sizes: Numbers, block_bytes: int) -> Numbers:
    """Cuts shards into blocks: the number of the first record of each, and after the last, int64 [blocks + 1].

    Args:
        records: int64 [shards]: how many each holds.
        sizes: int64 [shards]: its bytes.
        block_bytes: About how large a block is.

    >>> cut_blocks(np.array([10, 0, 3]), np.array([1000, 0, 250]), 300).tolist()
    [0, 2, 5, 7, 10, 13]
    """
    wanted = np.minimum(-(-sizes // block_bytes), records)
    shard = np.repeat(np.arange(len(records)), wanted)
    number = np.arange(len(shard)) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    begins = (np.cumsum(records) - records)[shard] + records[shard] * number // np.maximum(wanted[shard], 1)
    return np.append(begins, records.sum()).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """What one group reads, in order: runs of records that follow each other in a shard.

    Args:
        starts: int64 [parts]: the number of each one's first record.
        counts: int64 [parts]: how many records each has, at least one.
    """

    starts: Numbers
    counts: Numbers

    @classmethod
    def cut(cls, starts: Numbers, before: Numbers, first: int, last: int) -> GroupParts:
        """Records first to last (exclusive) of the permuted blocks.

        Args:
            starts, before: Of each block its first record, and (one more) how many records come before it.
            first, last: Which records, counted in the order of the permuted blocks.
        """
        if first == last:
            return cls(starts[:0], starts[:0])
        cuts = np.concatenate([[first], before[(before > first) & (before < last)], [last]])
        at = np.searchsorted(before, cuts[:-1], side="right") - 1
        return cls(starts[at] + cuts[:-1] - before[at], np.diff(cuts)).drop_empty()

    def drop_empty(self) -> GroupParts:
        return GroupParts(self.starts[self.counts > 0], self.counts[self.counts > 0])

    def rotate(self, phase: float) -> GroupParts:
        """The same records, where this share of the first part, from 0 to 1, comes last."""
        if not len(self):
            return self
        head = int(self.counts[0] * phase)
        starts, counts = np.append(self.starts, self.starts[0]), np.append(self.counts, head)
        starts[0] += head
        counts[0] -= head
        return GroupParts(starts, counts).drop_empty()

    def taper(self, window: int) -> GroupParts:
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
        return GroupParts(
            np.concatenate([starts, (starts + small)[::-1], self.starts[middle], lasts + final, lasts[::-1]]),
            np.concatenate([small, (counts - small)[::-1], self.counts[middle], ends - final, final[::-1]]),
        ).drop_empty()

    def __len__(self) -> int:
        return len(self.counts)


class Round(NamedTuple):
    """One round's records, in order.

    Attributes:
        number: Which round.
        first: How many records of the group come before it.
        last: How many come before the next round.
        parts: int64 [n]: the part that has each record.
        offsets: int64 [n]: which of that part's records it is.
    """

    number: int
    first: int
    last: int
    parts: Numbers
    offsets: Numbers


@dataclass(frozen=True, eq=False)
class GroupOrder:
    """The order of one group.

    Args:
        parts: What it reads.
        size: How many parts are mixed at a time, at least one.
        key: Values that tell its order from that of others: see `keys_of`.
    """

    parts: GroupParts
    size: int
    key: tuple[object, ...]

    @cached_property
    def rounds(self) -> int:
        return max(1, len(self.parts) - self.size + 1) if len(self.parts) else 0

    @cached_property
    def total(self) -> int:
        return int(self._before[-1])

    def first_round(self, part: int) -> int:
        """The round in which a part is needed first."""
        return min(max(0, part - self.size + 1), self.rounds - 1)

    def last_round(self, part: int) -> int:
        """The round in which it is needed last."""
        return min(part, self.rounds - 1)

    def parts_until(self, number: int) -> int:
        """How many parts are needed by a round and those before it."""
        return len(self.parts) if number >= self.rounds - 1 else number + self.size

    def begin(self, number: int) -> int:
        """How many records come before a round."""
        if number >= self.rounds:
            return self.total
        active = np.arange(number, self.parts_until(number))
        return int(self._before[number] + self._count_before(active, number).sum())

    def round_of(self, index: int) -> int:
        low, high = 0, self.rounds - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.begin(middle) <= index else (low, middle - 1)
        return low

    def round(self, number: int) -> Round:
        active = np.arange(number, self.parts_until(number))
        begun, ended = self._count_before(active, number), self._count_before(active, number + 1)
        counts = ended - begun
        part = np.repeat(active, counts)
        drawn = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts - begun, counts)
        mixed = permute(np.arange(len(part)), max(1, len(part)), self._round_keys, number)
        part, drawn = part[mixed], drawn[mixed]
        offsets = permute(drawn, self.parts.counts[part], self._part_keys, part)
        first = int(self._before[number] + begun.sum())
        return Round(number, first, first + len(part), part, offsets)

    def _count_before(self, active: Numbers, number: int) -> Numbers:
        """How many records of these parts, none of which ends before a round, come before it."""
        last = self.rounds - 1
        first = np.minimum(np.maximum(0, active - self.size + 1), last)
        stay = np.minimum(active, last) - first + 1
        given: Numbers = np.clip(number - first, 0, stay) * self.parts.counts[active] // stay
        return given

    @cached_property
    def _before(self) -> Numbers:
        return np.concatenate([[0], np.cumsum(self.parts.counts)]).astype(np.int64)

    @cached_property
    def _round_keys(self) -> Numbers:
        return keys_of("round", *self.key)

    @cached_property
    def _part_keys(self) -> Numbers:
        return keys_of("part", *self.key)


@dataclass(frozen=True, eq=False)
class ExactOrder:
    """A permutation of all records.

    Args:
        total: How many there are.
        seed, epoch: Which permutation.
    """

    total: int
    seed: int
    epoch: int

    def records(self, positions: Numbers) -> Numbers:
        return permute(positions, self.total, self._keys)

    @cached_property
    def _keys(self) -> Numbers:
        return keys_of("exact", self.seed, self.epoch)


@dataclass(frozen=True, eq=False)
class BlockOrder:
    """Permuted blocks, of which a window is mixed.

    Args:
        bounds: How the records are cut into blocks: see `cut_blocks`.
        seed, epoch: Which order.
        unit: This many positions are assigned to the groups at a time; a multiple of `groups`.
        groups: How many groups there are.
        window: How many parts of blocks each group mixes at a time.
    """

    bounds: Numbers
    seed: int
    epoch: int
    unit: int
    groups: int
    window: int

    @property
    def share(self) -> int:
        """How many positions of a unit are one group's."""
        return self.unit // self.groups

    def locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The group of each position, and the number of the position among those of the group."""
        units, slots = np.divmod(positions, self.unit)
        groups, within = np.divmod(slots, self.share)
        return groups, units * self.share + within

    def position(self, group: int, index: int) -> int:
        """The position of a group's record `index`."""
        units, within = divmod(index, self.share)
        return units * self.unit + group * self.share + within

    def group(self, number: int) -> GroupOrder:
        starts, before = self._permutation
        first, last = self._bounds[number : number + 2].tolist()
        parts = GroupParts.cut(starts, before, first, last).rotate(number / self.groups).taper(self.window)
        return GroupOrder(parts, self.window, (self.seed, self.epoch, number))

    def records(self, positions: Numbers) -> Numbers:
        found = np.empty(len(positions), np.int64)
        groups, indices = self.locate(positions)
        for number in np.unique(groups).tolist():
            group = self.group(number)
            for at in np.flatnonzero(groups == number).tolist():
                index = int(indices[at])
                part = group.round(group.round_of(index))
                where = index - part.first
                found[at] = group.parts.starts[part.parts[where]] + part.offsets[where]
        return found

    @cached_property
    def _permutation(self) -> tuple[Numbers, Numbers]:
        """The permuted blocks: of each its first record, and (one more) how many records come before it."""
        count = len(self.bounds) - 1
        order = permute(np.arange(count), max(1, count), keys_of("blocks", self.seed, self.epoch))
        starts = self.bounds[order]
        return starts, np.concatenate([[0], np.cumsum(self.bounds[order + 1] - starts)])

    @cached_property
    def _bounds(self) -> Numbers:
        """Where each group begins in the permuted blocks, and the last one ends: counted in records."""
        units, rest = divmod(int(self._permutation[1][-1]), self.unit)
        more = np.clip(rest - np.arange(self.groups) * self.share, 0, self.share)
        return np.concatenate([[0], np.cumsum(units * self.share + more)])


def groups_for(unit: int) -> int:
    """How many groups a unit has by default: of its divisors up to 24, the one that most numbers divide.

    With that many ranks, or any number that divides it, each block is read once.

    >>> groups_for(768), groups_for(1024), groups_for(7), groups_for(31)
    (24, 16, 7, 1)
    """
    divisors = [number for number in range(1, 25) if unit % number == 0]
    return max(divisors, key=lambda number: (sum(number % each == 0 for each in range(1, number + 1)), number))
