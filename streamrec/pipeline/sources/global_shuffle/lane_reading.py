"""Reads the records of lanes: the cells of one reader, block after block, ahead of their use.

A reader that takes all positions of a lane reads whole blocks. One that takes some of them reads
the ranges of its cells, and nothing between these: see `lanes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from typing import NamedTuple

import numpy as np
from anyio.abc import TaskGroup

from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.sources.global_shuffle.lanes import Cells, Lane, LaneOrder
from streamrec.pipeline.sources.global_shuffle.order import Numbers
from streamrec.pipeline.sources.global_shuffle.reading import (
    PARALLEL_BLOCKS,
    FetchAhead,
    mean_bytes,
    take_located,
)
from streamrec.pipeline.sources.global_shuffle.steps import Steps
from streamrec.shards import IndexedRecords
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import BUFFER_BITS, Frames

PARALLEL_RANGES = 8
"""The largest number of concurrent requests for the ranges of one block."""


class OwnCells:
    """The cells of one lane that one reader takes, and the lane's index that it takes first."""

    def __init__(self, lane: Lane, cells: Numbers, first: int) -> None:
        self.lane = lane
        self.first = first
        self._is_own = np.isin(np.arange(lane.layout.cycle), cells)

    @property
    def share(self) -> float:
        """How much of each block is read, from 0 to 1."""
        return float(self._is_own.mean())

    def ranges(self, part: int) -> Numbers:
        """The records of a part to read, by their indices in it: int64 [n, 2], sorted."""
        return self.lane.ranges(part, self._is_own)


def own_cells(order: LaneOrder, steps: Steps, first: int) -> dict[int, OwnCells]:
    """The cells that a worker takes from step `first` on, by their lanes."""
    if first >= steps.count:
        return {}
    lanes = order.lanes
    unit = lanes.slots * lanes.classes
    # After this many own steps the same cells come again.
    period = unit // np.gcd(unit, steps.batch * steps.workers)
    ahead = first + np.arange(period) * steps.workers
    positions = (steps.position(0) + ahead[:, None] * steps.batch + steps.slots).ravel()
    numbers, indices = lanes.locate(positions[positions < steps.total])
    found = {}
    for number in np.unique(numbers).tolist():
        own = indices[numbers == number]
        found[number] = OwnCells(order.lane(number), own % lanes.cycle(number), int(own.min()))
    return found


class NeededPart(NamedTuple):
    """A part of a lane to read, and the ranges of its records that this reader takes.

    Its first field is the position from which on it is needed: no two lanes have the same.
    """

    position: int
    lane: int
    part: int
    ranges: Numbers


class HeldPart:
    """A part of a lane in memory: the ranges of it that were read."""

    def __init__(self, number: int, ranges: Numbers, frames: Sequence[Frames]) -> None:
        self.number = number
        self.frames = frames
        self._begins = ranges[:, 0]
        # What is subtracted from an index in the part for the index among the spans of all ranges.
        lengths = ranges[:, 1] - ranges[:, 0]
        self._gaps = ranges[:, 0] - (np.cumsum(lengths) - lengths)
        self._spans = (
            frames[0].spans if len(frames) == 1 else np.concatenate([each.spans for each in frames])
        )

    def rows(self, offsets: Numbers, buffers: int) -> Numbers:
        """The rows of records, as for `kernels.pick`; the part's buffers follow `buffers` others.

        Records are given by their indices in the part.
        """
        rows = np.zeros((len(offsets), 4), np.int64)
        if len(self.frames) == 1:
            rows[:, :2] = self._spans[offsets - self._gaps[0]]
            rows[:, 2] = buffers << BUFFER_BITS
            return rows
        which = np.searchsorted(self._begins, offsets, side="right") - 1
        rows[:, :2] = self._spans[offsets - self._gaps[which]]
        rows[:, 2] = (buffers + which) << BUFFER_BITS
        return rows


