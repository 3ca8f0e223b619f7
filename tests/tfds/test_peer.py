"""TensorFlow Datasets as a peer: values, dtypes, shapes and order of the same folders are equal."""

import json
import os
import random
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf import json_format

import streamrec.tfds
from streamrec import RaggedTensor
from streamrec.tfds.decoder import make_decoder
from streamrec.tfds.features_json import features_from_json
from streamrec.tfds.slices import resolve_split
from tests.tfds.compare import assert_same
from tests.tfds.folders import KINDS, KINDS_URL, ROBOT_URL

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of protobuf's and TensorFlow's own
]

SHARDS = {"train": [8, 7, 8], "test": [2, 1, 2], "odd": [0, 3, 0, 1, 13, 0]}

WRITTEN_OPTIONAL = {"maybe_text"}
"""A text that may be missing: TensorFlow Datasets forgets that, and cannot read its own folder."""


@pytest.fixture(scope="module")
def tfds() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow_datasets")


def as_numpy(value: Any) -> Any:
    """An example of TensorFlow Datasets with nested lists for its ragged tensors."""
    if isinstance(value, dict):
        return {name: as_numpy(each) for name, each in value.items()}
    if hasattr(value, "nested_row_splits"):
        splits = [np.asarray(each) for each in value.nested_row_splits]
        return RaggedTensor(np.asarray(value.flat_values), tuple(splits)).to_list()
    return value


def without_fills(found: Any, expected: Any) -> Any:
    """What is expected, with None where TensorFlow Datasets makes up a value for a missing one."""
    if isinstance(found, dict):
        return {name: without_fills(found[name], each) for name, each in expected.items()}
    return None if found is None else expected


def peer_examples(tfds: Any, url: str, split: str, left_out: set[str]) -> Iterator[Any]:
    builder = tfds.builder_from_directory(url)
    wanted = {name: True for name in builder.info.features if name not in left_out}
    decoding = tfds.decode.PartialDecoding(wanted)
    for example in tfds.as_numpy(builder.as_dataset(split=split, decoders=decoding)):
        yield as_numpy(example)


@pytest.mark.parametrize("split", ["train", "test", "train[:37%]", "train[3:]+test[1shard]", "all"])
def test_every_kind_of_feature_is_equal_and_in_order(tfds: Any, split: str) -> None:
    names = [name for name in KINDS if name not in WRITTEN_OPTIONAL]
    found = list(streamrec.tfds.open_sync(KINDS_URL).read(split, features=names))
    expected = list(peer_examples(tfds, KINDS_URL, split, WRITTEN_OPTIONAL))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert_same(ours, without_fills(ours, theirs))


def test_steps_of_episodes_are_equal_and_in_order(tfds: Any) -> None:
    builder = tfds.builder_from_directory(ROBOT_URL)
    steps = streamrec.tfds.open_sync(ROBOT_URL).steps("train").iterate()
    for one in tfds.as_numpy(builder.as_dataset(split="train")):
        for number, theirs in enumerate(one["steps"]):
            ours = next(steps)
            assert int(ours.pop("step")) == number
            assert_same(ours.pop("episode_metadata"), one["episode_metadata"])
            assert_same(ours, theirs)
    assert next(steps, None) is None


def expressions() -> list[str]:
    """Forty expressions of slices, also ones that are refused."""
    chosen = random.Random(5)
    found = ["all", "train[:]", "test[0:0]", "train[24:]", "train[1shard]", "odd[2shard]"]
    while len(found) < 40:
        name = chosen.choice(list(SHARDS))
        unit = chosen.choice(["", "%", "shard"])
        most = {"": 25, "%": 101, "shard": 4}[unit]
        numbers = [chosen.choice(["", str(chosen.randint(-most, most)) + unit]) for _ in range(2)]
        if unit == "%" and numbers[0] and chosen.random() < 0.3:
            numbers[0] = numbers[0].replace("%", ".5%")
        part = f"{name}[{numbers[0]}:{numbers[1]}]"
        found.append(part if chosen.random() < 0.7 else f"{part}+{chosen.choice(list(SHARDS))}")
    return found


