"""The order of all records: a function of seed, epoch and index only.

Each position, from 0 to the number of records, has one record. `ExactOrder` permutes all records.
`BlockOrder` permutes blocks: contiguous records of similar size in bytes, computed from the table
of shards alone.

    shards    |----------- 0 -----------|------ 1 ------|------------ 2 ------------|
    blocks    |  0  |  1  |  2  |  3    |  4  |  5 | 6  |  7  |  8  |   9   | 10    |
    permuted     4     9      1     10   |   0 ...                                  (as a whole)
    groups    |------ group 0 ------|------ group 1 ------|------ group 2 ------|  (equal numbers)

Rules:
- Lengths of records do not matter: in a shard of n records and k blocks, block j begins at record n
  * j // k.
- Positions are assigned to groups: of each `unit` of positions, group 0 has the first ones, group 1
  the next, and so on. So a rank whose slots belong to some groups reads only the blocks of these
  groups.
- A group has a range of the records of the permuted blocks. Where two groups meet in a block, each
  has a part of it.
- Each group begins and ends with smaller parts, so that its window has parts of all sizes. Groups
  begin at different offsets of their first blocks, so that they do not all need a new block at the
  same time.
- A group is read in rounds. Round t mixes parts t to t + window - 1. A part stays for `window`
  rounds (fewer at both ends of the group), and each round draws an equal share of its records at
  random; the records of a round are permuted. So each round adds one part and drops one, bytes are
  read evenly, and each record is mixed with those of `window` parts. Any index of the group is
  computed in O(window), without the indices before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from hashlib import shake_128
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels

Numbers = npt.NDArray[np.int64]


def keys_of(*values: Any) -> Numbers:
    """The keys of a permutation, int64 [10].

    They are derived from a seed, an epoch, a name, or other values.

    >>> bool((keys_of(7, 0) == keys_of(7, 0)).all()), bool((keys_of(7, 0) == keys_of(7, 1)).any())
    (True, False)
    """
    return np.frombuffer(shake_128(repr(values).encode()).digest(10 * 8), "<i8").astype(np.int64)


def permute(
    numbers: Numbers, size: Numbers | int, keys: Numbers, variant: Numbers | int = 0
) -> Numbers:
    """Applies a permutation of 0 to `size` (exclusive) to numbers: int64 [n], as the result.

    The size, 1 to 2**62, and which of the permutations of these keys (`variant`) are one for all
    numbers, or int64 [n].

    >>> permute(np.arange(6), 6, keys_of("an example")).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    sizes = np.atleast_1d(np.asarray(size, np.int64))
    variants = np.atleast_1d(np.asarray(variant, np.int64))
    permuted = kernels.permute(np.ascontiguousarray(numbers), sizes, variants, keys)
    result: Numbers = np.frombuffer(memoryview(permuted), np.int64)
    return result


def permute_blocks(bounds: Numbers, keys: Numbers) -> tuple[Numbers, Numbers]:
    """The first record of each permuted block, and how many come before each and in all.

    `bounds` are the first records of the blocks in the data set, and the number of records.
    """
    count = len(bounds) - 1
    order = permute(np.arange(count), max(1, count), keys)
    starts = bounds[order]
    return starts, np.concatenate([[0], np.cumsum(bounds[order + 1] - starts)])


