"""What one pull of an interleave takes: which turns, and how many elements.

Pure: it is decided from what has arrived. There are three cases, each with a drawing: a block as it
arrived (`_block_as_it_arrived`), the rest of one turn (`_one_turn`), and whole rounds
(`_whole_rounds`). How many elements a pull takes never changes their order.

In the drawings, a digit is the round in which an element is given, and `|` the end of a batch that
a later stage makes.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Protocol

CHUNK_BYTES = 12 << 20
"""The size of a pull: larger ones cost memory, smaller ones cost time for each pull."""

LONG_CHUNK_RECORDS = 256
LONG_CHUNK_BYTES = 32 << 20
"""A pull of long records takes this many records, but at most LONG_CHUNK_BYTES.

Each queue costs time in each pull. Not of shorter records, though these are not copied either:
parsed, a pull of tokens is five times as large.
"""

AVAILABLE: Final = attrgetter("available")
TYPICAL_BYTES: Final = attrgetter("typical_bytes")


class TurnInput(Protocol):
    """What a pull must know of an input: see `ArrivedElements`."""

    available: int
    typical_bytes: int

    @property
    def first(self) -> int:
        """How many elements can be taken without a copy."""

    @property
    def comes(self) -> bool:
        """Whether more elements will certainly arrive before any is taken."""


def shares_of(count: int, inputs: int, block: int) -> list[int]:
    """How many of `count` elements each of several inputs gives in turns of `block`.

    >>> shares_of(11, 3, 2)
    [4, 4, 3]
    """
    rounds, rest = divmod(count, inputs * block)
    return [rounds * block + min(max(rest - index * block, 0), block) for index in range(inputs)]


@dataclass(frozen=True, slots=True)
class TurnShares:
    """Which slots give which elements in one pull.

    Args:
        ready: The slots that give elements, in order; a single one may be within its turn.
        order: The slots in the order of turns: the ready ones, and the next one if the round is
            incomplete.
        block: Elements in a turn.
        given: How many elements of the first turn were given before.
    """

    ready: tuple[int, ...]
    order: tuple[int, ...]
    block: int
    given: int

    def next(self, count: int) -> tuple[int, int]:
        """Which slot's turn it is after `count` elements, and how many the turn has given."""
        turns, given = divmod(self.given + count, self.block)
        return self.order[turns % len(self.order)], given

    def shares(self, slots: int, count: int) -> list[int]:
        """How many of the first `count` elements each of `slots` slots gives."""
        shares = [0] * slots
        ready = self.ready
        for slot, share in zip(ready, shares_of(count, len(ready), self.block), strict=True):
            shares[slot] = share
        return shares


@dataclass(frozen=True, slots=True)
class BatchEnds:
    """Where batches of `batch` elements end; `pulled` elements were pulled before.

    A batch that spans two pulls is copied once more, so pulls end where batches do, if possible.

    >>> ends = BatchEnds(batch=10, pulled=4)
    >>> ends.last_before(20), ends.last_before(5), ends.next_after(20), ends.missing
    (16, 0, 26, 6)
    >>> ends.after(5).missing
    1
    """

    batch: int
    pulled: int

    def last_before(self, count: int) -> int:
        """The largest number of elements up to `count` after which a batch ends, or 0."""
        return max(0, count - (self.pulled + count) % self.batch)

    def next_after(self, count: int) -> int:
        """The smallest number of elements from `count` on after which a batch ends."""
        return count + -(self.pulled + count) % self.batch

    def after(self, count: int) -> BatchEnds:
        """The ends after `count` more elements were pulled."""
        return BatchEnds(self.batch, self.pulled + count)

    @property
    def missing(self) -> int:
        """How many elements the current batch still needs."""
        return self.batch - self.pulled % self.batch


