"""A histogram of numbers whose range nobody knows before they have all come.

Bins are [k * 2**e, (k + 1) * 2**e) for whole k. Where a number lies outside, the width doubles until all fit, and
neighbours are joined: no count is ever moved over a bin's edge, so the result does not depend on the order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["Bin", "Histogram"]

BINS: Final = 512
DIGITS: Final = 40
"""Binary digits of the largest number below which no bin is narrower."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Numbers from `start` up to and not including `end`, and how many there were."""

    start: float
    end: float
    count: int


class Histogram:
    """Counts of numbers in at most 512 bins.

    Args:
        whole: Whether the numbers are whole, so that no bin needs to be narrower than 1.

    >>> histogram = Histogram(whole=True)
    >>> histogram.add(np.array([1, 1, 2])), histogram.add(np.array([3, 7]))
    (None, None)
    >>> [(bin.start, bin.end, bin.count) for bin in histogram.bins(4)]
    [(0.0, 2.0, 2), (2.0, 4.0, 2), (4.0, 6.0, 0), (6.0, 8.0, 1)]
    """

    def __init__(self, whole: bool = False) -> None:
        self._whole = whole
        self._exponent = 0
        self._first = 0
        self._counts = np.zeros(0, np.int64)
        self._least = math.inf
        self._most = -math.inf

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Takes more numbers, all of them finite."""
        if not len(numbers):
            return
        least, most = float(numbers.min()), float(numbers.max())
        if least < self._least or most > self._most:
            self._make_room(min(least, self._least), max(most, self._most))
        places = np.floor(np.ldexp(numbers.astype(np.float64), -self._exponent)).astype(np.int64)
        places[(places == 0) & (numbers < 0)] = -1  # so small beside the width that it became 0
        self._counts += np.bincount(places - self._first, minlength=len(self._counts))

    def bins(self, most: int) -> list[Bin]:
        """The counts in at most so many bins, from that of the least number to that of the largest one."""
        used = len(self._counts)
        if not used:
            return []
        shift = 0
        while (self._last >> shift) - (self._first >> shift) >= most:
            shift += 1
        first = self._first >> shift
        places = ((np.arange(used) + self._first) >> shift) - first
        counts = np.bincount(places, self._counts).astype(np.int64)
        width = math.ldexp(1.0, self._exponent + shift)
        return [
            Bin((first + index) * width, (first + index + 1) * width, count)
            for index, count in enumerate(counts.tolist())
        ]

    @property
    def _last(self) -> int:
        return self._first + len(self._counts) - 1

    def _make_room(self, least: float, most: float) -> None:
        """Makes bins for all numbers from `least` to `most`, and puts the counts so far into them."""
        exponent = self._finest(least, most)
        if len(self._counts):
            exponent = max(exponent, self._exponent)
        while index(most, exponent) - index(least, exponent) >= BINS:
            exponent += 1
        first = index(least, exponent)
        counts = np.zeros(index(most, exponent) - first + 1, np.int64)
        moved = ((np.arange(len(self._counts)) + self._first) >> (exponent - self._exponent)) - first
        np.add.at(counts, moved, self._counts)
        self._exponent, self._first, self._counts = exponent, first, counts
        self._least, self._most = least, most

    def _finest(self, least: float, most: float) -> int:
        """The exponent of the narrowest bins that make sense of such numbers."""
        exponent = math.frexp(max(abs(least), abs(most)))[1] - DIGITS
        return max(0, exponent) if self._whole else max(-1022, exponent)


def index(number: float, exponent: int) -> int:
    return math.floor(math.ldexp(number, -exponent)) or -int(number < 0)
