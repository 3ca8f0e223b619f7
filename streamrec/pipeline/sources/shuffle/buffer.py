"""The shuffle buffer: chunks in, shuffled chunks out, and the place after any element that went. Pure.

The order is tf.data's: the buffer is filled; then a random slot is emitted for each input that comes, and at the end of
the input the rest, in random order. It depends on the seed, on the buffer's size and on the weights of the elements
alone (`kernels.exchange` is the rule), never on how the input was cut into chunks.

A row describes an element: START and END (of which the difference is its weight), TAG and REFERENCE. The first three
are the store's, the reference says which element it is. Nothing is copied per element to know where the buffer was: the
slots are copied once for each buffer that went through. When a state is asked for, the inputs since then are let into
another copy, as far as its place.

A position says which elements the buffer holds, not what they are, in one of two ways:
- by reference: shard and offset of each record; they are fetched again from there (`refetch.py`).
- by number: how many elements of the input came before it. What is before the buffer is run again from a place that it
  came through, up to the next input, and all but these elements are dropped. Such places are kept one for each buffer
  that went through, as far back as anything is held: an element stays for one round of the buffer on average, but the
  oldest of n for about ln(n) of them.

Errors after the buffer name the record that an element was made of: the positions that elements came with are kept for
TRACED_ROUNDS buffers. Of one that stayed longer, one in fifty, a reference says shard and byte; a number says nothing.
"""

from __future__ import annotations

import logging
from base64 import b64decode
from binascii import b2a_base64
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamrec import kernels
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
from streamrec.pipeline.sources.shuffle.buffer_store import END, REFERENCE, START, TAG, BufferStore, Numbers, spans_of
from streamrec.shards import OFFSET_BITS
from streamrec.tfrecord import BUFFER_BITS

__all__ = ["NO_ROWS", "UNORDERED", "Entry", "HeldElements", "ShuffleBuffer", "ShuffleRule"]

logger = logging.getLogger("streamrec")

CHUNK_BYTES = 6 << 20
"""About how much is emitted at a time when the input has ended."""

TRACED_ROUNDS = 4
"""The positions of what came in are kept until this many buffers more did: of e**4, one element stays longer."""

UNORDERED = (
    "the input of this shuffle is not records of shards and has no fixed order (deterministic=False): "
    "what its buffer holds cannot be found again; shuffle the records themselves, or keep their order"
)

SIZES = (1 << BUFFER_BITS) - 1

ROW_WEIGHT = 64
"""What an element weighs in addition to its bytes, in the buffer's limit."""

NO_ROWS: Numbers = np.empty((0, 4), np.int64)


class ShuffleRule(NamedTuple):
    """What the order depends on, besides the elements.

    Attributes:
        capacity: How many elements the buffer holds at most.
        limit: What they may weigh: their bytes, and ROW_WEIGHT each.
        key: What its random numbers come from.
        strict: Whether the order must not depend on the limit: what does not fit is an error.
    """

    capacity: int
    limit: int
    key: int
    strict: bool = False


class Entry(NamedTuple):
    """What came in: rows, between which positions, and how many elements came before."""

    rows: Numbers
    positions: Positions
    first: int
    ended: bool = False


class BufferIndex:
    """The slots, which gave `step` elements so far, while `taken` rows of the last `entry` came in; rows are copied.

    Attributes:
        weight: What the rows weigh.
    """

    def __init__(self, rule: ShuffleRule, rows: Numbers, step: int, entry: Entry, taken: int) -> None:
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
    def rows(self) -> Numbers:
        """What they hold, as a view that may be written to."""
        return self._slots[: self._held]

    @property
    def live_bytes(self) -> int:
        return self.weight - ROW_WEIGHT * self._held

    @property
    def next(self) -> int:
        return self.entry.first + self.taken

    def exchange(self, entry: Entry, taken: int, out: Numbers | None, most: int) -> int:
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

    def rows_after(self, entries: Iterator[Entry], gone: int, count: int) -> Numbers:
        """The rows of the `count` elements that go after `gone` others, while these entries come in."""
        slots = self.replay(entries, gone)
        out = np.empty((count, 4), np.int64)
        given = slots.exchange(slots.entry, slots.taken, out, count) if count else 0
        while given < count:
            given += slots.exchange(next(entries), 0, out[given:], count - given)
        return out


