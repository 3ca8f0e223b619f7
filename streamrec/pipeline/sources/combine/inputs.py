"""Input buffers: chains that run side by side, each in a task of its own, and what has arrived of each.

Rules:
- An input buffer holds as many bytes as its limit allows, but always one chunk. Its task waits there; the others go on.
- What has arrived can be looked at before it is taken: so whoever joins buffers decides without awaiting.
- An error that ended a chain waits behind the elements that came before it, and is raised at its turn, once.
- An element that failed stands among the others: those behind it are not available before it was taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import anyio

from streamrec.pipeline.elements.chunk import FAILURE_BYTES, Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Joined, Position, Positions
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain, RunContext
from streamrec.pipeline.engine.queue import background, fill
from streamrec.tfrecord import Frames

__all__ = ["AHEAD", "InputBuffer", "Signal", "TakenElements", "run_inputs"]

AHEAD = Share(4)
"""A chain runs ahead of those beside it by this part of its part of the budget."""


class Signal:
    """Says again and again that something happened, to the tasks of one loop that wait for it."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def notify(self) -> None:
        """Wakes all that wait."""
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        """Waits for the next `notify`."""
        await self._event.wait()


@dataclass(frozen=True, slots=True)
class FailurePositions(Positions):
    """The places before and behind an element that failed.

    Args:
        before: The place before it.
        behind: Gives the place behind it; None where nobody asks.
    """

    before: Joined
    behind: Positions | None = None

    def at(self, index: int) -> Position:
        if index and self.behind is not None:
            return self.behind.at(0)
        return self.before.at(0)


class TakenElements(NamedTuple):
    """What was taken of an input buffer.

    Attributes:
        windows: The elements, as windows of the chunks that they lie in.
        places: Where the buffer stood, and the places between them.
        nbytes: About how many bytes they keep alive.
    """

    windows: list[Any]
    places: Joined
    nbytes: int


class InputBuffer:
    """What has arrived of one chain, and was not taken.

    Args:
        limit: How many bytes it should hold.
        arrived: Told when there is more, or nothing more will be.
        start: Where the chain begins; None for its start.

    Attributes:
        limit: How many bytes it should hold.
        held: How many it holds.
        available: Elements that have arrived and were not taken, up to the first that failed.
        ended: Nothing more arrives.
        error: What ended it, or None; it belongs behind all that arrived.
        failures: How many elements that failed have arrived and were not taken.
    """

    def __init__(self, limit: int, arrived: Signal, start: Position | None = None) -> None:
        self.limit = limit
        self.held = 0
        self.available = 0
        self.ended = False
        self.error: Exception | None = None
        self.failures = 0
        self._arrived = arrived
        self._room = Signal()
        self._chunks: deque[Chunk] = deque()
        self._weights: deque[int] = deque()
        self._used = 0
        self._passed = self._last = Joined((), start)

    async def put(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk; waits while there is no room for it."""
        if not len(chunk.elements) and chunk.error is None:
            return
        while self._chunks and self.held + weight > self.limit:
            await self._room.wait()
        if chunk.error is not None:
            self.fail(chunk.error, chunk.positions)
            return
        self._add(chunk, weight)
        if not self.failures:
            self.available += len(chunk.elements)

    def fail(self, error: Exception, behind: Positions | None = None) -> None:
        """Adds an element that failed, and the place behind it."""
        self._add(Chunk((None,), FailurePositions(self._last, behind), FAILURE_BYTES, error), FAILURE_BYTES)
        self.failures += 1

    def _add(self, chunk: Chunk, weight: int) -> None:
        self._chunks.append(chunk)
        self._weights.append(weight)
        self._last = Joined(((chunk.positions, len(chunk.elements), 0),))
        self.held += weight
        self._arrived.notify()

    def end(self, error: Exception | None) -> None:
        """Nothing more comes, because of an error or not."""
        self.ended, self.error = True, error
        self._arrived.notify()

    async def more(self) -> bool:
        """Waits until elements are there, or one that failed; False at the end. An error that ended them is raised."""
        while not self._chunks and not self.ended:
            await self._arrived.wait()
        if not self._chunks:
            self.check()
        return bool(self._chunks)

    def check(self) -> None:
        """Raises the error that ended the chain, once."""
        error, self.error = self.error, None
        if error is not None:
            raise error

    @property
    def exhausted(self) -> bool:
        """Whether all was taken, and nothing more comes."""
        return self.ended and not self._chunks

    @property
    def failed(self) -> bool:
        """Whether the next element is one that failed: `take_failure` takes it."""
        return bool(self._chunks) and self._chunks[0].error is not None

    def take_failure(self) -> Exception:
        """The error of the next element, which failed; it counts as taken."""
        error = self._chunks[0].error
        assert error is not None
        self._used = 1
        self._drop()
        self.failures -= 1
        sound = takewhile(lambda chunk: chunk.error is None, self._chunks)
        self.available = sum(len(chunk.elements) for chunk in sound)
        return error

    @property
    def first(self) -> int:
        """How many elements lie in the first chunk, and can be had as they lie."""
        return len(self._chunks[0].elements) - self._used if self._chunks else 0

    @property
    def typical_bytes(self) -> int:
        """About how large an element is, in bytes."""
        if not self._chunks:
            return 1
        chunk = self._chunks[0]
        nbytes = abs(chunk.elements.extent) if isinstance(chunk.elements, Frames) else chunk.nbytes
        return nbytes // len(chunk.elements) + 1

    def mark(self) -> Joined:
        """Where the buffer stands."""
        return Joined(((self._chunks[0].positions, self._used, 0),)) if self._chunks else self._passed

    def peek(self, most: int) -> list[Any]:
        """The next elements, `most` of them at the most, as windows; they are not taken."""
        windows = []
        first = self._used
        for chunk in self._chunks:
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
            chunk, first = self._chunks[0], self._used
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
        """The first chunk is used up."""
        chunk = self._chunks.popleft()
        self._passed = Joined(((chunk.positions, self._used, 0),))
        self._used = 0
        self.held -= self._weights.popleft()
        self._room.notify()


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
    shares = [within.part(len(chains)).apart(number).take(AHEAD) for number in range(len(chains))]
    async with background() as tasks:
        buffers = [
            InputBuffer(limit, arrived, position) for (limit, _), position in zip(shares, positions, strict=True)
        ]
        for buffer, (_, feeding), chain, position in zip(buffers, shares, chains, positions, strict=True):
            tasks.start_soon(fill, buffer, feeding.chunks(chain, position, goes_on=True))
        yield buffers
