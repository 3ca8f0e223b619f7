"""Loops of Lightning, Fabric and Ray Train, and a bare one, of two ranks: each record is trained on
once, and a resumed run gets the batches of one that was not stopped.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset
from streamrec.errors import PositionMismatchError
from tests.adapters.test_trainer import RANKS, run_ranks

torch = pytest.importorskip("torch")

from streamrec.torch import Loader  # noqa: E402
from tests.adapters.loops import batches  # noqa: E402

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

RECORDS = 320


def row(number: int) -> dict[str, Any]:
    return {"x": [number / RECORDS, 1.0], "label": number % 2, "id": number}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    Dataset.range(RECORDS).map(row).write_sync(
        f"{folder}/train-{{shard:02d}}",
        num_shards=4,
        manifest=f"{folder}/manifest.json",
        batched=False,
    )
    return folder


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each loop got, by its name, for each rank."""
    pytest.importorskip("lightning")
    folder = tmp_path_factory.mktemp("found")
    by_name: dict[str, list[Any]] = {}
    for line in sorted(run_ranks(["-m", "tests.adapters.loops", str(data), "."], folder)):
        name, result = json.loads(line[2:])
        by_name.setdefault(name, []).append(result)
    assert {len(results) for results in by_name.values()} == {RANKS}
    return by_name


def each_once(batches_of_ranks: list[Any]) -> bool:
    """Whether the ranks together got each record once."""
    ids = [number for batches in batches_of_ranks for batch in batches for number in batch]
    return sorted(ids) == list(range(RECORDS))


def test_uneven_ranks_end_with_join(found: dict[str, Any]) -> None:
    """Of the records that the page's filter keeps, rank 0 has more than rank 1."""
    (first, weights), (second, others) = found["bare"]
    assert len(first) != len(second)
    kept = [number for number in range(RECORDS) if number % 8 < 5]
    ids = [number for batches in (first, second) for batch in batches for number in batch]
    assert sorted(ids) == sorted(2 * kept)
    assert weights == others


def test_fabric_reads_each_record_once_and_resumes(found: dict[str, Any]) -> None:
    for workers in ("0 workers", "1 workers"):
        assert each_once([loaders[workers] for loaders, *_ in found["fabric"]])
    for _, whole, stopped, resumed in found["fabric"]:
        assert len(stopped) == 13
        assert stopped + resumed == whole
    assert each_once([whole for _, whole, *_ in found["fabric"]])


def test_lightning_resumes_both_ranks_without_hooks(found: dict[str, Any]) -> None:
    for whole, stopped, resumed in found["trainer"]:
        assert len(stopped) == 13
        assert stopped + resumed == whole
    assert each_once([whole[:20] for whole, *_ in found["trainer"]])


def test_states_of_all_ranks_need_a_group_and_as_many_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = iter(alone := Loader(Dataset.range(10)))
    assert [int(next(run)) for _ in range(3)] == [0, 1, 2]
    state = alone.state_dict()
    assert Loader(Dataset.range(10), gather_states=True).state_dict() == {}
    with pytest.raises(PositionMismatchError, match=r"saved by 3 ranks, and this is rank 0 of 1"):
        Loader(Dataset.range(10)).load_state_dict({"states_of_ranks": [state] * 3})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    gathers = Loader(Dataset.range(10), gather_states=True)
    with pytest.raises(RuntimeError, match=r"rank 1 of 2, but torch\.distributed has no process"):
        gathers.state_dict()


def test_a_length_asked_before_the_process_group_fixes_no_rank(
    data: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise each rank would read everything, without a word."""
    loaders = [Loader(batches(str(data))) for _ in range(2)]
    assert [len(loader) for loader in loaders] == [40, 40]
    monkeypatch.setenv("WORLD_SIZE", "2")
    ids = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        assert len(loader) == 20
        ids += [number for batch in loader for number in batch["id"].tolist()]
        assert loader.epoch == 1
    assert sorted(ids) == list(range(RECORDS))
    assert "call init_process_group, or what does, before len(loader)" in caplog.text


def test_a_loader_is_not_prepared_by_ray_train() -> None:
    assert not hasattr(Loader(Dataset.range(10)), "sampler")
    with pytest.raises(AttributeError, match=r"Do not prepare it.*iterate the Loader itself"):
        _ = Loader(Dataset.range(10)).sampler
