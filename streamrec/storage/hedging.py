"""Hedging: when a second request for the same bytes is worth its price. Pure; `request.py` sends it.

A store answers most requests in the usual time and a few very late. A second request, sent when the first is
late by this run's own measure, is then the faster way. Source: Dean and Barroso, "The Tail at Scale", 2013.

Rules:

* The limits are learnt: twice what three quarters of the responses took to begin, four times what 99 of 100 blocks
  took to come. Old observations fade, so that the limits soon follow a network that becomes slow.
* A request's siblings are a measure from the first second: when three times as many requests were answered as still
  wait, those that wait for four times as long as the slowest answer are late. Where no more than that is known, limits
  are guesses: a tenth of the policy's time limits.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge, and at most
  `SAVED` are saved up. In addition a run has an `allowance` of a few hedges before it has earned any, which pays only
  for requests that are later than their siblings. So a network that is slow everywhere costs at most that share more.
* Nothing is late before a floor, which the policy sets.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from streamrec.storage.statistics import BOUNDS

__all__ = ["ALLOWANCE", "EARNS", "FIRST_BYTE_FLOOR", "SAVED", "STALL_FLOOR", "Hedging", "Recent"]


FIRST_BYTE_FLOOR: Final = 0.1
"""Seconds that every response may take to begin, where the policy says nothing else."""

STALL_FLOOR: Final = 0.5
"""Seconds for which every body may give nothing, where the policy says nothing else."""

ALLOWANCE: Final = 4
"""Hedges before any was earned, where the policy says nothing else."""

FEW: Final = 32
"""Answers; while there are fewer, requests that wait for theirs are part of the measure."""

FIRST_BLOCKS: Final = 8
"""Blocks from which on their gaps are a measure."""

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

    __slots__ = ("_counts", "_memory", "seen")

    def __init__(self, memory: int) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._memory = memory
        self.seen = 0

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seen += 1
        if self.seen == self._memory:
            self._counts = [count >> 1 for count in self._counts]
            self.seen = sum(self._counts)

    def quantile(self, share: float) -> float:
        """About what this share of them does not exceed, in seconds; 0.0 where there are none.

        Within its bucket they are taken to be spread evenly: a bucket's bound alone may be 1.4 times too high.
        """
        wanted, below = share * self.seen, 0
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
        stall_guess: Seconds for which a body may give nothing, until enough blocks were seen.
        allowance: Hedges before any was earned, for requests that are later than their siblings.
        first_byte_floor: Seconds that every response may take to begin.
        stall_floor: Seconds for which every body may give nothing.

    Attributes:
        blocks: How many blocks came, on all connections.
        waiting: How many requests wait for their response, hedges included.
        stall_limit: Seconds after which a body that gives nothing is stalled.

    >>> hedging = Hedging(0.5, first_byte_guess=1.5, stall_guess=2.0)
    >>> for _ in range(100):
    ...     hedging.earn()
    ...     hedging.first_byte(0.040)
    >>> hedging.first_byte_limit() == FIRST_BYTE_FLOOR
    True
    >>> [hedging.spend() for _ in range(5)]
    [True, True, True, True, False]
    >>> [hedging.spend(beside_siblings=True) for _ in range(5)]
    [True, True, True, True, False]
    """

    __slots__ = (
        "_allowed",
        "_earned",
        "_first_bytes",
        "_gaps",
        "_guesses",
        "_share",
        "_since_limit",
        "_slowest",
        "blocks",
        "first_byte_floor",
        "stall_floor",
        "stall_limit",
        "waiting",
    )

    def __init__(
        self,
        share: float,
        first_byte_guess: float,
        stall_guess: float,
        allowance: int = ALLOWANCE,
        first_byte_floor: float = FIRST_BYTE_FLOOR,
        stall_floor: float = STALL_FLOOR,
    ) -> None:
        self.blocks = 0
        self.first_byte_floor = first_byte_floor
        self.stall_floor = stall_floor
        self._share = share
        self._earned = 1.0 if share else 0.0  # the first slow request of a run is as bad as any other
        self._allowed = allowance if share else 0
        self._guesses = (max(first_byte_floor, first_byte_guess), max(stall_floor, stall_guess))
        self._first_bytes = Recent(memory=256)
        self._slowest = 0.0
        self.waiting = 0
        self._gaps = Recent(memory=4096)
        self.stall_limit = self._guesses[1]
        self._since_limit = 0

    @property
    def never(self) -> bool:
        """Whether no hedge is ever sent."""
        return not self._share

    def earn(self, requests: float = 1.0) -> None:
        """Requests were sent, other than hedges; or bytes came that count like as many."""
        self._earned = min(SAVED, self._earned + self._share * requests)

    def first_byte(self, seconds: float) -> None:
        """A response began."""
        self._first_bytes.observe(seconds)
        self._slowest = max(self._slowest, seconds)

    def block(self, seconds: float, nbytes: int) -> None:
        """A block of a body came, after `seconds`."""
        self._gaps.observe(seconds)
        self.earn(nbytes / EARNS)
        self.blocks += 1
        self._since_limit += 1
        if self._since_limit == 32 or self.blocks == FIRST_BLOCKS:
            self._since_limit = 0
            self.stall_limit = max(self.stall_floor, 4.0 * self._gaps.quantile(0.99))

    def measured(self) -> bool:
        """Whether enough responses began to say what late is: of all requests so far, those that wait included."""
        answered = self._first_bytes.seen
        return answered >= FEW or answered >= 3 * max(1, self.waiting)

    def first_byte_limit(self) -> float:
        """Seconds after which a response that has not begun is late."""
        if not self.measured():
            return self._guesses[0]
        usual = 2.0 * self._first_bytes.quantile(0.75) if self._first_bytes.seen >= 8 else 4.0 * self._slowest
        return max(self.first_byte_floor, usual)

    def flows_since(self, blocks: int) -> bool:
        """Whether other bodies flow: enough blocks came since the count was `blocks`."""
        return self.blocks - blocks >= FIRST_BLOCKS

    def spend(self, *, beside_siblings: bool = False) -> bool:
        """Whether a hedge may be sent now; if so, it is paid for.

        Args:
            beside_siblings: It is for what is late while others are not: then the allowance may pay for it.
        """
        if self._earned >= 1.0:
            self._earned -= 1.0
            return True
        if beside_siblings and self._allowed:
            self._allowed -= 1
            return True
        return False
