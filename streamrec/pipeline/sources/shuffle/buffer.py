"""The shuffle buffer: takes chunks, gives shuffled ones, knows the position after each element.

It is pure.

The order is tf.data's: the buffer is filled; then each arriving element takes a random slot, whose
element is given; at the end of the input the rest is given in random order. The order depends only
on the seed, the buffer's size and the weights of the elements (`kernels.exchange` is the rule),
never on how the input was cut into chunks.

A row describes an element: START and END (whose difference is its weight), TAG and REFERENCE. The
first three belong to the store; the reference identifies the element. To know earlier positions,
nothing is copied for each element: the slots are copied once for each round, in which as many
elements pass as the buffer holds. When a state is asked for, the input since then is replayed into
another copy, up to the position.

A position says which elements the buffer holds, but does not hold them. There are two ways:
- by reference: shard and offset of each record; they are fetched again from there (`refetch.py`).
- by number: how many elements of the input came before each. The input is run again from a known
  position up to the next element, and all but the held elements are dropped. One position is kept
  for each round, as far back as elements are held: an element stays for one round on average, but
  the oldest of n for about ln(n) rounds.

Errors in later stages name the record that an element was made of: the positions of the input are
kept for TRACED_ROUNDS rounds. One element in fifty stays longer; then a reference gives its shard
and byte, a number nothing.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streamrec import kernels
from streamrec.display import logger
from streamrec.errors import StreamrecError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import (
    FixedPosition,
    Location,
    Origin,
    Position,
    Positions,
    RecordLocation,
    RecordLocations,
    shift,
)
from streamrec.pipeline.sources.shuffle.buffer_store import (
    END,
    REFERENCE,
    START,
    TAG,
    BufferStore,
    Numbers,
    spans_of,
)
from streamrec.shards import OFFSET_BITS
from streamrec.tfrecord import BUFFER_BITS

CHUNK_BYTES = 6 << 20
"""About how many bytes are given at a time after the input has ended."""

TRACED_ROUNDS = 4
"""For how many rounds the positions of the input are kept: one in e**4 elements stays longer."""

UNORDERED = (
    "the input of this shuffle is not records of shards and has no fixed order "
    "(deterministic=False), so a resumed run cannot find the elements of its buffer again: "
    "shuffle the records themselves, or keep their order"
)

SIZES = (1 << BUFFER_BITS) - 1

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

    def exchange(self, entry: Entry, taken: int, out: Numbers | None, most: int) -> int:
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
            count -= slots.exchange(next(entries), 0, None, count)
        return slots

    def replay_all(self, entries: Iterator[Entry]) -> BufferIndex:
        """A copy that took all of these entries."""
        slots = self.copy_with_room()
        for entry in entries:
            taken = 0
            while taken < len(entry.rows):
                slots.exchange(entry, taken, None, len(entry.rows))
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
        given = slots.exchange(slots.entry, slots.taken, out, count) if count else 0
        while given < count:
            given += slots.exchange(next(entries), 0, out[given:], count - given)
        return out


class KnownPosition(NamedTuple):
    """A position of the input from which held elements can be reached.

    `number` is that of its next element.
    """

    number: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class HeldElements:
    """How a position refers to the buffer's elements.

    It has their numbers or references, in the order of the slots.
    """

    numbers: Numbers
    sizes: Numbers | None = None
    shards: Mapping[int, tuple[str | None, str | None]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Packed JSON: 50,000 references take 300 to 700 kB."""
        if self.sizes is None or self.shards is None:
            return {"numbers": pack_numbers(self.numbers)}
        shards = self.numbers >> OFFSET_BITS
        present = np.flatnonzero(np.bincount(shards)).tolist()
        return {
            "shards": {str(shard): list(self.shards[shard]) for shard in present},
            "shard": pack_numbers(shards),
            "offset": pack_numbers(self.numbers & ((1 << OFFSET_BITS) - 1)),
            "size": pack_numbers(self.sizes),
        }

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> HeldElements:
        """The elements of `to_json`; int64 numbers, whatever dtype they were packed as."""
        if "numbers" in state:
            return cls(unpack_numbers(state["numbers"]))
        references = unpack_numbers(state["shard"]) << OFFSET_BITS | unpack_numbers(state["offset"])
        shards = {int(shard): (version, kind) for shard, (version, kind) in state["shards"].items()}
        return cls(references, unpack_numbers(state["size"]), shards)


