"""What a run counts for each stage, and steps that are counted (`meters.py` begins with the rules)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.apply_steps import passed_on
from streamrec.pipeline.engine.stage import Halt, Stage, Step, halting
from streamrec.pipeline.telemetry.clocks import BETWEEN, BUSY, Lock, StateClock, Throughput
from streamrec.pipeline.telemetry.error_locations import FailedElement
from streamrec.pipeline.telemetry.snapshots import StageStats
from streamrec.pipeline.telemetry.stage_names import own_line, title
from streamrec.pipeline.telemetry.trace import Trace

__all__ = ["CountedStep", "StageMeter"]


class StageMeter:
    """What one stage did."""

    def __init__(self, lock: Lock, trace: Trace | None, stage: Stage) -> None:
        self.title = title(stage)
        self._line = own_line(stage)
        self._lock = lock
        self._clock = StateClock(trace, self.title)
        self._running = 0
        self._in, self._out = Throughput(), Throughput()
        self._ignored = 0

    def begin(self, chunk: Chunk | None) -> int:
        """The stage gets a chunk, or learns of the end; returns how many elements it had before."""
        with self._lock:
            before = self._in.elements
            self._running += 1
            self._clock.enter(BUSY, perf_counter())
            if chunk is not None:
                self._in.add(chunk)
            return before

    def end(self, chunks: list[Chunk], ignored: bool = False) -> None:
        """The stage is done with it, and gives these; or has left out an element that failed."""
        with self._lock:
            before = self._out.elements
            for chunk in chunks:
                self._out.add(chunk)
            self._running -= 1
            self._ignored += ignored
            if not self._running:
                self._clock.enter(BETWEEN, perf_counter(), self._out.elements - before)

    def busy(self, now: float) -> float:
        return self._clock.seconds(BUSY, now)

    def stats(self, busy: float, waited_for_input: float, waited_for_output: float) -> StageStats:
        """How it stands, with the seconds that the chain knows."""
        return StageStats(
            self.title,
            self._line,
            self._in.elements,
            self._in.nbytes,
            self._out.elements,
            self._out.nbytes,
            busy,
            waited_for_input,
            waited_for_output,
            errors_ignored=self._ignored,
        )


class CountedStep:
    """A step whose work is counted, and whose errors say where they came up."""

    def __init__(self, step: Step, meter: StageMeter) -> None:
        self._step = step
        self._meter = meter

    @property
    def done(self) -> bool:
        return self._step.done

    def feed(self, chunk: Chunk) -> list[Chunk]:
        before = self._meter.begin(chunk)
        chunks = self._counted(partial(self._step.feed, chunk))
        self._note(chunk, before)
        return chunks

    def flush(self) -> list[Chunk]:
        self._meter.begin(None)
        chunks = self._counted(self._step.flush)
        self._note()
        return chunks

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """An element failed before it."""
        assert chunk.error is not None
        self._meter.begin(None)
        chunks: list[Chunk] | None = None
        try:
            chunks = passed_on(self._step, chunk.error, chunk)
        finally:
            self._meter.end(chunks or [], ignored=chunks == [])
        self._note()
        return chunks

    def _note(self, chunk: Chunk | None = None, before: int = 0) -> None:
        """Errors of the step say where they came up; of a chunk, at which of its elements."""
        failures: list[tuple[Exception, int | None]] = getattr(self._step, "failures", [])
        halt = halting.get() or Halt()
        while failures and not halt.asked:
            error, index = failures.pop()
            place = ""
            if chunk is not None and index is not None:
                place = str(FailedElement(before + index, chunk, index).blamed_by(error))
            error.add_note(f"in {self._meter.title}{place}")

    def _counted(self, work: Callable[[], list[Chunk]]) -> list[Chunk]:
        chunks: list[Chunk] = []
        try:
            chunks = work()
        except Exception as error:
            error.add_note(f"in {self._meter.title}")
            raise
        finally:
            self._meter.end(chunks)
        return chunks
