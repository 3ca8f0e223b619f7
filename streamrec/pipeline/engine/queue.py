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

    An `error` that ended it is raised after all chunks. `refused` counts how often a chunk had to
    wait.
    """

    ended = False
    error: Exception | None = None
    refused = 0
    _arrived: Signal
    _room: Signal

    def _fits(self, chunk: Chunk, weight: int) -> bool:
        raise NotImplementedError

    def _add(self, chunk: Chunk, weight: int) -> None:
        raise NotImplementedError

    async def put(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk; waits while it does not fit."""
        if not self._fits(chunk, weight):
            self.refused += 1
        while not self._fits(chunk, weight):
            await self._room.wait()
        self._add(chunk, weight)
        self._arrived.notify()

    def end(self, error: Exception | None) -> None:
        """Called after the last chunk, with the error that ended them or None."""
        self.ended = True
        self.error = error
        self._arrived.notify()


class ByteQueue(Fillable):
    """A queue between two tasks of one loop, bounded by `limit` bytes and `most_elements`.

    Contract: chunks come out one by one, in the order of `put`. `put` waits until a chunk fits; one
    chunk always does. The error that ended the queue comes after all chunks, once. The consumer may
    `close` it at any time, which lets a waiting `put` go on.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.most_elements = sys.maxsize
        self._count = 0
        self._chunks: deque[tuple[Chunk, int]] = deque()
        self._closed: Exception | None = None
        self._arrived = Signal()
        self._room = Signal()

    def close(self, error: Exception) -> None:
        """Drops all chunks; from now on `get` raises this error."""
        self._chunks.clear()
        self.held = self._count = 0
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
            self.held -= weight
            self._count -= len(chunk.elements)
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
            self.limit = limit
            self._room.notify()

    def _fits(self, chunk: Chunk, weight: int) -> bool:
        count = self._count + len(chunk.elements)
        return not self._chunks or (
            self.held + weight <= self.limit and count <= self.most_elements
        )

    def _add(self, chunk: Chunk, weight: int) -> None:
        self._chunks.append((chunk, weight))
        self.held += weight
        self._count += len(chunk.elements)


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
