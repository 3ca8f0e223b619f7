"""Deadlines: what is called when a wait takes too long. All waits of a store share one timer.

A timer for each wait is a tenth of what a small object costs, and hardly any of them ever comes to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["MovingDeadline", "SharedTimer"]


class SharedTimer:
    """One timer of the event loop for many deadlines: it is set for the first that is due.

    It outlives the wait that it was set for: waits that are short cost none.
    """

    __slots__ = ("_due", "_handle", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[MovingDeadline, None] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, deadline: MovingDeadline) -> None:
        """Looks at it when it is due."""
        self._waiting[deadline] = None
        if self._handle is None or deadline.due < self._due:
            self._set(deadline.due)

    def remove(self, deadline: MovingDeadline) -> None:
        """Looks at it no more."""
        self._waiting.pop(deadline, None)

    def _set(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._handle, due = None, self._due
        for deadline in [deadline for deadline in self._waiting if deadline.due <= due]:
            if deadline in self._waiting:  # what an earlier one called may have ended its wait
                deadline.look()
        if self._waiting:
            self._set(min(deadline.due for deadline in self._waiting))


class MovingDeadline:
    """Calls when a wait takes longer than a limit that may still change: others teach it meanwhile.

    It looks after `floor` seconds and then at doubled times, so at twice the limit at the latest. Time in which
    the loop itself stood still does not count: what is awaited may have come long ago. One is for many waits, one after
    the other.

    Args:
        timer: What it is looked at by.
        limit: The limit in seconds, as it is known now.
        floor: The least that it can be.
        call: Called when it is passed; returns whether to begin anew, since what it did may take too long as well.

    Attributes:
        due: When to look at it next.
    """

    __slots__ = ("_began", "_call", "_floor", "_limit", "_loop", "_timer", "due")

    def __init__(self, timer: SharedTimer, limit: Callable[[], float], floor: float, call: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = timer
        self._limit = limit
        self._floor = floor
        self._call = call
        self._began = self.due = 0.0

    def begin(self) -> None:
        """A wait begins."""
        self._began = self._loop.time()
        self.due = self._began + self._floor
        self._timer.add(self)

    def end(self) -> None:
        """It is over."""
        self._timer.remove(self)

    def look(self) -> None:
        """It is due."""
        now = self._loop.time()
        self._began += now - self.due  # how late the loop is
        taken, limit = now - self._began, self._limit()
        if taken < limit - 0.001:
            self.due = now + min(limit - taken, taken)
        elif self._call():
            self._began, self.due = now, now + self._floor
        else:
            self.end()
