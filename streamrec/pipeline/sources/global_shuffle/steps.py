"""Steps: the positions that each reader takes in each step.

From position `base` on, all ranks together take `batch` positions in each step: a global batch.
Each rank has the same number of consecutive slots in it. A rank's loader workers take steps in
turn. So the sequence of global batches, and the record in each slot, do not depend on the number of
ranks and workers.

Rules:
- A state needs only the position at which a step begins. It is the same on all ranks, and any
  number of ranks can resume there.
- The steps of a job are numbered through all passes of a `repeat`. Worker n of w takes the steps n,
  n + w, n + 2w, ... that give its rank something, so a loader that asks its workers in turn gives
  the steps in order, also at the end of a pass.
- `even` says whether an incomplete last global batch is given, dropped, or filled up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from streamrec.pipeline.sources.global_shuffle.order import BlockOrder, Numbers
from streamrec.shards import Even


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps of one reader.

    Args:
        total: The number of records of the data set.
        batch: How many positions all ranks take in a step.
        even: How an incomplete last step is handled: None: some ranks get fewer records; "drop": it
            is left out; "pad": it is filled with the first records of the epoch; "cycle": with the
            records of the same slots in step 0.
        rank, world_size: The reader's rank; `world_size` divides `batch`.
        worker, workers: The reader's worker of the rank, of those that read. A worker with a larger
            number than these is idle: it has no steps.
        base: The position at which step 0 begins.
        before: How many steps the workers of this rank took together in earlier passes of the job;
            None for a job of an earlier release, in which each pass began with worker 0.
    """

    total: int
    batch: int
    even: Even | None = None
    rank: int = 0
    world_size: int = 1
    worker: int = 0
    workers: int = 1
    base: int = 0
    before: int | None = 0

    @property
    def is_idle(self) -> bool:
        """Whether this is a worker that does not read."""
        return self.worker >= self.workers

    @property
    def share(self) -> int:
        """How many slots of a global batch this rank has."""
        return self.batch // self.world_size

    @property
    def count(self) -> int:
        """How many steps all readers take together."""
        if self.even == "drop":
            return self.whole
        return max(0, -(-(self.total - self.base) // self.batch))

    @property
    def whole(self) -> int:
        """How many steps are complete without filling up."""
        return max(0, (self.total - self.base) // self.batch)

    @property
    def given(self) -> int:
        """How many steps give this rank something, to all of its workers together.

        The last step may not: then it has positions for lower ranks only.
        """
        has_last = self.whole < self.count and len(self.positions(self.whole)) > 0
        return self.whole + has_last

    @property
    def is_uneven(self) -> bool:
        """Whether the last step gives something to some ranks, and nothing to others."""
        return replace(self, rank=0).given > replace(self, rank=self.world_size - 1).given

    @property
    def last(self) -> int:
        """How many positions this worker takes in the step after the complete ones.

        It is 0 if that step belongs to another worker.
        """
        has_last = self.whole < self.count and not self.is_idle
        is_own = has_last and self.next_own(self.whole) == self.whole
        return len(self.positions(self.whole)) if is_own else 0

    @property
    def batches(self) -> int:
        """How many steps this worker takes positions in."""
        return self._own_whole + (self.last > 0)

    @property
    def elements(self) -> int:
        """How many positions this worker takes in all."""
        return self._own_whole * self.share + self.last

    @property
    def _own_whole(self) -> int:
        """How many complete steps this worker takes."""
        return 0 if self.is_idle else len(range(self.next_own(0), self.whole, self.workers))

    def position(self, step: int) -> int:
        """The first position of a step, over all ranks."""
        return self.base + step * self.batch

    def next_own(self, step: int) -> int:
        """This worker's next step, which may be `step`."""
        return step + (self.worker - (self.before or 0) - step) % self.workers

    @property
    def slots(self) -> Numbers:
        return np.arange(self.rank * self.share, (self.rank + 1) * self.share)

    def positions(self, step: int) -> Numbers:
        """The positions that this rank takes in a step, in the order of its slots.

        The last step may have fewer.
        """
        positions = self.position(step) + self.slots
        if step < self.whole:
            return positions
        if self.even is None or self.even == "drop":
            return positions[positions < self.total]
        more = (positions - self.total if self.even == "pad" else self.slots) % self.total
        return np.where(positions < self.total, positions, more)

    def runs(self, step: int, most: int) -> Iterator[tuple[int, Numbers]]:
        """Groups this worker's steps from one on, up to `most` at a time.

        Each group has its first step, and positions, int64 [steps, slots].

        The first groups are small, so that the first batch does not wait for later ones; each has
        twice as many steps.
        """
        size = max(1, 256 // max(1, self.share))
        while step < self.count:
            if step < self.whole:
                last = min(self.whole, step + min(size, most) * self.workers)
                steps = np.arange(step, last, self.workers)
                size *= 2
                positions = self.base + steps[:, None] * self.batch + self.slots
            else:
                positions = self.positions(step)[None, :]
            if positions.size:
                yield step, positions
            step += len(positions) * self.workers

    def fills_up(self, step: int) -> bool:
        """Whether a step is filled with earlier positions."""
        return step >= self.whole and self.even is not None

    def groups(self, order: BlockOrder, first: int) -> dict[int, int]:
        """The groups that this worker reads from step `first` on.

        With each comes the index of its first record.
        """
        if first >= self.count:
            return {}
        # After this many own steps, the slots of a unit repeat: all groups have come by then.
        period = order.unit // gcd(order.unit, self.batch * self.workers)
        ahead = first + np.arange(period) * self.workers
        positions = (self.position(0) + ahead[:, None] * self.batch + self.slots).ravel()
        groups, indices = order.locate(positions[positions < self.total])
        return {int(group): int(indices[groups == group].min()) for group in np.unique(groups)}
