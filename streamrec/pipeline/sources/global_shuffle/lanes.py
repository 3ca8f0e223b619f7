"""Lanes: the default order of blocks, which any number of readers reads once.

`Lanes` says which positions belong to a lane, and `LaneOrder` which record each position has. A
lane reads permuted blocks one after the other. Its positions are the same slots of each global
batch.

    global batch   |lane 0|lane 1|lane 2| ...                    32 lanes, each a range of the slots
    a block        |0....|3....|6....|....|1....|4....| ...      a part for each class of steps
    a part         |slot 0|slot 1|slot 2| ...                    a cell for each slot

A cell has the records of one block that one slot takes in the steps of one class: those with the
same number modulo 24. The records of a cell are permuted.

Rules:
- The order depends on the size of the global batch, and on no number of readers.
- A reader takes a range of the slots (its rank's), in every nth step (its worker's). It reads the
  cells of these slots and steps, and no others, if 24 is a multiple of the number of workers. Any
  number of ranks may share a lane: each reads its own range of each block.
- Cells of one reader lie side by side where that is possible. Classes are in an order in which
  those of every 2nd, 3rd, 4th ... step are together: see `class_places`.
- If a lane has many slots, many ranks may share it. Ranges of its slots then have parts of the
  block for themselves, each with the parts for the classes within it: see `slot_parts`.
- Cells differ by at most one record in size: the records of a block are dealt to them in turn.
- In each block the classes come in another order, and the first cell begins at another record. If
  cells have few records, so that permuting these is not enough, the slots of a class are permuted,
  too: in groups of 8, which stay together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.sources.global_shuffle.order import (
    GroupParts,
    Numbers,
    keys_of,
    permute,
    permute_blocks,
)

LANES: Final = 32
"""The largest number of lanes: of blocks that one process holds at a time.

