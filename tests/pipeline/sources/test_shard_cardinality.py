"""cardinality() and len() of shards: where a manifest or an index says how many records there are."""

import operator
from pathlib import Path
from typing import Any

import pytest

from streamrec import Dataset, NotFoundError, TFRecordDataset
from streamrec.pipeline import UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.shards.distribute import Distribute
from tests.pipeline.distributed_shards import Indexed, folder_of, indexed, numbered, of

COUNTS = [7, 0, 9, 5]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Indexed:
    path: Path = tmp_path_factory.mktemp("data")
    return indexed(path, numbered(COUNTS))


@pytest.mark.parametrize("even", ["pad", "drop", "cycle"])
@pytest.mark.parametrize("world", [1, 4, 30])
def test_of_even_shares(even: Any, world: int) -> None:
    folder = folder_of(COUNTS)
    for rank in (0, world - 1):
        dataset = of(folder, rank, world, even=even, manifest=f"{folder}/manifest.json")
        assert len(dataset) == len(list(dataset))
        assert len(dataset.batch(2)) == len(list(dataset.batch(2)))


def test_of_all_shards_with_a_manifest() -> None:
    folder = folder_of(COUNTS)
    manifest = f"{folder}/manifest.json"
    assert len(of(folder, 0, 1, manifest=manifest).batch(4)) == 6
    assert len(TFRecordDataset(f"{folder}/train-000").distribute(manifest=manifest, even="drop")) == 7
    assert (
        len(
            TFRecordDataset(f"{folder}/*-*")
            .distribute(even="drop", manifest=manifest)
            .with_options(rank=1, world_size=4)
        )
        == 5
    )


def test_where_nobody_knows() -> None:
    folder = folder_of(COUNTS)
    assert of(folder, 0, 2, manifest=f"{folder}/manifest.json").cardinality() == UNKNOWN_CARDINALITY
    with pytest.raises(TypeError, match="depends on its data"):
        len(of(folder, 0, 1))
    with pytest.raises(NotFoundError, match=r"none\.json"):
        len(of(folder, 0, 1, manifest=f"{folder}/none.json"))


def test_the_manifest_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`list()` asks for the length of what it is given: each time."""
    folder = folder_of(COUNTS)
    dataset = of(folder, 0, 1, even="drop", manifest=f"{folder}/manifest.json")
    asked: list[Any] = []
    count = Distribute.count
    monkeypatch.setattr(Distribute, "count", lambda *arguments: asked.append(1) or count(*arguments))
    for _ in range(3):
        assert len(list(dataset)) == len(dataset) == len(dataset.batch(1)) == sum(COUNTS)
    assert len(asked) == 1


async def test_in_a_running_loop() -> None:
    folder = folder_of(COUNTS)
    dataset = of(folder, 0, 1, even="drop", manifest=f"{folder}/manifest.json")
    assert len(dataset) == dataset.cardinality() == sum(COUNTS)


def test_on_the_thread_that_reads() -> None:
    """A function of a run may ask for the length of another dataset: it is told where that cannot be had there."""
    folder = folder_of(COUNTS)
    other = of(folder, 0, 1, even="drop", manifest=f"{folder}/manifest.json")

    async def length(number: Any) -> int:
        return operator.length_hint(other, -1)

    async def refused(number: Any) -> int:
        return len(other)

    assert list(Dataset.range(2).map(length)) == [-1, -1]
    with pytest.raises(TypeError, match="this is the thread that reads: ask before the run begins"):
        list(Dataset.range(2).map(refused))
    assert len(other) == sum(COUNTS)
    assert list(Dataset.range(2).map(length)) == [sum(COUNTS)] * 2


@pytest.mark.parametrize("even", [None, "pad", "drop", "cycle"])
@pytest.mark.parametrize("batch", [None, 4, 16, 40])
@pytest.mark.parametrize("world", [1, 4])
def test_of_global_shuffle(data: Indexed, even: Any, batch: int | None, world: int) -> None:
    for rank in range(world):
        dataset = data.shuffled(even=even, global_batch_size=batch).with_options(rank=rank, world_size=world)
        assert len(dataset) == len(list(dataset))