def pack_numbers(numbers: Numbers) -> list[str]:
    """Packs non-negative numbers as their smallest sufficient dtype, and base64."""
    most = int(numbers.max()) if len(numbers) else 0
    kind = next(kind for kind in ("<u1", "<u2", "<u4", "<i8") if most <= np.iinfo(kind).max)
    return [kind, b2a_base64(numbers.astype(kind).data, newline=False).decode("ascii")]


def unpack_numbers(text: Sequence[str]) -> Numbers:
    """The numbers of `pack_numbers`, int64."""
    return np.frombuffer(b64decode(text[1]), text[0]).astype(np.int64)


class ShuffleBuffer:
    """The running buffer of an input that begins at `start`.

    Positions refer to elements by reference (`refers`), or by number, which has a meaning if the
    input has a fixed order (`ordered`).
    """

    def __init__(
        self, rule: ShuffleRule, refers: bool, ordered: bool = True, start: Position | None = None
    ) -> None:
        self.rule = rule
        self._refers = refers
        self._ordered = ordered
        self._known = [KnownPosition(0, start)]
        self._shards: dict[int, tuple[str | None, str | None]] = {}
        self.paths: Sequence[str] = ()  # the shards of records held by reference
        # The last input: number of the first element, count, positions.
        self._recent: deque[tuple[int, int, Positions]] = deque()
        self._store = BufferStore(rule.limit)
        self._slots = BufferIndex(rule, NO_ROWS, 0, Entry(NO_ROWS, FixedPosition(start), 0), 0)
        self._next = 0
        self._warned = False
        self._rebase()

    @property
    def room(self) -> int:
        """How many elements may be taken before the first is given, if they are small enough."""
        return self.rule.capacity - len(self._slots.rows)

    def restore(
        self,
        rows: Numbers,
        store: BufferStore,
        held: HeldElements,
        *,
        step: int,
        entry: Entry,
        taken: int,
    ) -> None:
        """Restores the buffer of a position.

        The position holds the rows of the slots, the store of their elements, and how it refers to
        them. The buffer gave `step` elements, and took `taken` elements of an entry.
        """
        self._store = store
        self._shards.update(held.shards or {})
        self._slots = BufferIndex(self.rule, rows, step, entry, taken)
        self._next = self._slots.next
        self._rebase()

    def fail(self, error: Exception, positions: Positions) -> Chunk:
        """Takes a failed element, and gives it at once: it has a number, but no slot."""
        self._next += 1
        self._entries.append(Entry(NO_ROWS, positions, self._next))
        here = self._positions(0, len(self._entries))
        return Chunk.failure(error, here, 0)

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
        self._entries.append(entry)
        taken = 0
        while taken < count:
            out = self._exchange(entry, taken, count)
            taken = self._slots.taken
            if out is not None:
                self._warn_if_small()
                yield out
        if self._given > len(self._slots.rows) // 2:
            self._rebase()

    def drain(self, batch: int = 1, begun: int = 0) -> Iterator[Chunk]:
        """Ends the input and gives the rest.

        Chunks end where a batch in a later stage does, or smaller batches. `begun` elements were
        given since the last batch was complete.
        """
        last = self._base.entry
        taken = self._base.taken
        if self._entries:
            last = self._entries[-1]
            taken = len(last.rows)
        end = Entry(NO_ROWS, shift(last.positions, taken), self._next, True)
        self._entries.append(end)
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
        self._recent.append((self._next, len(spans), chunk.positions))
        oldest = self._next - TRACED_ROUNDS * len(self._slots.rows)
        while self._recent[0][0] + self._recent[0][1] < oldest:
            self._recent.popleft()
        rows = np.empty((len(spans), 4), np.int64)
        rows[:, : END + 1] = spans
        tags = self._store.add(chunk.elements, spans)
        if self._refers:
            locations = locations_in(chunk.positions).take(slice(len(spans)))
            self._shards.update(locations.shards)
            self.paths = locations.paths
            # The size shares a number with the block; a position needs it to fetch the record
            # again.
            np.add(locations.sizes, tags, out=rows[:, TAG])
            rows[:, REFERENCE] = locations.references
        else:
            rows[:, TAG] = tags
            rows[:, REFERENCE] = np.arange(self._next, self._next + len(spans))
        return rows

    def _exchange(self, entry: Entry, taken: int, most: int) -> Chunk | None:
        """Takes rows of an entry from `taken` on while it gives up to `most` elements.

        Returns a chunk of the elements.
        """
        out = np.empty((most, 4), np.int64)
        given = self._slots.exchange(entry, taken, out, most)
        if not given:
            return None
        elements = self._store.pick(out[:given])
        positions = self._positions(given)
        self._given += given
        return Chunk.weigh(elements, positions)

    def _positions(self, count: int, taken: int | None = None) -> ShuffledPositions:
        return ShuffledPositions(
            base=self._base,
            entries=self._entries,
            skipped=self._given,
            count=count,
            known=self._known,
            shards=self._shards if self._refers else None,
            ordered=self._ordered,
            taken=taken,
            recent=self._recent,
            paths=self.paths,
        )

    def _rebase(self) -> None:
        """Begins a round: later positions are replayed from here."""
        self._base = self._slots.copy_compact()
        self._entries: list[Entry] = []
        self._given = 0
        if not self._refers:
            self._note(self._base)

    def _note(self, base: BufferIndex) -> None:
        """Adds the input's next position to the known ones.

        Removes those before all held elements.
        """
        number = base.next
        oldest = int(base.rows[:, REFERENCE].min()) if len(base.rows) else number
        known = [position for position, after in pairwise(self._known) if after.number > oldest]
        known.append(self._known[-1])
        if known[-1].number != number:
            known.append(KnownPosition(number, base.entry.positions.at(base.taken)))
        # A new list, since positions that were given keep the one that they got.
        self._known = known

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