With blocks of 4 MiB these take 128 MiB.
"""

LEAST_LANES: Final = 16
"""The smallest number of lanes of a large global batch, where a divisor of its size is taken."""

CLASSES: Final = 24
"""Steps are divided into this many classes: no smaller number has more divisors."""

CLASSES_OF_RECORDS: Final = 24 * 24 * 5
"""The classes of steps where a step of one rank is a single record: ranks, too, divide them."""

FEW_SLOTS: Final = 8
"""Fewer slots of a lane than this have no part of a block for themselves: see `slot_parts`."""

FEW_RECORDS: Final = 4
"""If cells have fewer records than this on average, the order of the cells is permuted, too."""

PARTS: Final = 8
"""Into how many parts for ranks a block is divided: more make the ranges of workers smaller."""


def lane_block_bytes(block_bytes: int, nbytes: int, lanes: int) -> int:
    """About how large the blocks of a data set of `nbytes` are.

    Each lane has at least four blocks: a small data set has smaller blocks, because with less than
    one a lane would give its records nearly as they are stored.

    >>> lane_block_bytes(4 << 20, 1 << 30, 32), lane_block_bytes(4 << 20, 1 << 20, 32)
    (4194304, 8192)
    """
    return max(1, min(block_bytes, nbytes // (4 * lanes)))


def times_read(classes: int, readers: int) -> int:
    """How often each byte is read if every `readers`th step has a reader of its own.

    >>> [times_read(24, readers) for readers in (1, 8, 24, 16, 5)]
    [1, 1, 1, 2, 5]
    """
    return readers // gcd(classes, readers)


def reading_workers(classes: int, readers: int, workers: int) -> int:
    """How many of a rank's workers read.

    It is the largest number of them that reads nothing more often than one worker does. `readers`
    is the number of ranks that take steps in turn: 1 where each has slots in each step.

    >>> [reading_workers(24, 1, workers) for workers in (1, 2, 5, 8, 11, 16)]
    [1, 2, 4, 8, 8, 12]
    """
    alone = times_read(classes, readers)
    return max(
        number for number in range(1, workers + 1) if times_read(classes, readers * number) == alone
    )


def slot_parts(share: int) -> int:
    """Into how many parts for ranges of its slots a lane's block is divided.

    Within a part, the records of a class of steps are together. So ranks read one range of a block
    each, if they are no more than the parts, and a worker reads a range of each part of its rank.

    >>> [slot_parts(share) for share in (1, 8, 32, 256, 1024)]
    [1, 1, 4, 8, 32]
    """
    return max(1, min(share // FEW_SLOTS, PARTS), share // (4 * FEW_SLOTS))


def class_places(classes: int) -> Numbers:
    """Where the part of each class of steps is among those of a block, int64 [classes].

    `classes` has no other prime factors than 2, 3 and 5. The steps of 2, 4 or 8 workers are
    together; those of 3, 6 or 12 are in a few places.

    >>> np.argsort(class_places(12)).tolist()  # every second step, and of these every second
    [0, 4, 8, 6, 10, 2, 9, 1, 5, 3, 7, 11]
    """
    numbers = np.arange(classes)
    place = np.zeros(classes, np.int64)
    for base in (2, 3, 5):
        power = 1
        while classes % (power * base) == 0:
            place = place * base + numbers // power % base
            power *= base
    return place


@dataclass(frozen=True)
class Lanes:
    """Which positions belong to which lane.

    Args:
        slots: How many positions a step has: the size of a global batch, or 1.
        classes: How many classes of steps there are: see `CLASSES`.
    """

    slots: int
    classes: int

    @cached_property
    def residues(self) -> int:
        """How many lanes take turns in the same slots, where these are few."""
        if self.slots > LEAST_LANES:
            return 1
        most = LANES // self.slots
        return max(number for number in range(1, most + 1) if self.classes % number == 0)

    @cached_property
    def slot_lanes(self) -> int:
        """How many lanes have slots in the same step."""
        if self.slots <= LANES:
            return self.slots
        divisors = [each for each in range(LEAST_LANES, LANES + 1) if self.slots % each == 0]
        return max(divisors, default=LANES)

    @property
    def count(self) -> int:
        return self.slot_lanes * self.residues

    @cached_property
    def edges(self) -> Numbers:
        """The first slot of each lane of a step, and the number of slots."""
        return np.arange(self.slot_lanes + 1) * self.slots // self.slot_lanes

    def share(self, lane: int) -> int:
        """How many slots a lane has."""
        number = lane % self.slot_lanes
        return int(self.edges[number + 1] - self.edges[number])

    def cycle(self, lane: int) -> int:
        """After how many positions of a lane its cells repeat: the number of cells of a block."""
        return self.share(lane) * (self.classes // self.residues)

    def locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The lane of each position, and its index in the lane."""
        steps, slots = np.divmod(positions, self.slots)
        turns, residues = np.divmod(steps, self.residues)
        numbers = self._lane_of_slot[slots]
        shares = np.diff(self.edges)[numbers]
        return residues * self.slot_lanes + numbers, turns * shares + slots - self.edges[numbers]

    def position(self, lane: int, index: int) -> int:
        """The position of an index of a lane."""
        residue, number = divmod(lane, self.slot_lanes)
        turn, within = divmod(index, self.share(lane))
        return (turn * self.residues + residue) * self.slots + int(self.edges[number]) + within

    def totals(self, total: int) -> Numbers:
        """How many of the first positions belong to each lane."""
        turns, rest = divmod(total, self.slots * self.residues)
        steps, slots = divmod(rest, self.slots)
        shares = np.diff(self.edges)
        last = np.clip(slots - self.edges[:-1], 0, shares)
        counts = [
            turns * shares + (shares if residue < steps else last * (residue == steps))
            for residue in range(self.residues)
        ]
        return np.concatenate(counts)

    def layout(self, lane: int) -> Layout:
        """How the cells of a lane lie in a block."""
        share = self.share(lane)
        residue = lane // self.slot_lanes
        if (share, residue) not in self._layouts:
            turns, slots = np.divmod(np.arange(self.cycle(lane)), share)
            places = class_places(self.classes)[turns * self.residues + residue]
            parts = slots * slot_parts(share) // share
            in_order = np.lexsort((slots, places, parts))
            self._layouts[share, residue] = Layout(share, np.argsort(in_order))
        return self._layouts[share, residue]

    @cached_property
    def _layouts(self) -> dict[tuple[int, int], Layout]:
        """The layouts that were computed: those of most lanes are the same."""
        return {}

    @cached_property
    def _lane_of_slot(self) -> Numbers:
        return np.searchsorted(self.edges, np.arange(self.slots), side="right") - 1


