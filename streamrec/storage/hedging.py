"""Hedging: decides when to send a second request for the same bytes; `request.py` sends it.

A store answers most requests in the usual time and a few very late. A second request, sent when the
first is late compared with the other requests of this run, is then likely to be faster. Source:
Dean and Barroso, "The Tail at Scale", 2013. Rules:

* The limits are learnt: twice the 75th percentile of the time to the first byte, four times the
  99th percentile of the time between blocks. Old observations fade, so that the limits soon follow
  a network that becomes slow.
* Until enough answers are seen, concurrent requests serve as the measure: once three times as many
  requests were answered as are waiting, a request is late after four times the slowest answer.
  Before that, limits are guesses: a tenth of the policy's time limits.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge,
  and at most `SAVED` are saved up. In addition a run has an `allowance` of a few hedges before it
  has earned any, which pays only for requests that are later than their siblings. So in a network
  that is slow everywhere, extra traffic stays below that share.
* Nothing is late before a floor, which the policy sets.

Everything here is pure: times are passed in.
"""

from __future__ import annotations

from typing import Final

from streamrec.storage.faults import RetryPolicy
from streamrec.storage.latency import LatencyHistogram

FEW: Final = 32
"""Below this number of answers, waiting requests count in the measure, too."""

FIRST_BLOCKS: Final = 8
"""Blocks after which the times between them are a measure."""

LIMIT_INTERVAL: Final = 32
"""Blocks between two computations of the limit: an estimate reads the whole histogram."""

EARNS: Final = 8 << 20
"""Bytes of a body that earn as much as a request."""

SAVED: Final = 4.0
"""Hedges that may be saved up, and sent together."""


class ResponseLimit:
    """When a response that has not begun is late, learnt from those before.

    Attributes:
        floor: Seconds before which no response is late.
        waiting: How many requests wait for their response, hedges included.

    Examples:
        >>> limit = ResponseLimit(floor=0.01, guess=6.0)
        >>> limit.seconds()
        6.0
        >>> for _ in range(100):
        ...     limit.observe(0.040)
        >>> 0.06 < limit.seconds() < 0.1
        True
    """

    def __init__(self, *, floor: float, guess: float) -> None:
        self.floor = floor
        self.waiting = 0
        self._guess = max(floor, guess)
        self._slowest = 0.0
        self._seen = LatencyHistogram(memory=256)

    def observe(self, seconds: float) -> None:
        """Records the seconds until a response began."""
        self._seen.observe(seconds)
        self._slowest = max(self._slowest, seconds)

    def is_measured(self) -> bool:
        """Whether enough requests were answered, compared with those that wait, to know what is
        late.
        """
        answered = self._seen.seen
        return answered >= FEW or answered >= 3 * max(1, self.waiting)

    def seconds(self) -> float:
        """Returns the seconds after which a response that has not begun is late."""
        if not self.is_measured():
            return self._guess
        if self._seen.seen < FIRST_BLOCKS:
            return max(self.floor, 4.0 * self._slowest)
        return max(self.floor, 2.0 * self._seen.quantile(0.75))


class StallLimit:
    """When a body that gives no new bytes is stalled, learnt from the times between blocks.

    Attributes:
        floor: Seconds before which no body is stalled.
        blocks: How many blocks arrived, on all connections.
    """

    def __init__(self, *, floor: float, guess: float) -> None:
        self.floor = floor
        self.blocks = 0
        self._seconds = max(floor, guess)
        self._gaps = LatencyHistogram(memory=4096)
        self._since_limit = 0

    def observe(self, seconds: float) -> None:
        """Records a block of a body, and the seconds since the one before."""
        self._gaps.observe(seconds)
        self.blocks += 1
        self._since_limit += 1
        if self._since_limit == LIMIT_INTERVAL or self.blocks == FIRST_BLOCKS:
            self._since_limit = 0
            self._seconds = max(self.floor, 4.0 * self._gaps.quantile(0.99))

    def seconds(self) -> float:
        """Returns the seconds after which a body without new bytes is stalled."""
        return self._seconds

    def flows_since(self, blocks: int) -> bool:
        """Whether other bodies make progress: enough blocks arrived since the count was
        `blocks`.
        """
        return self.blocks - blocks >= FIRST_BLOCKS


class HedgeBudget:
    """How many second requests may be sent.

    Examples:
        >>> budget = HedgeBudget(share=0.5, allowance=4)
        >>> for _ in range(100):
        ...     budget.earn()
        >>> [budget.spend() for _ in range(5)]
        [True, True, True, True, False]
        >>> [budget.spend(others_on_time=True) for _ in range(5)]
        [True, True, True, True, False]
    """

    def __init__(self, *, share: float, allowance: int) -> None:
        self._share = share
        # The first slow request of a run is as bad as any other.
        self._earned = 1.0 if share else 0.0
        self._allowed = allowance if share else 0

    def earn(self, requests: float = 1.0) -> None:
        """Adds for requests other than hedges, or for bytes that count as much."""
        self._earned = min(SAVED, self._earned + self._share * requests)

    def spend(self, *, others_on_time: bool = False) -> bool:
        """Takes a hedge; False if the budget is used up. If others are on time, the allowance may
        pay, too.
        """
        if self._earned >= 1.0:
            self._earned -= 1.0
            return True
        if others_on_time and self._allowed:
            self._allowed -= 1
            return True
        return False


class Hedging:
    """What one store's requests have in common: when they are late, and the budget of hedges.

    Attributes:
        never: Whether hedging is off.
        response: When a response is late.
        body: When a body is stalled.
        budget: How many second requests may be sent.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self.never = not policy.hedge_share
        self.response = ResponseLimit(
            floor=policy.first_byte_floor, guess=policy.first_byte_timeout / 10
        )
        self.body = StallLimit(floor=policy.stall_floor, guess=policy.stall_timeout / 10)
        self.budget = HedgeBudget(share=policy.hedge_share, allowance=policy.hedge_allowance)

    def block(self, seconds: float, nbytes: int) -> None:
        """Records a block of a body, and the seconds since the one before."""
        self.body.observe(seconds)
        self.budget.earn(nbytes / EARNS)
