"""ShardSet: several shards that are written side by side, and their manifest.

Rules:
- A layout gets the lengths of the records, in order, and says which of them each shard gets.
- What ShardWriter promises of a shard holds for each: whole or not at all, verified, ended where it fails.
- `write` returns when all that it was given is on its way: memory is bounded by what the uploads hold, and that by
  `memory`. Parts of the records go to their shards at the same time, `at_once` of them.
- The manifest is written last, when all shards are there. What they replace stays until all are complete
  (`storage/replacement.py`).
- One task uses it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Final, NamedTuple, Self

import anyio
import numpy as np
import numpy.typing as npt

from streamrec.errors import ClosedError
from streamrec.shards.manifest import FRAME_BYTES, ShardInfo
from streamrec.shards.shard_upload import BLOCK_BYTES, ShardOutput, ShardTarget
from streamrec.storage import Storages
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import Frames

__all__ = ["Contiguous", "Part", "RoundRobin", "ShardSet"]


class Part(NamedTuple):
    """Some of the records that came, in order, for one shard; `last` where the shard gets no more."""

    shard: int
    records: slice
    last: bool = False


class RoundRobin:
    """Record i goes into shard i modulo `shards`: reading these in turn, one record of each, gives the order back.

    >>> layout = RoundRobin(2)
    >>> [(part.shard, part.records) for part in layout.parts(np.array([5, 5, 5]))]
    [(0, slice(0, 3, 2)), (1, slice(1, 3, 2))]
    >>> [(part.shard, part.records) for part in layout.parts(np.array([5]))]
    [(1, slice(0, 1, 2))]
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._seen = 0

    def parts(self, lengths: npt.NDArray[np.int64]) -> Iterator[Part]:
        """What each shard gets; shards that get nothing are left out."""
        count = len(lengths)
        for shard in range(self._shards):
            first = (shard - self._seen) % self._shards
            if first < count:
                yield Part(shard, slice(first, count, self._shards))
        self._seen += count


class Contiguous:
    """One shard after the other: each gets records until the next one would take it above a limit.

    A single longer record has a shard to itself. Bytes are those of the shard before it is compressed.

    >>> layout = Contiguous(max_bytes=None, max_records=2)
    >>> [(part.shard, part.records, part.last) for part in layout.parts(np.array([5, 5, 5]))]
    [(0, slice(0, 2, None), False), (0, slice(2, 2, None), True), (1, slice(2, 3, None), False)]
    """

    def __init__(self, max_bytes: int | None, max_records: int | None) -> None:
        self._max_bytes = max_bytes
        self._max_records = max_records
        self._shard = self._bytes = self._records = 0

    def parts(self, lengths: npt.NDArray[np.int64]) -> Iterator[Part]:
        """What each shard gets; a shard is said to be complete when a record comes that does not fit it."""
        ends = np.cumsum(lengths + FRAME_BYTES)
        first = 0
        while first < len(ends):
            before = int(ends[first - 1]) if first else 0
            last = self._fitting(ends, first, before)
            if last > first:
                yield Part(self._shard, slice(first, last))
                self._bytes += int(ends[last - 1]) - before
                self._records += last - first
                first = last
            else:
                yield Part(self._shard, slice(first, first), last=True)
                self._shard, self._bytes, self._records = self._shard + 1, 0, 0

    def _fitting(self, ends: npt.NDArray[np.int64], first: int, before: int) -> int:
        """Up to which record they fit into the shard under way; at least one, where it is empty."""
        last = len(ends)
        if self._max_bytes is not None:
            last = min(last, int(np.searchsorted(ends, before + self._max_bytes - self._bytes, "right")))
        if self._max_records is not None:
            last = min(last, first + self._max_records - self._records)
        return last if self._records else max(last, first + 1)


PART_SIZE: Final = 8 << 20

SMALL_PART_SIZE: Final = 5 << 20
"""The least that S3 takes."""


class UploadPlan(NamedTuple):
    """How shards share the memory for uploads: how many at a time, bytes of a part, parts of a shard at a time."""

    at_once: int
    part_size: int
    parallel: int


