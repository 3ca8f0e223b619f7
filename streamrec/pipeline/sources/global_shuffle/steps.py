"""Steps: which positions of the order each reader has, step by step; and the state that a whole job goes on from.

From position `base` on, all ranks together take `batch` positions in each step: a global batch. Each rank has the same
number of slots of it, one rank's after another's. A rank's loader workers take steps in turn. So the sequence of global
batches, and which slot of one holds which record, is the same however many ranks and workers there are.

Rules:
- The position at which a step begins is all that a state needs: it is the same on all ranks, and any number of them can
  go on there.
- What is missing in the last global batch is left out, dropped with it, or filled up, as `even` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from streamrec.pipeline.engine.states import check_state, digest_of
from streamrec.pipeline.sources.global_shuffle.order import BlockOrder, Numbers
from streamrec.shards import Even

__all__ = ["Steps", "job_state"]


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
        return self.whole if self.even == "drop" else -(-(self.total - self.base) // self.batch)

    @property
    def whole(self) -> int:
        """How many of them have a record for each slot without filling up."""
        return (self.total - self.base) // self.batch

    @property
    def last(self) -> int:
        """How many positions this worker takes in the step after the whole ones; 0 where that is not its own."""
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
        return self.base + step * self.batch

    def next_own(self, step: int) -> int:
        """The first step from this one on that is this worker's."""
        return step + (self.worker - step) % self.workers

    @property
    def slots(self) -> Numbers:
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

    def runs(self, step: int, many: int) -> Iterator[tuple[int, Numbers]]:
        """From one of its steps on, of up to `many` at a time the first, and their positions: int64 [steps, slots].

        There are few at first, so that the first batch does not wait for the next ones, and twice as many each time.
        """
        few = max(1, 256 // max(1, self.share))
        while step < self.count:
            if step < self.whole:
                taken, few = min(few, many), 2 * few
                steps = np.arange(step, min(self.whole, step + taken * self.workers), self.workers)
                positions = self.base + steps[:, None] * self.batch + self.slots
            else:
                positions = self.positions(step)[None, :]
            if positions.size:
                yield step, positions
            step += len(positions) * self.workers

    def fills_up(self, step: int) -> bool:
        """Whether a step has positions that came before."""
        return step >= self.whole and self.even is not None

    def groups(self, order: BlockOrder, first: int) -> dict[int, int]:
        """The groups of an order that it reads from a step on, and the first record that it takes of each."""
        if first >= self.count:
            return {}
        many = order.unit // gcd(order.unit, self.batch * self.workers)
        ahead = first + np.arange(many) * self.workers
        positions = (self.position(0) + ahead[:, None] * self.batch + self.slots).ravel()
        groups, indices = order.locate(positions[positions < self.total])
        return {int(group): int(indices[groups == group].min()) for group in np.unique(groups)}


def job_state(states: Sequence[Mapping[str, Any]], steps: int = 0) -> dict[str, Any]:
    """One state, from which any number of ranks and workers can go on.

    Args:
        states: Those of all workers of one rank that have begun, after the same step.
        steps: How many steps the rank has taken since.

    Raises:
        ValueError: They are not states of a global shuffle, or something before or after it has a state of its own.
        PositionMismatchError: One is not a state, or was changed.
    """
    if not states:
        raise ValueError("this state holds no worker's state: pass the state of a loader that was iterated")
    for state in states:
        check_state(state)
    found = [find_shuffle(state) for state in states]
    least = min(range(len(states)), key=lambda index: found[index][0])
    _, source = found[least]
    workers = source.get("worker", [0, 1])[1]
    begun = {source.get("worker", [0, 1])[0] for _, source in found}
    waiting = [source["began"] + worker * source["batch"] for worker in range(workers) if worker not in begun]
    batch = source.get("batch", 0)
    if steps and not batch:
        raise ValueError("these states are of one process, and steps were taken since: save them after each step")
    position = min([source["position"], *waiting]) + steps * batch
    plain = {"position": position, "index": source["index"]}
    state = {**states[least], "position": replace_shuffle(states[least]["position"], plain)}
    del state["digest"]
    return {**state, "digest": digest_of(state)}


def find_shuffle(state: Mapping[str, Any]) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """The state of the global shuffle in a state; and a key that is smaller for an earlier one."""
    passes: list[int] = []
    position: Mapping[str, Any] = state["position"]
    while True:
        source = position.get("source") or {}
        if position.get("stages") or ("index" in source and position.get("skip")):
            raise ValueError(
                "this pipeline has a stage that counts elements (take, skip, enumerate, ...), and each worker counts "
                "its own: leave it out, or use one process for each rank"
            )
        if "index" in source:
            return (*passes, int(source["position"])), source
        if "inner" not in source:
            raise ValueError("this is not the state of a global shuffle that has begun")
        passes += [source[name] for name in ("epoch", "pass") if name in source]
        position = source["inner"]


def replace_shuffle(position: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """A position with another state of the global shuffle."""
    source = position["source"]
    inner = plain if "index" in source else {**source, "inner": replace_shuffle(source["inner"], plain)}
    return {**position, "source": inner}
