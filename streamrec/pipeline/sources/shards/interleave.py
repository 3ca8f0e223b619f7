"""Interleave: in which order the records of many shards come. Pure: it is told what has arrived, and plans.

The order is tf.data's: `cycle_length` slots hold a shard each; `block_length` records are taken from one slot,
then from the next. A shard that ends leaves its slot empty, and the cycle goes on; when it comes round, an
empty slot takes the next shard. So the order depends on the shards alone, never on which bytes came first.
With `deterministic=False` whatever has arrived first comes first, a block of a shard at a time.

Records are never handled one by one: many rounds of turns are taken at once. Short records are copied in order by one
kernel call; longer ones, and long ranges of one shard, are not copied.

Rules:
- A pull ends between two batches where it can (`batch`, `skip`: how the records are batched after this): a batch
  that straddles chunks must be copied once more. For that it waits, but only while more is sure to come.
- What one pull gives depends on what has arrived; the order of the records never does.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from streamrec import kernels
from streamrec.arguments import flag, integer
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Joined, Positions
from streamrec.pipeline.engine.options import AUTOTUNE
from streamrec.pipeline.sources.shards.positions import (
    InterleavePositions,
    InterleaveSnapshot,
    ShardStart,
    TakenRecords,
)
from streamrec.pipeline.sources.shards.shard_queue import (
    STRETCH_BYTES,
    ShardQueue,
    records_begun,
    shares_of,
    take_in_turn,
)
from streamrec.shards import ShardPlace
from streamrec.tfrecord import Frames, Scattered, are_long, as_spans

__all__ = ["CHUNK_BYTES", "Interleave", "Plan", "pull"]

CHUNK_BYTES = 12 << 20
"""About how much one pull takes at most: more costs memory, less costs time for each."""

LONG_CHUNK_RECORDS = 256
LONG_CHUNK_BYTES = 32 << 20
"""A pull costs something for each queue: of long records it takes this many, but no more bytes than these. Not of
shorter ones, though they are not copied either: parsed, a pull of tokens is five times as large."""

AUTO_CYCLE = 16
"""How many take turns by default: as many as a run's first connections. It is a constant, because the
order must not depend on the machine."""

AVAILABLE: Final = attrgetter("available")
TYPICAL_BYTES: Final = attrgetter("typical_bytes")


@dataclass(frozen=True, slots=True)
class Plan:
    """How shards take turns: see the top of this file. `deterministic=None`: as a run's options say (`within`)."""

    cycle_length: int = 1
    block_length: int = 1
    deterministic: bool | None = True

    @classmethod
    def of(cls, cycle_length: int | None, block_length: int = 1, deterministic: bool | None = True) -> Plan:
        """The order that arguments ask for, where None and AUTOTUNE stand for `AUTO_CYCLE` that take turns."""
        cycle = integer("cycle_length", cycle_length, none=True)
        cycle = AUTO_CYCLE if cycle in (None, AUTOTUNE) else cycle
        kept = None if deterministic is None else flag("deterministic", deterministic)
        return cls(cycle, integer("block_length", block_length), kept)

    def within(self, deterministic: bool) -> Plan:
        """This plan in a run whose options say so."""
        return replace(self, deterministic=deterministic) if self.deterministic is None else self

    def __post_init__(self) -> None:
        for name in ("cycle_length", "block_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")


