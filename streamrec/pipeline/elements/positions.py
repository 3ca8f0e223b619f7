"""Positions: where a run can resume between a chunk's elements, and what made these elements.

Rules:
- A run resumed at `positions.at(i)` gives exactly `elements[i:]` and all that follows. The position
  is computed when a state is asked for, never per record. Positions are immutable and hold no data.
- A position is JSON: the state of the chain's source, the number of elements to skip after it, and
  a state for each stage that has one. So a source may name the start of a chunk and count elements
  from there on (`FixedPosition`).
- Elements that were made of others refer to these (`Derived`, `IndexMap`, `Joined`), down to the
  records of shards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

Position = Mapping[str, Any]
"""A place where a run can resume, as JSON.

`source` is the source's state, `skip` the number of elements to skip after it, and `stages` has the
states of stages by key.
"""


class RecordLocation(NamedTuple):
    """Where a record is: its shard's URL, and its number or its header's offset there."""

    path: str
    record: int | None
    offset: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.path}, byte {self.offset:,}"
            if self.record is None
            else f"{self.path}, record {self.record:,}"
        )


class ElementLocation(NamedTuple):
    """Where an element of a cache file is: the file's URL, and the element's number there."""

    path: str
    number: int

    def __str__(self) -> str:
        return f"{self.path}, element {self.number:,}"


@dataclass(frozen=True, slots=True)
class RecordLocations:
    """Where records are in their shards, so that a position can refer to them without their data.

    Args:
        references: int64 for each record: `shard << OFFSET_BITS | offset` of its header.
        sizes: The bytes of each record's payload.
        shards: The version and the compression of each shard, by its number.
        paths: The shards' URLs.
    """

    references: Numbers
    sizes: Numbers
    shards: Mapping[int, tuple[str | None, str | None]]
    paths: Sequence[str] = ()

    def take(self, indices: Any) -> RecordLocations:
        """The locations of the records at some indices, or in a slice."""
        return RecordLocations(
            self.references[indices], self.sizes[indices], self.shards, self.paths
        )

    @classmethod
    def join(cls, parts: Sequence[RecordLocations]) -> RecordLocations:
        """The locations of all records of several parts, which have the same paths."""
        shards: dict[int, tuple[str | None, str | None]] = {}
        for part in parts:
            shards.update(part.shards)
        return cls(
            np.concatenate([part.references for part in parts]),
            np.concatenate([part.sizes for part in parts]),
            shards,
            parts[0].paths if parts else (),
        )


class Positions:
    """Where to resume before each of a chunk's elements, and after the last one."""

    __slots__ = ()

    def at(self, index: int) -> Position:
        """The position from which a run gives exactly `elements[index:]` and what follows."""
        raise NotImplementedError

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        """What element `index`, or its row `row` if it is a batch, was made of.

        Empty if that is unknown.
        """
        return ()

    def locations(self) -> RecordLocations | None:
        """The location of the one record that each element is or was made of.

        It may have locations of more records after these. None if an element was made of several.
        """
        return None

    def weight(self, count: int) -> int:
        """About how many bytes the positions of `count` elements keep alive, beyond a constant."""
        return 0


@dataclass(frozen=True, slots=True)
class Origin:
    """What an element was made of.

    It is element `index` of an earlier chunk with these positions, or row `row` of it.
    """

    positions: Positions
    index: int
    row: int = 0


Location = RecordLocation | ElementLocation

OriginsOf = Callable[[int, int], Sequence[Origin | Location]]
"""Says what an element was made of, or a row of it if it is a batch, by the numbers of both."""

ChunkSlices = Sequence[tuple[Positions, int, int]]
"""Consecutive elements as slices of chunks.

A slice is a chunk's positions, the first element's index there, and the count.
"""


def trace_origins(positions: Positions, index: int, row: int = 0) -> Iterator[Location]:
    """The known records or cache elements that an element, or a row of a batch, was made of."""
    for origin in positions.origins(index, row):
        if isinstance(origin, Origin):
            yield from trace_origins(origin.positions, origin.index, origin.row)
        else:
            yield origin


@dataclass(frozen=True, slots=True)
class FixedPosition(Positions):
    """A known position, None for the start; positions after it count the elements to skip."""

    position: Position | None

    def at(self, index: int) -> Position:
        position = self.position or {}
        return {**position, "skip": position.get("skip", 0) + index} if index else position


def next_number(number: int) -> dict[str, Any]:
    """The state of a source that needs only the number of the next element."""
    return {"next": number}


@dataclass(frozen=True, slots=True)
class NumberedPositions(Positions):
    """Positions of elements that their source numbers.

    Args:
        first: The number of the first element.
        source: The state of the source before an element, by its number.
        origins_of: Says what an element was made of, by its number and the row in it; None if that
            is unknown.
        step: From one number to the next.
    """

    first: int
    source: Callable[[int], Mapping[str, Any]] = next_number
    origins_of: OriginsOf | None = None
    step: int = 1

    def at(self, index: int) -> Position:
        return {"source": self.source(self.first + index * self.step)}

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        if self.origins_of is None:
            return ()
        return self.origins_of(self.first + index * self.step, row)


