"""Folders that streamrec.tfds writes are read with equal values, and failures leave none."""

import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec.tfds
from streamrec.errors import AlreadyExistsError, FeatureError, NotFoundError, StreamrecError
from streamrec.images import decode_png
from streamrec.tfds import FeaturesDict, Folder, LeafFeature, SequenceFeature, skip
from streamrec.tfds.sharding import shard_lengths
from tests.effort import THOROUGH, drawn_examples
from tests.servers.real import Store
from tests.steps import Steps, is_hidden, open_place, refuse_permission, writing_children
from tests.storage.faultproxy import Fault, FaultProxy, Request, status
from tests.tfds.compare import assert_same
from tests.tfds.drawn_features import Drawn, drawn_features, expected, plain
from tests.tfds.folders import (
    KINDS,
    KINDS_SPLITS,
    KINDS_URL,
    ROBOT_SPLITS,
    ROBOT_URL,
    episode,
    kinds_example,
    step_list,
)

JPEGS = {name: skip for name, kind in KINDS.items() if kind.pixels}
"""Decoders that leave the files, which another encoding would change."""


DESCRIPTIONS = {"dataset_info.json", "features.json"}


def numbers(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"n": number} for number in range(start, start + count)]


def read_numbers(folder: Folder, split: str = "train") -> list[int]:
    return [int(example["n"]) for example in folder.read(split)]


def names_in(folder: Path) -> set[str]:
    """The names that a reader sees."""
    if not folder.exists():
        return set()
    return {path.name for path in folder.iterdir() if not is_hidden(path.name)}


def rows(value: Any) -> Any:
    """A ragged value as nested lists."""
    return value.to_list() if hasattr(value, "to_list") else value


def test_every_kind_of_feature_is_read_as_it_was_given(tmp_path: Path) -> None:
    features = streamrec.tfds.open_sync(KINDS_URL).features
    splits = {name: map(kinds_example, every) for name, every in KINDS_SPLITS.items()}
    url = f"{tmp_path}/kinds/1.0.0"
    written = streamrec.tfds.write_sync(url, splits, features=features, num_shards=3)
    for split, every in KINDS_SPLITS.items():
        for number, found in zip(every, written.read(split), strict=True):
            for name, value in kinds_example(number).items():
                if name not in JPEGS:
                    assert_same(found[name], value, name)


@pytest.mark.parametrize("url", [KINDS_URL, ROBOT_URL])
def test_examples_of_a_folder_are_written_and_read_equally(url: str, tmp_path: Path) -> None:
    golden = streamrec.tfds.open_sync(url)
    files = JPEGS if url == KINDS_URL else {"steps/observation/image": skip}
    copy = streamrec.tfds.write_sync(
        tmp_path / golden.name / "1.0.0",
        {split: golden.read(split, decoders=files) for split in golden.splits},
        features=golden.features,
        description=golden.description,
        supervised_keys=golden.supervised_keys,
        num_shards=3,
    )
    assert copy.features == golden.features
    assert (copy.name, copy.description) == (golden.name, golden.description)
    assert copy.supervised_keys == golden.supervised_keys
    for split in golden.splits:
        assert copy.splits[split].shard_lengths == golden.splits[split].shard_lengths
        for found, wanted in zip(copy.read(split), golden.read(split), strict=True):
            assert_same(found, {name: rows(value) for name, value in wanted.items()})


def test_steps_of_episodes_are_given_one_by_one_or_as_columns(tmp_path: Path) -> None:
    features = streamrec.tfds.open_sync(ROBOT_URL).features
    by_steps = [
        {**episode(number), "steps": iter(step_list(episode(number)["steps"]))}
        for number in ROBOT_SPLITS["train"]
    ]
    splits = {"steps": by_steps, "columns": map(episode, ROBOT_SPLITS["train"])}
    written = streamrec.tfds.write_sync(tmp_path / "robot" / "0.1.0", splits, features=features)
    one, other = (list(written.records(split)) for split in splits)
    assert one == other
    first = next(iter(written.steps("steps")))
    assert first["is_first"]
    assert_same(first["action"], episode(0)["steps"]["action"][0])


def test_description_counts_records_and_bytes(tmp_path: Path) -> None:
    url = tmp_path / "points" / "1.2.3"
    splits = {"train": numbers(100), "test": numbers(7)}
    written = streamrec.tfds.write_sync(url, splits, num_shards=4, citation="me", description="n")
    info = json.loads((url / "dataset_info.json").read_text())
    assert (info["name"], info["version"], info["fileFormat"]) == ("points", "1.2.3", "tfrecord")
    assert (info["description"], info["citation"]) == ("n", "me")
    for split in info["splits"]:
        records = list(written.records(split["name"]))
        assert int(split["numBytes"]) == sum(map(len, records))
        for number, length in enumerate(split["shardLengths"]):
            shard = url / f"points-{split['name']}.tfrecord-{number:05d}-of-00004"
            assert len(list(streamrec.TFRecordDataset(str(shard)))) == int(length)
    assert [split["name"] for split in info["splits"]] == ["train", "test"]
    opened = streamrec.tfds.open_sync(str(url))
    assert opened == written
    assert opened.found.sizes == written.found.sizes
    # Nothing else is there, such as a temporary file.
    assert len(list(url.iterdir())) == 8 + 2


