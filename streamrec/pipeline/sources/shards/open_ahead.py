"""Which shards are opened now, and how much of each is read ahead: decisions without I/O.

Rules:
- Shards that have a place are opened at once: those in the cycle, and a few after them.
- Shards that are too small to be read by parallel ranges are opened so far ahead that together they
  fill the wire, as `Connections` has measured it (a shard of 100 kB at 40 ms to the first byte:
  dozens). They must fit in the budget of the source, and in the ledger of the run.
- Short shards are opened many at a time, since a task for each costs more than its bytes. Then they
  wait until some are missing, unless the interleave waits.
- A queue that has a place holds its share of the budget, one further ahead a small shard; each may
  hold one block.

Which shards come, and in which order, never depends on any of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.shard_queue import ShardInterleave, ShardQueue
from streamrec.shards import ReadOptions
from streamrec.storage import BLOCK_BYTES
from streamrec.storage.connection_speed import median

if TYPE_CHECKING:
    from streamrec.storage.connections import Connections

QUEUE_BYTES = 6 << 20
"""How much one shard is fetched ahead of its turn, if the budget allows.

More would only leave the caches.
"""

MIN_BLOCK_BYTES = 64 << 10
"""Blocks are at least this large, however small the budget."""

BLOCKS_TOGETHER = 8
"""Blocks that are read and framed together, if their bytes are there and they are short.

On its way to the consumer, a block costs 60 us, whatever its size: as much as 250 KiB of it.
"""

SMALL_BYTES = 8 << 20
"""Smaller shards are opened further ahead; larger ones are read by parallel ranges too."""

SLACK_BYTES = 512 << 10
"""What a small shard's queue holds besides the shard.

