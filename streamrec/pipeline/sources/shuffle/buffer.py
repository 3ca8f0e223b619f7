"""The shuffle buffer: takes chunks, gives shuffled ones, knows the position after each element.

It is pure. `slots.py` has the order, `buffer_store.py` the memory of the elements, and `held.py`
how a position refers to them.

A row describes an element: START and END (whose difference is its weight), TAG and REFERENCE. The
first three belong to the store; the reference identifies the element. To know earlier positions,
nothing is copied for each element: the slots are copied once for each round, in which as many
elements pass as the buffer holds. When a state is asked for, the input since then is replayed into
another copy, up to the position.

Errors in later stages name the record that an element was made of: the positions of the input are
kept for TRACED_ROUNDS rounds. One element in fifty stays longer; then a reference gives its shard
and byte, a number nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamrec.display import logger
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import (
    FixedPosition,
    Location,
    Origin,
    Position,
    Positions,
    RecordLocations,
    shift,
)
from streamrec.pipeline.sources.shuffle.buffer_store import (
    END,
    REFERENCE,
    BufferStore,
    Numbers,
    spans_of,
)
from streamrec.pipeline.sources.shuffle.held import Identities
from streamrec.pipeline.sources.shuffle.slots import NO_ROWS, BufferIndex, Entry, ShuffleRule

CHUNK_BYTES = 6 << 20
"""About how many bytes are given at a time after the input has ended."""

TRACED_ROUNDS = 4
"""For how many rounds the positions of the input are kept: one in e**4 elements stays longer."""


class RecentChunk(NamedTuple):
    """A chunk of the last input: the number of its first element, and its positions."""

    first: int
    size: int
    positions: Positions


@dataclass(slots=True)
class ShuffleRound:
    """What came and went since the slots were last copied.

    Args:
        base: The slots at the beginning of the round.
        entries: The input since then; it grows while positions refer to the round.
        given: How many elements were given since then.
    """

    base: BufferIndex
    entries: list[Entry] = field(default_factory=list)
    given: int = 0

    def end_of_input(self) -> Positions:
        """Positions of the input from the end of the last entry on."""
        if self.entries:
            last = self.entries[-1]
            return shift(last.positions, len(last.rows))
        return shift(self.base.entry.positions, self.base.taken)


class ShuffleBuffer:
    """The running buffer of an input that begins at `start`.

    Positions refer to its elements by their `identities`.
    """

    def __init__(
        self, rule: ShuffleRule, identities: Identities, start: Position | None = None
    ) -> None:
        self.rule = rule
        self.identities = identities
        self._recent: deque[RecentChunk] = deque()
        self._store = BufferStore(rule.limit)
        self._slots = BufferIndex(rule, NO_ROWS, 0, Entry(NO_ROWS, FixedPosition(start), 0), 0)
        self._next = 0
        self._warned = False
        self._begin_round()

    @property
    def room(self) -> int:
        """How many elements may be taken before the first is given, if they are small enough."""
        return self.rule.capacity - len(self._slots.rows)

    def restore(
        self,
        rows: Numbers,
        store: BufferStore,
        *,
        step: int,
        entry: Entry,
        taken: int,
    ) -> None:
        """Restores the buffer of a position: the rows of the slots, and the store of the elements.

        The buffer gave `step` elements, and took `taken` elements of an entry.
        """
        self._store = store
        self._slots = BufferIndex(self.rule, rows, step, entry, taken)
        self._next = self._slots.next
        self._begin_round()

    def fail(self, error: Exception, positions: Positions) -> Chunk:
        """Takes a failed element, and gives it at once: it has a number, but no slot."""
        self._next += 1
        entries = self._round.entries
        entries.append(Entry(NO_ROWS, positions, self._next))
        return Chunk.failure(error, self._positions(0, len(entries)), 0)

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        """Takes a chunk; gives the elements that it replaces.

        Takes a piece at a time, so that a position within the output needs little replay.
        """
        count = len(chunk.elements)
        rows = self._enter(chunk)
        piece = max(4096, len(self._slots.rows) // 2)
        for first in range(0, count, piece):
            positions = shift(chunk.positions, first)
            yield from self._take(Entry(rows[first : first + piece], positions, self._next))
        self._store.tidy(self._slots.rows, self._slots.live_bytes)

    def _take(self, entry: Entry) -> Iterator[Chunk]:
        count = len(entry.rows)
        self._next += count
        self._round.entries.append(entry)
        taken = 0
        while taken < count:
            out = self._exchange(entry, taken, count)
            taken = self._slots.taken
            if out is not None:
                self._warn_if_small()
                yield out
        if self._round.given > len(self._slots.rows) // 2:
            self._begin_round()

    def drain(self, batch: int = 1, begun: int = 0) -> Iterator[Chunk]:
        """Ends the input and gives the rest.

        Chunks end where a batch in a later stage does, or smaller batches. `begun` elements were
        given since the last batch was complete.
        """
        end = Entry(NO_ROWS, self._round.end_of_input(), self._next, True)
        self._round.entries.append(end)
        while held := len(self._slots.rows):
            most = max(1, CHUNK_BYTES * held // self._slots.weight)
            if batch < most:
                most -= (begun + most) % batch
            out = self._exchange(end, 0, most)
            assert out is not None, "slots that are held are given"
            begun += len(out.elements)
            yield out

    def _enter(self, chunk: Chunk) -> Numbers:
        """Stores a chunk's elements, and returns their rows."""
        spans = spans_of(chunk.elements)
        self._recent.append(RecentChunk(self._next, len(spans), chunk.positions))
        oldest = self._next - TRACED_ROUNDS * len(self._slots.rows)
        while self._recent[0].first + self._recent[0].size < oldest:
            self._recent.popleft()
        rows = np.empty((len(spans), 4), np.int64)
        rows[:, : END + 1] = spans
        tags = self._store.add(chunk.elements, spans)
        self.identities.identify(rows, tags, chunk.positions, self._next)
        return rows

    def _exchange(self, entry: Entry, taken: int, most: int) -> Chunk | None:
        """Takes rows of an entry from `taken` on while it gives up to `most` elements.

        Returns a chunk of the elements.
        """
        out = np.empty((most, 4), np.int64)
        given = self._slots.take_in(entry, taken, out, most)
        if not given:
            return None
        elements = self._store.pick(out[:given])
        positions = self._positions(given)
        self._round.given += given
        return Chunk.weigh(elements, positions)

    def _positions(self, count: int, taken: int | None = None) -> ShuffledPositions:
        return ShuffledPositions(
            round=self._round,
            skipped=self._round.given,
            count=count,
            identities=self.identities,
            recent=self._recent,
            taken=taken,
        )

    def _begin_round(self) -> None:
        """Begins a round: later positions are replayed from here."""
        base = self._slots.copy_compact()
        self._round = ShuffleRound(base)
        self.identities = self.identities.next_round(base)

    def _warn_if_small(self) -> None:
        """Warns once if elements are too large for the buffer.

        Raises a MemoryError if the order must not depend on that.
        """
        held = len(self._slots.rows)
        capacity = self.rule.capacity
        limit = self.rule.limit
        if held + 1 >= capacity or self._warned:
            return
        # A default that follows the machine's memory must not decide the order: the same program
        # would give other batches on a larger machine.
        if self.rule.strict:
            wanted = 4 * self._slots.weight * capacity // max(1, held) + (128 << 20)
            raise MemoryError(
                f"shuffle(buffer_size={capacity}) does not fit: {held:,} elements fill the "
                f"{limit:,} bytes that it has by default on a machine with this memory, and a "
                "smaller buffer gives another order than on other machines: pass "
                f"buffer_size={max(1, held // 2)}, or with_options(memory_budget={wanted:_}), or "
                "use global_shuffle, which needs no buffer"
            )
        self._warned = True
        logger.warning(
            "shuffle(buffer_size=%d) holds only about %d elements: its share of the memory "
            "budget is %d bytes; raise memory_budget, or lower buffer_size",
            capacity,
            held,
            limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledPositions(Positions):
    """Positions of `count` elements that the buffer gave.

    Args:
        round: The round in which they were given.
        skipped: How many elements the round gave before.
        count: The number of elements.
        identities: How a position refers to the elements in the buffer.
        recent: The last input.
        taken: How many of the round's entries were taken before; None for as many as were needed.
    """

    round: ShuffleRound
    skipped: int
    count: int
    identities: Identities
    recent: Iterable[RecentChunk] = ()
    taken: int | None = None

    def weight(self, count: int) -> int:
        # A row taken, and two of a base, which is copied when it gave half of its elements.
        return 3 * 32 * count

    def locations(self) -> RecordLocations | None:
        return self.identities.locations(self._rows())

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        reference = int(self._rows()[index, REFERENCE])
        # A copy, since the buffer may be fed meanwhile.
        for chunk in tuple(self.recent):
            found = self.identities.find(reference, chunk.first, chunk.size, chunk.positions)
            if found is not None:
                return (Origin(chunk.positions, found, row),)
        return self.identities.locate(reference)

    def at(self, index: int) -> Position:
        self.identities.check()
        base = self.round.base
        entries = self.round.entries
        if self.taken is None:
            slots = base.replay(iter(entries), self.skipped + index)
        else:
            slots = base.replay_all(iter(entries[: self.taken]))
        limit = None if base.rule.strict else base.rule.limit
        held = self.identities.describe(slots)
        return {"source": {"limit": limit, "step": slots.step, **held}}

    def _rows(self) -> Numbers:
        return self.round.base.rows_after(iter(self.round.entries), self.skipped, self.count)