def test_examples_keep_their_order_over_all_shards(tmp_path: Path) -> None:
    url = tmp_path / "ordered" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": numbers(600)}, num_shards=20)
    assert read_numbers(written) == list(range(600))
    assert read_numbers(written, "train[100:103]") == [100, 101, 102]
    url = tmp_path / "interleaved" / "1.0.0"
    splits = {"train": numbers(600)}
    interleaved = streamrec.tfds.write_sync(url, splits, num_shards=20, in_order=False)
    assert read_numbers(interleaved) != list(range(600))
    assert sorted(read_numbers(interleaved)) == list(range(600))


def test_shards_have_at_most_the_bytes_that_were_asked_for(tmp_path: Path) -> None:
    examples = [{"data": b"x" * (number % 50)} for number in range(200)]
    url = tmp_path / "sized" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": examples}, max_shard_bytes=1000)
    sizes = [(url / name).stat().st_size for name in written.splits["train"].shard_names]
    assert len(sizes) > 10
    assert max(sizes) <= 1000
    assert [len(example["data"]) for example in written.read("train")] == [
        number % 50 for number in range(200)
    ]


def test_few_examples_make_fewer_shards_than_asked_for(tmp_path: Path) -> None:
    splits = {"train": numbers(10), "test": numbers(2)}
    written = streamrec.tfds.write_sync(tmp_path / "few" / "1.0.0", splits, num_shards=4)
    assert [split.shards for split in written.splits.values()] == [4, 2]


async def test_async_program_writes_async_iterables(tmp_path: Path) -> None:
    async def examples() -> AsyncIterator[Any]:
        for number in range(300):
            await asyncio.sleep(0)
            yield {"n": number}

    url = str(tmp_path / "many" / "1.0.0")
    dataset = streamrec.Dataset.from_tensor_slices({"n": np.arange(5)})
    written = await streamrec.tfds.write(url, {"train": examples(), "test": dataset})
    assert [int(one["n"]) async for one in written.read("train")] == list(range(300))
    assert [int(one["n"]) async for one in written.read("test")] == list(range(5))


def test_generator_runs_in_one_thread_and_is_closed(tmp_path: Path) -> None:
    seen: list[object] = []

    def examples() -> Iterator[Any]:
        try:
            for number in range(2000):
                seen.append(threading.get_ident())
                yield {"n": number if number < 1000 else "text"}
        finally:
            seen.append("closed")

    with pytest.raises(FeatureError, match="example 1,000: 'text'"):
        streamrec.tfds.write_sync(tmp_path / "threads" / "1.0.0", {"train": examples()})
    assert seen[-1] == "closed"
    assert len(set(seen)) == 2
    assert names_in(tmp_path / "threads" / "1.0.0") == set()


def test_generator_may_read_a_folder_itself(tmp_path: Path) -> None:
    old = streamrec.tfds.write_sync(tmp_path / "old" / "1.0.0", {"train": numbers(300)})

    def examples() -> Iterator[Any]:
        for example in streamrec.tfds.open_sync(old.url).read("train"):
            yield {"n": example["n"] * 2}

    new = streamrec.tfds.write_sync(tmp_path / "new" / "1.0.0", {"train": examples()})
    assert read_numbers(new) == list(range(0, 600, 2))


@pytest.mark.parametrize("blocks", ["loop", "thread"])
async def test_cancelled_writer_leaves_nothing(blocks: str, tmp_path: Path) -> None:
    taken = asyncio.Event()
    ended = threading.Event()
    loop = asyncio.get_running_loop()

    async def waits() -> AsyncIterator[Any]:
        for number in range(100):
            yield {"n": number}
        taken.set()
        await asyncio.Event().wait()

    def works() -> Iterator[Any]:
        yield from numbers(100)
        loop.call_soon_threadsafe(taken.set)
        ended.wait(30)

    splits: dict[str, Any] = {"train": waits() if blocks == "loop" else works()}
    folder = tmp_path / "points" / "1.0.0"
    writing = asyncio.create_task(streamrec.tfds.write(folder, splits))
    await taken.wait()
    writing.cancel()
    # The generator in a thread ends its step first.
    loop.call_later(0.2, ended.set)
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert names_in(folder) == set()


