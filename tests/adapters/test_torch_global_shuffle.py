"""A global shuffle in PyTorch: loader workers, StatefulDataLoader, and jobs that resume with other
numbers of them.
"""

import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("torchdata")

from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import streamrec.torch
from tests.pipeline.stored_shards import Indexed, indexed, numbered

pytestmark = [
    pytest.mark.peer,
    pytest.mark.filterwarnings("ignore"),  # of torchdata, on the number of workers
]

BATCH = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    return indexed(tmp_path_factory.mktemp("data"), numbered([90, 0, 110, 33, 5]))


def shuffled(data: Indexed, rank: int, world_size: int) -> streamrec.Dataset[Any]:
    return data.shuffled(
        quality="blocks", global_batch_size=BATCH, rank=rank, world_size=world_size
    )


def torch_dataset(data: Indexed, rank: int, world_size: int) -> streamrec.torch.IterableDataset:
    return streamrec.torch.IterableDataset(shuffled(data, rank, world_size))


def loader(dataset: Any, workers: int) -> StatefulDataLoader[Any]:
    return StatefulDataLoader(dataset, batch_size=None, num_workers=workers)


def epoch_of_one_process(data: Indexed, epoch: int = 0) -> list[list[bytes]]:
    return [list(frames) for frames in shuffled(data, 0, 1).with_options(epoch=epoch)]


@pytest.mark.parametrize("workers", [0, 1, 3, 5])
def test_workers_do_not_change_the_batches(data: Indexed, workers: int) -> None:
    """Ranks do not either: each has its slots of each global batch; the next iteration is the next
    epoch.
    """
    ranks = [
        DataLoader(torch_dataset(data, rank, 2), batch_size=None, num_workers=workers)
        for rank in range(2)
    ]
    for epoch in range(2):
        first, second = (list(rank) for rank in ranks)
        second += [[]] * (len(first) - len(second))
        assert [one + two for one, two in zip(first, second, strict=True)] == epoch_of_one_process(
            data, epoch
        )


@pytest.mark.parametrize("workers", [0, 2, 5])
def test_a_loader_resumes(data: Indexed, workers: int) -> None:
    """From its own state, after any step, also if its workers are at different steps."""
    whole = epoch_of_one_process(data)
    for step in (1, 5, 6):
        begun = loader(torch_dataset(data, 0, 1), workers)
        steps: Iterator[Any] = iter(begun)
        assert list(islice(steps, step)) == whole[:step]
        state = json.loads(json.dumps(begun.state_dict()))
        resumed = loader(torch_dataset(data, 0, 1), workers)
        resumed.load_state_dict(state)
        assert list(resumed) == whole[step:]


@pytest.mark.parametrize(
    ("workers", "ranks", "others"), [(2, 3, 0), (0, 4, 2), (3, 2, 5), (5, 2, 2)]
)
def test_a_job_continues_with_other_ranks_and_workers(
    data: Indexed, workers: int, ranks: int, others: int
) -> None:
    """All ranks have the same state; the epoch after it is complete."""
    whole, step = epoch_of_one_process(data), 5
    states = []
    for rank in range(2):
        begun = loader(torch_dataset(data, rank, 2), workers)
        steps: Iterator[Any] = iter(begun)
        list(islice(steps, step))
        states.append(streamrec.torch.job_state(begun.state_dict()))
    assert states[0] == states[1]
    parts, following = [], []
    for rank in range(ranks):
        dataset = torch_dataset(data, rank, ranks)
        dataset.load_state_dict(json.loads(json.dumps(states[0])))
        resumed = loader(dataset, others)
        parts.append(list(resumed))
        following.append(list(resumed))
    for found, wanted in ((parts, whole[step:]), (following, epoch_of_one_process(data, 1))):
        longest = max(map(len, found))
        steps_of = [
            [part[index] for part in found if index < len(part)] for index in range(longest)
        ]
        assert [[record for one in each for record in one] for each in steps_of] == wanted


@pytest.mark.parametrize(("workers", "step"), [(2, 1), (3, 1), (3, 2), (3, 4)])
def test_a_resumed_job_is_saved_again_before_all_its_workers_have_begun(
    data: Indexed, workers: int, step: int
) -> None:
    """Each step comes once, also if the job is killed again after its first one."""
    whole = epoch_of_one_process(data)
    begun = loader(torch_dataset(data, 0, 1), 2)
    list(islice(begun, 3))
    for first in (3, 3 + step):
        dataset = torch_dataset(data, 0, 1)
        dataset.load_state_dict(streamrec.torch.job_state(begun.state_dict()))
        begun = loader(dataset, workers)
        assert list(islice(iter(begun), step)) == whole[first : first + step]


@pytest.mark.parametrize("every", [1, 4])
def test_a_repeated_job_continues_with_other_workers(data: Indexed, every: int) -> None:
    """The 20 steps of a pass are not a multiple of three workers, which go on in turn, so each step
    comes once, in order; also if workers save their states less often.
    """

    def repeated() -> streamrec.torch.IterableDataset:
        return streamrec.torch.IterableDataset(shuffled(data, 0, 1).repeat(3))

    whole = [list(step) for step in repeated()]
    first = StatefulDataLoader(
        repeated(), batch_size=None, num_workers=3, snapshot_every_n_steps=every
    )
    begun, step = iter(first), 0
    for more in (1, 4, 17, 19):
        assert list(islice(begun, more)) == whole[step : step + more]
        step += more
        dataset = repeated()
        if step >= every:
            dataset.load_state_dict(streamrec.torch.job_state(first.state_dict()))
            assert list(loader(dataset, 2)) == whole[step:]


def test_states_of_other_workers_are_refused(data: Indexed) -> None:
    """The error names the function that makes a state for any number of workers."""
    begun = loader(torch_dataset(data, 0, 1), 2)
    steps: Iterator[Any] = iter(begun)
    next(steps)
    workers = begun.state_dict()["_snapshot"]["_worker_snapshots"]
    dataset = torch_dataset(data, 0, 1)
    dataset.load_state_dict(workers["worker_0"]["dataset_state"])
    with pytest.raises(streamrec.errors.PositionMismatchError, match="job_state"):
        list(dataset)


def test_job_state_refuses_stages_that_count_and_pipelines_without_a_global_shuffle(
    data: Indexed,
) -> None:
    counting = streamrec.torch.IterableDataset(data.shuffled(rank=0, world_size=1).take(9))
    next(iter(counting))
    with pytest.raises(ValueError, match="counts elements"):
        streamrec.torch.job_state(counting.state_dict())
    plain = streamrec.torch.IterableDataset(streamrec.TFRecordDataset(data.pattern))
    next(iter(plain))
    with pytest.raises(ValueError, match="not the state of a global shuffle"):
        streamrec.torch.job_state(plain.state_dict())
