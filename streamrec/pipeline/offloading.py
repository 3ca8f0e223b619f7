"""Offloading: the user's functions run in a worker thread, and stop between two calls when the run is cancelled.

A thread cannot be broken off, and a run that is left must leave none behind. So whoever awaits it tells it to halt,
and waits until the call that is under way returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import anyio

from streamrec.pipeline.chunk import Chunk
from streamrec.pipeline.pushing import collect
from streamrec.pipeline.stages.stage import Halt, halting

__all__ = ["offloaded", "through"]

T = TypeVar("T")


async def offloaded(work: Callable[[], T]) -> T:
    """What `work` returns, from a worker thread; where this task is cancelled, the thread is done when that shows."""
    halt, ended = Halt(), asyncio.Event()
    tell = partial(asyncio.get_running_loop().call_soon_threadsafe, ended.set)
    try:
        return await anyio.to_thread.run_sync(working, halt, work, tell, abandon_on_cancel=True)
    except asyncio.CancelledError:
        halt.asked = True
        if halt.begun and not halt.ended:
            with anyio.CancelScope(shield=True):
                await ended.wait()
        raise


async def through(outputs: Iterator[Chunk], offload: bool) -> tuple[list[Chunk], Exception | None]:
    """All outputs and the error that ended them, worked out in a thread or at once."""
    return await offloaded(partial(collect, outputs)) if offload else collect(outputs)


def working(halt: Halt, work: Callable[[], T], tell: Callable[[], object]) -> T:
    """The thread's part. Each side writes its own step before it reads the other's, so neither misses it."""
    halt.begun = True
    halting.set(halt)  # in the thread's own copy of the context
    try:
        if halt.asked:
            raise asyncio.CancelledError  # nobody waits for the result
        return work()
    finally:
        halt.ended = True
        if halt.asked:
            tell()
