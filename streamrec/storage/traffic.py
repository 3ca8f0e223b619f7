"""Traffic: what all requests to one store share. Each request goes through it, whichever verb sends it.

Today that is the count of what happens; see `statistics`.
"""

from __future__ import annotations

from streamrec.storage.statistics import Statistics, Tally

__all__ = ["Traffic"]


class Traffic:
    """The requests of one Storage.

    Args:
        statistics: The run's statistics; None: of its own.
        scheme: Under which name the store is counted.
    """

    def __init__(self, statistics: Statistics | None = None, scheme: str = "") -> None:
        self.statistics = statistics or Statistics()
        self.tally: Tally = self.statistics.backend(scheme)
