"""The order of all records: a function of seed, epoch and the index, and of nothing else.

A position, from 0 to the number of records, has one record. `ExactOrder` permutes all of them. `BlockOrder` deals
positions to lanes: of each `unit` of positions, lane 0 has the first ones, lane 1 the next, and so on; so a rank whose
slots are those of some lanes reads the blocks of these lanes alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from streamrec.pipeline.sources.global_shuffle.blocks import Blocks, Parts
from streamrec.pipeline.sources.global_shuffle.permutation import Numbers, keys_of, permuted
from streamrec.pipeline.sources.global_shuffle.window import Window

__all__ = ["BlockOrder", "ExactOrder", "Order", "lanes_for"]

MOST_LANES = 24
"""So many ranks, and each number that divides it, read each block once where nobody said how many lanes there are."""


class Order(Protocol):
    """Which record stands at which position."""

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions."""


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
        unit: So many positions are dealt to the lanes at a time; a multiple of `lanes`.
        lanes: How many lanes there are.
        window: How many parts of blocks each lane mixes at a time.
    """

    blocks: Blocks
    seed: int
    epoch: int
    unit: int
    lanes: int
    window: int

    @property
    def share(self) -> int:
        """How many positions of a unit are one lane's."""
        return self.unit // self.lanes

    def locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The lane of each position, and the number of the position among those of the lane."""
        units, slots = np.divmod(positions, self.unit)
        lanes, within = np.divmod(slots, self.share)
        return lanes, units * self.share + within

    def position(self, lane: int, index: int) -> int:
        """The position of a lane's record `index`."""
        units, within = divmod(index, self.share)
        return units * self.unit + lane * self.share + within

    def lane(self, number: int) -> Window:
        """The order of one lane."""
        starts, before = self._permuted
        first, last = self._bounds[number : number + 2].tolist()
        parts = Parts.cut(starts, before, first, last).rotated(number / self.lanes).tapered(self.window)
        return Window(parts, self.window, (self.seed, self.epoch, number))

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions: for a few of them, since whole rounds are worked out."""
        found = np.empty(len(positions), np.int64)
        lanes, indices = self.locate(positions)
        for number in np.unique(lanes).tolist():
            lane, mine = self.lane(number), np.flatnonzero(lanes == number)
            found[mine] = records_in(lane, indices[mine])
        return found

    @cached_property
    def _permuted(self) -> tuple[Numbers, Numbers]:
        return self.blocks.in_order(self.seed, self.epoch)

    @cached_property
    def _bounds(self) -> Numbers:
        """Where each lane begins in the permuted blocks, and the last one ends: counted in records."""
        units, rest = divmod(int(self._permuted[1][-1]), self.unit)
        more = np.clip(rest - np.arange(self.lanes) * self.share, 0, self.share)
        return np.concatenate([[0], np.cumsum(units * self.share + more)])


def records_in(lane: Window, indices: Numbers) -> Numbers:
    """The numbers of some of a lane's records."""
    found = np.empty(len(indices), np.int64)
    for at in np.argsort(indices, kind="stable").tolist():
        index = int(indices[at])
        part = lane.round(lane.round_of(index))
        where = index - part.first
        found[at] = lane.parts.starts[part.parts[where]] + part.offsets[where]
    return found


def lanes_for(unit: int, most: int = MOST_LANES) -> int:
    """How many lanes a unit has where nobody said: of its divisors up to `most`, the one that most numbers divide.

    >>> lanes_for(768), lanes_for(1024), lanes_for(7), lanes_for(31)
    (24, 16, 7, 1)
    """
    divisors = [number for number in range(1, most + 1) if unit % number == 0]
    return max(divisors, key=lambda number: (sum(number % each == 0 for each in range(1, number + 1)), number))
