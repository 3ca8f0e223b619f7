"""TensorFlow Datasets as a peer of the writer: it reads what streamrec.tfds writes, equally."""

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec.tfds
from streamrec import RaggedTensor
from streamrec.tfds import skip
from streamrec.tfds.sharding import count_shards
from tests.effort import drawn_examples
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
from tests.tfds.test_peer import WRITTEN_OPTIONAL, peer_examples, without_fills

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # of protobuf's and TensorFlow's own
]


@pytest.fixture(scope="module")
def tfds() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow_datasets")


def test_peer_reads_every_kind_of_feature_in_order(tfds: Any, tmp_path: Path) -> None:
    golden = streamrec.tfds.open_sync(KINDS_URL)
    url = str(tmp_path / "kinds" / "1.0.0")
    written = streamrec.tfds.write_sync(
        url,
        {split: map(kinds_example, every) for split, every in KINDS_SPLITS.items()},
        features=golden.features,
        supervised_keys=("image", "label"),
        num_shards=3,
    )
    names = [name for name in KINDS if name not in WRITTEN_OPTIONAL]
    for split, every in KINDS_SPLITS.items():
        ours = list(written.read(split, features=names))
        theirs = list(peer_examples(tfds, url, split, WRITTEN_OPTIONAL))
        assert len(ours) == len(theirs) == len(every)
        for number, found, one in zip(every, ours, theirs, strict=True):
            assert_same(found, without_fills(found, one))
            given = kinds_example(number)
            for name in names:
                if not KINDS[name].pixels:
                    assert_same(found[name], given[name], name)
    info = tfds.builder_from_directory(url).info
    assert info.supervised_keys == ("image", "label")
    assert info.features["label"].names == ["cat", "dog", "fish"]
    for split in KINDS_SPLITS:
        assert info.splits[split].num_examples == len(KINDS_SPLITS[split])
        assert info.splits[split].num_bytes == sum(map(len, written.records(split)))


def test_peer_reads_the_steps_of_episodes(tfds: Any, tmp_path: Path) -> None:
    golden = streamrec.tfds.open_sync(ROBOT_URL)
    url = str(tmp_path / "robot" / "0.1.0")
    splits = {name: map(episode, every) for name, every in ROBOT_SPLITS.items()}
    streamrec.tfds.write_sync(url, splits, features=golden.features, num_shards=2)
    builder = tfds.builder_from_directory(url)
    read = list(tfds.as_numpy(builder.as_dataset(split="train")))
    for number, one in zip(ROBOT_SPLITS["train"], read, strict=True):
        wanted = episode(number)
        assert_same(one["episode_metadata"], wanted["episode_metadata"])
        for found, step in zip(one["steps"], step_list(wanted["steps"]), strict=True):
            found["observation"].pop("image")
            step["observation"].pop("image")
            assert_same(found, step)


@pytest.mark.parametrize("url", [KINDS_URL, ROBOT_URL])
def test_copied_folder_has_the_records_and_features_of_the_peer(
    tfds: Any, url: str, tmp_path: Path
) -> None:
    golden = streamrec.tfds.open_sync(url)
    files = {name: skip for name, kind in KINDS.items() if kind.pixels}
    copy = streamrec.tfds.write_sync(
        tmp_path / golden.name / "1.0.0",
        {
            split: golden.read(
                split, decoders=files if url == KINDS_URL else {"steps/observation/image": skip}
            )
            for split in golden.splits
        },
        features=golden.features,
        num_shards=3,
    )
    theirs = tfds.builder_from_directory(url).info.features
    ours = tfds.builder_from_directory(copy.url).info.features
    assert shapes(ours.get_tensor_info()) == shapes(theirs.get_tensor_info())
    left_out = WRITTEN_OPTIONAL if url == KINDS_URL else set()
    if url == KINDS_URL:
        for one, other in zip(
            peer_examples(tfds, copy.url, "train", left_out),
            golden.read("train", features=[name for name in KINDS if name not in left_out]),
            strict=True,
        ):
            assert_same(other, without_fills(other, one))
    else:
        # The records of the steps are those that the peer wrote, but for their files.
        assert copy.splits["train"].bytes == golden.splits["train"].bytes


