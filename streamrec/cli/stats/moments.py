"""Least, mean, most and standard deviation of numbers that come in parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Moments"]


class Moments:
    """Of all numbers so far.

    >>> moments = Moments()
    >>> moments.add(np.array([1, 2])), moments.add(np.array([6]))
    (None, None)
    >>> moments.count, moments.least, moments.mean, moments.most
    (3, 1, 3.0, 6)

    Attributes:
        count: How many there were.
        least, most: The smallest and the largest; None before the first one.
        mean: Their mean, in float64; 0.0 before the first one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.least: float | int | None = None
        self.most: float | int | None = None
        self.mean = 0.0
        self._squares = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers as a whole population; 0.0 before the first one."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Takes more numbers, all of them finite. (Chan's way to join two means and sums of squares.)"""
        if not len(numbers):
            return
        least, most = numbers.min().item(), numbers.max().item()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        mean = float(numbers.mean(dtype=np.float64))
        squares = float(np.square(numbers.astype(np.float64) - mean).sum())
        count = self.count + len(numbers)
        delta = mean - self.mean
        self._squares += squares + delta * delta * self.count * len(numbers) / count
        self.mean += delta * len(numbers) / count
        self.count = count
