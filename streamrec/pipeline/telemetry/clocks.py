"""Clocks and flows: what meters count with, under the run's lock (`meters.py` begins with the rules)."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager
from time import perf_counter
from typing import Final

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.telemetry.trace import Trace

__all__ = ["BETWEEN", "BUSY", "IDLE", "OUTSIDE", "WAITING", "Lock", "StateClock", "Throughput"]

Lock = AbstractContextManager[object]

BUSY: Final = "busy"
WAITING: Final = "waiting for input"
OUTSIDE: Final = "waiting for output"
BETWEEN: Final = "waiting"
IDLE: Final = ""


class StateClock:
    """How long each of several states held; one holds at any time. Used under the run's lock.

    Args:
        trace: Where each stretch of time is written, too; None for nowhere.
        name: What its track is called there.
    """

    __slots__ = ("_seconds", "_since", "_state", "_trace", "_track")

    def __init__(self, trace: Trace | None, name: str) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._since = perf_counter()
        self._state = IDLE
        self._trace = trace
        self._track = trace.track(name) if trace is not None else 0

    def enter(self, state: str, now: float, elements: int = 0) -> None:
        """From now on this state holds; IDLE is none. `elements` came out of the last one."""
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


class Throughput:
    """Elements and bytes that passed."""

    __slots__ = ("elements", "nbytes")

    def __init__(self) -> None:
        self.elements = self.nbytes = 0

    def add(self, chunk: Chunk) -> None:
        self.elements += len(chunk.elements)
        self.nbytes += chunk.nbytes
