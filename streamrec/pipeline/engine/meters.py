"""Meters: count the work of each source and stage of a run (`telemetry.py` counts its consumer).

Rules:
- Meters count whole chunks when they are passed on, never single elements.
- Each run has one lock, held for a few additions: several threads count (the loop, the workers, the
  consumer), and a snapshot is consistent. The lock is re-entrant, so that a signal handler may take
  a snapshot.
- Each chain of a description has its own rows, however often it runs. Chains that a user's function
  makes share rows if they have the same stages, since there may be millions of them.
- Seconds are wall time in which at least one of the chains that share a row was in a state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter, thread_time
from typing import Final, Self
from weakref import WeakSet

from streamrec.display import display_text
from streamrec.errors import FeatureError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import trace_origins
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.queue import ByteQueue
from streamrec.pipeline.engine.stage import Halt, Stage, Step, halting
from streamrec.pipeline.engine.stage_names import find_chains, own_line, title
from streamrec.pipeline.telemetry.stats import ChainStats, StageStats
from streamrec.pipeline.telemetry.trace import Trace

Lock = AbstractContextManager[object]

IDLE: Final = ""
BUSY: Final = "busy"
WAITING: Final = "waiting for input"
OUTSIDE: Final = "waiting for output"
BETWEEN: Final = "waiting"


class StateClock:
    """Measures how long each of several states lasts; there is one state at a time.

    Used under the run's lock.

    Each period is written to the trace, on the track of `what`, a source, a stage or a name; None
    for no track.
    """

    __slots__ = ("_seconds", "_since", "_state", "_trace", "_track")

    def __init__(self, trace: Trace | None, what: object) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = perf_counter()
        self._state = IDLE
        self._trace = trace if what is not None else None
        self._track = 0
        if self._trace is not None:
            self._track = self._trace.track(what if isinstance(what, str) else title(what))

    def enter(self, state: str, now: float, elements: int = 0) -> None:
        """Ends the last state, which gave `elements`, and begins a state."""
        last = self._state
        if last is state:
            return
        self._seconds[last] += now - self._since
        if self._trace is not None and last:
            self._trace.slice(self._track, last, self._since, now, elements)
        self._state = state
        self._since = now

    def seconds(self, state: str, now: float) -> float:
        """How long a state lasted so far, in all."""
        return self._seconds.get(state, 0.0) + (now - self._since if state is self._state else 0.0)


class Flow:
    """Counts elements and bytes."""

    __slots__ = ("elements", "nbytes")

    def __init__(self) -> None:
        self.elements = 0
        self.nbytes = 0

    def add(self, chunk: Chunk) -> None:
        """Counts a chunk that passed."""
        self.elements += len(chunk.elements)
        self.nbytes += chunk.nbytes


class ThreadTime:
    """Measures the processor time of the calling thread between pairs of calls."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def begin(self) -> None:
        """Begins a period."""
        self._began = thread_time()

    def end(self) -> None:
        """Ends it; called by the same thread."""
        self.seconds += thread_time() - self._began


class Meter:
    """Counts the work of one source or stage."""

    def __init__(self, lock: Lock, trace: Trace | None, what: Source | Stage | None) -> None:
        self._what = what
        self._lock = lock
        self._clock = StateClock(trace, what)
        self._running = 0
        self._output = Flow()

    @property
    def title(self) -> str:
        """The name of the source or stage for users."""
        return "" if self._what is None else title(self._what)


