"""Tasks: work that a cancellation does not interrupt, concurrent calls, and shared renewal of
credentials.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")

CLEANUP_PATIENCE: Final = 30.0
"""Seconds without progress that cleaning up a store may take after an error or a cancellation.

Not tuned.
"""

_limits: ContextVar[tuple[list[float], ...]] = ContextVar("streamrec_limits")
"""The patience of each enclosing `finish`.

Each is a list of one number, because a cancellation shortens it.
"""


def running_loop() -> asyncio.AbstractEventLoop:
    """Returns asyncio's running loop.

    Without one, raises a RuntimeError that says what works without a loop.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "streamrec's async functions need asyncio's event loop. Under Trio iterate a Dataset "
            "(`async for`), or call in a thread what needs no loop (TFRecordWriter, "
            "RecordSource, verify_sync): trio.to_thread.run_sync"
        ) from None


def patience_limit() -> float:
    """Returns the seconds without progress after which requests of this task give up, regardless of
    their policy.
    """
    return min((limit[0] for limit in _limits.get(())), default=math.inf)


async def finish(
    work: Coroutine[Any, Any, T] | asyncio.Future[T],
    undo: Callable[[T], Awaitable[Any]] | None = None,
    *,
    patience: float | None = None,
) -> T:
    """Runs work to its end, even if the caller is cancelled meanwhile.

    The cancellation is raised afterwards.

    Both kinds of cancellation are delayed: that of anyio's scopes and that of
    `asyncio.Task.cancel`. `undo` frees the result (an open file, say) if a cancelled caller does
    not receive it. Its requests give up after `patience` seconds without progress, at most
    CLEANUP_PATIENCE after a cancellation; None: as their policy says.
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
        failed = task.cancelled() or task.exception()  # retrieved, so that asyncio does not log it
        if undo is not None and not failed:
            with anyio.CancelScope(shield=True):
                await undo(task.result())
        raise cancelled
    return task.result()


async def call_in_thread(
    function: Callable[[], T],
    undo: Callable[[T], Any],
    run: Callable[[Callable[[], T]], Awaitable[T]] = asyncio.to_thread,
) -> T:
    """Calls a function in a thread with `run`, and frees its result (an open file, say) if the
    caller was cancelled.
    """
    lock = threading.Lock()
    abandoned = False
    results: list[T] = []

    # A thread cannot be cancelled: who comes second, the caller or the thread, frees the result.
    def call() -> T:
        result = function()
        with lock:
            results.append(result)
            if abandoned:
                undo(results.pop())
        return result

    try:
        return await run(call)
    except asyncio.CancelledError:
        with lock:
            abandoned = True
            if results:
                undo(results.pop())
        raise


async def run_to_completion(function: Callable[[], T]) -> T:
    """Calls a function in a thread of the loop's pool, even if the caller is cancelled before the
    call begins.
    """
    return await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, function))


async def for_each(
    function: Callable[[T], Awaitable[object]], items: Collection[T], parallel: int
) -> None:
    """Awaits a function for each item, up to `parallel` at a time.

    The first error cancels the rest and is raised.
    """
    remaining = iter(items)

    async def work() -> None:
        for item in remaining:
            await function(item)

    await run_concurrently(*[work] * min(parallel, len(items)))


async def run_concurrently(*functions: Callable[[], Awaitable[None]]) -> None:
    """Awaits all functions concurrently.

    The first error cancels the rest and is raised, not in an ExceptionGroup.
    """
    if len(functions) < 2:
        for function in functions:
            await function()
        return
    errors: list[Exception] = []

    async def run(function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except Exception as error:
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for function in functions:
            group.start_soon(run, function)
    if errors:
        raise errors[0]


@asynccontextmanager
async def background() -> AsyncGenerator[TaskGroup]:
    """A task group whose tasks are cancelled and have ended when the block is left in any way.

    A plain task group wraps exceptions into an exception group, even the GeneratorExit of a
    generator that is closed. This one raises them as they are, also SystemExit of a user's
    function. The tasks themselves raise nothing else.
    """
    leaving: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except (Exception, GeneratorExit) as error:
                leaving = error
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        leaving = group.exceptions[0]
    if leaving is not None:
        raise leaving


class Renewal:
    """The renewal of one store's credentials: concurrent requests share one renewal.

    `renew` fetches new credentials without blocking the loop. `generation` is how often they were
    renewed; each request records it when it is sent.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self.generation = 0
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    async def renew_after(self, generation: int) -> None:
        """Returns when the credentials are newer than those of a generation.

        Raises the error of `renew`.
        """
        if generation == self.generation:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
                self._task.add_done_callback(self._on_end)
            await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Cancels a renewal that is at work, and waits for its end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        await self._renew()
        self.generation += 1

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            # retrieved, so that asyncio does not log it if no caller waits any more
            task.exception()
