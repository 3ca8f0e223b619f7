"""Reading in a global order: far ahead, by ranges, within a budget.

`BlockReading` fetches the parts of blocks in the order in which its groups need them, holds those of the windows, and
gathers the records of each run of positions from them: long ones are not copied. `read_exact` fetches runs of
positions, as many ahead as there is room for; what is near each other in a shard is one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, TypeVar

import numpy as np
from anyio.abc import TaskGroup

from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.sources.global_shuffle.order import BlockOrder, ExactOrder, GroupOrder, Numbers, Round
from streamrec.shards import Index, IndexedRecords
from streamrec.tfrecord import BUFFER_BITS, Frames, Scattered, are_long

__all__ = ["BlockReading", "FetchAhead", "mean_bytes", "read_exact"]

K = TypeVar("K")


class FetchAhead(Generic[K]):
    """Requests under way.

    Args:
        tasks: Where they run.
        fetch: Makes one.
        wanted: What is needed, in order: a key of the caller's, and about how many bytes it is.
        limit: How many bytes may be held.
        parallel: How many requests may be under way.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        fetch: Callable[[K], Awaitable[Frames]],
        wanted: Iterator[tuple[K, int]],
        limit: int,
        parallel: int,
    ) -> None:
        self._tasks = tasks
        self._fetch = fetch
        self._needed_groups = wanted
        self._limit = limit
        self._parallel = parallel
        self._next: tuple[K, int] | None = None
        self._requests: deque[tuple[K, asyncio.Future[Frames]]] = deque()
        self._running = 0
        self._held = 0

    async def get(self) -> tuple[K, Frames] | None:
        """The next result; None at the end.

        Raises:
            Exception: What its request raised.
        """
        self._start()
        if not self._requests:
            return None
        key, request = self._requests.popleft()
        if not request.done():
            await asyncio.wait([request])
        self._start()
        return key, request.result()

    def release(self, frames: Frames) -> None:
        """The taker does not hold these any more."""
        self._held -= frames.pinned
        self._start()

    def _start(self) -> None:
        while self._running < self._parallel:
            self._next = self._next or next(self._needed_groups, None)
            if self._next is None or (self._requests and self._held + self._next[1] > self._limit):
                return
            (key, nbytes), self._next = self._next, None
            self._held += nbytes
            self._running += 1
            request = asyncio.get_running_loop().create_future()
            self._requests.append((key, request))
            self._tasks.start_soon(self._run, key, nbytes, request)

    async def _run(self, key: K, nbytes: int, request: asyncio.Future[Frames]) -> None:
        try:
            frames = await self._fetch(key)
            self._held += frames.pinned - nbytes
            request.set_result(frames)
        except Exception as error:
            request.set_exception(error)
            request.exception()  # looked at, so that nothing is logged where it is not waited for
        self._running -= 1
        self._start()


PARALLEL_BLOCKS: Final = 32
"""Requests for blocks that are under way at most: at 60 MB/s each, 4 MiB take two first-byte latencies."""


def mean_bytes(index: Index) -> float:
    """The bytes of a record on average, with its frame."""
    return index.nbytes / max(1, len(index))