@pytest.mark.parametrize("expression", expressions())
def test_slices_mean_the_same_records(tfds: Any, expression: str) -> None:
    splits = tfds.core.SplitDict(
        [
            tfds.core.SplitInfo(
                name=name,
                shard_lengths=lengths,
                num_bytes=0,
                filename_template=tfds.core.ShardedFileTemplate(
                    data_dir="/d", dataset_name="x", split=name, filetype_suffix="tfrecord"
                ),
            )
            for name, lengths in SHARDS.items()
        ]
    )
    try:
        parts = splits[expression].file_instructions
        # Of some slices that end before they begin, the peer takes -2 records: all the rest.
        parts = [] if any(part.take < -1 for part in parts) else parts
        theirs = [
            (
                os.path.basename(part.filename),
                part.skip,
                part.skip + part.take if part.take >= 0 else part.examples_in_shard,
            )
            for part in parts
        ]
    except (ValueError, NotImplementedError):
        theirs = []
    try:
        ours = [
            (
                f"x-{part.split}.tfrecord-{part.shard:05d}-of-{len(SHARDS[part.split]):05d}",
                part.first,
                part.last,
            )
            for part in resolve_split(expression, SHARDS)
        ]
    except ValueError:
        ours = []
    assert ours == theirs


@pytest.mark.parametrize("url", [KINDS_URL, ROBOT_URL])
def test_old_form_that_the_peer_writes_is_read(tfds: Any, url: str) -> None:
    features = tfds.builder_from_directory(url).info.features
    old = json.dumps(features.to_json(), default=str)
    with open(os.path.join(url, "features.json")) as file:
        new = features_from_json(file.read())
    assert features_from_json(old) == new


SERIALIZED: dict[str, tuple[Any, list[Any]]] = {
    "images of unknown sizes": (
        lambda f: f.Sequence(f.Image(shape=(None, None, 3))),
        [np.zeros((count, 4, 5, 3), np.uint8) + count for count in range(3)],
    ),
    "parts of a sequence": (
        lambda f: f.Sequence({"image": f.Image(shape=(None, None, 1)), "at": np.int64}),
        [[{"image": np.full((3, 2, 1), 7, np.uint8), "at": at} for at in range(n)] for n in (0, 2)],
    ),
    "video of unknown size": (
        lambda f: f.Video(shape=(None, None, None, 3)),
        [np.full((frames, 4, 6, 3), 9, np.uint8) for frames in (1, 3)],
    ),
    "arrays of unknown sizes": (
        lambda f: f.Sequence(f.Tensor(shape=(None, None), dtype=np.int16, encoding="zlib")),
        [np.ones((count, 2, 3), np.int16) for count in (1, 2)],
    ),
    "bfloat16": (
        lambda f: f.Tensor(shape=(2, None), dtype=ml_dtypes.bfloat16, encoding="bytes"),
        [np.array([[1, 2.5], [-3, 1e5]]).astype(ml_dtypes.bfloat16)],
    ),
}
"""Features that examples of their own sizes have, and some of their values."""


@pytest.mark.parametrize("name", SERIALIZED)
def test_examples_of_their_own_sizes_are_equal(tfds: Any, name: str) -> None:
    describe, values = SERIALIZED[name]
    features = tfds.features.FeaturesDict({"value": describe(tfds.features)})
    tree = features_from_json(json_format.MessageToJson(features.to_proto()))
    decode = make_decoder(tree)
    records = [features.serialize_example({"value": value}) for value in values]
    dataset = pytest.importorskip("tensorflow").data.Dataset.from_tensor_slices(records)
    expected = list(tfds.as_numpy(dataset.map(features.deserialize_example)))
    assert len(expected) == len(values)
    for record, example in zip(records, expected, strict=True):
        assert_same(decode(record), as_numpy(example))
