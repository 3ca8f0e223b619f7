"""RangePlan: which bytes of one object are asked for next, and in how large pieces. Pure; it never awaits.

An object is fetched by one open request at first, to its end. Where more connections are to be had, that request is
cut short, and the bytes after the cut are fetched by parallel ranges. Where there are none any more, one
request takes all that is left again.

Rules, each with a property test over any order of arrivals:
- The ranges are adjacent, in order: each byte is asked for exactly once.
- No more ranges are under way than the terms allow.
- A range is large enough for its first byte's latency not to count, and small enough for all to fit the budget.
- A range is the smaller the fewer are under way, and the last ones shrink: so those that begin together, after a cut
  and whenever a late one has held up all others, end one after the other and not all at once; the consumer gets an
  even flow, and at the end none works alone for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = [
    "FIRST_RANGE",
    "MAX_RANGE",
    "MIN_RANGE",
    "MIN_SPLIT",
    "ByteRange",
    "ConnectionSpeed",
    "RangeLimits",
    "RangePlan",
    "range_bytes",
]

MIN_RANGE: Final = 4 << 20
"""A smaller range costs more than it brings: a request to S3 takes 1.6 ms of processor time."""

MIN_SPLIT: Final = 2 * MIN_RANGE
"""What is shorter is one request."""

MAX_RANGE: Final = 16 << 20
FIRST_RANGE: Final = 2 << 20
"""Ranges that begin while few are under way may be as small as this: they are few. A cut is never nearer than this
either, so nothing that waits for fewer bytes reads beyond it."""


@dataclass(frozen=True, slots=True)
class ConnectionSpeed:
    """What one connection gives.

    Attributes:
        rate: Bytes per second once it flows.
        latency: Seconds from the request to the first byte.
    """

    rate: float = 64e6
    latency: float = 0.04

    @property
    def lead(self) -> int:
        """Bytes that one connection gives while another waits for its first."""
        return int(self.rate * self.latency)


class RangeLimits(NamedTuple):
    """What one stream may use now: a number of connections, each for a range of `range_bytes`.

    The next range is asked for when no more than `lead` bytes are left of one.
    """

    connections: int
    range_bytes: int
    lead: int = 0


class ByteRange(NamedTuple):
    """Bytes from `start` to `stop`."""

    start: int
    stop: int


def range_bytes(pace: ConnectionSpeed, connections: int, budget: int) -> int:
    """How large ranges should be, in bytes: four first-byte latencies, so that waiting for one costs at most a fifth.

    Args:
        pace: What one connection gives.
        connections: How many ranges are under way at a time.
        budget: Bytes that may have landed ahead of their turn. Ranges under way have half landed, if they began one
            after the other; as much again is left for those after one that is late.

    >>> speed = ConnectionSpeed(60e6, 0.04)
    >>> range_bytes(speed, 16, 256 << 20) >> 20, range_bytes(speed, 16, 100 << 20) >> 20
    (9, 6)
    """
    wanted = min(max(4 * pace.lead, MIN_RANGE), MAX_RANGE)
    return max(MIN_RANGE, min(wanted, budget // connections) >> 20 << 20)


class RangePlan:
    """The plan for one object whose open request begins at `start`.

    Examples:
        >>> plan = RangePlan(0, 100 << 20)
        >>> plan.cut(1 << 20, RangeLimits(4, 8 << 20)) >> 20
        3
        >>> span = plan.offer(RangeLimits(4, 8 << 20), under_way=1)
        >>> span.start >> 20, span.stop >> 20
        (3, 7)
    """

    def __init__(self, start: int, stop: int) -> None:
        self._next = max(start, stop)
        self._stop = stop
        self._ends_open = True

    def cut(self, reached: int, terms: RangeLimits) -> int | None:
        """Where the request that takes all the rest should end instead; None where it should go on."""
        if not self._ends_open or terms.connections < 2 or self._stop - reached < MIN_SPLIT:
            return None
        self._next = reached + self._size(reached, terms, 0)
        self._ends_open = False
        return self._next

    def offer(self, terms: RangeLimits, under_way: int) -> ByteRange | None:
        """The next range, to be `accept`ed; None while there is none to be asked for.

        Args:
            under_way: Requests whose bytes have not all arrived.
        """
        if self._next == self._stop or under_way >= max(terms.connections, 1):
            return None
        if terms.connections < 2:
            return ByteRange(self._next, self._stop)
        return ByteRange(self._next, self._next + self._size(self._next, terms, under_way))

    def accept(self, span: ByteRange) -> None:
        """The range that was offered is being fetched."""
        assert span.start == self._next, "ranges are adjacent"
        self._next = span.stop
        self._ends_open = span.stop == self._stop

    def _size(self, start: int, terms: RangeLimits, under_way: int) -> int:
        """How large the range from `start` on is, while `under_way` others are read."""
        left = self._stop - start
        rising = max(terms.range_bytes * (under_way + 1) // terms.connections, FIRST_RANGE)
        falling = max(left // (2 * terms.connections), MIN_RANGE)
        size = min(terms.range_bytes, rising, falling)
        return left if left < size + MIN_RANGE // 2 else size
