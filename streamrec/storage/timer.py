"""One timer for many waits, and the checks of one wait for an answer.

Waits for bytes share one timer of the event loop: a timer each would add a tenth to the cost of a
small object, and hardly ever fires.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final

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


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitRules:
    """When a wait is late, silent, or over.

    Attributes:
        limit: Seconds until it is ended.
        floor: Seconds before which it is never late.
        late_after: Returns the seconds after which it is late; the result may change meanwhile.
        on_late: Called each time it is late, with how often it was late before, and the mark of its
            beginning; whether it can be late again.
        on_silent: Called with the seconds when it has taken `silent_after` seconds, and whenever it
            is checked later.
        silent_after: See there.
    """

    limit: float
    floor: float
    late_after: Callable[[], float]
    on_late: Callable[[int, int], bool]
    on_silent: Callable[[float], None]
    silent_after: float


class Wait:
    """A wait for a response, or for the next bytes of a body: a context manager, which may be
    entered again after it was left.

    Leaving the context raises TimeoutError if the wait was interrupted, or took too long. Time in
    which the event loop was blocked does not count, because the answer may have arrived meanwhile.
    It does the same as `asyncio.timeout`, for a quarter of the cost: a body enters it for each
    block.

    Args:
        timer: The timer that checks it.
        rules: When it is late or over.
    """

    _clock: WaitClock  # since the wait has begun

    def __init__(self, timer: SharedTimer, rules: WaitRules) -> None:
        self._timer = timer
        self._rules = rules
        self._mark = 0
        self._task: asyncio.Task[Any] | None = None  # the one that waits
        self._cancelling = 0  # how many others had cancelled it before
        self._ending: asyncio.Handle | None = None
        self._cancelled = False

    def begin(self, mark: int) -> Wait:
        """Sets the mark of the wait that begins now, which `on_late` gets."""
        self._mark = mark
        return self

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        now = asyncio.get_running_loop().time()
        self._clock = WaitClock(now)
        self._timer.add(self.check, now + min(self._rules.floor, self._rules.limit))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None  # from here on nothing interrupts it
        self._timer.remove(self.check)
        if self._ending is None:
            return
        self._ending.cancel()
        self._ending = None
        cancelled, self._cancelled = self._cancelled, False
        # Another cancellation of the task, or an error, goes before the end of this wait.
        if (
            cancelled
            and task is not None
            and task.uncancel() <= self._cancelling
            and isinstance(error, asyncio.CancelledError)
        ):
            raise TimeoutError from error

    def interrupt(self) -> None:
        """Ends the wait in the loop's next turn, unless it has ended or is about to end.

        What arrives in the same turn is not lost.
        """
        if self._task is not None and self._ending is None:
            self._ending = asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    def check(self, now: float, blocked: float) -> float | None:
        """Checks the wait for the timer, and returns when to check it again."""
        clock = self._clock
        clock.skip(blocked)
        if now - clock.began >= self._rules.limit - SLACK:
            self.interrupt()
            return None
        return min(
            self._check_late(now),
            self._check_silent(now),
            clock.began + self._rules.limit,
        )

    def _check_late(self, now: float) -> float:
        clock = self._clock
        waited = now - clock.late_since
        late_after = self._rules.late_after()
        if waited < late_after - SLACK:
            # Other requests may change the limit meanwhile, so look before it has passed.
            return now + min(late_after - waited, waited)
        again = self._rules.on_late(clock.late(now), self._mark)
        return now + self._rules.floor if again else math.inf

    def _check_silent(self, now: float) -> float:
        due = self._clock.began + self._rules.silent_after
        if now < due - SLACK:
            return due
        self._rules.on_silent(now - self._clock.began)
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
