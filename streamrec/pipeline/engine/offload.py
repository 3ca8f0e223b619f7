"""Offloading: the user's functions run in a worker thread, and stop between two calls when the run is cancelled.

A thread cannot be interrupted, and a closed run must leave none running. So the task that awaits it tells it to
halt, and waits until the call that is under way returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from time import thread_time
from typing import Final, TypeVar

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.stage import Halt, Offload, collect, halting
from streamrec.pipeline.engine.threads import Threads

__all__ = ["Offloader", "run_in_thread", "through"]

HOP_SECONDS: Final = 0.5e-3
"""Work that takes less is done on the event loop: to a thread and back takes a quarter of that, and four changes of the
interpreter's lock, for each of which a training loop on the main thread may have to wait."""

T = TypeVar("T")


async def run_in_thread(threads: Threads, work: Callable[[], T]) -> T:
    """What `work` returns, from a thread; where this task is cancelled, the thread is done when that shows."""
    halt = Halt()

    def run() -> T:
        halting.set(halt)  # in the thread's own copy of the context
        return work()

    return await threads.run(run, halt.ask)


async def through(threads: Threads, outputs: Iterator[Chunk], offload: bool) -> tuple[list[Chunk], Exception | None]:
    """All outputs and the error that ended them, worked out in a thread or at once."""
    return await run_in_thread(threads, partial(collect, outputs)) if offload else collect(outputs)


class Offloader:
    """Where the work of a chain's stages is done, chunk after chunk.

    Args:
        wanted: What the stages ask for. LONG goes by the processor time that the last chunk took for each byte; the
            first one goes to a thread.
        threads: The run's.

    Attributes:
        wanted: Whether any of it may be done in a thread.
    """

    def __init__(self, wanted: Iterable[Offload], threads: Threads) -> None:
        self._threads = threads
        self._offload = max(wanted, default=Offload.NEVER)
        self.wanted = self._offload is not Offload.NEVER
        self._seconds_a_byte = inf

    async def through(self, outputs: Iterator[Chunk], nbytes: int = 0) -> tuple[list[Chunk], Exception | None]:
        """All outputs of an input of `nbytes` bytes, 0 for an unknown number, and the error that ended them."""
        if self._offload is not Offload.LONG or not nbytes:
            return await run_in_thread(self._threads, partial(collect, outputs)) if self.wanted else collect(outputs)
        timed = partial(self._run_timed, outputs, nbytes)
        return await run_in_thread(self._threads, timed) if self._seconds_a_byte * nbytes > HOP_SECONDS else timed()

    def _run_timed(self, outputs: Iterator[Chunk], nbytes: int) -> tuple[list[Chunk], Exception | None]:
        began = thread_time()
        try:
            return collect(outputs)
        finally:
            self._seconds_a_byte = (thread_time() - began) / nbytes
