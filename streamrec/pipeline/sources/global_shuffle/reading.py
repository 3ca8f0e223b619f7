"""Reads records in a global order: far ahead, by ranges, within a budget.

`BlockReading` fetches the parts of blocks in the order in which groups need them, holds those of
the windows, and gathers the records of positions from them; long ones are not copied. `read_exact`
fetches the records of positions ahead, as many as the budget allows; records near each other in a
shard are one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Final, Generic, TypeVar

import numpy as np
from anyio.abc import TaskGroup

from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.sources.global_shuffle.order import (
    BlockOrder,
    ExactOrder,
    GroupOrder,
    Numbers,
    Round,
)
from streamrec.shards import Index, IndexedRecords
from streamrec.tfrecord import BUFFER_BITS, Frames, Scattered, are_long

K = TypeVar("K")


class FetchAhead(Generic[K]):
    """Makes requests ahead of their use, up to `parallel` at once and within `limit` bytes.

    Contract of this queue: one task takes the results, in the order of `keys`. Their bytes count
    from the request until `release`, not only until they are taken, since blocks are held while
    records are gathered from them. If no result waits, the next request begins whatever its size.
    The error of a request is raised when its result is taken.

    `keys` gives the key of each request, in order, with the approximate bytes of its result, which
    is the records of one or more ranges.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        fetch: Callable[[K], Awaitable[Sequence[Frames]]],
        keys: Iterator[tuple[K, int]],
        limit: int,
        parallel: int,
    ) -> None:
        self._tasks = tasks
        self._fetch = fetch
        self._keys = keys
        self._limit = limit
        self._parallel = parallel
        self._next: tuple[K, int] | None = None
        self._requests: deque[tuple[K, asyncio.Future[Sequence[Frames]]]] = deque()
        self._running = 0
        self._held = 0

    async def get(self) -> tuple[K, Sequence[Frames]] | None:
        """Waits for the next result; None at the end. Raises the error of its request."""
        self._start()
        if not self._requests:
            return None
        key, request = self._requests.popleft()
        if not request.done():
            await asyncio.wait([request])
        self._start()
        return key, request.result()

    def release(self, result: Sequence[Frames]) -> None:
        """Frees the bytes of a result."""
        self._held -= pinned(result)
        self._start()

    def _start(self) -> None:
        while self._running < self._parallel:
            self._next = self._next or next(self._keys, None)
            if self._next is None or (self._requests and self._held + self._next[1] > self._limit):
                return
            key, nbytes = self._next
            self._next = None
            self._held += nbytes
            self._running += 1
            request = asyncio.get_running_loop().create_future()
            self._requests.append((key, request))
            self._tasks.start_soon(self._run, key, nbytes, request)

    async def _run(self, key: K, nbytes: int, request: asyncio.Future[Sequence[Frames]]) -> None:
        try:
            result = await self._fetch(key)
            self._held += pinned(result) - nbytes
            request.set_result(result)
        except Exception as error:
            request.set_exception(error)
            request.exception()  # retrieved, so that asyncio logs nothing
        self._running -= 1
        self._start()


def pinned(result: Sequence[Frames]) -> int:
    """Bytes that a result keeps alive."""
    return sum(frames.pinned for frames in result)


PARALLEL_BLOCKS: Final = 32
"""The largest number of concurrent requests for blocks.

At 60 MB/s each, 4 MiB take two first-byte latencies.
"""


def mean_bytes(index: Index) -> float:
    """The mean bytes of a record, with its frame."""
    return index.nbytes / max(1, len(index))


