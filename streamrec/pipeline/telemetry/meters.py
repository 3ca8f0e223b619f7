"""Meters: what a run counts while it goes on, for each source and stage of its description.

Rules:
- Counted a chunk at a time, by whoever moves the chunk: nothing is done per element.
- One lock a run, held for a few additions: several threads count (the loop, the workers, the consumer), and a
  snapshot is of one moment. It is re-entrant, so that a signal handler may ask for a snapshot.
- A chain that a description holds has rows of its own, be it run once or in every epoch. Chains that a function of
  the user's makes share rows where they have the same stages: there may be millions of them.
- Seconds are those of a clock on the wall in which at least one of those who share a row was in that state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter, thread_time
from weakref import WeakSet

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.queue import ByteQueue
from streamrec.pipeline.engine.stage import Step
from streamrec.pipeline.telemetry.clocks import BUSY, IDLE, OUTSIDE, WAITING, Lock, StateClock, Throughput
from streamrec.pipeline.telemetry.error_locations import FailedElement
from streamrec.pipeline.telemetry.snapshots import ChainStats, StageStats
from streamrec.pipeline.telemetry.stage_meters import CountedStep, StageMeter
from streamrec.pipeline.telemetry.stage_names import held_chains, own_line, title
from streamrec.pipeline.telemetry.trace import Trace

__all__ = ["ChainMeter", "SourceMeter"]


class SourceMeter:
    """What one source did, and the chains that it runs.

    It is asked for a chunk, and gives one. While it is asked, it waits for its input where a chain of its own is asked;
    else it works. A source without chains waits for the store: its work is what the loop's thread does then.
    """

    def __init__(self, lock: Lock, trace: Trace | None, source: Source | None) -> None:
        self.title = "" if source is None else title(source)
        self._line = "" if source is None else own_line(source)
        self._held = {id(chain): chain for chain in held_chains(source)}
        self._lock = lock
        self._trace = trace
        self._clock = StateClock(trace if source is not None else None, self.title)
        self._out = Throughput()
        self._running = self._asked = self._asking = 0
        self._worked = self._worked_before = 0.0
        self._chains: dict[object, ChainMeter] = {}
        self._queues: WeakSet[ByteQueue] = WeakSet()

    def chain(self, chain: Chain) -> ChainMeter:
        """The rows of a chain that it runs."""
        key: object = id(chain) if id(chain) in self._held else tuple(map(type, (chain.source, *chain.stages)))
        with self._lock:
            meter = self._chains.get(key)
            if meter is None:
                meter = self._chains[key] = ChainMeter(self._lock, self._trace, chain, self)
            return meter

    def queue(self, limit: int) -> ByteQueue:
        """A queue of its own, whose fill is told as long as it lives."""
        queue = ByteQueue(limit)
        with self._lock:
            self._queues.add(queue)
        return queue

    def blamed(self, error: Exception) -> Exception:
        told = any(note.startswith("in ") for note in getattr(error, "__notes__", ()))
        if ":" in self.title and not told:
            error.add_note(f"in {self.title}, behind {self._out.elements:,} elements of this run")
        return error

    def failed(self, error: Exception, number: int, chunk: Chunk, index: int) -> None:
        error.add_note(f"in {self.title}{FailedElement(number, chunk, index).blamed_by(error)}")

    def fills(self) -> Iterator[tuple[str, int]]:
        """The bytes in the queues of this source and of all below it."""
        if self._queues:
            yield self.title, sum(queue.held for queue in self._queues)
        for chain in self._chains.values():
            yield from chain.source.fills()

    def begins(self) -> None:
        with self._lock:
            self._running += 1
            self._shift(perf_counter(), 0)

    def asked(self) -> None:
        with self._lock:
            self._asked += 1
            if not self._chains:
                self._worked_before = thread_time()  # of the loop's thread: nobody else runs sources
            self._shift(perf_counter(), 0)

    def gave(self, chunk: Chunk | None) -> None:
        with self._lock:
            self._asked -= 1
            if not self._chains:
                self._worked += thread_time() - self._worked_before
            if chunk is not None:
                self._out.add(chunk)
            self._shift(perf_counter(), 0 if chunk is None else len(chunk.elements))

    def ends(self) -> None:
        with self._lock:
            self._running -= 1
            self._shift(perf_counter(), 0)

    def asks(self, change: int, now: float) -> None:
        """A chain of its own was asked (1), or gave something (-1). Under the lock."""
        self._asking += change
        self._shift(now, 0)

    def _shift(self, now: float, elements: int) -> None:
        if self._asked:
            self._clock.enter(WAITING if self._asking else BUSY, now, elements)
        else:
            self._clock.enter(OUTSIDE if self._running else IDLE, now, elements)

    def stats(self, now: float) -> StageStats:
        """How it stands."""
        chains = tuple(chain.stats(now) for chain in self._chains.values())
        busy, waiting = self._clock.seconds(BUSY, now), self._clock.seconds(WAITING, now)
        if not chains:
            worked = min(busy, self._worked)
            busy, waiting = worked, waiting + busy - worked
        queues = list(self._queues)
        return StageStats(
            self.title,
            self._line,
            sum(chain.stages[-1].elements_out for chain in chains),
            sum(chain.stages[-1].bytes_out for chain in chains),
            self._out.elements,
            self._out.nbytes,
            busy,
            waiting,
            self._clock.seconds(OUTSIDE, now),
            sum(queue.held for queue in queues),
            sum(queue.limit for queue in queues),
            chains,
        )


class ChainMeter:
    """A chain: its source and its stages. One of them works at a time, or whoever takes the chunks does."""

    def __init__(self, lock: Lock, trace: Trace | None, chain: Chain, parent: SourceMeter) -> None:
        self.source = SourceMeter(lock, trace, chain.source)
        self.stages = [StageMeter(lock, trace, stage) for stage in chain.stages]
        self._lock = lock
        self._parent = parent
        self._clock = StateClock(None, "")
        self._running = self._asked = 0

    def steps(self, steps: Iterable[Step]) -> list[Step]:
        """Its stages' steps, counted."""
        return [CountedStep(step, meter) for step, meter in zip(steps, self.stages, strict=True)]

    def begins(self) -> None:
        with self._lock:
            self._running += 1
            self._clock.enter(BUSY if self._asked else OUTSIDE, perf_counter())

    def asked(self) -> None:
        with self._lock:
            now = perf_counter()
            self._asked += 1
            self._clock.enter(BUSY, now)
            self._parent.asks(1, now)

    def gave(self, chunk: Chunk | None) -> None:
        with self._lock:
            now = perf_counter()
            self._asked -= 1
            self._clock.enter(BUSY if self._asked else OUTSIDE, now)
            self._parent.asks(-1, now)

    def ends(self) -> None:
        with self._lock:
            self._running -= 1
            self._clock.enter(BUSY if self._asked else OUTSIDE if self._running else IDLE, perf_counter())

    def stats(self, now: float) -> ChainStats:
        """How it stands. A stage waits for input while what precedes it works, for output while what follows does."""
        asked, behind = self._clock.seconds(BUSY, now), self._clock.seconds(OUTSIDE, now)
        whole = asked + behind
        rows: list[StageStats] = []
        for stage in reversed(self.stages):
            busy = stage.busy(now)
            rows.insert(0, stage.stats(busy, max(0.0, whole - behind - busy), behind))
            behind += busy
        return ChainStats((self.source.stats(now), *rows), asked)