class StageMeter(Meter):
    """Counts the work of one stage."""

    def __init__(self, lock: Lock, trace: Trace | None, stage: Stage) -> None:
        super().__init__(lock, trace, stage)
        self._input = Flow()
        self._ignored = 0

    def run(self, step: Step, chunk: Chunk | None) -> list[Chunk]:
        """Runs a step of the stage and counts its work.

        The input is a chunk, an element that failed, or None for the end.

        Errors say in which stage they occurred, and at which element and record.
        """
        taken = chunk if chunk is not None and chunk.error is None else None
        with self._lock:
            before = self._input.elements
            self._running += 1
            self._clock.enter(BUSY, perf_counter())
            if taken is not None:
                self._input.add(taken)
        chunks: list[Chunk] = []
        ignored = False
        try:
            chunks = step.take(chunk)
            ignored = chunk is not taken and not chunks  # an element that failed, and was left out
        except Exception as error:
            error.add_note(f"in {self.title}")
            raise
        finally:
            self._count_output(chunks, ignored)
        # A run that is being left drops its chunks, so their errors need no notes.
        while step.failures and not (halting.get() or Halt()).asked:
            failure, index = step.failures.pop()
            where = ""
            if taken is not None and index is not None:
                where = describe_element(failure, before + index, taken, index)
            failure.add_note(f"in {self.title}{where}")
        return chunks

    def _count_output(self, chunks: list[Chunk], ignored: bool) -> None:
        with self._lock:
            before = self._output.elements
            for chunk in chunks:
                self._output.add(chunk)
            self._running -= 1
            self._ignored += ignored
            if not self._running:
                self._clock.enter(BETWEEN, perf_counter(), self._output.elements - before)

    def stats(self, now: float, whole: float, after: float) -> StageStats:
        """The stage's statistics.

        Its chain took `whole` seconds, of which it waited `after` seconds for what follows this
        stage.
        """
        busy = self._clock.seconds(BUSY, now)
        return StageStats(
            title=self.title,
            line=own_line(self._what),
            elements_in=self._input.elements,
            bytes_in=self._input.nbytes,
            elements_out=self._output.elements,
            bytes_out=self._output.nbytes,
            busy=busy,
            waited_for_input=max(0.0, whole - after - busy),
            waited_for_output=after,
            errors_ignored=self._ignored,
        )


def describe_element(error: Exception, number: int, chunk: Chunk, index: int) -> str:
    """Describes where a stage failed.

    It names the element's number in this run, and the record it was made of, if known.
    """
    row = (error.record if isinstance(error, FeatureError) else None) or 0
    records = " and ".join(str(record) for record in trace_origins(chunk.positions, index, row))
    return f", element {number:,} of this run" + (f": {display_text(records)}" if records else "")


class SourceMeter(Meter):
    """Counts the work of one source and of its chains.

    Without a source, it counts the consumer's chain.

    While a source is asked for a chunk, it waits for input if one of its chains is asked, and
    otherwise works. A source without chains waits for the store, except for the time that the
    loop's thread works.
    """

    def __init__(self, lock: Lock, trace: Trace | None, source: Source | None) -> None:
        super().__init__(lock, trace, source)
        self._asked = 0
        self._asking = 0  # requests to its chains
        self._worked = ThreadTime()
        self._chains = ChainMeters(source, trace)
        self._queues: WeakSet[ByteQueue] = WeakSet()

    def chain(self, chain: Chain) -> ChainMeter:
        """The meter of a chain that the source runs."""
        with self._lock:
            return self._chains.of(chain, self._lock, self)

    def queue(self, limit: int, most_elements: int) -> ByteQueue:
        """A queue bounded in bytes and elements, in the statistics as long as it exists."""
        queue = ByteQueue(limit, most_elements)
        with self._lock:
            self._queues.add(queue)
        return queue

    def blame(self, error: Exception) -> Exception:
        """Adds the source to an error that ended it, if a user's function raised the error."""
        has_place = any(note.startswith("in ") for note in getattr(error, "__notes__", ()))
        if ":" in self.title and not has_place:
            error.add_note(f"in {self.title}, after {self._output.elements:,} elements of this run")
        return error

    def request(self) -> SourceRequest:
        """A request for a chunk, as a context manager.

        Its `chunk` is set to what the source gave.
        """
        return SourceRequest(self)

    def count_run(self, change: int) -> None:
        """Counts a run of the source that begins (1) or ends (-1)."""
        with self._lock:
            self._running += change
            self.shift(perf_counter())

    def begin_request(self) -> None:
        """Counts a request that begins."""
        with self._lock:
            self._asked += 1
            if not self._chains:
                self._worked.begin()  # the loop's thread alone runs sources
            self.shift(perf_counter())

    def end_request(self, chunk: Chunk | None) -> None:
        """Counts a request that ends, and the chunk that the source gave."""
        with self._lock:
            self._asked -= 1
            if not self._chains:
                self._worked.end()
            if chunk is not None:
                self._output.add(chunk)
            self.shift(perf_counter(), elements=0 if chunk is None else len(chunk.elements))

    def shift(self, now: float, asking: int = 0, elements: int = 0) -> None:
        """Updates the state after a request to one of its chains has begun (1) or ended (-1)."""
        self._asking += asking
        if self._asked:
            self._clock.enter(WAITING if self._asking else BUSY, now, elements)
        else:
            self._clock.enter(OUTSIDE if self._running else IDLE, now, elements)

    def stats(self, now: float) -> StageStats:
        """The statistics of the source and its chains at the time `now`, of `perf_counter`."""
        chains = tuple(chain.stats(now) for chain in self._chains)
        busy = self._clock.seconds(BUSY, now)
        waiting = self._clock.seconds(WAITING, now)
        if not chains:
            # A source that reads is asked all the time, and works only as much as the loop's thread
            # does meanwhile. `_worked` may exceed `busy`: the clocks are read one after the other.
            worked = min(busy, self._worked.seconds)
            waiting += busy - worked
            busy = worked
        queues = list(self._queues)
        return StageStats(
            title=self.title,
            line="" if self._what is None else own_line(self._what),
            elements_in=sum(chain.stages[-1].elements_out for chain in chains),
            bytes_in=sum(chain.stages[-1].bytes_out for chain in chains),
            elements_out=self._output.elements,
            bytes_out=self._output.nbytes,
            busy=busy,
            waited_for_input=waiting,
            waited_for_output=self._clock.seconds(OUTSIDE, now),
            queued=sum(queue.held for queue in queues),
            queue_limit=sum(queue.limit for queue in queues),
            chains=chains,
        )