@dataclass(frozen=True, slots=True)
class Derived(Positions):
    """Positions of elements that were made of another chunk's, one of each, in order.

    Args:
        inner: The other chunk's positions.
        place: The position before an element, of the other chunk's positions and the index: often
            the other chunk's one, and what a stage or source has to say besides.
    """

    inner: Positions
    place: Callable[[Positions, int], Position]

    def at(self, index: int) -> Position:
        return self.place(self.inner, index)

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        return (Origin(self.inner, index, row),)

    def locations(self) -> RecordLocations | None:
        return self.inner.locations()

    def weight(self, count: int) -> int:
        return self.inner.weight(count)


def with_stage_state(inner: Positions, stage: str, state: Callable[[int], Any]) -> Derived:
    """Positions with the state of one more stage, computed for each index."""

    def place(inner: Positions, index: int) -> Position:
        return with_state(inner.at(index), stage, state(index))

    return Derived(inner, place)


def nested(inner: Positions, state: Mapping[str, Any]) -> Derived:
    """Positions of a chain within a source that has a state, too."""

    def place(inner: Positions, index: int) -> Position:
        return {"source": {**state, "inner": dict(inner.at(index))}}

    return Derived(inner, place)


@dataclass(frozen=True, slots=True)
class IndexMap(Positions):
    """Positions of elements picked out of another chunk, or of batches of `size` of these.

    Args:
        inner: The other chunk's positions.
        indices: The index of each element, or of each batch's first element, in the other chunk;
            and of the next one.
        size: The number of elements in a batch; 1 for elements that were picked.
    """

    inner: Positions
    indices: Sequence[int] | Numbers
    size: int = 1

    def at(self, index: int) -> Position:
        return self.inner.at(int(self.indices[index]))

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        if self.size == 1:
            return (Origin(self.inner, int(self.indices[index]), row),)
        return (Origin(self.inner, int(self.indices[index]) + row),) if row < self.size else ()

    def locations(self) -> RecordLocations | None:
        locations = self.inner.locations() if self.size == 1 else None
        if locations is None:
            return None
        is_range = isinstance(self.indices, range)
        return locations.take(slice(self.indices[0], None) if is_range else self.indices[:-1])

    def weight(self, count: int) -> int:
        return self.inner.weight(count * self.size)


def shift(positions: Positions, first: int) -> Positions:
    """Positions of a chunk without its `first` elements."""
    return IndexMap(positions, range(first, sys.maxsize)) if first else positions


@dataclass(frozen=True, slots=True)
class Joined(Positions):
    """Positions of elements of several chunks, back to back.

    Without slices, `start` is the position.
    """

    slices: ChunkSlices
    start: Position | None = None

    def at(self, index: int) -> Position:
        for positions, first, count in self.slices:
            if index <= count:
                return positions.at(first + index)
            index -= count
        return self.start or {}

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        for positions, first, count in self.slices:
            if index < count:
                return (Origin(positions, first + index, row),)
            index -= count
        return ()

    def locations(self) -> RecordLocations | None:
        parts = []
        for positions, first, count in self.slices:
            if (locations := positions.locations()) is None:
                return None
            parts.append(locations.take(slice(first, first + count)))
        return RecordLocations.join(parts)

    def weight(self, count: int) -> int:
        return max((positions.weight(count) for positions, _, _ in self.slices), default=0)


@dataclass(frozen=True, slots=True)
class OneElement(Positions):
    """Positions of a single element: before it and after it, wherever these are.

    Args:
        slices: What it was made of, if anything: the first slice begins where a run resumes
            before it.
        end: Positions and the index after it; None at the end of the input.
    """

    slices: ChunkSlices
    end: tuple[Positions, int] | None

    def at(self, index: int) -> Position:
        if index and self.end is not None:
            positions, inner = self.end
            return positions.at(inner)
        positions, inner, _ = self.slices[0]
        return {**positions.at(inner), "ended": True} if index else positions.at(inner)

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        return Joined(self.slices).origins(row, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralInputs(Positions):
    """Positions of elements that several inputs gave, with a cursor in each input.

    Args:
        inputs: The positions of each input in this chunk; None where there is none.
        shares: How many elements each input gave before an element, by the element's index. From
            one element to the next, it grows by one for each input that gave it.
        source: The state of the source before an element, of its index and the position of each
            input there.
        locate: Computes the locations of the elements, if each is, or was made of, one record.
    """

    inputs: Sequence[Joined | None]
    shares: Callable[[int], Sequence[int]]
    source: Callable[[int, Sequence[Position | None]], Mapping[str, Any]]
    locate: Callable[[], RecordLocations] | None = None

    def at(self, index: int) -> Position:
        cursors = [
            None if positions is None else positions.at(share)
            for positions, share in zip(self.inputs, self.shares(index), strict=True)
        ]
        return {"source": self.source(index, cursors)}

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        found: list[Origin | Location] = []
        shares = zip(self.shares(index), self.shares(index + 1), strict=True)
        for positions, (before, after) in zip(self.inputs, shares, strict=True):
            if positions is not None and after > before:
                found += positions.origins(before, row)
        return found

    def locations(self) -> RecordLocations | None:
        return None if self.locate is None else self.locate()


def with_state(position: Position, stage: str, state: Any) -> Position:
    """A position with the JSON state of one more stage."""
    return {**position, "stages": {**position.get("stages", {}), stage: state}}
