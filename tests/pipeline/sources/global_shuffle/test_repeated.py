"""A global shuffle within `repeat`: the loader workers of a rank go on in turn through all passes.

A loader is emulated here: each worker reads in turn, and the states are those that a
StatefulDataLoader would hold. The workers of other worlds resume from each saved state.
"""

from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from math import lcm
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamrec import Dataset
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.engine.states import digest_state
from streamrec.pipeline.sources.global_shuffle import source
from streamrec.pipeline.sources.global_shuffle.job_state import find_shuffle, job_state
from tests.effort import example_count
from tests.pipeline.stored_shards import Indexed, indexed, numbered

pytestmark = pytest.mark.filterwarnings("ignore")

State = dict[str, Any]
Step = tuple[list[bytes], list[State]]
"""What a loader gives in a step, and the states of all of its workers after it."""


class Job:
    """A job that reads a repeated global shuffle, with any number of ranks and workers."""

    def __init__(self, data: Indexed, passes: int, **told: Any) -> None:
        self.data = data
        self.passes = passes
        self.told = told

    def dataset(self, rank: int, size: int) -> Dataset[Any]:
        told = {**self.told, "rank": rank, "world_size": size}
        return self.data.shuffled(**told).with_options(epoch=0).repeat(self.passes)

    def run_worker(
        self, rank: int, size: int, state: State | None, most: int | None
    ) -> Iterator[tuple[list[bytes], State]]:
        """The elements of the worker that `source.worker_here` says, with the state after each."""
        with self.dataset(rank, size).iterate(state) as run:
            yield [], run.state_dict()
            for element in islice(run, most):
                yield list(element), run.state_dict()

    def run_loader(
        self,
        rank: int,
        size: int,
        workers: int,
        *,
        state: State | None = None,
        most: int | None = None,
    ) -> list[Step]:
        """What a rank's loader gives: of its workers in turn, without those that have no more."""
        parts = []
        with pytest.MonkeyPatch.context() as patch:
            for worker in range(workers):
                patch.setattr(source, "worker_here", partial(tuple, (worker, workers)))
                parts.append(list(self.run_worker(rank, size, state, most)))
        states = [part[0][1] for part in parts]
        given: list[Step] = []
        for step in range(1, max(map(len, parts))):
            for worker, part in enumerate(parts):
                if step < len(part):
                    element, states[worker] = part[step]
                    given.append((element, list(states)))
        return given

    def whole(self) -> list[list[bytes]]:
        """The global batches of all passes."""
        return [element for element, _ in self.run_loader(0, 1, 1)]


def share_of(batches: list[list[bytes]], rank: int, share: int) -> list[list[bytes]]:
    """A rank's part of global batches, without those that have nothing for it."""
    parts = [batch[rank * share : (rank + 1) * share] for batch in batches]
    return [part for part in parts if part]


def elements(steps: list[Step]) -> list[list[bytes]]:
    return [element for element, _ in steps]


def is_of_rank(state: State) -> bool:
    return "rank" in find_shuffle(state)[1]


@pytest.mark.parametrize("number", range(example_count(60)))
def test_any_repeated_job_gives_each_record_of_each_pass_once(tmp_path: Path, number: int) -> None:
    """In one order, and after a resume from the state of any step, twice, in other worlds."""
    chance = Random(number)
    counts = [chance.randint(1, 20) for _ in range(3)]
    sizes = [chance.randint(1, 4) for _ in range(3)]
    workers = [chance.randint(1, 5) for _ in range(3)]
    batch = lcm(*sizes) * chance.randint(1, 3)
    job = Job(
        indexed(tmp_path, numbered(counts)),
        chance.randint(1, 5),
        quality=chance.choice(["exact", "blocks"]),
        global_batch_size=batch,
        even=chance.choice([None, "drop", "pad", "cycle"]),
    )
    rest = job.whole()
    state = None
    at = 0
    for size, readers in zip(sizes, workers, strict=True):
        share = batch // size
        runs = [job.run_loader(rank, size, readers, state=state) for rank in range(size)]
        for rank, run in enumerate(runs):
            assert elements(run) == share_of(rest, rank, share)
        if not runs[-1]:
            return
        at = chance.randrange(len(runs[-1]))
        # A loader may save the states of its workers less often than it is asked for its own.
        since = 0 if readers == 1 else chance.randint(0, min(at, 3))
        saved = [job_state(run[at - since][1], since, before=at - since + 1) for run in runs]
        if any(map(is_of_rank, saved)):
            check_own_states(job, runs, saved, at)
            return
        assert saved == saved[:1] * size
        rest, state = rest[at + 1 :], saved[0]


def check_own_states(job: Job, runs: list[list[Step]], saved: list[State], at: int) -> None:
    """Ranks that are at different steps resume from their own states, and from no other."""
    size = len(runs)
    for rank, (run, state) in enumerate(zip(runs, saved, strict=True)):
        assert elements(job.run_loader(rank, size, 2, state=state)) == elements(run[at + 1 :])
        if is_of_rank(state):
            with pytest.raises(PositionMismatchError, match=f"of rank {rank} of {size}"):
                job.run_loader((rank + 1) % size, size, 1, state=state)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    return indexed(tmp_path_factory.mktemp("data"), numbered([9, 0, 7]))