def test_error_of_a_generator_tells_where_it_came_from(tmp_path: Path) -> None:
    def examples() -> Iterator[Any]:
        yield from numbers(3)
        raise LookupError("the source is broken")

    with pytest.raises(LookupError, match="the source is broken") as failed:
        streamrec.tfds.write_sync(
            tmp_path / "broken" / "1.0.0", {"train": numbers(2), "test": examples()}
        )
    assert "split 'test', after 3" in "".join(failed.value.__notes__)
    assert names_in(tmp_path / "broken" / "1.0.0") == set()


FEATURES: dict[str, Any] = {
    "x": np.float32,
    "text": str,
    "label": LeafFeature(kind="label", names=("cat", "dog")),
    "array": LeafFeature(kind="tensor", shape=(None, 2), dtype="int8"),
    "image": LeafFeature(kind="image", shape=(None, None, 3)),
    "objects": SequenceFeature(feature=FeaturesDict({"id": LeafFeature(kind="tensor")}), length=2),
    "maybe": LeafFeature(kind="tensor", dtype="bool", optional=True),
}

GOOD: dict[str, Any] = {
    "x": 1.5,
    "text": "snö",
    "label": "dog",
    "array": [[1, 2], [3, 4]],
    "image": np.zeros((2, 3, 3), np.uint8),
    "objects": [{"id": 1}, {"id": 2}],
    "maybe": None,
}


def test_values_take_the_forms_that_are_usual(tmp_path: Path) -> None:
    other = {
        **GOOD,
        "x": 2,
        "text": b"bytes",
        "label": -1,
        "array": [],
        "objects": {"id": np.array([5, 6])},
        "maybe": True,
    }
    url = tmp_path / "forms" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": [GOOD, other]}, features=FEATURES)
    first, second = written.read("train")
    assert first["x"] == np.float32(1.5)
    assert first["text"] == "snö".encode()
    assert (first["label"], second["label"]) == (1, -1)
    assert first["array"].tolist() == [[1, 2], [3, 4]]
    assert second["array"].shape == (0, 2)
    assert second["objects"]["id"].tolist() == [5, 6]
    assert (first["maybe"], bool(second["maybe"])) == (None, True)
    assert written.features["label"].names == ("cat", "dog")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("x", "1.5", "is <U3, and the feature is float32"),
        ("x", 1e300, "outside the range of float32"),
        ("x", [1.0], "it has the shape"),
        ("x", None, "the example lacks it"),
        ("text", 3, "is neither text nor bytes"),
        ("text", ["a", ["b"]], "it has the shape [2]"),
        ("label", "fish", "there is no class 'fish'"),
        ("label", 2, "there is no class 2"),
        ("label", 1.0, "neither the number nor the name"),
        ("array", [[1, 200]], "200 is outside the range of int8"),
        ("array", [[1.5, 2]], "is float64, and the feature is int8"),
        ("array", [[1, 2, 3]], "it has the shape"),
        ("array", [[1], [2, 3]], "its parts may have several shapes"),
        ("image", np.zeros((2, 3, 4), np.uint8), "it has the shape"),
        ("image", np.zeros((0, 3, 3), np.uint8), "has no pixels"),
        ("image", np.zeros((2, 3, 3), np.float32), "is float32, and the feature is uint8"),
        ("objects", [{"id": 1}], "it has 1 values, and not 2"),
        ("objects", {"id": [1, 2], "x": [1]}, "its columns have several lengths"),
        ("objects", [{"id": 1}, {}], "a step lacks it"),
        ("objects", [{"id": 1}, {"id": 2, "more": 3}], "the example has more"),
        ("objects", "text", "is not a sequence"),
        ("maybe", 1, "is int64, and the feature is bool"),
    ],
)
def test_value_that_does_not_fit_names_split_example_and_feature(
    name: str, value: Any, reason: str, tmp_path: Path
) -> None:
    url = tmp_path / "wrong" / "1.0.0"
    splits = {"train": [GOOD], "test": [GOOD, GOOD, {**GOOD, name: value}]}
    with pytest.raises(FeatureError, match="split 'test', example 2") as failed:
        streamrec.tfds.write_sync(url, splits, features=FEATURES)
    assert reason in str(failed.value)
    assert (failed.value.feature or "").startswith(name)
    assert names_in(url) == set()


def test_example_that_lacks_or_adds_a_feature_is_refused(tmp_path: Path) -> None:
    url = tmp_path / "wrong" / "1.0.0"
    with pytest.raises(FeatureError, match="the example has more, which the features do not have"):
        streamrec.tfds.write_sync(url, {"train": [{**GOOD, "more": 1}]}, features=FEATURES)
    fewer = {name: value for name, value in GOOD.items() if name != "text"}
    with pytest.raises(FeatureError, match="feature 'text'"):
        streamrec.tfds.write_sync(url, {"train": [fewer]}, features=FEATURES)
    with pytest.raises(FeatureError, match="is not a dict of features"):
        streamrec.tfds.write_sync(url, {"train": [b"record"]}, features=FEATURES)