def locations_in(positions: Positions) -> RecordLocations:
    """The locations of positions that have them: those of chains that `find_shards` accepts."""
    locations = positions.locations()
    assert locations is not None, (
        "a chain whose records are held by reference knows their locations"
    )
    return locations


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffledPositions(Positions):
    """Positions of `count` elements that the buffer gave.

    They come after `skipped` others since the beginning of the round.

    Args:
        base: The slots at the beginning of the round.
        entries: The input since then.
        skipped: How many elements were given since then.
        count: The number of elements.
        known: Positions of the input, for elements held by number.
        shards: Versions and compressions, for elements held by reference; None for others.
        ordered: Whether the input has a fixed order.
        taken: How many of the entries were taken before; None for as many as were needed.
        recent: The last input: number of the first element, count, and positions.
        paths: The URLs of the shards.
    """

    base: BufferIndex
    entries: Sequence[Entry]
    skipped: int
    count: int
    known: Sequence[KnownPosition]
    shards: Mapping[int, tuple[str | None, str | None]] | None
    ordered: bool
    taken: int | None = None
    recent: Iterable[tuple[int, int, Positions]] = ()
    paths: Sequence[str] = ()

    def weight(self, count: int) -> int:
        # A row taken, and two of a base, which is copied when it gave half of its elements.
        return 3 * 32 * count

    def locations(self) -> RecordLocations | None:
        if self.shards is None:
            return None
        rows = self.base.rows_after(iter(self.entries), self.skipped, self.count)
        return RecordLocations(rows[:, REFERENCE], rows[:, TAG] & SIZES, self.shards, self.paths)

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        rows = self.base.rows_after(iter(self.entries), self.skipped, self.count)
        reference = int(rows[index, REFERENCE])
        # A copy, since the buffer may be fed meanwhile.
        for first, count, positions in tuple(self.recent):
            if self.shards is None:
                indices = [reference - first] if first <= reference < first + count else []
            else:
                indices = np.flatnonzero(locations_in(positions).references == reference).tolist()
            if indices:
                return (Origin(positions, indices[0], row),)
        if self.shards is None or not self.paths:
            return ()
        offset = reference & ((1 << OFFSET_BITS) - 1)
        return (RecordLocation(self.paths[reference >> OFFSET_BITS], None, offset),)

    def at(self, index: int) -> Position:
        if not self.ordered:
            raise StreamrecError(UNORDERED)
        if self.taken is None:
            slots = self.base.replay(iter(self.entries), self.skipped + index)
        else:
            slots = self.base.replay_all(iter(self.entries[: self.taken]))
        numbers = slots.rows[:, REFERENCE]
        rule = self.base.rule
        state: dict[str, Any] = {"limit": None if rule.strict else rule.limit, "step": slots.step}
        if self.shards is not None:
            held = HeldElements(numbers, slots.rows[:, TAG] & SIZES, self.shards)
            inner = slots.entry.positions.at(slots.taken)
        else:
            # The last known position from which all held elements are still to come.
            oldest = min(int(numbers.min()), slots.next) if len(numbers) else slots.next
            known = next(known for known in reversed(self.known) if known.number <= oldest)
            held = HeldElements(numbers - known.number)
            inner = known.position or {}
            state["next"] = slots.next - known.number
        return {"source": {**state, "held": held.to_json(), "inner": dict(inner)}}
