"""Shard queues hold the records of one shard that wait for their turn; and their interleave.

Contract of this queue: the task of a shard pushes blocks, and the interleave looks at all queues
before it takes records of some. Nothing waits here: whether the next block may be read is decided
before (`open_ahead.py`, `fetch.py`), and the bytes count in the account of the ledger. An error
that ended the shard comes at its turn, after all records before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import (
    Joined,
    Numbers,
    Position,
    Positions,
    RecordLocation,
    RecordLocations,
    SeveralInputs,
)
from streamrec.pipeline.engine.versions import ComparedVersions, SavedVersions, ShardVersions
from streamrec.pipeline.sources.inputs import ArrivedElements
from streamrec.pipeline.sources.interleave import (
    Interleave,
    OpenInputs,
    Plan,
    positions_in_turns,
)
from streamrec.pipeline.sources.pulls import TurnShares, shares_of
from streamrec.shards import OFFSET_BITS, ShardPlace
from streamrec.storage.ledger import Account
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Frames, Scattered, are_long, join_frames

STRETCH_BYTES = 256 << 10
"""Consecutive records of one block are not copied if they have at least these bytes.

Smaller slices are copied, since they would keep a whole block alive.
"""

MAX_SHARDS = 1 << (63 - OFFSET_BITS)


class ShardStart(NamedTuple):
    """Where reading a shard begins.

    It has the shard's number, the place of the next record, and the compression if known.
    """

    shard: int
    place: ShardPlace = ShardPlace()
    compression: str | None = None

    @classmethod
    def of(cls, slot: Sequence[Any]) -> ShardStart:
        """The start that a position holds for an open shard."""
        shard, offset, record, version, compression = slot
        return cls(shard, ShardPlace(offset, record, version), compression)

    def position(self) -> Position:
        """The position before the next record."""
        place = self.place
        slot = [self.shard, place.offset, place.record, place.version, self.compression]
        return {"slot": slot}

    def opened(self, version: str | None, compression: str | None) -> ShardStart:
        """The same start, in the shard as it was opened."""
        place = ShardPlace(self.place.offset, self.place.record, version)
        return ShardStart(self.shard, place, compression)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPositions(Positions):
    """Positions of the records of a block, each as the `slot` of an open shard.

    They hold spans, but no records.

    The first record has the number `record`; the block is at the offset `origin` in the shard.
    """

    shard: int
    version: str | None
    compression: str | None
    record: int
    origin: int
    spans: Numbers
    paths: Sequence[str]

    def at(self, index: int) -> Position:
        if index < len(self.spans):
            end = int(self.spans[index, 0]) - HEADER_BYTES
        else:
            end = int(self.spans[-1, 1]) + FOOTER_BYTES
        offset = self.origin + end
        record = self.record + index
        return {"slot": [self.shard, offset, record, self.version, self.compression]}

    def origins(self, index: int, row: int) -> Sequence[RecordLocation]:
        return (RecordLocation(self.paths[self.shard], self.record + index),) if self.paths else ()

    def locations(self) -> RecordLocations:
        offsets = self.spans[:, 0] + (self.origin - HEADER_BYTES)
        if self.shard >= MAX_SHARDS or int(offsets[-1]) >> OFFSET_BITS:
            raise ValueError(
                f"shard {self.shard:,}, byte {int(offsets[-1]):,}: shuffle supports "
                f"{MAX_SHARDS:,} shards of up to {1 << OFFSET_BITS:,} bytes; put "
                "batch(1).unbatch() before it, so that it counts records instead"
            )
        sizes = self.spans[:, 1] - self.spans[:, 0]
        shards = {self.shard: (self.version, self.compression)}
        return RecordLocations(offsets + (self.shard << OFFSET_BITS), sizes, shards, self.paths)


class ShardQueue(ArrivedElements):
    """One shard's queue of blocks from `start` on, up to `limit` bytes; one block always fits.

    `paths` are the names of shards in errors. Its bytes, and those that its task is about to read,
    are in its `account`.
    """

    def __init__(
        self, start: ShardStart, paths: Sequence[str] = (), account: Account | None = None
    ) -> None:
        super().__init__()
        self.account = account or Account("queue")
        self._paths = paths
        self.open(start, 0)

    def open(self, start: ShardStart, limit: int) -> None:
        """Sets what is known of the shard now that it is open: its version and compression.

        The queue may hold `limit` bytes of it.
        """
        self.start = start
        self.limit = limit
        self._row.begin(start.position)

    @property
    def has_room(self) -> bool:
        """Whether another block of the last one's size fits."""
        row = self._row
        return not self.available or row.held + row.last_weight <= self.limit

    @property
    def is_low(self) -> bool:
        """Whether to continue reading: it has room for two blocks, or holds at most one."""
        held = self._row.held
        block = self._row.last_weight
        return held + 2 * block <= self.limit or held <= block

    @property
    def comes(self) -> bool:
        return not self.ended and self.has_room

    def push(self, frames: Frames, record: int) -> None:
        """Adds a block, for which its account may have been admitted.

        Its first record has the number `record` in the shard.
        """
        nbytes = memoryview(frames.buffer).nbytes
        positions = BlockPositions(
            shard=self.start.shard,
            version=self.start.place.version,
            compression=self.start.compression,
            record=record,
            origin=frames.origin or 0,
            spans=frames.spans,
            paths=self._paths,
        )
        self._add(Chunk(frames, positions, nbytes), nbytes)
        self.account.settle(nbytes)

    def _freed(self, nbytes: int) -> None:
        """The account no longer holds the bytes of blocks that were taken."""
        self.account.release(nbytes)