class LaneCursor:
    """One lane while it is read: the parts that were fetched, and the cells of the current one."""

    def __init__(self, own: OwnCells) -> None:
        self.own = own
        self.fetched: dict[int, HeldPart] = {}
        self.held: HeldPart | None = None
        self.cells: Cells | None = None


class LaneReading:
    """Reads the records of some lanes, each from its first own index on."""

    def __init__(
        self,
        order: LaneOrder,
        records: IndexedRecords,
        own: dict[int, OwnCells],
        *,
        tasks: TaskGroup,
        limit: int,
        threads: Threads,
    ) -> None:
        self._lanes = order.lanes
        self._records = records
        self._mean_bytes = mean_bytes(records.index)
        self._threads = threads
        self._cursors = {number: LaneCursor(each) for number, each in own.items()}
        self._ahead: FetchAhead[NeededPart] = FetchAhead(
            tasks, self._fetch, self._needed_parts(), limit, PARALLEL_BLOCKS
        )

    async def take(self, positions: Numbers) -> Frames:
        """The records at these positions, which follow those of the last call."""
        return await take_located(self._lanes.locate(positions), self._find, self._threads)

    async def _find(
        self, number: int, indices: Numbers, at: Numbers, rows: Numbers, buffers: list[Frames]
    ) -> None:
        """Finds the records of one lane: sets the rows at `at`, and appends their buffers."""
        cursor = self._cursors[number]
        lane = cursor.own.lane
        parts = lane.parts_of(indices)
        bounds = [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), len(parts)]
        for first, last in zip(bounds, bounds[1:], strict=False):
            part = int(parts[first])
            held = await self._part(number, part)
            assert cursor.cells is not None
            offsets = lane.offsets(part, cursor.cells, indices[first:last])
            rows[at[first:last]] = held.rows(offsets, len(buffers))
            buffers += held.frames

    async def _part(self, number: int, part: int) -> HeldPart:
        """A part of a lane, in memory; the lane's earlier part is released."""
        cursor = self._cursors[number]
        if cursor.held is not None and cursor.held.number == part:
            return cursor.held
        if cursor.held is not None:
            self._ahead.release(cursor.held.frames)
            cursor.held = None
        while part not in cursor.fetched:
            result = await self._ahead.get()
            assert result is not None
            needed, frames = result
            held = HeldPart(needed.part, needed.ranges, frames)
            self._cursors[needed.lane].fetched[needed.part] = held
        cursor.held = cursor.fetched.pop(part)
        cursor.cells = cursor.own.lane.cells(part)
        return cursor.held

    def _needed_parts(self) -> Iterator[tuple[NeededPart, int]]:
        """The parts in the order in which positions need them.

        With each comes the approximate size of what is read of it.
        """
        for needed in merge(*(self._needs(number) for number in self._cursors)):
            lengths = needed.ranges[:, 1] - needed.ranges[:, 0]
            yield needed, int(int(lengths.sum()) * self._mean_bytes) + 1

    def _needs(self, number: int) -> Iterator[NeededPart]:
        """The parts that a lane needs."""
        own = self._cursors[number].own
        before = own.lane.before
        first = int(own.lane.parts_of(np.array([own.first]))[0])
        for part in range(first, len(own.lane.parts)):
            ranges = own.ranges(part)
            # A part may have no record of this reader, where cells are many.
            if len(ranges):
                yield NeededPart(
                    self._lanes.position(number, int(before[part])), number, part, ranges
                )

    async def _fetch(self, needed: NeededPart) -> Sequence[Frames]:
        start = int(self._cursors[needed.lane].own.lane.parts.starts[needed.part])
        ranges = (needed.ranges + start).tolist()
        found: list[Frames] = [Frames.of(())] * len(ranges)

        async def fetch(at: int) -> None:
            found[at] = await self._records.fetch_run(*ranges[at])

        await for_each(fetch, range(len(ranges)), PARALLEL_RANGES)
        return found
