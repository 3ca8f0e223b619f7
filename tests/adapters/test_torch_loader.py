"""streamrec.torch.Loader: tensors on a device without worker processes, converted ahead of their
turn.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, FixedLenFeature, TFRecordDataset, VarLenFeature
from streamrec.pipeline.engine.ranks import rank_here
from streamrec.pipeline.loading import Epochs
from tests.adapters.conftest import check_states, ids_of, write_examples
from tests.runs import until_error

torch = pytest.importorskip("torch")

from streamrec.torch import IterableDataset, Loader, to_tensors  # noqa: E402

pytestmark = pytest.mark.peer

FEATURES = {
    "id": FixedLenFeature((), np.int64),
    "name": FixedLenFeature((), bytes),
    "seen": VarLenFeature(np.float32),
}


def examples(path: Path, count: int, first: int = 0) -> str:
    rows = (
        {"id": n, "name": b"n%d" % n, "seen": [n / 2] * (n % 3)}
        for n in range(first, first + count)
    )
    return write_examples(path, rows)


def test_columns_become_tensors_without_a_copy(tmp_path: Path) -> None:
    given: list[Any] = []

    def kept(batch: Any) -> Any:
        given.append(batch)
        return batch

    dataset = (
        TFRecordDataset(examples(tmp_path / "a", 5)).batch(3).parse_example(FEATURES).map(kept)
    )
    batches = list(Loader(dataset))
    assert [batch["id"].tolist() for batch in batches] == [[0, 1, 2], [3, 4]]
    assert batches[1]["name"] == [b"n3", b"n4"]
    assert torch.equal(batches[0]["seen"].values, torch.tensor([0.5, 1.0, 1.0]))
    for batch, arrays in zip(batches, given, strict=True):
        assert batch["id"].data_ptr() == arrays["id"].ctypes.data
        assert batch["seen"].values.data_ptr() == arrays["seen"].values.ctypes.data


def test_layouts_and_dtypes_that_torch_does_not_take_are_copied() -> None:
    types = pytest.importorskip("ml_dtypes")
    arrays = {
        "bfloat16": np.array([1.5, -2.0], types.bfloat16),
        "float8": np.array([1.5, -2.0], types.float8_e5m2),
        "backwards": np.arange(4)[::-1],
        "big_endian": np.arange(4).astype(">i4"),
        "read_only": np.broadcast_to(np.float32(1), (2, 2)),
    }
    [loaded] = Loader(Dataset.from_tensor_slices([0]).map(lambda _: arrays))
    assert loaded["bfloat16"].dtype == torch.bfloat16
    assert loaded["float8"].dtype == torch.float8_e5m2
    assert loaded["bfloat16"].float().tolist() == loaded["float8"].float().tolist() == [1.5, -2.0]
    assert loaded["backwards"].tolist() == [3, 2, 1, 0]
    assert loaded["big_endian"].tolist() == [0, 1, 2, 3]
    assert loaded["read_only"].tolist() == [[1, 1], [1, 1]]


def test_a_state_of_any_step_resumes_there(tmp_path: Path) -> None:
    names = [examples(tmp_path / f"{shard}", 9 + shard, 100 * shard) for shard in range(3)]
    dataset = TFRecordDataset(names, num_parallel_reads=2).distribute().shuffle(7, seed=1).batch(4)
    dataset = dataset.parse_example(FEATURES)
    assert sorted(ids_of(Loader(dataset))) == sorted(
        100 * shard + n for shard in range(3) for n in range(9 + shard)
    )
    check_states(lambda: Loader(dataset.with_options(epoch=0)))


def test_an_iterator_that_is_never_used_is_not_an_epoch() -> None:
    dataset = Dataset.range(20).shuffle(20, seed=1).batch(4)
    whole = [[batch.tolist() for batch in dataset.with_options(epoch=epoch)] for epoch in range(3)]
    loader = Loader(dataset)
    _ = iter(loader)
    first = iter(loader)
    second = iter(loader)
    assert [batch.tolist() for batch in first] == whole[0]
    assert [batch.tolist() for batch in second] == whole[1]
    begun = iter(loader)
    assert next(begun).tolist() == whole[2][0]
    again = Loader(dataset)
    again.load_state_dict(loader.state_dict())
    iter(again), iter(again)
    assert [batch.tolist() for batch in again] == whole[2][1:]


def epochs_trained(
    loader: Any, stop: tuple[int, int] | None
) -> tuple[list[tuple[int, int]], dict[str, Any]]:
    """The epoch and number of each batch of a training loop over three epochs, and the state where
    it is killed.

    `stop` is the epoch, and the number of its batches before the run is killed.
    """
    trained: list[tuple[int, int]] = []
    if stop == (loader.epoch, 0):
        return trained, loader.state_dict()
    for epoch in range(loader.epoch, 3):
        for batch in loader:
            trained.append((epoch, int(batch[0])))
            if stop == (epoch, sum(one == epoch for one, _ in trained)):
                return trained, loader.state_dict()
        if stop == (epoch, 5):
            return trained, loader.state_dict()
    return trained, loader.state_dict()


@pytest.mark.parametrize("stop", [(0, 0), (0, 1), (1, 2), (1, 4), (1, 5), (2, 4), (2, 5)])
@pytest.mark.parametrize("kind", [Loader, IterableDataset])
def test_a_resumed_loop_trains_the_number_of_epochs_that_was_asked_for(
    stop: tuple[int, int], kind: Any
) -> None:
    """Killed before the first batch, within an epoch, after its last batch (4), and at its end
    (5).
    """
    dataset = Dataset.range(8).batch(2)
    killed, state = epochs_trained(kind(dataset), stop)
    resumed = kind(dataset)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    rest, _ = epochs_trained(resumed, None)
    assert killed + rest == [(epoch, number) for epoch in range(3) for number in (0, 2, 4, 6)]
    assert resumed.epoch == 3


@pytest.mark.parametrize("seed", [1, None])
def test_a_state_after_the_end_is_the_start_of_the_next_epoch(seed: int | None) -> None:
    dataset = Dataset.range(20).shuffle(20, seed=seed).batch(4)
    loader, again = Loader(dataset), Loader(dataset.with_options(epoch=0))
    before = [batch.tolist() for batch in loader]
    state = json.loads(json.dumps(loader.state_dict()))
    second = [batch.tolist() for batch in loader]
    again.load_state_dict(state)
    assert state["epoch"] == 1
    assert [batch.tolist() for batch in again] == second != before
    assert [batch.tolist() for batch in again] == [batch.tolist() for batch in loader]


def test_a_state_after_an_error_belongs_to_its_epoch() -> None:
    def checked(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    loader = Loader(Dataset.range(5).map(checked))
    batches = iter(loader)
    with pytest.raises(ValueError, match="three"):
        list(batches)
    assert next(batches, None) is None
    assert loader.state_dict()["epoch"] == 0


def test_ranks_read_each_record_once_and_need_distribute(tmp_path: Path) -> None:
    name = examples(tmp_path / "a", 30)
    whole = TFRecordDataset(name).batch(4).parse_example(FEATURES)
    with pytest.raises(ValueError, match=r"2 processes .* would each read all"):
        iter(Loader(whole.with_options(rank=0, world_size=2)))
    assigned = TFRecordDataset(name).distribute().batch(4).parse_example(FEATURES)
    ranks = [assigned.with_options(rank=rank, world_size=2) for rank in range(2)]
    assert sorted(record for rank in ranks for record in ids_of(Loader(rank))) == list(range(30))


def test_a_loader_has_a_length_where_the_dataset_has_one(tmp_path: Path) -> None:
    records = TFRecordDataset(examples(tmp_path / "a", 30)).distribute()
    with pytest.raises(TypeError, match="how many elements it has depends on its data"):
        len(Loader(records.batch(4).parse_example(FEATURES)))
    sized, optimizer = (
        Dataset.range(30).batch(4),
        torch.optim.SGD([torch.zeros(1, requires_grad=True)]),
    )
    for loader in (
        Loader(sized),
        torch.utils.data.DataLoader(IterableDataset(sized), batch_size=None),
    ):
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, epochs=2, steps_per_epoch=len(loader)
        )
        assert schedule.total_steps == 2 * len(list(loader)) == 16


def test_a_device_that_is_not_there_is_refused() -> None:
    [moved] = Loader(Dataset.from_tensor_slices(np.arange(6).reshape(1, 6)), device="meta")
    assert moved.device.type == "meta"
    if not torch.cuda.is_available():
        with pytest.raises(
            ValueError, match="torch finds 0 CUDA devices here; device='cpu' works anywhere"
        ):
            Loader(Dataset.range(1), device="cuda")
    with pytest.raises(ValueError, match="prefetch is -1"):
        Loader(Dataset.range(1), prefetch=-1)


def test_a_batch_that_cannot_be_moved_comes_after_those_before_it() -> None:
    times = Dataset.range(6).map(
        lambda number: {"t": np.datetime64("2026-01-01") if number == 4 else number}
    )
    loaded: Epochs[Any] = Epochs(times, to_tensors, lambda tensors: tensors, 3, rank_here)
    seen, _ = until_error(loaded, TypeError, "column 't': torch has no dtype datetime64")
    assert [int(element["t"]) for element in seen] == [0, 1, 2, 3]