class ComingShards:
    """The shards whose turn has not come: from `next` on, up to the `known` ones.

    Some of them are filled ahead of their turn.

    Args:
        first: The first of them.
        paths: The names of all shards in errors.
        account: The one in which each queue has its own.
    """

    def __init__(self, first: int, paths: Sequence[str], account: Account) -> None:
        self.next = first
        self.known = 0
        self._paths = paths
        self._account = account
        self._ahead: dict[int, ShardQueue] = {}

    def queue(self, start: ShardStart) -> ShardQueue:
        """Makes the queue of one shard, with its own account."""
        return ShardQueue(start, self._paths, self._account.open("queue"))

    def ahead(self, count: int) -> Iterable[ShardQueue]:
        """The queues that are filled ahead, and those of the next `count` shards."""
        for shard in range(self.next, min(self.next + count, self.known)):
            if shard not in self._ahead:
                self._ahead[shard] = self.queue(ShardStart(shard))
        return self._ahead.values()

    def take(self) -> ShardQueue:
        """The queue of the next shard, whose turn comes now."""
        shard = self.next
        self.next += 1
        # It may not have been wanted ahead of its turn.
        return self._ahead.pop(shard, None) or self.queue(ShardStart(shard))


class ShardInterleave(Interleave[ShardQueue]):
    """The running interleave over the known shards, from the state of a position on.

    The caller says how many shards are known (`coming`), pushes blocks into the queues of `wanted`,
    and calls `pull`. The queues' accounts are in `account`.
    """

    whole_blocks: ClassVar[bool] = True

    def __init__(
        self,
        plan: Plan,
        shards: int,
        state: Mapping[str, Any] | None = None,
        *,
        batch: int = 1,
        skip: int = 0,
        max_bytes: int = 0,
        paths: Sequence[str] = (),
        versions: ComparedVersions | None = None,
        account: Account | None = None,
    ) -> None:
        state = state or {"slots": [None] * plan.cycle_length, "cycle": 0, "block": 0, "next": 0}
        self.coming = ComingShards(state["next"], paths, account or Account("queues"))
        self.coming.known = shards
        slots = [
            None if slot is None else self.coming.queue(ShardStart.of(slot))
            for slot in state["slots"]
        ]
        super().__init__(
            plan, slots, state["cycle"], state["block"], batch=batch, skip=skip, max_bytes=max_bytes
        )
        # Before each `pull`, so many shards are known that no slot waits for one.
        self.complete = True
        self.versions = versions or ComparedVersions(
            ShardVersions(), SavedVersions({}), lambda shard: ("", True)
        )

    def wanted(self, ahead: int) -> list[ShardQueue]:
        """The queues that should be filled, most urgent first.

        These are the queues in slots, and those of the next `ahead` shards.
        """
        coming = self.coming.ahead(ahead)
        return [*filter(None, self._slots), *coming]

    @property
    def has_more(self) -> bool:
        return self.coming.next < self.coming.known

    def _next(self) -> ShardQueue:
        return self.coming.take()

    def _positions(self, inputs: OpenInputs, turns: TurnShares, count: int) -> SeveralInputs:
        state = partial(describe_shards, self.versions.versions, self.coming.next)
        return positions_in_turns(
            inputs, turns, state, locate=partial(locate_in_turns, inputs, turns, count)
        )

    def _join(self, windows: list[list[Frames]], block: int, count: int) -> Frames:
        """Joins records in order; only short ones are copied."""
        if len(windows) == len(windows[0]) == 1:
            [[window]] = windows
            # Not a small part of a large buffer, which would stay alive for it.
            if window.extent >= min(STRETCH_BYTES, memoryview(window.buffer).nbytes // 2):
                return window
        nbytes = sum(abs(window.extent) for part in windows for window in part)
        frames = Scattered if are_long(nbytes, count) else Frames
        return frames.in_turn(windows, block)


def describe_shards(
    versions: ShardVersions, following: int, positions: Sequence[Position | None]
) -> dict[str, Any]:
    """What a state says of open shards, and of the next one, which has the number `following`.

    It has the versions that are known when it is saved.
    """

    def describe(slot: list[Any]) -> list[Any]:
        """An open shard; it may have been opened after its position was taken."""
        shard, offset, record, version, compression = slot
        known = versions.get(shard) if version is None else version
        return [shard, offset, record, known, compression]

    return {
        "slots": [position and describe(position["slot"]) for position in positions],
        "next": following,
        "versions": versions.marks(following),
    }


def locate_in_turns(inputs: OpenInputs, turns: TurnShares, count: int) -> RecordLocations:
    """The locations of the first `count` records that shards gave in turn."""
    references = np.empty(count, np.int64)
    sizes = np.empty(count, np.int64)
    shards: dict[int, tuple[str | None, str | None]] = {}
    paths: Sequence[str] = ()
    ready = turns.ready
    block = turns.block
    for number, (slot, share) in enumerate(
        zip(ready, shares_of(count, len(ready), block), strict=True)
    ):
        positions = inputs[slot]
        if positions is None or not share:
            continue
        locations = positions.locations()
        assert locations is not None, "blocks know where their records are"
        # Record i of this slot is the i % block-th of its turn number i // block.
        turn, in_turn = np.divmod(np.arange(share), block)
        at = slice(None) if len(ready) == 1 else (turn * len(ready) + number) * block + in_turn
        references[at] = locations.references
        sizes[at] = locations.sizes
        shards |= locations.shards
        paths = locations.paths
    return RecordLocations(references, sizes, shards, paths)


def pull(interleave: ShardInterleave) -> tuple[Chunk | None, Exception | None]:
    """The next records that have arrived, or None; and the error of the shard after them.

    Several small chunks become one: their records are copied together.
    """
    pulled: list[Chunk] = []
    nbytes = 0
    error: Exception | None = None
    try:
        while len(pulled) < 32 and nbytes < 128 << 10:
            if (chunk := interleave.pull()) is None:
                break
            pulled.append(chunk)
            nbytes += chunk.nbytes
    except Exception as failure:
        error = failure
    if len(pulled) < 2:
        return (pulled[0] if pulled else None), error
    windows: list[Any] = [chunk.elements for chunk in pulled]
    positions = Joined(tuple((chunk.positions, 0, len(chunk.elements)) for chunk in pulled))
    return Chunk.weigh(join_frames([windows]), positions), error
