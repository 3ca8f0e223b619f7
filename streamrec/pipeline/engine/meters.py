"""Meters: what a run counts while it goes on, for each source and stage of its description, and for its consumer.

Rules:
- Meters count a chunk at a time, where the chunk is moved: nothing is done per element.
- One lock a run, held for a few additions: several threads count (the loop, the workers, the consumer), and a
  snapshot is of one moment. It is re-entrant, so that a signal handler may ask for a snapshot.
- A chain that a description holds has rows of its own, whether it runs once or in every epoch. Chains that a function
  of the user's makes share rows where they have the same stages: there may be millions of them.
- Seconds are those of the wall's clock in which at least one of those that share a row was in that state.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import length_hint
from time import perf_counter, thread_time
from typing import Any, Final
from weakref import WeakSet

from streamrec.display import display_text
from streamrec.errors import FeatureError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import trace_origins
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.queue import ByteQueue
from streamrec.pipeline.engine.stage import Halt, Stage, Step, halting
from streamrec.pipeline.engine.stage_names import find_chains, own_line, title
from streamrec.pipeline.telemetry.progress import choose_display
from streamrec.pipeline.telemetry.stats import ChainStats, StageStats, Stats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.storage import Statistics

__all__ = ["ChainMeter", "CountedStep", "SourceMeter", "Telemetry"]

Lock = AbstractContextManager[object]

IDLE: Final = ""
BUSY: Final = "busy"
WAITING: Final = "waiting for input"
OUTSIDE: Final = "waiting for output"
BETWEEN: Final = "waiting"
CONSUMER_WAITING: Final = "waiting for data"
CONSUMER_WORKING: Final = "working"


class StateClock:
    """How long each of several states held; one holds at any time. Used under the run's lock.

    Args:
        trace: Where each period is written, too; None for nowhere.
        what: The source or stage, or the name, that its track is called by there; None for none.
    """

    __slots__ = ("_seconds", "_since", "_state", "_trace", "_track")

    def __init__(self, trace: Trace | None, what: object) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = perf_counter()
        self._state = IDLE
        self._trace = trace if what is not None else None
        self._track = 0 if self._trace is None else self._trace.track(what if isinstance(what, str) else title(what))

    def enter(self, state: str, now: float, elements: int = 0) -> None:
        """From now on this state holds. `elements` came out of the last one."""
        last = self._state
        if last is state:
            return
        self._seconds[last] += now - self._since
        if self._trace is not None and last:
            self._trace.slice(self._track, last, self._since, now, elements)
        self._state, self._since = state, now

    def seconds(self, state: str, now: float) -> float:
        """How long it held so far."""
        return self._seconds.get(state, 0.0) + (now - self._since if state is self._state else 0.0)


class Meter:
    """Counts what one source or stage does."""

    def __init__(self, lock: Lock, trace: Trace | None, what: Source | Stage | None) -> None:
        self._what = what
        self._lock = lock
        self._clock = StateClock(trace, what)
        self._running = 0
        self._elements_in = self._bytes_in = self._elements_out = self._bytes_out = 0

    @property
    def title(self) -> str:
        return "" if self._what is None else title(self._what)


class StageMeter(Meter):
    """Counts what one stage does."""

    ignored = 0

    def begin(self, chunk: Chunk | None) -> int:
        """The stage gets a chunk, or learns of the end; returns how many elements it had before."""
        with self._lock:
            before = self._elements_in
            self._running += 1
            self._clock.enter(BUSY, perf_counter())
            if chunk is not None:
                self._elements_in += len(chunk.elements)
                self._bytes_in += chunk.nbytes
            return before

    def end(self, chunks: list[Chunk], ignored: bool) -> None:
        """The stage is done with it, and gives these; or has left out an element that failed."""
        with self._lock:
            before = self._elements_out
            for chunk in chunks:
                self._elements_out += len(chunk.elements)
                self._bytes_out += chunk.nbytes
            self._running -= 1
            self.ignored += ignored
            if not self._running:
                self._clock.enter(BETWEEN, perf_counter(), self._elements_out - before)

    def busy(self, now: float) -> float:
        return self._clock.seconds(BUSY, now)

    def stats(self, busy: float, waited_for_input: float, waited_for_output: float) -> StageStats:
        """Its figures, with the seconds that the chain knows."""
        return StageStats(
            self.title,
            own_line(self._what),
            self._elements_in,
            self._bytes_in,
            self._elements_out,
            self._bytes_out,
            busy,
            waited_for_input,
            waited_for_output,
            errors_ignored=self.ignored,
        )


class CountedStep(Step):
    """A step whose work is counted, and whose errors say where they occurred."""

    def __init__(self, step: Step, meter: StageMeter) -> None:
        self._step = step
        self._meter = meter
        self.done = step.done

    def feed(self, chunk: Chunk) -> list[Chunk]:
        return self._count(self._step.feed, chunk)

    def flush(self) -> list[Chunk]:
        return self._count(self._step.flush)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        return self._count(self._step.fail, chunk)

    def _count(self, work: Callable[..., list[Chunk]], *given: Chunk) -> list[Chunk]:
        """What the step makes. Its errors say where they occurred; of a chunk, at which of its elements."""
        chunk = given[0] if given and given[0].error is None else None
        before = self._meter.begin(chunk)
        chunks: list[Chunk] = []
        ignored = False
        try:
            chunks = work(*given)
            ignored = bool(given) and chunk is None and not chunks
        except Exception as error:
            error.add_note(f"in {self._meter.title}")
            raise
        finally:
            self._meter.end(chunks, ignored)
        self.done = self._step.done
        while self._step.failures and not (halting.get() or Halt()).asked:
            failure, index = self._step.failures.pop()
            where = "" if chunk is None or index is None else describe_element(failure, before + index, chunk, index)
            failure.add_note(f"in {self._meter.title}{where}")
        return chunks


def describe_element(error: Exception, number: int, chunk: Chunk, index: int) -> str:
    """Where a stage failed: the element's number in this run, from 0, and the record that it was made of, if known."""
    row = (error.record if isinstance(error, FeatureError) else None) or 0
    records = " and ".join(str(record) for record in trace_origins(chunk.positions, index, row))
    return f", element {number:,} of this run" + (f": {display_text(records)}" if records else "")


