"""A group's window: which record comes when, where so many parts of blocks are mixed at a time.

Round t of a group mixes parts t to t + window - 1. A part stays for `window` rounds (at both ends of the group for
fewer), and each of them has an equal share of its records, drawn at random; the records of a round are permuted. So one
part comes and one goes in each round, what is read flows evenly, and each record is mixed with those of `window` parts.

Rules:
- Everything is worked out from the group's parts and the keys. Any place of the group is found in O(window), without
  the places before it.
- A round knows parts and records within them, no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streamrec.pipeline.sources.global_shuffle.blocks import Numbers, Parts, keys_of, permuted

__all__ = ["Round", "Window"]


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """One round's records, in order.

    Args:
        number: Which round.
        first: How many records of the group come before it.
        parts: int64 [n]: the part in which each record lies.
        offsets: int64 [n]: which of that part's records it is.
    """

    number: int
    first: int
    parts: Numbers
    offsets: Numbers

    @property
    def last(self) -> int:
        """How many records of the group come before the next round."""
        return self.first + len(self.parts)


@dataclass(frozen=True, eq=False)
class Window:
    """The order of one group.

    Args:
        parts: What it reads.
        size: How many parts are mixed at a time, one at the least.
        key: Values that tell its order from that of others: see `keys_of`.
    """

    parts: Parts
    size: int
    key: tuple[object, ...]

    @cached_property
    def rounds(self) -> int:
        """How many rounds there are."""
        return max(1, len(self.parts) - self.size + 1) if len(self.parts) else 0

    @cached_property
    def total(self) -> int:
        """How many records the group has."""
        return int(self._before[-1])

    def first_round(self, part: int) -> int:
        """The round in which a part is needed first."""
        return min(max(0, part - self.size + 1), self.rounds - 1)

    def last_round(self, part: int) -> int:
        """The round in which it is needed last."""
        return min(part, self.rounds - 1)

    def parts_until(self, number: int) -> int:
        """How many parts are needed by a round and those before it."""
        return len(self.parts) if number >= self.rounds - 1 else number + self.size

    def begin(self, number: int) -> int:
        """How many records come before a round."""
        if number >= self.rounds:
            return self.total
        active = np.arange(number, self.parts_until(number))
        return int(self._before[number] + self._given(active, number).sum())

    def round_of(self, index: int) -> int:
        """The round of the group's record `index`."""
        low, high = 0, self.rounds - 1
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.begin(middle) <= index else (low, middle - 1)
        return low

    def round(self, number: int) -> Round:
        """A round's records."""
        active = np.arange(number, self.parts_until(number))
        begun, ended = self._given(active, number), self._given(active, number + 1)
        counts = ended - begun
        part = np.repeat(active, counts)
        drawn = np.arange(len(part)) - np.repeat(np.cumsum(counts) - counts - begun, counts)
        mixed = permuted(np.arange(len(part)), max(1, len(part)), self._round_keys, number)
        part, drawn = part[mixed], drawn[mixed]
        offsets = permuted(drawn, self.parts.counts[part], self._part_keys, part)
        return Round(number, int(self._before[number] + begun.sum()), part, offsets)

    def _given(self, active: Numbers, number: int) -> Numbers:
        """How many records of these parts, none of which ends before a round, come before it."""
        last = self.rounds - 1
        first = np.minimum(np.maximum(0, active - self.size + 1), last)
        stay = np.minimum(active, last) - first + 1
        given: Numbers = np.clip(number - first, 0, stay) * self.parts.counts[active] // stay
        return given

    @cached_property
    def _before(self) -> Numbers:
        return np.concatenate([[0], np.cumsum(self.parts.counts)]).astype(np.int64)

    @cached_property
    def _round_keys(self) -> Numbers:
        return keys_of("round", *self.key)

    @cached_property
    def _part_keys(self) -> Numbers:
        return keys_of("part", *self.key)
