"""One timer for many waits, and the checks of one wait for an answer.

Waits for bytes share one timer of the event loop: a timer each would add a tenth to the cost of a
small object, and hardly ever fires.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Final

SLACK: Final = 0.001
"""Seconds by which the event loop's timers may be early."""

Check = Callable[[float, float], float | None]
"""Checks a wait, given the time and for how long the loop was blocked; returns when to check again,
None for never."""


class SharedTimer:
    """One timer of the event loop for many waits, set for the earliest one.

    It is not cancelled when that wait ends, so short waits need no timer of their own.
    """

    def __init__(self) -> None:
        self._waits: dict[Check, float] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, check: Check, due: float) -> None:
        """Calls `check` when it is due, a time of the event loop in seconds."""
        self._waits[check] = due
        if self._handle is None or due < self._due:
            self._set(due)

    def remove(self, check: Check) -> None:
        """Does not call `check` any more. It may have been removed before."""
        self._waits.pop(check, None)

    def _set(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = asyncio.get_running_loop().call_at(due, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = asyncio.get_running_loop().time()
        for check, due in [(check, due) for check, due in self._waits.items() if due <= self._due]:
            if check in self._waits:  # an earlier one may have ended this wait
                again = check(now, now - due)
                if again is None:
                    self.remove(check)
                else:
                    self._waits[check] = again
        if self._waits:
            self._set(min(self._waits.values()))


class Wait:
    """One wait for a response, or for the next bytes of a body: a context manager.

    Leaving the context raises TimeoutError if the wait was interrupted, or took `limit` seconds.
    Time in which the event loop was blocked does not count, because the answer may have arrived
    meanwhile.

    Args:
        timer: The timer that checks it.
        limit: Seconds until it is ended.
        floor: Seconds before which it is never late.
        late_after: Returns the seconds after which it is late; the result may change meanwhile.
        on_late: Called each time it is late, with how often it was late before; whether it can be
            late again.
        on_silent: Called with the seconds when it has taken `silent_after` seconds, and whenever it
            is checked later.
        silent_after: See there.
    """

    _clock: WaitClock  # since the wait has begun

    def __init__(
        self,
        timer: SharedTimer,
        *,
        limit: float,
        floor: float,
        late_after: Callable[[], float],
        on_late: Callable[[int], bool],
        on_silent: Callable[[float], None],
        silent_after: float,
    ) -> None:
        self._timer = timer
        self._limit = limit
        self._floor = floor
        self._late_after = late_after
        self._on_late = on_late
        self._on_silent = on_silent
        self._silent_after = silent_after
        self._timeout: asyncio.Timeout | None = None

    async def __aenter__(self) -> Wait:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        now = asyncio.get_running_loop().time()
        self._clock = WaitClock(now)
        self._timer.add(self.check, now + min(self._floor, self._limit))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._timeout is not None
        timeout, self._timeout = self._timeout, None  # from here on nothing interrupts it
        self._timer.remove(self.check)
        await timeout.__aexit__(kind, error, traceback)

    def interrupt(self) -> None:
        """Ends the wait at once, unless it has ended or is about to end."""
        if self._timeout is not None and self._timeout.when() is None:
            self._timeout.reschedule(asyncio.get_running_loop().time())

    def check(self, now: float, blocked: float) -> float | None:
        """Checks the wait for the timer, and returns when to check it again."""
        clock = self._clock
        clock.skip(blocked)
        if now - clock.began >= self._limit - SLACK:
            self.interrupt()
            return None
        return min(
            self._check_late(now),
            self._check_silent(now),
            clock.began + self._limit,
        )

    def _check_late(self, now: float) -> float:
        clock = self._clock
        waited = now - clock.late_since
        late_after = self._late_after()
        if waited < late_after - SLACK:
            # Other requests may change the limit meanwhile, so look before it has passed.
            return now + min(late_after - waited, waited)
        return now + self._floor if self._on_late(clock.late(now)) else math.inf

    def _check_silent(self, now: float) -> float:
        due = self._clock.began + self._silent_after
        if now < due - SLACK:
            return due
        self._on_silent(now - self._clock.began)
        return math.inf


class WaitClock:
    """When a wait began, since when its answer is awaited, and how often it was late.

    Args:
        now: When it begins, a time of the event loop in seconds.

    Examples:
        >>> clock = WaitClock(10.0)
        >>> clock.skip(2.0)  # seconds in which the event loop was blocked
        >>> clock.late(13.0), clock.late(14.0)
        (0, 1)
        >>> clock.began, clock.late_since
        (12.0, 14.0)
    """

    def __init__(self, now: float) -> None:
        self.began = now
        self.late_since = now
        self._times_late = 0

    def skip(self, seconds: float) -> None:
        """Leaves out time in which nothing could have arrived."""
        self.began += seconds
        self.late_since += seconds

    def late(self, now: float) -> int:
        """Begins to wait for a second answer, which may be late as well; returns how often the wait
        was late before.
        """
        self.late_since = now
        self._times_late += 1
        return self._times_late - 1
