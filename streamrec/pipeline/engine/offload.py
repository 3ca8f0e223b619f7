"""Offloading: the user's functions run in a worker thread, and stop between two calls when the run is cancelled.

A thread cannot be interrupted, and a closed run must leave none running. So the task that awaits a thread asks it to
halt, and waits until the current call returns.
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

HOP_SECONDS: Final = 0.5e-3
"""Shorter work runs on the event loop. A hop to a thread and back takes a quarter of this time, and four changes of the
interpreter's lock, for each of which a training loop on the main thread may have to wait."""

T = TypeVar("T")


async def run_in_thread(threads: Threads, work: Callable[[], T]) -> T:
    """Runs `work` in a thread and returns its result; if this task is cancelled, the thread ends first."""
    halt = Halt()

    def run() -> T:
        halting.set(halt)  # in the thread's own copy of the context
        return work()

    return await threads.run(run, halt.ask)


async def through(threads: Threads, outputs: Iterator[Chunk], offload: bool) -> tuple[list[Chunk], Exception | None]:
    """Computes all outputs, in a thread or at once; returns them with the error that ended them."""
    return await run_in_thread(threads, partial(collect, outputs)) if offload else collect(outputs)


class Offloader:
    """Runs a chain's stages in a thread or on the loop, decided for each chunk by what they ask for.

    LONG depends on the processor time for each byte of the last chunk; the first chunk goes to a thread.
    """

    def __init__(self, wanted: Iterable[Offload], threads: Threads) -> None:
        self._threads = threads
        self._offload = max(wanted, default=Offload.NEVER)
        self.wanted = self._offload is not Offload.NEVER
        self._seconds_a_byte = inf

    async def through(self, outputs: Iterator[Chunk], nbytes: int = 0) -> tuple[list[Chunk], Exception | None]:
        """Computes all outputs of `nbytes` of input (0 if unknown); returns them with the error that ended them."""
        if self._offload is not Offload.LONG or not nbytes:
            return await through(self._threads, outputs, self.wanted)
        timed = partial(self._run_timed, outputs, nbytes)
        return await run_in_thread(self._threads, timed) if self._seconds_a_byte * nbytes > HOP_SECONDS else timed()

    def _run_timed(self, outputs: Iterator[Chunk], nbytes: int) -> tuple[list[Chunk], Exception | None]:
        began = thread_time()
        try:
            return collect(outputs)
        finally:
            self._seconds_a_byte = (thread_time() - began) / nbytes