@pytest.mark.parametrize(
    ("feature", "reason"),
    [
        (LeafFeature(kind="picture"), "there is no kind 'picture'"),
        (LeafFeature(kind="label"), "a label has the names of its classes"),
        (LeafFeature(kind="label", names=("a", "a")), "two classes have the name"),
        (LeafFeature(kind="label", names=("a", " b")), "each is a line of a file"),
        (LeafFeature(kind="tensor", dtype="complex64"), "there is no dtype 'complex64'"),
        (LeafFeature(kind="tensor", encoding="gzip"), "the encoding of tensor is one of"),
        (LeafFeature(kind="tensor", shape=(None, None)), "are stored as bytes"),
        (LeafFeature(kind="image", encoding="jpeg", dtype="uint16"), "a JPEG has uint8 pixels"),
        (LeafFeature(kind="image", shape=(3,)), "its number of channels"),
        (LeafFeature(kind="box", optional=True), "only tensors and texts may be optional"),
        (SequenceFeature(feature=LeafFeature(kind="tensor", shape=(None,))), "stored as bytes"),
    ],
)
def test_feature_that_cannot_be_stored_is_refused(
    feature: Any, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(FeatureError, match="feature 'x'") as failed:
        streamrec.tfds.write_sync(
            tmp_path / "wrong" / "1.0.0", {"train": [{"x": 1}]}, features={"x": feature}
        )
    assert reason in str(failed.value)


def test_two_features_of_one_name_are_refused(tmp_path: Path) -> None:
    features = {"a/b": "int64", "a": {"b": "int64"}}
    with pytest.raises(FeatureError, match="two features have this name"):
        streamrec.tfds.write_sync(tmp_path / "two" / "1.0.0", {"train": []}, features=features)


def test_two_labels_that_would_share_a_file_are_refused(tmp_path: Path) -> None:
    cat = LeafFeature(kind="label", names=("cat", "dog"))
    red = LeafFeature(kind="label", names=("red", "green"))
    features = {"a-b": cat, "a": {"b": red}}
    url = tmp_path / "two" / "1.0.0"
    splits = {"train": [{"a-b": 1, "a": {"b": 0}}]}
    with pytest.raises(FeatureError, match=r"would be in a-b\.labels\.txt"):
        streamrec.tfds.write_sync(url, splits, features=features)
    features = {"a-b": cat, "a": {"b": cat}}
    written = streamrec.tfds.write_sync(url, splits, features=features)
    assert next(iter(written.read("train", labels="names"))) == {"a-b": "dog", "a": {"b": "cat"}}


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_arrays_of_pixels_are_kept_exactly(channels: int, dtype: Any, tmp_path: Path) -> None:
    random = np.random.default_rng(channels)
    pixels = random.integers(0, np.iinfo(dtype).max, (5, 7, channels), dtype, endpoint=True)
    name = np.dtype(dtype).name
    image = LeafFeature(kind="image", shape=(None, None, channels), dtype=name)
    written = streamrec.tfds.write_sync(
        tmp_path / "images" / "1.0.0", {"train": [{"image": pixels}]}, features={"image": image}
    )
    file = next(iter(written.read("train", decoders={"image": skip})))["image"]
    assert_same(decode_png(file, dtype=dtype), pixels)
    assert_same(next(iter(written.read("train")))["image"], pixels)


def test_arrays_become_jpegs_if_the_feature_says_so(tmp_path: Path) -> None:
    smooth = np.linspace(0, 255, 64 * 48 * 3).reshape(64, 48, 3).astype(np.uint8)
    image = LeafFeature(kind="image", encoding="jpeg")
    written = streamrec.tfds.write_sync(
        tmp_path / "images" / "1.0.0", {"train": [{"image": smooth}]}, features={"image": image}
    )
    file = next(iter(written.read("train", decoders={"image": skip})))["image"]
    assert file.startswith(b"\xff\xd8\xff")
    found = next(iter(written.read("train")))["image"]
    assert np.abs(found.astype(int) - smooth).max() < 12


def test_features_are_taken_from_the_text_of_a_file(tmp_path: Path) -> None:
    text = (Path(ROBOT_URL) / "features.json").read_text()
    url = tmp_path / "robot" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": [episode(1)]}, features=text)
    assert written.features == streamrec.tfds.open_sync(ROBOT_URL).features
    assert json.loads((url / "features.json").read_text()) == json.loads(text)


def test_features_follow_from_the_first_examples(tmp_path: Path) -> None:
    examples = [
        {
            "flag": True,
            "count": number,
            "small": np.uint8(number),
            "exact": number / 3,
            "text": "a",
            "data": b"\0",
            "fixed": np.zeros((2, 3), np.int16),
            "rows": np.zeros((number, 3), np.float32),
            "any": np.zeros((number, number + 1), np.float32),
            "words": ["w"] * number,
            "nested": {"rows": [[1], [2, 3]]},
            "maybe": None if number == 1 else np.int32(number),
            "steps": [{"reward": np.float32(n), "state": np.ones(2)} for n in range(3)],
        }
        for number in range(1, 4)
    ]
    url = tmp_path / "inferred" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": iter(examples)})
    features: Any = written.features
    assert {name: str(features[name]) for name in features.features if name != "nested"} == {
        "any": "float32[?, ?], bytes",
        "count": "int64",
        "data": "bytes",
        "exact": "float64, bytes",
        "fixed": "int16[2, 3]",
        "flag": "bool",
        "maybe": "int32, optional",
        "rows": "float32[?, 3]",
        "small": "uint8",
        "steps": str(features["steps"]),
        "text": "text",
        "words": str(features["words"]),
    }
    assert features["steps"].is_steps
    assert not features["words"].is_steps
    for found, example in zip(written.read("train"), examples, strict=True):
        assert found["exact"] == example["exact"]
        assert (found["maybe"] is None) == (example["maybe"] is None)
        assert_same(found["any"], example["any"])
        assert rows(found["nested"]["rows"]) == [[1], [2, 3]]
    assert next(iter(written.steps("train")))["state"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([None, None], "no value is known"),
        ([[], []], "the sequence is always empty"),
        ([1, 1.5], "its values are float64, int64"),
        ([1, "a"], "its values are"),
        ([{"a": 1}, 3], "its values are dict, value"),
        ([b"\x89PNG\r\n\x1a\n"], "its bytes are a PNG file"),
        ([np.zeros(2), np.zeros((2, 2))], "its arrays have 1, 2 dimensions"),
        ([np.zeros(2, np.complex64)], "its values are complex64"),
        ([[1], None], "only values may be missing"),
        ([[1, None]], "some values of a sequence are missing"),
        ([object()], "object"),
    ],
)
def test_examples_that_mean_several_things_ask_for_the_features(
    values: list[Any], reason: str, tmp_path: Path
) -> None:
    examples = [{"x": value} for value in values]
    with pytest.raises(FeatureError, match="feature 'x'") as failed:
        streamrec.tfds.write_sync(tmp_path / "unclear" / "1.0.0", {"train": examples})
    assert reason in str(failed.value)
    assert "pass features=" in str(failed.value)


