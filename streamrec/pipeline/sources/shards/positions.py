"""Where an interleave is: as JSON for people's checkpoints, and as a snapshot that costs next to nothing.

A snapshot is taken for every chunk and hardly ever looked at, so it holds references, and works offsets out only when a
state is asked for. It holds spans, never a buffer of records.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    "InterleavePositions",
    "InterleaveSnapshot",
    "QueueMark",
    "QueueRecords",
    "ShardStart",
    "SharePositions",
    "TakenRecords",
    "WholeListing",
]

Numbers = npt.NDArray[np.int64]

MAX_SHARDS = 1 << (63 - OFFSET_BITS)


class QueueRecords(NamedTuple):
    """Records that were taken from the queue of one shard.

    Attributes:
        shard, version, compression: Of which shard.
        runs: For each block that they came in, its place in the shard and their spans within the block.
        end: The number of the record after them.
    """

    shard: int
    version: str | None
    compression: str | None
    runs: Sequence[tuple[int, Numbers]]
    end: int


class TakenRecords(NamedTuple):
    """What was taken from the queues in turn, the records of a turn, how many in all, and the shards' URLs."""

    queues: tuple[QueueRecords, ...]
    block: int
    total: int
    paths: Sequence[str] = ()

    def locations(self) -> RecordLocations:
        """Where the records are, in the order in which they were taken."""
        references, sizes = np.empty(self.total, np.int64), np.empty(self.total, np.int64)
        for number, (shard, _, _, runs, _) in enumerate(self.queues):
            spans = runs[0][1] if len(runs) == 1 else np.concatenate([each for _, each in runs])
            at = self._turns_of(number, len(spans))
            first = 0
            offsets = spans[:, 0] - HEADER_BYTES
            for origin, each in runs:
                offsets[first : first + len(each)] += origin
                first += len(each)
            check(shard, int(offsets[-1]))
            references[at] = offsets + (shard << OFFSET_BITS)
            sizes[at] = spans[:, 1] - spans[:, 0]
        shards = {queue.shard: (queue.version, queue.compression) for queue in self.queues}
        return RecordLocations(references, sizes, shards, self.paths)

    def record(self, index: int) -> Sequence[RecordPlace]:
        """Record `index` of those that were taken; nothing where no URLs are known."""
        if not self.paths:
            return ()
        turn, within = divmod(index, self.block)
        rounds, number = divmod(turn, len(self.queues))
        queue = self.queues[number]
        first = queue.end - sum(len(spans) for _, spans in queue.runs)
        return (RecordPlace(self.paths[queue.shard], first + rounds * self.block + within),)

    def _turns_of(self, number: int, count: int) -> Any:
        """The indices of one queue's records among all."""
        queues, block = len(self.queues), self.block
        if queues == 1:
            return slice(None)
        if block == 1:
            return slice(number, None, queues)
        turns, within = np.divmod(np.arange(count), block)
        return (turns * queues + number) * block + within


def check(shard: int, offset: int) -> None:
    """Refuses what a reference cannot name."""
    if shard >= MAX_SHARDS or offset >> OFFSET_BITS:
        raise ValueError(
            f"shard {shard:,}, byte {offset:,}: shuffle tells apart {MAX_SHARDS:,} shards of up to "
            f"{1 << OFFSET_BITS:,} bytes; put a batch(1).unbatch() before it, which it remembers in another way"
        )


class ShardStart(NamedTuple):
    """Where reading a shard begins: its number, its next record's place, and how it is compressed, if that is known."""

    shard: int
    place: ShardPlace = ShardPlace()
    compression: str | None = None

    @classmethod
    def of(cls, slot: Sequence[Any]) -> ShardStart:
        """What `QueueMark.to_json` says."""
        shard, offset, record, version, compression = slot
        return cls(shard, ShardPlace(offset, record, version), compression)


class QueueMark(NamedTuple):
    """Where one queue is: at record `used` of the block with these spans; without a block, at `end`."""

    shard: int
    record: int
    version: str | None
    compression: str | None
    end: int
    spans: Numbers | None
    origin: int
    used: int

    def to_json(self, further: int, version: str | None) -> list[Any]:
        """The place `further` records on, within the block; of the shard's version, where the mark knows none."""
        offset = self._offset(self.used + further)
        return [self.shard, offset, self.record + further, self.version or version, self.compression]

    def _offset(self, index: int) -> int:
        if self.spans is None:
            return self.end
        if index < len(self.spans):
            return self.origin + int(self.spans[index, 0]) - HEADER_BYTES
        return self.origin + int(self.spans[-1, 1]) + FOOTER_BYTES


class InterleaveSnapshot(NamedTuple):
    """The whole interleave: which shards are in the slots, whose turn it is, and which shard comes next."""

    marks: tuple[QueueMark | None, ...]
    cycle: int
    block: int
    next_shard: int

    def to_json(self, moved: int = -1, further: int = 0, taken: TakenRecords | None = None) -> dict[str, Any]:
        """The state there.

        Args:
            moved: The shard, if any, of which the state counts `further` records more.
            further: That number.
            taken: Records that are skipped after it: it holds the versions of their shards.
        """
        versions = {queue.shard: queue.version for queue in taken.queues if queue.version is not None} if taken else {}
        slots = [
            mark and mark.to_json(further if mark.shard == moved else 0, versions.pop(mark.shard, None))
            for mark in self.marks
        ]
        state: dict[str, Any] = {"slots": slots, "cycle": self.cycle, "block": self.block, "next": self.next_shard}
        if versions:
            state["versions"] = {str(shard): version for shard, version in versions.items()}
        return state


@dataclass(frozen=True, slots=True)
class InterleavePositions(Positions):
    """Positions within a chunk of records: they came in order, or are a part of a block of one shard.

    Args:
        before: Where the interleave was before the chunk.
        taken: Which records it has; None where that is not known.
        after: Where it is after all of these, in order; None for a block of `shard`, which needs no skip.
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
            return {"source": self.before.to_json(self.shard, index), "skip": 0}
        if index == self.size:
            return {"source": self.after.to_json(), "skip": 0}
        return {"source": self.before.to_json(taken=self.taken if index else None), "skip": index}


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
        """Refuses a state that was saved when other shards were listed."""
        count, complete, _ = whose
        await self._listing.until(count + 1 if complete else count)
        if self._first(count) != whose:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other sizes or versions: "
                "resume with the same shards, or start over without the state"
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
