"""What a run counts for each stage, and steps that are counted (`meters.py` begins with the rules)."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.stages.stage import Stage, Step
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

    def begin(self, chunk: Chunk | None) -> int:
        """The stage gets a chunk, or learns of the end; returns how many elements it had before."""
        with self._lock:
            before = self._in.elements
            self._running += 1
            self._clock.enter(BUSY, perf_counter())
            if chunk is not None:
                self._in.add(chunk)
            return before

    def end(self, chunks: list[Chunk]) -> None:
        """The stage is done with it, and gives these."""
        with self._lock:
            before = self._out.elements
            for chunk in chunks:
                self._out.add(chunk)
            self._running -= 1
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
        )


class CountedStep:
    """A step whose work is counted, and whose errors say where they came up."""

    def __init__(self, step: Step, meter: StageMeter, place: Callable[[FailedElement], str]) -> None:
        self._step = step
        self._meter = meter
        self._place = place
        self._keeps = hasattr(step, "failed")
        self._failed: FailedElement | None = None

    @property
    def done(self) -> bool:
        return self._step.done

    def feed(self, chunk: Chunk) -> list[Chunk]:
        return self._counted(chunk)

    def flush(self) -> list[Chunk]:
        return self._counted(None)

    def _counted(self, chunk: Chunk | None) -> list[Chunk]:
        before = self._meter.begin(chunk)
        chunks: list[Chunk] = []
        try:
            chunks = self._step.flush() if chunk is None else self._step.feed(chunk)
        except Exception as error:
            self._note(before, chunk)
            place = self._place(self._failed.blamed_by(error)) if self._failed else ""
            error.add_note(f"in {self._meter.title}{place}")
            raise
        finally:
            self._meter.end(chunks)
        if self._keeps:
            self._note(before, chunk)
        return chunks

    def _note(self, before: int, chunk: Chunk | None) -> None:
        """Where the step failed, if it did: its error may come later, behind what it made before."""
        index: int | None = getattr(self._step, "failed", None)
        if index is not None and chunk is not None and self._failed is None:
            self._failed = FailedElement(before + index, chunk, index)