It is a block that is larger than what is left for it.
"""

SHORT_BYTES = 256 << 10
"""Shards that are usually no longer than this are started together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMemory:
    """How a source divides its budget among its shards.

    Several methods take `known`: the number of shards, or None while more may be listed.

    Args:
        plan: The order of reading, which says how many shards have a place.
        budget: Bytes that reach the source.
    """

    plan: Plan
    budget: int

    def share(self, known: int | None) -> int:
        """What one queue in its place may hold.

        >>> memory = ShardMemory(plan=Plan(cycle_length=4), budget=1200)
        >>> memory.share(None), memory.share(2)
        (200, 600)
        """
        places = self.plan.open_inputs
        return self.budget // (places if known is None else min(places, known))

    @property
    def range_bytes(self) -> int:
        """What ranges ahead of their turn may hold: what queues leave, or half of the budget."""
        return max(self.budget // 2, self.budget - self.plan.open_inputs * QUEUE_BYTES)

    def queue_bytes(self, known: int | None, most_block_bytes: int = 0) -> int:
        """What one queue in its place is filled with, if its blocks have up to that many bytes.

        Two blocks, since one fills while one is taken.
        """
        return min(self.share(known), max(QUEUE_BYTES, 2 * most_block_bytes))

    def options(self, options: ReadOptions, known: int | None, batch: int) -> ReadOptions:
        """How one shard is read: two blocks of the usual size fit in its share.

        Those of a shard that is read alone are twice as large: its records go through the pipeline
        without a copy, save for the batches that straddle two blocks.
        """
        alone = self.plan.cycle_length == 1 or known == 1
        blocks = 2 if alone else 1
        wanted = options.block_bytes or BLOCK_BYTES * blocks
        block = min(wanted, max(self.share(known) // (2 * blocks), MIN_BLOCK_BYTES))
        group = batch if alone else self.plan.block_length
        return replace(options, block_bytes=block, block_records=group)

    def together(self, block_bytes: int, known: int | None) -> int:
        """The size of several blocks of a store that does not stall: up to BLOCK_BYTES.

        Two such blocks fit in a share.

        >>> memory = ShardMemory(plan=Plan(), budget=6 << 20)
        >>> [memory.together(kib << 10, 1) >> 10 for kib in (1, 64, 256, 1000, 4096)]
        [8, 512, 1536, 1000, 4096]
        """
        room = min(BLOCK_BYTES, self.share(known) // 4)
        return block_bytes * max(1, min(BLOCKS_TOGETHER, room // block_bytes))


class Openings(NamedTuple):
    """The shards that are opened now, most urgent first, and whether one task opens them all."""

    queues: list[ShardQueue]
    together: bool


class OpenAhead:
    """Decides which shards of a source are opened.

    Args:
        memory: What the source may hold.
        connections: What was measured of the network.
    """

    def __init__(self, memory: ShardMemory, connections: Connections) -> None:
        self._memory = memory
        self._connections = connections
        self._sizes: deque[int] = deque(maxlen=16)
        # of the sizes; None when they have changed, since a median costs each short shard 1 us
        self._median: int | None = 0
        self._opened: set[int] = set()
        self._next = 0  # one past the last shard that was opened

    def add_sizes(self, sizes: Iterable[int]) -> bool:
        """Adds the sizes of shards that were opened; False if none is known yet."""
        self._sizes.extend(sizes)
        self._median = None
        return bool(self._sizes)

    @property
    def _typical_bytes(self) -> int:
        """The median size of the last shards that were opened; 0 while none is known."""
        if self._median is None:
            self._median = int(median(self._sizes)) if self._sizes else 0
        return self._median

    @property
    def count(self) -> int:
        """How many shards after those in the cycle are opened before their turn comes."""
        size = self._typical_bytes
        plan = self._memory.plan
        fit = self._connections.room.limit // (size + SLACK_BYTES)
        if not self._sizes or (size > SMALL_BYTES and fit < 4):
            return plan.open_inputs - plan.cycle_length
        return max(plan.open_inputs, self._connections.streams_for(size)) - plan.cycle_length

    def next(
        self,
        interleave: ShardInterleave,
        count: int,
        *,
        known: int | None,
        at_once: bool,
        fits: Callable[[int], bool],
    ) -> Openings:
        """Which of the next shards are opened now.

        Args:
            interleave: The shards in the cycle, and those after them.
            count: How many of those after them are wanted.
            known: The number of shards, or None while more may be listed.
            at_once: Whether the interleave waits, so that short shards do not wait for each other.
            fits: Whether the run may hold that many more bytes.
        """
        # As far as is known from the last shards.
        short = self._typical_bytes <= SHORT_BYTES and self._memory.share(known) >= 2 * SHORT_BYTES
        coming = interleave.coming
        missing = min(coming.next + count, coming.known) - self._next
        if missing <= 0:  # as after nearly all blocks of long shards
            return Openings([], short)
        if not at_once and short and self._sizes and missing < min(32, count // 2):
            return Openings([], short)
        queues = self._allowed(interleave.wanted(count), fits)
        self._opened.update(queue.start.shard for queue in queues)
        self._next = max((queue.start.shard + 1 for queue in queues), default=self._next)
        return Openings(queues, short)

    def _allowed(
        self, wanted: Iterable[ShardQueue], fits: Callable[[int], bool]
    ) -> list[ShardQueue]:
        """Those that are not open: all that have a place, and further ones within the budget."""
        places = self._memory.plan.open_inputs
        room = self._typical_bytes + SLACK_BYTES
        allowed: list[ShardQueue] = []
        run_has_room: bool | None = None
        for number, queue in enumerate(wanted):
            if queue.start.shard in self._opened:
                continue
            if number >= places:
                planned = places * QUEUE_BYTES + (number + 1 - places) * room
                if run_has_room is None:  # one question for all: each costs time
                    run_has_room = fits(room)
                if planned > self._memory.budget or not run_has_room:
                    break
                queue.limit = SMALL_BYTES + SLACK_BYTES
            allowed.append(queue)
        return allowed
