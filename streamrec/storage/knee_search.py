"""KneeSearch: how many parallel workers pay, found by trying a few more.

The number of connections that fills a link is unknown and changes: one connection gives 50 to
100 MB/s, however fast the machine. The search tries a few more, and keeps them if the total rate
grows by at least half of what it would without a bottleneck. Otherwise it removes them, and waits
before it tries again, longer each time. Source: Jain and Ramakrishnan, "Congestion Avoidance in
Computer Networks with a Connectionless Network Layer", 1988: the "knee", not TCP's "cliff", so a
store is never pushed until it refuses.
"""

from __future__ import annotations


class KneeSearch:
    """A search for the number of parallel workers beyond which more of them gain little.

    It keeps a step that brings half of its proportional gain. After it takes a step back it rests
    for 8 measurements, and each time for twice as many, up to 256. `failed` is True once a step was
    taken back.

    Examples:
        >>> search = KneeSearch(start=4, most=32)
        >>> for _ in range(20):  # the link takes 10 connections of 60 MB/s
        ...     search.observe(min(search.target * 60e6, 600e6))
        >>> search.target
        10
    """

    def __init__(self, start: int, most: int) -> None:
        self.target = min(start, most)
        self.most = most
        self.failed = False
        self._before: tuple[int, float] | None = None
        self._rest = 0
        self._next_rest = 8

    def settle(self, rate: float, enough: bool = False) -> bool:
        """Takes the last step back and returns False, unless it has raised the total rate, or the
        rate is `enough`.
        """
        if self._before is None:
            return True
        count, before = self._before
        self._before = None
        if enough or rate - before >= 0.5 * before * (self.target / count - 1):
            return True
        self.target = count
        self.failed = True
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, 256)
        return False

    def rests(self) -> bool:
        """Whether to try no step after this measurement, because one was taken back."""
        if not self._rest:
            return False
        self._rest -= 1
        return True

    def grow(self, rate: float, step: int) -> None:
        """Tries `step` more workers; the current ones give `rate`."""
        self._before = (self.target, rate)
        self.target = min(self.target + step, self.most)

    def observe(self, rate: float, step: int = 0) -> None:
        """Takes the total rate of the current workers, and tries a quarter more, at least `step`,
        if that may pay.

        With fewer than one more for each open shard, a step changes nothing.
        """
        if self.settle(rate) and not self.rests() and self.target < self.most:
            self.grow(rate, max(self.target // 4, step, 1))
