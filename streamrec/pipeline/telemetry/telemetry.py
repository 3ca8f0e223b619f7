"""Telemetry: all that one run counts, and who looks at it: `stats()`, the progress display, the trace file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from operator import length_hint
from time import perf_counter
from typing import Any, Final

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.telemetry.clocks import StateClock
from streamrec.pipeline.telemetry.meters import SourceMeter
from streamrec.pipeline.telemetry.progress import choose_display
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.storage import Statistics

__all__ = ["Telemetry"]

WAITING: Final = "waiting for data"
WORKING: Final = "working"
GLANCE_SECONDS: Final = 0.2
COUNTER_SECONDS: Final = 0.02
"""Numbers are written to a trace no more often."""


class Telemetry:
    """What one run counts.

    Args:
        chain: What runs.
        queue_bytes: Bytes that may wait for the consumer.
        trace: Where it is written, too; None for nowhere.
        progress: Whether it is shown.

    Raises:
        MissingExtraError: What it takes to show it is not installed.

    Attributes:
        storage: Where its stores count.
        root: What counts the chain.
        queued: Tells how many bytes wait for the consumer.
    """

    def __init__(self, chain: Chain, queue_bytes: int, trace: Trace | None, progress: bool) -> None:
        self._lock = threading.RLock()
        self._trace = trace
        self._limit = queue_bytes
        self.queued: Callable[[], int] = int
        self.storage = Statistics()
        self.root = SourceMeter(self._lock, trace, None)
        self._chain = self.root.chain(chain)
        self._consumer = StateClock(trace, "the consumer")
        self._elements = self._nbytes = self._nbytes_before = 0
        self._counted = perf_counter()
        self._current: Iterator[Any] = iter(())
        self._display = choose_display(self._glance) if progress else None
        self._is_shown = False
        self._glanced = self.stats()

    def waits(self) -> None:
        """The consumer asks for a chunk."""
        with self._lock:
            self._consumer.enter(WAITING, perf_counter())
        if self._display is not None and not self._is_shown:
            self._is_shown = True
            self._display.start()

    def works(self) -> None:
        """The consumer waits no longer, though it got nothing."""
        with self._lock:
            self._consumer.enter(WORKING, perf_counter())

    def takes(self, chunk: Chunk, elements: Iterator[Any]) -> None:
        """The consumer gets one, and takes its elements from now on."""
        with self._lock:
            now = perf_counter()
            self._consumer.enter(WORKING, now, len(chunk.elements))
            self._elements += len(chunk.elements)
            self._nbytes += chunk.nbytes
            self._current = elements
            if self._trace is not None and now - self._counted >= COUNTER_SECONDS:
                self._count(self._trace, now)
        if self._display is not None:
            self._display.tick()

    def ends(self) -> None:
        """The consumer asks no more: at the end, after an error, or because it closed the run."""
        with self._lock:
            self._consumer.enter("", perf_counter())
            self._elements -= length_hint(self._current)
            self._current = iter(())
        if self._display is not None:
            self._display.close()
        if self._trace is not None:
            self._trace.close()

    @property
    def waited(self) -> float:
        """Seconds that the consumer waited."""
        return self._consumer.seconds(WAITING, perf_counter())

    def stats(self) -> Stats:
        """How it stands; from any thread."""
        storage, queued = self.storage.snapshot(), self.queued()
        with self._lock:
            now = perf_counter()
            return Stats(
                self._elements - length_hint(self._current),
                self._nbytes,
                self._consumer.seconds(WAITING, now),
                self._consumer.seconds(WORKING, now),
                queued,
                self._limit,
                self._chain.stats(now),
                storage,
            )

    def _glance(self) -> Stats:
        """How it stands, or stood a moment ago.

        A display has a lock of its own, and is closed by whoever drops the iterator, maybe while this lock is held:
        so it does not wait for it for long.
        """
        if self._lock.acquire(timeout=GLANCE_SECONDS):
            try:
                self._glanced = self.stats()
            finally:
                self._lock.release()
        return self._glanced

    def _count(self, trace: Trace, now: float) -> None:
        """Numbers for the trace: how fast it went since the last time, and how full the queues are."""
        trace.counter("MB/s", now, (self._nbytes - self._nbytes_before) / 1e6 / (now - self._counted))
        trace.counter("queue of the consumer, MB", now, self.queued() / 1e6)
        for title, held in self.root.fills():
            trace.counter(f"queue of {title}, MB", now, held / 1e6)
        self._nbytes_before, self._counted = self._nbytes, now