@dataclass(frozen=True, slots=True)
class Pull:
    """What one pull takes: `count` elements of the slots in `turns`.

    If it takes none, it is tried again when each input in `awaited` has that many elements
    available, or gives no more: an input of small chunks is not looked at after each of them.
    """

    turns: TurnShares
    count: int
    awaited: Mapping[Any, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullPlanner:
    """Decides what a pull takes of the inputs that have elements now.

    Args:
        slots: The input in each slot, None for an empty one.
        block: Elements in a turn.
        given: How many elements the first turn gave before.
        ends: Where batches end.
        max_bytes: The most bytes of a pull of long records, if more than CHUNK_BYTES.
        complete: Whether all inputs are known: no unknown one may take an empty slot.
        ordered: Whether the order is fixed. If not, slots without elements are skipped.
        whole_blocks: Whether, without a fixed order, a turn takes what arrived together.
    """

    slots: Sequence[Any]
    block: int
    given: int
    ends: BatchEnds
    max_bytes: int
    complete: bool
    ordered: bool
    whole_blocks: bool

    def plan(self, ready: Sequence[int]) -> Pull:
        """The pull of these slots, the first of which has its turn and available elements."""
        if self.whole_blocks and not self.ordered:
            return self._block_as_it_arrived(ready[0])
        first: TurnInput = self.slots[ready[0]]
        sole = len(self.slots) == 1 or (len(ready) == 1 and self._goes_around)
        # One round of long turns may be more than a pull; otherwise a pull takes whole rounds: a
        # chunk for each turn of 256 KiB cost 1.93 instead of 0.89 CPU-s/GB, as batches spanned
        # chunks.
        wanted = self._wanted_bytes(first.typical_bytes)
        is_long = len(ready) * self.block * first.typical_bytes > wanted
        if sole or self.given or first.available < self.block or is_long:
            return self._one_turn(ready[0], sole)
        return self._whole_rounds(ready)

    def _block_as_it_arrived(self, slot: int) -> Pull:
        """All that came together, in one turn: it is not copied. Only without a fixed order.

        slot 0    [. . . . .] [. . .]     two blocks have arrived
        slot 1    [. . . .]
        pull      [0 0 0 0 0]             the first block, however long a turn is
        next      slot 1
        """
        count = self.slots[slot].first
        return Pull(TurnShares((slot,), (slot, self._after(slot)), count, 0), count)

    def _one_turn(self, slot: int, sole: bool) -> Pull:
        """The rest of one turn: from the first chunk, or from two if a batch spans them.

            slot 0    [. . . . . . .] [. . . . . . .]     two chunks have arrived
            batches   . . . | . . . . . | . . . .
            pull      0 0 0                               the first chunk, up to the end of a batch;
            or        0 0 0 0 0 0 0 0 0                   if none ends there, up to the next end

        A sole input has no turns. If the batch is not complete, and its rest will come, it waits.
        """
        entry: TurnInput = self.slots[slot]
        order = (slot,) if sole else (slot, self._after(slot))
        turns = TurnShares((slot,), order, self.block, self.given)
        limit = sys.maxsize if sole else self.block - self.given
        first = min(entry.first, limit)
        two_chunks = min(entry.available, limit, first + self.ends.batch)
        count = self.ends.last_before(first) or self.ends.last_before(two_chunks)
        if count or entry.available >= limit or not self._waits(entry):
            return Pull(turns, count or first)
        return Pull(turns, 0, {entry: min(self.ends.missing, limit)})

    def _whole_rounds(self, ready: Sequence[int]) -> Pull:
        """Whole rounds of all inputs, as many as the scarcest has, up to the size of a pull.

            slot 0    0 0 1 1 2 2 .           turns of two; slot 1 has two whole turns
            slot 1    0 0 1 1 .
            pull      0 0 0 0 1 1 | 1 1       both rounds; of these, up to the last end of a batch
            or        0 0 0                   not even one round: up to the first missing element

        If no batch ends there, and its rest will come, it waits for the inputs that must give more.
        """
        inputs: list[TurnInput] = [self.slots[slot] for slot in ready]
        order = ready if self._all_known else [*ready, self._after(ready[-1])]
        turns = TurnShares(tuple(ready), tuple(order), self.block, 0)
        scarce = min(inputs, key=AVAILABLE)
        rounds = scarce.available // self.block if self._goes_around else 0
        most = self._most_rounds(inputs)
        count = min(rounds, most) * len(inputs) * self.block or self._incomplete_round(inputs)
        end = self.ends.last_before(count)
        if end or rounds >= most or not self._waits(scarce):
            return Pull(turns, end or count)
        shares = shares_of(self.ends.missing, len(inputs), self.block)
        awaited = {
            entry: share
            for entry, share in zip(inputs, shares, strict=True)
            if entry.available < share and entry.comes
        }
        return Pull(turns, 0, awaited or {scarce: scarce.available + 1})

    def _most_rounds(self, inputs: Sequence[TurnInput]) -> int:
        """How many rounds make a pull of the wanted size, at least one."""
        typical = sum(map(TYPICAL_BYTES, inputs)) // len(inputs)
        wanted: int = self._wanted_bytes(typical) // typical
        end = self.ends.next_after(wanted)
        if end - wanted <= wanted // 2:
            wanted = end  # a few more, up to the end of a batch
        return max(1, wanted // (len(inputs) * self.block))

    def _incomplete_round(self, inputs: Sequence[TurnInput]) -> int:
        """How many elements come before the first missing one of a round."""
        count = 0
        for entry in inputs:
            count += min(entry.available, self.block)
            if entry.available < self.block:
                break
        return count

    @property
    def _all_known(self) -> bool:
        """Whether no unknown input may take a slot: it would end the round after the ready ones."""
        return self.complete or None not in self.slots

    @property
    def _goes_around(self) -> bool:
        """Whether another round may follow; without a fixed order, it skips what is missing."""
        return self._all_known or not self.ordered

    def _after(self, slot: int) -> int:
        """The slot whose turn follows."""
        return (slot + 1) % len(self.slots)

    def _wanted_bytes(self, typical: int) -> int:
        """The size of a pull of elements of typical size."""
        return max(CHUNK_BYTES, min(LONG_CHUNK_RECORDS * typical, self.max_bytes))

    def _waits(self, entry: TurnInput) -> bool:
        """Whether to wait for more elements of this input.

        They will certainly arrive, and a batch is not too large.
        """
        return entry.comes and self.ends.batch * entry.typical_bytes <= CHUNK_BYTES
