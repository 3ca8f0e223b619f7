"""In flight: elements on their way through calls of a function. Pure: told what came and ended, it says what goes on.

Elements have ordinals, counted from where the run began. They are started in their order, a run of them at a time; runs
end in any order. Their results are delivered in order, or as they come.

Rules:
- An error waits for the results before it: in order, for those of all elements before; else for those that were there.
  Then it is delivered in a chunk of its own, and the elements after it go on. So is that of an element that failed
  before it came here: it has an ordinal as all others, and no call.
- Positions: where to resume is the oldest element that was not delivered, and which of those after it were. In order
  there are none of these. A state of one kind of delivery is good for the other.
- What is held are the chunks of which elements are under way, and results that were not delivered.
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

__all__ = ["Delivered", "ElementRun", "InFlight"]


class Delivered:
    """Which elements were delivered: all before `low`, and those of some runs `beyond` it.

    >>> delivered = Delivered()
    >>> for first, last in [(3, 5), (0, 2), (7, 8), (2, 3)]:
    ...     delivered.add(first, last)
    >>> delivered.low, delivered.beyond
    (5, [(7, 8)])
    """

    def __init__(self, low: int = 0, beyond: Sequence[Sequence[int]] = ()) -> None:
        self._runs = [(0, low), *((first, last) for first, last in beyond)]

    @property
    def low(self) -> int:
        return self._runs[0][1]

    @property
    def beyond(self) -> list[tuple[int, int]]:
        return self._runs[1:]

    def add(self, first: int, last: int) -> None:
        """Elements first to last (exclusive), which were not there, were delivered."""
        if len(self._runs) == 1 and first == self.low:
            self._runs = [(0, last)]
        else:
            self._runs = join_runs(sorted([*self._runs, (first, last)]))

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """The runs of elements first to last (exclusive) that were not delivered."""
        pairs = pairwise([*self._runs, (last, last)])
        gaps = ((max(first, ended), min(begun, last)) for (_, ended), (begun, _) in pairs)
        return [gap for gap in gaps if gap[0] < gap[1]]

    def copy(self) -> Delivered:
        made = Delivered()
        made._runs = self._runs  # which is replaced, and never changed
        return made


def join_runs(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same runs, of which those that touch are joined."""
    found: list[tuple[int, int]] = []
    for first, last in runs:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return found


@dataclass(eq=False, slots=True)
class HeldChunk:
    """A chunk whose elements are under way.

    Attributes:
        ordinal: The number of its first element.
        waiting: How many of its elements have not ended.
    """

    chunk: Chunk
    ordinal: int
    waiting: int