class ChainMeters:
    """The meters of the chains that a source runs: one for each row of the statistics.

    A chain of the source's description has its own row, one that a user's function made shares a
    row with those of the same stages. Used under the run's lock.
    """

    def __init__(self, source: Source | None, trace: Trace | None) -> None:
        self._source = source
        self._trace = trace
        self._described: dict[int, Chain] | None = None
        self._meters: dict[object, ChainMeter] = {}

    def __len__(self) -> int:
        return len(self._meters)

    def __iter__(self) -> Iterator[ChainMeter]:
        return iter(self._meters.values())

    def of(self, chain: Chain, lock: Lock, parent: SourceMeter) -> ChainMeter:
        """The meter of a chain that the parent runs."""
        if self._described is None:
            chains = () if self._source is None else find_chains(self._source)
            self._described = {id(described): described for described in chains}
        row: object = id(chain)
        if row not in self._described:
            row = tuple(map(type, (chain.source, *chain.stages)))
        meter = self._meters.get(row)
        if meter is None:
            meter = self._meters[row] = ChainMeter(lock, self._trace, chain, parent)
        return meter


class SourceRequest:
    """A request for a source's next chunk; see `SourceMeter.request`."""

    __slots__ = ("_meter", "chunk")

    def __init__(self, meter: SourceMeter) -> None:
        self._meter = meter
        self.chunk: Chunk | None = None

    def __enter__(self) -> Self:
        self._meter.begin_request()
        return self

    def __exit__(self, *exception: object) -> None:
        self._meter.end_request(self.chunk)


class ChainMeter:
    """Counts a chain: its source and its stages.

    Only one of them, or the chain's consumer, works at a time.
    """

    def __init__(self, lock: Lock, trace: Trace | None, chain: Chain, parent: SourceMeter) -> None:
        self.source = SourceMeter(lock, trace, chain.source)
        self.stages = [StageMeter(lock, trace, stage) for stage in chain.stages]
        self._lock = lock
        self._parent = parent
        self._clock = StateClock(None, None)
        self._running = 0
        self._asked = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """A run of the chain, which is asked for a chunk at once."""
        self.source.count_run(1)
        self._count(running=1, asked=1)
        try:
            yield
        finally:
            self.source.count_run(-1)
            self._count(running=-1, asked=-1)

    @contextmanager
    def giving(self) -> Iterator[None]:
        """The time from a chunk that the chain gives to the request for the next one."""
        self._count(asked=-1)
        try:
            yield
        finally:
            self._count(asked=1)

    def _count(self, *, running: int = 0, asked: int = 0) -> None:
        """Counts runs, and requests for a chunk, that begin (1) or end (-1)."""
        with self._lock:
            now = perf_counter()
            self._running += running
            self._asked += asked
            self._clock.enter(BUSY if self._asked else OUTSIDE if self._running else IDLE, now)
            self._parent.shift(now, asked)

    def stats(self, now: float) -> ChainStats:
        """The statistics of the chain's stages.

        A stage waits for input while earlier ones work, and for output while later ones do.
        """
        asked = self._clock.seconds(BUSY, now)
        after = self._clock.seconds(OUTSIDE, now)
        whole = asked + after
        rows: list[StageStats] = []
        for stage in reversed(self.stages):
            rows.insert(0, stage.stats(now, whole, after))
            after += rows[0].busy
        return ChainStats((self.source.stats(now), *rows), asked)
