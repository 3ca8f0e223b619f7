"""Where an interleave stands: as JSON for people's checkpoints, and as a snapshot that costs next to nothing.

A snapshot is taken for every chunk and looked at hardly ever, so it holds references, and works offsets out
only when somebody asks. It holds spans, never a buffer of records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.positions import Derived, Position, Positions, RecordLocations, RecordPlace
from streamrec.pipeline.engine.session import ListedShards
from streamrec.shards import OFFSET_BITS, ShardPlace
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES

__all__ = [
    "START",
    "InterleaveMark",
    "InterleavePositions",
    "InterleaveSnapshot",
    "QueueMark",
    "RecordRun",
    "ShardMark",
    "SharePositions",
    "TakenRecords",
    "WholeListing",
]

Numbers = npt.NDArray[np.int64]

MOST_SHARDS = 1 << (63 - OFFSET_BITS)
MOST_BYTES = 1 << 32


class RecordRun(NamedTuple):
    """Records that lie in one block of a shard."""

    origin: int
    spans: Numbers


class QueueRecords(NamedTuple):
    """Records that were taken of the queue of one shard, and the number of the one behind them."""

    shard: int
    version: str | None
    compression: str | None
    stretches: tuple[RecordRun, ...]
    end: int


class TakenRecords(NamedTuple):
    """What was taken of the queues in turn, the records of a turn, how many in all, and the shards' URLs."""

    queues: tuple[QueueRecords, ...]
    block: int
    total: int
    paths: Sequence[str] = ()

    def locations(self) -> RecordLocations:
        """The places of the records, in the order in which they were taken."""
        references, sizes = np.empty(self.total, np.int64), np.empty(self.total, np.int64)
        for number, (shard, _, _, stretches, _) in enumerate(self.queues):
            spans = stretches[0].spans if len(stretches) == 1 else np.concatenate([each.spans for each in stretches])
            at = self._turns_of(number, len(spans))
            first = 0
            offsets = spans[:, 0] - HEADER_BYTES
            for stretch in stretches:
                offsets[first : first + len(stretch.spans)] += stretch.origin
                first += len(stretch.spans)
            check(shard, int(offsets[-1]))
            references[at] = offsets + (shard << OFFSET_BITS)
            sizes[at] = spans[:, 1] - spans[:, 0]
        told = {queue.shard: (queue.version, queue.compression) for queue in self.queues}
        return RecordLocations(references, sizes, told, self.paths)

    def versions(self) -> dict[int, str]:
        """The versions of the shards that they are of, as far as stores have any."""
        return {queue.shard: queue.version for queue in self.queues if queue.version is not None}

    def record(self, index: int) -> Sequence[RecordPlace]:
        """Record `index` of those that were taken; nothing where no URLs are known."""
        if not self.paths:
            return ()
        turn, within = divmod(index, self.block)
        rounds, number = divmod(turn, len(self.queues))
        queue = self.queues[number]
        first = queue.end - sum(len(stretch.spans) for stretch in queue.stretches)
        return (RecordPlace(self.paths[queue.shard], first + rounds * self.block + within),)

    def _turns_of(self, number: int, count: int) -> Any:
        """Where one queue's records stand among all."""
        queues, block = len(self.queues), self.block
        if queues == 1:
            return slice(None)
        if block == 1:
            return slice(number, None, queues)
        turns, within = np.divmod(np.arange(count), block)
        return (turns * queues + number) * block + within


def check(shard: int, offset: int) -> None:
    """Refuses what a reference cannot name."""
    if shard >= MOST_SHARDS or offset >> OFFSET_BITS:
        raise ValueError(
            f"shard {shard:,}, byte {offset:,}: shuffle tells apart {MOST_SHARDS:,} shards of up to "
            f"{1 << OFFSET_BITS:,} bytes; put a batch(1).unbatch() before it, which it remembers in another way"
        )


START = ShardPlace()


@dataclass(frozen=True, slots=True)
class ShardMark:
    """Where a shard that takes part stands: its number, the next record's place, and how it is compressed."""

    shard: int
    place: ShardPlace = START
    compression: str | None = None

    def to_json(self) -> list[Any]:
        return [self.shard, self.place.offset, self.place.record, self.place.version, self.compression]

    @classmethod
    def from_json(cls, state: Sequence[Any]) -> ShardMark:
        shard, offset, record, version, compression = state
        return cls(shard, ShardPlace(offset, record, version), compression)


