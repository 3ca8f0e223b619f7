"""What drains a dataset refuses one that has no end, before anything is written; what it is made of does not matter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Dataset, TFRecordDataset

THREE = Dataset.range(3)
SHARDS = TFRecordDataset("shards-*")

ENDLESS: dict[str, Dataset[Any]] = {
    "repeat": THREE.repeat(),
    "repeat of an unknown number": SHARDS.repeat(),
    "counter": Dataset.counter(),
    "random": Dataset.random(seed=1),
    "filter": THREE.repeat().filter(bool),
    "batch and unbatch": THREE.repeat().batch(2).unbatch(),
    "parallel map": THREE.repeat().map(abs, num_parallel_calls=2),
    "shuffle": THREE.repeat().shuffle(4).prefetch(2).cache(),
    "concatenate": THREE.concatenate(SHARDS.repeat()),
    "zip": Dataset.zip((THREE.repeat(), SHARDS.repeat())),
    "interleave": THREE.repeat().interleave(lambda _: THREE),
    "sample": Dataset.sample_from_datasets([THREE.repeat(), THREE], stop_on_empty_dataset=False),
    "skip": THREE.repeat().skip(5),
    "repeat again": THREE.repeat().repeat(2),
}

DRAINS: dict[str, Callable[[Dataset[Any], str], object]] = {
    "write": lambda dataset, place: dataset.write_sync(f"{place}/x-{{shard}}"),
    "save": lambda dataset, place: dataset.save(f"{place}/x"),
    "cache": lambda dataset, place: dataset.cache(f"{place}/x"),
    "reduce": lambda dataset, place: dataset.reduce(0, max),
    "list": lambda dataset, place: list(dataset),
}


@pytest.mark.parametrize("drain", DRAINS)
def test_what_has_no_end_is_refused(tmp_path: Path, drain: str) -> None:
    for name, dataset in ENDLESS.items():
        with pytest.raises(ValueError, match=rf"{drain} would never end: .* has no end; put take\(count\) before it"):
            DRAINS[drain](dataset, str(tmp_path))
            pytest.fail(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (THREE.repeat().take(4), 4),
        (THREE.repeat().filter(bool).take(4), 4),
        (THREE.repeat().take_while(lambda element: element < 2), 2),
        (THREE.repeat().skip(-1), 0),
        (THREE.repeat(0), 0),
        (THREE.repeat(2), 6),
        (Dataset.range(0).repeat(), 0),
        (Dataset.zip((THREE, THREE.repeat())), 3),
        (Dataset.sample_from_datasets([THREE.repeat(), THREE], [0.5, 0.5], stop_on_empty_dataset=True, seed=1), None),
    ],
)
def test_what_has_an_end_is_not(tmp_path: Path, dataset: Dataset[Any], count: int | None) -> None:
    elements = list(dataset)
    assert count is None or len(elements) == count
    dataset.save(f"{tmp_path}/x")
    assert len(list(streamrec.Dataset.load(f"{tmp_path}/x"))) == len(elements)


@pytest.mark.parametrize(
    "dataset",
    [
        THREE.flat_map(lambda _: Dataset.counter()),
        THREE.interleave(lambda _: THREE.repeat(), cycle_length=2).map(abs).batch(2),
        THREE.flat_map(lambda _: Dataset.counter()).shuffle(4).prefetch(1),
        THREE.flat_map(lambda _: Dataset.counter()).repeat(2),
    ],
)
@pytest.mark.parametrize("drain", ["write", "save", "reduce"])
def test_a_function_that_makes_a_dataset_without_an_end(tmp_path: Path, drain: str, dataset: Dataset[Any]) -> None:
    with pytest.raises(ValueError, match=rf"{drain} would never end: .*lambda> makes a dataset that has no end"):
        DRAINS[drain](dataset, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert len(list(dataset.take(3))) == 3
    dataset.take(3).save(f"{tmp_path}/three")
