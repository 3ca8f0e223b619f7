"""Adaptive concurrency: how many connections fill the wire. Pure: told what some gave, it says how many to try.

One connection to an object store gives 50-100 MB/s, however fast the machine; so more are better, until the wire,
the store or the processor is full. Where that is nobody knows before, and it changes. So it is searched for: a few
more are tried, and kept where all of them together give at least half of what the new ones would bring if nothing
were full. Where they do not, they are taken back, and it rests for a while before it tries again, longer each
time (Jain and Ramakrishnan's "knee", not TCP's "cliff": a store is never pushed until it refuses).
"""

from __future__ import annotations

from typing import Final

__all__ = ["MAX_CONNECTIONS", "START", "AdaptiveConcurrency"]

START: Final = 16
"""Connections to begin with: at 60 MB/s each, a 10 Gbit/s wire is nearly full."""

MAX_CONNECTIONS: Final = 32
"""Never more than this many, unless the user says so. At 60 MB/s each they bring 1.9 GB/s, which is more than one
process takes over TLS, and as much as over plain HTTP; beyond, stores begin to refuse, and each costs buffers."""

GROWTH: Final = 0.5
"""Which share of its proportional gain a step must bring, to be kept."""

REST: Final = 8
"""For how many measurements it rests after a step that was taken back; doubled each time."""

LONGEST_REST: Final = 256


class AdaptiveConcurrency:
    """The running search.

    Args:
        start: Connections to begin with.
        most: Never more, from the start.

    Attributes:
        target: How many connections there should be now.
        most: As given.

    Examples:
        >>> concurrency = AdaptiveConcurrency(start=4, most=32)
        >>> for _ in range(20):  # the wire takes 10 connections of 60 MB/s
        ...     concurrency.measured(min(concurrency.target * 60e6, 600e6))
        >>> concurrency.target
        10
    """

    def __init__(self, start: int = START, most: int = MAX_CONNECTIONS) -> None:
        self.target = min(start, most)
        self.most = most
        self._before: tuple[int, float] | None = None
        self._rest = 0
        self._next_rest = REST

    def measured(self, rate: float, step: int = 0) -> None:
        """The connections of `target` gave so much together.

        Args:
            rate: Bytes per second.
            step: Connections to try more at the least (one for each open shard, or the step changes nothing).
        """
        if self._before is not None:
            count, before = self._before
            expected = before * (self.target / count - 1)
            self._before = None
            if rate - before < GROWTH * expected:
                self.target = count
                self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, LONGEST_REST)
                return
        if self._rest:
            self._rest -= 1
        elif self.target < self.most:
            self._before = (self.target, rate)
            self.target = min(self.target + max(self.target // 4, step, 1), self.most)
