"""Steps: the positions that each reader takes in each step, and the state of a whole job.

From position `base` on, all ranks together take `batch` positions in each step: a global batch.
Each rank has the same number of consecutive slots in it. A rank's loader workers take steps in
turn. So the sequence of global batches, and the record in each slot, do not depend on the number of
ranks and workers.

Rules:
- A state needs only the position at which a step begins. It is the same on all ranks, and any
  number of ranks can resume there.
- `even` says whether an incomplete last global batch is given, dropped, or filled up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import gcd
from typing import Any

import numpy as np

from streamrec.pipeline.engine.states import check_state, digest_state
from streamrec.pipeline.engine.versions import join_marks
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
        worker, workers: The reader's worker of the rank, of those that read. Worker 0 has step 0. A
            worker with a larger number than these is idle: it has no steps.
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
        return self.whole if self.even == "drop" else -(-(self.total - self.base) // self.batch)

    @property
    def whole(self) -> int:
        """How many steps are complete without filling up."""
        return (self.total - self.base) // self.batch

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
        return 0 if self.is_idle else len(range(self.worker, self.whole, self.workers))

    def position(self, step: int) -> int:
        """The first position of a step, over all ranks."""
        return self.base + step * self.batch

    def next_own(self, step: int) -> int:
        """This worker's next step, which may be `step`."""
        return step + (self.worker - step) % self.workers

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


def job_state(states: Sequence[Mapping[str, Any]], steps: int = 0) -> dict[str, Any]:
    """Makes one state of the states of all workers of one rank that have begun.

    Any number of ranks and workers can resume from it. The states are from after the same step; the
    rank has taken `steps` since.
    """
    if not states:
        raise ValueError(
            "this state holds no worker's state: pass the state of a loader that was iterated"
        )
    for state in states:
        check_state(state)
    # Idle workers have a state, too: of an iteration that ended before its first step.
    states = [state for state in states if has_begun(state)] or states
    shuffles = [find_shuffle(state) for state in states]
    # A worker that has not begun since its job resumed still has the state that the job had, which
    # names no worker. Its position is that of the whole job then, and says nothing of now.
    if any("worker" in source for _, source in shuffles):
        begun_since = ["worker" in source for _, source in shuffles]
        states = list(compress(states, begun_since))
        shuffles = list(compress(shuffles, begun_since))
    least = min(range(len(states)), key=lambda index: shuffles[index][0])
    _, source = shuffles[least]
    workers = source.get("worker", [0, 1])[1]
    begun = {source.get("worker", [0, 1])[0] for _, source in shuffles}
    # Workers that have not begun have no state; they wait at their first step.
    waiting = [
        source["began"] + worker * source["batch"]
        for worker in range(workers)
        if worker not in begun
    ]
    batch = source.get("batch", 0)
    if steps and not batch:
        raise ValueError(
            "these states are of one process, but steps were taken since: save them after each step"
        )
    # The job continues at the earliest position that a worker has not delivered.
    position = min([source["position"], *waiting]) + steps * batch
    plain = {"position": position, "index": source["index"]}
    plain |= {"order": source["order"]} if "order" in source else {}
    if all("versions" in source for _, source in shuffles):  # not of states of earlier releases
        plain["versions"] = join_marks([source["versions"] for _, source in shuffles])
    state = {**states[least], "position": replace_shuffle(states[least]["position"], plain)}
    del state["digest"]
    return {**state, "digest": digest_state(state)}


def has_begun(state: Mapping[str, Any]) -> bool:
    """Whether a state is from after a step of a source."""
    position: Mapping[str, Any] = state["position"]
    while "inner" in (position.get("source") or {}):
        position = position["source"]["inner"]
    return bool(position.get("source"))


def find_shuffle(state: Mapping[str, Any]) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """The state of the global shuffle within a state, after a sort key.

    The key is smaller for an earlier state.
    """
    passes: list[int] = []
    position: Mapping[str, Any] = state["position"]
    while True:
        source = position.get("source") or {}
        if position.get("stages") or ("index" in source and position.get("skip")):
            raise ValueError(
                "this pipeline has a stage that counts elements (take, skip, enumerate, ...), "
                "but each worker counts only its own: leave the stage out, or use one process "
                "for each rank"
            )
        if "index" in source:
            return (*passes, int(source["position"])), source
        if "inner" not in source:
            raise ValueError("this is not the state of a global shuffle that has begun")
        passes += [source["epoch"]] if "epoch" in source else []
        position = source["inner"]


def replace_shuffle(position: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the state of the global shuffle in a position."""
    source = position["source"]
    inner = (
        plain if "index" in source else {**source, "inner": replace_shuffle(source["inner"], plain)}
    )
    return {**position, "source": inner}
