"""How many calls run at once, of how many elements, and which elements are next: without I/O.

Rules:
- Chunks in flight have half of the share of the budget, and waiting results the other half,
  estimated from the sizes of earlier results. One chunk and one task are always in flight, or
  nothing would move.
- In order, results wait for one call that takes long: others continue meanwhile, but not without
  end.

Times are arguments. `autotune.py` tunes the numbers.
"""

from __future__ import annotations

import math
import os

from streamrec.pipeline.engine.description import AUTOTUNE
from streamrec.pipeline.sources.parallel_map.autotune import CallCount, TaskSize
from streamrec.pipeline.sources.parallel_map.in_flight import ElementTask, InFlight


def call_count_for(calls: int, awaits: bool) -> CallCount:
    """A fixed number of calls, or a tuned one."""
    if calls != AUTOTUNE:
        return CallCount(calls, calls, calls)
    if awaits:  # async calls mostly wait, so the number of cores does not matter
        return CallCount(8, 128)
    return CallCount(min(2, cores()), cores())


def cores() -> int:
    """How many processor cores this process may use, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class CallPace:
    """How many calls run at once, and how many elements each is for.

    Args:
        calls: How many calls the user wants, or AUTOTUNE.
        awaits: Whether the function is async: then each call is for one element.
        max_bytes: What results may weigh.
        now: The time in seconds.
    """

    def __init__(self, calls: int, *, awaits: bool, max_bytes: int, now: float) -> None:
        self._calls = calls
        self._awaits = awaits
        self._count = call_count_for(calls, awaits)
        self._task_size = TaskSize(max_bytes // max(calls, cores()))
        # The window in which calls are counted, and how long the consumer waited for them.
        self._since = now
        self._ended = 0
        self._waited = 0.0
        self._waits_since: float | None = None

    @property
    def target(self) -> int:
        """How many calls run at once."""
        return self._count.target

    @property
    def size(self) -> int:
        """How many elements make a task."""
        return 1 if self._awaits else self._task_size.size

    @property
    def task_bytes(self) -> float:
        """About how much the results of a task weigh."""
        return self.size * self._task_size.bytes_each

    def become_async(self) -> None:
        """The function turned out to return awaitables."""
        if not self._awaits:
            self._awaits = True
            self._count = call_count_for(self._calls, awaits=True)

    def begin_wait(self, now: float) -> None:
        """The consumer waits although all calls are busy."""
        self._waits_since = now

    def end_wait(self, now: float) -> None:
        """The consumer waits no more. May be called without `begin_wait`."""
        self._count_wait(now)
        self._waits_since = None

    def record(self, count: int, *, seconds: float, nbytes: int, now: float) -> None:
        """Counts a task that has ended, and adapts the number of calls after a window of time."""
        self._task_size.update(count, seconds, nbytes)
        self._ended += count
        self._count_wait(now)
        if self._count.due(now - self._since, self._ended):
            self._count.end_window(now - self._since, self._ended, self._waited)
            self._since = now
            self._ended = 0
            self._waited = 0.0

    def _count_wait(self, now: float) -> None:
        """Counts how long the consumer has waited for calls until now."""
        if self._waits_since is not None:
            self._waited += now - self._waits_since
            self._waits_since = now


class CallPlan:
    """Which elements are called for next, and whether enough of them wait.

    Args:
        in_flight: The elements and the results.
        pace: How many calls run at once.
        max_bytes: What elements may weigh, and results as much.
    """

    def __init__(self, in_flight: InFlight, pace: CallPace, max_bytes: int) -> None:
        self._in_flight = in_flight
        self._pace = pace
        self._max_bytes = max_bytes
        self._stopped = False

    @property
    def is_full(self) -> bool:
        """Whether enough input waits."""
        in_flight = self._in_flight
        enough = in_flight.pending >= self._pace.target * self._pace.size
        return enough or (in_flight.input_bytes >= self._max_bytes and not in_flight.idle)

    @property
    def is_busy(self) -> bool:
        """Whether as many calls run as may."""
        return self._in_flight.at_work >= self._pace.target

    @property
    def idle_calls(self) -> int:
        """How many more calls may run, whose threads have no task; none after `stop`."""
        return 0 if self._stopped else max(self._pace.target - self._in_flight.at_work, 0)

    def stop(self) -> None:
        """Starts no further task."""
        self._stopped = True

    def next_task(self) -> ElementTask | None:
        """Starts a task if one may start."""
        if self._stopped or not self._in_flight.pending or not self._may_start:
            return None
        size = self._pace.size
        # Divided evenly, so that all calls get some elements.
        even = max(math.ceil(self._in_flight.pending / self._pace.target), size // 8)
        return self._in_flight.start(min(size, even))

    @property
    def _may_start(self) -> bool:
        in_flight = self._in_flight
        if not in_flight.undelivered:
            return True
        # In order, results wait for one call that takes long: others continue meanwhile, but not
        # without end.
        if self.is_busy or in_flight.undelivered >= 4 * self._pace.target:
            return False
        expected = (in_flight.at_work + 1) * self._pace.task_bytes
        return in_flight.result_bytes + expected <= self._max_bytes