def shapes(info: Any) -> Any:
    """The shapes and dtypes of a tree of features, whatever its order."""
    if isinstance(info, dict):
        return {name: shapes(each) for name, each in info.items()}
    return str(info)


@given(drawn_features(for_peer=True))
@drawn_examples(24)
def test_peer_reads_nested_features(tfds: Any, tmp_path_factory: Any, drawn: Drawn) -> None:
    url = str(tmp_path_factory.mktemp("drawn") / f"d{uuid4().hex}" / "1.0.0")
    streamrec.tfds.write_sync(url, {"train": drawn.examples}, features=drawn.features)
    found = list(peer_examples(tfds, url, "train", set()))
    assert [plain(one) for one in found] == [
        plain(expected(drawn.features, example)) for example in drawn.examples
    ]


def test_peer_reads_inferred_features(tfds: Any, tmp_path: Path) -> None:
    examples = [
        {
            "count": number,
            "exact": number / 3,
            "text": "snö",
            "rows": np.zeros((number, 3), np.float32),
            "any": np.ones((number, number + 1)),
            "words": ["w"] * number,
            "nested": [[1], [2] * number],
            "maybe": None if number == 3 else "a",
        }
        for number in range(1, 30)
    ]
    url = str(tmp_path / "inferred" / "1.0.0")
    streamrec.tfds.write_sync(url, {"train": examples}, num_shards=7)
    for one, example in zip(peer_examples(tfds, url, "train", set()), examples, strict=True):
        assert one["maybe"].decode() == (example["maybe"] or "")
        assert one["exact"] == example["exact"]
        assert one["any"].tolist() == np.asarray(example["any"]).tolist()
        assert one["rows"].shape == np.shape(example["rows"])
        assert [word.decode() for word in one["words"]] == example["words"]
        nested = one["nested"]
        assert (nested.to_list() if isinstance(nested, RaggedTensor) else nested) == example[
            "nested"
        ]


def test_peer_reads_a_configuration(tfds: Any, tmp_path: Path) -> None:
    url = str(tmp_path / "points" / "small" / "1.0.0")
    streamrec.tfds.write_sync(url, {"train": [{"n": 1}]}, config="small", description="A few.")
    info = tfds.builder_from_directory(url).info
    assert (info.full_name, info.description) == ("points/small/1.0.0", "A few.")
    assert [
        int(one["n"]) for one in tfds.load("points/small:1.0.0", data_dir=tmp_path)["train"]
    ] == [1]


def test_peer_shuffles_the_shards_of_folders_that_are_not_in_order(
    tfds: Any, tmp_path: Path
) -> None:
    splits = {"train": [{"n": number} for number in range(40)]}
    read = {}
    for name, in_order in (("ordered", True), ("mixed", False)):
        url = str(tmp_path / name / "1.0.0")
        streamrec.tfds.write_sync(url, splits, num_shards=20, in_order=in_order)
        builder = tfds.builder_from_directory(url)
        if in_order:
            with pytest.raises(ValueError, match="shuffle_files=True"):
                builder.as_dataset(split="train", shuffle_files=True)
        dataset = builder.as_dataset(split="train", shuffle_files=not in_order)
        read[name] = [int(one["n"]) for one in tfds.as_numpy(dataset)]
    assert read["ordered"] == list(range(40))
    assert sorted(read["mixed"]) == list(range(40))
    assert read["mixed"] != list(range(40))


@given(st.integers(0, 2**42), st.integers(1, 10**7))
@drawn_examples(200)
def test_the_number_of_shards_is_that_of_the_peer(tfds: Any, nbytes: int, records: int) -> None:
    from tensorflow_datasets.core.utils import shard_utils

    shards = (nbytes + 16 * records) >> 30
    if shards > 1024 and records < max(2048, 1024 * -(-shards // 1024)):
        return  # with fewer records than shards, the peer does not end
    wanted = shard_utils.ShardConfig.calculate_number_shards(nbytes, records)
    assert count_shards(nbytes, records) == wanted
