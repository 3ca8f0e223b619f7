"""Calls of several tasks that take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from streamrec.errors import ClosedError


def closed_error(path: str) -> ClosedError:
    """Returns the error of a call to a writer that was closed."""
    return ClosedError(f"{path}: this writer was closed: make a new one to write more")


class Turns:
    """Runs calls one after another, in their order, each in a task of its own.

    A caller that is cancelled before its call has begun cancels the call. A call that has begun
    continues without its caller, so that it is never half done: the next call waits for it, and
    raises its error.

    Args:
        path: The object's URL, for errors.

    Attributes:
        are_taken: Whether a call runs or waits, so that another one must wait for its turn. Not a
            property, because a writer asks for each record.
    """

    def __init__(self, path: str) -> None:
        self.are_taken = False
        self._path = path
        self._turn = asyncio.Lock()  # serves in the order of arrival
        self._callers = 0
        self._running: asyncio.Task[None] | None = None

    async def run(
        self,
        function: Callable[..., Coroutine[Any, Any, None]],
        *args: Any,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Awaits `function(*args)` when all calls before it are done.

        `check` is called just before; its error is that of the call.
        """
        self._callers += 1
        self.are_taken = True
        try:
            async with self._turn:
                await self._finish()  # an earlier call whose caller was cancelled
                if check is not None:
                    check()
                self._running = asyncio.get_running_loop().create_task(function(*args))
                await self._finish()
        finally:
            self._callers -= 1
            self._note()

    async def stop(self) -> None:
        """Cancels the call that runs, and waits for its end; its caller gets a ClosedError."""
        task = self._running
        self._running = None
        self._note()
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # marks it as retrieved, so that it is not logged

    def _note(self) -> None:
        """Notes whether turns are taken, after a call has begun or ended."""
        self.are_taken = self._callers > 0 or self._running is not None

    async def _finish(self) -> None:
        """Waits for the task of a call, if there is one, and raises its error."""
        task = self._running
        if task is None:
            return
        await asyncio.wait([task])  # a cancellation leaves the task as it is
        self._running = None
        if task.cancelled():
            raise closed_error(self._path)
        task.result()