def cut_blocks(records: Numbers, sizes: Numbers, block_bytes: int) -> Numbers:
    """Cuts shards of these numbers of records and bytes into blocks of about `block_bytes`.

        shards    a a a a a a a a a a # b b b       ten and three records of 100 bytes
        bytes     1000                  300         block_bytes=300: 4 blocks and 1, rounded up
        blocks    a a|a a a|a a|a a a # b b b       as equal as whole records allow
        returned  0   2     5   7       10    13

    Returns the number of the first record of each block, and after the last, int64 [blocks + 1].

    >>> cut_blocks(np.array([10, 0, 3]), np.array([1000, 0, 250]), 300).tolist()
    [0, 2, 5, 7, 10, 13]
    """
    blocks = np.minimum(-(-sizes // block_bytes), records)
    shard = np.repeat(np.arange(len(records)), blocks)
    number = np.arange(len(shard)) - np.repeat(np.cumsum(blocks) - blocks, blocks)
    firsts = (np.cumsum(records) - records)[shard]
    begins = firsts + records[shard] * number // np.maximum(blocks[shard], 1)
    return np.append(begins, records.sum()).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class GroupParts:
    """The parts that one group reads, in order.

    Each part has its first record, and how many records it has, at least one.
    """

    starts: Numbers
    counts: Numbers

    @classmethod
    def cut(cls, starts: Numbers, before: Numbers, first: int, last: int) -> GroupParts:
        """Records first to last (exclusive) of the permuted blocks.

            permuted  a a a a a|b b b b|c c c c c c|d ...   three blocks, and more
            before    0         5       9           15
            group           3                 12            first=3, last=12
            parts           a a|b b b b|c c c               the end of a, all of b, the start of c

        Blocks are given by the first record of each and the count before it.
        """
        if first == last:
            return cls(starts[:0], starts[:0])
        cuts = np.concatenate([[first], before[(before > first) & (before < last)], [last]])
        at = np.searchsorted(before, cuts[:-1], side="right") - 1
        return cls(starts[at] + cuts[:-1] - before[at], np.diff(cuts)).drop_empty()

    def drop_empty(self) -> GroupParts:
        """The parts with at least one record; one without would take a round for nothing."""
        return GroupParts(self.starts[self.counts > 0], self.counts[self.counts > 0])

    def rotate(self, phase: float) -> GroupParts:
        """Moves a share of the first part, from 0 to 1, to the end.

        parts     a a a a|b b b b|c c c c       phase=0.25: one of the four of a
        rotated   a a a|b b b b|c c c c|a       the records from the start of a come last
        """
        if not len(self):
            return self
        head = int(self.counts[0] * phase)
        starts = np.append(self.starts, self.starts[0])
        counts = np.append(self.counts, head)
        starts[0] += head
        counts[0] -= head
        return GroupParts(starts, counts).drop_empty()

    def taper(self, window: int) -> GroupParts:
        """Cuts the first parts into growing shares, and the last ones into shrinking shares.

        The first part is cut after 1 of `window` shares of its block, the second after 2, and so
        on, and the last ones likewise. Each of these blocks becomes two parts, the smaller of which
        comes first, or last.

            parts     a a a a|b b b b|c c c c|d d d d|e e e e       window=4
            shares    1/4     2/4             2/4     1/4           of two parts at each end
            tapered   a|b b|b b|a a a|c c c c|e e e|d d|d d|e
            sizes     1 2   2   3     4       3     2   2   1       growing, then shrinking
        """
        half = window // 2
        if len(self) < max(window, 2):
            return self
        # With whole blocks at both ends, most of the first and of the last batches would come from
        # one block.
        shares = np.arange(1, half + 1)
        first_starts = self.starts[:half]
        first_counts = self.counts[:half]
        small = first_counts * shares // window
        last_starts = self.starts[::-1][:half]  # the last one first
        last_counts = self.counts[::-1][:half]
        final = last_counts * shares // window
        middle = slice(half, len(self) - half)
        starts = [
            first_starts,
            (first_starts + small)[::-1],
            self.starts[middle],
            last_starts + final,
            last_starts[::-1],
        ]
        counts = [
            small,
            (first_counts - small)[::-1],
            self.counts[middle],
            last_counts - final,
            final[::-1],
        ]
        return GroupParts(np.concatenate(starts), np.concatenate(counts)).drop_empty()

    def __len__(self) -> int:
        return len(self.counts)


class Round(NamedTuple):
    """The records of one round, in order.

    Attributes:
        number: The number of the round.
        first: How many records of the group come before the round.
        last: How many come before the next round.
        parts: int64 [n]: the part of each record.
        offsets: int64 [n]: the index of each record in its part.
    """

    number: int
    first: int
    last: int
    parts: Numbers
    offsets: Numbers


@dataclass(frozen=True, eq=False)
class GroupOrder:
    """The order of one group, which mixes `size` parts at a time.

    Its keys derive from `key`: see `keys_of`.
    """

    parts: GroupParts
    size: int
    key: tuple[object, ...]

    @cached_property
    def rounds(self) -> int:
        """How many rounds there are: in each the window slides on by one part."""
        return max(1, len(self.parts) - self.size + 1) if len(self.parts) else 0

    @cached_property
    def total(self) -> int:
        """The number of records."""
        return int(self._before[-1])

    def first_round(self, part: int) -> int:
        """The first round that needs a part."""
        return min(max(0, part - self.size + 1), self.rounds - 1)

    def parts_until(self, number: int) -> int:
        """How many parts a round and those before it need."""
        return len(self.parts) if number >= self.rounds - 1 else number + self.size

    def begin(self, number: int) -> int:
        """How many records come before a round."""
        if number >= self.rounds:
            return self.total
        active = np.arange(number, self.parts_until(number))
        return int(self._before[number] + self._count_before(active, number).sum())

    def round_of(self, index: int) -> int:
        """The number of the round that has the record with this index in the group."""
        low = 0
        high = self.rounds - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.begin(middle) <= index:
                low = middle
            else:
                high = middle - 1
        return low

    def round(self, number: int) -> Round:
        """The records of a round, in order.

        Each part in the window gives an equal share of its records in each round that it is in.
        """
        active = np.arange(number, self.parts_until(number))
        before = self._count_before(active, number)
        counts = self._count_before(active, number + 1) - before
        part = np.repeat(active, counts)
        draw = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts - before, counts)
        mixed = permute(np.arange(len(part)), max(1, len(part)), self._round_keys, number)
        part = part[mixed]
        draw = draw[mixed]
        offsets = permute(draw, self.parts.counts[part], self._part_keys, part)
        first = int(self._before[number] + before.sum())
        return Round(number, first, first + len(part), part, offsets)

    def _count_before(self, active: Numbers, number: int) -> Numbers:
        """How many records of each active part come before a round.

        No active part ends before the round.
        """
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
    """A permutation of all records, which depends on seed and epoch."""

    total: int
    seed: int
    epoch: int

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions, int64 [n]."""
        return permute(positions, self.total, self._keys)

    @cached_property
    def _keys(self) -> Numbers:
        return keys_of("exact", self.seed, self.epoch)


@dataclass(frozen=True, eq=False, kw_only=True)
class BlockOrder:
    """Permuted blocks; each group mixes the records of a window of them.

    Args:
        bounds: The first record of each block, and the number of records: see `cut_blocks`.
        seed, epoch: The values that the order depends on.
        unit: How many positions are assigned to the groups at a time; a multiple of `groups`.
        groups: The number of groups.
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
        """How many positions of a unit belong to one group."""
        return self.unit // self.groups

    def locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The group of each position, and its index in the group."""
        units, slots = np.divmod(positions, self.unit)
        groups, within = np.divmod(slots, self.share)
        return groups, units * self.share + within

    def position(self, group: int, index: int) -> int:
        """The position of an index of a group."""
        units, within = divmod(index, self.share)
        return units * self.unit + group * self.share + within

    def group(self, number: int) -> GroupOrder:
        """The order of one group. Groups are rotated, so that they change blocks at other times."""
        starts, before = self._permutation
        first, last = self._bounds[number : number + 2].tolist()
        parts = GroupParts.cut(starts, before, first, last)
        parts = parts.rotate(number / self.groups).taper(self.window)
        return GroupOrder(parts, self.window, (self.seed, self.epoch, number))

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions, int64 [n].

        It computes a round for each position: use `BlockReading` to read many.
        """
        records = np.empty(len(positions), np.int64)
        groups, indices = self.locate(positions)
        for number in np.unique(groups).tolist():
            group = self.group(number)
            for at in np.flatnonzero(groups == number).tolist():
                current = group.round(group.round_of(int(indices[at])))
                slot = int(indices[at]) - current.first
                records[at] = group.parts.starts[current.parts[slot]] + current.offsets[slot]
        return records

    @cached_property
    def _permutation(self) -> tuple[Numbers, Numbers]:
        """The first record of each permuted block, and how many come before each and in all."""
        return permute_blocks(self.bounds, keys_of("blocks", self.seed, self.epoch))

    @cached_property
    def _bounds(self) -> Numbers:
        """Where each group begins in the permuted blocks, and the number of records.

        A group's place is the index of its first record.
        """
        units, rest = divmod(int(self._permutation[1][-1]), self.unit)
        more = np.clip(rest - np.arange(self.groups) * self.share, 0, self.share)
        return np.concatenate([[0], np.cumsum(units * self.share + more)])


def groups_for(unit: int) -> int:
    """The default number of groups: the divisor of the unit up to 24 that has the most divisors.

    With this number of ranks, or a divisor of it, each block is read once.

    >>> groups_for(768), groups_for(1024), groups_for(7), groups_for(31)
    (24, 16, 7, 1)
    """
    divisors = [number for number in range(1, 25) if unit % number == 0]

    def divisor_count(number: int) -> int:
        return sum(number % each == 0 for each in range(1, number + 1))

    return max(divisors, key=lambda number: (divisor_count(number), number))
