"""The state of a job, made of the states of a rank's loader workers."""

from typing import Any

import pytest

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.engine.states import FORMAT, digest_state
from streamrec.pipeline.sources.global_shuffle.job_state import (
    find_shuffle,
    job_state,
    replace_shuffle,
)


def state(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    saved = {"format": FORMAT, "epoch": 0, "position": {"source": source, "seed": 5, **more}}
    return {**saved, "digest": digest_state(saved)}


def state_of_worker(
    position: int, worker: int, workers: int = 3, began: int = 40
) -> dict[str, Any]:
    more = {"worker": [worker, workers], "batch": 8, "began": began}
    return state({"index": "digest", "position": position, **more})


def position_in(found: dict[str, Any]) -> int:
    assert found["digest"] == digest_state({k: v for k, v in found.items() if k != "digest"})
    source = found["position"]["source"]
    assert set(source) == {"position", "index"}
    assert found["position"]["seed"] == 5
    return int(source["position"])


def test_a_job_resumes_at_its_earliest_worker() -> None:
    states = [state_of_worker(88, 0), state_of_worker(72, 1), state_of_worker(80, 2)]
    assert position_in(job_state(states)) == 72
    assert position_in(job_state(states, steps=2)) == 72 + 16


def test_workers_that_have_not_begun_wait_at_their_first_step() -> None:
    """Worker n begins n global batches after the job did."""
    assert position_in(job_state([state_of_worker(64, 0)])) == 48
    assert position_in(job_state([state_of_worker(64, 0), state_of_worker(72, 1)])) == 56


def repeated_state(worker: int, epoch: int, position: int, before: int) -> dict[str, Any]:
    """Of one of two workers, in passes of three steps of eight positions."""
    more = {"worker": [worker, 2], "batch": 8, "began": 0, "steps": [before, 3, 3]}
    source = {"index": "digest", "position": position, **more}
    return state({"epoch": epoch, "inner": {"source": source}})


def place_in(found: dict[str, Any]) -> tuple[int, int]:
    source = found["position"]["source"]
    return source["epoch"], source["inner"]["source"]["position"]


def test_the_place_of_a_job_in_its_passes() -> None:
    """In the latest pass that a worker has begun; the end of a pass is a place in it."""
    states = [repeated_state(0, 0, 32, 0), repeated_state(1, 0, 24, 0)]
    assert place_in(job_state(states)) == (0, 24)  # the steps 0 to 2 are given
    for since, place in ((1, (1, 8)), (3, (1, 24)), (4, (2, 8)), (7, (3, 8))):
        assert place_in(job_state(states, since)) == place
    states = [repeated_state(0, 0, 32, 0), repeated_state(1, 1, 16, 3)]
    assert place_in(job_state(states)) == (1, 8)
    with pytest.raises(ValueError, match="worker 1 has given its steps up to 3, but worker 0 not"):
        job_state([repeated_state(0, 0, 16, 0), repeated_state(1, 1, 16, 3)])


def test_workers_that_have_not_begun_since_their_job_resumed_wait_as_well() -> None:
    """They still have the state that the job resumed from."""
    resumed = state({"index": "digest", "position": 40})
    assert position_in(job_state([state_of_worker(64, 0), resumed, resumed])) == 48
    assert position_in(job_state([state_of_worker(64, 0), state_of_worker(72, 1), resumed])) == 56
    assert position_in(job_state([resumed, resumed])) == 40


def test_idle_workers_say_nothing_of_a_job() -> None:
    """Their states are from before any step; a job of idle workers alone has not begun."""
    idle = state({})
    idle["position"] = {}
    del idle["digest"]
    idle["digest"] = digest_state(idle)
    begun = [state_of_worker(88, 0), state_of_worker(72, 1), state_of_worker(80, 2)]
    assert job_state([*begun, idle]) == job_state(begun)
    with pytest.raises(ValueError, match="has begun"):
        job_state([idle])


def test_a_state_of_one_process_is_that_of_the_job() -> None:
    assert position_in(job_state([state({"index": "digest", "position": 9})])) == 9
    with pytest.raises(ValueError, match="save them after each step"):
        job_state([state({"index": "digest", "position": 9})], steps=1)
    with pytest.raises(ValueError, match="holds no worker's state"):
        job_state([])
    with pytest.raises(PositionMismatchError):
        job_state([{**state({"index": "digest", "position": 9}), "epoch": 3}])


def test_the_shuffle_is_found_within_other_sources() -> None:
    """Its sort key begins with the epochs of the repetitions around it."""
    shuffle = {"index": "digest", "position": 9}
    inner = {"epoch": 2, "inner": {"source": {"inner": {"source": shuffle}}}}
    found = state(inner)
    assert find_shuffle(found) == ((2, 9), shuffle)
    plain = {"position": 1, "index": "digest"}
    replaced = replace_shuffle(found["position"], plain)
    assert find_shuffle({"position": replaced}) == ((2, 1), plain)
    assert replaced["seed"] == 5
    assert found["position"]["source"] == inner


@pytest.mark.parametrize("more", [{"stages": {"1": 3}}, {"skip": 2}])
def test_stages_that_count_cannot_resume_with_other_workers(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a stage that counts elements"):
        find_shuffle(state({"index": "digest", "position": 9}, **more))


def test_other_states_have_no_shuffle() -> None:
    for source in ({}, {"shards": [1]}):
        with pytest.raises(ValueError, match="not the state of a global shuffle"):
            find_shuffle(state(source))
