"""Interleave order: in which order the elements of many chains come. Pure: it looks at what has arrived, and plans.

The order is tf.data's: `cycle_length` slots hold a chain each; `block_length` elements are taken from one slot, then
from the next. A chain that ends leaves its slot empty; when the cycle comes round, an empty slot takes the next one.
Slots that are empty are filled at once, in the order in which their turns come: that is as good. With
`deterministic=False` slots that have nothing at hand are passed over.

Rules:
- Where all slots have whole turns to give, many rounds are joined in one chunk; long turns are not copied at all.
- What one pull gives depends on what has arrived; the order of the elements never does, if it is deterministic.
- A position holds no element: it says where the outer chain is at the oldest open input, the numbers of those that
  are open, and where each of them is.
- An input that fails is an error at its turn. All that came before it was given.
- An element that failed takes no place in its input's turn. An input that could not be made is as one without elements.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.merge import in_turn
from streamrec.pipeline.elements.positions import Joined, Place, Position, Positions, Precursor
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.sources.combine.inputs import InputBuffer
from streamrec.pipeline.sources.shards.interleave import CHUNK_BYTES, Plan
from streamrec.pipeline.sources.shards.shard_queue import STRETCH_BYTES, records_begun, shares_of

__all__ = ["InterleaveOrder", "OpenInput", "digest_of"]


class OpenInput(InputBuffer):
    """An element of the outer chain, and what has arrived of the chain that was made of it.

    Attributes:
        ordinal: Its number among the outer chain's elements.
        outer: Where the outer chain is before it.
        chain: The chain; None until it is made.
    """

    def __init__(self, limit: int, arrived: Signal, start: Position | None, ordinal: int, outer: Joined) -> None:
        super().__init__(limit, arrived, start)
        self.ordinal = ordinal
        self.outer = outer
        self.chain: Chain | None = None


class SlotMark(NamedTuple):
    """What is known of an open input before a pull, and where it was. It holds no data."""

    ordinal: int
    outer: Joined
    chain: Chain | None
    places: Joined

    def to_json(self, places: Joined, count: int) -> list[Any]:
        """The input's number, its chain's digest, and its place."""
        return [self.ordinal, self.chain and digest_of(self.chain), places.at(count) or None]


class OrderMark(NamedTuple):
    """Where an interleave is; the next input is not open yet."""

    slots: tuple[SlotMark | None, ...]
    next_ordinal: int
    next_outer: Joined


class InterleaveOrder:
    """The running interleave.

    The caller adds inputs in order, fills their buffers, and calls `pull`.

    Args:
        plan: The order.
        slots: Inputs that are open already, each in its slot.
        cycle: The slot whose turn it is.
        block: How many elements of its turn were given.

    Attributes:
        waiting: Inputs that were added, and have no slot yet.
        complete: No input will be added any more. Set by the caller.
    """

    def __init__(self, plan: Plan, slots: Sequence[OpenInput | None], cycle: int = 0, block: int = 0) -> None:
        self.waiting: deque[OpenInput] = deque()
        self.complete = False
        self._plan = plan
        self._slots = list(slots)
        self._cycle = cycle
        self._block = block

    @property
    def under_way(self) -> int:
        """How many inputs were added and are not used up."""
        return len(self.waiting) + len(self._slots) - self._slots.count(None)

    @property
    def finished(self) -> bool:
        return self.complete and not self.under_way

    def pull(self, next_ordinal: int, next_outer: Joined) -> Chunk | None:
        """The next elements, as far as they have arrived; None where nothing can be taken yet.

        Args:
            next_ordinal: The number of the next input to be added.
            next_outer: Where the outer chain is before it.

        Raises:
            Exception: The error of an input whose turn has come; it leaves its slot with it.
        """
        self._fill()
        ready = self._in_order() if self._plan.deterministic else self._at_hand()
        if ready:
            return self._take(ready, self._mark(next_ordinal, next_outer))
        return self._failure(next_ordinal, next_outer) if self._failed(self._cycle) else None

    def _mark(self, next_ordinal: int, next_outer: Joined) -> OrderMark:
        if self.waiting:
            next_ordinal, next_outer = self.waiting[0].ordinal, self.waiting[0].outer
        slots = [
            None
            if entry is None or entry.ordinal == next_ordinal  # that is the error that the outer chain ended with
            else SlotMark(entry.ordinal, entry.outer, entry.chain, entry.mark())
            for entry in self._slots
        ]
        return OrderMark(tuple(slots), next_ordinal, next_outer)

    def _failed(self, index: int) -> bool:
        """Whether the next element of a slot failed."""
        entry = self._slots[index]
        return entry is not None and entry.failed

    def _failure(self, next_ordinal: int, next_outer: Joined) -> Chunk:
        """The next element of the slot whose turn it is, which failed."""
        entry = self._input(self._cycle)
        error = entry.take_failure()
        if entry.chain is None:
            self._pass()
        following = self._slots[self._cycle]
        place = Joined(()) if following is None else following.mark()
        turn = TurnShares((self._cycle,), (self._cycle,), self._plan.block_length, self._block)
        here = InterleavedPositions(self._mark(next_ordinal, next_outer), turn, (place,))
        return Chunk.failure(error, here, 0)

    def _fill(self) -> None:
        """Empty slots take the next inputs, in the order in which their turns come."""
        size = len(self._slots)
        for index in range(self._cycle, self._cycle + size):
            if self.waiting and self._slots[index % size] is None:
                self._slots[index % size] = self.waiting.popleft()

    def _in_order(self) -> list[int]:
        """The slots that give something now, from the one whose turn it is up to one of which nothing is known."""
        while not self.finished:
            entry = self._slots[self._cycle]
            if entry is not None and entry.available:
                return self._live()
            ended = self.complete if entry is None else entry.exhausted
            if not ended:
                return []
            self._pass()
        return []

    def _live(self) -> list[int]:
        ready = []
        for index in self._around():
            if self._slots[index] is not None:
                ready.append(index)
            elif not self.complete:
                break
        return ready

    def _at_hand(self) -> list[int]:
        """The slots that have something at hand, from the one whose turn it is on."""
        for index in self._around():
            entry = self._slots[index]
            if entry is not None and entry.exhausted:
                self._leave(index)
        self._fill()
        failed = [index for index in self._around() if self._failed(index)]
        slots = [(index, self._slots[index]) for index in self._around()] if not failed else []
        ready = [index for index, entry in slots if entry is not None and entry.available]
        first = next(iter(failed or ready), self._cycle)
        if first != self._cycle:
            self._cycle, self._block = first, 0
        return ready

    def _around(self) -> list[int]:
        """All slots, from the one whose turn it is on."""
        size = len(self._slots)
        return [index % size for index in range(self._cycle, self._cycle + size)]

    def _pass(self) -> None:
        """The slot whose turn it is has nothing more: it is left, and the next one has its turn."""
        index, self._cycle, self._block = self._cycle, (self._cycle + 1) % len(self._slots), 0
        if self._slots[index] is not None:
            self._leave(index)
        self._fill()

    def _leave(self, index: int) -> None:
        entry, self._slots[index] = self._input(index), None
        entry.check()

    def _input(self, index: int) -> OpenInput:
        entry = self._slots[index]
        assert entry is not None
        return entry

    def _take(self, ready: list[int], before: OrderMark) -> Chunk:
        """Elements of these slots, of which the first has something."""
        block, size = self._plan.block_length, len(self._slots)
        first = self._input(ready[0])
        known = self.complete or len(self._live()) == size
        sole = size == 1 or (len(ready) == 1 and (known or not self._plan.deterministic))
        if sole or self._block or first.available < block or block * first.typical_bytes >= STRETCH_BYTES:
            count = first.first if sole else min(first.first, block - self._block)
            ready, order = ready[:1], [ready[0], *([] if sole else [(ready[0] + 1) % size])]
        else:
            count = self._rounds(ready, known)
            order = ready if known else [*ready, (ready[-1] + 1) % size]
        turns = TurnShares(tuple(ready), tuple(order), block, self._block)
        taken = [self._input(slot).take(share) for slot, share in zip(ready, turns.shares(count), strict=True)]
        self._cycle, self._block = turns.next(count)
        positions = InterleavedPositions(before, turns, tuple(part.places for part in taken))
        windows = [part.windows for part in taken if part.windows]
        alone = len(windows) == 1 and len(windows[0]) == 1
        elements = windows[0][0] if alone else in_turn(windows, block)
        return Chunk(elements, positions, sum(part.nbytes for part in taken))

    def _rounds(self, ready: Sequence[int], known: bool) -> int:
        """How many elements to take of all slots in turn: whole rounds, or what there is of one."""
        block = self._plan.block_length
        inputs = [self._input(slot) for slot in ready]
        whole = known or not self._plan.deterministic
        scarce = min(each.available for each in inputs) // block if whole else 0
        most = max(1, CHUNK_BYTES // (sum(each.typical_bytes for each in inputs) * block))
        return min(scarce, most) * len(ready) * block or records_begun(inputs, block)


@dataclass(frozen=True, slots=True)
class TurnShares:
    """Which slots give what in one pull.

    Args:
        ready: The slots that give, in order; the first one may have begun its turn before, if it gives alone.
        order: The slots whose turns follow each other: the ready ones, and the next one if their round is incomplete.
        block: Elements in a turn.
        given: How many of the first turn were given before.
    """

    ready: tuple[int, ...]
    order: tuple[int, ...]
    block: int
    given: int

    def shares(self, count: int) -> list[int]:
        """How many of the first `count` elements each slot gives."""
        return shares_of(count, len(self.ready), self.block)

    def giver(self, index: int) -> tuple[int, int]:
        """Which of the ready slots gives element `index`, and how many it gives before that."""
        number = index // self.block % len(self.ready) if len(self.ready) > 1 else 0
        return number, self.shares(index)[number]

    def next(self, count: int) -> tuple[int, int]:
        """Whose turn it is after `count` elements, and how many of it were given."""
        turns, given = divmod(self.given + count, self.block)
        return self.order[turns % len(self.order)], given


@dataclass(frozen=True, slots=True)
class InterleavedPositions(Positions):
    before: OrderMark
    turns: TurnShares
    taken: tuple[Joined, ...]

    def at(self, index: int) -> Position:
        cycle, block = self.turns.next(index)
        moved = dict(zip(self.turns.ready, zip(self.taken, self.turns.shares(index), strict=True), strict=True))
        oldest = min(filter(None, self.before.slots), key=lambda slot: slot.ordinal, default=None)
        first, outer = (oldest.ordinal, oldest.outer) if oldest else (self.before.next_ordinal, self.before.next_outer)
        slots = [
            slot and slot.to_json(*moved.get(number, (slot.places, 0))) for number, slot in enumerate(self.before.slots)
        ]
        inputs = {"outer": outer.at(0), "first": first, "next": self.before.next_ordinal, "slots": slots}
        return {"source": {**inputs, "cycle": cycle, "block": block}}

    def made_of(self, index: int, row: int) -> Sequence[Precursor | Place]:
        number, before = self.turns.giver(index)
        return self.taken[number].made_of(before, row)


def digest_of(chain: Chain) -> str:
    """A few letters that differ where chains do."""
    return hashlib.blake2b("\n".join(chain.lines()).encode(), digest_size=8).hexdigest()
