"""Steps: which positions of the order each reader has, step by step.

From position `base` on, all ranks together take `batch` positions in each step: a global batch. Each rank has as many
slots of it, one rank's behind another's. A rank's loader workers take steps in turn. So the sequence of global batches,
and which slot of one holds which record, is the same however many ranks and workers there are.

Rules:
- The position at which a step begins is all that a state needs: it is the same on all ranks, and any number of them can
  go on there.
- What is missing in the last global batch is left out, dropped with it, or filled up, as `even` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrec.pipeline.sources.global_shuffle.blocks import Numbers
from streamrec.shards import Even

__all__ = ["Steps"]


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of one reader.

    Args:
        total: How many records the data set has.
        batch: How many positions all ranks take in a step.
        even: What is done about the last step: None: ranks whose slots it has no record for have fewer; "drop": it is
            left out; "pad": it goes on with the first records of the epoch; "cycle": with those that its slots had in
            the first step.
        rank, world_size: Whose they are; `world_size` divides `batch`.
        worker, workers: Which of the rank's workers, and how many there are. Worker 0 has step 0.
        base: The position at which step 0 begins.
    """

    total: int
    batch: int
    even: Even | None = None
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    base: int = 0

    @property
    def share(self) -> int:
        """How many slots of a global batch are this rank's."""
        return self.batch // self.world_size

    @property
    def count(self) -> int:
        """How many steps there are."""
        return self.whole if self.even == "drop" else -(-(self.total - self.base) // self.batch)

    @property
    def whole(self) -> int:
        """How many of them have a record for each slot without filling up."""
        return (self.total - self.base) // self.batch

    @property
    def last(self) -> int:
        """How many positions this worker takes in the step behind the whole ones; 0 where that is not its own."""
        own = self.whole < self.count and self.next_own(self.whole) == self.whole
        return len(self.positions(self.whole)) if own else 0

    @property
    def batches(self) -> int:
        """How many steps this worker takes positions in."""
        return len(range(self.worker, self.whole, self.workers)) + (self.last > 0)

    @property
    def elements(self) -> int:
        """How many positions this worker takes in all."""
        return len(range(self.worker, self.whole, self.workers)) * self.share + self.last

    def position(self, step: int) -> int:
        """The position at which a step begins."""
        return self.base + step * self.batch

    def next_own(self, step: int) -> int:
        """The first step from this one on that is this worker's."""
        return step + (self.worker - step) % self.workers

    @property
    def slots(self) -> Numbers:
        """This rank's slots of each global batch."""
        return np.arange(self.rank * self.share, (self.rank + 1) * self.share)

    def positions(self, step: int) -> Numbers:
        """The positions that this rank takes in a step, in the order of its slots; fewer, or none, in the last one."""
        positions = self.position(step) + self.slots
        if step < self.whole:
            return positions
        if self.even is None or self.even == "drop":
            return positions[positions < self.total]
        more = (positions - self.total if self.even == "pad" else self.slots) % self.total
        return np.where(positions < self.total, positions, more)

    def run(self, step: int, count: int) -> Numbers:
        """The positions of so many whole steps of this worker's, from one on: int64 [steps, slots]."""
        steps = np.arange(step, min(self.whole, step + count * self.workers), self.workers)
        return self.base + steps[:, None] * self.batch + self.slots
