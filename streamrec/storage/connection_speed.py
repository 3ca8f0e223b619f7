"""The speed of connections: measured all the time, by medians and by windows of time. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

MEASURED_BYTES: Final = 1 << 20
"""A range with fewer bytes tells little of a connection's rate."""

MIN_WINDOW: Final = 0.1
"""Seconds of the shortest window in which the total rate is measured."""


def median(values: Collection[float]) -> float:
    """The median of at least one number.

    That of `statistics` imports fractions and decimals, which delays the first batch.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


@dataclass(frozen=True, slots=True)
class ConnectionSpeed:
    """Rate of one connection after its first byte, in bytes per second, and seconds from the
    request to that byte.
    """

    rate: float = 64e6
    latency: float = 0.04

    @property
    def lead(self) -> int:
        """The bytes that one connection delivers while another waits for its first byte."""
        return int(self.rate * self.latency)


class SpeedMeter:
    """Measures the rate and the latency of a connection: medians of the last 32.

    Attributes:
        speed: What was measured; until then, the usual figures of an object store.
    """

    def __init__(self) -> None:
        self.speed = ConnectionSpeed()
        self._latencies: deque[float] = deque(maxlen=32)
        self._rates: deque[float] = deque(maxlen=32)

    def record_latency(self, seconds: float) -> None:
        """Records the seconds from a request to its response."""
        self._latencies.append(seconds)
        self.speed = replace(self.speed, latency=median(self._latencies))

    def record_rate(self, nbytes: int, seconds: float) -> None:
        """Records the rate of a connection that never waited for room."""
        if nbytes >= MEASURED_BYTES:
            self._rates.append(nbytes / max(seconds, 1e-6))
            self.speed = replace(self.speed, rate=median(self._rates))


class RateWindow:
    """Measures the total rate of all connections in one window of time after another.

    Attributes:
        lacked_room: Whether a request or a block had to wait for room in this window.

    Examples:
        >>> window = RateWindow(now=0.0, latency=0.04)
        >>> window.record(1_000_000, now=0.05)
        False
        >>> window.record(1_000_000, now=0.125)
        True
        >>> window.rate(now=0.125)
        16000000.0
    """

    def __init__(self, now: float, latency: float) -> None:
        self.begin(now, latency)

    def begin(self, since: float, latency: float) -> None:
        """Begins a window at `since`, for three latencies at least."""
        self.lacked_room = False
        self._since = since
        self._seconds = max(MIN_WINDOW, 3 * latency)
        self._bytes = 0

    def record(self, nbytes: int, now: float) -> bool:
        """Records bytes of any connection; whether the window is over."""
        if now < self._since:  # it begins when requests of a new number have answers
            return False
        self._bytes += nbytes
        return now - self._since >= self._seconds

    def rate(self, now: float) -> float | None:
        """Returns the rate in bytes per second; None if the window says nothing: something waited
        for room, or the consumer paused.
        """
        seconds = now - self._since
        if self.lacked_room or seconds >= 2 * self._seconds:
            return None
        return self._bytes / seconds
