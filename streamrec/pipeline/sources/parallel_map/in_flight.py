"""Tracks elements on their way through calls of a function.

Pure: it is fed chunks and results, and delivers results.

Elements have ordinals, counted from where the run began. Tasks of consecutive elements start in
order and end in any order. Results are delivered in order, or as they come.

Rules:
- An error is delivered in a chunk of its own: in order, after the results of all earlier elements;
  otherwise after those that were ready. Later elements continue. An element that failed in an
  earlier stage has an ordinal but no call.
- A position is that of the oldest element not delivered, and says which later ones were delivered
  (in order: none). A state from one kind of delivery can be resumed with the other.
- Chunks are held while elements of them are in flight; results until they are delivered.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from streamrec.pipeline.elements.chunk import FAILURE_BYTES, Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import (
    FixedPosition,
    Origin,
    Position,
    Positions,
    RecordLocations,
    shift,
)
from streamrec.pipeline.stages.deferred_positions import InputChunks


class Delivered:
    """Which elements were delivered: all before `low`, and some ranges `beyond` it.

    >>> delivered = Delivered()
    >>> for first, last in [(3, 5), (0, 2), (7, 8), (2, 3)]:
    ...     delivered.add(first, last)
    >>> delivered.low, delivered.beyond
    (5, [(7, 8)])
    """

    def __init__(self, low: int = 0, beyond: Sequence[Sequence[int]] = ()) -> None:
        self._ranges = [(0, low), *((first, last) for first, last in beyond)]

    @property
    def low(self) -> int:
        return self._ranges[0][1]

    @property
    def beyond(self) -> list[tuple[int, int]]:
        return self._ranges[1:]

    def add(self, first: int, last: int) -> None:
        """Marks elements first to last (exclusive) as delivered."""
        if len(self._ranges) == 1 and first == self.low:
            self._ranges = [(0, last)]
        else:
            self._ranges = join_ranges(sorted([*self._ranges, (first, last)]))

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ranges of elements between first and last (exclusive) that were not delivered."""
        pairs = pairwise([*self._ranges, (last, last)])
        gaps = ((max(first, end), min(begin, last)) for (_, end), (begin, _) in pairs)
        return [gap for gap in gaps if gap[0] < gap[1]]


