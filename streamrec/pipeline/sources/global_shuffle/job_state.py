"""The state of a whole job, made of the states of one rank's loader workers.

Rules:
- It is the same on all ranks after the same step, and any number of ranks and workers can resume
  from it.
- It has one position, the first that was not given. If a later one was given already, no state is
  right, and that is an error: records would come twice.
- The steps of a job are numbered through all passes of a `repeat` (`Passes`). So states of workers
  in different passes are compared by one number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamrec.pipeline.engine.states import check_state, digest_state
from streamrec.pipeline.engine.versions import join_marks


class WorkerState(NamedTuple):
    """A worker's state, and what is in it.

    Attributes:
        state: The state.
        passes: The passes of the repetitions around the shuffle, from the outermost.
        source: The state of the global shuffle in it.
    """

    state: Mapping[str, Any]
    passes: tuple[int, ...]
    source: Mapping[str, Any]

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> WorkerState:
        (*passes, _), source = find_shuffle(state)
        return cls(state, tuple(passes), source)

    @property
    def is_one_of_several(self) -> bool:
        """Whether it is of a worker that takes steps in turn with others."""
        return "worker" in self.source

    @property
    def numbers_steps(self) -> bool:
        """Whether it says which step of the job it is at: not so those of earlier releases."""
        return "steps" in self.source


class Place(NamedTuple):
    """Where a job continues.

    Attributes:
        worker: The worker whose state becomes that of the job.
        position: The position in its global shuffle.
        passes: How many passes after that of the worker's state it is.
        is_common: Whether all ranks are there after the same number of steps.
    """

    worker: WorkerState
    position: int
    passes: int = 0
    is_common: bool = True


def job_state(
    states: Sequence[Mapping[str, Any]], steps: int = 0, before: int | None = None
) -> dict[str, Any]:
    """Makes one state of the states of all workers of one rank that have begun.

    Any number of ranks and workers can resume from it. The states are from after the same step; the
    loader gave `before` elements up to then, and `steps` since.

    Raises a ValueError if a pipeline has no such state.
    """
    workers = find_workers(states)
    if workers[0].is_one_of_several:
        place = place_of_workers(workers, steps, before)
    elif steps:
        raise ValueError(
            "these states are of one process, but steps were taken since: save them after each step"
        )
    else:
        worker = min(workers, key=lambda worker: (worker.passes, worker.source["position"]))
        position = worker.source["position"]
        place = Place(worker, position, is_common="rank" not in worker.source)
    source = place.worker.source
    plain = {"position": place.position, "index": source["index"]}
    plain |= {"order": source["order"]} if "order" in source else {}
    if all("versions" in worker.source for worker in workers):  # not of earlier releases
        plain["versions"] = join_marks([worker.source["versions"] for worker in workers])
    plain |= {} if place.is_common else {"rank": source["rank"]}
    state = dict(place.worker.state)
    state["position"] = replace_shuffle(state["position"], plain, place.passes)
    del state["digest"]
    return {**state, "digest": digest_state(state)}


def find_workers(states: Sequence[Mapping[str, Any]]) -> list[WorkerState]:
    """The workers of these states that have begun; all if none has since the job resumed."""
    if not states:
        raise ValueError(
            "this state holds no worker's state: pass the state of a loader that was iterated"
        )
    for state in states:
        check_state(state)
    # Idle workers have a state, too: of an iteration that ended before its first step.
    workers = [WorkerState.of(state) for state in states if has_begun(state)]
    workers = workers or [WorkerState.of(state) for state in states]
    # A worker that has not begun since its job resumed still has the state that the job had, which
    # names no worker. Its position is that of the whole job then, and says nothing of now.
    return [worker for worker in workers if worker.is_one_of_several] or workers


def place_of_workers(workers: Sequence[WorkerState], steps: int, before: int | None) -> Place:
    """Where the job of several workers continues, `steps` elements after their states."""
    check_comparable(workers)
    step = first_missing([worker.source for worker in workers])
    numbered = workers[0].numbers_steps
    if steps and numbered and before not in (None, step):
        raise ValueError(
            f"{step:,} steps make {before:,} elements here, so it is not known which steps were "
            f"taken in the {steps:,} elements since these states: save them after each element "
            "(snapshot_every_n_steps=1)"
        )
    step += steps
    # Of the latest pass that has begun by then. The pass of the first steps always has.
    begun = [worker for worker in workers if steps_before(worker.source) <= step] or workers
    worker = max(begun, key=lambda worker: steps_before(worker.source))
    passes, position = place_of_step(worker.source, step)
    is_common = step <= worker.source.get("common", step)
    return Place(worker, position, passes, is_common)


def steps_before(source: Mapping[str, Any]) -> int:
    """How many steps came before the pass that a worker's state is in."""
    return int(source["steps"][0]) if "steps" in source else 0


