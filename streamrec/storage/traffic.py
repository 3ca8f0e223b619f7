"""Traffic: the state that all requests to one store share: statistics, a timer, when requests are
late (`hedging.py`), and a limiter for each bucket (`limiter.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from streamrec.storage.backend import FastPath
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.hedging import Hedging
from streamrec.storage.limiter import Limiter
from streamrec.storage.statistics import Statistics, Tally
from streamrec.storage.timer import SharedTimer


class Traffic:
    """The state that all requests of one Storage share.

    It never hedges without `hedging`. `endpoint` is the URL of the server; "" if the objects' URLs
    contain it; None without a server.
    """

    def __init__(
        self,
        statistics: Statistics | None = None,
        scheme: str = "",
        hedging: Hedging | None = None,
        endpoint: str | None = None,
        fast_paths: Iterable[FastPath] = (),
    ) -> None:
        self.statistics = statistics or Statistics()
        self.tally: Tally = self.statistics.backend(scheme, fast_paths)
        self.hedging = hedging or Hedging(RetryPolicy(hedge_share=0.0))
        self.timer = SharedTimer()
        self._endpoint = endpoint
        self._limiters: dict[str, Limiter] = {}

    def limiter(self, path: str) -> Limiter:
        """Returns the limiter of the bucket (or host) of a URL."""
        bucket = path.partition("://")[2].partition("/")[0]
        limiter = self._limiters.get(bucket)
        if limiter is None:
            limiter = self._limiters[bucket] = Limiter(
                "" if self._endpoint is None else f"{self._endpoint} {bucket}"
            )
        return limiter

    def hedge(
        self, limiter: Limiter, tally: Tally, *, others_on_time: bool = False, stalled: bool = False
    ) -> bool:
        """Takes a second request from the budget and counts it as a hedge; False if it may not be
        sent now.

        A store that throttles gets none, except for a `stalled` body when the limiter allows a
        request now.
        """
        if limiter.rate is not None and not (stalled and limiter.delay(time.monotonic()) == 0.0):
            return False
        if not self.hedging.budget.spend(others_on_time=others_on_time):
            return False
        tally.count("hedges")
        return True
