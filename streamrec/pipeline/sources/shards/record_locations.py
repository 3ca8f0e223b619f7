"""Record locations: where records lie in their shards, so that a position can name them without their data.

Rules:
- What a source took is noted as references to spans, and worked out when asked for (`Positions.locations`).
- Stages that pick records out of others pick their places with them; a stage that makes something else of each record
  leaves the place that it was made of. Callers must know the chain: after a batch there are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.positions import RecordLocations, RecordPlace
from streamrec.shards import OFFSET_BITS
from streamrec.tfrecord import HEADER_BYTES

__all__ = ["RecordRun", "TakenRecords"]

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