@pytest.mark.parametrize(
    ("path", "options", "reason"),
    [
        ("points", {}, "its last part is the version"),
        ("points/1.0", {}, "its last part is the version"),
        ("my-points/1.0.0", {}, "'my-points' is the name of the data set"),
        ("points/1.0.0", {"config": "small"}, "'small' is not above its version"),
        ("points/1.0.0", {"num_shards": 2, "max_shard_bytes": 9}, "exclude each other"),
        ("points/1.0.0", {"num_shards": 0}, "num_shards"),
        ("points/1.0.0", {"supervised_keys": ("n", "label")}, "there is no feature 'label'"),
        ("points/1.0.0", {"splits": {}}, "splits is empty"),
        ("points/1.0.0", {"splits": {"all": numbers(1)}}, "and is not 'all'"),
        ("points/1.0.0", {"splits": {"a[b]": numbers(1)}}, "cannot be the name of a split"),
        ("points/1.0.0", {"splits": {"train": []}}, "split 'train' has no examples"),
        ("points/1.0.0", {"splits": {"train": numbers(1), "test": []}}, "'test' has no examples"),
    ],
)
def test_wrong_arguments_are_refused(
    path: str, options: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    splits = {"train": numbers(1)}
    with pytest.raises(ValueError, match=re.escape(reason)):
        streamrec.tfds.write_sync(tmp_path / path, **{"splits": splits, **options})
    assert not (tmp_path / path).exists()


@pytest.mark.parametrize("splits", [numbers(1), {"train": 3}, {"train": {"n": [1]}}])
def test_splits_that_are_not_iterables_of_examples_are_refused(splits: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="examples"):
        streamrec.tfds.write_sync(tmp_path / "points" / "1.0.0", splits)


def test_configuration_is_above_the_version(tmp_path: Path) -> None:
    url = tmp_path / "points" / "tiny-2" / "1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": numbers(3)}, config="tiny-2")
    assert (written.name, written.config) == ("points", "tiny-2")
    assert streamrec.tfds.open_sync(str(tmp_path / "points")).url == str(url)


