"""Tasks: work that runs to its end whatever is cancelled, several calls at once, one renewal for all who need it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

import anyio

__all__ = [
    "CLEANUP_PATIENCE",
    "Renewal",
    "finish",
    "for_each",
    "in_thread",
    "patience_limit",
    "run_to_completion",
    "running_loop",
    "side_by_side",
]

T = TypeVar("T")

CLEANUP_PATIENCE: Final = 30.0
"""Seconds without progress that work may take on a store after an error or a cancellation. Not tuned."""

_limits: ContextVar[tuple[list[float], ...]] = ContextVar("streamrec_limits")
"""The patience of each `finish` around; a list of one number, because a cancellation makes it shorter."""


def running_loop() -> asyncio.AbstractEventLoop:
    """The loop of asyncio that runs here.

    Raises:
        RuntimeError: There is none; it says what works without one.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "streamrec's async functions need asyncio's event loop. Under Trio iterate a Dataset (`async for`), or "
            "call in a thread what needs no loop (TFRecordWriter, RecordSource, verify_sync): trio.to_thread.run_sync"
        ) from None


def patience_limit() -> float:
    """Seconds without progress after which requests of this task are given up, whatever their policy allows."""
    return min((limit[0] for limit in _limits.get(())), default=math.inf)


async def finish(
    work: Coroutine[Any, Any, T] | asyncio.Future[T],
    undo: Callable[[T], Awaitable[Any]] | None = None,
    *,
    patience: float | None = None,
) -> T:
    """Runs something to its end, also when the caller is cancelled meanwhile; the cancellation follows then.

    Both kinds of cancellation are held back: that of anyio's scopes and that of `asyncio.Task.cancel`.

    Args:
        work: What must not be cut off half way.
        undo: Called with its result where the caller was cancelled and will never see it (an open file, say).
        patience: Seconds without progress after which its requests are given up; after a cancellation,
            CLEANUP_PATIENCE. None: as their policy says.
    """
    limit = [math.inf if patience is None else patience]
    if patience is None:
        task = asyncio.ensure_future(work)
    else:
        context = copy_context()
        context.run(_limits.set, (*_limits.get(()), limit))
        task = context.run(asyncio.ensure_future, work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
                limit[0] = min(limit[0], CLEANUP_PATIENCE)
    if cancelled is not None:
        failed = task.cancelled() or task.exception()  # looked at, so that nothing is logged
        if undo is not None and not failed:
            with anyio.CancelScope(shield=True):
                await undo(task.result())
        raise cancelled
    return task.result()


async def in_thread(
    function: Callable[[], T],
    undo: Callable[[T], Any],
    run: Callable[[Callable[[], T]], Awaitable[T]] = asyncio.to_thread,
) -> T:
    """Calls a function in a thread. Its result is undone there if its caller was cancelled.

    Args:
        function: What is called; it gives something that must be freed again (an open file, say).
        undo: Frees it.
        run: What calls the function in a thread; by default one of the loop's pool.
    """
    lock, left = threading.Lock(), False
    made: list[T] = []

    def call() -> T:
        result = function()
        with lock:
            made.append(result)
            if left:
                undo(made.pop())
        return result

    try:
        return await run(call)
    except asyncio.CancelledError:
        with lock:
            left = True
            if made:
                undo(made.pop())
        raise


async def run_to_completion(function: Callable[[], T]) -> T:
    """Calls a function in a thread of the loop's pool, also where the caller is cancelled before it begins."""
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, function))


async def for_each(function: Callable[[T], Awaitable[object]], items: Collection[T], parallel: int) -> None:
    """Awaits a function for each item, up to `parallel` at a time; the first error ends all, and is raised as it is."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await function(item)

    await side_by_side(*[work] * min(parallel, len(items)))


async def side_by_side(*looks: Callable[[], Awaitable[None]]) -> None:
    """Runs them side by side; the first error ends all, and is raised as it is."""
    errors: list[Exception] = []

    async def run(look: Callable[[], Awaitable[None]]) -> None:
        try:
            await look()
        except Exception as error:  # a group of exceptions would hide it
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for look in looks:
            group.start_soon(run, look)
    if errors:
        raise errors[0]


class Renewal:
    """One store's credentials.

    Args:
        renew: Gets new ones. It must not block the loop.

    Attributes:
        generation: How often they were renewed; a request notes it when it is sent.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self.generation = 0
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    async def since(self, generation: int) -> None:
        """Returns when the credentials are newer than those of a generation.

        Raises:
            Exception: What `renew` raised.
        """
        if generation == self.generation:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
                self._task.add_done_callback(self._on_end)
            await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Waits for nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        await self._renew()
        self.generation += 1

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # looked at, so that nothing is logged where all waiters are gone