def read_exact(
    order: ExactOrder,
    records: IndexedRecords,
    runs: Iterator[Numbers],
    tasks: TaskGroup,
    limit: int,
) -> Callable[[Numbers], Awaitable[Frames]]:
    """A function that gives the records at positions of an exact order.

    It is called with each of `runs` in turn.
    """
    parallel = 3
    fetched_bytes = limit // (2 * parallel)  # the other half holds records

    async def fetch(positions: Numbers) -> Sequence[Frames]:
        return [await records.fetch(order.records(positions), fetched_bytes)]

    size = mean_bytes(records.index)
    keys = ((positions, int(len(positions) * size) + 1) for positions in runs)
    ahead = FetchAhead(tasks, fetch, keys, limit // 2, parallel)

    async def take(positions: Numbers) -> Frames:
        result = await ahead.get()
        assert result is not None
        fetched, (frames,) = result
        assert (fetched == positions).all()
        ahead.release([frames])
        return frames

    return take


Find = Callable[[int, Numbers, Numbers, list[Frames]], Awaitable[None]]
"""Finds the records of one group or lane, by its number: those with these indices, whose rows it
sets, and to whose buffers it appends its own."""


async def take_located(located: tuple[Numbers, Numbers], find: Find, threads: Threads) -> Frames:
    """The records of a batch, each in the group or lane, and at the index in it, where it is."""
    numbers, indices = located
    found = np.zeros((len(numbers), 4), np.int64)
    buffers: list[Frames] = []
    order = np.argsort(numbers, kind="stable")
    indices = indices[order]
    first = 0
    for number, count in enumerate(np.bincount(numbers).tolist()):
        if count:
            last = first + count
            await find(number, indices[first:last], found[first:last], buffers)
            first = last
    # Rows are found group by group, and put in the order of the batch at once.
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    records = Scattered([frames.buffer for frames in buffers], found.take(places, axis=0))
    if are_long(records.nbytes, len(records)):
        return records
    return await threads.run(records.compact)


class SlotGroup:
    """One group while it is read.

    It has the parts in memory, and the current round with the location of each of its records, as
    for `kernels.pick`. All parts before `held_until` are in memory or no longer needed.
    """

    def __init__(self, order: GroupOrder, first: int) -> None:
        self.order = order
        self.held: dict[int, Frames] = {}
        self.first_round = order.round_of(first)
        self.held_until = self.first_round
        self.round: Round | None = None
        self.rows = NO_ROWS

    def advance(self) -> list[Frames]:
        """Begins the next round, without its rows.

        Removes and returns the parts that later rounds do not need.
        """
        number = self.first_round if self.round is None else self.round.number + 1
        self.round = self.order.round(number)
        self.rows = NO_ROWS
        unused = [
            part for part in self.held if min(part, self.order.rounds - 1) < self.round.number
        ]
        return [self.held.pop(part) for part in unused]

    def find_rows(self, current: Round) -> None:
        """Computes the rows of a round whose parts are all in memory."""
        counts = self.order.parts.counts[current.number : self.order.parts_until(current.number)]
        which = current.parts - current.number
        spans = np.concatenate([frames.spans for frames in self.buffers(current)])
        self.rows = np.zeros((len(which), 4), np.int64)
        self.rows[:, :2] = spans[(np.cumsum(counts) - counts)[which] + current.offsets]
        self.rows[:, 2] = which << BUFFER_BITS

    def buffers(self, current: Round) -> list[Frames]:
        """The parts of a round, all of which must be in memory; rows refer to them by index."""
        parts = range(current.number, self.order.parts_until(current.number))
        return [self.held[part] for part in parts]

    def needs(self) -> Iterator[tuple[int, int]]:
        """The parts from the first round on, in order.

        With each comes the index of the record before which it is needed.
        """
        for part in range(self.first_round, len(self.order.parts)):
            number = self.order.first_round(part)
            yield part, self.order.begin(number) if number > self.first_round else 0


NO_ROWS = np.zeros((0, 4), np.int64)


class BlockReading:
    """Reads the records of a block order.

    These are the records of some groups, each from the index of its first record on.
    """

    def __init__(
        self,
        order: BlockOrder,
        records: IndexedRecords,
        groups: dict[int, int],
        *,
        tasks: TaskGroup,
        limit: int,
        threads: Threads,
    ) -> None:
        self._order = order
        self._records = records
        self._mean_bytes = mean_bytes(records.index)
        self._threads = threads
        self._groups = {
            number: SlotGroup(order.group(number), first) for number, first in groups.items()
        }
        self._ahead: FetchAhead[tuple[int, int]] = FetchAhead(
            tasks, self._fetch, self._needed_parts(), limit, PARALLEL_BLOCKS
        )

    async def take(self, positions: Numbers) -> Frames:
        """The records at these positions."""
        return await take_located(self._order.locate(positions), self._find, self._threads)

    async def _find(
        self, number: int, indices: Numbers, rows: Numbers, buffers: list[Frames]
    ) -> None:
        """Finds the records of one group: sets their rows, and appends their buffers."""
        group = self._groups[number]
        done = 0
        while done < len(indices):
            current = await self._round_of(group, int(indices[done]))
            last = int(np.searchsorted(indices, current.last))
            round_rows = group.rows[indices[done:last] - current.first]
            round_rows[:, 2] += len(buffers) << BUFFER_BITS
            rows[done:last] = round_rows
            buffers += group.buffers(current)
            done = last

    async def _round_of(self, group: SlotGroup, index: int) -> Round:
        """Advances a group to the round of a record, and finds the round's rows."""
        while group.round is None or index >= group.round.last:
            for frames in group.advance():
                self._ahead.release([frames])
        if not len(group.rows):
            await self._hold(group, group.order.parts_until(group.round.number))
            group.find_rows(group.round)
        return group.round

    async def _hold(self, group: SlotGroup, until: int) -> None:
        """Waits until all needed parts before `until` are in memory."""
        while group.held_until < until:
            result = await self._ahead.get()
            assert result is not None
            (number, part), (frames,) = result
            self._groups[number].held[part] = frames
            self._groups[number].held_until = part + 1

    def _needed_parts(self) -> Iterator[tuple[tuple[int, int], int]]:
        """Groups and parts in the order in which positions need them.

        With each part comes its approximate size.
        """
        waiting = []
        for number, group in self._groups.items():
            needs = group.needs()
            if (first := next(needs, None)) is not None:
                waiting.append((self._order.position(number, first[1]), number, first[0], needs))
        heapify(waiting)
        while waiting:
            _, number, part, needs = waiting[0]
            count = int(self._groups[number].order.parts.counts[part])
            yield (number, part), int(count * self._mean_bytes) + 1
            following = next(needs, None)
            if following is None:
                heappop(waiting)
            else:
                part, index = following
                heapreplace(waiting, (self._order.position(number, index), number, part, needs))

    async def _fetch(self, key: tuple[int, int]) -> Sequence[Frames]:
        number, part = key
        parts = self._groups[number].order.parts
        first = int(parts.starts[part])
        return [await self._records.fetch_run(first, first + int(parts.counts[part]))]
