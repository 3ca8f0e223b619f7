"""Tasks beside a block of code, inside async generators."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup

__all__ = ["background"]


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
