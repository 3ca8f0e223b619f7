"""Steps: which positions each rank and worker takes in each step, and where a whole job resumes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.engine.states import FORMAT, digest_state
from streamrec.pipeline.sources.global_shuffle.order import BlockOrder
from streamrec.pipeline.sources.global_shuffle.steps import (
    Steps,
    find_shuffle,
    job_state,
    replace_shuffle,
)
from streamrec.shards import Even

EVEN: list[Even | None] = [None, "drop", "pad", "cycle"]


def specified_batches(total: int, batch: int, even: Even | None, base: int) -> list[list[int]]:
    """The positions of each global batch, slot by slot."""
    steps: list[list[int]] = []
    for first in range(base, total, batch):
        step = list(range(first, min(first + batch, total)))
        if len(step) < batch and even == "drop":
            break
        for slot in range(len(step), batch):
            if even == "pad":
                step.append((first + slot - total) % total)
            elif even == "cycle":
                step.append(slot % total)
        steps.append(step)
    return steps


@given(
    total=st.integers(1, 40),
    share=st.integers(1, 4),
    world_size=st.integers(1, 4),
    workers=st.integers(1, 3),
    even=st.sampled_from(EVEN),
    base=st.integers(0, 10),
    most=st.integers(1, 5),
)
def test_ranks_and_workers_share_the_global_batches(
    total: int,
    share: int,
    world_size: int,
    workers: int,
    even: Even | None,
    base: int,
    most: int,
) -> None:
    base = min(base, total)
    batch = share * world_size
    wanted = specified_batches(total, batch, even, base)
    for rank in range(world_size):
        for worker in range(workers):
            steps = Steps(
                total=total,
                batch=batch,
                even=even,
                rank=rank,
                world_size=world_size,
                worker=worker,
                workers=workers,
                base=base,
            )
            own = {
                number: step[rank * share : (rank + 1) * share]
                for number, step in enumerate(wanted)
                if number % workers == worker
            }
            assert steps.count == len(wanted)
            assert {number: steps.positions(number).tolist() for number in own} == own
            given = {number: positions for number, positions in own.items() if positions}
            assert steps.elements == sum(map(len, own.values()))
            assert steps.batches == len(given)
            runs = list(steps.runs(steps.next_own(0), most))
            taken = [row.tolist() for _, positions in runs for row in positions]
            assert taken == list(given.values())
            assert all(len(positions) <= most for _, positions in runs)
            for number in own:
                full = len(range(base, total)) >= (number + 1) * batch
                assert steps.fills_up(number) == (not full and even is not None)
                assert steps.position(number) == base + number * batch


def test_one_process_takes_all_positions() -> None:
    steps = Steps(total=10, batch=4)
    assert [steps.positions(step).tolist() for step in range(steps.count)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert (steps.elements, steps.batches, steps.last, steps.share) == (10, 3, 2, 4)


def test_first_runs_are_short_and_double() -> None:
    """The first batch does not wait for many steps: 256 slots, or a single step of more."""
    lengths = [len(positions) for _, positions in Steps(total=100_000, batch=64).runs(0, 64)]
    assert lengths[:6] == [4, 8, 16, 32, 64, 64]
    assert [len(positions) for _, positions in Steps(total=5000, batch=1000).runs(0, 64)] == [
        1,
        2,
        2,
    ]


def test_a_worker_s_next_step() -> None:
    steps = Steps(total=100, batch=1, worker=1, workers=3)
    assert [steps.next_own(step) for step in range(6)] == [1, 1, 4, 4, 4, 7]


@given(
    unit=st.sampled_from([4, 12, 24]),
    groups=st.sampled_from([1, 2, 4]),
    batch=st.integers(1, 8),
    world_size=st.sampled_from([1, 2]),
    workers=st.integers(1, 3),
    first=st.integers(0, 9),
)
def test_groups_that_a_worker_reads(
    unit: int, groups: int, batch: int, world_size: int, workers: int, first: int
) -> None:
    total = 60
    order = BlockOrder(
        bounds=np.arange(0, total + 1, 5), seed=1, epoch=0, unit=unit, groups=groups, window=2
    )
    for rank in range(world_size):
        for worker in range(workers):
            steps = Steps(
                total=total,
                batch=batch * world_size,
                rank=rank,
                world_size=world_size,
                worker=worker,
                workers=workers,
            )
            begin = steps.next_own(first)
            own = range(begin, steps.count, workers)
            lowest: dict[int, int] = {}
            for number in own:
                for group, index in zip(
                    *(part.tolist() for part in order.locate(steps.positions(number))), strict=True
                ):
                    lowest[group] = min(index, lowest.get(group, index))
            assert steps.groups(order, begin) == lowest


def test_pad_fills_the_last_step_with_the_first_records_and_cycle_with_each_slots_own() -> None:
    """Of ten records in global batches of four: the first ones, or each slot's own first one."""
    assert Steps(total=10, batch=4, even="pad").positions(2).tolist() == [8, 9, 0, 1]
    assert Steps(total=10, batch=4, even="cycle").positions(2).tolist() == [8, 9, 2, 3]
    assert Steps(total=3, batch=8, even="pad").positions(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


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
    assert position_in(job_state([state_of_worker(64, 1)])) == 40


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
    begun = [state_of_worker(70, 0), state_of_worker(80, 1), state_of_worker(60, 2)]
    assert job_state([*begun, idle]) == job_state(begun)
    with pytest.raises(ValueError, match="has begun"):
        job_state([idle])


def test_an_idle_worker_has_no_steps() -> None:
    idle = Steps(total=100, batch=7, worker=4, workers=4)
    assert idle.is_idle
    assert (idle.batches, idle.elements, idle.last) == (0, 0, 0)
    reading = [Steps(total=100, batch=7, worker=worker, workers=4) for worker in range(4)]
    assert sum(steps.elements for steps in reading) == 100


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
