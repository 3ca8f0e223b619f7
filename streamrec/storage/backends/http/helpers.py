"""Helpers: threads that decipher bodies beside the event loop's thread, where that one has more to do than it can.

One thread fetches, deciphers, frames and checks as long as it can: a hop to another one costs some 0.1 ms. Where it
would need more than `BUSY` of its time, helpers take bodies over, a read of up to a block each time. Deciphering holds
no interpreter lock, so they work at the same time. Who reads waits for them as for the network, so the order, the
budget and what errors do stay as they are.

- How busy a loop's thread is, is measured while it reads (`Load`): its processor time, and that of its helpers, which
  it would need if it were alone. On a machine whose processors are taken by others it is never busy: helpers would not
  get any.
- `MOST` are enough: deciphering is about two thirds of what a body costs, and the rest stays with the loop's thread.
- `STREAMREC_HELPERS` in the environment says how many there may be; 0 for none.
- They end with the process. A forked child has helpers of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

__all__ = ["HELPERS", "Helpers", "Load"]

MOST: Final = 3
WINDOW: Final = 0.1
BUSY: Final = 0.85
CALM: Final = 0.6


class Load:
    """How much of its time one thread would need if it had no helpers. Pure but for its clocks.

    Args:
        clock: Seconds that only grow.
        worked: Processor seconds of the thread.

    Examples:
        >>> now = iter([0.0, 0.05, 0.2, 0.4])
        >>> worked = iter([0.0, 0.19, 0.2])
        >>> load = Load(lambda: next(now), lambda: next(worked))
        >>> load.is_busy(), load.is_busy(), load.is_busy()
        (False, True, False)
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, worked: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._worked = clock, worked
        self._since, self._before = clock(), worked()
        self._helped = 0.0
        self._busy = False

    def helped(self, seconds: float) -> None:
        """Helpers worked for it."""
        self._helped += seconds

    def is_busy(self) -> bool:
        """Whether it should be helped; to be asked by the thread itself."""
        now = self._clock()
        if now - self._since >= WINDOW:
            worked = self._worked()
            share = (worked - self._before + self._helped) / (now - self._since)
            self._busy = share > (CALM if self._busy else BUSY)
            self._since, self._before, self._helped = now, worked, 0.0
        return self._busy


class _OfThread(threading.local):
    """The load of each event loop's thread."""

    def __init__(self) -> None:
        self.load = Load()


class Helpers:
    """The helpers of one process.

    Args:
        most: How many there may be; None: one for each processor, `MOST` at the most, and none on a single one.

    Attributes:
        most: How many there may be.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = _usual() if most is None else most
        self._threads: ThreadPoolExecutor | None = None
        self._of_thread = _OfThread()

    def wanted(self) -> bool:
        """Whether the calling event loop's thread should be helped now."""
        return self.most > 0 and self._of_thread.load.is_busy()

    async def read(self, read: Callable[[memoryview], int], target: memoryview) -> int:
        """Calls `read(target)` in a helper. When this returns, or was cancelled, nobody touches the target any more.

        Raises:
            Exception: What the call raised.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.most, "streamrec-helper")
        try:
            job: Future[tuple[int, float]] = self._threads.submit(_timed, read, target)
        except RuntimeError:  # the interpreter ends, and takes no more work
            return read(target)
        try:
            count, seconds = await asyncio.wrap_future(job)
        finally:
            if not job.cancel():
                wait([job])  # no longer than it takes to decipher a block
        self._of_thread.load.helped(seconds)
        return count

    def forked(self) -> None:
        """In a forked child: its parent's threads are not there."""
        self._threads = None


def _timed(read: Callable[[memoryview], int], target: memoryview) -> tuple[int, float]:
    began = time.thread_time()
    return read(target), time.thread_time() - began


def _usual() -> int:
    given = os.environ.get("STREAMREC_HELPERS")
    if given is not None:
        return int(given)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors, MOST) if processors > 1 else 0


HELPERS: Final = Helpers()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=HELPERS.forked)
