"""Hedging: when a second request for the same bytes is worth its price. Pure; `hedged_requests.py` does it.

A store answers most requests in the usual time and a few very late. A second request, sent when the first is
late by this run's own measure, is then the faster way. Source: Dean and Barroso, "The Tail at Scale", 2013.

Rules:

* The limits are learnt: twice what three quarters of the responses took to begin, four times what 99 of 100 blocks
  took to come. Until enough was seen they are guesses, a tenth of the policy's time limits. Old observations
  fade, so that a network that becomes slow is soon taken for what it is.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge, and not more than
  `SAVED` are saved up. So a network that is slow everywhere costs at most that share more.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from streamrec.storage.telemetry.statistics import BOUNDS

__all__ = ["EARNS", "FIRST_BYTE_FLOOR", "SAVED", "STALL_FLOOR", "Hedging", "Recent"]

FIRST_BYTE_FLOOR: Final = 0.1
"""Seconds that every response may take to begin."""

STALL_FLOOR: Final = 0.5
"""Seconds that every body may stand still."""

EARNS: Final = 8 << 20
"""Bytes of a body that count like a request."""

SAVED: Final = 4.0
"""Hedges that may be saved up, and sent together."""


class Recent:
    """A histogram that forgets: each time it has seen `memory` observations, all counts are halved.

    >>> recent = Recent(memory=100)
    >>> for _ in range(1_000):
    ...     recent.observe(0.1)
    >>> for _ in range(300):
    ...     recent.observe(2.0)
    >>> 1.4 < recent.quantile(0.25) < 2.1
    True
    """

    __slots__ = ("_counts", "_memory", "_seen")

    def __init__(self, memory: int) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._memory = memory
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seen += 1
        if self._seen == self._memory:
            self._counts = [count >> 1 for count in self._counts]
            self._seen = sum(self._counts)

    def quantile(self, share: float) -> float:
        """About what this share of them does not exceed, in seconds; 0.0 where there are none.

        Within its bucket they are taken to lie evenly: a bucket's bound alone may be 1.4 times too high.
        """
        wanted, below = share * self._seen, 0
        for index, count in enumerate(self._counts):
            if count and below + count >= wanted:
                low = BOUNDS[index - 1] if index else 0.0
                high = BOUNDS[min(index, len(BOUNDS) - 1)]
                return low + (high - low) * (wanted - below) / count
            below += count
        return 0.0


class Hedging:
    """What one store's answers taught, and what hedges they have paid for.

    Args:
        share: Hedges that each request earns, from 0 (never hedge) to 1.
        first_byte_guess: Seconds that a response may take to begin, until enough were seen.
        stall_guess: Seconds that a body may stand still, until enough blocks were seen.

    >>> hedging = Hedging(0.5, first_byte_guess=1.5, stall_guess=2.0)
    >>> for _ in range(100):
    ...     hedging.requested()
    ...     hedging.first_byte(0.040)
    >>> hedging.first_byte_limit() == FIRST_BYTE_FLOOR
    True
    >>> [hedging.spend() for _ in range(5)]
    [True, True, True, True, False]
    """

    __slots__ = ("_earned", "_first_bytes", "_gaps", "_guesses", "_share", "_since_limit", "_stall_limit")

    def __init__(self, share: float, first_byte_guess: float, stall_guess: float) -> None:
        self._share = share
        self._earned = 1.0 if share else 0.0  # the first slow request of a run is as bad as any other
        self._guesses = (first_byte_guess, stall_guess)
        self._first_bytes = Recent(memory=256)
        self._gaps = Recent(memory=4096)
        self._stall_limit = stall_guess
        self._since_limit = 0

    def requested(self) -> None:
        """A request was sent, other than a hedge."""
        self._earn(self._share)

    def first_byte(self, seconds: float) -> None:
        """A response began."""
        self._first_bytes.observe(seconds)

    def block(self, seconds: float, nbytes: int) -> None:
        """A block of a body came, after so many seconds."""
        self._gaps.observe(seconds)
        self._earn(self._share * nbytes / EARNS)
        self._since_limit += 1
        if self._since_limit == 32:
            self._since_limit = 0
            self._stall_limit = max(STALL_FLOOR, 4.0 * self._gaps.quantile(0.99))

    def first_byte_limit(self) -> float:
        """Seconds after which a response that has not begun is late."""
        if len(self._first_bytes) < 8:
            return self._guesses[0]
        return max(FIRST_BYTE_FLOOR, 2.0 * self._first_bytes.quantile(0.75))

    def stall_limit(self) -> float:
        """Seconds after which a body that stands still is stalled."""
        return self._stall_limit

    def spend(self) -> bool:
        """Whether a hedge may be sent now; if so, it is paid for."""
        if self._earned < 1.0:
            return False
        self._earned -= 1.0
        return True

    def _earn(self, amount: float) -> None:
        self._earned = min(SAVED, self._earned + amount)
