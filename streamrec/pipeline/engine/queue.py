"""Queues between two tasks of one event loop, bounded in bytes, and the tasks that fill them."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from streamrec.pipeline.elements.chunk import Chunk

__all__ = ["ByteQueue", "background", "fill", "run_ahead"]


@asynccontextmanager
async def background() -> AsyncGenerator[TaskGroup]:
    """A task group whose tasks are cancelled, and gone, when the block is left by any way.

    A plain task group wraps what leaves its block into an exception group, even the GeneratorExit of a
    generator that is closed; here it leaves as it is. The tasks themselves must not raise.
    """
    leaving: BaseException | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except (Exception, GeneratorExit) as error:
            leaving = error
        tasks.cancel_scope.cancel()
    if leaving is not None:
        raise leaving


class ChunkSink(Protocol):
    """What can be filled with chunks: a queue, or an input buffer."""

    async def put(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk; waits while there is no room for it."""

    def end(self, error: Exception | None) -> None:
        """Nothing more comes, because of an error or not."""


class ByteQueue:
    """A queue between two tasks of one loop, bounded in bytes; one chunk always fits.

    Attributes:
        limit: Bytes that it may hold.
        held: Bytes that wait in it.
        refused: How often a chunk had to wait, because the queue was full.
        most_elements: Elements that it may hold.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.refused = 0
        self.most_elements = sys.maxsize
        self._count = 0
        self._chunks: deque[tuple[Chunk, int]] = deque()
        self._ended = False
        self._error: Exception | None = None
        self._closed: Exception | None = None
        self._changed = anyio.Event()

    async def put(self, chunk: Chunk, weight: int) -> None:
        """Adds a chunk; waits while the queue is full."""
        count = len(chunk.elements)
        if not self._fits(weight, count):
            self.refused += 1
        while not self._fits(weight, count):
            await self._changed.wait()
        self._chunks.append((chunk, weight))
        self.held += weight
        self._count += count
        self._wake()

    def end(self, error: Exception | None) -> None:
        """Nothing more comes, because of an error or not."""
        self._ended, self._error = True, error
        self._wake()

    def close(self, error: Exception) -> None:
        """Drops what is there: from now on `get` raises this error."""
        self._chunks.clear()
        self.held = self._count = 0
        self._closed = error
        self.end(None)

    async def get(self) -> Chunk | None:
        """The next chunk; None at the end. An error that ended the queue is raised once, in its place."""
        while self.empty:
            await self._changed.wait()
        if not self._chunks:
            error, self._error = self._error, None
            if error := error or self._closed:
                raise error
            return None
        chunk, weight = self._chunks.popleft()
        self.held -= weight
        self._count -= len(chunk.elements)
        self._wake()
        return chunk

    @property
    def empty(self) -> bool:
        """Whether `get` would wait."""
        return not self._chunks and not self._ended

    def resize(self, limit: int) -> None:
        """Bounds it anew; what is there stays."""
        if limit != self.limit:
            self.limit = limit
            self._wake()

    def _fits(self, weight: int, count: int) -> bool:
        fits = self.held + weight <= self.limit and self._count + count <= self.most_elements
        return fits or not self._chunks

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


async def run_ahead(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """The same chunks, in a task of their own: the next one is made while a thread works on the last one."""
    queue = ByteQueue(1)  # one chunk, however large
    async with background() as tasks:
        tasks.start_soon(fill, queue, chunks)
        while (chunk := await queue.get()) is not None:
            yield chunk


async def fill(queue: ChunkSink, chunks: AsyncGenerator[Chunk]) -> None:
    """Puts all chunks into a queue; an error goes through it, behind the chunks that came before."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                await queue.put(chunk, chunk.nbytes)
    except Exception as error:
        queue.end(error)
    else:
        queue.end(None)