class SourceMeter(Meter):
    """Counts what one source does, and the chains that it runs; without a source, the chain that the consumer takes.

    It is asked for a chunk, and gives one. While it is asked, it waits for its input where a chain of its own is asked;
    else it works. A source without chains waits for the store: its work is what the loop's thread does then.
    """

    def __init__(self, lock: Lock, trace: Trace | None, source: Source | None) -> None:
        super().__init__(lock, trace, source)
        self._held: dict[int, Chain] | None = None
        self._trace = trace
        self._asked = self._asking = 0
        self._worked = self._worked_before = 0.0
        self._chains: dict[object, ChainMeter] = {}
        self._queues: WeakSet[ByteQueue] = WeakSet()

    def chain(self, chain: Chain) -> ChainMeter:
        """The rows of a chain that it runs."""
        if self._held is None:
            self._held = {} if self._what is None else {id(held): held for held in find_chains(self._what)}
        key: object = id(chain) if id(chain) in self._held else tuple(map(type, (chain.source, *chain.stages)))
        with self._lock:
            meter = self._chains.get(key)
            if meter is None:
                meter = self._chains[key] = ChainMeter(self._lock, self._trace, chain, self)
            return meter

    def queue(self, limit: int) -> ByteQueue:
        """A queue of its own, bounded in bytes, whose fill is shown as long as it lives."""
        queue = ByteQueue(limit)
        with self._lock:
            self._queues.add(queue)
        return queue

    def blame(self, error: Exception) -> Exception:
        """An error that the source ended with; it says so, if a function of the user's raised it."""
        has_place = any(note.startswith("in ") for note in getattr(error, "__notes__", ()))
        if ":" in self.title and not has_place:
            error.add_note(f"in {self.title}, after {self._elements_out:,} elements of this run")
        return error

    def name_element(self, error: Exception, number: int, chunk: Chunk, index: int) -> None:
        """A function of the user's failed at element `number` of this run, at a place of a chunk; the error says so."""
        error.add_note(f"in {self.title}{describe_element(error, number, chunk, index)}")

    def fills(self) -> Iterator[tuple[str, int]]:
        """The bytes in the queues of this source and of all below it."""
        if self._queues:
            yield self.title, sum(queue.held for queue in self._queues)
        for chain in self._chains.values():
            yield from chain.source.fills()

    def count(self, *, running: int = 0, asked: int = 0, chunk: Chunk | None = None) -> None:
        """Runs of it begin or end; its next chunk is waited for (1), or no more (-1), where it came or did not."""
        with self._lock:
            self._running += running
            self._asked += asked
            if asked and not self._chains:
                now = thread_time()  # of the loop's thread, which alone runs sources
                self._worked += now - self._worked_before if asked < 0 else 0.0
                self._worked_before = now
            if chunk is not None:
                self._elements_out += len(chunk.elements)
                self._bytes_out += chunk.nbytes
            self.shift(perf_counter(), elements=0 if chunk is None else len(chunk.elements))

    def shift(self, now: float, asking: int = 0, elements: int = 0) -> None:
        """Enters the state that it is in, where a chain of its own may be asked (1), or not any more (-1)."""
        self._asking += asking
        if self._asked:
            self._clock.enter(WAITING if self._asking else BUSY, now, elements)
        else:
            self._clock.enter(OUTSIDE if self._running else IDLE, now, elements)

    def stats(self, now: float) -> StageStats:
        chains = tuple(chain.stats(now) for chain in self._chains.values())
        busy, waiting = self._clock.seconds(BUSY, now), self._clock.seconds(WAITING, now)
        if not chains:
            worked = min(busy, self._worked)
            busy, waiting = worked, waiting + busy - worked
        queues = list(self._queues)
        return StageStats(
            self.title,
            "" if self._what is None else own_line(self._what),
            sum(chain.stages[-1].elements_out for chain in chains),
            sum(chain.stages[-1].bytes_out for chain in chains),
            self._elements_out,
            self._bytes_out,
            busy,
            waiting,
            self._clock.seconds(OUTSIDE, now),
            sum(queue.held for queue in queues),
            sum(queue.limit for queue in queues),
            chains,
        )