@dataclass(frozen=True, slots=True)
class InterleaveMark:
    """The whole interleave: which shards are in the slots, whose turn it is, and which shard comes next.

    `versions` holds those of shards, by their numbers, of which records are skipped that the state counts.
    """

    slots: tuple[ShardMark | None, ...]
    cycle: int = 0
    block: int = 0
    next_shard: int = 0
    versions: Mapping[int, str] = field(default_factory=dict)

    def start_of(self, shard: int) -> ShardMark:
        """Where a shard begins that is in no slot."""
        return ShardMark(shard, ShardPlace(version=self.versions[shard]) if shard in self.versions else START)

    def with_versions(self, versions: Mapping[int, str]) -> InterleaveMark:
        """The same with versions of shards of which it knows none yet."""
        rest, slots = dict(versions), list[ShardMark | None]()
        for slot in self.slots:
            if slot is not None and (version := rest.pop(slot.shard, None)) and slot.place.version is None:
                slot = replace(slot, place=replace(slot.place, version=version))
            slots.append(slot)
        return replace(self, slots=tuple(slots), versions=rest)

    def to_json(self) -> dict[str, Any]:
        slots = [slot and slot.to_json() for slot in self.slots]
        state: dict[str, Any] = {"slots": slots, "cycle": self.cycle, "block": self.block, "next": self.next_shard}
        if self.versions:
            state["versions"] = {str(shard): version for shard, version in self.versions.items()}
        return state

    @classmethod
    def from_json(cls, state: Mapping[str, Any]) -> InterleaveMark:
        versions = {int(shard): version for shard, version in state.get("versions", {}).items()}
        slots = tuple(slot and ShardMark.from_json(slot) for slot in state["slots"])
        return cls(slots, state["cycle"], state["block"], state["next"], versions)


class QueueMark(NamedTuple):
    """Where one queue stands: record `used` of the block with these spans, or `end` where no block is there."""

    shard: int
    record: int
    version: str | None
    compression: str | None
    end: int
    spans: npt.NDArray[np.int64] | None
    origin: int
    used: int

    def arrival(self, further: int = 0) -> ShardMark:
        """The place `further` records on, within the block."""
        place = ShardPlace(self._offset(self.used + further), self.record + further, self.version)
        return ShardMark(self.shard, place, self.compression)

    def _offset(self, index: int) -> int:
        if self.spans is None:
            return self.end
        if index < len(self.spans):
            return self.origin + int(self.spans[index, 0]) - HEADER_BYTES
        return self.origin + int(self.spans[-1, 1]) + FOOTER_BYTES


class InterleaveSnapshot(NamedTuple):
    """A Turn that is not worked out yet."""

    marks: tuple[QueueMark | None, ...]
    cycle: int
    block: int
    next_shard: int

    def turn(self, moved: int = -1, further: int = 0) -> InterleaveMark:
        """The turn; with `moved`, the one in which that shard is `further` records on."""
        slots = tuple(
            mark if mark is None else mark.arrival(further if mark.shard == moved else 0) for mark in self.marks
        )
        return InterleaveMark(slots, self.cycle, self.block, self.next_shard)


@dataclass(frozen=True, slots=True)
class InterleavePositions(Positions):
    """Positions within a chunk of records: they came in order, or are a part of a block of one shard.

    Args:
        before: Where the interleave stood before the chunk.
        taken: Where its records lie; None where that is not known.
        after: Where it stands after all of these, in order; None for a block of `shard`, which needs no skip.
        size: How many records there are.
        shard: The number of the shard that the block is of.
    """

    before: InterleaveSnapshot
    taken: TakenRecords | None
    after: InterleaveSnapshot | None = None
    size: int = 0
    shard: int = -1

    def locations(self) -> RecordLocations | None:
        return self.taken and self.taken.locations()

    def made_of(self, index: int, row: int) -> Sequence[RecordPlace]:
        return self.taken.record(index) if self.taken else ()

    def at(self, index: int) -> Position:
        if self.after is None:
            return {"source": self.before.turn(self.shard, index).to_json(), "skip": 0}
        if index == self.size:
            return {"source": self.after.turn().to_json(), "skip": 0}
        before = self.before.turn()
        if index and self.taken:
            before = before.with_versions(self.taken.versions())
        return {"source": before.to_json(), "skip": index}


class WholeListing:
    """All that is listed, read by one reader: states hold what it was, as far as it was known.

    Args:
        listing: The shards, and what the store's listing says of them.
    """

    def __init__(self, listing: ListedShards) -> None:
        self._listing = listing
        self._told: list[Any] = []

    @property
    def whose(self) -> list[Any]:
        """How many shards are known, whether that is all, and a digest of their names, sizes and versions."""
        count = len(self._listing.paths)
        if self._told[:2] != [count, self._listing.complete]:
            self._told = self._first(count)
        return self._told

    async def check(self, whose: Sequence[Any]) -> None:
        """Refuses a state that was saved when other shards were listed.

        Raises:
            PositionMismatchError: It was.
        """
        count, complete, _ = whose
        await self._listing.until(count + 1 if complete else count)
        if self._first(count) != whose:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other sizes or versions: "
                "resume with the same shards, or start anew without the state"
            )

    def _first(self, count: int) -> list[Any]:
        known, paths = self._listing.known, self._listing.paths[:count]
        told = [(path, info.size, info.version) if (info := known.get(path)) else path for path in paths]
        complete = self._listing.complete and count == len(self._listing.paths)
        return [count, complete, blake2b(ascii(told).encode(), digest_size=8).hexdigest()]


@dataclass(frozen=True, slots=True)
class SharePositions(Derived):
    """Positions within a share: of the source, whose share it is (`whose`), and how many came before, if counted."""

    share: Any
    given: int | None = None

    def at(self, index: int) -> Position:
        position = self.inner.at(index)
        skip = position.get("skip", 0)
        source = {**position["source"], "share": self.share.whose}
        if self.given is not None:
            source["given"] = self.given + index - skip
        return {"source": source, "skip": skip}