def join_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins ranges that touch."""
    joined: list[tuple[int, int]] = []
    for first, last in ranges:
        if joined and joined[-1][1] == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    return joined


@dataclass(eq=False, slots=True)
class HeldChunk:
    """A chunk with elements in flight.

    It has the ordinal of its first element, and how many elements wait for a result.
    """

    chunk: Chunk
    ordinal: int
    waiting: int


@dataclass(eq=False, slots=True)
class ElementTask:
    """A task: consecutive elements of one chunk, for which the function is called in order.

    Those from ordinal `first` to `last` (exclusive) have no result. `errors` has the ordinals of
    those among the `results` not delivered whose call failed. `queued` tells whether it waits for
    delivery.
    """

    held: HeldChunk
    first: int
    last: int
    results: list[Any] = field(default_factory=list)
    nbytes: int = 0
    errors: deque[tuple[int, Exception]] = field(default_factory=deque)
    queued: bool = False

    @property
    def elements(self) -> Any:
        """The elements that have no result."""
        return window(
            self.held.chunk.elements, self.first - self.held.ordinal, self.last - self.held.ordinal
        )

    @property
    def ended(self) -> bool:
        """Whether all elements have results."""
        return self.first == self.last

    def take(self, count: int) -> tuple[list[Any], int]:
        """Removes and returns the next results, and what they weigh."""
        results = self.results[:count]
        nbytes = self.nbytes * count // max(len(self.results), 1)
        del self.results[:count]
        self.nbytes -= nbytes
        return results, nbytes


class InFlight:
    """The elements, tasks and results in flight.

    It counts `pending` elements, which wait for a task, tasks `at_work`, and `undelivered` tasks,
    which run or have results. `done` has ranges of ordinals that were delivered before the run was
    resumed; the input begins at `start`.
    """

    def __init__(
        self, ordered: bool, done: Sequence[Sequence[int]] = (), start: Position | None = None
    ) -> None:
        self.pending = 0
        self.at_work = 0
        self.undelivered = 0
        self.input_bytes = 0
        self.result_bytes = 0
        self.ended = False
        self._ordered = ordered
        self._delivered = Delivered(0, done)
        self._next = 0
        self._fed: deque[tuple[int, Positions]] = deque([(0, FixedPosition(start))])
        self._waiting: deque[tuple[HeldChunk, int, int]] = deque()
        self._tasks: deque[ElementTask] = deque()
        self._error: Exception | None = None

    @property
    def idle(self) -> bool:
        """Whether no element waits, no task runs, and all results were delivered."""
        return not self.pending and not self.undelivered

    def feed(self, chunk: Chunk) -> None:
        """Adds the next elements, or a failed one.

        Elements that were delivered before the run was resumed are left out.
        """
        if chunk.error is not None:
            self._feed_failure(chunk)
            return
        first = self._next
        self._next += len(chunk.elements)
        missing = self._delivered.missing(first, self._next)
        count = sum(end - begin for begin, end in missing)
        self._fed.append((first, chunk.positions))
        if count:
            held = HeldChunk(chunk, first, count)
            self._waiting.extend((held, *part) for part in missing)
            self.pending += count
            self.input_bytes += chunk.nbytes

    def _feed_failure(self, chunk: Chunk) -> None:
        first = self._next
        self._next += 1
        self._fed.append((self._next, chunk.positions))
        if self._delivered.missing(first, self._next):
            self.undelivered += 1
            self._waiting.append((HeldChunk(chunk, first, 0), first, self._next))
            self._queue_failures()

    def _queue_failures(self) -> None:
        """Queues waiting elements that failed in an earlier stage.

        It stops at the next one that can be started.
        """
        while self._waiting and (error := self._waiting[0][0].chunk.error) is not None:
            held, first, last = self._waiting.popleft()
            self._queue(ElementTask(held, last, last, [None], errors=deque([(first, error)])))

    def end(self, error: Exception | None) -> None:
        """Ends the input; an error is raised after all results."""
        self.ended = True
        self._error = error

    def start(self, most: int) -> ElementTask:
        """Starts a task of at most `most` waiting elements; some must be pending."""
        held, first, last = self._waiting.popleft()
        stop = min(last, first + most)
        if stop < last:
            self._waiting.appendleft((held, stop, last))
        task = ElementTask(held, first, stop)
        self.pending -= stop - first
        self.at_work += 1
        self.undelivered += 1
        if self._ordered:
            self._queue(task)
        self._queue_failures()
        return task

    def add_results(
        self,
        task: ElementTask,
        results: list[Any],
        nbytes: int,
        errors: Sequence[tuple[int, Exception]] = (),
    ) -> None:
        """Adds the next results of a task and what they weigh.

        Any value stands for a call that failed. The indices of these calls come with their errors,
        in order.
        """
        nbytes += task.held.chunk.positions.weight(len(results))
        task.errors.extend((task.first + index, error) for index, error in errors)
        task.results.extend(results)
        task.first += len(results)
        task.nbytes += nbytes
        self.result_bytes += nbytes
        task.held.waiting -= len(results)
        if not task.held.waiting:
            self.input_bytes -= task.held.chunk.nbytes
        if task.ended:
            self.at_work -= 1
        if not task.queued:
            self._queue(task)

    def deliver(self) -> Chunk | None:
        """A chunk of all results that can be delivered, or of one failure; None if there are none.

        Raises the error of the input, once, after all results.
        """
        results: list[Any] = []
        parts: list[tuple[int, int]] = []
        nbytes = 0
        failure: Exception | None = None
        # Tasks are in the order of delivery: in order those of the elements, otherwise those that
        # have results. The first one may be incomplete, and then hands out what it has.
        while self._tasks and failure is None:
            task = self._tasks[0]
            begin = task.first - len(task.results)
            stop = task.errors[0][0] if task.errors else task.first
            if begin == stop and task.errors:
                if results:  # a failure is a chunk of its own: the results before it go first
                    break
                _, failure = task.errors.popleft()
                stop = begin + 1
            if begin < stop:
                parts.append((begin, stop))
                taken, weight = task.take(stop - begin)
                results += taken
                nbytes += weight
            if task.results or (self._ordered and not task.ended):
                break
            self._tasks.popleft()
            task.queued = False
            self.undelivered -= task.ended
        if failure is not None:
            chunk = self._chunk([], parts, nbytes)
            return replace(chunk, elements=(), error=failure, nbytes=FAILURE_BYTES)
        if results:
            return self._chunk(results, parts, nbytes)
        if self.ended and self.idle and self._error is not None:
            error = self._error
            self._error = None
            raise error
        return None

    def _queue(self, task: ElementTask) -> None:
        task.queued = True
        self._tasks.append(task)

    def _chunk(self, results: list[Any], parts: list[tuple[int, int]], nbytes: int) -> Chunk:
        parts = join_ranges(parts)
        self.result_bytes -= nbytes
        while len(self._fed) > 1 and self._fed[1][0] <= self._delivered.low:
            self._fed.popleft()
        fed = InputChunks(*zip(*self._fed, strict=True))
        delivered = Delivered(self._delivered.low, self._delivered.beyond)
        before = ResultPositions(fed, delivered, tuple(parts))
        positions: Positions = before if results else shift(before, 1)
        for first, last in parts:
            self._delivered.add(first, last)
        return Chunk(results, positions, nbytes)


@dataclass(frozen=True, slots=True)
class ResultPositions(Positions):
    """Positions of results.

    `parts` are their ordinals as ranges, in the order of delivery, and `delivered` those before.
    `fed` has the chunks from the oldest element on that was not delivered before.
    """

    fed: InputChunks
    delivered: Delivered
    parts: tuple[tuple[int, int], ...]

    def weight(self, count: int) -> int:
        return self.fed.positions[-1].weight(count)

    def at(self, index: int) -> Position:
        delivered = Delivered(self.delivered.low, self.delivered.beyond)
        for first, last in self.parts:
            if index > 0:
                delivered.add(first, min(last, first + index))
            index -= last - first
        low = delivered.low
        done = [[first - low, last - low] for first, last in delivered.beyond]
        return {"source": {"inner": dict(self.fed.at(low)), "done": done}}

    def origins(self, index: int, row: int) -> Sequence[Origin]:
        for first, last in self.parts:
            if index < last - first:
                return (self.fed.origin(first + index, row),)
            index -= last - first
        return ()

    def locations(self) -> RecordLocations | None:
        found = []
        ends = [*self.fed.firsts[1:], sys.maxsize]
        for first, last in self.parts:
            for begin, positions, end in zip(
                self.fed.firsts, self.fed.positions, ends, strict=True
            ):
                if first < end and begin < last:
                    locations = positions.locations()
                    if locations is None:
                        return None
                    found.append(
                        locations.take(slice(max(first - begin, 0), min(last, end) - begin))
                    )
        return RecordLocations.join(found)
