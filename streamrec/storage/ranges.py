"""Ranges: which parts of one object are requested in parallel. Pure.

At first one open request fetches an object to its end. When more connections are
available, that request is cut short, and parallel ranges fetch the bytes after the cut. When they
are not available any more, one request fetches the rest again.

Rules, each with a property test over any order of arrivals:
- The ranges are adjacent, in order: each byte is requested exactly once.
- No more ranges are in progress than the limits allow.
- A range is large enough to make its latency negligible, and small enough for all to fit the
  budget.
- The fewer ranges are in progress, the smaller the next one is, and the last ones shrink. So ranges
  that begin together, after a cut or after a late range has delayed all others, end one after the
  other; the consumer gets an even flow, and at the end no connection works alone for long.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from streamrec.storage.connection_speed import ConnectionSpeed

MIN_RANGE: Final = 4 << 20
"""Smaller ranges do not pay: a request to S3 takes 1.6 ms of processor time."""

MIN_SPLIT: Final = 2 * MIN_RANGE
"""Shorter reads use one request."""

MAX_RANGE: Final = 16 << 20
FIRST_RANGE: Final = 2 << 20
"""The minimum of the few ranges that begin while few are in progress. A cut is at least this far
ahead, too, so a caller that waits for fewer bytes does not read beyond it."""


class RangeLimits(NamedTuple):
    """The current limits of one stream: a number of connections, each for a range of `range_bytes`.

    The stream requests the next range when at most `lead` bytes are left of one.
    """

    connections: int
    range_bytes: int
    lead: int = 0


class ByteRange(NamedTuple):
    """The bytes from `start` to before `stop`."""

    start: int
    stop: int


def range_bytes(pace: ConnectionSpeed, connections: int, budget: int) -> int:
    """Returns the best size of ranges in bytes: four latencies long, so that latency costs at most
    a fifth.

    On average half of each range in progress is buffered ahead of the stream's position; the other
    half of the `budget` is for ranges after a late one.

    >>> speed = ConnectionSpeed(60e6, 0.04)
    >>> range_bytes(speed, 16, 256 << 20) >> 20, range_bytes(speed, 16, 100 << 20) >> 20
    (9, 6)
    """
    wanted = min(max(4 * pace.lead, MIN_RANGE), MAX_RANGE)
    return max(MIN_RANGE, min(wanted, budget // connections) >> 20 << 20)


class RangePlan:
    """The plan for one object whose open request begins at `start`.

    Attributes:
        next: Where the next range begins: the end of the last one that was requested.

    Examples:
        >>> plan = RangePlan(0, 100 << 20)
        >>> plan.cut(1 << 20, RangeLimits(4, 8 << 20)) >> 20
        3
        >>> span = plan.offer(RangeLimits(4, 8 << 20), under_way=1)
        >>> span.start >> 20, span.stop >> 20
        (3, 7)
    """

    def __init__(self, start: int, stop: int) -> None:
        self.next = max(start, stop)
        self._stop = stop
        self._ended = False

    def end(self) -> None:
        """Plans no further range: one has failed, and its error comes after the bytes before it."""
        self._ended = True

    def cut(self, reached: int, terms: RangeLimits) -> int | None:
        """Returns where to cut the request for all the rest; None if it should continue."""
        if self._ended or self.next < self._stop or terms.connections < 2:
            return None
        if self._stop - reached < MIN_SPLIT:
            return None
        self.next = reached + self._size(reached, terms, 0)
        return self.next

    def offer(self, terms: RangeLimits, under_way: int) -> ByteRange | None:
        """Returns the next range, while `under_way` requests are incomplete; None: request none
        now.

        When it is requested, `next` becomes its end.
        """
        if self._ended or self.next == self._stop or under_way >= max(terms.connections, 1):
            return None
        if terms.connections < 2:
            return ByteRange(self.next, self._stop)
        return ByteRange(self.next, self.next + self._size(self.next, terms, under_way))

    def _size(self, start: int, terms: RangeLimits, under_way: int) -> int:
        """Returns the size of the range from `start` on, while `under_way` others are in
        progress.
        """
        left = self._stop - start
        rising = max(terms.range_bytes * (under_way + 1) // terms.connections, FIRST_RANGE)
        falling = max(left // (2 * terms.connections), MIN_RANGE)
        size = min(terms.range_bytes, rising, falling)
        return left if left < size + MIN_RANGE // 2 else size