class KnownPlace(NamedTuple):
    """A place of the input that elements held may be reached from: the number of its next element."""

    number: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class HeldElements:
    """What a position says of the buffer's elements, in the order of the slots."""

    numbers: Numbers
    sizes: Numbers | None = None
    shards: Mapping[int, tuple[str | None, str | None]] | None = None

    def to_json(self) -> dict[str, Any]:
        """Packed: 50,000 references in 300 to 700 kB."""
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
        if "numbers" in state:
            return cls(unpack_numbers(state["numbers"]))
        references = unpack_numbers(state["shard"]) << OFFSET_BITS | unpack_numbers(state["offset"])
        shards = {int(shard): (version, kind) for shard, (version, kind) in state["shards"].items()}
        return cls(references, unpack_numbers(state["size"]), shards)


def pack_numbers(numbers: Numbers) -> list[str]:
    """Numbers from 0 on as text: the type of as few bytes as will do, and base64."""
    most = int(numbers.max()) if len(numbers) else 0
    kind = next(kind for kind in ("<u1", "<u2", "<u4", "<i8") if most <= np.iinfo(kind).max)
    return [kind, b2a_base64(numbers.astype(kind).data, newline=False).decode("ascii")]


def unpack_numbers(text: Sequence[str]) -> Numbers:
    return np.frombuffer(b64decode(text[1]), text[0]).astype(np.int64)