def test_workers_whose_turn_does_not_come_in_the_first_pass_read_in_later_ones(
    data: Indexed,
) -> None:
    """Each of three workers has one pass of three; endless, too."""
    job = Job(data, 6, quality="exact", global_batch_size=16)
    assert elements(job.run_loader(0, 1, 3)) == job.whole()
    endless = Job(data, -1, quality="exact", global_batch_size=16)
    assert elements(endless.run_loader(0, 1, 3, most=2)) == job.whole()


def test_the_parts_of_a_concatenation_go_on_in_turn_as_well(data: Indexed) -> None:
    """Their states of a job are exact, too, up to the end of a part."""

    class TwoParts(Job):
        def dataset(self, rank: int, size: int) -> Dataset[Any]:
            one, two = (
                self.data.shuffled(seed=seed, **self.told, rank=rank, world_size=size)
                for seed in (1, 2)
            )
            return one.concatenate(two).with_options(epoch=0).repeat(2)

    job = TwoParts(data, 2, quality="exact", global_batch_size=6)
    whole, run = job.whole(), job.run_loader(0, 1, 2)
    assert elements(run) == whole
    for at, (_, states) in enumerate(run, 1):
        rest = job.run_loader(0, 1, 3, state=job_state(states))
        assert elements(rest) == whole[at:]
    with pytest.raises(ValueError, match="more steps were taken"):
        job_state(run[1][1], steps=3, before=2)


def test_a_state_from_which_records_would_come_twice_is_refused(data: Indexed) -> None:
    """Workers whose elements are several steps are not at the same step, unless each has given the
    same number of elements.
    """

    class Batched(Job):
        def dataset(self, rank: int, size: int) -> Dataset[Any]:
            return super().dataset(rank, size).batch(2)

    job = Batched(data, 1, quality="exact")
    run = job.run_loader(0, 1, 2)
    with pytest.raises(ValueError, match=r"records would come twice.*global_batch_size="):
        job_state(run[0][1])
    records = [record for element, _ in run[2:] for record in element]
    rest = job.run_loader(0, 1, 1, state=job_state(run[1][1]))
    assert sorted(record for element, _ in rest for record in element) == sorted(records)
    with pytest.raises(ValueError, match=r"4 steps make 2 elements.*snapshot_every_n_steps=1"):
        job_state(run[1][1], steps=1, before=2)


def as_saved_before(state: State) -> State:
    """A worker's state as earlier releases saved it, which did not number the steps of a job."""
    position = dict(state["position"])
    epoch = position["source"]
    shuffle = {key: value for key, value in epoch["inner"]["source"].items() if key != "steps"}
    position["source"] = {**epoch, "inner": {**epoch["inner"], "source": shuffle}}
    saved = {**state, "position": position}
    del saved["digest"]
    return {**saved, "digest": digest_state(saved)}


def test_states_of_workers_of_earlier_releases_go_on_as_these_did(data: Indexed) -> None:
    """Each pass begins with worker 0 there: workers at different passes share each one's steps as
    before, in later passes and states, too.
    """
    job = Job(data, 5, quality="exact", global_batch_size=6)
    whole = job.whole()  # of three steps in each pass
    earlier = []
    for worker, own in enumerate(([0, 2], [1])):
        # The first pass is the same in all releases.
        first = job.run_loader(0, 1, 2)[:3]
        state = as_saved_before(first[-1][1][worker])
        steps = [3 * number + step for number in range(1, 5) for step in own]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(source, "worker_here", partial(tuple, (worker, 2)))
            found = list(job.run_worker(0, 1, state, None))[1:]
            assert [element for element, _ in found] == [whole[step] for step in steps]
            for number, (_, later) in zip(count(1), found, strict=False):
                assert as_saved_before(later) == later
                rest = list(job.run_worker(0, 1, later, None))[1:]
                assert [element for element, _ in rest] == [whole[step] for step in steps[number:]]
        earlier.append([state, *(state for _, state in found)])
    assert job_state([earlier[0][0], earlier[1][0]])  # both are in the first pass
    with pytest.raises(ValueError, match=r"workers in different passes.*load_state_dict"):
        job_state([earlier[0][0], earlier[1][1]])


def test_a_repeat_whose_ranks_come_to_different_steps_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Before its first step, and not where the ranks have as many steps, or where nothing is
    repeated.
    """
    job = Job(indexed(tmp_path, numbered([97])), 2, quality="exact", global_batch_size=24)
    once = job.data.shuffled(**job.told, rank=0, world_size=3)
    assert len(list(once)) == 5
    assert [len(job.run_loader(rank, 2, 1)) for rank in range(2)] == [10, 8]
    assert "only resume from its own state: pass even='drop'" in caplog.text
    caplog.clear()
    for even in ("drop", "pad", "cycle"):
        equal = Job(job.data, 2, **job.told, even=even)
        assert len({len(equal.run_loader(rank, 3, 1)) for rank in range(3)}) == 1
    assert "its own state" not in caplog.text
