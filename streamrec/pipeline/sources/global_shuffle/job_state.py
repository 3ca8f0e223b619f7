"""The state of a job, of the states of a rank's loader workers: where the first step begins that nobody has given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamrec.pipeline.engine.states import check_state, digest_of

__all__ = ["job_state"]


def job_state(states: Sequence[Mapping[str, Any]], steps: int = 0) -> dict[str, Any]:
    """One state, from which any number of ranks and workers can go on.

    Args:
        states: Those of all workers of one rank that have begun, after the same step.
        steps: How many steps the rank has taken since.

    Raises:
        ValueError: They are not states of a global shuffle, or something before or behind it has a state of its own.
        PositionMismatchError: One is no state, or was changed.
    """
    if not states:
        raise ValueError("there is no state of a worker here: pass the state of a loader that was iterated")
    for state in states:
        check_state(state)
    found = [shuffle_of(state) for state in states]
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
    state = {**states[least], "position": replaced(states[least]["position"], plain)}
    del state["digest"]
    return {**state, "digest": digest_of(state)}


def shuffle_of(state: Mapping[str, Any]) -> tuple[tuple[int, ...], Mapping[str, Any]]:
    """The state of the global shuffle in a state; and a key that says which of two is behind."""
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
            raise ValueError("this is no state of a global shuffle that has begun")
        passes += [source[name] for name in ("epoch", "pass") if name in source]
        position = source["inner"]


def replaced(position: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, Any]:
    """A position with another state of the global shuffle."""
    source = position["source"]
    inner = plain if "index" in source else {**source, "inner": replaced(source["inner"], plain)}
    return {**position, "source": inner}
