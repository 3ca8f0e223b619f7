"""Input buffers: chains that run side by side, each in a task of its own, and what has arrived of each.

Rules:
- An input buffer holds as many bytes as its limit allows, but always one chunk. Its task waits there; the others go on.
- What has arrived can be looked at before it is taken: so what joins buffers decides without awaiting.
- An error that ended a chain waits after the elements that came before it, and is raised at its turn, once.
- An element that failed keeps its place among the others: those after it are not available before it was taken.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from streamrec.pipeline.elements.chunk import FAILURE_BYTES, Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Joined, Position, Positions
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.queue import ByteQueue, Signal, background, fill
from streamrec.pipeline.engine.run import RunContext
from streamrec.tfrecord import Frames

__all__ = ["AHEAD", "InputBuffer", "TakenElements", "run_inputs"]

AHEAD = Share(4)
"""How far a chain may run ahead of the others, as a share of its part of the budget."""


@dataclass(frozen=True, slots=True)
class FailurePositions(Positions):
    """The places before and after an element that failed."""

    before: Joined
    after: Positions

    def at(self, index: int) -> Position:
        return self.after.at(0) if index else self.before.at(0)


class TakenElements(NamedTuple):
    """What was taken of an input buffer.

    Attributes:
        windows: The elements, as windows of their chunks.
        places: Where the buffer was, and the places between them.
        nbytes: About how many bytes they keep alive.
    """

    windows: list[Any]
    places: Joined
    nbytes: int


class InputBuffer(ByteQueue):
    """What has arrived of one chain, and was not taken.

    Args:
        limit: How many bytes it should hold.
        arrived: Told when there is more, or nothing more will be.
        start: Where the chain begins; None for its start.

    Attributes:
        available: Elements that have arrived and were not taken, up to the first that failed.
        failures: How many elements that failed have arrived and were not taken.
        typical_bytes: About how long elements are: those of the last chunk, whether any of it was taken or not.
        origin: What positions say of it besides its place, where inputs take turns; it holds no data.
    """

    origin: Any = None

    def __init__(self, limit: int, arrived: Signal, start: Position | None = None) -> None:
        super().__init__(limit, arrived)
        self.available = 0
        self.failures = 0
        self.typical_bytes = 1
        self._used = 0
        self._passed = self._last = Joined((), start)

    def _add(self, chunk: Chunk, weight: int) -> None:
        if chunk.error is not None:
            self.failures += 1
            chunk = Chunk((None,), FailurePositions(self._last, chunk.positions), FAILURE_BYTES, chunk.error)
        elif not self.failures:
            self.available += len(chunk.elements)
        if count := len(chunk.elements):
            nbytes = abs(chunk.elements.extent) if isinstance(chunk.elements, Frames) else chunk.nbytes
            self.typical_bytes = nbytes // count + 1 if chunk.error is None else self.typical_bytes
            self._last = Joined(((chunk.positions, len(chunk.elements), 0),))
            super()._add(chunk, weight)

    def end_with(self, error: Exception) -> None:
        """Holds an element that failed, and nothing else."""
        self._add(Chunk((), self._last, FAILURE_BYTES, error), FAILURE_BYTES)
        self.end(None)

    async def more(self) -> bool:
        """Waits until elements are there, or one that failed; False at the end. An error that ended them is raised."""
        while self.empty:
            await self._arrived.wait()
        if not self._chunks:
            self.check()
        return bool(self._chunks)

    @property
    def is_exhausted(self) -> bool:
        """Whether all was taken, and nothing more comes."""
        return self.ended and not self._chunks

    @property
    def has_failure(self) -> bool:
        """Whether the next element is one that failed: `take_failure` takes it."""
        return bool(self._chunks) and self._chunks[0][0].error is not None

    def take_failure(self) -> Exception:
        """The error of the next element, which failed; it counts as taken."""
        error = self._chunks[0][0].error
        assert error is not None
        self._used = 1
        self._drop()
        self.failures -= 1
        sound = takewhile(lambda entry: entry[0].error is None, self._chunks)
        self.available = sum(len(chunk.elements) for chunk, _ in sound)
        return error

    @property
    def first(self) -> int:
        """How many elements the first chunk has left, which can be had as they are."""
        return len(self._chunks[0][0].elements) - self._used if self._chunks else 0

    @property
    def comes(self) -> bool:
        """Whether more is sure to come, without any of it being taken."""
        return False

    @property
    def is_open(self) -> bool:
        """Whether there is more of it than an error."""
        return True

    def mark(self) -> Joined:
        return Joined(((self._chunks[0][0].positions, self._used, 0),)) if self._chunks else self._passed

    def peek(self, most: int) -> list[Any]:
        """The next elements, at most `most` of them, as windows; they are not taken."""
        windows = []
        first = self._used
        for chunk, _ in self._chunks:
            last = min(len(chunk.elements), first + most)
            windows.append(window(chunk.elements, first, last))
            most -= last - first
            first = 0
            if not most:
                break
        return windows

    def take(self, count: int) -> TakenElements:
        """The next `count` elements, of those that are available."""
        if not count:
            return TakenElements([], self.mark(), 0)
        windows = []
        stretches = []
        nbytes = 0
        self.available -= count
        while count:
            chunk, first = self._chunks[0][0], self._used
            size = len(chunk.elements)
            last = min(size, first + count)
            windows.append(chunk.elements if last - first == size else window(chunk.elements, first, last))
            stretches.append((chunk.positions, first, last - first))
            nbytes += chunk.nbytes * (last - first) // size + 1
            count -= last - first
            self._used = last
            if last == size:
                self._drop()
        return TakenElements(windows, Joined(tuple(stretches)), nbytes)

    def _drop(self) -> None:
        self._passed = Joined(((self._pop().positions, self._used, 0),))
        self._used = 0


@asynccontextmanager
async def run_inputs(
    chains: Sequence[Chain], positions: Sequence[Position | None], within: RunContext, arrived: Signal
) -> AsyncGenerator[list[InputBuffer]]:
    """Runs chains side by side, each with an equal part of the budget, until the block is left.

    Args:
        chains: What to run.
        positions: Where each goes on; None for its start.
        within: What they run within.
        arrived: Told when something arrives in any of them.
    """
    async with background() as tasks:
        buffers = []
        for number, (chain, position) in enumerate(zip(chains, positions, strict=True)):
            limit, feeding = within.part(len(chains)).apart(number).take(AHEAD)
            buffers.append(InputBuffer(limit, arrived, position))
            tasks.start_soon(fill, buffers[-1], feeding.chunks(chain, position, goes_on=True))
        yield buffers
