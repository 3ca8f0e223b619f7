"""Reading in a global order: far ahead, by ranges, within a budget.

`BlockReading` fetches the parts of blocks in the order in which its lanes need them, holds those of the windows, and
gathers the records of each run of positions from them. `ExactReading` fetches runs of positions, as many ahead as there
is room for; what lies near each other in a shard is one request.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Protocol

import numpy as np
from anyio.abc import TaskGroup

from streamrec import kernels
from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.sources.global_shuffle.fetch_ahead import FetchAhead
from streamrec.pipeline.sources.global_shuffle.order import BlockOrder, ExactOrder
from streamrec.pipeline.sources.global_shuffle.permutation import Numbers
from streamrec.pipeline.sources.global_shuffle.window import Round, Window
from streamrec.tfrecord import BUFFER_BITS, Frames, as_spans

__all__ = ["BlockReading", "ExactReading", "Reading", "Records"]

PARALLEL_BLOCKS = 32
"""Requests for blocks that are under way at the most: at 60 MB/s each, 4 MiB take two first-byte latencies."""

PARALLEL_RUNS = 16
"""Runs of positions likewise; each is many requests."""

Part = tuple[int, int]
"""A lane, and the number of a part of it."""


class Records(Protocol):
    """The records of a data set, by number."""

    async def run(self, first: int, last: int) -> Frames:
        """Records first to last (exclusive) of one shard, by one request."""

    async def some(self, numbers: Numbers) -> Frames:
        """Any records, in this order."""


class Reading(Protocol):
    """What gives records by positions that grow from call to call, save within a call."""

    async def take(self, positions: Numbers) -> Frames:
        """The records at the next positions."""


class ExactReading:
    """Records of an exact order.

    Args:
        order: Which record comes when.
        records: Where they come from.
        runs: The positions that are taken, call by call.
        tasks: Where requests run.
        mean_bytes: Of a record.
        limit: How many bytes may be held.
    """

    def __init__(
        self,
        order: ExactOrder,
        records: Records,
        runs: Iterator[Numbers],
        tasks: TaskGroup,
        mean_bytes: float,
        limit: int,
    ) -> None:
        self._order = order
        self._records = records
        wanted = ((positions.tobytes(), int(len(positions) * mean_bytes) + 1) for positions in runs)
        self._ahead: FetchAhead[bytes] = FetchAhead(tasks, self._fetch, wanted, limit, PARALLEL_RUNS)

    async def take(self, positions: Numbers) -> Frames:
        """The records at the next run of positions."""
        found = await self._ahead.get()
        assert found is not None
        assert found[0] == positions.tobytes()
        self._ahead.release(found[1])
        return found[1]

    async def _fetch(self, positions: bytes) -> Frames:
        return await self._records.some(self._order.records(np.frombuffer(positions, np.int64)))


class Lane:
    """One lane while it is read.

    Attributes:
        window: Its order.
        held: The parts that are there.
        begun: The round in which it begins.
        held_until: The parts before this one are there, or over.
    """

    def __init__(self, window: Window, first: int) -> None:
        self.window = window
        self.held: dict[int, Frames] = {}
        self._round: Round | None = None
        self.begun = self.held_until = window.round_of(first)

    def round_at(self, index: int) -> Round:
        """The round of a record; those before it are over."""
        while self._round is None or index >= self._round.last:
            self._round = self.window.round(self.begun if self._round is None else self._round.number + 1)
        return self._round

    def needs(self) -> Iterator[tuple[int, int]]:
        """The parts from the first round on, in order: of each the lane's record before which it is needed."""
        window = self.window
        for part in range(self.begun, len(window.parts)):
            number = window.first_round(part)
            yield part, window.begin(number) if number > self.begun else 0

    def over(self, number: int) -> list[Frames]:
        """Lets go of the parts that no round from this one on needs."""
        gone = [part for part in self.held if self.window.last_round(part) < number]
        return [self.held.pop(part) for part in gone]


