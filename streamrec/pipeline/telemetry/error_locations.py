"""Where in the data a stage failed: worked out from the positions of the chunk at which it did. Pure.

A record's place follows from the turns before and after its chunk: the shards that took part gave their records in
turn, and the turn behind the chunk says how far each of them is. `before` alone would not do: a shard that is
at its end there may have made room for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamrec.errors import FeatureError
from streamrec.pipeline.elements.chunk import (
    Chunk,
    Marks,
    Nested,
    Picked,
    Position,
    Positions,
    Shifted,
    StageState,
    Stride,
)
from streamrec.pipeline.sources.shards.positions import (
    BlockPositions,
    JoinedPositions,
    SharePositions,
    SourcePositions,
)
from streamrec.pipeline.stages.batch import Remainder

__all__ = ["FailedElement", "record_at"]


@dataclass(frozen=True, slots=True)
class FailedElement:
    """An element at which a stage failed.

    Args:
        number: Which one of those that the stage had in this run, from 0 on.
        chunk: The chunk that it came in.
        index: Its place there.
        row: Of a batch, the row that the error names.
    """

    number: int
    chunk: Chunk
    index: int
    row: int = 0

    def blamed_by(self, error: Exception) -> FailedElement:
        """The same, with the row that an error of parsing or decoding names."""
        row = error.record if isinstance(error, FeatureError) else None
        return replace(self, row=row or 0)

    def record(self, block_length: int) -> tuple[int, int] | None:
        """The shard's number and the record's in it; None where that is not known.

        Of a batch it is the record of its row; where records were left out before the batch was made, of its first row.
        """
        positions, count = self.chunk.positions, len(self.chunk.elements)
        if (joined := among_short_pulls(positions, self.index)) is not None:
            return in_a_short_pull(*joined, 0 if picked_before(positions) else self.row, block_length)
        before, after = innermost(positions.at(self.index)), innermost(positions.at(count))
        if "slots" not in before.get("source", {}) or "slots" not in after.get("source", {}):
            return None
        kind = made_of(positions)
        if kind in (Stride, Remainder) and not picked_before(positions):
            before = {**before, "skip": before.get("skip", 0) + self.row}
        if kind is Remainder or (kind is Stride and {*records(before)} - {*records(after)}):
            return only_shard(before, after)
        if kind is None:
            return None  # rows of batches
        return record_at(before, after, block_length)


def among_short_pulls(positions: Positions, index: int) -> tuple[JoinedPositions, int] | None:
    """The short pulls of which element `index` was made, and its first record's number among theirs."""
    while not isinstance(positions, JoinedPositions):
        if isinstance(positions, Marks | Remainder):
            positions, index = positions.marks[index] if isinstance(positions, Marks) else positions.before
            continue
        if isinstance(positions, Shifted):
            index += positions.first
        elif isinstance(positions, Stride):
            index = positions.first + index * positions.size
        elif isinstance(positions, Picked):
            index = int(positions.indices[index])
        elif not isinstance(positions, StageState | Nested | SharePositions):
            return None
        positions = positions.inner
    return positions, index


def in_a_short_pull(pulls: JoinedPositions, index: int, row: int, block_length: int) -> tuple[int, int] | None:
    """The shard and the number of the record `row` behind this one; None where it came later than these pulls."""
    index += row
    if index >= pulls.firsts[-1]:
        return None
    number = pulls.part_of(index)
    part, first, end = pulls.parts[number], pulls.firsts[number], pulls.firsts[number + 1]
    return record_at(part.at(index - first), part.at(end - first), block_length)


def innermost(position: Position) -> Position:
    """The position of the chain that reads, where a repeat or a prefetch runs it."""
    while "inner" in position.get("source", {}):
        position = position["source"]["inner"]
    return position