class ChainMeter:
    """Counts a chain: its source and its stages. One of them works at a time, or what takes the chunks does."""

    def __init__(self, lock: Lock, trace: Trace | None, chain: Chain, parent: SourceMeter) -> None:
        self.source = SourceMeter(lock, trace, chain.source)
        self.stages = [StageMeter(lock, trace, stage) for stage in chain.stages]
        self._lock = lock
        self._parent = parent
        self._clock = StateClock(None, None)
        self._running = self._asked = 0

    def count(self, *, running: int = 0, asked: int = 0) -> None:
        """Runs of it begin (1) or end (-1), and so does waiting for its next chunk."""
        if running:
            self.source.count(running=running)
        with self._lock:
            now = perf_counter()
            self._running += running
            self._asked += asked
            self._clock.enter(BUSY if self._asked else OUTSIDE if self._running else IDLE, now)
            self._parent.shift(now, asked)

    def stats(self, now: float) -> ChainStats:
        """A stage waits for input while what precedes it works, for output while what follows does."""
        asked, after = self._clock.seconds(BUSY, now), self._clock.seconds(OUTSIDE, now)
        whole = asked + after
        rows: list[StageStats] = []
        for stage in reversed(self.stages):
            busy = stage.busy(now)
            rows.insert(0, stage.stats(busy, max(0.0, whole - after - busy), after))
            after += busy
        return ChainStats((self.source.stats(now), *rows), asked)