def read_exact(
    order: ExactOrder,
    records: IndexedRecords,
    runs: Iterator[Numbers],
    tasks: TaskGroup,
    limit: int,
) -> Callable[[Numbers], Awaitable[Frames]]:
    """A function that gives the records of an exact order, run by run.

    Args:
        order: Which record comes when.
        records: Reads them.
        runs: The positions that are taken, call by call.
        tasks: Where requests run.
        limit: How many bytes may be held.
    """
    parallel = 3
    fetched_bytes = limit // (2 * parallel)  # the other half holds records

    async def fetch(positions: Numbers) -> Frames:
        return await records.fetch(order.records(positions), fetched_bytes)

    size = mean_bytes(records.index)
    wanted = ((positions, int(len(positions) * size) + 1) for positions in runs)
    ahead = FetchAhead(tasks, fetch, wanted, limit // 2, parallel)

    async def take(positions: Numbers) -> Frames:
        found = await ahead.get()
        assert found is not None
        assert (found[0] == positions).all()
        ahead.release(found[1])
        return found[1]

    return take


class SlotGroup:
    """One group while it is read.

    Attributes:
        window: Its order.
        held: The parts that are there.
        begun: The round in which it begins.
        held_until: The parts before this one are there, or over.
        round: The round that is read.
        rows: Where each of the round's records is, as `kernels.pick` takes it; buffers are the round's parts.
    """

    def __init__(self, window: GroupOrder, first: int) -> None:
        self.window = window
        self.held: dict[int, Frames] = {}
        self.begun = self.held_until = window.round_of(first)
        self.round: Round | None = None
        self.rows = NO_ROWS

    def advance(self) -> list[Frames]:
        """Goes on to the next round, whose rows are not found yet; returns the parts that no round needs any more."""
        self.round = self.window.round(self.begun if self.round is None else self.round.number + 1)
        self.rows = NO_ROWS
        gone = [part for part in self.held if self.window.last_round(part) < self.round.number]
        return [self.held.pop(part) for part in gone]

    def find(self, current: Round) -> None:
        """Finds the rows of a round whose parts are all there."""
        counts = self.window.parts.counts[current.number : self.window.parts_until(current.number)]
        which = current.parts - current.number
        spans = np.concatenate([frames.spans for frames in self.buffers(current)])
        self.rows = np.zeros((len(which), 4), np.int64)
        self.rows[:, :2] = spans[(np.cumsum(counts) - counts)[which] + current.offsets]
        self.rows[:, 2] = which << BUFFER_BITS

    def buffers(self, current: Round) -> list[Frames]:
        return [self.held[part] for part in range(current.number, self.window.parts_until(current.number))]

    def needs(self) -> Iterator[tuple[int, int]]:
        """The parts from the first round on, in order: of each the group's record before which it is needed."""
        window = self.window
        for part in range(self.begun, len(window.parts)):
            number = window.first_round(part)
            yield part, window.begin(number) if number > self.begun else 0


NO_ROWS = np.zeros((0, 4), np.int64)


class BlockReading:
    """Records of an order of blocks.

    Args:
        order: Which record comes when.
        records: Reads them.
        groups: Of each group that is read, the number of its first record that is.
        tasks: Where requests run.
        limit: How many bytes may be held.
        threads: Where short records are copied.
    """

    def __init__(
        self,
        order: BlockOrder,
        records: IndexedRecords,
        groups: dict[int, int],
        tasks: TaskGroup,
        limit: int,
        threads: Threads,
    ) -> None:
        self._order = order
        self._records = records
        self._mean_bytes = mean_bytes(records.index)
        self._threads = threads
        windows = {number: order.group(number) for number in groups}
        self._groups = {number: SlotGroup(windows[number], first) for number, first in groups.items()}
        self._ahead: FetchAhead[tuple[int, int]] = FetchAhead(
            tasks, self._fetch, self._needed_groups(), limit, PARALLEL_BLOCKS
        )

    async def take(self, positions: Numbers) -> Frames:
        """The records at these positions."""
        rows = np.empty((len(positions), 4), np.int64)
        buffers: list[Frames] = []
        groups, indices = self._order.locate(positions)
        order = np.argsort(groups, kind="stable")
        first = 0
        for number, count in enumerate(np.bincount(groups).tolist()):
            if count:
                mine = order[first : first + count]
                await self._place(self._groups[number], indices[mine], mine, rows, buffers)
                first += count
        records = Scattered([frames.buffer for frames in buffers], rows)
        return records if are_long([records]) else await self._threads.run(records.compact)

    async def _place(
        self, group: SlotGroup, indices: Numbers, at: Numbers, rows: Numbers, buffers: list[Frames]
    ) -> None:
        """Finds the records of one group: fills in the rows at `at`, and adds the buffers that they are in."""
        done = 0
        while done < len(indices):
            current = await self._round_of(group, int(indices[done]))
            last = int(np.searchsorted(indices, current.last))
            found = group.rows[indices[done:last] - current.first]
            found[:, 2] += len(buffers) << BUFFER_BITS
            rows[at[done:last]] = found
            buffers += group.buffers(current)
            done = last

    async def _round_of(self, group: SlotGroup, index: int) -> Round:
        """The round of a group's record, whose rows are found; those before it are over."""
        while group.round is None or index >= group.round.last:
            for frames in group.advance():
                self._ahead.release(frames)
        if not len(group.rows):
            await self._hold(group, group.window.parts_until(group.round.number))
            group.find(group.round)
        return group.round

    async def _hold(self, group: SlotGroup, until: int) -> None:
        """Waits until all parts up to one are there that are not over."""
        while group.held_until < until:
            found = await self._ahead.get()
            assert found is not None
            (number, part), frames = found
            other = self._groups[number]
            other.held[part] = frames
            other.held_until = part + 1

    def _needed_groups(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Groups and their parts, in the order in which positions need them, and about how large these are."""
        waiting = []
        for number, group in self._groups.items():
            needs = group.needs()
            if (first := next(needs, None)) is not None:
                waiting.append((self._order.position(number, first[1]), number, first[0], needs))
        heapify(waiting)
        while waiting:
            _, number, part, needs = waiting[0]
            count = int(self._groups[number].window.parts.counts[part])
            yield (number, part), int(count * self._mean_bytes) + 1
            following = next(needs, None)
            if following is None:
                heappop(waiting)
            else:
                heapreplace(waiting, (self._order.position(number, following[1]), number, following[0], needs))

    async def _fetch(self, key: tuple[int, int]) -> Frames:
        number, part = key
        parts = self._groups[number].window.parts
        first = int(parts.starts[part])
        return await self._records.fetch_run(first, first + int(parts.counts[part]))
