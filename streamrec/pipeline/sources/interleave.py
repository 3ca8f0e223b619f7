"""Interleave: the order of the elements of many inputs, which are shards or datasets.

Pure: it plans from what has arrived.

The order is tf.data's: `cycle_length` slots hold an input each; `block_length` elements are taken
from one slot, then from the next. An input that ends leaves its slot empty; when the slot's turn
comes, it takes the next input. So the order depends only on the inputs, never on which bytes came
first. Empty slots are filled at once, in the order of their turns, which is equivalent. With
`deterministic=False`, slots without available elements are skipped.

Elements are never handled one by one: a pull takes many rounds of turns. Short records are copied
in order by one kernel call; longer ones, and long slices of one input, are not copied.

Rules:
- A pull takes whole rounds, if they fit into it: many small chunks cost more than copies. Otherwise
  it takes one turn.
- A pull ends between two batches if possible (`batch`, `skip`: how elements are batched later),
  since a batch that spans chunks is copied once more. A pull waits for that, but only while more
  elements will certainly arrive.
- How many elements a pull gives depends on what has arrived; their order does not, if it is
  deterministic.
- A position has the position of each open input, and the next input. It holds no element.
- An input that fails is an error at its turn, after all earlier elements.
- A failed element does not count in its input's turn. An input that could not be made has no
  elements.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from streamrec.arguments import check_flag, check_integer
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import in_turn
from streamrec.pipeline.elements.positions import Joined, Location, Origin, Position, Positions
from streamrec.pipeline.engine.description import AUTOTUNE
from streamrec.pipeline.sources.inputs import ArrivedElements

CHUNK_BYTES = 12 << 20
"""The size of a pull: larger ones cost memory, smaller ones cost time for each pull."""

LONG_CHUNK_RECORDS = 256
LONG_CHUNK_BYTES = 32 << 20
"""A pull of long records takes this many records, but at most LONG_CHUNK_BYTES.

Each queue costs time in each pull. Not of shorter records, though these are not copied either:
parsed, a pull of tokens is five times as large.
"""

AUTO_CYCLE = 16
"""The default cycle length: as many as a run's first connections.

