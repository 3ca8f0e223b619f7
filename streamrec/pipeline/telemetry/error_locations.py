"""Where in the data a stage failed: worked out from the positions of the chunk at which it did. Pure.

A record's place follows from the turns before and after its chunk: the shards that took part gave their records in
turn, and the turn behind the chunk says how far each of them is. `before` alone would not do: a shard that is
at its end there may have made room for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from streamrec.pipeline.sources.shards.positions import BlockPositions, SharePositions, SourcePositions
from streamrec.pipeline.stages.batch import Remainder

__all__ = ["FailedElement", "record_at"]


@dataclass(frozen=True, slots=True)
class FailedElement:
    """An element at which a stage failed.

    Args:
        number: Which one of those that the stage had in this run, from 0 on.
        chunk: The chunk that it came in.
        index: Its place there.
    """

    number: int
    chunk: Chunk
    index: int

    def record(self, block_length: int) -> tuple[int, int] | None:
        """The shard's number and the record's in it; None where that is not known. Of a batch, its first record."""
        positions, count = self.chunk.positions, len(self.chunk.elements)
        before, after = innermost(positions.at(self.index)), innermost(positions.at(count))
        if "slots" not in before.get("source", {}) or "slots" not in after.get("source", {}):
            return None
        kind = made_of(positions)
        if kind is Remainder or (kind is Stride and {*records(before)} - {*records(after)}):
            return only_shard(before, after)
        if kind is None:
            return None  # rows of batches
        return record_at(before, after, block_length)


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
    """
    first, last = records(before), records(after)
    moved = {shard: record - first.get(shard, 0) for shard, record in last.items()}
    moved = {shard: count for shard, count in moved.items() if count > 0}
    back = sum(moved.values()) - before.get("skip", 0) + after.get("skip", 0)
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
    given = dict.fromkeys(last, 0)
    while True:
        if slots[place] is not None:
            shard = slots[place][0]
            if back <= had:
                return shard, last[shard] - given[shard] - back
            back -= had
            given[shard] += had
        place, had = (place - 1) % len(slots), block_length
