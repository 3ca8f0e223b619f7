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
from streamrec.pipeline.sources.global_shuffle.lanes import Lane, LaneOrder
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
from streamrec.tfrecord.frames import NO_SPANS

PARALLEL_RANGES = 8
"""The largest number of concurrent requests for the ranges of one block."""


class OwnCells:
    """The cells of one lane that one reader takes, and the lane's index that it takes first."""

    def __init__(self, lane: Lane, cells: Numbers, first: int) -> None:
        self.lane = lane
        self.first = first
        self._is_own = np.isin(np.arange(lane.layout.cycle), cells)
        self._is_all = bool(self._is_own.all())

    @property
    def share(self) -> float:
        """How much of each block is read, from 0 to 1."""
        return float(self._is_own.mean())

    def indices(self, part: int) -> Numbers:
        """The lane's indices of a part that are in these cells, sorted."""
        indices = np.arange(*self.lane.before[part : part + 2].tolist())
        return indices if self._is_all else indices[self._is_own[indices % self.lane.layout.cycle]]

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


class FetchedPart(NamedTuple):
    """A part of a lane that was read: the records of each of its ranges."""

    needed: NeededPart
    frames: Sequence[Frames]


class HeldPart:
    """A part of a lane in memory, with the spans of its records in the order in which they come.

    The order is computed once for the whole part. Computed for each chunk of batches, of which each
    takes few records of a lane, it took a third more processor time.

    Args:
        number: The number of the part.
        buffers: What was read of it.
        indices: The lane's indices of the records, sorted: int64 [n].
        spans: The spans of these records in their buffers: int64 [n, 2].
        tags: The buffer of each, as in a row of `kernels.pick`: int64 [n]; 0 for one buffer.
    """

    def __init__(
        self,
        number: int,
        buffers: Sequence[Frames],
        *,
        indices: Numbers,
        spans: Numbers,
        tags: Numbers | int,
    ) -> None:
        self.number = number
        self.buffers = buffers
        self._indices = indices
        self._spans = spans
        self._tags = tags

    @classmethod
    def of(cls, fetched: FetchedPart, own: OwnCells) -> HeldPart:
        """The part that was fetched."""
        number = fetched.needed.part
        frames = fetched.frames
        indices = own.indices(number)
        offsets = own.lane.offsets(number, own.lane.cells(number), indices)
        spans = frames[0].spans
        tags: Numbers | int = 0
        if len(frames) > 1:
            spans = np.concatenate([each.spans for each in frames])
            begins = fetched.needed.ranges[:, 0]
            lengths = fetched.needed.ranges[:, 1] - begins
            which = np.searchsorted(begins, offsets, side="right") - 1
            # The records between the ranges were not read, and have no spans.
            offsets -= (begins - (np.cumsum(lengths) - lengths))[which]
            tags = which << BUFFER_BITS
        else:
            offsets -= fetched.needed.ranges[0, 0]
        # The spans in the order of the part are dropped: short records have many.
        buffers = [Frames(each.buffer, NO_SPANS) for each in frames]
        spans = spans.take(offsets, axis=0)
        return cls(number, buffers, indices=indices, spans=spans, tags=tags)

    def find_rows(self, indices: Numbers, rows: Numbers, before: int) -> None:
        """Sets the rows of records, as for `kernels.pick`; `before` buffers precede the part's.

        Records are given by their indices in the lane, sorted.
        """
        first, last = np.searchsorted(self._indices, indices[[0, -1]]).tolist()
        # A reader takes its records one after the other, so that nothing is looked up for each.
        # Only ranks that share cells, and read each byte more than once, leave some out.
        found: slice | Numbers = slice(first, last + 1)
        if last + 1 - first != len(indices):
            found = np.searchsorted(self._indices, indices)
        rows[:, :2] = self._spans[found]
        rows[:, 2] = self._tags if isinstance(self._tags, int) else self._tags[found]
        rows[:, 2] += before << BUFFER_BITS


class LaneCursor:
    """One lane while it is read: the parts that were fetched, and the current one."""

    def __init__(self, own: OwnCells) -> None:
        self.own = own
        self.fetched: dict[int, FetchedPart] = {}
        self.held: HeldPart | None = None


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
        self, number: int, indices: Numbers, rows: Numbers, buffers: list[Frames]
    ) -> None:
        """Finds the records of one lane: sets their rows, and appends their buffers."""
        lane = self._cursors[number].own.lane
        done = 0
        while done < len(indices):
            part = lane.part_of(int(indices[done]))
            last = int(np.searchsorted(indices, lane.before[part + 1]))
            held = await self._part(number, part)
            held.find_rows(indices[done:last], rows[done:last], len(buffers))
            buffers += held.buffers
            done = last

    async def _part(self, number: int, part: int) -> HeldPart:
        """A part of a lane, in memory; the lane's earlier part is released."""
        cursor = self._cursors[number]
        if cursor.held is not None and cursor.held.number == part:
            return cursor.held
        if cursor.held is not None:
            self._ahead.release(cursor.held.buffers)
            cursor.held = None
        while part not in cursor.fetched:
            result = await self._ahead.get()
            assert result is not None
            fetched = FetchedPart(*result)
            self._cursors[fetched.needed.lane].fetched[fetched.needed.part] = fetched
        cursor.held = HeldPart.of(cursor.fetched.pop(part), cursor.own)
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
        first = own.lane.part_of(own.first)
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
        if len(ranges) == 1:  # as for a reader of whole blocks: it needs no tasks
            return [await self._records.fetch_run(*ranges[0])]
        found: list[Frames] = [Frames.of(())] * len(ranges)

        async def fetch(at: int) -> None:
            found[at] = await self._records.fetch_run(*ranges[at])

        await for_each(fetch, range(len(ranges)), PARALLEL_RANGES)
        return found
