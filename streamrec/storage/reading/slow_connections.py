"""Slow connections: whether a connection gives much less than the others, while its bytes are waited for. Pure.

It is measured by what the others get, not by the clock alone: where the event loop stands still, nobody gets anything.
Time does not count in which nobody waits for its bytes, or there is no room for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

__all__ = ["ConnectionProgress", "SlowConnections"]

FLOOR: Final = 0.1
"""Seconds in which no connection is called slow."""

SLOW: Final = 3
"""A slow one gives less than one part in so many of what each of the others gives."""


class SlowConnections:
    """The connections of a run whose bytes are waited for.

    Args:
        clock: Seconds that only grow.

    Attributes:
        count: How many there are.
        each: Bytes that came on each of them, on average, since the run began.
    """

    __slots__ = ("clock", "count", "each")

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.count = 0
        self.each = 0.0


class ConnectionProgress:
    """One of them: what came of it, and of each of the others meanwhile.

    >>> now = 0.0
    >>> flows = SlowConnections(lambda: now)
    >>> one, other = ConnectionProgress(flows), ConnectionProgress(flows)
    >>> one.begins(), other.begins()
    (None, None)
    >>> now = 1.0
    >>> other.came(6_000_000), one.lags(slack=1_000_000)
    (None, False)
    >>> other.came(6_000_000), one.lags(slack=1_000_000)
    (None, True)
    """

    __slots__ = ("_begun", "_each", "_nbytes", "_seconds", "_slow_connections")

    def __init__(self, slow_connections: SlowConnections) -> None:
        self._slow_connections = slow_connections
        self._nbytes = 0
        self._seconds = self._each = 0.0
        self._begun: tuple[float, float] | None = None

    def begins(self) -> None:
        """Its bytes are waited for from now on."""
        if self._begun is None:
            self._slow_connections.count += 1
            self._begun = self._slow_connections.clock(), self._slow_connections.each

    def came(self, nbytes: int) -> None:
        """So many of them came."""
        self._nbytes += nbytes
        self._slow_connections.each += nbytes / max(self._slow_connections.count, 1)

    def ends(self) -> None:
        """Nobody waits for them any more. May be called twice."""
        if self._begun is not None:
            self._seconds, self._each = self._so_far(*self._begun)
            self._begun = None
            self._slow_connections.count -= 1

    def lags(self, slack: int) -> bool:
        """Whether it is waited for, and has given `slack` bytes less than a part of what each of the others has."""
        if self._begun is None:
            return False
        seconds, each = self._so_far(*self._begun)
        return seconds > FLOOR and each / SLOW > self._nbytes + slack

    def _so_far(self, since: float, before: float) -> tuple[float, float]:
        return self._seconds + self._slow_connections.clock() - since, self._each + self._slow_connections.each - before
