"""The source: shards fetched beside each other, interleaved in order, within a byte budget.

Each shard in the cycle, and a few after it, is fetched by a task of its own into its lane, and waits there when
the lane holds its share of the budget. `Interleave` decides whose turn it is; this file only moves blocks.

Rules:
- A task that fails puts its error into its lane, where it waits for the records before it: tasks raise nothing.
- What all lanes hold, and the blocks that are being filled, stay within the budget; but a lane may always hold
  one block, or one record, or nothing would move.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from anyio.abc import TaskGroup
from fsspec import AbstractFileSystem

from streamrec.pipeline.background import background
from streamrec.pipeline.chunk import Chunk
from streamrec.pipeline.interleave import Interleave, Plan
from streamrec.pipeline.lane import Lane
from streamrec.pipeline.turn import Turn
from streamrec.shards import ReadOptions, ShardReader, find_shards
from streamrec.storage import RetryPolicy, Storage, Storages

__all__ = ["Shards", "read_shards"]

LANE_BYTES = 6 << 20
"""How much one shard is fetched ahead of its turn, if the budget allows: more would only leave the caches."""

ALONE_BLOCKS = 2
"""How many blocks' worth is framed at a time where no other shard's records come in between: these go through the
pipeline without a copy, save for the batches that straddle two of them."""

LEAST_BLOCK_BYTES = 64 << 10
"""Blocks are no smaller than this, however small the budget."""


@dataclass(frozen=True, slots=True)
class Shards:
    """Which shards are read, from where, and in which order: the description behind TFRecordDataset."""

    filenames: tuple[str, ...]
    plan: Plan = Plan()
    options: ReadOptions = ReadOptions()
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    filesystem: AbstractFileSystem | None = field(default=None, repr=False)
    retry: RetryPolicy = RetryPolicy()

    @property
    def ahead(self) -> int:
        """How many shards after those in the cycle are opened before their turn comes."""
        return max(2, self.plan.cycle_length // 4)


async def read_shards(
    shards: Shards, state: Mapping[str, Any] | None, budget: int, batch: int = 1, skip: int = 0
) -> AsyncGenerator[Chunk]:
    """The records of all shards, a chunk at a time.

    Args:
        shards: Which.
        state: Where to go on, from a chunk's positions; None for the start.
        budget: Bytes that may be held at a time.
        batch: How many records make a batch behind this: chunks end between two where that costs nothing.
        skip: How many records precede the first batch.
    """
    async with Storages(shards.storage_options, filesystem=shards.filesystem, retry=shards.retry) as storages:
        paths = await find_shards(storages, shards.filenames)
        turn = Turn.from_json(state) if state is not None else None
        interleave = Interleave(shards.plan, len(paths), turn, batch=batch, skip=skip)
        async with background() as tasks:
            feeds = Feeds(shards, storages, paths, tasks, budget)
            async for chunk in interleaved(interleave, feeds):
                yield chunk


async def interleaved(interleave: Interleave, feeds: Feeds) -> AsyncGenerator[Chunk]:
    """Pulls what the interleave's order allows, and waits for more where it allows nothing."""
    while not interleave.finished:
        pulled = interleave.pull()
        feeds.feed(interleave.wanted(feeds.ahead))
        if pulled is not None:
            feeds.wake()
            frames, positions = pulled
            yield Chunk(frames, positions, memoryview(frames.buffer).nbytes)
        elif not interleave.finished:
            await feeds.arrival()


class Feeds:
    """The tasks that fetch shards into lanes."""

    def __init__(self, shards: Shards, storages: Storages, paths: list[str], tasks: TaskGroup, budget: int) -> None:
        self.ahead = shards.ahead
        self._options = shards.options
        self._storages = storages
        self._paths = paths
        self._tasks = tasks
        self._blocks = ALONE_BLOCKS if shards.plan.cycle_length == 1 or len(paths) == 1 else 1
        self._share = budget // min(shards.plan.cycle_length + shards.ahead, len(paths))
        self._started: set[int] = set()
        self._arrived = anyio.Event()
        self._waiting: dict[Lane, anyio.Event] = {}

    def feed(self, lanes: list[Lane]) -> None:
        """Starts a task for each lane that has none."""
        for lane in lanes:
            if lane.shard not in self._started:
                self._started.add(lane.shard)
                self._tasks.start_soon(self._feed, lane)

    def wake(self) -> None:
        """Records were taken: lanes that have room again may go on."""
        for lane in [lane for lane in self._waiting if lane.has_room]:
            self._waiting.pop(lane).set()

    async def arrival(self) -> None:
        """Waits until something has arrived in any lane."""
        await self._arrived.wait()
        self._arrived = anyio.Event()

    async def _feed(self, lane: Lane) -> None:
        """Fetches one shard to its end."""
        try:
            await self._fetch(lane)
        except Exception as error:
            lane.error = error  # whatever it is, it waits for its turn
        lane.ended = True
        self._arrived.set()

    async def _fetch(self, lane: Lane) -> None:
        path = self._paths[lane.shard]
        storage = await self._storages.at(path)
        options = self._options_for(lane, storage)
        reader = await ShardReader.open(storage, path, options, lane.start.place)
        try:
            lane.opened(reader.info.version, reader.compression_type, min(self._share, lane_bytes(reader.block_bytes)))
            while (frames := await reader.read()) is not None:
                lane.push(frames)
                self._arrived.set()
                if not lane.has_room:
                    room = self._waiting[lane] = anyio.Event()
                    await room.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await reader.aclose()

    def _options_for(self, lane: Lane, storage: Storage) -> ReadOptions:
        """How one shard is read: blocks that leave room for two within its share, and the compression if known."""
        wanted = self._options.block_bytes or storage.block_bytes * self._blocks
        block = min(wanted, max(self._share // 2, LEAST_BLOCK_BYTES))
        compression = self._options.compression_type if lane.start.compression is None else lane.start.compression
        return replace(self._options, block_bytes=block, compression_type=compression)


def lane_bytes(block_bytes: int) -> int:
    """How much a lane may hold, for blocks of a size: two at the least, so that one fills while one is taken."""
    return max(LANE_BYTES, 2 * block_bytes)