@dataclass(frozen=True, eq=False)
class Layout:
    """How the cells of a lane lie in a block.

    A cell is the index of its first position in a cycle of the lane.

    Args:
        share: How many slots the lane has.
        places: How many cells lie before each cell, int64 [cycle].
    """

    share: int
    places: Numbers

    @property
    def cycle(self) -> int:
        """The number of cells."""
        return len(self.places)

    def sort(self, cells: Numbers, turns: int) -> Numbers:
        """The order in which some cells lie, where the classes are moved by some turns."""
        return np.argsort(self.places[(cells + turns * self.share) % self.cycle])

    def mix(self, cells: Numbers, chance: Numbers) -> Numbers:
        """An order in which the slots of each class are permuted, for cells that are sorted.

        `chance` has a random number for each cell of the cycle.
        """
        slots = cells % self.share
        groups = slots // FEW_SLOTS
        # Each range of cells of one class, with slots that follow each other, is permuted.
        is_first = np.append(True, np.diff(cells) != 1) | (slots == 0)
        heads = chance[cells - slots % FEW_SLOTS]  # one number for all cells of a group
        return np.lexsort((chance[cells], groups, heads, np.cumsum(is_first)))


class Cells(NamedTuple):
    """The cells of one part of a lane that have records.

    They are numbered from that of the part's first position. Arrays are int64 [cells].

    Attributes:
        order: The numbers of the cells, in their order in the part.
        begins: How many records of the part lie before each cell.
        counts: How many records each cell has, at least one.
        rotation: The index in the part of the record with which the first cell begins.
    """

    order: Numbers
    begins: Numbers
    counts: Numbers
    rotation: int


