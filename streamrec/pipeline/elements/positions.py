"""Positions: the places between a chunk's elements, and what these were made of.

Rules:
- `positions.at(i)` says where to resume so that exactly `elements[i:]` and all that follows come. It is worked out
  when a state is asked for, never per record. Positions are immutable and hold no data.
- A position is JSON: the state of the chain's source, how many elements to skip after it, and a state for each stage
  that has one. So a source may say where a chunk began, and count the elements from there on (`FixedPosition`).
- Elements that were made of others point to these (`Derived`, `IndexMap`, `Joined`), down to the records of shards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Derived",
    "ElementPlace",
    "FixedPosition",
    "IndexMap",
    "Joined",
    "Nested",
    "NumberedPositions",
    "Place",
    "Position",
    "Positions",
    "Precursor",
    "RecordLocations",
    "RecordPlace",
    "StageState",
    "Stretches",
    "group_rows",
    "records_behind",
    "shift",
    "with_state",
]

Numbers = npt.NDArray[np.int64]

Position = Mapping[str, Any]
"""JSON: `source` (the source's own state), `skip` (elements after it), `stages` (a state per stage that has one)."""


class RecordPlace(NamedTuple):
    """Where a record is: its shard's URL, its number there, and its header's offset, as far as they are known."""

    path: str
    record: int | None
    offset: int | None = None

    def __str__(self) -> str:
        at = f"byte {self.offset:,}" if self.record is None else f"record {self.record:,}"
        return f"{self.path}, {at}"


class ElementPlace(NamedTuple):
    """Where an element is that came from a cache: the file's URL, and its number among all elements there."""

    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, element {self.number:,}"


@dataclass(frozen=True, slots=True)
class RecordLocations:
    """Where records are in their shards, so that a position can name them without their data.

    Args:
        references: For each, its shard's number and its header's offset there.
        sizes: For each, its payload's bytes.
        shards: The version and the compression of each shard, by its number.
        paths: The shards' URLs.
    """

    references: Numbers
    sizes: Numbers
    shards: Mapping[int, tuple[str | None, str | None]]
    paths: Sequence[str] = ()

    def take(self, indices: Any) -> RecordLocations:
        """Those of some records, by indices or a slice."""
        return RecordLocations(self.references[indices], self.sizes[indices], self.shards, self.paths)

    @classmethod
    def join(cls, parts: Sequence[RecordLocations]) -> RecordLocations:
        """Those of several as one."""
        shards = {shard: each for part in parts for shard, each in part.shards.items()}
        references, sizes = [part.references for part in parts], [part.sizes for part in parts]
        return cls(np.concatenate(references), np.concatenate(sizes), shards, parts[0].paths if parts else ())


class Positions:
    """The places between a chunk's elements."""

    __slots__ = ()

    def at(self, index: int) -> Position:
        """Resume there, and exactly `elements[index:]` and what follows come."""
        raise NotImplementedError

    def precursors(self, index: int, row: int) -> Sequence[Precursor | Place]:
        """What element `index`, or row `row` of it if it is a batch, was made of; nothing where that is not known."""
        return ()

    def locations(self) -> RecordLocations | None:
        """Where the records are that the elements are or were made of, one of each; None where that is not known.

        There may be more of them than elements.
        """
        return None

    def weight(self, count: int) -> int:
        """About how many bytes the places between this many elements keep alive, beyond what all positions do."""
        return 0


@dataclass(frozen=True, slots=True)
class Precursor:
    """What an element was made of: element `index` of an earlier chunk with these positions; of a batch, its row."""

    positions: Positions
    index: int
    row: int = 0


Place = RecordPlace | ElementPlace

Stretches = Sequence[tuple[Positions, int, int]]
"""Elements that follow each other: the positions of their chunk, the first one's index there, and how many."""


def records_behind(positions: Positions, index: int, row: int = 0) -> Iterator[Place]:
    """What an element or a row of a batch was made of: records, or elements of a cache; as far as they are known."""
    for found in positions.precursors(index, row):
        if isinstance(found, Precursor):
            yield from records_behind(found.positions, found.index, found.row)
        else:
            yield found


@dataclass(frozen=True, slots=True)
class FixedPosition(Positions):
    """A place that is known, None for the start; the places after it say how many elements to skip."""

    position: Position | None

    def at(self, index: int) -> Position:
        position = self.position or {}
        return {**position, "skip": position.get("skip", 0) + index} if index else position


@dataclass(frozen=True, slots=True)
class NumberedPositions(Positions):
    """Positions of elements whose source numbers them; `origin` says what each number was made of."""

    first: int
    origin: Positions | None = None

    def at(self, index: int) -> Position:
        return {"source": {"next": self.first + index}}

    def precursors(self, index: int, row: int) -> Sequence[Precursor | Place]:
        return self.origin.precursors(self.first + index, row) if self.origin is not None else ()


@dataclass(frozen=True, slots=True)
class Derived(Positions):
    """Positions of elements of which each was made of the one with its index in another chunk."""

    inner: Positions

    def at(self, index: int) -> Position:
        return self.inner.at(index)

    def precursors(self, index: int, row: int) -> Sequence[Precursor | Place]:
        return (Precursor(self.inner, index, row),)

    def locations(self) -> RecordLocations | None:
        return self.inner.locations()

    def weight(self, count: int) -> int:
        return self.inner.weight(count)


@dataclass(frozen=True, slots=True)
class IndexMap(Derived):
    """Positions of elements that were picked out of others, or of batches of `size` of these.

    Args:
        indices: The index of each element's first among the others, and after the last one, where the next one begins.
        size: How many of the others make one element; 1: the element is the other one itself.
    """

    indices: Sequence[int] | Numbers
    size: int = 1

    def at(self, index: int) -> Position:
        return self.inner.at(int(self.indices[index]))

    def precursors(self, index: int, row: int) -> Sequence[Precursor | Place]:
        if self.size == 1:
            return (Precursor(self.inner, int(self.indices[index]), row),)
        return (Precursor(self.inner, int(self.indices[index]) + row),) if row < self.size else ()

    def locations(self) -> RecordLocations | None:
        found = self.inner.locations() if self.size == 1 else None
        if found is None:
            return None
        if isinstance(self.indices, range):
            return found.take(slice(self.indices.start, None))
        return found.take(self.indices[:-1])

    def weight(self, count: int) -> int:
        return self.inner.weight(count * self.size)


def shift(positions: Positions, first: int) -> Positions:
    """Positions of a chunk without its first elements."""
    return IndexMap(positions, range(first, sys.maxsize)) if first else positions


def group_rows(positions: Positions, first: int, size: int) -> Positions:
    """Positions of batches of `size` elements of a chunk, from its element `first` on."""
    return IndexMap(positions, range(first, sys.maxsize, size), size)


@dataclass(frozen=True, slots=True)
class StageState(Derived):
    """Positions with the state of one stage more, which it gives for each place."""

    stage: str
    state: Callable[[int], Any]

    def at(self, index: int) -> Position:
        return with_state(self.inner.at(index), self.stage, self.state(index))


@dataclass(frozen=True, slots=True)
class Nested(Derived):
    """Positions of a chain within a source that adds a state of its own."""

    state: Mapping[str, Any]

    def at(self, index: int) -> Position:
        return {"source": {**self.state, "inner": dict(self.inner.at(index))}}


@dataclass(frozen=True, slots=True)
class Joined(Positions):
    """Positions of elements of several chunks, one after the other.

    Args:
        stretches: The elements.
        start: The place if `stretches` is empty; None for the start of the chain.
    """

    stretches: Stretches
    start: Position | None = None

    def at(self, index: int) -> Position:
        for positions, first, count in self.stretches:
            if index <= count:
                return positions.at(first + index)
            index -= count
        return self.start or {}

    def precursors(self, index: int, row: int) -> Sequence[Precursor | Place]:
        for positions, first, count in self.stretches:
            if index < count:
                return (Precursor(positions, first + index, row),)
            index -= count
        return ()

    def locations(self) -> RecordLocations | None:
        parts = []
        for positions, first, count in self.stretches:
            if (found := positions.locations()) is None:
                return None
            parts.append(found.take(slice(first, first + count)))
        return RecordLocations.join(parts)

    def weight(self, count: int) -> int:
        return max((positions.weight(count) for positions, _, _ in self.stretches), default=0)


def with_state(position: Position, stage: str, state: Any) -> Position:
    """A position with the state, JSON, of one stage more."""
    return {**position, "stages": {**position.get("stages", {}), stage: state}}
