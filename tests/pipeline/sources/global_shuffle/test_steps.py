"""Steps: which positions each rank and worker takes in each step."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.global_shuffle.order import BlockOrder
from streamrec.pipeline.sources.global_shuffle.steps import Steps
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


def test_workers_go_on_in_turn_after_an_earlier_pass() -> None:
    """Worker n of w takes the steps of the job that are n modulo w, here from step 7 on."""
    own = {}
    for worker in range(3):
        steps = Steps(total=20, batch=4, worker=worker, workers=3, before=7)
        own[worker] = [step for step, _ in steps.runs(steps.next_own(0), 1)]
        assert steps.batches == len(own[worker])
    assert own == {0: [2], 1: [0, 3], 2: [1, 4]}
    earlier_release = Steps(total=20, batch=4, workers=3, before=None)
    assert earlier_release.next_own(0) == 0


@given(total=st.integers(0, 40), share=st.integers(1, 4), world_size=st.integers(1, 4))
def test_uneven_steps(total: int, share: int, world_size: int) -> None:
    """Those that give something to some ranks only."""
    ranks = [
        Steps(total=total, batch=share * world_size, rank=rank, world_size=world_size)
        for rank in range(world_size)
    ]
    given = [steps.given for steps in ranks]
    assert given == [sum(1 for _ in steps.runs(0, 1)) for steps in ranks]
    assert all(steps.is_uneven == (min(given) < max(given)) for steps in ranks)


def test_an_idle_worker_has_no_steps() -> None:
    idle = Steps(total=100, batch=7, worker=4, workers=4)
    assert idle.is_idle
    assert (idle.batches, idle.elements, idle.last) == (0, 0, 0)
    reading = [Steps(total=100, batch=7, worker=worker, workers=4) for worker in range(4)]
    assert sum(steps.elements for steps in reading) == 100
