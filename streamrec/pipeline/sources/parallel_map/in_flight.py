"""Tracks elements on their way through calls of a function.

Pure: it is fed chunks and results, and delivers results.

Elements have ordinals, counted from where the run began. Tasks of consecutive elements start in
order and end in any order. Results are delivered in order, or as they come.

Contract of this queue: calls add the results of a task in any order, and one task takes all that
can be delivered. Nothing waits here: `pace.py` decides before each call whether there is room for
more. The error of the input comes once, after all results.

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
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class Delivery:
    """Results of several tasks in the order of delivery, or one failure.

    `parts` are their ordinals as ranges.
    """

    results: list[Any] = field(default_factory=list)
    parts: list[tuple[int, int]] = field(default_factory=list)
    nbytes: int = 0
    failure: Exception | None = None

    def take_from(self, task: ElementTask) -> bool:
        """Takes the results of a task up to its first failure, or that failure.

        False if it took nothing: a failure is a chunk of its own, and earlier results go first.
        """
        begin = task.first - len(task.results)
        stop = task.errors[0][0] if task.errors else task.first
        if begin == stop and task.errors:
            if self.results:
                return False
            _, self.failure = task.errors.popleft()
            stop = begin + 1
        if begin < stop:
            self.parts.append((begin, stop))
            taken, nbytes = task.take(stop - begin)
            self.nbytes += nbytes
            # The result of a failed call has no meaning; its chunk has no elements.
            self.results += taken if self.failure is None else []
        return True


class TaskQueue:
    """The tasks in the order of delivery: `ordered`, that of the elements; else as results come.

    `undelivered` tasks run, or have results.

    >>> chunk = HeldChunk(Chunk(["a", "b"], FixedPosition(None), 2), 0, 2)
    >>> for ordered in (True, False):
    ...     queue = TaskQueue(ordered)
    ...     queue.begin(ElementTask(chunk, 0, 1))  # it has no result yet
    ...     fast = ElementTask(chunk, 2, 2, ["B"])
    ...     queue.begin(fast)
    ...     queue.add(fast)
    ...     queue.collect().results
    []
    ['B']
    """

    def __init__(self, ordered: bool) -> None:
        self.undelivered = 0
        self._ordered = ordered
        self._tasks: deque[ElementTask] = deque()

    def begin(self, task: ElementTask) -> None:
        """A task was started; in order, its results have a place from now on."""
        self.undelivered += 1
        if self._ordered:
            self.add(task)

    def add(self, task: ElementTask) -> None:
        """A task has results, unless its place is known already."""
        if not task.queued:
            task.queued = True
            self._tasks.append(task)

    def collect(self) -> Delivery:
        """Removes what can be delivered; empty if nothing can."""
        delivery = Delivery()
        # The first task may be incomplete, and then hands out what it has.
        while self._tasks and delivery.failure is None:
            task = self._tasks[0]
            if not delivery.take_from(task):
                break
            if task.results or (self._ordered and not task.ended):
                break
            self._tasks.popleft()
            task.queued = False
            self.undelivered -= task.ended
        return delivery


class InputHistory:
    """The chunks of the input from the oldest element on that was not delivered.

    `done` has ranges of ordinals that were delivered before the run was resumed; the input begins
    at `start`.
    """

    def __init__(self, done: Sequence[Sequence[int]] = (), start: Position | None = None) -> None:
        self._next = 0
        self._delivered = Delivered(0, done)
        self._chunks: deque[tuple[int, Positions]] = deque([(0, FixedPosition(start))])

    def feed(self, positions: Positions, count: int) -> tuple[int, list[tuple[int, int]]]:
        """Adds a chunk of `count` elements.

        Returns the first one's ordinal, and the ranges of ordinals that were not delivered.
        """
        first = self._next
        self._next += count
        self._chunks.append((first, positions))
        return first, self._delivered.missing(first, self._next)

    def feed_failure(self, positions: Positions) -> tuple[int, bool]:
        """Adds a failed element: its positions are after it.

        Returns its ordinal, and whether it was not delivered.
        """
        ordinal = self._next
        self._next += 1
        self._chunks.append((self._next, positions))
        return ordinal, bool(self._delivered.missing(ordinal, self._next))

    def deliver(self, parts: Sequence[tuple[int, int]]) -> ResultPositions:
        """Marks ranges as delivered; returns the positions between their elements."""
        parts = join_ranges(parts)
        delivered = self._delivered
        while len(self._chunks) > 1 and self._chunks[1][0] <= delivered.low:
            self._chunks.popleft()
        fed = InputChunks(*zip(*self._chunks, strict=True))
        before = Delivered(delivered.low, delivered.beyond)
        for first, last in parts:
            delivered.add(first, last)
        return ResultPositions(fed, before, tuple(parts))


class InFlight:
    """The elements, tasks and results in flight.

    It counts `pending` elements, which wait for a task, and tasks `at_work`. `done` and `start` are
    those of the `InputHistory`.
    """

    def __init__(
        self, ordered: bool, done: Sequence[Sequence[int]] = (), start: Position | None = None
    ) -> None:
        self.pending = 0
        self.at_work = 0
        self.input_bytes = 0
        self.result_bytes = 0
        self.ended = False
        self._error: Exception | None = None
        self._history = InputHistory(done, start)
        self._waiting: deque[tuple[HeldChunk, int, int]] = deque()
        self._tasks = TaskQueue(ordered)

    @property
    def undelivered(self) -> int:
        """How many tasks run, or have results."""
        return self._tasks.undelivered

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
        first, missing = self._history.feed(chunk.positions, len(chunk.elements))
        count = sum(end - begin for begin, end in missing)
        if count:
            held = HeldChunk(chunk, first, count)
            self._waiting.extend((held, *part) for part in missing)
            self.pending += count
            self.input_bytes += chunk.nbytes

    def _feed_failure(self, chunk: Chunk) -> None:
        ordinal, is_missing = self._history.feed_failure(chunk.positions)
        if is_missing:
            self._waiting.append((HeldChunk(chunk, ordinal, 0), ordinal, ordinal + 1))
            self._queue_failures()

    def _queue_failures(self) -> None:
        """Queues waiting elements that failed in an earlier stage.

        It stops at the next one that can be started.
        """
        while self._waiting and (error := self._waiting[0][0].chunk.error) is not None:
            held, first, last = self._waiting.popleft()
            task = ElementTask(held, last, last, [None], errors=deque([(first, error)]))
            self._tasks.begin(task)
            self._tasks.add(task)

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
        self._tasks.begin(task)
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
        self._tasks.add(task)

    def deliver(self) -> Chunk | None:
        """A chunk of all results that can be delivered, or of one failure; None if there are none.

        Raises the error of the input, once, after all results.
        """
        delivery = self._tasks.collect()
        self.result_bytes -= delivery.nbytes
        if delivery.failure is not None:
            after = shift(self._history.deliver(delivery.parts), 1)
            return Chunk((), after, FAILURE_BYTES, error=delivery.failure)
        if delivery.results:
            positions = self._history.deliver(delivery.parts)
            return Chunk(delivery.results, positions, delivery.nbytes)
        if self.ended and self.idle and self._error is not None:
            error = self._error
            self._error = None
            raise error
        return None


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
