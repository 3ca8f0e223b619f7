"""Work that must come to its end, whoever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["finish"]

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[Any]] | None = None) -> T:
    """Runs something to its end, also when the caller is cancelled meanwhile; the cancellation follows then.

    Both kinds of cancellation are held back: that of anyio's scopes and that of `asyncio.Task.cancel`.

    Args:
        work: What must not be cut off half way.
        undo: Called with its result where the caller was cancelled and will never see it (an open file, say).
    """
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        failed = task.cancelled() or task.exception()  # looked at, so that nothing is logged
        if undo is not None and not failed:
            with anyio.CancelScope(shield=True):
                await undo(task.result())
        raise cancelled
    return task.result()
