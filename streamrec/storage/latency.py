"""Histograms of seconds, from which any quantile can be told within 1 %.

The buckets are logarithmic: each upper bound is `2 ** (1 / 36)`, or 1.9 %, above the one before,
and a quantile is the geometric middle of its bucket. Only buckets that hold something take memory.
Source: Masson, Rim and Lee, "DDSketch: A fast and fully-mergeable quantile sketch with
relative-error guarantees", 2019.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STEPS: Final = 36
"""How many buckets there are up to twice a number of seconds."""

LEAST: Final = 0.001 / 16
"""The upper bound of the first bucket, in seconds."""

BOUNDS: Final[tuple[float, ...]] = tuple(LEAST * 2.0 ** (step / STEPS) for step in range(721))
"""Upper bounds of the buckets in seconds: 62 µs to 65.5 s. One more bucket has no bound."""

_ALL_BOUNDS: Final = (*BOUNDS, math.inf)


@dataclass(frozen=True, slots=True)
class Distribution:
    """A snapshot of a histogram.

    Attributes:
        counts: How many observations each bucket holds, by the bucket's upper bound in seconds, in
            ascending order. The last bound is infinite; empty buckets are left out.
        total: Sum of all observations in seconds.

    >>> latency = LatencyHistogram()
    >>> for _ in range(9):
    ...     latency.observe(0.030)
    >>> latency.observe(1.0)
    >>> distribution = latency.distribution()
    >>> distribution.count, round(distribution.total, 3), round(distribution.quantile(0.9), 3)
    (10, 1.27, 0.03)
    """

    counts: Mapping[float, int] = field(default_factory=dict)
    total: float = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """Returns the seconds that this share of the observations does not exceed, within 1 %; 0.0
        without observations.

        Below 62 µs and above 65.5 s, it is one of these two limits.
        """
        wanted = share * self.count
        seen = 0
        for bound, count in self.counts.items():
            seen += count
            if seen >= wanted:
                return middle(bound)
        return 0.0


def middle(bound: float) -> float:
    """Returns the geometric middle of the bucket with this upper bound."""
    if bound == BOUNDS[0]:
        return bound
    return BOUNDS[-1] if bound == math.inf else bound / 2.0 ** (0.5 / STEPS)


class LatencyHistogram:
    """A histogram of seconds. With a `memory`, it halves all counts after that many observations.

    >>> recent = LatencyHistogram(memory=100)
    >>> for _ in range(1_000):
    ...     recent.observe(0.1)
    >>> for _ in range(300):
    ...     recent.observe(2.0)
    >>> 1.9 < recent.quantile(0.25) < 2.1
    True
    """

    def __init__(self, memory: int = 0) -> None:
        self.counts: dict[int, int] = {}  # by the number of the bucket
        self.total = 0.0
        self.seen = 0
        self._memory = memory

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        bucket = bisect_left(BOUNDS, seconds)
        self.counts[bucket] = self.counts.get(bucket, 0) + 1
        self.total += seconds
        self.seen += 1
        if self.seen == self._memory:
            halves = {bucket: count >> 1 for bucket, count in self.counts.items()}
            self.counts = {bucket: count for bucket, count in halves.items() if count}
            self.seen = sum(self.counts.values())

    def quantile(self, share: float) -> float:
        """Returns the seconds that this share of the observations does not exceed; 0.0 without
        observations.
        """
        return self.distribution().quantile(share)

    def distribution(self) -> Distribution:
        """Returns a copy of the counts; any thread may call it."""
        counts = self.counts.copy()  # one step, which no other thread interrupts
        return Distribution(
            {_ALL_BOUNDS[bucket]: counts[bucket] for bucket in sorted(counts)}, self.total
        )