@dataclass(eq=False, slots=True)
class ElementRun:
    """A run of elements of one chunk that go through the function one after the other.

    Attributes:
        first: The ordinal of the next element that has no result.
        last: The ordinal after the last element.
        results: Those that were not delivered.
        nbytes: What they weigh.
        errors: Of the elements among these at which a call failed the ordinals, and the errors.
        queued: Whether it is in the line of those that are asked for results.
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
        """Those that have no result."""
        return window(self.held.chunk.elements, self.first - self.held.ordinal, self.last - self.held.ordinal)

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.first == self.last

    def take(self, count: int) -> tuple[list[Any], int]:
        """The next results, which are delivered, and what they weigh."""
        taken, nbytes = self.results[:count], self.nbytes * count // max(len(self.results), 1)
        del self.results[:count]
        self.nbytes -= nbytes
        return taken, nbytes


class InFlight:
    """Elements under way.

    Args:
        ordered: Whether results are delivered in order.
        done: Runs of ordinals that were delivered before this run began.
        start: Where the input begins.

    Attributes:
        pending: Elements that were fed and not started.
        at_work: Runs that were started and have not ended.
        undelivered: Runs that were started and of which not all was delivered.
        input_bytes: What the chunks hold of which elements are under way.
        result_bytes: What the results hold that were not delivered.
        ended: Whether no more elements come.
    """

    def __init__(self, ordered: bool, done: Sequence[Sequence[int]] = (), start: Position | None = None) -> None:
        self.pending = 0
        self.at_work = 0
        self.undelivered = 0
        self.input_bytes = 0
        self.result_bytes = 0
        self.ended = False
        self._ordered = ordered
        self._deliver = Delivered(0, done)
        self._next = 0
        self._fed: deque[tuple[int, Positions]] = deque([(0, FixedPosition(start))])
        self._waiting: deque[tuple[HeldChunk, int, int]] = deque()
        self._line: deque[ElementRun] = deque()
        self._error: Exception | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, and nothing waits to be delivered."""
        return not self.pending and not self.undelivered

    def feed(self, chunk: Chunk) -> None:
        """The next elements, or one that failed; those that were delivered before are left out."""
        if chunk.error is not None:
            self._feed_failure(chunk)
            return
        first, self._next = self._next, self._next + len(chunk.elements)
        runs = self._deliver.missing(first, self._next)
        count = sum(last - begun for begun, last in runs)
        self._fed.append((first, chunk.positions))
        if count:
            held = HeldChunk(chunk, first, count)
            self._waiting.extend((held, *run) for run in runs)
            self.pending += count
            self.input_bytes += chunk.nbytes

    def _feed_failure(self, chunk: Chunk) -> None:
        first, self._next = self._next, self._next + 1
        self._fed.append((self._next, chunk.positions))
        if self._deliver.missing(first, self._next):
            self.undelivered += 1
            self._waiting.append((HeldChunk(chunk, first, 0), first, self._next))
            self._queue_failures()

    def _queue_failures(self) -> None:
        """Puts elements that failed before they came, up to the next that can be started, into the line."""
        while self._waiting and (error := self._waiting[0][0].chunk.error) is not None:
            held, first, last = self._waiting.popleft()
            self._queue(ElementRun(held, last, last, [None], errors=deque([(first, error)])))

    def end(self, error: Exception | None) -> None:
        """No more elements come, because of an error or not; it is raised after all results."""
        self.ended, self._error = True, error

    def start(self, most: int) -> ElementRun:
        """The next `most` elements that wait, or fewer; call it where some are pending."""
        held, first, last = self._waiting.popleft()
        stop = min(last, first + most)
        if stop < last:
            self._waiting.appendleft((held, stop, last))
        element_run = ElementRun(held, first, stop)
        self.pending -= stop - first
        self.at_work += 1
        self.undelivered += 1
        if self._ordered:
            self._queue(element_run)
        self._queue_failures()
        return element_run

    def add_results(
        self, element_run: ElementRun, results: list[Any], nbytes: int, errors: Sequence[tuple[int, Exception]] = ()
    ) -> None:
        """A run's next results came.

        Args:
            element_run: Which.
            results: Of its first elements that had none.
            nbytes: What these results weigh.
            errors: The indices of those in whose place a call failed, in order, and with what.
        """
        nbytes += element_run.held.chunk.positions.weight(len(results))
        element_run.errors.extend((element_run.first + index, error) for index, error in errors)
        element_run.results.extend(results)
        element_run.first += len(results)
        element_run.nbytes += nbytes
        self.result_bytes += nbytes
        element_run.held.waiting -= len(results)
        if not element_run.held.waiting:
            self.input_bytes -= element_run.held.chunk.nbytes
        if element_run.ended:
            self.at_work -= 1
        if not element_run.queued:
            self._queue(element_run)

    def deliver(self) -> Chunk | None:
        """All results whose turn has come, or an element at which a call failed; None where there are none.

        Raises:
            Exception: What the input ended with, when its turn has come; once.
        """
        results: list[Any] = []
        parts: list[tuple[int, int]] = []
        nbytes = 0
        failure: Exception | None = None
        while self._line and failure is None:
            element_run = self._line[0]
            begin = element_run.first - len(element_run.results)
            stop = element_run.errors[0][0] if element_run.errors else element_run.first
            if begin == stop and element_run.errors:
                if results:
                    break
                _, failure = element_run.errors.popleft()
                stop = begin + 1
            if begin < stop:
                parts.append((begin, stop))
                taken, weight = element_run.take(stop - begin)
                results += taken
                nbytes += weight
            if element_run.results:
                break
            if not element_run.ended and self._ordered:
                break
            self._line.popleft()
            element_run.queued = False
            self.undelivered -= element_run.ended
        if failure is not None:
            return replace(self._chunk([], parts, nbytes), elements=(), error=failure, nbytes=FAILURE_BYTES)
        if results:
            return self._chunk(results, parts, nbytes)
        if self.ended and self.idle and self._error is not None:
            error, self._error = self._error, None
            raise error
        return None

    def _queue(self, element_run: ElementRun) -> None:
        element_run.queued = True
        self._line.append(element_run)

    def _chunk(self, results: list[Any], parts: list[tuple[int, int]], nbytes: int) -> Chunk:
        parts = join_runs(parts)
        self.result_bytes -= nbytes
        while len(self._fed) > 1 and self._fed[1][0] <= self._deliver.low:
            self._fed.popleft()
        fed = InputChunks(*zip(*self._fed, strict=True))
        places = ResultPositions(fed, self._deliver.copy(), tuple(parts))
        positions: Positions = places if results else shift(places, 1)
        for first, last in parts:
            self._deliver.add(first, last)
        return Chunk(results, positions, nbytes)


@dataclass(frozen=True, slots=True)
class ResultPositions(Positions):
    """Positions of results: what had been delivered before them, and which elements' they are.

    Args:
        fed: The chunks that elements came in, from the oldest that had not been delivered on.
        delivered: What had been.
        parts: The ordinals of these results, in runs, in the order of delivery.
    """

    fed: InputChunks
    delivered: Delivered
    parts: tuple[tuple[int, int], ...]

    def weight(self, count: int) -> int:
        return self.fed.positions[-1].weight(count)

    def at(self, index: int) -> Position:
        delivered = self.delivered.copy()
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
        """The places of the records that these results were made of, where they are known."""
        found = []
        begins, ends = self.fed.firsts, [*self.fed.firsts[1:], sys.maxsize]
        for first, last in self.parts:
            for begun, positions, end in zip(begins, self.fed.positions, ends, strict=True):
                if first < end and begun < last:
                    known = positions.locations()
                    if known is None:
                        return None
                    found.append(known.take(slice(max(first - begun, 0), min(last, end) - begun)))
        return RecordLocations.join(found)
