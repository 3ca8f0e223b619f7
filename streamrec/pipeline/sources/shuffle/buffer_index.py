"""The index of a shuffle buffer: which element leaves when another comes. Numbers only, no element is seen.

The order is tf.data's: the buffer is filled; then a random slot is emitted for each input that comes, and at the end of
the input the rest, in random order. It depends on the seed, on the buffer's size and on the weights of the elements
alone (`kernels.exchange` is the rule), never on how the input was cut into chunks.

Rules:
- A row describes an element: START and END (of which the difference is its weight), TAG and REFERENCE. The first three
  are the store's, the reference says which element it is.
- Nothing is copied per element to know where the buffer was: the slots are copied once for each buffer that went
  through. When a state is asked for, the inputs since then are let into another copy, as far as its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.pipeline.elements.positions import Positions

__all__ = ["END", "NO_ROWS", "REFERENCE", "ROW_BYTES", "START", "TAG", "BufferIndex", "Entry", "Rows", "ShuffleRule"]

Rows = npt.NDArray[np.int64]

START, END, TAG, REFERENCE = range(4)
ROW_BYTES = 4 * 8

ROW_WEIGHT = 64
"""What an element weighs beside its bytes, in the buffer's limit."""

NO_ROWS: Rows = np.empty((0, 4), np.int64)


class ShuffleRule(NamedTuple):
    """What the order depends on, beside the elements.

    Attributes:
        capacity: How many elements the buffer holds at most.
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


class BufferIndex:
    """The slots.

    Args:
        rule: What the order depends on.
        rows: What they hold. They are copied.
        step: How many elements they gave so far.
        entry: The last input.
        taken: How many of its rows came in.

    Attributes:
        weight: What the rows weigh.
    """

    def __init__(self, rule: ShuffleRule, rows: Rows, step: int, entry: Entry, taken: int) -> None:
        self.rule = rule
        self.step = step
        self.entry = entry
        self.taken = taken
        self.weight = int((rows[:, END] - rows[:, START]).sum()) + ROW_WEIGHT * len(rows)
        self._slots = np.empty((max(1, min(rule.capacity, rule.limit // ROW_WEIGHT + 1)), 4), np.int64)
        self._slots[: len(rows)] = rows
        self._held = len(rows)

    def freeze(self) -> BufferIndex:
        """A copy that is only replayed: without room for more rows, and without those of the last input."""
        frozen = copy(self)
        frozen._slots, frozen.entry = self.rows.copy(), self.entry._replace(rows=NO_ROWS)
        return frozen

    @property
    def rows(self) -> Rows:
        """What they hold, as a view that may be written to."""
        return self._slots[: self._held]

    @property
    def live_bytes(self) -> int:
        return self.weight - ROW_WEIGHT * self._held

    @property
    def next(self) -> int:
        return self.entry.first + self.taken

    def exchange(self, entry: Entry, taken: int, out: Rows | None, most: int) -> int:
        """Lets an entry's rows in from `taken` on, and up to `most` out. Returns how many went."""
        came, went, self._held, self.weight = kernels.exchange(
            self._slots,
            self._held,
            self.weight,
            self.rule.limit,
            entry.rows[taken:],
            out,
            most,
            self.rule.key,
            self.step,
            entry.ended,
        )
        self.step += went
        self.entry, self.taken = entry, taken + came
        return went

    def thaw(self) -> BufferIndex:
        """A copy with room for as many rows as may come."""
        return BufferIndex(self.rule, self.rows, self.step, self.entry, self.taken)

    def replay(self, entries: Iterator[Entry], gone: int) -> BufferIndex:
        """A copy from which `gone` elements more went, while some of these entries came in."""
        slots = self.thaw()
        while gone:
            gone -= slots.exchange(next(entries), 0, None, gone)
        return slots

    def replay_all(self, entries: Iterator[Entry]) -> BufferIndex:
        """A copy into which all of these entries came."""
        slots = self.thaw()
        for entry in entries:
            taken = 0
            while taken < len(entry.rows):
                slots.exchange(entry, taken, None, len(entry.rows))
                taken = slots.taken
            slots.entry, slots.taken = entry, taken
        return slots

    def rows_after(self, entries: Iterator[Entry], gone: int, count: int) -> Rows:
        """The rows of the `count` elements that go after `gone` others, while these entries come in."""
        slots = self.replay(entries, gone)
        out = np.empty((count, 4), np.int64)
        given = slots.exchange(slots.entry, slots.taken, out, count) if count else 0
        while given < count:
            given += slots.exchange(next(entries), 0, out[given:], count - given)
        return out