SPELLINGS: dict[str, Callable[[Path], Any]] = {
    "path": lambda folder: folder,
    "slash": lambda folder: f"{folder}//",
    "relative": lambda folder: os.path.relpath(folder),
    "dots": lambda folder: f"{folder.parent}/./{folder.name}",
    "url": lambda folder: f"file://{folder}",
    "up": lambda folder: f"{folder.parent.parent}/{folder.parent.name}/../points/1.0.0",
    "link": lambda folder: folder.parent.parent.parent / "link" / "points" / "1.0.0",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_folder_is_the_same_folder(spelling: str, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "points" / "1.0.0"
    folder.parent.mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    path = SPELLINGS[spelling](folder)
    written = streamrec.tfds.write_sync(path, {"train": numbers(5)})
    assert read_numbers(written) == list(range(5))
    assert names_in(folder) >= {"dataset_info.json", "features.json"}
    before = {name: (folder / name).read_bytes() for name in names_in(folder)}
    for other in SPELLINGS.values():
        with pytest.raises(AlreadyExistsError, match="pass overwrite=True"):
            streamrec.tfds.write_sync(other(folder), {"train": numbers(3)})
    assert {name: (folder / name).read_bytes() for name in names_in(folder)} == before


@pytest.mark.parametrize("kind", ["s3_store", "gcs_store", "memory"])
def test_folder_in_an_object_store(kind: str, request: pytest.FixtureRequest) -> None:
    base, options = "memory://tfds-write", {}
    if kind != "memory":
        store: Store = request.getfixturevalue(kind)
        base, options = f"{store.url}/tfds-write", dict(store.options)
    url = f"{base}/{kind}/1.0.0"
    splits = {"train": numbers(50), "test": [{"n": 7}]}
    written = streamrec.tfds.write_sync(url, splits, num_shards=3, storage_options=options)
    assert read_numbers(written) == list(range(50))
    with pytest.raises(AlreadyExistsError, match="choose another version"):
        streamrec.tfds.write_sync(url, splits, num_shards=3, storage_options=options)
    splits = {"train": numbers(20, 100), "test": [{"n": 8}]}
    with pytest.raises(AlreadyExistsError, match="would stay in this folder"):
        streamrec.tfds.write_sync(url, splits, overwrite=True, storage_options=options)
    assert read_numbers(written) == list(range(50))
    again = streamrec.tfds.write_sync(
        url, splits, num_shards=3, overwrite=True, storage_options=options
    )
    assert read_numbers(again) == list(range(100, 120))
    assert read_numbers(again, "test") == [8]


def test_folder_is_replaced_by_what_is_read_from_it(tmp_path: Path) -> None:
    url = str(tmp_path / "points" / "1.0.0")
    old = streamrec.tfds.write_sync(url, {"train": numbers(50)}, num_shards=5)
    kept = old.read("train").filter(lambda example: example["n"] % 2 == 0)
    new = streamrec.tfds.write_sync(url, {"train": kept}, num_shards=5, overwrite=True)
    assert read_numbers(new) == list(range(0, 50, 2))


async def test_shards_of_another_writer_are_not_taken_into_the_folder(tmp_path: Path) -> None:
    """The other one has another number of shards, so the two write no shard of the same name."""
    url = str(tmp_path / "points" / "1.0.0")

    async def write(count: int) -> Folder | StreamrecError:
        try:
            return await streamrec.tfds.write(url, {"train": numbers(30)}, num_shards=count)
        except StreamrecError as error:
            return error

    results = await asyncio.gather(*map(write, (2, 3, 4, 5)))
    winners = [one for one in results if isinstance(one, Folder)]
    assert len(winners) <= 1
    for one in results:
        assert isinstance(one, Folder) or url in str(one)
    if winners:
        assert [int(each["n"]) async for each in winners[0].read("train")] == list(range(30))
        assert set(os.listdir(url)) == {*winners[0].splits["train"].shard_names, *DESCRIPTIONS}
    else:
        assert not os.listdir(url)


def test_a_file_of_someone_else_stays(tmp_path: Path) -> None:
    folder = tmp_path / "points" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / "README.md").write_text("mine")
    (folder / "other-train.txt").write_text("mine, too")
    streamrec.tfds.write_sync(folder, {"train": numbers(5)})
    streamrec.tfds.write_sync(folder, {"train": numbers(6)}, overwrite=True)
    assert (folder / "README.md").read_text() == "mine"
    assert (folder / "other-train.txt").read_text() == "mine, too"


@pytest.mark.parametrize(
    "name", ["features.json", "label.labels.txt", "points-old.tfrecord-00000-of-00001"]
)
def test_part_of_a_data_set_is_neither_overwritten_nor_left_among_new_files(
    name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "points" / "1.0.0"
    folder.mkdir(parents=True)
    (folder / name).write_text("old")
    with pytest.raises(AlreadyExistsError, match=r"no dataset_info\.json"):
        streamrec.tfds.write_sync(folder, {"train": numbers(5)})
    if name != "features.json":
        with pytest.raises(AlreadyExistsError, match="would stay in this folder"):
            streamrec.tfds.write_sync(folder, {"train": numbers(5)}, overwrite=True)
        assert names_in(folder) == {name}
    assert (folder / name).read_text() == "old"


def test_a_full_disk_of_temporary_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(StreamrecError, match="temporary_directory="):
        streamrec.tfds.write_sync(
            tmp_path / "points" / "1.0.0",
            {"train": numbers(5)},
            temporary_directory=tmp_path / "not-there",
        )
    assert not (tmp_path / "points").exists()


def without_hidden(objects: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in objects.items() if not is_hidden(name)}


@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store"])
async def test_failure_at_any_step_leaves_no_folder_that_opens(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async with open_place(kind, request) as place:
        url = f"{place.url}/points/1.0.0"
        number = failed = 0
        while True:
            steps = place.step = Steps(number, refuse_permission)
            try:
                await streamrec.tfds.write(
                    url, {"train": numbers(9)}, num_shards=3, storage_options=place.options
                )
                ended = True
            except StreamrecError:
                ended = False
            place.step = lambda removal: None
            try:
                opened = await streamrec.tfds.open(url, storage_options=place.options)
            except NotFoundError:
                assert not ended
                # Only what could not be removed stays.
                assert steps.removal or not without_hidden(await place.snapshot()), number
            else:
                # All was written; only what comes after it failed.
                assert [int(one["n"]) async for one in opened.read("train")] == list(range(9))
            if steps.seen <= number:
                break
            failed += not ended
            await place.restore({}, await place.snapshot())
            number += 1 if THOROUGH or kind == "disk" else 2
        # In a store, most requests that are refused only ask, and are not needed.
        assert failed > (3 if kind == "disk" else 0)
        assert ended


@pytest.mark.parametrize("kind", ["disk", "s3_store"])
async def test_failure_while_overwriting_leaves_the_old_data_set(
    kind: str, request: pytest.FixtureRequest
) -> None:
    async with open_place(kind, request) as place:
        url = f"{place.url}/points/1.0.0"
        options = {"num_shards": 2, "storage_options": place.options}
        await streamrec.tfds.write(url, {"train": numbers(4)}, **options)
        old = await place.snapshot()
        number = failed = 0
        while True:
            steps = place.step = Steps(number, refuse_permission)
            try:
                await streamrec.tfds.write(
                    url, {"train": numbers(6, 50)}, overwrite=True, **options
                )
            except StreamrecError:
                failed += 1
            place.step = lambda removal: None
            opened = await streamrec.tfds.open(url, storage_options=place.options)
            found = [int(one["n"]) async for one in opened.read("train")]
            assert found in ([0, 1, 2, 3], list(range(50, 56))), number
            if steps.seen <= number:
                break
            await place.restore(old, await place.snapshot())
            number += 1 if THOROUGH else 3 if kind == "disk" else 7
        assert failed > 3
        assert found == list(range(50, 56))


@pytest.mark.parametrize("kind", ["s3_store", "gcs_store"])
async def test_client_that_may_only_write_writes_a_new_folder(
    kind: str, request: pytest.FixtureRequest
) -> None:
    """The store tells such a client with its answer to a condition that a name is taken."""
    real: Store = request.getfixturevalue(kind)
    url = f"{real.url}/{uuid4()}/points/1.0.0"

    def refuse_reading(asked: Request) -> Fault | None:
        return status("403 Forbidden") if asked.method in ("GET", "HEAD") else None

    async with FaultProxy(real.endpoint, refuse_reading) as proxy:
        options = {**real.options, "endpoint_url": proxy.url}
        written = await streamrec.tfds.write(
            url, {"train": numbers(20)}, num_shards=3, storage_options=options
        )
        assert written.splits["train"].records == 20
        with pytest.raises(StreamrecError) as failed:
            await streamrec.tfds.write(
                url, {"train": numbers(20, 50)}, num_shards=3, storage_options=options
            )
        assert "points" in str(failed.value)
    opened = await streamrec.tfds.open(url, storage_options=dict(real.options))
    assert opened.features == written.features
    assert [int(one["n"]) async for one in opened.read("train")] == list(range(20))


WRITING_PROGRAM = """
import asyncio, os, signal, sys
import streamrec.tfds
from tests.steps import HOOKS, Steps

def child(folder, start, overwrite, at):
    number = os.fork()
    if number:
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])
    if at is not None:
        HOOKS.append(Steps(at, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    examples = [{"n": n} for n in range(start, start + 6)]
    writing = streamrec.tfds.write(folder, {"train": examples}, num_shards=3, overwrite=overwrite)
    asyncio.run(writing)
    os._exit(0)

for line in sys.stdin:
    folder, start, overwrite, at = line.split()
    at = None if at == "-" else int(at)
    print(child(folder, int(start), overwrite == "overwrite", at), flush=True)
"""


@pytest.fixture
def write_in_child() -> Iterator[Callable[..., int]]:
    """Writes a folder in a process of its own, which may be killed at a step; its exit code."""
    with writing_children(WRITING_PROGRAM) as child:

        def run(folder: Path, start: int, at: int | None = None, overwrite: str = "new") -> int:
            return child(folder, start, overwrite, at)

        yield run


def test_killed_writer_leaves_a_whole_folder_or_none(
    tmp_path: Path, write_in_child: Callable[..., int]
) -> None:
    """It is written again with overwrite=True, whatever the killed one left."""
    number = 0
    opened = []
    while True:
        folder = tmp_path / str(number) / "points" / "1.0.0"
        code = write_in_child(folder, 0, number)
        try:
            left = streamrec.tfds.open_sync(str(folder))
        except NotFoundError:
            assert code != 0
        else:
            assert read_numbers(left) == list(range(6))
            opened.append(number)
        if code == 0:
            break
        again = streamrec.tfds.write_sync(
            folder, {"train": numbers(6, 10)}, num_shards=3, overwrite=True
        )
        assert read_numbers(again) == list(range(10, 16))
        number += 1 if THOROUGH else 3
    assert number > 5
    # The folder is there with one of the last steps, and not before.
    assert opened[0] > number - 6


def test_killed_writer_that_overwrites_leaves_the_old_or_the_new_data_set(
    tmp_path: Path, write_in_child: Callable[..., int]
) -> None:
    number = 0
    while True:
        folder = tmp_path / str(number) / "points" / "1.0.0"
        streamrec.tfds.write_sync(folder, {"train": numbers(4, 90)}, num_shards=3)
        code = write_in_child(folder, 0, number, "overwrite")
        streamrec_recover(folder)
        found = read_numbers(streamrec.tfds.open_sync(str(folder)))
        assert found in (list(range(90, 94)), list(range(6))), number
        if code == 0:
            break
        number += 1 if THOROUGH else 11
    assert number > 20
    assert found == list(range(6))


def streamrec_recover(folder: Path) -> None:
    """`streamrec recover`, which ends or undoes what a killed writer began."""
    command = [sys.executable, "-m", "streamrec", "recover", str(folder)]
    subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["disk", "s3_store", "gcs_store", "memory"])
@pytest.mark.parametrize("overwrite", [False, True])
async def test_of_two_writers_at_once_one_wins_or_both_tell_it(
    kind: str, overwrite: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    base, options = (
        {"disk": str(tmp_path), "memory": "memory://tfds-two"}.get(kind),
        dict[str, Any](),
    )
    if base is None:
        store: Store = request.getfixturevalue(kind)
        base, options = f"{store.url}/tfds-two", dict(store.options)
    url = f"{base}/{'over' if overwrite else 'new'}/1.0.0"

    async def write(start: int) -> Folder | StreamrecError:
        try:
            return await streamrec.tfds.write(
                url,
                {"train": numbers(30, start)},
                num_shards=5,
                overwrite=overwrite,
                storage_options=options,
            )
        except StreamrecError as error:
            return error

    results = await asyncio.gather(write(0), write(1000))
    winners = [start for start, one in zip((0, 1000), results, strict=True) if type(one) is Folder]
    if not overwrite:
        assert len(winners) <= 1
    if winners:
        found = [
            int(one["n"])
            async for one in (await streamrec.tfds.open(url, storage_options=options)).read("train")
        ]
        assert found in [list(range(start, start + 30)) for start in winners]
    else:
        with pytest.raises(NotFoundError):
            await streamrec.tfds.open(url, storage_options=options)


@given(drawn_features())
@drawn_examples(200)
def test_nested_features_are_read_as_they_were_given(drawn: Drawn) -> None:
    url = f"memory://tfds-drawn-{uuid4()}/drawn/1.0.0"
    written = streamrec.tfds.write_sync(url, {"train": drawn.examples}, features=drawn.features)
    assert written.features == drawn.features
    found = list(written.read("train"))
    assert [plain(one) for one in found] == [
        plain(expected(drawn.features, example)) for example in drawn.examples
    ]
    batch = next(iter(written.read("train", batch_size=len(found))))
    assert batch.keys() == drawn.features.features.keys()


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.integers(16, 2000))
@drawn_examples(100)
def test_shards_divide_all_records_in_order(lengths: list[int], most: int) -> None:
    sizes = np.array(lengths)
    counts = shard_lengths(sizes, max_shard_bytes=most)
    assert sum(counts) == len(lengths)
    for part in np.split(sizes + 16, np.cumsum(counts)[:-1]):
        assert len(part) == 1 or part.sum() <= most
    for count in (1, 3, 100):
        counts = shard_lengths(sizes, num_shards=count)
        assert sum(counts) == len(lengths)
        assert len(counts) == min(count, len(lengths))
        assert max(counts) - min(counts) <= 1