def next_step(source: Mapping[str, Any]) -> int:
    """The next step of a worker, numbered through all passes of its job."""
    own = (source["position"] - source["began"]) // source["batch"]
    return steps_before(source) + int(own)


def is_past_common(source: Mapping[str, Any]) -> bool:
    """Whether a state that names its rank is from after the steps that all ranks have in common."""
    return "worker" not in source or next_step(source) > source["common"]


def check_comparable(workers: Sequence[WorkerState]) -> None:
    """Refuses workers of an earlier release that are in different passes: no number of steps is
    known there.
    """
    earlier = {worker.passes for worker in workers if not worker.numbers_steps}
    if len(earlier) > 1 or (earlier and any(worker.numbers_steps for worker in workers)):
        raise ValueError(
            "an earlier release of streamrec saved this state in a repeat(), with workers in "
            "different passes: no state of the whole job gives each record once. Resume with the "
            "loader's own load_state_dict and the same number of workers"
        )


def first_missing(sources: Sequence[Mapping[str, Any]]) -> int:
    """The first step that no worker has given.

    Raises a ValueError if a later step was given: a state has one position, so it would come twice.
    """
    workers = sources[0]["worker"][1]
    # Workers that have not begun have no state; they wait at their first step.
    next_steps = dict(enumerate(range(workers)))
    next_steps |= {source["worker"][0]: next_step(source) for source in sources}
    missing = min(next_steps, key=lambda worker: next_steps[worker])
    ahead = max(next_steps, key=lambda worker: next_steps[worker])
    # The worker of the step before the missing one is ahead by fewer steps than there are workers.
    if next_steps[ahead] >= next_steps[missing] + workers:
        raise ValueError(
            f"worker {ahead} has given its steps up to {next_steps[ahead] - workers}, but worker "
            f"{missing} not its step {next_steps[missing]}: a state of the job has one position, "
            "from which records would come twice. This happens where an element is not one step "
            "(filter, batch of single records, a DataLoader's batch_size): save when each worker "
            "has given the same number of elements; or pass global_batch_size= to global_shuffle "
            "instead of batching after it; or use one worker for each rank"
        )
    return next_steps[missing]


def place_of_step(source: Mapping[str, Any], step: int) -> tuple[int, int]:
    """Where a step begins that is in the pass of a state, or after it.

    Returns the number of passes after that of the state, and the position.
    """
    own = step - steps_before(source)
    if "steps" not in source or own <= source["steps"][1]:
        return 0, source["began"] + own * source["batch"]
    # The end of a pass is a place in it, as for a state of one process.
    _, this_pass, later_pass = source["steps"]
    passes, own = divmod(own - this_pass - 1, later_pass)
    return passes + 1, (own + 1) * source["batch"]


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


def replace_shuffle(
    position: Mapping[str, Any], plain: Mapping[str, Any], passes: int = 0
) -> dict[str, Any]:
    """Replaces the state of the global shuffle in a position, `passes` passes later.

    Raises a ValueError if no `repeat` directly around the shuffle says which pass it is.
    """
    source = position["source"]
    if "index" in source:
        if passes:
            raise ValueError(
                "more steps were taken since these states than their pass has: save them after "
                "each step (snapshot_every_n_steps=1)"
            )
        return {**position, "source": plain}
    inner = source["inner"]
    if passes and "epoch" in source and not has_passes(inner):
        source = {**source, "epoch": source["epoch"] + passes}
        passes = 0
    return {**position, "source": {**source, "inner": replace_shuffle(inner, plain, passes)}}


def has_passes(position: Mapping[str, Any]) -> bool:
    """Whether a position is within a pass of a `repeat`, or within a part of a `concatenate`."""
    while "inner" in (source := position["source"]):
        if "epoch" in source or "part" in source:
            return True
        position = source["inner"]
    return False