The order must not depend on the machine, so this is a constant.
"""

AVAILABLE: Final = attrgetter("available")
TYPICAL_BYTES: Final = attrgetter("typical_bytes")


@dataclass(frozen=True, slots=True)
class Plan:
    """How inputs take turns: see the top of this file.

    `deterministic=None` follows the run's options (`within`).
    """

    cycle_length: int = 1
    block_length: int = 1
    deterministic: bool | None = True

    @classmethod
    def of(
        cls, cycle_length: int | None, block_length: int = 1, deterministic: bool | None = True
    ) -> Plan:
        """The plan of a user's arguments; a `cycle_length` of None or AUTOTUNE is `AUTO_CYCLE`."""
        cycle = check_integer(
            "cycle_length", AUTO_CYCLE if cycle_length in (None, AUTOTUNE) else cycle_length, 1
        )
        if deterministic is not None:
            check_flag("deterministic", deterministic)
        return cls(cycle, check_integer("block_length", block_length, 1), deterministic)

    @property
    def open_inputs(self) -> int:
        """How many inputs are open at once.

        These are the ones that take turns, and a few that are opened before their turns.
        """
        return self.cycle_length + max(2, self.cycle_length // 4)

    def within(self, deterministic: bool) -> Plan:
        """This plan in a run with this option."""
        return replace(self, deterministic=deterministic) if self.deterministic is None else self


class OpenSlot(NamedTuple):
    """An open input: its `origin` (see `ArrivedElements`), and its positions."""

    origin: Any
    positions: Joined


I = TypeVar("I", bound=ArrivedElements)  # noqa: E741


class Interleave(Generic[I]):
    """The running interleave of the inputs in slots, None for an empty one.

    The slot `cycle` has its turn, in which `block` elements were given. A later stage makes batches
    of `batch` elements, after the first `skip` ones. A pull of long records has at most
    `max_bytes`, or CHUNK_BYTES.

    It is `complete` if all inputs are known. If the last pull gave nothing, the inputs in `awaited`
    must give more before the next one; any may if it is empty.
    """

    whole_blocks: ClassVar[bool] = False
    """Whether, without a fixed order, a turn takes all that an input can give without a copy."""

    def __init__(
        self,
        plan: Plan,
        slots: Sequence[I | None],
        cycle: int = 0,
        block: int = 0,
        *,
        batch: int = 1,
        skip: int = 0,
        max_bytes: int = 0,
    ) -> None:
        self.complete = False
        self.awaited: set[I] = set()
        self._plan = plan
        self._slots: list[Any] = list(slots)
        self._cycle = cycle
        self._block = block
        self._batch = batch
        self._pulled = -skip
        self._max_bytes = min(max_bytes, LONG_CHUNK_BYTES)

    # Subclasses implement these four.

    @property
    def has_more(self) -> bool:
        """Whether an input has no slot yet."""
        raise NotImplementedError

    def _next(self) -> I:
        """Removes and returns the next input, which takes a slot."""
        raise NotImplementedError

    def _positions(
        self, slots: tuple[OpenSlot | None, ...], turns: TurnShares, count: int
    ) -> InterleavedPositions:
        """The positions between `count` elements."""
        raise NotImplementedError

    def _join(self, windows: list[list[Any]], block: int, count: int) -> Any:
        """Joins the `count` elements of several inputs in turn, given the windows of each."""
        is_single = len(windows) == 1 and len(windows[0]) == 1
        return windows[0][0] if is_single else in_turn(windows, block)

    @property
    def finished(self) -> bool:
        """Whether all elements of all inputs were given."""
        if not self.complete or self.has_more:
            return False
        return all(entry is None for entry in self._slots)

    def pull(self) -> Chunk | None:
        """The next elements that have arrived; None if none can be taken yet.

        Raises the error of the input whose turn it is; the input leaves its slot.
        """
        self.awaited = set()
        self._fill()
        ready = self._find_in_order() if self._plan.deterministic else self._find_available()
        if ready:
            return self._take(ready)
        entry = self._slots[self._cycle]
        return self._take_failure(entry) if entry is not None and entry.has_failure else None

    def _take_failure(self, entry: I) -> Chunk:
        """Takes the next element of the input whose turn it is, which failed."""
        error = entry.take_failure()
        if not entry.is_open:
            self._pass()
        turns = TurnShares((self._cycle,), (self._cycle,), self._plan.block_length, self._block)
        return Chunk.failure(error, self._positions(self._open_slots({}), turns, 0), 0)

    def _open_slots(self, taken: Mapping[int, Joined]) -> tuple[OpenSlot | None, ...]:
        """The open inputs of all slots.

        With them come the positions of the elements that were taken of some.
        """
        return tuple(
            None
            if entry is None or not (entry.error is None or entry.is_open)
            else OpenSlot(entry.origin, taken[index] if index in taken else entry.mark())
            for index, entry in enumerate(self._slots)
        )

    def _fill(self) -> None:
        """Puts the next inputs into empty slots, in the order of their turns."""
        if self.has_more and None in self._slots:
            for index in self._around():
                if self._slots[index] is None and self.has_more:
                    self._slots[index] = self._next()

    def _around(self) -> list[int]:
        """All slots, beginning with the one whose turn it is."""
        return [*range(self._cycle, len(self._slots)), *range(self._cycle)]

    def _find_in_order(self) -> list[int]:
        """The slots that give elements now.

        They begin with the one whose turn it is, and end before an empty one that may be filled.
        """
        while not self.finished:
            entry = self._slots[self._cycle]
            if entry is not None and entry.available:
                break
            if not (self.complete if entry is None else entry.is_exhausted):
                self.awaited = set() if entry is None else {entry}
                return []
            self._pass()
        ready = []
        for index in self._around():
            if self._slots[index] is not None:
                ready.append(index)
            elif not self.complete:
                break
        return ready

    def _find_available(self) -> list[int]:
        """The slots with available elements, beginning with the one whose turn it is."""
        # Again and again, since an input that takes an empty slot may be exhausted, too.
        while exhausted := [index for index, entry in self._entries() if entry.is_exhausted]:
            for index in exhausted:
                self._leave(index)
            self._fill()
        entries = self._entries()
        failed = [index for index, entry in entries if entry.has_failure]
        ready = [index for index, entry in entries if entry.available and not failed]
        first = next(iter(failed or ready), self._cycle)
        if first != self._cycle:
            self._cycle = first
            self._block = 0
        return ready

    def _entries(self) -> list[tuple[int, I]]:
        """The inputs in slots, with their slots, beginning with the one whose turn it is."""
        slots = [(index, self._slots[index]) for index in self._around()]
        return [(index, entry) for index, entry in slots if entry is not None]

    def _pass(self) -> None:
        """Empties the slot whose turn it is, and gives the next one its turn."""
        index = self._cycle
        self._cycle = (index + 1) % len(self._slots)
        self._block = 0
        if self._slots[index] is not None:
            self._leave(index)
        self._fill()

    def _leave(self, index: int) -> None:
        entry = self._slots[index]
        self._slots[index] = None
        entry.check()

    def _take(self, ready: list[int]) -> Chunk | None:
        """Takes elements of these slots, the first of which has available ones.

        Returns None to wait for more.
        """
        block = self._plan.block_length
        given = self._block
        size = len(self._slots)
        first = self._slots[ready[0]]
        # An empty slot that an unknown input may take ends the round after the ready ones; without
        # a fixed order, the round goes on without it.
        all_known = self.complete or None not in self._slots
        goes_around = all_known or not self._plan.deterministic
        sole = size == 1 or (len(ready) == 1 and goes_around)
        following = (ready[0] + 1) % size
        # One round of long turns may be more than a pull; otherwise a pull takes whole rounds: a
        # chunk for each turn of 256 KiB cost 1.93 instead of 0.89 CPU-s/GB, as batches spanned
        # chunks.
        is_long = len(ready) * block * first.typical_bytes > self._wanted_bytes(first.typical_bytes)
        if self.whole_blocks and not self._plan.deterministic:
            # A block as it arrived, in one turn: it is not copied.
            block = count = first.first
            given = 0
            ready = ready[:1]
            order = [ready[0], following]
        elif sole or given or first.available < block or is_long:
            # The rest of one turn; a sole input has no turns.
            count = self._count_of_one(first, sys.maxsize if sole else block - given)
            ready = ready[:1]
            order = ready if sole else [ready[0], following]
        else:
            count = self._count_of_all([self._slots[index] for index in ready], goes_around)
            order = ready if all_known else [*ready, (ready[-1] + 1) % size]
        if not count:
            return None
        turns = TurnShares(tuple(ready), tuple(order), block, given)
        taken = [
            self._slots[slot].take(share)
            for slot, share in zip(ready, shares_of(count, len(ready), block), strict=True)
        ]
        self._cycle, self._block = turns.next(count)
        self._pulled += count
        marks = {slot: part.positions for slot, part in zip(ready, taken, strict=True)}
        positions = self._positions(self._open_slots(marks), turns, count)
        elements = self._join([part.windows for part in taken if part.windows], block, count)
        return Chunk(elements, positions, sum(part.nbytes for part in taken))

    def _count_of_one(self, entry: I, limit: int) -> int:
        """How many elements of one input to take.

        These are the elements of its first chunk, or of two chunks if a batch spans them.
        """
        first = min(entry.first, limit)
        count = self._cut(first) or self._cut(min(entry.available, limit, first + self._batch))
        if count or entry.available >= limit or not self._waits(entry):
            return count or first
        self.awaited = {entry}
        return 0

    def _count_of_all(self, inputs: Sequence[I], goes_around: bool) -> int:
        """How many elements to take of all inputs in turn: whole rounds if possible.

        Only one round is possible unless it `goes_around`.
        """
        block = self._plan.block_length
        scarce = min(inputs, key=AVAILABLE)
        rounds = scarce.available // block if goes_around else 0
        typical = sum(map(TYPICAL_BYTES, inputs)) // len(inputs)
        wanted = self._wanted_bytes(typical) // typical
        more = -(self._pulled + wanted) % self._batch
        wanted += more if more <= wanted // 2 else 0  # a few more, up to the end of a batch
        most = max(1, wanted // (len(inputs) * block))
        count = min(rounds, most) * len(inputs) * block
        for entry in () if count else inputs:  # an incomplete round
            count += min(entry.available, block)
            if entry.available < block:
                break
        # A pull that ends between two batches spares the copy of a batch that spans two chunks, so
        # it is worth a wait if the missing elements will come.
        cut = self._cut(count)
        if cut or rounds >= most or not self._waits(scarce):
            return cut or count
        missing = self._batch - self._pulled % self._batch
        shares = zip(inputs, shares_of(missing, len(inputs), block), strict=True)
        self.awaited = {
            entry for entry, share in shares if entry.available < share and entry.comes
        } or {scarce}
        return 0

    def _wanted_bytes(self, typical: int) -> int:
        """The size of a pull of elements of typical size."""
        return max(CHUNK_BYTES, min(LONG_CHUNK_RECORDS * typical, self._max_bytes))

    def _cut(self, count: int) -> int:
        """The largest number up to `count` after which a batch ends, or 0."""
        return max(0, count - (self._pulled + count) % self._batch)

    def _waits(self, entry: I) -> bool:
        """Whether to wait for more elements of this input.

        They will certainly arrive, and a batch is not too large.
        """
        return entry.comes and self._batch * entry.typical_bytes <= CHUNK_BYTES


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


@dataclass(frozen=True, slots=True)
class InterleavedPositions(Positions):
    """Positions of `count` elements that inputs gave in turn.

    They hold the positions of the open inputs, and what a position says of the next one
    (`following`).
    """

    slots: tuple[OpenSlot | None, ...]
    turns: TurnShares
    count: int
    following: Any

    def state(self, positions: Sequence[Position | None]) -> dict[str, Any]:
        """The part of a position's state about the slots and the next input.

        `positions` are those of the slots' inputs.
        """
        raise NotImplementedError

    def at(self, index: int) -> Position:
        cycle, block = self.turns.next(index)
        ready = self.turns.ready
        shares = dict(zip(ready, shares_of(index, len(ready), self.turns.block), strict=True))
        positions = [
            slot and slot.positions.at(shares.get(number, 0))
            for number, slot in enumerate(self.slots)
        ]
        return {"source": {**self.state(positions), "cycle": cycle, "block": block}}

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        ready = self.turns.ready
        block = self.turns.block
        number = index // block % len(ready) if len(ready) > 1 else 0
        slot = self.slots[ready[number]]
        if slot is None:
            return ()
        return slot.positions.origins(shares_of(index, len(ready), block)[number], row)
