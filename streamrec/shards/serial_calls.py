"""Serial: async calls of several tasks, one after the other, in the order in which they were made.

Rules:
- A caller that is cancelled before its call has begun takes the call with it. A call that has begun goes on to its end
  without its caller: no half of it is lost. The next caller waits for it.
- An error of such a call is raised by the next call, so that the failure is not missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from streamrec.errors import ClosedError

__all__ = ["Serial"]

T = TypeVar("T")


class Serial:
    """Calls that take turns; for one event loop.

    Args:
        closed: What the ClosedError says of a call that `last` cut short.
    """

    def __init__(self, closed: str) -> None:
        self._closed = closed
        self._turn = asyncio.Lock()
        self._callers = 0
        self._running: asyncio.Task[Any] | None = None

    @property
    def idle(self) -> bool:
        """Whether no call is under way and none waits."""
        return not self._callers and self._running is None

    async def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Awaits `function(*args)` when all calls before it are done.

        Raises:
            Exception: What it raises; or what a call before it raised whose caller was cancelled.
            ClosedError: `last` cut it short.
        """
        self._callers += 1
        try:
            async with self._turn:
                await self._left_behind()
                task = asyncio.get_running_loop().create_task(function(*args))
                self._running = task
                await asyncio.wait([task])  # a cancellation leaves the task as it is
                self._running = None
                return self._result(task)
        finally:
            self._callers -= 1

    async def last(self, function: Callable[[], Awaitable[None]]) -> None:
        """Cancels the call that is under way, waits for its end, and awaits `function()` in place of all others."""
        self._callers += 1
        try:
            task, self._running = self._running, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
                _ = task.cancelled() or task.exception()  # looked at, so that nothing is logged
            await function()
        finally:
            self._callers -= 1

    async def _left_behind(self) -> None:
        """Waits for a call whose caller is gone."""
        if self._running is not None:
            await asyncio.wait([self._running])
            done, self._running = self._running, None
            if done is not None:
                self._result(done)

    def _result(self, task: asyncio.Task[T]) -> T:
        if task.cancelled():
            raise ClosedError(self._closed)
        result: T = task.result()
        return result
