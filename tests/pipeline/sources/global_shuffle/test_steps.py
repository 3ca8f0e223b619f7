"""Steps: who has which slots, for all numbers of ranks and workers."""

from collections.abc import Iterator

from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.sources.global_shuffle.steps import Steps
from tests.effort import draws

EVENS = st.sampled_from([None, "drop", "pad", "cycle"])


def readers(total: int, batch: int, even: object, world_size: int, workers: int, base: int = 0) -> list[list[Steps]]:
    """For each rank the steps of each of its workers."""
    return [
        [Steps(total, batch, even, rank, world_size, worker, workers, base) for worker in range(workers)]  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


def taken(steps: Steps) -> Iterator[tuple[int, list[int]]]:
    """A worker's steps, with their positions."""
    step = steps.next_own(0)
    while step < steps.count:
        yield step, steps.positions(step).tolist()
        step = steps.next_own(step + 1)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """Records, the global batch size, ranks and workers."""
    world_size = draw(st.integers(1, 16))
    return draw(st.integers(0, 200)), world_size * draw(st.integers(1, 5)), world_size, draw(st.integers(1, 4))


@draws(200)
@given(job=jobs(), even=EVENS, base=st.integers(0, 50))
def test_global_batches_do_not_depend_on_who_reads(job: tuple[int, int, int, int], even: object, base: int) -> None:
    """The ranks' parts of a step, one after the other, are what one process would have."""
    total, batch, world_size, workers = job
    base = min(base, total)
    alone = dict(taken(readers(total, batch, even, 1, 1, base)[0][0]))
    together: dict[int, list[int]] = {step: [] for step in alone}
    for rank in readers(total, batch, even, world_size, workers, base):
        own: dict[int, list[int]] = {}
        for worker in rank:
            for step, positions in taken(worker):
                assert step not in own
                own[step] = positions
        assert own.keys() == alone.keys()
        for step, positions in own.items():
            together[step] += positions
    assert together == alone


@draws(100)
@given(job=jobs(), even=EVENS)
def test_each_record_once_and_as_many_for_all(job: tuple[int, int, int, int], even: object) -> None:
    """Without `even` each record once; with it all ranks have as many, and what they have twice is as it says."""
    total, batch, world_size, _ = job
    steps = [dict(taken(each[0])) for each in readers(total, batch, even, world_size, 1)]
    found = [position for own in steps for positions in own.values() for position in positions]
    counts = {sum(map(len, own.values())) for own in steps}
    if even is None:
        assert sorted(found) == list(range(total))
    elif even == "drop":
        assert sorted(found) == list(range(total // batch * batch))
        assert len(counts) == 1
    else:
        assert set(found) == set(range(total))
        assert len(found) == -(-total // batch) * batch
        assert len(counts) == 1


def test_what_fills_the_last_step_up() -> None:
    """Of ten records in global batches of four: the first ones, or each slot's own first one."""
    assert Steps(10, 4, "pad").positions(2).tolist() == [8, 9, 0, 1]
    assert Steps(10, 4, "cycle").positions(2).tolist() == [8, 9, 2, 3]
    assert Steps(3, 8, "pad").positions(0).tolist() == [0, 1, 2, 0, 1, 2, 0, 1]


@draws(60)
@given(job=jobs(), count=st.integers(1, 9))
def test_runs_are_the_same_as_their_steps(job: tuple[int, int, int, int], count: int) -> None:
    """Many steps at a time."""
    total, batch, world_size, workers = job
    steps = Steps(total, batch, None, world_size - 1, world_size, workers - 1, workers)
    first = steps.next_own(0)
    rows = {step + index * workers: row for step, rows in steps.runs(first, count) for index, row in enumerate(rows)}
    assert {step: row.tolist() for step, row in rows.items()} == {step: row for step, row in taken(steps) if row}
