"""Buffers for the inputs of a source that joins several.

Inputs are shards, or chains that run concurrently, each in a task of its own.

Rules:
- An InputBuffer holds as many bytes as its limit allows, but at least one chunk. Then its task
  waits; others continue.
- Elements can be looked at before they are taken, so a source that joins buffers decides without
  awaiting.
- An error that ended a chain is raised once, after all elements before it were taken.
- A failed element keeps its place: elements after it are not available before it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import Any, NamedTuple

from streamrec.pipeline.elements.chunk import FAILURE_BYTES, Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import ChunkSlices, Joined, OneElement, Position
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.queue import Fillable, Signal, fill
from streamrec.pipeline.engine.run import RunContext
from streamrec.storage.tasks import background
from streamrec.tfrecord import Frames

AHEAD = Share(4, name="inputs")
"""How many bytes a chain may run ahead of the others, as a share of its part of the budget."""


class TakenElements(NamedTuple):
    """Elements taken from a buffer: windows of their chunks, and their positions.

    `nbytes` is about what they weigh.
    """

    windows: list[Any]
    positions: Joined
    nbytes: int


class ChunkRow:
    """Chunks in a row, and the place of the next element in them.

    Args:
        start: Gives the position before the first element, if it is asked for.

    Attributes:
        chunks: The chunks, each with its weight in bytes.
        held: What all of them weigh.
        last_weight: What the one weighs that was added last, also when it was taken.
    """

    def __init__(self, start: Callable[[], Position | None]) -> None:
        self.chunks: deque[tuple[Chunk, int]] = deque()
        self.held = 0
        self.last_weight = 0
        self._used = 0  # elements of the first chunk
        # The parts of a position, which is seldom needed.
        self._start = start
        self._last: ChunkSlices = ()  # the end of the chunk that was taken last

    def begin(self, start: Callable[[], Position | None]) -> None:
        """Sets what gives the position before the first element."""
        self._start = start

    def add(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk at the end."""
        self.chunks.append((chunk, weight))
        self.held += weight
        self.last_weight = weight

    @property
    def first(self) -> Chunk:
        """The first chunk, of which some elements may have been taken."""
        return self.chunks[0][0]

    @property
    def left(self) -> int:
        """How many elements are left in the first chunk, and can be taken without a copy."""
        return len(self.chunks[0][0].elements) - self._used if self.chunks else 0

    def mark(self) -> Joined:
        """The position before the next element."""
        if not self.chunks:
            return self._where_empty()
        return Joined(((self.chunks[0][0].positions, self._used, 0),))

    def _where_empty(self) -> Joined:
        return Joined(self._last) if self._last else Joined((), self._start())

    def end(self) -> Joined:
        """The position after all elements."""
        if not self.chunks:
            return self._where_empty()
        last = self.chunks[-1][0]
        return Joined(((last.positions, len(last.elements), 0),))

    def peek(self, most: int) -> list[Any]:
        """At most `most` next elements as windows, without taking them."""
        windows = []
        first = self._used
        for chunk, _ in self.chunks:
            last = min(len(chunk.elements), first + most)
            windows.append(window(chunk.elements, first, last))
            most -= last - first
            first = 0
            if not most:
                break
        return windows

    def take(self, count: int) -> TakenElements:
        """Takes the next `count` elements, of which there are as many."""
        windows = []
        slices = []
        nbytes = 0
        while count:
            chunk, _ = self.chunks[0]
            elements = chunk.elements
            first = self._used
            size = len(elements)
            taken = min(size - first, count)
            self._used = last = first + taken
            # A whole chunk stays as it is, so that its container is not made again.
            windows.append(elements if taken == size else window(elements, first, last))
            slices.append((chunk.positions, first, taken))
            nbytes += chunk.nbytes * taken // size + 1
            count -= taken
            if last == size:
                self._drop()
        return TakenElements(windows, Joined(tuple(slices)), nbytes)

    def _drop(self) -> None:
        """Drops the first chunk, of which all was taken."""
        chunk, weight = self.chunks.popleft()
        self.held -= weight
        self._last = ((chunk.positions, self._used, 0),)
        self._used = 0


