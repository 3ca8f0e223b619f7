"""Interleave: the order of the elements of many inputs, which are shards or datasets.

Pure: it plans from what has arrived. Which inputs take turns is decided here, and how many elements
a pull takes of them in `pulls.py`.

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from streamrec.arguments import check_flag, check_integer
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import in_turn
from streamrec.pipeline.elements.positions import (
    Joined,
    Position,
    RecordLocations,
    SeveralInputs,
)
from streamrec.pipeline.engine.description import AUTOTUNE
from streamrec.pipeline.sources.inputs import ArrivedElements
from streamrec.pipeline.sources.pulls import (
    LONG_CHUNK_BYTES,
    BatchEnds,
    PullPlanner,
    TurnShares,
    shares_of,
)

AUTO_CYCLE = 16
"""The default cycle length: as many as a run's first connections.

The order must not depend on the machine, so this is a constant.
"""


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


OpenInputs = tuple[Joined | None, ...]
"""The positions of the open inputs, by their slots; None for a slot without one."""

I = TypeVar("I", bound=ArrivedElements)  # noqa: E741


class Interleave(Generic[I]):
    """The running interleave of the inputs in slots, None for an empty one.

    The slot `cycle` has its turn, in which `block` elements were given. A later stage makes batches
    of `batch` elements, after the first `skip` ones. A pull of long records has at most
    `max_bytes`, or CHUNK_BYTES.

    It is `complete` if all inputs are known. If the last pull gave nothing, each input in `awaited`
    must have that many elements available before the next one, or give no more; any may give more
    if it is empty.
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
        self.awaited: dict[I, int] = {}
        self._plan = plan
        self._slots: list[Any] = list(slots)
        self._cycle = cycle
        self._block = block
        self._ends = BatchEnds(batch, -skip)
        self._max_bytes = min(max_bytes, LONG_CHUNK_BYTES)

    # Subclasses implement these four.

    @property
    def has_more(self) -> bool:
        """Whether an input has no slot yet."""
        raise NotImplementedError

    def _next(self) -> I:
        """Removes and returns the next input, which takes a slot."""
        raise NotImplementedError

    def _positions(self, inputs: OpenInputs, turns: TurnShares, count: int) -> SeveralInputs:
        """The positions between `count` elements, given those of the open inputs by their slots."""
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
        self.awaited = {}
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
        return Chunk.failure(error, self._positions(self._open_inputs({}), turns, 0), 0)

    def _open_inputs(self, taken: Mapping[int, Joined]) -> OpenInputs:
        """The positions of the open inputs: of the elements that were taken, or of the next."""
        return tuple(
            None
            if entry is None or not (entry.error is None or entry.is_open)
            else (taken[index] if index in taken else entry.mark())
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
                self.awaited = {} if entry is None else {entry: 1}
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
        """Frees the slot of an input that has ended, and raises its error."""
        entry = self._slots[index]
        self._slots[index] = None
        entry.check()

    def _take(self, ready: list[int]) -> Chunk | None:
        """Takes elements of these slots, the first of which has available ones.

        Returns None to wait for more.
        """
        planner = PullPlanner(
            slots=self._slots,
            block=self._plan.block_length,
            given=self._block,
            ends=self._ends,
            max_bytes=self._max_bytes,
            complete=self.complete,
            ordered=bool(self._plan.deterministic),
            whole_blocks=self.whole_blocks,
        )
        pull = planner.plan(ready)
        if not pull.count:
            self.awaited = dict(pull.awaited)
            return None
        turns = pull.turns
        shares = shares_of(pull.count, len(turns.ready), turns.block)
        taken = [
            self._slots[slot].take(share) for slot, share in zip(turns.ready, shares, strict=True)
        ]
        self._cycle, self._block = turns.next(pull.count)
        self._ends = self._ends.after(pull.count)
        marks = {slot: part.positions for slot, part in zip(turns.ready, taken, strict=True)}
        positions = self._positions(self._open_inputs(marks), turns, pull.count)
        windows = [part.windows for part in taken if part.windows]
        elements = self._join(windows, turns.block, pull.count)
        return Chunk(elements, positions, sum(part.nbytes for part in taken))


def positions_in_turns(
    inputs: OpenInputs,
    turns: TurnShares,
    state: Callable[[Sequence[Position | None]], Mapping[str, Any]],
    locate: Callable[[], RecordLocations] | None = None,
) -> SeveralInputs:
    """Positions of elements that inputs gave in turn.

    `state` is the part of a position's state about the slots and the next input, of the positions
    of the slots' inputs.
    """

    def source(index: int, cursors: Sequence[Position | None]) -> dict[str, Any]:
        cycle, block = turns.next(index)
        return {**state(cursors), "cycle": cycle, "block": block}

    return SeveralInputs(
        inputs=inputs, shares=partial(turns.shares, len(inputs)), source=source, locate=locate
    )