class Interleave:
    """The running interleave over `shards` shards.

    The caller makes a queue for each shard that `wanted` names, pushes what arrives, and calls `pull`.

    Args:
        plan: The order.
        shards: How many there are, as far as is known.
        state: Where to go on, as positions say it; None for the start.
        batch: How many records make a batch after this.
        skip: How many records precede the first batch.
        most_bytes: No pull of long records need take more, unless it is CHUNK_BYTES.
        paths: What errors call the shards, which grow with `shards`: positions tell in which one a record is.

    Attributes:
        shards: How many there are, as far as is known.
        next_shard: The first shard whose turn has not come.
        queues: Those in the slots, and those that are fed ahead of their turn, by their shards' numbers.
        awaited: Where the last pull gave nothing, the queues that must give more before one can; none: any may do.
    """

    def __init__(
        self,
        plan: Plan,
        shards: int,
        state: Mapping[str, Any] | None = None,
        *,
        batch: int = 1,
        skip: int = 0,
        most_bytes: int = 0,
        paths: Sequence[str] = (),
    ) -> None:
        state = state or {"slots": [None] * plan.cycle_length, "cycle": 0, "block": 0, "next": 0}
        self._plan = plan
        self.shards = shards
        self._cycle = state["cycle"]
        self._block = state["block"]
        self.next_shard: int = state["next"]
        self._versions: Mapping[str, str] = state.get("versions", {})
        self._slots = [None if slot is None else ShardQueue(ShardStart.of(slot)) for slot in state["slots"]]
        self.queues = {queue.shard: queue for queue in self._slots if queue is not None}
        self._marks = [None if queue is None else queue.mark() for queue in self._slots]
        self._batch = batch
        self._pulled = -skip
        self._most_bytes = min(most_bytes, LONG_CHUNK_BYTES)
        self._paths = paths
        self.awaited: set[ShardQueue] = set()
        self._before = self.snapshot

    def wanted(self, ahead: int) -> list[ShardQueue]:
        """The queues that should be fed, most urgent first: those in slots, and `ahead` of the shards after them."""
        for shard in range(self.next_shard, min(self.next_shard + ahead, self.shards)):
            self._queue_of(shard)
        return list(self.queues.values())

    def reach(self, ahead: int) -> int:
        """How many shards must be known before the next `pull`, with `ahead` of them fed; or all there are."""
        return self.next_shard + self._plan.cycle_length + ahead + 1

    @property
    def finished(self) -> bool:
        return self.next_shard == self.shards and not any(self._slots)

    @property
    def snapshot(self) -> InterleaveSnapshot:
        """Where the interleave is: a queue's mark is made again when records were taken of it."""
        return InterleaveSnapshot(tuple(self._marks), self._cycle, self._block, self.next_shard)

    def pull(self) -> tuple[Frames, Positions] | None:
        """The next records in order, as far as they have arrived; None where nothing can be taken yet.

        Raises:
            Exception: The error of a shard whose turn has come; the shard leaves the cycle with it.
        """
        return self._pull_in_order() if self._plan.deterministic else self._pull_any()

    def _pull_any(self) -> tuple[Frames, Positions] | None:
        self.awaited = set()
        self._fill_slots()
        idle = 0
        while idle < len(self._slots) and not self.finished:
            index, queue = self._cycle, self._slots[self._cycle]
            if queue is not None and queue.available:
                self._marks[index] = queue.mark()  # with the block that it gives now, for the places within
                before = self.snapshot
                frames, taken = self._take({index: queue}, queue.first_block())
                self._advance()
                return frames, InterleavePositions(before, taken, shard=queue.shard)
            self._advance()
            idle += 1
            if queue is not None and queue.ended:
                self._leave(index)
                self._fill_slots()
                idle = 0
        return None

    def _fill_slots(self) -> None:
        """Empty slots take the next shards now, in the order in which their turns come: as good as at their turns."""
        if self.next_shard == self.shards or None not in self._slots:
            return
        for index in self._in_turn():
            if self._slots[index] is None and self.next_shard < self.shards:
                queue = self._slots[index] = self._queue_of(self.next_shard)
                self._marks[index] = queue.mark()
                self.next_shard += 1

    def _in_turn(self) -> list[int]:
        return [*range(self._cycle, len(self._slots)), *range(self._cycle)]

    def _pull_in_order(self) -> tuple[Frames, Positions] | None:
        self._fill_slots()
        while not self.finished:
            queue = self._slots[self._cycle]
            if queue is not None and queue.available:
                return self._pull_ready(queue)
            if queue is not None and not queue.ended:
                self.awaited = {queue}
                return None
            if queue is not None:
                self._leave(self._cycle)
            self._advance()
            self._fill_slots()
        return None

    def _pull_ready(self, queue: ShardQueue) -> tuple[Frames, Positions] | None:
        """The next records, of which this queue's are the first; None where more should arrive before."""
        block = self._plan.block_length
        if self._slots.count(None) == len(self._slots) - 1:
            frames, taken = self._take({self._cycle: queue}, self._stretch(queue, sys.maxsize))
        elif self._block or block * queue.typical_bytes >= STRETCH_BYTES:
            frames, taken = self._take({self._cycle: queue}, self._stretch(queue, block - self._block))
            self._go_on(len(frames))
        else:
            ready = {index: each for index in self._in_turn() if (each := self._slots[index]) is not None}
            frames, taken = self._take(ready, self._turns(list(ready.values())))
            turns, self._block = divmod(len(frames), block)
            self._cycle = list(ready)[turns % len(ready)]
        if not len(frames):
            return None
        self._pulled += len(frames)
        before, self._before = self._before, self.snapshot
        return frames, InterleavePositions(before, taken, self._before, len(frames))

    def _take(self, ready: Mapping[int, ShardQueue], count: int) -> tuple[Frames, TakenRecords]:
        frames, taken = take_in_turn(list(ready.values()), count, self._plan.block_length, self._paths)
        if count:
            for slot, queue in ready.items():
                self._marks[slot] = queue.mark()
        return frames, taken

    def _go_on(self, count: int) -> None:
        """The current turn had `count` records more."""
        self._block += count
        if self._block == self._plan.block_length:
            self._advance()

    def _stretch(self, queue: ShardQueue, limit: int) -> int:
        """How many records of one queue to take: those of its first block, or of two where a batch straddles them."""
        first = min(queue.first_block(), limit)
        count = self._cut(first) or self._cut(min(queue.available, limit, first + self._batch))
        if count or queue.available >= limit or not self._waits(queue):
            return count or first
        self.awaited = {queue}
        return 0

    def _turns(self, queues: Sequence[ShardQueue]) -> int:
        """How many records to take of all queues in turn: whole rounds, or the turns that there are for less."""
        block = self._plan.block_length
        scarce = min(queues, key=AVAILABLE)
        rounds = scarce.available // block
        most = max(1, self._most(sum(map(TYPICAL_BYTES, queues)) // len(queues)) // (len(queues) * block))
        count = min(rounds, most) * len(queues) * block or records_begun(queues, block)
        cut = self._cut(count)
        if cut or rounds >= most or not self._waits(scarce):
            return cut or count
        missing = self._batch - self._pulled % self._batch
        shares = zip(queues, shares_of(missing, len(queues), block), strict=True)
        short = {queue for queue, share in shares if queue.available < share and queue.comes}
        self.awaited = short or {scarce}
        return 0

    def _most(self, record_bytes: int) -> int:
        """About how many records to take at a time: for a few more than that, a batch may end there too."""
        count = max(CHUNK_BYTES, min(LONG_CHUNK_RECORDS * record_bytes, self._most_bytes)) // record_bytes
        more = -(self._pulled + count) % self._batch
        return count + more if more <= count // 2 else count

    def _cut(self, count: int) -> int:
        """The largest number up to `count` after which a batch ends; 0 for none."""
        return max(0, count - (self._pulled + count) % self._batch)

    def _waits(self, queue: ShardQueue) -> bool:
        """Whether to wait for more of this queue: it is sure to come, and a batch is not too large to be waited for."""
        return queue.comes and self._batch * queue.typical_bytes <= CHUNK_BYTES

    def _queue_of(self, shard: int) -> ShardQueue:
        """The queue of a shard whose turn has not come."""
        if shard not in self.queues:
            start = ShardPlace(version=self._versions.get(str(shard)))
            self.queues[shard] = ShardQueue(ShardStart(shard, start))
        return self.queues[shard]

    def _leave(self, index: int) -> None:
        queue = self._slots[index]
        assert queue is not None
        self._slots[index] = self._marks[index] = None
        del self.queues[queue.shard]
        if queue.error is not None:
            raise queue.error

    def _advance(self) -> None:
        self._cycle = (self._cycle + 1) % len(self._slots)
        self._block = 0


def pull(interleave: Interleave) -> tuple[Chunk | None, Exception | None]:
    """The next records in order, as far as they have arrived, None for none; and the error of the shard after them.

    A chunk that is short takes all that has arrived: its records are copied together.
    """
    pulled: list[tuple[Frames, Positions]] = []
    nbytes, error = 0, None
    try:
        while len(pulled) < 32 and nbytes < 128 << 10 and (next_one := interleave.pull()) is not None:
            pulled.append(next_one)
            nbytes += abs(next_one[0].extent)
    except Exception as failure:
        error = failure
    if len(pulled) < 2:
        return (Chunk.weighed(*pulled[0]) if pulled else None), error
    windows = [frames for frames, _ in pulled]
    positions = Joined(tuple((positions, 0, len(frames)) for frames, positions in pulled))
    if are_long(windows):
        return Chunk.weighed(Scattered.joining(windows), positions), error
    buffer, spans = kernels.interleave([[(frames.buffer, frames.spans) for frames in windows]], 1)
    return Chunk.weighed(Frames(buffer, as_spans(spans)), positions), error
