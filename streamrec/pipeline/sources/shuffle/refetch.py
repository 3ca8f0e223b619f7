"""Refetch: fetches the records that a shuffle buffer held again, by ranged reads.

`byte_runs` decides which byte ranges are read, without I/O. `Refetch` reads several at a time, and
gives the records in the order of their references. A compressed shard cannot be read from the
middle, so it is read once, up to the last record needed. Each record's CRC32C is verified again,
and a shard with another version is refused.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import anyio
import numpy as np

from streamrec.errors import CorruptRecordError, PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import compact, join_windows
from streamrec.pipeline.elements.positions import Numbers, Positions, RecordLocations
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import OpenSource
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.shards import (
    OFFSET_BITS,
    ByteRun,
    ShardCursor,
    ShardPlace,
    byte_runs,
    first_difference,
)
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import HEADER_BYTES, Frames


@dataclass(frozen=True, slots=True)
class Refetch(Source):
    """Gives the records at sorted locations in shards; made when a run is resumed."""

    shards: Shards | Distribute
    locations: RecordLocations

    def lines(self) -> Iterator[str]:
        yield f"Refetch({len(self.locations.references)})"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        opened = await self.shards.opened(context)
        plan = self._plan()
        if plan:
            await opened.listing.until(plan[-1].shard + 1)
        largest = max((run.end - run.start for run in plan), default=1)
        parallel = max(1, min(16, context.budget // 2 // largest))
        for first in range(0, len(plan), parallel):
            for frames in await self._fetch_all(opened, plan[first : first + parallel]):
                yield Chunk(frames, Positions(), memoryview(frames.buffer).nbytes)

    def _plan(self) -> list[ByteRun]:
        """The byte ranges to read, in order; one for each compressed shard."""
        plan: list[ByteRun] = []
        for run in byte_runs(self.locations.references, self.locations.sizes):
            last = plan[-1] if plan else None
            if last is not None and last.shard == run.shard and self.locations.shards[run.shard][1]:
                plan[-1] = ByteRun(last.shard, last.start, run.end, last.first, run.last)
            else:
                plan.append(run)
        return plan

    async def _fetch_all(self, opened: OpenSource, group: list[ByteRun]) -> list[Frames]:
        fetched: dict[ByteRun, Frames] = {}

        async def fetch(run: ByteRun) -> None:
            fetched[run] = await self._fetch(opened, run)

        await for_each(fetch, group, len(group))
        return [fetched[run] for run in group]

    async def _fetch(self, opened: OpenSource, run: ByteRun) -> Frames:
        if run.shard >= len(opened.listing.paths):
            raise PositionMismatchError(
                f"this state refers to shard {run.shard}, but there are only "
                f"{len(opened.listing.paths)} shards: resume with the shards that it was saved "
                "with, or start over without the state"
            )
        path = opened.listing.paths[run.shard]
        version, compression = self.locations.shards[run.shard]
        storage = await opened.storages.at(path)
        offsets = self.locations.references[run.first : run.last] & ((1 << OFFSET_BITS) - 1)
        sizes = self.locations.sizes[run.first : run.last]
        # A compressed shard has no byte ranges: it is read from its start to the last record.
        if compression:
            options = replace(self.shards.options, compression_type=compression, on_loss=None)
            place = ShardPlace(run.start, 0, version)
            cursor = await ShardCursor.open(storage, path, options, place=place)
            try:
                return await find_records(cursor, offsets, path)
            finally:
                with anyio.CancelScope(shield=True):
                    await cursor.aclose()
        data = await storage.read_range(path, run.start, run.end, version)
        if len(data) < run.end - run.start:
            raise shard_changed_error(path, run.end, "ends before")
        # The offsets are from the state, not from the bytes: `verify` compares the frames there.
        frames = Frames(data, np.stack([offsets, offsets + sizes], 1) + (HEADER_BYTES - run.start))
        if self.shards.options.verify:
            verify(frames, path, run.start)
        return compact(frames)  # type: ignore[no-any-return]


async def find_records(cursor: ShardCursor, offsets: Numbers, path: str) -> Frames:
    """The records at sorted offsets, which may repeat, of a shard that is read in order."""
    parts: list[Frames] = []
    first = 0
    while first < len(offsets):
        frames = await cursor.next()
        if frames is None:
            raise shard_changed_error(path, int(offsets[first]), "has no record at")
        starts = frames.spans[:, 0] + ((frames.origin or 0) - HEADER_BYTES)
        last = int(np.searchsorted(offsets, frames.offset(len(frames))))
        at = np.searchsorted(starts, offsets[first:last])
        if (starts[np.minimum(at, len(starts) - 1)] != offsets[first:last]).any():
            raise shard_changed_error(path, int(offsets[first]), "has no record at")
        parts.append(Frames(frames.buffer, frames.spans[at]).compact())
        first = last
    return join_windows(parts)  # type: ignore[no-any-return]


def verify(frames: Frames, path: str, first: int) -> None:
    """Checks the length and CRCs of each record; the buffer begins at byte `first` of the shard."""
    if (bad := first_difference(frames)) is not None:
        raise CorruptRecordError(
            "a record that a shuffle buffer held was changed in the shard: its length or its "
            "CRC32C differs; start over without the state",
            path,
            first + int(frames.spans[bad, 0]) - HEADER_BYTES,
        )


def shard_changed_error(path: str, offset: int, what: str) -> PositionMismatchError:
    """An error for a record of the state that is not there; `what` says what the shard does."""
    return PositionMismatchError(
        f"{path} {what} byte {offset:,}, where this state's shuffle buffer held a record: the "
        "shard was changed; resume with the shards that it was saved with, or start over without "
        "the state"
    )