class Telemetry:
    """All that one run counts, for those that look at it: `stats()`, the progress display, the trace file.

    Args:
        chain: What runs.
        queue_bytes: Bytes that may wait for the consumer.
        trace: Where it is written, too; None for nowhere.
        progress: Whether it is shown.

    Raises:
        MissingExtraError: The package that shows it is not installed.

    Attributes:
        storage: Where its stores count.
        root: Counts the chain.
        queued: Gives how many bytes wait for the consumer.
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
        self._display = choose_display(self._stats_soon) if progress else None
        self._is_shown = False
        self._last_stats = self.stats() if progress else None

    def waits(self) -> None:
        """The consumer asks for a chunk."""
        with self._lock:
            self._consumer.enter(CONSUMER_WAITING, perf_counter())
        if self._display is not None and not self._is_shown:
            self._is_shown = True
            self._display.start()

    def works(self) -> None:
        """The consumer waits no longer, though it got nothing."""
        with self._lock:
            self._consumer.enter(CONSUMER_WORKING, perf_counter())

    def takes(self, chunk: Chunk, elements: Iterator[Any]) -> None:
        """The consumer gets one, and takes its elements from now on."""
        with self._lock:
            now = perf_counter()
            self._consumer.enter(CONSUMER_WORKING, now, len(chunk.elements))
            self._elements += len(chunk.elements)
            self._nbytes += chunk.nbytes
            self._current = elements
            if self._trace is not None and now - self._counted >= 0.02:  # seconds; not tuned
                self._trace_numbers(self._trace, now)
        if self._display is not None:
            self._display.tick()

    def ends(self) -> None:
        """The consumer asks no more: at the end, after an error, or because it closed the run."""
        with self._lock:
            self._consumer.enter(IDLE, perf_counter())
            self._elements -= length_hint(self._current)
            self._current = iter(())
        if self._display is not None:
            self._display.close()
        if self._trace is not None:
            self._trace.close()

    @property
    def waited(self) -> float:
        """Seconds that the consumer waited."""
        return self._consumer.seconds(CONSUMER_WAITING, perf_counter())

    def queued_bytes(self) -> int:
        """How many bytes wait for the consumer now."""
        return self.queued()

    def stats(self) -> Stats:
        """The run's figures now; from any thread."""
        storage, queued = self.storage.snapshot(), self.queued()
        with self._lock:
            now = perf_counter()
            return Stats(
                self._elements - length_hint(self._current),
                self._nbytes,
                self._consumer.seconds(CONSUMER_WAITING, now),
                self._consumer.seconds(CONSUMER_WORKING, now),
                queued,
                self._limit,
                self._chain.stats(now),
                storage,
            )

    def _stats_soon(self) -> Stats:
        """The figures now, or those of a moment ago.

        A display has a lock of its own, and is closed when the iterator is dropped, maybe while this lock is held: so
        it does not wait for it for long.
        """
        if self._lock.acquire(timeout=0.2):
            try:
                self._last_stats = self.stats()
            finally:
                self._lock.release()
        assert self._last_stats is not None
        return self._last_stats

    def _trace_numbers(self, trace: Trace, now: float) -> None:
        """Writes to the trace how fast it went since the last time, and how full the queues are."""
        trace.counter("MB/s", now, (self._nbytes - self._nbytes_before) / 1e6 / (now - self._counted))
        trace.counter("queue of the consumer, MB", now, self.queued() / 1e6)
        for name, held in self.root.fills():
            trace.counter(f"queue of {name}, MB", now, held / 1e6)
        self._nbytes_before, self._counted = self._nbytes, now