@dataclass(frozen=True, eq=False)
class Lane:
    """The order of one lane: its parts of blocks, and the cells in each.

    `is_mixed` says whether cells are so small that their order is permuted, too. Keys derive from
    `key`.
    """

    parts: GroupParts
    layout: Layout
    is_mixed: bool
    key: tuple[object, ...]

    @cached_property
    def before(self) -> Numbers:
        """How many records come before each part, and in all."""
        return np.concatenate([[0], np.cumsum(self.parts.counts)]).astype(np.int64)

    def part_of(self, index: int) -> int:
        """The part of an index of the lane."""
        return int(np.searchsorted(self.before, index, side="right")) - 1

    def parts_of(self, indices: Numbers) -> Numbers:
        """The part of each index of the lane."""
        found: Numbers = np.searchsorted(self.before, indices, side="right") - 1
        return found

    def cells(self, part: int) -> Cells:
        """The cells of a part."""
        cycle = self.layout.cycle
        count = int(self.parts.counts[part])
        numbers = np.arange(min(count, cycle))
        counts = (count - numbers + cycle - 1) // cycle
        cells = (int(self.before[part]) + numbers) % cycle
        turns, rotation = permute(np.array([0, 1]), 1 << 40, self._part_keys, part).tolist()
        order = self.layout.sort(cells, turns % (cycle // self.layout.share))
        if self.is_mixed:
            chance = permute(np.arange(cycle), max(cycle, 1 << 20), self._mix_keys, part)
            order = order[self.layout.mix(cells[order], chance)]
        begins = np.empty(len(numbers), np.int64)
        begins[order] = np.cumsum(counts[order]) - counts[order]
        return Cells(order, begins, counts, rotation % count)

    def offsets(self, part: int, cells: Cells, indices: Numbers) -> Numbers:
        """The records at these indices of a part, by their indices in it."""
        drawn, numbers = np.divmod(indices - self.before[part], self.layout.cycle)
        variants = part * self.layout.cycle + numbers
        mixed = permute(drawn, cells.counts[numbers], self._cell_keys, variants)
        unrotated: Numbers = cells.begins[numbers] + mixed
        return (unrotated + cells.rotation) % int(self.parts.counts[part])

    def ranges(self, part: int, is_own: npt.NDArray[np.bool_]) -> Numbers:
        """The records of some cells of a part, by their indices in it: int64 [n, 2], sorted.

        `is_own` says of each cell of the cycle whether it is one of these.
        """
        count = int(self.parts.counts[part])
        if is_own.all():
            return np.array([[0, count]])
        cells = self.cells(part)
        own = cells.order[is_own[(int(self.before[part]) + cells.order) % self.layout.cycle]]
        begins = cells.begins[own]
        ends = begins + cells.counts[own]
        # A range ends at a record that the next cell does not begin with.
        cuts = begins[1:] != ends[:-1]
        begins = begins[np.append(True, cuts)[: len(begins)]] + cells.rotation
        ends = ends[np.append(cuts, True)[: len(ends)]] + cells.rotation
        # What lies after the end of the part lies at its start.
        rotated = [
            np.stack([np.clip(begins, 0, count), np.clip(ends, 0, count)], 1),
            np.stack([np.clip(begins - count, 0, count), np.clip(ends - count, 0, count)], 1),
        ]
        found = np.concatenate(rotated[::-1])
        return found[found[:, 1] > found[:, 0]]

    @cached_property
    def _cell_keys(self) -> Numbers:
        return keys_of("cell", *self.key)

    @cached_property
    def _part_keys(self) -> Numbers:
        return keys_of("cells of a part", *self.key)

    @cached_property
    def _mix_keys(self) -> Numbers:
        return keys_of("order of cells", *self.key)


@dataclass(frozen=True, eq=False, kw_only=True)
class LaneOrder:
    """Permuted blocks, which lanes read at the same time.

    Args:
        bounds: The first record of each block, and the number of records: see `cut_blocks`.
        seed, epoch: The values that the order depends on.
        lanes: Which positions belong to which lane.
    """

    bounds: Numbers
    seed: int
    epoch: int
    lanes: Lanes

    def lane(self, number: int) -> Lane:
        """The order of one lane. Lanes are rotated, so that they change blocks at other times."""
        starts, before = self._permutation
        first, last = self._edges[number : number + 2].tolist()
        parts = GroupParts.cut(starts, before, first, last).rotate(number / self.lanes.count)
        layout = self.lanes.layout(number)
        is_mixed = self._block_records < FEW_RECORDS * layout.cycle
        return Lane(parts, layout, is_mixed, (self.seed, self.epoch, number))

    def records(self, positions: Numbers) -> Numbers:
        """The numbers of the records at these positions, int64 [n]."""
        records = np.empty(len(positions), np.int64)
        lanes, indices = self.lanes.locate(positions)
        for number in np.unique(lanes).tolist():
            lane = self.lane(number)
            rows = np.flatnonzero(lanes == number)
            parts = lane.parts_of(indices[rows])
            for part in np.unique(parts).tolist():
                chosen = rows[parts == part]
                offsets = lane.offsets(part, lane.cells(part), indices[chosen])
                records[chosen] = lane.parts.starts[part] + offsets
        return records

    @property
    def _block_records(self) -> float:
        """How many records a block has on average."""
        return float(self.bounds[-1]) / max(1, len(self.bounds) - 1)

    @cached_property
    def _permutation(self) -> tuple[Numbers, Numbers]:
        """The first record of each permuted block, and how many come before each and in all."""
        return permute_blocks(self.bounds, keys_of("lanes", self.seed, self.epoch))

    @cached_property
    def _edges(self) -> Numbers:
        """Where each lane begins in the permuted blocks, and the number of records."""
        totals = self.lanes.totals(int(self.bounds[-1]))
        return np.concatenate([[0], np.cumsum(totals)]).astype(np.int64)
