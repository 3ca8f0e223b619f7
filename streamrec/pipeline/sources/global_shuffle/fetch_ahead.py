"""Fetching ahead: requests in the order in which their results are needed, many under way at a time.

Rules:
- Results are given in order; a request that fails fails in its turn, behind all that came before.
- What is under way, what waits and what the taker holds stays within a number of bytes; but what is needed next is
  asked for even where it does not fit, or nothing would move.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
from anyio.abc import TaskGroup

from streamrec.tfrecord import Frames

__all__ = ["FetchAhead"]

K = TypeVar("K")


@dataclass(slots=True, eq=False)
class Request(Generic[K]):
    """One request, and what came of it."""

    key: K
    nbytes: int
    done: anyio.Event = field(default_factory=anyio.Event)
    frames: Frames | None = None
    error: Exception | None = None


class FetchAhead(Generic[K]):
    """Requests under way.

    Args:
        tasks: Where they run.
        fetch: Makes one.
        wanted: What is needed, in order: a key of the caller's, and about how many bytes it is.
        limit: How many bytes may be held.
        parallel: How many requests may be under way.
    """

    def __init__(
        self,
        tasks: TaskGroup,
        fetch: Callable[[K], Awaitable[Frames]],
        wanted: Iterator[tuple[K, int]],
        limit: int,
        parallel: int,
    ) -> None:
        self._tasks = tasks
        self._fetch = fetch
        self._wanted = wanted
        self._limit = limit
        self._parallel = parallel
        self._next: tuple[K, int] | None = None
        self._line: deque[Request[K]] = deque()
        self._flying = 0
        self._held = 0

    async def get(self) -> tuple[K, Frames] | None:
        """The next result; None at the end.

        Raises:
            Exception: What its request raised.
        """
        self._start()
        if not self._line:
            return None
        request = self._line.popleft()
        await request.done.wait()
        self._start()
        if request.frames is None:
            assert request.error is not None
            raise request.error
        return request.key, request.frames

    def release(self, frames: Frames) -> None:
        """The taker does not hold these any more."""
        self._held -= weight_of(frames)
        self._start()

    def _start(self) -> None:
        """Begins as many requests as there is room for."""
        while self._flying < self._parallel:
            self._next = self._next or next(self._wanted, None)
            if self._next is None or (self._line and self._held + self._next[1] > self._limit):
                return
            request = Request(*self._next)
            self._next = None
            self._held += request.nbytes
            self._flying += 1
            self._line.append(request)
            self._tasks.start_soon(self._run, request)

    async def _run(self, request: Request[K]) -> None:
        try:
            request.frames = await self._fetch(request.key)
            self._held += weight_of(request.frames) - request.nbytes
        except Exception as error:
            request.error = error
        self._flying -= 1
        request.done.set()
        self._start()


def weight_of(frames: Frames) -> int:
    """Bytes that records keep alive."""
    return frames.pinned
