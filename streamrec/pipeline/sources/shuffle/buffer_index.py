"""The index of a shuffle buffer: which element leaves when another comes. Numbers only, no element is seen.

The order is tf.data's: the buffer is filled; then a random slot is emitted for each input that comes, and at the end of
the input the rest, in random order. It depends on the seed, on the buffer's size and on the weights of the elements
alone (`kernels.exchange` is the rule), never on how the input was cut into chunks.

Rules:
- A row stands for an element: START and END (of which the difference is its weight), TAG and REFERENCE. The first three
  are the store's, the reference says which element it is.
- Nothing is copied per element to know where the buffer stood: a Base is a copy of the slots that is made once for each
  buffer that went through, and a place behind it is worked out by letting the inputs since then in again, as far as
  that place, when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.pipeline.elements.positions import Positions

__all__ = [
    "END",
    "REFERENCE",
    "ROW_BYTES",
    "ROW_WEIGHT",
    "START",
    "TAG",
    "BufferIndex",
    "Entry",
    "IndexCopy",
    "IndexState",
    "Rows",
    "ShuffleRule",
]

Rows = npt.NDArray[np.int64]

START, END, TAG, REFERENCE = range(4)
ROW_BYTES = 4 * 8

ROW_WEIGHT = 64
"""What an element weighs beside its bytes, in the buffer's limit."""


class ShuffleRule(NamedTuple):
    """What the order depends on, beside the elements.

    Args:
        capacity: How many elements the buffer holds at the most.
        limit: What they may weigh: their bytes, and ROW_WEIGHT each.
        key: What its random numbers come from.
    """

    capacity: int
    limit: int
    key: int


class Entry(NamedTuple):
    """What came in: rows, between which positions, and how many elements came before."""

    rows: Rows
    positions: Positions
    first: int
    ended: bool = False


class IndexState(NamedTuple):
    """Where the buffer stands: what it holds, how many elements it gave, and which input comes next."""

    rows: Rows
    step: int
    entry: Entry
    taken: int

    @property
    def next(self) -> int:
        """The next input's number."""
        return self.entry.first + self.taken


class BufferIndex:
    """The running slots.

    Args:
        rule: See there.
        rows: What they hold.
        step: How many elements they gave so far.
        weight: What the rows weigh; None: to be worked out.
    """

    def __init__(self, rule: ShuffleRule, rows: Rows, step: int, weight: int | None = None) -> None:
        self._rule = rule
        self._slots = np.empty((max(1, min(rule.capacity, rule.limit // ROW_WEIGHT + 1)), 4), np.int64)
        self._slots[: len(rows)] = rows
        self._held = len(rows)
        self.weight = weight_of(rows) if weight is None else weight
        self.step = step

    @property
    def rows(self) -> Rows:
        """What they hold, as a view that may be written to."""
        return self._slots[: self._held]

    @property
    def live_bytes(self) -> int:
        """The bytes of the elements that they hold."""
        return self.weight - ROW_WEIGHT * self._held

    def exchange(self, entry: Entry, taken: int, out: Rows | None, most: int) -> tuple[int, int]:
        """Lets an entry's rows in from `taken` on, and up to `most` out. Returns how many came in and how many went."""
        came, went, self._held, self.weight = kernels.exchange(
            self._slots,
            self._held,
            self.weight,
            self._rule.limit,
            entry.rows[taken:],
            out,
            most,
            self._rule.key,
            self.step,
            entry.ended,
        )
        self.step += went
        return came, went


def weight_of(rows: Rows) -> int:
    """What the elements of these rows weigh."""
    return int((rows[:, END] - rows[:, START]).sum()) + ROW_WEIGHT * len(rows)


@dataclass(frozen=True, slots=True)
class IndexCopy:
    """A copy of the slots, and which input comes next."""

    rule: ShuffleRule
    rows: Rows
    weight: int
    step: int
    entry: Entry
    taken: int

    def place(self, entries: Sequence[Entry], gone: int) -> IndexState:
        """Where the buffer stands when `gone` elements more went, while these entries came in behind the base."""
        return self._replayed(iter(entries), gone)[1]

    def behind(self, entries: Sequence[Entry]) -> IndexState:
        """Where the buffer stands when all of these entries came in behind the base."""
        slots = BufferIndex(self.rule, self.rows, self.step, self.weight)
        for entry in entries:
            taken = 0
            while taken < len(entry.rows):
                taken += slots.exchange(entry, taken, None, len(entry.rows))[0]
        return IndexState(slots.rows, slots.step, entries[-1], len(entries[-1].rows))

    def went(self, entries: Sequence[Entry], gone: int, count: int) -> Rows:
        """The rows of the `count` elements that went after `gone` others."""
        coming = iter(entries)
        slots, (_, _, entry, taken) = self._replayed(coming, gone)
        out = np.empty((count, 4), np.int64)
        given = 0
        while True:
            given += slots.exchange(entry, taken, out[given:], count - given)[1]
            if given == count:
                return out
            entry, taken = next(coming), 0

    def _replayed(self, coming: Iterator[Entry], gone: int) -> tuple[BufferIndex, IndexState]:
        """The slots when `gone` more elements went, and where that is."""
        slots = BufferIndex(self.rule, self.rows, self.step, self.weight)
        entry, taken = self.entry, self.taken
        while gone:
            entry = next(coming)
            taken, went = slots.exchange(entry, 0, None, gone)
            gone -= went
        return slots, IndexState(slots.rows, slots.step, entry, taken)
