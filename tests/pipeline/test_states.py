"""Saved states: small, of one version, and refused by one error if they are not as they were
saved.
"""

import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.engine.states import FORMAT, format_names
from tests.servers.resuming import stop_after

STATES = Path(__file__).parent / "states"
"""States that this release saved, by the names of the pipelines; `write_states` writes them."""


def filesystem(folder: str) -> DirFileSystem:
    """Shards whose names and versions are the same on each machine."""
    for shard in range(5):
        path = Path(folder) / f"x-{shard}.tfrecord"
        path.write_bytes(encode_records([b"%d.%d" % (shard, number) for number in range(40)]))
        os.utime(path, (1_700_000_000 + shard, 1_700_000_000 + shard))
    return DirFileSystem(folder, LocalFileSystem())


def generated() -> Any:
    yield from range(30)


def pairs(number: Any) -> Dataset[Any]:
    return Dataset.range(int(number), int(number) + 3)


def doubled(number: Any) -> Any:
    return number * 2


def shards(files: Any) -> Dataset[Any]:
    return TFRecordDataset("x-*.tfrecord", num_parallel_reads=3, filesystem=files)


PIPELINES: dict[str, Callable[[Any], Dataset[Any]]] = {
    "shards": lambda files: shards(files).batch(7),
    "shuffled": lambda files: shards(files).shuffle(30, seed=5).repeat(2).batch(4),
    "names": lambda files: Dataset.list_files(
        "x-*.tfrecord", shuffle=True, seed=3, filesystem=files
    ),
    "numbers": lambda files: Dataset.range(50).shuffle(10, seed=1).batch(3).repeat(2),
    "mapped": lambda files: Dataset.range(40).map(doubled, 2).filter(bool).enumerate(),
    "zipped": lambda files: Dataset.zip(Dataset.range(30), Dataset.range(100).skip(5)).batch(4),
    "sampled": lambda files: Dataset.sample_from_datasets(
        [Dataset.range(20), Dataset.range(50, 90)], [1, 2], 7
    ),
    "interleaved": lambda files: Dataset.range(12).interleave(pairs, 3).batch(2),
    "generated": lambda files: Dataset.from_generator(generated).cache().repeat(2).prefetch(3),
    "buckets": lambda files: (
        Dataset.range(1, 30)
        .map(lambda number: np.zeros(int(number) % 5))
        .bucket_by_sequence_length(len, [2, 4], [2, 3, 2])
    ),
}


def described(element: Any) -> str:
    if isinstance(element, np.ndarray):
        return repr(element.tolist())
    if isinstance(element, tuple):
        return repr([described(part) for part in element])
    return repr(list(element)) if hasattr(element, "spans") else repr(element)


def rest_of_run(dataset: Dataset[Any], state: Any) -> list[str]:
    with dataset.iterate(state) as elements:
        return [described(element) for element in elements]


def state_after(dataset: Dataset[Any], count: int) -> Any:
    return stop_after(dataset, count)[1]


@pytest.mark.parametrize("name", PIPELINES)
def test_states_of_this_release_are_read(tmp_path: Path, name: str) -> None:
    kept = json.loads((STATES / f"{name}.json").read_text())
    dataset = PIPELINES[name](filesystem(str(tmp_path)))
    assert kept["state"]["format"] == FORMAT
    assert rest_of_run(dataset, kept["state"]) == kept["rest"]


