"""Ranges: whether an object is asked for range by range, each of which obstore gives whole, or by one stream. Pure.

A chunk of a stream is copied together from all the pieces that obstore has read meanwhile, each in fresh memory. A
whole response is gathered while it comes, and Python sees it without a copy: about half of the processor time. But
each range costs a request, and gives nothing before all of it is there. So:

- Ranges are asked for, and taken whole, where one comes in a second at the most: what is under way is lost when a
  connection breaks.
- The next one is asked for when a range begins to come (`reading/request_ahead.py`). Where its first byte takes longer
  than the range, one stream is faster. The quickest of the last answers tells: others may have waited for this process.
- What is not known yet, the first ranges tell, which are streamed.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

__all__ = ["LEAST", "MOST_HELD", "RANGE", "Ranges"]

RANGE: Final = 4 << 20
"""Bytes of a range. With 2 MiB a GB costs 0.1 CPU-seconds more, for the requests."""

PLANNED: Final = 16 << 20
"""What is asked for up to an end no further than this is a range already, of somebody who has others under way."""

LEAST: Final = 1 << 20
"""Bytes that are always taken whole: as many as a stream gathers."""

MOST_WHOLE: Final = 6 << 20
"""Bytes of a response that is taken whole, at the most: what others plan is not always as long as ours."""

MOST_HELD: Final = 64 << 20
"""Bytes of whole responses that are held at a time, beside the memory budget; further ones are streamed."""

SECONDS: Final = 1.0
"""A range takes so long at the most."""

FEW: Final = 8
"""Answers; while there are fewer, none is called late."""

REMEMBERED: Final = 32
"""Measurements that count."""


class Ranges:
    """What the connections to one store give.

    >>> ranges = Ranges()
    >>> ranges.stop(0, None) >> 20, ranges.take(RANGE)
    (4, False)
    >>> ranges.flowed(1 << 20, seconds=0.02)
    >>> ranges.stop(0, None) >> 20, ranges.take(RANGE)
    (4, True)
    >>> for _ in range(FEW):
    ...     ranges.answered(0.2)
    >>> ranges.stop(0, None), ranges.take(RANGE)
    (None, True)
    >>> for _ in range(2):
    ...     ranges.flowed(1 << 20, seconds=2.0)
    >>> ranges.stop(0, None), ranges.take(RANGE)
    (None, False)
    """

    __slots__ = ("_held", "_latencies", "_rates", "_seconds")

    def __init__(self) -> None:
        self._latencies: deque[float] = deque(maxlen=REMEMBERED)
        self._rates: deque[float] = deque(maxlen=REMEMBERED)
        self._seconds: float | None = None
        self._held = 0

    def stop(self, start: int, end: int | None) -> int | None:
        """Where a request from `start` on ends, for bytes up to `end`; None: with the object.

        >>> Ranges().stop(0, PLANNED), Ranges().stop(0, PLANNED + 1)
        (16777216, 4194304)
        """
        if (end is not None and end - start <= PLANNED) or not self._worth_it():
            return end
        return start + RANGE

    def take(self, nbytes: int) -> bool:
        """Whether a response of so many bytes is taken whole; if so, they are held until they are dropped."""
        flows = self._seconds is not None and self._seconds <= SECONDS
        if nbytes > LEAST and not (flows and nbytes <= min(MOST_WHOLE, MOST_HELD - self._held)):
            return False
        self._held += nbytes
        return True

    def drop(self, nbytes: int) -> None:
        """So many bytes that were taken are held no more."""
        self._held -= nbytes

    def answered(self, seconds: float) -> None:
        """A first byte took so long."""
        self._latencies.append(seconds)

    def flowed(self, nbytes: int, seconds: float) -> None:
        """One connection gave so many bytes in that time."""
        if nbytes >= LEAST:
            self._rates.append(nbytes / max(seconds, 1e-6))
            self._seconds = RANGE / median(self._rates)

    def _worth_it(self) -> bool:
        """Whether ranges come as fast as a stream, as far as is known."""
        if self._seconds is None:
            return True
        late = len(self._latencies) >= FEW and min(self._latencies) > self._seconds
        return not late and self._seconds <= SECONDS