def plan_uploads(memory: int, num_shards: int | None) -> UploadPlan:
    """The plan for this many bytes; `num_shards` uploads run at the same time, or as many as help.

    Raises:
        ValueError: They do not fit.

    >>> plan_uploads(256 << 20, None), plan_uploads(128 << 20, 12)
    (UploadPlan(at_once=4, part_size=8388608, parallel=4), UploadPlan(at_once=12, part_size=5242880, parallel=1))
    """
    wanted = num_shards or 4
    parallel = min(4, memory // (wanted * PART_SIZE) - 1)
    if parallel >= 1:
        return UploadPlan(wanted, PART_SIZE, parallel)
    needed = wanted * 2 * SMALL_PART_SIZE
    if needed <= memory or wanted == 1:
        return UploadPlan(wanted, SMALL_PART_SIZE, 1)
    if num_shards is None:
        return UploadPlan(max(1, memory // (2 * SMALL_PART_SIZE)), SMALL_PART_SIZE, 1)
    raise ValueError(
        f"num_shards={num_shards}: that many shards at once hold {needed:,} bytes, and a half of the memory "
        f"budget is {memory:,}: give max_shard_bytes or max_shard_records instead, fewer shards, or "
        f"with_options(memory_budget={2 * needed})"
    )


class ShardSet:
    """Shards under way.

    Use it as `async with ShardSet(...) as shards: await shards.write(frames)`; a clean exit finishes all shards and
    writes the manifest, any other one ends those that are not finished.

    Args:
        target: Where they go.
        storages: Their stores; closed with it.
        memory: Bytes that uploads may hold.

    Attributes:
        records: How many records were taken.
        bytes: What they take, before they are compressed.

    Raises:
        ValueError: The target wants more shards at once than fit the memory.
    """

    def __init__(self, target: ShardTarget, storages: Storages, memory: int) -> None:
        self.records = self.bytes = 0
        self._entered = False
        self._target = target
        self._storages = storages
        self._plan = plan = plan_uploads(memory, target.num_shards if target.numbered else 1)
        self._layout: RoundRobin | Contiguous = Contiguous(target.max_shard_bytes, target.max_shard_records)
        if target.num_shards is not None:
            self._layout = RoundRobin(target.num_shards)
        self._output = ShardOutput(target, storages, part_size=plan.part_size, parallel=plan.parallel)
        self._stack = AsyncExitStack()

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The finished shards, in order."""
        return tuple(self._output.shards)

    @property
    def finished(self) -> int:
        """How many shards are complete."""
        return len(self._output.finished)

    async def write(self, frames: Frames) -> None:
        """Writes records, each to its shard.

        Raises:
            ClosedError: It was not entered.
            StorageError: A store failed, and retrying did not help.
        """
        if not self._entered:
            raise ClosedError(f"{self._target.pattern}: these shards are not open yet: write within `async with`")
        by_shard: dict[int, list[Part]] = {}
        for part in self._layout.parts(frames.lengths):
            by_shard.setdefault(part.shard, []).append(part)
        await self._side_by_side(partial(self._take, shard, frames, parts) for shard, parts in by_shard.items())
        self.records += len(frames)
        self.bytes += int(frames.lengths.sum()) + FRAME_BYTES * len(frames)

    async def __aenter__(self) -> Self:
        self._entered = True
        await self._stack.enter_async_context(self._storages)
        always_there = self._target.num_shards or (0 if self._target.numbered else 1)
        try:
            await self._side_by_side(partial(self._output.start, shard) for shard in range(always_there))
        except BaseException as cause:
            await self._abort(cause)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort(error)
            return
        try:
            await self._side_by_side([partial(self._output.finish, shard) for shard in self._output.open])
            await self._output.commit()
        except BaseException as cause:
            await self._abort(cause)
            raise
        await self._stack.aclose()

    async def _take(self, shard: int, frames: Frames, parts: Iterable[Part]) -> None:
        """What one shard gets of some records."""
        for part in parts:
            upload = self._output.open.get(shard) or await self._output.start(shard)
            for block in blocks(frames.picked(part.records)):
                await upload.add_batch(block)
            if part.last:
                await self._output.finish(shard)

    async def _abort(self, cause: BaseException) -> None:
        """Ends what is not finished, and closes the stores."""
        with anyio.CancelScope(shield=True):
            try:
                await self._output.abort(cause)
            finally:
                await self._stack.aclose()

    async def _side_by_side(self, calls: Iterable[Callable[[], Awaitable[object]]]) -> None:
        """All these calls, as many at the same time as the plan allows; the first error ends them all."""
        await for_each(lambda call: call(), list(calls), self._plan.at_once)


def blocks(frames: Frames) -> Iterable[Frames]:
    """The same records, about BLOCK_BYTES at a time."""
    ends = np.cumsum(frames.lengths)
    first = 0
    while first < len(frames):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
        yield frames.window(first, last)
        first = last
