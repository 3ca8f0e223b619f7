"""The most frequent values of very many, in bounded memory (Misra and Gries, 1982).

As long as there are no more different values than fit, counts are exact. Beyond, each is too low by `missed` at most,
and a value that is more frequent than that is never lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["FrequentValues"]

CAPACITY: Final = 10_000


class FrequentValues:
    """Counts of values.

    Args:
        capacity: How many different values are kept, and twice as many for a moment.

    >>> frequent = FrequentValues()
    >>> frequent.add({"cat": 3, "dog": 1}), frequent.add({"dog": 1})
    (None, None)
    >>> frequent.most(1), frequent.different, frequent.exact
    ([('cat', 3)], 2, True)

    Attributes:
        missed: How much too low a count may be.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._counts: dict[Any, int] = {}
        self.missed = 0

    @property
    def exact(self) -> bool:
        """Whether all counts are right."""
        return not self.missed

    @property
    def different(self) -> int | None:
        """How many different values there were; None where they were too many to tell."""
        return len(self._counts) if self.exact else None

    def add(self, counts: Mapping[Any, int]) -> None:
        """Takes more values, each with how often it came."""
        kept = self._counts
        for value, count in counts.items():
            kept[value] = kept.get(value, 0) + count
        if len(kept) > 2 * self._capacity:
            self._prune()

    def most(self, number: int) -> list[tuple[Any, int]]:
        """The most frequent values and their counts; equal ones in the order of their text.

        Values that cannot be told from those that were forgotten are left out.
        """
        told = [(value, count) for value, count in self._counts.items() if count > self.missed]
        return sorted(told, key=lambda pair: (-pair[1], str(pair[0])))[:number]

    def _prune(self) -> None:
        """Lowers all counts by that of the first value that has no room; what is left with none is forgotten."""
        cut = sorted(self._counts.values(), reverse=True)[self._capacity]
        self._counts = {value: count - cut for value, count in self._counts.items() if count > cut}
        self.missed += cut