class BlockReading:
    """Records of an order of blocks.

    Args:
        order: Which record comes when.
        records: Where they come from.
        lanes: Of each lane that is read, the number of its first record that is.
        tasks: Where requests run.
        mean_bytes: Of a record.
        limit: How many bytes may be held.
        threads: Where records are copied.
    """

    def __init__(
        self,
        order: BlockOrder,
        records: Records,
        lanes: dict[int, int],
        tasks: TaskGroup,
        mean_bytes: float,
        limit: int,
        threads: Threads,
    ) -> None:
        self._order = order
        self._records = records
        self._mean_bytes = mean_bytes
        self._threads = threads
        windows = {number: order.lane(number) for number in lanes}
        self._lanes = {number: Lane(windows[number], first) for number, first in lanes.items()}
        self._ahead: FetchAhead[Part] = FetchAhead(tasks, self._fetch, self._wanted(), limit, PARALLEL_BLOCKS)

    async def take(self, positions: Numbers) -> Frames:
        """The records at these positions."""
        rows = np.zeros((len(positions), 4), np.int64)
        buffers: list[Frames] = []
        lanes, indices = self._order.locate(positions)
        order = np.argsort(lanes, kind="stable")
        bounds = np.flatnonzero(np.diff(lanes[order], prepend=-1, append=-1)).tolist()
        for first, last in zip(bounds[:-1], bounds[1:], strict=True):
            mine = order[first:last]
            await self._place(int(lanes[mine[0]]), indices[mine], mine, rows, buffers)
        held = [frames.buffer for frames in buffers]
        buffer, spans = await self._threads.run(partial(kernels.pick, held, rows))
        return Frames(buffer, as_spans(spans))

    async def _place(self, number: int, indices: Numbers, at: Numbers, rows: Numbers, buffers: list[Frames]) -> None:
        """Says where the records of one lane lie: rows of those at `at`, and buffers that they lie in."""
        lane, done = self._lanes[number], 0
        while done < len(indices):
            current = lane.round_at(int(indices[done]))
            for frames in lane.over(current.number):
                self._ahead.release(frames)
            await self._hold(lane, lane.window.parts_until(current.number))
            last = int(np.searchsorted(indices, current.last))
            within = indices[done:last] - current.first
            parts, offsets, targets = current.parts[within], current.offsets[within], at[done:last]
            order = np.argsort(parts, kind="stable")
            bounds = np.flatnonzero(np.diff(parts[order], prepend=-1, append=-1)).tolist()
            for start, end in zip(bounds[:-1], bounds[1:], strict=True):
                mine = order[start:end]
                frames = lane.held[int(parts[mine[0]])]
                rows[targets[mine], :2] = frames.spans[offsets[mine]]
                rows[targets[mine], 2] = len(buffers) << BUFFER_BITS
                buffers.append(frames)
            done = last

    async def _hold(self, lane: Lane, until: int) -> None:
        """Waits until all parts up to one are there that are not over."""
        while lane.held_until < until:
            found = await self._ahead.get()
            assert found is not None
            (number, part), frames = found
            other = self._lanes[number]
            other.held[part] = frames
            other.held_until = part + 1

    def _wanted(self) -> Iterator[tuple[Part, int]]:
        """The parts of all lanes, in the order in which positions need them, and about how large they are."""
        waiting = []
        for number, lane in self._lanes.items():
            needs = lane.needs()
            if (first := next(needs, None)) is not None:
                waiting.append((self._order.position(number, first[1]), number, first[0], needs))
        heapify(waiting)
        while waiting:
            _, number, part, needs = waiting[0]
            count = int(self._lanes[number].window.parts.counts[part])
            yield (number, part), int(count * self._mean_bytes) + 1
            following = next(needs, None)
            if following is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (self._order.position(number, following[1]), number, following[0], needs))

    async def _fetch(self, key: Part) -> Frames:
        number, part = key
        parts = self._lanes[number].window.parts
        first = int(parts.starts[part])
        return await self._records.run(first, first + int(parts.counts[part]))
