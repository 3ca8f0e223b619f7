"""Several pieces of async work at the same time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

__all__ = ["side_by_side"]


async def side_by_side(*looks: Callable[[], Awaitable[None]]) -> None:
    """Runs them side by side; the first error ends all, and is raised as it is."""
    errors: list[Exception] = []

    async def run(look: Callable[[], Awaitable[None]]) -> None:
        try:
            await look()
        except Exception as error:  # a group of exceptions tells nobody anything
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for look in looks:
            group.start_soon(run, look)
    if errors:
        raise errors[0]