class ArrivedElements:
    """The elements of one input that have arrived and were not taken.

    `available` counts those up to the first that failed, and `failures` the failed ones. The
    elements of the last chunk have `typical_bytes` on average. An `error` that `ended` the input is
    raised after all elements. `origin` is what a position says of an input that takes turns, in
    addition to its own position.
    """

    origin: Any = None

    def __init__(self, start: Position | None = None) -> None:
        self.ended = False
        self.error: Exception | None = None
        self.available = 0
        self.failures = 0
        self.typical_bytes = 1
        self._row = ChunkRow(lambda: start)

    def _add(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk at the end; a failure becomes one element."""
        count = len(chunk.elements)
        if chunk.error is not None:
            self.failures += 1
            positions = OneElement(((self._row.end(), 0, 0),), (chunk.positions, 0))
            # A failure counts as one element, so that it has a turn like any other.
            chunk = Chunk((None,), positions, FAILURE_BYTES, chunk.error)
            count = 1
        elif not self.failures:
            self.available += count
        if count:
            nbytes = (
                abs(chunk.elements.extent) if isinstance(chunk.elements, Frames) else chunk.nbytes
            )
            self.typical_bytes = nbytes // count + 1 if chunk.error is None else self.typical_bytes
            self._row.add(chunk, weight)

    def _freed(self, nbytes: int) -> None:
        """Called when chunks that weighed `nbytes` were taken to their ends."""

    def check(self) -> None:
        """Raises the error that ended the input, once."""
        error = self.error
        self.error = None
        if error is not None:
            raise error

    @property
    def is_exhausted(self) -> bool:
        """Whether the input has ended and all elements were taken."""
        return self.ended and not self._row.chunks

    @property
    def has_failure(self) -> bool:
        """Whether the next element failed; `take_failure` takes it."""
        return bool(self._row.chunks) and self._row.first.error is not None

    def take_failure(self) -> Exception:
        """Takes the next element, which failed, and returns its error."""
        error = self._row.first.error
        assert error is not None
        self.take(1)
        self.failures -= 1
        valid = takewhile(lambda entry: entry[0].error is None, self._row.chunks)
        self.available = sum(len(chunk.elements) for chunk, _ in valid)
        return error

    @property
    def first(self) -> int:
        """How many elements are left in the first chunk, and can be taken without a copy."""
        return self._row.left

    @property
    def comes(self) -> bool:
        """Whether more elements will certainly arrive before any is taken."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether the input gives more than a failure."""
        return True

    def mark(self) -> Joined:
        """The position before the next element."""
        return self._row.mark()

    def peek(self, most: int) -> list[Any]:
        """At most `most` next elements as windows, without taking them."""
        return self._row.peek(most)

    def take(self, count: int) -> TakenElements:
        """Takes the next `count` available elements."""
        row = self._row
        if not count:
            return TakenElements([], row.mark(), 0)
        held = row.held
        taken = row.take(count)
        self.available -= count
        freed = held - row.held
        # One chunk of any weight fits where none is left, also after one without weight.
        if freed or not row.chunks:
            self._freed(freed)
        return taken


class InputBuffer(ArrivedElements, Fillable):
    """The elements of one chain, at most `limit` bytes of them.

    Contract of this queue: the task of a chain puts chunks and waits until one fits, as one always
    does in an empty queue. A source that joins several looks at what has arrived in all of them,
    and takes some elements of some. A failed element and the error that ended the chain come at
    their places.

    `arrived` is notified of elements, and of the end.
    """

    def __init__(self, limit: int, arrived: Signal, start: Position | None = None) -> None:
        super().__init__(start)
        self._limit = limit
        self._arrived = arrived
        self._room = Signal()

    def _fits(self, chunk: Chunk, weight: int) -> bool:
        """Whether a chunk may be added now; one always fits."""
        return not self._row.chunks or self._row.held + weight <= self._limit

    def end_with(self, error: Exception) -> None:
        """Adds a failed element, and ends the chain."""
        self._add(Chunk((), self._row.end(), FAILURE_BYTES, error), FAILURE_BYTES)
        self.end(None)

    async def more(self) -> bool:
        """Waits for an element, which may have failed; False at the end.

        Raises the error that ended the chain.
        """
        while not self._row.chunks and not self.ended:
            await self._arrived.wait()
        if not self._row.chunks:
            self.check()
        return bool(self._row.chunks)

    def _freed(self, nbytes: int) -> None:
        """Wakes the task that waits for room."""
        self._room.notify()


@asynccontextmanager
async def run_inputs(
    chains: Sequence[Chain],
    positions: Sequence[Position | None],
    context: RunContext,
    arrived: Signal,
) -> AsyncGenerator[list[InputBuffer]]:
    """Runs chains concurrently from their positions on, in the block of this context.

    Each gets an equal part of the budget.
    """
    async with background() as tasks:
        buffers = []
        shares = []
        for number, (chain, position) in enumerate(zip(chains, positions, strict=True)):
            share, feeding = context.part(len(chains)).fork_seed(number).take(AHEAD)
            shares.append(share)
            buffers.append(InputBuffer(share.nbytes, arrived, position))
            tasks.start_soon(
                fill, buffers[-1], feeding.chunks(chain, position, continue_on_error=True)
            )
        yield buffers
