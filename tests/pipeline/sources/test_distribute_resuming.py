"""distribute: epochs, and states: whose they are, and that they resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.errors import CacheError, PositionMismatchError
from tests.pipeline.distributed_shards import folder_of, of
from tests.servers.resuming import assert_resumes_everywhere, stop_after


def test_repeat_deals_once_and_has_the_same_share_again() -> None:
    folder = folder_of([20, 5])
    own = list(of(folder, 1, 2))
    assert own
    assert list(of(folder, 1, 2).repeat(3)) == own * 3


@pytest.mark.parametrize(
    ("counts", "rank", "world", "options"),
    [
        ([20, 5], 1, 3, {}),
        ([9, 9, 9], 0, 2, {}),
        ([12, 5], 2, 3, {"even": "pad"}),
        ([6, 5], 0, 3, {"even": "cycle"}),
        ([12, 5], 1, 2, {"even": "drop"}),
        ([2], 3, 7, {"even": "pad"}),
    ],
)
@pytest.mark.parametrize("cycle", [1, 2])
@pytest.mark.parametrize("batch", [None, 2])
def test_resumes(
    counts: list[int], rank: int, world: int, options: dict[str, Any], cycle: int, batch: int | None
) -> None:
    folder = folder_of(counts)
    if options:
        options = {**options, "manifest": f"{folder}/manifest.json"}
    dataset: Dataset[Any] = of(folder, rank, world, cycle, **options).repeat(2)
    assert_resumes_everywhere(dataset if batch is None else dataset.batch(batch))


@pytest.mark.parametrize("options", [{}, {"even": "pad"}])
def test_shuffled_shares_resume_by_reference(options: dict[str, Any]) -> None:
    folder = folder_of([12, 5, 9], compressed=[False, True])
    if options:
        options = {**options, "manifest": f"{folder}/manifest.json"}
    dataset = of(folder, 1, 3, 2, **options).shuffle(4, seed=1).repeat(2)
    assert sorted(dataset) == sorted(list(of(folder, 1, 3, 2, **options)) * 2)
    assert_resumes_everywhere(dataset)
    elements = dataset.iterate()
    next(elements)
    assert '"offset": [' in json.dumps(elements.state_dict())  # references, and no numbers of elements
    elements.close()


def test_a_shuffled_state_of_another_rank_is_refused() -> None:
    folder = folder_of([20, 20])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute().shuffle(5, seed=1)
    elements = dataset.with_options(rank=0, world_size=2).iterate()
    next(elements)
    resumed = dataset.with_options(rank=1, world_size=2).iterate(elements.state_dict())
    with pytest.raises(PositionMismatchError, match="saved by reader 0 of 2, and this is reader 1 of 2"):
        next(resumed)
    elements.close()


def test_an_epoch_is_shuffled_as_a_repeat_shuffles_it() -> None:
    folder = folder_of([20, 5])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute(0, 1).shuffle(10, seed=3)
    epochs = [list(dataset.with_options(epoch=epoch)) for epoch in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] + epochs[1] + epochs[2] == list(dataset.repeat(3))


def test_resumes_in_any_order() -> None:
    folder = folder_of([20, 5, 8])
    dataset = TFRecordDataset(f"{folder}/train-*", cycle_length=2, deterministic=False).distribute(1, 2)
    own = sorted(dataset)
    for stop in (0, 3, len(own)):
        elements = dataset.iterate()
        before = [next(elements) for _ in range(stop)]
        assert sorted([*before, *dataset.iterate(elements.state_dict())]) == own


def test_a_state_of_another_rank_or_of_other_shards_is_refused() -> None:
    folder = folder_of([20, 5])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute()
    _, state = stop_after(dataset.with_options(rank=0, world_size=2), 1)
    with pytest.raises(PositionMismatchError, match="saved by reader 0 of 2, and this is reader 1 of 2"):
        list(dataset.with_options(rank=1, world_size=2).iterate(state))
    with pytest.raises(PositionMismatchError, match="reader 0 of 2, and this is reader 0 of 3"):
        list(dataset.with_options(rank=0, world_size=3).iterate(state))
    with pytest.raises(
        PositionMismatchError, match=r"it had Distribute\(even=None\), and now there is Distribute\(Rank"
    ):
        of(folder, 0, 2).iterate(state)
    with fsspec.open(f"{folder}/train-000", "ab") as file:
        file.write(encode_records([b"more"]))
    dataset = TFRecordDataset(f"{folder}/train-*").distribute()
    with pytest.raises(PositionMismatchError, match="names, sizes or numbers of records"):
        list(dataset.with_options(rank=0, world_size=2).iterate(state))


def test_the_cache_of_another_reader_is_refused(tmp_path: Path) -> None:
    folder = folder_of([20, 5])
    dataset = TFRecordDataset(f"{folder}/train-*").distribute().cache(tmp_path / "cache")
    own = list(dataset.with_options(rank=0, world_size=2))
    assert list(dataset.with_options(rank=0, world_size=2)) == own
    with pytest.raises(CacheError):
        list(dataset.with_options(rank=1, world_size=2))


def test_the_state_of_an_epoch_goes_on_in_it() -> None:
    folder = folder_of([3])
    elements = TFRecordDataset(f"{folder}/train-*").with_options(epoch=5).iterate()
    state = elements.state_dict()
    assert state["epoch"] == 5
    assert TFRecordDataset(f"{folder}/train-*").iterate(state).state_dict()["epoch"] == 5
