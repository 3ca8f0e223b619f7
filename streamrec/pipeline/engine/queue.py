"""Queues between two tasks of one event loop, bounded in bytes; and tasks that fill them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing

import anyio

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.storage.tasks import background


class Signal:
    """An event that can be notified repeatedly, for tasks of one loop."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Wakes all waiting tasks."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Waits for the next `notify`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


class Fillable:
    """What a task fills with chunks, as long as they fit; base of ByteQueue and InputBuffer.

    An `error` that ended it is raised after all chunks.
    """

    ended = False
    error: Exception | None = None
    _arrived: Signal
    _room: Signal

    def _fits(self, chunk: Chunk, weight: int) -> bool:
        raise NotImplementedError

    def _add(self, chunk: Chunk, weight: int) -> None:
        raise NotImplementedError

    async def put(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk; waits while it does not fit."""
        while not self._fits(chunk, weight):
            await self._room.wait()
        self._add(chunk, weight)
        self._arrived.notify()

    def end(self, error: Exception | None) -> None:
        """Called after the last chunk, with the error that ended them or None."""
        self.ended = True
        self.error = error
        self._arrived.notify()


class Capacity:
    """How many bytes and elements a queue may hold, and holds.

    >>> capacity = Capacity(limit=100, most_elements=3)
    >>> capacity.fits(200, 5)  # one chunk always does
    True
    >>> capacity.add(60, 2)
    >>> capacity.fits(40, 1), capacity.fits(41, 1), capacity.fits(1, 2)
    (True, False, False)
    """

    __slots__ = ("_chunks", "_elements", "held", "limit", "most_elements")

    def __init__(self, limit: int, most_elements: int = sys.maxsize) -> None:
        self.limit = limit
        self.most_elements = most_elements
        self.clear()

    def fits(self, nbytes: int, elements: int) -> bool:
        """Whether a chunk may be added now."""
        return not self._chunks or (
            self.held + nbytes <= self.limit and self._elements + elements <= self.most_elements
        )

    def add(self, nbytes: int, elements: int) -> None:
        """Counts a chunk that was added."""
        self._chunks += 1
        self.held += nbytes
        self._elements += elements

    def remove(self, nbytes: int, elements: int) -> None:
        """Counts a chunk that was taken."""
        self._chunks -= 1
        self.held -= nbytes
        self._elements -= elements

    def clear(self) -> None:
        """Counts nothing any more."""
        self._chunks = 0
        self.held = 0
        self._elements = 0


class ByteQueue(Fillable):
    """A queue between two tasks of one loop, bounded by `limit` bytes and `most_elements`.

    `refused` counts how often a chunk had to wait.

    Contract of this queue: chunks come out one by one, in the order of `put`. `put` waits until a
    chunk fits; one chunk always does. The error that ended the queue comes after all chunks, once.
    The consumer may `close` it at any time, which lets a waiting `put` go on.
    """

    def __init__(self, limit: int, most_elements: int = sys.maxsize) -> None:
        self.refused = 0
        self._capacity = Capacity(limit, most_elements)
        self._chunks: deque[tuple[Chunk, int]] = deque()
        self._closed: Exception | None = None
        self._arrived = Signal()
        self._room = Signal()

    @property
    def held(self) -> int:
        """Bytes in the queue."""
        return self._capacity.held

    @property
    def limit(self) -> int:
        """Bytes that it may hold."""
        return self._capacity.limit

    def close(self, error: Exception) -> None:
        """Drops all chunks; from now on `get` raises this error."""
        self._chunks.clear()
        self._capacity.clear()
        self._closed = error
        self.end(None)
        self._room.notify()

    async def get(self) -> Chunk | None:
        """Waits for the next chunk; None at the end.

        Raises the error that ended the queue, once.
        """
        while self.empty:
            await self._arrived.wait()
        if self._chunks:
            chunk, weight = self._chunks.popleft()
            self._capacity.remove(weight, len(chunk.elements))
            self._room.notify()
            return chunk
        error = self.error or self._closed
        self.error = None
        if error is not None:
            raise error
        return None

    @property
    def empty(self) -> bool:
        """Whether `get` would wait."""
        return not self._chunks and not self.ended

    def resize(self, limit: int) -> None:
        """Sets another limit; chunks in the queue stay."""
        if limit != self.limit:
            self._capacity.limit = limit
            self._room.notify()

    async def put(self, chunk: Chunk, weight: int) -> None:
        self.refused += not self._fits(chunk, weight)
        await super().put(chunk, weight)

    def _fits(self, chunk: Chunk, weight: int) -> bool:
        return self._capacity.fits(weight, len(chunk.elements))

    def _add(self, chunk: Chunk, weight: int) -> None:
        self._chunks.append((chunk, weight))
        self._capacity.add(weight, len(chunk.elements))


async def run_ahead(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """Makes chunks in a task of their own.

    So the next one is made while a thread works on the last one.
    """
    queue = ByteQueue(1)  # one chunk, however large
    async with background() as tasks:
        tasks.start_soon(fill, queue, chunks)
        while (chunk := await queue.get()) is not None:
            yield chunk


async def fill(queue: Fillable, chunks: AsyncGenerator[Chunk]) -> None:
    """Puts all chunks into a queue; an error ends the queue."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                await queue.put(chunk, chunk.nbytes)
    except Exception as error:
        queue.end(error)
    else:
        queue.end(None)
