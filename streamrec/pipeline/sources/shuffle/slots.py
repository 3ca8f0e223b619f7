"""The slots of a shuffle buffer: rows that describe its elements, and how they are exchanged.

It is pure. `kernels.exchange` is the rule of the order: the buffer is filled; then each arriving
row takes a random slot, whose row is given; at the end of the input the rest is given in random
order. It depends only on the seed, the buffer's size and the weights of the elements, never on how
the input was cut into chunks. So a `BufferIndex` that takes the same entries again gives the same
rows: what a position holds is found by such a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import numpy as np

from streamrec import kernels
from streamrec.pipeline.elements.positions import Positions
from streamrec.pipeline.sources.shuffle.buffer_store import END, START, Numbers

ROW_WEIGHT = 64
"""What an element weighs in the buffer's limit, besides its bytes."""

NO_ROWS: Numbers = np.empty((0, 4), np.int64)


class ShuffleRule(NamedTuple):
    """What the order depends on, besides the elements.

    At most `capacity` elements, with ROW_WEIGHT each, weigh up to `limit`; `key` is that of the
    random numbers. It is `strict` if exceeding the limit is an error.
    """

    capacity: int
    limit: int
    key: int
    strict: bool = False


class Entry(NamedTuple):
    """Input of the buffer: rows, the positions between them, and how many elements came before."""

    rows: Numbers
    positions: Positions
    first: int
    ended: bool = False


class BufferIndex:
    """The slots, with a copy of their rows, after some exchanges.

    `step` elements were given and `taken` rows of `entry` taken. `weight` is that of the rows.
    """

    def __init__(
        self, rule: ShuffleRule, rows: Numbers, step: int, entry: Entry, taken: int
    ) -> None:
        self.rule = rule
        self.step = step
        self.entry = entry
        self.taken = taken
        self.weight = int((rows[:, END] - rows[:, START]).sum()) + ROW_WEIGHT * len(rows)
        room = max(1, min(rule.capacity, rule.limit // ROW_WEIGHT + 1))
        self._slots = np.empty((room, 4), np.int64)
        self._slots[: len(rows)] = rows
        self._held = len(rows)

    def copy_compact(self) -> BufferIndex:
        """A copy for `replay`.

        It has no room for more rows, and not the rows of the last entry.
        """
        compact = copy(self)
        compact._slots = self.rows.copy()
        compact.entry = self.entry._replace(rows=NO_ROWS)
        return compact

    @property
    def rows(self) -> Numbers:
        """The rows in the slots, as a writable view."""
        return self._slots[: self._held]

    @property
    def live_bytes(self) -> int:
        """The bytes of the elements in the slots, without the weight of their rows."""
        return self.weight - ROW_WEIGHT * self._held

    @property
    def next(self) -> int:
        """The number of the input's next element."""
        return self.entry.first + self.taken

    def take_in(self, entry: Entry, taken: int, out: Numbers | None, most: int) -> int:
        """Takes an entry's rows from `taken` on, and gives up to `most` rows.

        Returns how many it gave.
        """
        arrived, given, self._held, self.weight = kernels.exchange(
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
        self.step += given
        self.entry = entry
        self.taken = taken + arrived
        return given

    def copy_with_room(self) -> BufferIndex:
        """A copy with room for all rows that may come."""
        return BufferIndex(self.rule, self.rows, self.step, self.entry, self.taken)

    def replay(self, entries: Iterator[Entry], count: int) -> BufferIndex:
        """A copy that gave `count` more elements while it took some of these entries."""
        slots = self.copy_with_room()
        while count:
            count -= slots.take_in(next(entries), 0, None, count)
        return slots

    def replay_all(self, entries: Iterator[Entry]) -> BufferIndex:
        """A copy that took all of these entries."""
        slots = self.copy_with_room()
        for entry in entries:
            taken = 0
            while taken < len(entry.rows):
                slots.take_in(entry, taken, None, len(entry.rows))
                taken = slots.taken
            slots.entry = entry
            slots.taken = taken
        return slots

    def rows_after(self, entries: Iterator[Entry], skipped: int, count: int) -> Numbers:
        """The rows of the `count` elements that are given while these entries are taken.

        The elements come after `skipped` others.
        """
        slots = self.replay(entries, skipped)
        out = np.empty((count, 4), np.int64)
        given = slots.take_in(slots.entry, slots.taken, out, count) if count else 0
        while given < count:
            given += slots.take_in(next(entries), 0, out[given:], count - given)
        return out