def only_shard(before: Position, after: Position) -> tuple[int, int] | None:
    """The record that `before` stands at, where one shard alone took part, which ended; it does not say with how many.

    >>> before = {"source": {"slots": [[2, 0, 8, None, ""], None], "next": 3}, "skip": 3}
    >>> only_shard(before, {"source": {"slots": [None, None], "next": 3}})
    (2, 11)
    """
    first = records(before)
    if len(first) != 1 or before["source"]["next"] != after["source"]["next"]:
        return None
    [(shard, record)] = first.items()
    return shard, record + int(before.get("skip", 0))


def made_of(positions: Positions) -> type | None:
    """What elements with these positions are: Chunk, those of a source; Stride, batches; Remainder, a last one.

    None for anything else.
    """
    while isinstance(positions, StageState | Picked | Nested | Shifted | SharePositions):
        positions = positions.inner
    if isinstance(positions, SourcePositions | BlockPositions):
        return Chunk
    if isinstance(positions, Remainder):
        return Remainder if made_of(positions.before[0]) is Chunk else None
    return Stride if isinstance(positions, Marks | Stride) else None


def picked_before(positions: Positions) -> bool:
    """Whether some records did not come as far as the batches with these positions."""
    if isinstance(positions, Marks):
        return any(picked_before(inner) for inner, _ in positions.marks)
    if isinstance(positions, Remainder):
        return picked_before(positions.before[0])
    if isinstance(positions, StageState | Nested | Shifted | Stride | SharePositions):
        return picked_before(positions.inner)
    return not isinstance(positions, SourcePositions | BlockPositions | JoinedPositions)


def records(position: Position) -> dict[int, int]:
    """How far each shard in the turn is."""
    return {slot[0]: slot[2] for slot in position["source"]["slots"] if slot}


def record_at(before: Position, after: Position, block_length: int) -> tuple[int, int] | None:
    """The shard and the number of the record that `before` stands at.

    Args:
        before: A position within a chunk: a turn, and a number of records to skip from there.
        after: The position behind the chunk.
        block_length: Records of a turn.

    >>> slots = [[0, 0, 10, None, ""], [1, 0, 10, None, ""]]
    >>> before = {"source": {"slots": [[0, 0, 8, None, ""], [1, 0, 8, None, ""]]}, "skip": 3}
    >>> record_at(before, {"source": {"slots": slots, "cycle": 0, "block": 0}}, block_length=1)
    (1, 9)

    Where one shard alone takes part, `after` may lie within a chunk as well, on either side of the record:

    >>> before = {"source": {"slots": [[0, 0, 0, None, ""]]}, "skip": 13}
    >>> record_at(before, {"source": {"slots": [[0, 0, 11, None, ""]]}, "skip": 5}, block_length=1)
    (0, 13)
    """
    first, last = records(before), records(after)
    if len(first) == 1 and first.keys() == last.keys():
        [(shard, record)] = first.items()
        return shard, record + int(before.get("skip", 0))
    moved = {shard: record - first.get(shard, 0) for shard, record in last.items()}
    moved = {shard: count for shard, count in moved.items() if count > 0}
    back = sum(moved.values()) - before.get("skip", 0)
    if back <= 0 or not moved:
        return None
    if len(moved) == 1:
        (shard,) = moved
        return shard, last[shard] - back
    return backwards(after["source"], last, back, block_length)


def backwards(turn: Mapping[str, Any], last: Mapping[int, int], back: int, block_length: int) -> tuple[int, int]:
    """The record that came `back` records before this turn."""
    slots: Sequence[Any] = turn["slots"]
    place, had = turn["cycle"], turn["block"]
    rounds = max(0, back - had - 1) // (len(last) * block_length)  # whole ones are gone through at once
    given = dict.fromkeys(last, rounds * block_length)
    back -= rounds * len(last) * block_length
    while True:
        if slots[place] is not None:
            shard = slots[place][0]
            if back <= had:
                return shard, last[shard] - given[shard] - back
            back -= had
            given[shard] += had
        place, had = (place - 1) % len(slots), block_length