class ShuffleBuffer:
    """The running buffer.

    Args:
        rule: What the order depends on.
        refers: Whether positions say which elements are held by reference.
        ordered: Whether the input comes in one order, so that numbers mean something.
        start: Where the input begins; `restore` says how much of it came in before.
    """

    def __init__(self, rule: ShuffleRule, refers: bool, ordered: bool = True, start: Position | None = None) -> None:
        self.rule = rule
        self._refers = refers
        self._ordered = ordered
        self._known = [KnownPlace(0, start)]
        self._shards: dict[int, tuple[str | None, str | None]] = {}
        self._paths: Sequence[str] = ()
        self._came: deque[tuple[int, int, Positions]] = deque()  # the first one's number, how many, their positions
        self._store = BufferStore(rule.limit)
        self._slots = BufferIndex(rule, NO_ROWS, 0, Entry(NO_ROWS, FixedPosition(start), 0), 0)
        self._next = 0
        self._warned = False
        self._rebase()

    @property
    def room(self) -> int:
        """How many elements may come in before the first one leaves, if they are small enough."""
        return self.rule.capacity - len(self._slots.rows)

    def name_shards(self, paths: Sequence[str]) -> None:
        """Says which shards the records are of that it will hold again."""
        self._paths = paths

    def restore(
        self, rows: Numbers, store: BufferStore, held: HeldElements, step: int, entry: Entry, taken: int
    ) -> None:
        """Holds again what it held.

        Args:
            rows: The slots.
            store: Their elements.
            held: What the position said of them.
            step: How many elements went before.
            entry: The input's next place: its positions, and the number of the element that `taken` counts from.
            taken: How many of it had come in.
        """
        self._store = store
        self._shards.update(held.shards or {})
        self._slots = BufferIndex(self.rule, rows, step, entry, taken)
        self._next = self._slots.next
        self._rebase()

    def fail(self, error: Exception, positions: Positions) -> Chunk:
        """Takes an element that failed, which has a number and no place in the buffer: it is given at once."""
        self._next += 1
        self._entries.append(Entry(NO_ROWS, positions, self._next))
        here = self._positions(0, len(self._entries))
        return Chunk.failure(error, here, 0)

    def feed(self, chunk: Chunk) -> Iterator[Chunk]:
        """Takes a chunk; gives what had to leave for its elements.

        A piece at a time, so that little has to come in again for a position within what is given.
        """
        count = len(chunk.elements)
        rows = self._enter(chunk)
        piece = max(4096, len(self._slots.rows) // 2)
        for first in range(0, count, piece):
            positions = shift(chunk.positions, first)
            yield from self._let_in(Entry(rows[first : first + piece], positions, self._next))
        self._store.tidy(self._slots.rows, self._slots.live_bytes)

    def _let_in(self, entry: Entry) -> Iterator[Chunk]:
        """Gives what has to leave for an entry."""
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
        if self._gone > len(self._slots.rows) // 2:
            self._rebase()

    def drain(self, batch: int = 1, begun: int = 0) -> Iterator[Chunk]:
        """Says that the input ended; gives what is left.

        Args:
            batch: How many elements make a batch after this: chunks end where batches do, unless these are as large.
            begun: How many went since the last batch was complete.
        """
        last, taken = self._base.entry, self._base.taken
        if self._entries:
            last, taken = self._entries[-1], len(self._entries[-1].rows)
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
        """The rows of a chunk's elements, which are held from now on."""
        spans = spans_of(chunk.elements)
        self._came.append((self._next, len(spans), chunk.positions))
        while self._came[0][0] + self._came[0][1] < self._next - TRACED_ROUNDS * len(self._slots.rows):
            self._came.popleft()
        rows = np.empty((len(spans), 4), np.int64)
        rows[:, : END + 1] = spans
        tags = self._store.add(chunk.elements, spans)
        if self._refers:
            places = locations_in(chunk.positions).take(slice(len(spans)))
            self._shards.update(places.shards)
            self._paths = places.paths
            np.add(places.sizes, tags, out=rows[:, TAG])
            rows[:, REFERENCE] = places.references
        else:
            rows[:, TAG] = tags
            rows[:, REFERENCE] = np.arange(self._next, self._next + len(spans))
        return rows

    def _exchange(self, entry: Entry, taken: int, most: int) -> Chunk | None:
        """Lets an entry in from `taken` on, as far as `most` elements that leave allow; returns their chunk."""
        out = np.empty((most, 4), np.int64)
        went = self._slots.exchange(entry, taken, out, most)
        if not went:
            return None
        elements = self._store.pick(out[:went])
        positions = self._positions(went)
        self._gone += went
        return Chunk.weigh(elements, positions)

    def _positions(self, count: int, came: int | None = None) -> ShuffledPositions:
        shards = self._shards if self._refers else None
        base, entries, gone, known = self._base, self._entries, self._gone, self._known
        return ShuffledPositions(
            base, entries, gone, count, known, shards, self._ordered, came, self._came, self._paths
        )

    def _rebase(self) -> None:
        """Positions count from here on."""
        self._base = self._slots.freeze()
        self._entries: list[Entry] = []
        self._gone = 0
        if not self._refers:
            self._note(self._base)

    def _note(self, base: BufferIndex) -> None:
        """The input's next place is known from here on; those before all that is held are forgotten."""
        number = base.next
        oldest = int(base.rows[:, REFERENCE].min()) if len(base.rows) else number
        needed = [known for known, after in zip(self._known, self._known[1:], strict=False) if after.number > oldest]
        last = self._known[-1]
        new = [] if last.number == number else [KnownPlace(number, base.entry.positions.at(base.taken))]
        self._known = [*needed, last, *new]

    def _warn_if_small(self) -> None:
        """Warns once where the elements are too large for the buffer that was asked for.

        Raises:
            MemoryError: The order must not depend on that.
        """
        held, (capacity, limit, _, strict) = len(self._slots.rows), self.rule
        if held + 1 >= capacity or self._warned:
            return
        if strict:
            wanted = 4 * self._slots.weight * capacity // max(1, held) + (128 << 20)
            raise MemoryError(
                f"shuffle(buffer_size={capacity}) does not fit: {held:,} elements fill the {limit:,} bytes that it has "
                "by default on a machine of this memory, and with fewer the order would be another one than elsewhere: "
                f"pass buffer_size={max(1, held // 2)}, or with_options(memory_budget={wanted:_}), or use "
                "global_shuffle, which needs no buffer"
            )
        self._warned = True
        words = "shuffle(buffer_size=%d) holds about %d elements only: its share of the memory budget is %d bytes; "
        logger.warning(f"{words}raise memory_budget, or lower buffer_size", capacity, held, limit)


def locations_in(positions: Positions) -> RecordLocations:
    places = positions.locations()
    assert places is not None, "a chain whose records are held by reference says where they are"
    return places


@dataclass(frozen=True, slots=True)
class ShuffledPositions(Positions):
    """Positions of elements that went.

    Args:
        base: What the buffer held some time before.
        entries: What came in since; more may come in later.
        gone: How many elements went before these, since the base.
        count: How many these are.
        known: Places of the input.
        shards: Version and compression of each shard; None where elements are held by number.
        ordered: Whether the input comes in one order.
        came: How many entries came in before; None: as many as made the elements before these go.
        recent: What came in last, of all that did: numbers, and positions.
        paths: The shards' URLs, where elements are held by reference.
    """

    base: BufferIndex
    entries: Sequence[Entry]
    gone: int
    count: int
    known: Sequence[KnownPlace]
    shards: Mapping[int, tuple[str | None, str | None]] | None
    ordered: bool
    came: int | None = None
    recent: Iterable[tuple[int, int, Positions]] = ()
    paths: Sequence[str] = ()

    def weight(self, count: int) -> int:
        """Of a row (32 bytes) that came in, and two of a base, which is copied when half as many went as it holds."""
        return 3 * 32 * count

    def locations(self) -> RecordLocations | None:
        """Where these elements are, if they are records of shards."""
        if self.shards is None:
            return None
        rows = self.base.rows_after(iter(self.entries), self.gone, self.count)
        return RecordLocations(rows[:, REFERENCE], rows[:, TAG] & SIZES, self.shards, self.paths)

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        reference = int(self.base.rows_after(iter(self.entries), self.gone, self.count)[index, REFERENCE])
        for first, count, positions in tuple(self.recent):  # a copy at once: the buffer may be fed meanwhile
            if self.shards is None:
                found = [reference - first] if first <= reference < first + count else []
            else:
                found = np.flatnonzero(locations_in(positions).references == reference).tolist()
            if found:
                return (Origin(positions, found[0], row),)
        if self.shards is None or not self.paths:
            return ()
        offset = reference & ((1 << OFFSET_BITS) - 1)
        return (RecordLocation(self.paths[reference >> OFFSET_BITS], None, offset),)

    def at(self, index: int) -> Position:
        if not self.ordered:
            raise StreamrecError(UNORDERED)
        place = (
            self.base.replay(iter(self.entries), self.gone + index)
            if self.came is None
            else self.base.replay_all(iter(self.entries[: self.came]))
        )
        numbers = place.rows[:, REFERENCE]
        rule = self.base.rule
        state: dict[str, Any] = {"limit": None if rule.strict else rule.limit, "step": place.step}
        if self.shards is not None:
            held = HeldElements(numbers, place.rows[:, TAG] & SIZES, self.shards)
            inner = place.entry.positions.at(place.taken)
        else:
            oldest = min(int(numbers.min()), place.next) if len(numbers) else place.next
            known = next(known for known in reversed(self.known) if known.number <= oldest)
            held, inner = HeldElements(numbers - known.number), known.position or {}
            state["next"] = place.next - known.number
        return {"source": {**state, "held": held.to_json(), "inner": dict(inner)}}
