"""How positions refer to the elements in a shuffle buffer, so that a resumed run finds them again.

There are two ways, and each is an object of this file:
- `ByReference`: shard and offset of each record; they are fetched again from there (`refetch.py`).
- `ByNumber`: how many elements of the input came before each. The input is run again from a known
  position up to the next element, and all but the held elements are dropped. One position is kept
  for each round, as far back as elements are held: an element stays for one round on average, but
  the oldest of n for about ln(n) rounds.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from streamrec.errors import StreamrecError
from streamrec.pipeline.elements.positions import (
    Location,
    Position,
    Positions,
    RecordLocation,
    RecordLocations,
)
from streamrec.pipeline.sources.shuffle.buffer_store import REFERENCE, TAG, Numbers
from streamrec.pipeline.sources.shuffle.slots import BufferIndex
from streamrec.shards import OFFSET_BITS
from streamrec.tfrecord import BUFFER_BITS

UNORDERED = (
    "the input of this shuffle is not records of shards and has no fixed order "
    "(deterministic=False), so a resumed run cannot find the elements of its buffer again: "
    "shuffle the records themselves, or keep their order"
)

SIZES = (1 << BUFFER_BITS) - 1
OFFSETS = (1 << OFFSET_BITS) - 1

Versions = Mapping[int, tuple[str | None, str | None]]
"""The version and the compression of each shard, by its number."""


class Identities:
    """What the elements in a buffer are called, in the REFERENCE of their rows."""

    __slots__ = ()

    def check(self) -> None:
        """Raises an error if a resumed run could not find the elements again."""

    def identify(
        self, rows: Numbers, tags: int | Numbers, positions: Positions, first: int
    ) -> None:
        """Writes TAG and REFERENCE of arriving rows; their first element has number `first`."""
        raise NotImplementedError

    def next_round(self, base: BufferIndex) -> Identities:
        """The identities from now on: a round begins with these slots."""
        return self

    def describe(self, slots: BufferIndex) -> dict[str, Any]:
        """What a position says of the elements in slots, and where the input goes on."""
        raise NotImplementedError

    def locations(self, rows: Numbers) -> RecordLocations | None:
        """Where the elements of rows are in shards; None if they are not records."""
        raise NotImplementedError

    def find(self, reference: int, first: int, size: int, positions: Positions) -> int | None:
        """The index of an element in a chunk of the input; None if it is not there."""
        raise NotImplementedError

    def locate(self, reference: int) -> Sequence[Location]:
        """Where an element is, without the positions of the input; empty if unknown."""
        return ()


@dataclass(slots=True)
class ByReference(Identities):
    """Elements are records of shards: a reference is shard and offset.

    Args:
        shards: Versions and compressions of the shards that were met.
        paths: The shards' URLs.
    """

    shards: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    paths: Sequence[str] = ()

    def identify(
        self, rows: Numbers, tags: int | Numbers, positions: Positions, first: int
    ) -> None:
        locations = locations_in(positions).take(slice(len(rows)))
        self.shards.update(locations.shards)
        self.paths = locations.paths
        # The size shares a number with the block; a position needs it to fetch the record again.
        np.add(locations.sizes, tags, out=rows[:, TAG])
        rows[:, REFERENCE] = locations.references

    def describe(self, slots: BufferIndex) -> dict[str, Any]:
        rows = slots.rows
        held = HeldElements(rows[:, REFERENCE], rows[:, TAG] & SIZES, self.shards)
        inner = slots.entry.positions.at(slots.taken)
        return {"held": held.to_json(), "inner": dict(inner)}

    def locations(self, rows: Numbers) -> RecordLocations:
        return RecordLocations(rows[:, REFERENCE], rows[:, TAG] & SIZES, self.shards, self.paths)

    def find(self, reference: int, first: int, size: int, positions: Positions) -> int | None:
        indices = np.flatnonzero(locations_in(positions).references == reference)
        return int(indices[0]) if len(indices) else None

    def locate(self, reference: int) -> Sequence[Location]:
        if not self.paths:
            return ()
        return (RecordLocation(self.paths[reference >> OFFSET_BITS], None, reference & OFFSETS),)


class KnownPosition(NamedTuple):
    """A position of the input from which held elements can be reached.

    `number` is that of its next element.
    """

    number: int
    position: Position | None


@dataclass(frozen=True, slots=True)
class ByNumber(Identities):
    """Elements are numbered by the input, which means something if its order is fixed (`ordered`).

    >>> numbers = ByNumber.of({"source": {"next": 7}})
    >>> numbers.find(reference=12, first=10, size=5, positions=Positions())
    2
    """

    known: tuple[KnownPosition, ...]
    ordered: bool = True

    @classmethod
    def of(cls, start: Position | None, ordered: bool = True) -> ByNumber:
        """The identities of an input that begins at `start`."""
        return cls((KnownPosition(0, start),), ordered)

    def check(self) -> None:
        if not self.ordered:
            raise StreamrecError(UNORDERED)

    def identify(
        self, rows: Numbers, tags: int | Numbers, positions: Positions, first: int
    ) -> None:
        rows[:, TAG] = tags
        rows[:, REFERENCE] = np.arange(first, first + len(rows))

    def next_round(self, base: BufferIndex) -> ByNumber:
        """Adds the input's next position to the known ones.

        Leaves out those before all held elements. Positions that were given keep theirs.
        """
        number = base.next
        oldest = int(base.rows[:, REFERENCE].min()) if len(base.rows) else number
        known = [position for position, after in pairwise(self.known) if after.number > oldest]
        known.append(self.known[-1])
        if known[-1].number != number:
            known.append(KnownPosition(number, base.entry.positions.at(base.taken)))
        return ByNumber(tuple(known), self.ordered)

    def describe(self, slots: BufferIndex) -> dict[str, Any]:
        numbers = slots.rows[:, REFERENCE]
        # The last known position from which all held elements are still to come.
        oldest = min(int(numbers.min()), slots.next) if len(numbers) else slots.next
        known = next(known for known in reversed(self.known) if known.number <= oldest)
        return {
            "next": slots.next - known.number,
            "held": HeldElements(numbers - known.number).to_json(),
            "inner": dict(known.position or {}),
        }

    def locations(self, rows: Numbers) -> None:
        return None

    def find(self, reference: int, first: int, size: int, positions: Positions) -> int | None:
        return reference - first if first <= reference < first + size else None


def locations_in(positions: Positions) -> RecordLocations:
    """The locations of positions that have them: those of chains that `find_shards` accepts."""
    locations = positions.locations()
    assert locations is not None, (
        "a chain whose records are held by reference knows their locations"
    )
    return locations


@dataclass(frozen=True, slots=True)
class HeldElements:
    """How a position refers to the buffer's elements.

    It has their numbers or references, in the order of the slots.
    """

    numbers: Numbers
    sizes: Numbers | None = None
    shards: Versions | None = None

    def to_json(self) -> dict[str, Any]:
        """Packed JSON: 50,000 references take 300 to 700 kB."""
        if self.sizes is None or self.shards is None:
            return {"numbers": pack_numbers(self.numbers)}
        shards = self.numbers >> OFFSET_BITS
        present = np.flatnonzero(np.bincount(shards)).tolist()
        return {
            "shards": {str(shard): list(self.shards[shard]) for shard in present},
            "shard": pack_numbers(shards),
            "offset": pack_numbers(self.numbers & OFFSETS),
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