def mutated(state: Any, rng: random.Random) -> Any:
    """A state of which something was changed, taken out or cut."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        )
        for key, part in items:
            places.append((value, key))
            walk(part)

    copy = json.loads(json.dumps(state))
    if rng.random() < 0.1:
        return rng.choice([[], {}, "state", 5, {"format": FORMAT}, copy["position"], [copy]])
    walk(copy)
    holder, key = rng.choice(places)
    way = rng.randrange(4)
    if way == 0:
        del holder[key]
    elif way == 1:
        holder[key] = rng.choice([None, -1, 10**12, "x", [], {}, 1.5, True])
    elif way == 2 and isinstance(holder[key], int):
        holder[key] += rng.choice([-1, 1, 1000])
    else:
        other, place = rng.choice(places)
        holder[key] = (
            json.loads(json.dumps(other[place]))
            if place in other or isinstance(other, list)
            else None
        )
    return copy


@pytest.mark.parametrize("name", PIPELINES)
def test_a_hundred_mutations_of_each(tmp_path: Path, name: str) -> None:
    """Each is an error of one type, at once, or changes nothing."""
    dataset = PIPELINES[name](filesystem(str(tmp_path)))
    rng = random.Random(name)
    for _ in range(100):
        state = state_after(dataset.with_options(epoch=0), rng.randrange(1, 5))
        changed = mutated(state, rng)
        if changed == state:
            continue
        with pytest.raises(PositionMismatchError):
            dataset.iterate(changed)


def test_versions_say_what_to_do() -> None:
    state = state_after(Dataset.range(5), 1)
    for wrong, told in (
        ({**state, "format": 3}, "has format 3, but .* reads format 2: update"),
        ({**state, "format": 1}, "has format 1, but .* reads format 2: start over without it"),
        ({**state, "epoch": 7}, "a value differs or is missing"),
    ):
        with pytest.raises(PositionMismatchError, match=told):
            Dataset.range(5).iterate(wrong)


def test_a_state_that_json_cannot_hold_is_refused() -> None:
    deep: Any = {}
    for _ in range(100_000):
        deep = {"deep": deep}
    cycle: dict[str, Any] = {}
    cycle["again"] = cycle
    state = state_after(Dataset.range(5), 1)
    for part in (
        {"position": deep},
        {"position": cycle},
        {1: 2},
        {"format": deep},
        {"format": 10**400},
    ):
        with pytest.raises(PositionMismatchError):
            Dataset.range(5).iterate({**state, **part})  # type: ignore[dict-item]
    while deep:  # level by level: freeing all at once would need as deep a stack
        deep = deep.get("deep")


def test_states_and_texts_of_many_names_are_small() -> None:
    names = [
        f"s3://bucket/some/prefix/train-{number:05d}-of-09000.tfrecord" for number in range(9000)
    ]
    dataset = TFRecordDataset(names, num_parallel_reads=16)
    for each in (dataset, dataset.shuffle(1000, seed=1).batch(10)):
        assert len(json.dumps(each.iterate().state_dict())) < 10_000
        assert len(repr(each)) < 1000
    assert "train-00002-of-09000.tfrecord', ... 9,000 names, digest" in repr(dataset)
    assert len(json.dumps(TFRecordDataset(names * 10).iterate().state_dict())) < 20_000


def test_up_to_four_names_are_all_listed() -> None:
    assert format_names(["a", "b", "c", "d"]) == "['a', 'b', 'c', 'd']"
    assert format_names(list("abcde")).startswith("['a', 'b', 'c', ... 5 names, digest ")
    assert format_names([]) == "[]"


def test_the_first_name_that_differs_is_named() -> None:
    names = [f"x-{number}" for number in range(9000)]
    state = TFRecordDataset(names).iterate().state_dict()
    others = [*names[:4321], "y", *names[4322:]]
    with pytest.raises(PositionMismatchError, match="the first that differs is number 4,321, 'y'"):
        TFRecordDataset(others).iterate(state)
    with pytest.raises(PositionMismatchError, match="number 9,000, 'z', is new"):
        TFRecordDataset([*names, "z"]).iterate(state)
    with pytest.raises(PositionMismatchError, match="there are 8,999 now, which is fewer"):
        TFRecordDataset(names[:-1]).iterate(state)
    many = [f"x-{number}" for number in range(40_000)]
    state = TFRecordDataset(many).iterate().state_dict()
    with pytest.raises(PositionMismatchError, match=r"among numbers 30,\d+ to 30,\d+"):
        TFRecordDataset([*many[:30_500], "y", *many[30_501:]]).iterate(state)


def write_states() -> None:
    """Writes what the tests read: once, when the format changes."""
    STATES.mkdir(exist_ok=True)
    for name, pipeline in PIPELINES.items():
        with tempfile.TemporaryDirectory() as folder:
            dataset = pipeline(filesystem(folder))
            state = state_after(dataset, 4)
            kept = {"state": state, "rest": rest_of_run(dataset, state)}
            (STATES / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
