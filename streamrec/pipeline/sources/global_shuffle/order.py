"""The order of all records: a function of seed, epoch and the index, and of nothing else.

A position, from 0 to the number of records, has one record. `ExactOrder` permutes all of them. `BlockOrder` deals
positions to groups of slots: of each `unit` of positions, group 0 has the first ones, group 1 the next, and so on; so a
rank whose slots are those of some groups reads the blocks of these groups alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrec.pipeline.sources.global_shuffle.blocks import Blocks, Numbers, Parts, keys_of, permuted
from streamrec.pipeline.sources.global_shuffle.window import Window

__all__ = ["BlockOrder", "ExactOrder", "groups_for"]

MOST_GROUPS = 24
"""So many ranks, and each number that divides it, read each block once where nobody said how many groups there are."""


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
        """The numbers of the records at these positions."""
        return permuted(positions, self.total, self._keys)

    @cached_property
    def _keys(self) -> Numbers:
        return keys_of("exact", self.seed, self.epoch)


@dataclass(frozen=True, eq=False)
class BlockOrder:
    """Permuted blocks, of which a window is mixed.

    Args:
        blocks: How the records are cut.
        seed, epoch: Which order.
        unit: So many positions are dealt to the groups at a time; a multiple of `groups`.
        groups: How many groups there are.
        window: How many parts of blocks each group mixes at a time.
    """

    blocks: Blocks
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

    def group(self, number: int) -> Window:
        """The order of one group."""
        starts, before = self._permuted
        first, last = self._bounds[number : number + 2].tolist()
        parts = Parts.cut(starts, before, first, last).rotated(number / self.groups).tapered(self.window)
        return Window(parts, self.window, (self.seed, self.epoch, number))

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions: for a few of them, since whole rounds are worked out."""
        found = np.empty(len(positions), np.int64)
        groups, indices = self.locate(positions)
        for number in np.unique(groups).tolist():
            group, mine = self.group(number), np.flatnonzero(groups == number)
            found[mine] = records_in(group, indices[mine])
        return found

    @cached_property
    def _permuted(self) -> tuple[Numbers, Numbers]:
        return self.blocks.in_order(self.seed, self.epoch)

    @cached_property
    def _bounds(self) -> Numbers:
        """Where each group begins in the permuted blocks, and the last one ends: counted in records."""
        units, rest = divmod(int(self._permuted[1][-1]), self.unit)
        more = np.clip(rest - np.arange(self.groups) * self.share, 0, self.share)
        return np.concatenate([[0], np.cumsum(units * self.share + more)])


def records_in(group: Window, indices: Numbers) -> Numbers:
    """The numbers of some of a group's records."""
    found = np.empty(len(indices), np.int64)
    for at in np.argsort(indices, kind="stable").tolist():
        index = int(indices[at])
        part = group.round(group.round_of(index))
        where = index - part.first
        found[at] = group.parts.starts[part.parts[where]] + part.offsets[where]
    return found


def groups_for(unit: int, most: int = MOST_GROUPS) -> int:
    """How many groups a unit has where nobody said: of its divisors up to `most`, the one that most numbers divide.

    >>> groups_for(768), groups_for(1024), groups_for(7), groups_for(31)
    (24, 16, 7, 1)
    """
    divisors = [number for number in range(1, most + 1) if unit % number == 0]
    return max(divisors, key=lambda number: (sum(number % each == 0 for each in range(1, number + 1)), number))
