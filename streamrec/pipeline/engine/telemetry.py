"""Telemetry: the counters of one run, for `stats()`, the progress display and the trace file.

`meters.py` counts what the chain does. This file counts the consumer, and passes the numbers on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from operator import length_hint
from time import perf_counter
from typing import Any, Final

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.meters import IDLE, Flow, SourceMeter, StateClock
from streamrec.pipeline.telemetry.progress import choose_display
from streamrec.pipeline.telemetry.stats import ChainStats, Stats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.storage import Statistics
from streamrec.storage.ledger import Ledger

CONSUMER_WAITING: Final = "waiting for data"
CONSUMER_WORKING: Final = "working"

SAMPLE_SECONDS: Final = 0.02
"""Seconds between two numbers of the trace. Not tuned."""

LOCK_SECONDS: Final = 0.2
"""Seconds that a display waits for the run's lock."""


class ConsumerMeter:
    """Counts what the consumer of a run takes, and how long it waits. Used under the run's lock.

    Attributes:
        taken: The chunks that it got; of the last one, it may not have taken all elements.
        samples, tokens: What a loader counted of them.
    """

    def __init__(self, trace: Trace | None) -> None:
        self.taken = Flow()
        self.samples = 0
        self.tokens = 0
        self._clock = StateClock(trace, "the consumer")
        self._current: Iterator[Any] = iter(())

    @property
    def elements(self) -> int:
        """How many elements it has taken."""
        return self.taken.elements - length_hint(self._current)

    def wait(self) -> None:
        """It asks for a chunk."""
        self._clock.enter(CONSUMER_WAITING, perf_counter())

    def work(self) -> None:
        """It stops waiting without a chunk."""
        self._clock.enter(CONSUMER_WORKING, perf_counter())

    def take(self, chunk: Chunk, elements: Iterator[Any], now: float) -> None:
        """It gets a chunk, whose elements it takes from an iterator.

        The iterator knows how many elements are left.
        """
        self._clock.enter(CONSUMER_WORKING, now, len(chunk.elements))
        self.taken.add(chunk)
        self._current = elements

    def end(self) -> None:
        """It takes no more."""
        self._clock.enter(IDLE, perf_counter())
        self.taken.elements -= length_hint(self._current)
        self._current = iter(())

    def waited(self, now: float) -> float:
        """For how many seconds it waited."""
        return self._clock.seconds(CONSUMER_WAITING, now)

    def worked(self, now: float) -> float:
        """For how many seconds it worked."""
        return self._clock.seconds(CONSUMER_WORKING, now)


class TraceNumbers:
    """Writes the speed of a run, and the bytes in its queues, to the trace now and then."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._nbytes_before = 0
        self._since = perf_counter()

    def is_due(self, now: float) -> bool:
        """Whether the last numbers are old enough."""
        return now - self._since >= SAMPLE_SECONDS

    def write(self, now: float, *, nbytes: int, queued: int, chain: ChainStats) -> None:
        """Writes the speed since the last call, from all bytes that the consumer got."""
        speed = (nbytes - self._nbytes_before) / (now - self._since)
        self._trace.counter("MB/s", now, speed / 1e6)
        self._trace.counter("queue of the consumer, MB", now, queued / 1e6)
        for _, stage in chain.rows():
            if stage.queue_limit:
                self._trace.counter(f"queue of {stage.title}, MB", now, stage.queued / 1e6)
        self._nbytes_before = nbytes
        self._since = now


class ProgressLine:
    """Shows the statistics of a run from its first request on."""

    def __init__(self, stats: Callable[[], Stats], lock: threading.RLock) -> None:
        self._stats = stats
        self._lock = lock
        self._last = stats()
        self._display = choose_display(self._stats_soon)
        self._is_shown = False

    def show(self) -> None:
        """Begins to show it. May be called again."""
        if not self._is_shown:
            self._is_shown = True
            self._display.start()

    def tick(self) -> None:
        """The consumer got a chunk."""
        self._display.tick()

    def close(self) -> None:
        """Shows the end. May be called twice."""
        self._display.close()

    def _stats_soon(self) -> Stats:
        """The statistics now, or a moment ago.

        A display has its own lock, and is closed when the iterator is dropped, possibly while the
        run's lock is held; so it waits only briefly.
        """
        if self._lock.acquire(timeout=LOCK_SECONDS):
            try:
                self._last = self._stats()
            finally:
                self._lock.release()
        return self._last


class Telemetry:
    """The counters of one run.

    It tells the run's ledger whether the consumer waits.

    Attributes:
        storage: The statistics of the run's stores.
        root: The meter of the chain's consumer, from which the driver gets that of the chain.
    """

    def __init__(
        self, chain: Chain, ledger: Ledger, queue_bytes: int, trace: Trace | None, progress: bool
    ) -> None:
        self._lock = threading.RLock()
        self._ledger = ledger
        self._limit = queue_bytes
        self.storage = Statistics()
        self.root = SourceMeter(self._lock, trace, None)
        self._chain = self.root.chain(chain)
        self._consumer = ConsumerMeter(trace)
        self._trace = trace
        self._numbers = None if trace is None else TraceNumbers(trace)
        self._line = ProgressLine(self.stats, self._lock) if progress else None

    def waits(self) -> None:
        """Called when the consumer asks for a chunk."""
        with self._lock:
            self._consumer.wait()
        self._ledger.is_wanted = True
        self._ledger.notify()
        if self._line is not None:
            self._line.show()

    def works(self) -> None:
        """Called when the consumer stops waiting without a chunk."""
        with self._lock:
            self._consumer.work()

    def counts(self, samples: int, tokens: int) -> None:
        """Called by a loader that has given an element to its consumer."""
        with self._lock:
            self._consumer.samples += samples
            self._consumer.tokens += tokens

    def takes(self, chunk: Chunk, elements: Iterator[Any]) -> None:
        """Called when the consumer gets a chunk, whose elements it takes from an iterator."""
        self._ledger.is_wanted = False
        with self._lock:
            now = perf_counter()
            self._consumer.take(chunk, elements, now)
            if self._numbers is not None and self._numbers.is_due(now):
                self._numbers.write(
                    now,
                    nbytes=self._consumer.taken.nbytes,
                    queued=self._ledger.account.queued(),
                    chain=self._chain.stats(now),
                )
        if self._line is not None:
            self._line.tick()

    def ends(self) -> None:
        """Ends the counting; the consumer has finished.

        It calls this at the end, after an error, or when it closes the run.
        """
        self._ledger.is_wanted = False
        with self._lock:
            self._consumer.end()
        if self._line is not None:
            self._line.close()
        if self._trace is not None:
            self._trace.close()

    @property
    def waited(self) -> float:
        """For how many seconds the consumer waited."""
        return self._consumer.waited(perf_counter())

    def stats(self) -> Stats:
        """The run's statistics now; from any thread."""
        # Both have locks of their own; they are read before this one is held.
        storage = self.storage.snapshot()
        queued = self._ledger.account.queued()
        with self._lock:
            now = perf_counter()
            return Stats(
                elements=self._consumer.elements,
                bytes=self._consumer.taken.nbytes,
                consumer_waited=self._consumer.waited(now),
                consumer_busy=self._consumer.worked(now),
                queued=queued,
                queue_limit=self._limit,
                chain=self._chain.stats(now),
                storage=storage,
                samples=self._consumer.samples,
                tokens=self._consumer.tokens,
            )
