"""Traffic: what all requests to one store share: its tally, its limiters, a timer, and what hedging has learnt.

One request goes like this: `turn` waits until the limiter lets it go and counts it; then it is answered
(`answered`) or refused for now (`throttled`). `retry.Failures` calls these for every verb alike.
"""

from __future__ import annotations

import time

from streamrec.storage.resilience.deadlines import SharedTimer
from streamrec.storage.resilience.hedging import Hedging
from streamrec.storage.resilience.limiter import Limiter
from streamrec.storage.telemetry.statistics import Statistics, Tally

__all__ = ["Traffic"]


class Traffic:
    """The requests of one Storage.

    Args:
        statistics: The run's statistics; None: of its own.
        scheme: Under which name the store is counted.
        hedging: When second requests are sent; None: never.
    """

    def __init__(self, statistics: Statistics | None = None, scheme: str = "", hedging: Hedging | None = None) -> None:
        self.statistics = statistics or Statistics()
        self.tally: Tally = self.statistics.backend(scheme)
        self.hedging = hedging or Hedging(0.0, 0.0, 0.0)
        self.timer = SharedTimer()
        self._limiters: dict[str, Limiter] = {}

    def limiter(self, path: str) -> Limiter:
        """The limiter of the bucket (or host) that a URL lies in."""
        bucket = path.partition("://")[2].partition("/")[0]
        limiter = self._limiters.get(bucket)
        if limiter is None:
            limiter = self._limiters[bucket] = Limiter()
        return limiter

    def affords(self, limiter: Limiter, *, beside_siblings: bool = False, stalled: bool = False) -> bool:
        """Whether a request more than are needed may be made now; if so, it is paid for.

        A store that throttles gets none, but for a body that stands still, and in its turn.
        """
        if limiter.pace.rate is not None and not (stalled and limiter.pace.delay(time.monotonic()) == 0.0):
            return False
        return self.hedging.spend(beside_siblings=beside_siblings)

    def hedge(self, limiter: Limiter, tally: Tally, *, beside_siblings: bool = False, stalled: bool = False) -> bool:
        """Whether a second request may be sent now; if so, it is counted and paid for.

        Args:
            limiter: Of the request's bucket.
            tally: Where it is counted.
            beside_siblings: Others are not late.
            stalled: It is for a body that stands still, and not for a response that has not begun.
        """
        if not self.affords(limiter, beside_siblings=beside_siblings, stalled=stalled):
            return False
        limiter.pace.sent(time.monotonic())
        tally.request()
        tally.hedge()
        return True
