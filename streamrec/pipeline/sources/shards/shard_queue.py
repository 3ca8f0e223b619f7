"""Shard queues: the records of one shard that have arrived and wait for their turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from streamrec import kernels
from streamrec.pipeline.sources.shards.positions import QueueMark, QueueRecords, ShardStart, TakenRecords
from streamrec.tfrecord import SCATTERED_BYTES, Frames, Scattered, as_spans

__all__ = ["STRETCH_BYTES", "ShardQueue", "records_begun", "shares_of", "take_in_turn"]

STRETCH_BYTES = 256 << 10
"""From here on, records that follow each other in one block are not copied, however short they are. Fewer short ones
are: a few bytes would keep a whole block alive."""

NOTHING = Frames.of(())


class ShardQueue:
    """One shard's queue of blocks.

    Attributes:
        start: Where reading the shard begins.
        ended: Nothing more arrives.
        error: What ended it, or None; it comes after the records before it.
        available: Records that have arrived and were not taken.
        held_bytes: Bytes of the blocks that hold them.
        typical_bytes: About how long its records are: those of its last block.
        limit_bytes: How many it should hold; it may always hold one block.
    """

    def __init__(self, start: ShardStart) -> None:
        self.shard = start.shard
        self.start = start
        self.ended = False
        self.error: Exception | None = None
        self.available = 0
        self.held_bytes = 0
        self.limit_bytes = 0
        self._last_bytes = 0
        self.typical_bytes = 1
        self._record = start.place.record
        self._end = start.place.offset
        self._version = start.place.version
        self._compression = start.compression
        self._blocks: deque[Frames] = deque()
        self._used = 0

    def open(self, version: str | None, compression: str, limit_bytes: int) -> None:
        """The shard is open: its version, its compression, and how much of it may be held."""
        self._version, self._compression, self.limit_bytes = version, compression, limit_bytes

    @property
    def has_room(self) -> bool:
        """Whether another block like the last one fits."""
        return not self.available or self.held_bytes + self._last_bytes <= self.limit_bytes

    @property
    def is_low(self) -> bool:
        """Whether to go on reading pays: it has room for two blocks, or holds at most one."""
        return self.held_bytes + 2 * self._last_bytes <= self.limit_bytes or self.held_bytes <= self._last_bytes

    @property
    def comes(self) -> bool:
        """Whether more of it is sure to come, without any of it being taken."""
        return not self.ended and self.has_room

    def push(self, frames: Frames, record: int | None = None) -> None:
        """A block arrived; its first record has this number, where that is not simply the next."""
        count = len(frames)
        if record is not None:
            self._record = record - self.available
        self._blocks.append(frames)
        self.available += count
        self._last_bytes = memoryview(frames.buffer).nbytes
        self.typical_bytes = self._last_bytes // max(count, 1) + 1
        self.held_bytes += self._last_bytes
        self._end = frames.offset(count)

    def mark(self) -> QueueMark:
        block = self._blocks[0] if self._blocks else None
        spans, origin = (None, 0) if block is None else (block.spans, block.origin or 0)
        return QueueMark(
            self.shard, self._record, self._version, self._compression, self._end, spans, origin, self._used
        )

    def first_block(self) -> int:
        """How many records the first block has, which can be had without a copy."""
        return len(self._blocks[0].spans) - self._used if self._blocks else 0

    def take(self, count: int) -> tuple[list[Frames], QueueRecords]:
        """The next `count` records, as windows of their blocks, and where they are."""
        taken = []
        self.available -= count
        self._record += count
        while count:
            block = self._blocks[0]
            size = len(block.spans)
            last = min(size, self._used + count)
            taken.append(Frames(block.buffer, block.spans[self._used : last], block.origin))
            count -= last - self._used
            self._used = last
            if last == size:
                self._blocks.popleft()
                self._used = 0
                self.held_bytes -= memoryview(block.buffer).nbytes
        runs = [(window.origin or 0, window.spans) for window in taken]
        return taken, QueueRecords(self.shard, self._version, self._compression, runs, self._record)


def records_begun(queues: Sequence[Any], block: int) -> int:
    """How many records there are of a round that not all queues can complete."""
    count = 0
    for queue in queues:
        count += min(queue.available, block)
        if queue.available < block:
            break
    return count


def shares_of(count: int, queues: int, block: int) -> list[int]:
    """How many of the next `count` records each of this many queues gives.

    >>> shares_of(11, 3, 2)
    [4, 4, 3]
    """
    rounds, rest = divmod(count, queues * block)
    return [rounds * block + min(max(rest - index * block, 0), block) for index in range(queues)]


def take_in_turn(
    queues: Sequence[ShardQueue], count: int, block: int, paths: Sequence[str] = ()
) -> tuple[Frames, TakenRecords]:
    """The next `count` records of the queues in turn: short ones copied in order, all others where they are."""
    if not count:
        return NOTHING, TakenRecords((), block, 0)
    shares = shares_of(count, len(queues), block)
    parts = [queue.take(share) for queue, share in zip(queues, shares, strict=True) if share]
    windows = [part for part, _ in parts]
    taken = TakenRecords(tuple(records for _, records in parts), block if len(windows) > 1 else count, count, paths)
    if len(windows) == 1 and len(windows[0]) == 1 and is_stretch(windows[0][0]):
        return windows[0][0], taken
    if sum(queue.typical_bytes for queue in queues) >= SCATTERED_BYTES * len(queues):  # long ones are not copied
        return Scattered.in_turn(windows, taken.block), taken
    pairs = [[(window.buffer, window.spans) for window in queue] for queue in windows]
    buffer, spans = kernels.interleave(pairs, taken.block)
    return Frames(buffer, as_spans(spans)), taken


def is_stretch(window: Frames) -> bool:
    """Whether a window is long enough to go without a copy, or most of what it keeps alive."""
    return window.extent >= min(STRETCH_BYTES, memoryview(window.buffer).nbytes // 2)
