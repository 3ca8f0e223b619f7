"""What flows through a pipeline: chunks of elements, each with the positions between them.

Rules:
- A chunk's elements are Frames (records that are not Python objects yet), Columns, or a list of any objects.
- `positions.at(i)` says where to resume so that exactly `elements[i:]` and all that follows come. It is made
  when somebody asks, never per record.
- Chunks and positions are immutable, and positions hold no data.
- Positions that know what an element was made of say so (`made_of`), down to the records of shards: errors ask.
- A chunk with an error stands for an element that failed: it has no elements, and its place is behind that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from streamrec.example import BytesColumn
from streamrec.pipeline.elements.columns import Columns, window
from streamrec.pipeline.elements.nests import leaves
from streamrec.tfrecord import Frames

__all__ = [
    "FAILURE_BYTES",
    "NUMBERS",
    "Batches",
    "Chunk",
    "ElementPlace",
    "Elements",
    "FixedPosition",
    "Nested",
    "Picked",
    "Place",
    "Position",
    "Positions",
    "Precursor",
    "RecordPlace",
    "Shifted",
    "StageState",
    "Stretches",
    "Stride",
    "Traceable",
    "in_stretches",
    "records_behind",
    "weigh",
    "weigh_places",
    "with_state",
]

Position = Mapping[str, Any]
"""JSON: `source` (the source's own state), `skip` (elements after it), `stages` (a state per stage that has one)."""


class Batches:
    """The batches of one size that some records make: each is a window, made when somebody takes it."""

    __slots__ = ("_count", "_frames", "_size")

    def __init__(self, frames: Frames, size: int) -> None:
        self._frames = frames
        self._size = size
        self._count = len(frames) // size

    if TYPE_CHECKING:  # not at run time: the interpreter's own iterator knows how many elements are left

        def __iter__(self) -> Iterator[Frames]: ...

    def __len__(self) -> int:
        return self._count

    @property
    def frames(self) -> Frames:
        """All records of all batches."""
        return self._frames

    @property
    def size(self) -> int:
        """How many records make a batch."""
        return self._size

    @overload
    def __getitem__(self, index: int) -> Frames: ...
    @overload
    def __getitem__(self, index: slice) -> Batches: ...
    def __getitem__(self, index: int | slice) -> Frames | Batches:
        size = self._size
        if isinstance(index, slice):
            first, last, _ = index.indices(self._count)
            return Batches(self._frames.window(first * size, last * size), size)
        if not 0 <= index < self._count:
            raise IndexError(index)
        return self._frames.window(index * size, index * size + size)


Elements = Frames | Batches | Columns | Sequence[Any]

OBJECT_BYTES = 64
FAILURE_BYTES = 1 << 10
"""What an error keeps alive, about."""
SPAN_BYTES = 16
STRING_BYTES = 40
"""What a `bytes` object costs beside its bytes: 33, and what the allocator rounds up."""

NUMBERS: Final = frozenset({bool, int, float, *(np.dtype(code).type for code in "?bBhHiIlLefdFD")})
"""Types of numbers that all weigh the same."""


class Positions(Protocol):
    """The places between a chunk's elements."""

    def at(self, index: int) -> Position:
        """Resume there, and exactly `elements[index:]` and what follows come."""


class RecordPlace(NamedTuple):
    """Where a record lies: its shard's URL, its number there, and its header's offset, as far as they are known."""

    path: str
    record: int | None
    offset: int | None = None

    def __str__(self) -> str:
        at = f"byte {self.offset:,}" if self.record is None else f"record {self.record:,}"
        return f"{self.path}, {at}"


class ElementPlace(NamedTuple):
    """Where an element lies that came from a cache: the file's URL, and its number among all elements there."""

    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, element {self.number:,}"


@dataclass(frozen=True, slots=True)
class Precursor:
    """What an element was made of: element `index` of an earlier chunk with these positions; of a batch, its row."""

    positions: Positions
    index: int
    row: int = 0


Place = RecordPlace | ElementPlace

Stretches = Sequence[tuple[Positions, int, int]]
"""Elements that follow each other: the positions of their chunk, the first one's index there, and how many."""


@runtime_checkable
class Traceable(Protocol):
    """Positions that say what the elements between them were made of."""

    def made_of(self, index: int, row: int) -> Sequence[Precursor | Place]:
        """What element `index`, or row `row` of it if it is a batch, was made of; nothing where that is not known."""


def records_behind(positions: Positions, index: int, row: int = 0) -> Iterator[Place]:
    """What an element or a row of a batch was made of: records, or elements of a cache; as far as they are known."""
    for found in positions.made_of(index, row) if isinstance(positions, Traceable) else ():
        if isinstance(found, Precursor):
            yield from records_behind(found.positions, found.index, found.row)
        else:
            yield found


def in_stretches(stretches: Stretches, index: int, row: int = 0) -> Sequence[Precursor]:
    """Element `index` of all stretches; nothing where they have fewer."""
    for positions, first, count in stretches:
        if index < count:
            return (Precursor(positions, first + index, row),)
        index -= count
    return ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of elements, their positions, and about how many bytes both keep alive; or an element that failed."""

    elements: Elements
    positions: Positions
    nbytes: int
    error: Exception | None = None

    @classmethod
    def failure(cls, error: Exception, positions: Positions, index: int) -> Chunk:
        """An element that failed; `positions.at(index)` is the place behind it."""
        return cls((), Shifted(positions, index) if index else positions, FAILURE_BYTES, error)

    def windows(self, count: int) -> Iterator[Chunk]:
        """The same elements, so many at a time, each with its part of the bytes."""
        whole = len(self.elements)
        for first in range(0, whole, count):
            last = min(first + count, whole)
            nbytes = self.nbytes * last // whole - self.nbytes * first // whole
            yield Chunk(window(self.elements, first, last), Shifted(self.positions, first), nbytes)

    @classmethod
    def weighed(cls, elements: Elements, positions: Positions) -> Chunk:
        """A chunk that weighs what its elements and its positions do."""
        return cls(elements, positions, weigh(elements) + weigh_places(positions, len(elements)))


@dataclass(frozen=True, slots=True)
class FixedPosition:
    """The position of the only place there is."""

    position: Position | None

    def at(self, index: int) -> Position:
        return self.position or {}


@dataclass(frozen=True, slots=True)
class Stride:
    """Positions of elements that are made of `size` elements each, from element `first` on."""

    inner: Positions
    first: int
    size: int

    def at(self, index: int) -> Position:
        return self.inner.at(self.first + index * self.size)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, self.first + index * self.size + row),) if row < self.size else ()


@dataclass(frozen=True, slots=True)
class Picked:
    """Positions of elements that were picked out of others, at `indices`; behind the last one, all `size` are done."""

    inner: Positions
    indices: npt.NDArray[np.int64]
    size: int

    def at(self, index: int) -> Position:
        return self.inner.at(int(self.indices[index]) if index < len(self.indices) else self.size)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, int(self.indices[index]), row),)


@dataclass(frozen=True, slots=True)
class StageState:
    """Positions with the state of one stage that counts elements: `first + index` of them at each place."""

    inner: Positions
    stage: str
    first: int

    def at(self, index: int) -> Position:
        return with_state(self.inner.at(index), self.stage, self.first + index)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, index, row),)


@dataclass(frozen=True, slots=True)
class Shifted:
    """Positions of a chunk whose first elements were skipped."""

    inner: Positions
    first: int

    def at(self, index: int) -> Position:
        return self.inner.at(self.first + index)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, self.first + index, row),)


@dataclass(frozen=True, slots=True)
class Nested:
    """Positions of a chain within a source that adds a state of its own."""

    inner: Positions
    state: Mapping[str, Any]

    def at(self, index: int) -> Position:
        return {"source": {**self.state, "inner": dict(self.inner.at(index))}}

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (Precursor(self.inner, index, row),)


def with_state(position: Position, stage: str, state: Any) -> Position:
    """A position with the state, JSON, of one stage more."""
    return {**position, "stages": {**position.get("stages", {}), stage: state}}


def weigh_places(positions: Positions, count: int) -> int:
    """About how many bytes the places between so many elements keep alive: `place_bytes` each, where they say so."""
    if isinstance(positions, Stride):
        return weigh_places(positions.inner, count * positions.size)
    if isinstance(positions, Picked | StageState | Shifted | Nested):
        return weigh_places(positions.inner, count)
    return count * int(getattr(positions, "place_bytes", 0))


def weigh(elements: Iterable[Any]) -> int:
    """About how many bytes objects keep alive: what the byte budgets count."""
    if isinstance(elements, Frames):
        return weigh_one(elements)
    if isinstance(elements, Columns):
        return weigh(leaves(elements.nest))
    if isinstance(elements, list) and len(elements) > 1 and len(kinds := set(map(type, elements))) == 1:
        kind = kinds.pop()
        if kind is bytes or kind is str:  # of one simple type there may be a million a second
            return sum(map(len, elements)) + OBJECT_BYTES * len(elements)
        if kind in NUMBERS:
            return len(elements) * weigh_one(elements[0])
    return sum(map(weigh_one, elements))


def held_bytes(column: BytesColumn) -> int:
    """What strings keep alive: the stretch of records that they lie in, of which other features may be the most."""
    if column.scattered:  # parsing leaves strings in many buffers only where they are the most of what these hold
        return column.nbytes
    spans = column.spans.reshape(-1, 2)
    return max(column.nbytes, abs(int(spans[-1, 1] - spans[0, 0]))) if len(spans) else 0


def weigh_objects(array: npt.NDArray[Any]) -> int:
    """About how many bytes the objects of an array keep alive: strings, or arrays such as decoded images."""
    if array.size and isinstance(array.flat[0], np.ndarray):
        return sum(each.nbytes + OBJECT_BYTES for each in array.flat)
    return sum(map(len, array.flat)) + STRING_BYTES * array.size


def weigh_one(element: Any) -> int:
    if isinstance(element, np.ndarray):  # first: a batch may have dozens
        return element.nbytes + (weigh_objects(element) if element.dtype.hasobject else 0) + OBJECT_BYTES
    if isinstance(element, Frames):
        return abs(element.extent) + SPAN_BYTES * len(element)
    if isinstance(element, BytesColumn):
        return held_bytes(element) + element.places.nbytes
    if isinstance(element, bytes | bytearray | str):
        return len(element) + OBJECT_BYTES
    if isinstance(element, Mapping):
        return weigh(element.values()) + OBJECT_BYTES
    if isinstance(element, tuple | list):
        return weigh(element) + OBJECT_BYTES
    if (chain := getattr(element, "chain", None)) is not None:  # a dataset, as `window` makes them, holds its elements
        return weigh(getattr(chain.source, "data", ())) + OBJECT_BYTES
    return int(getattr(element, "nbytes", 0)) + OBJECT_BYTES
