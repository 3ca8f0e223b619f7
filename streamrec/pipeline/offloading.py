"""Offloading: the user's functions run in a worker thread, and stop between two calls when the run is cancelled.

A thread cannot be broken off, and a run that is left must leave none behind. So whoever awaits it tells it to halt,
and waits until the call that is under way returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from time import thread_time
from typing import Final, TypeVar

import anyio

from streamrec.pipeline.chunk import Chunk
from streamrec.pipeline.pushing import collect
from streamrec.pipeline.stages.stage import Halt, Offload, halting

__all__ = ["Hops", "offloaded", "through"]

HOP_SECONDS: Final = 0.5e-3
"""Work that takes less is done on the event loop: to a thread and back takes a quarter of that, and four changes of the
interpreter's lock, for each of which a training loop on the main thread may have to wait."""

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


class Hops:
    """Where the work of a chain's stages is done, chunk after chunk.

    Args:
        wanted: What the stages ask for. LONG goes by the processor time that the last chunk took for each byte; the
            first one goes to a thread.
    """

    def __init__(self, wanted: Iterable[Offload]) -> None:
        self._offload = max(wanted, default=Offload.NEVER)
        self._seconds_a_byte = inf

    async def through(self, outputs: Iterator[Chunk], nbytes: int = 0) -> tuple[list[Chunk], Exception | None]:
        """All outputs of an input of so many bytes, 0 for an unknown number, and the error that ended them."""
        if self._offload is not Offload.LONG or not nbytes:
            return await through(outputs, self._offload is not Offload.NEVER)
        timed = partial(self._timed, outputs, nbytes)
        return await offloaded(timed) if self._seconds_a_byte * nbytes > HOP_SECONDS else timed()

    def _timed(self, outputs: Iterator[Chunk], nbytes: int) -> tuple[list[Chunk], Exception | None]:
        began = thread_time()
        try:
            return collect(outputs)
        finally:
            self._seconds_a_byte = (thread_time() - began) / nbytes


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
