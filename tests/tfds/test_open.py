"""Opens folders: what they say, the newest version, the old form, and what is refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest

import streamrec
import streamrec.tfds
from streamrec import FeatureError, NotFoundError
from streamrec.errors import ManifestError, UnsupportedOperationError
from streamrec.tfds import FeaturesDict, LeafFeature, SequenceFeature
from streamrec.tfds.features import Feature
from streamrec.tfds.features_json import features_from_json
from tests.servers.real import Store
from tests.tfds.folders import GOLDEN, KINDS_URL, ROBOT_URL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the folder `kinds` that a test may change."""
    return Path(shutil.copytree(KINDS_URL, tmp_path / "kinds" / "1.0.0"))


def change(path: Path, **members: Any) -> None:
    """Sets members of the JSON of a file; None removes them."""
    value = json.loads(path.read_text()) | members
    path.write_text(json.dumps({key: one for key, one in value.items() if one is not None}))


def test_folder_says_what_its_writer_did() -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    assert (kinds.name, kinds.version, kinds.config) == ("kinds", "1.0.0", "")
    assert kinds.description == "Every kind of feature."
    assert kinds.supervised_keys == ("image", "label")
    train = kinds.splits["train"]
    assert (train.records, train.shards, len(kinds.splits)) == (23, 3, 2)
    assert train.bytes > 50_000
    label = kinds.features["label"]
    assert isinstance(label, LeafFeature)
    assert label.names == ("cat", "dog", "fish")
    assert (label.name_of(2), label.number_of("dog")) == ("fish", 1)
    with pytest.raises(ValueError, match="there is no class 'dgo'"):
        label.number_of("dgo")
    boxes = kinds.features["objects"]
    assert isinstance(boxes, SequenceFeature)
    assert boxes["label"].names == ("car", "tree")


def test_text_and_notebook_show_splits_and_features() -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    for shown in (str(kinds), kinds._repr_html_()):
        for text in (
            "kinds/1.0.0",
            "23",
            "image_16_bits: image[?, ?, 1], uint16, png",
            "label: label, 3 classes (cat, dog, fish)",
            "rows_of_rows: sequence of sequence of sequence of float32",
            "maybe_number: int32, optional",
            "video_fixed: video[2, 8, 8, 3], uint8, jpeg",
        ):
            assert text in shown, text
    assert "steps: steps" in str(streamrec.tfds.open_sync(ROBOT_URL))


def test_folder_above_stands_for_its_newest_version(folder: Path) -> None:
    for version in ("1.9.0", "1.10.0"):
        newer = Path(shutil.copytree(folder, folder.parent / version))
        change(newer / "dataset_info.json", version=version)
    assert streamrec.tfds.open_sync(str(folder.parent)).version == "1.10.0"
    assert streamrec.tfds.open_sync(str(folder.parent.parent)).version == "1.10.0"
    assert streamrec.tfds.open_sync(str(folder)).version == "1.0.0"


def test_several_configurations_are_listed_in_one_error(folder: Path) -> None:
    with pytest.raises(ManifestError, match=r"several .*: kinds, robot: pass the folder of one"):
        streamrec.tfds.open_sync(str(GOLDEN))
    for config in ("plain", "rotated"):
        shutil.copytree(folder, folder.parents[1] / "several" / config / "1.0.0")
    with pytest.raises(ManifestError, match="plain, rotated"):
        streamrec.tfds.open_sync(str(folder.parents[1] / "several"))


def test_folder_without_a_description_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"neither this folder nor one below it has dataset_in"):
        streamrec.tfds.open_sync(str(tmp_path))
    with pytest.raises(NotFoundError):
        streamrec.tfds.open_sync(str(tmp_path / "missing"))


@pytest.mark.parametrize("file_format", ["array_record", "riegeli", "parquet"])
def test_other_file_formats_are_refused_by_name(folder: Path, file_format: str) -> None:
    change(folder / "dataset_info.json", fileFormat=file_format)
    with pytest.raises(UnsupportedOperationError, match=f"are in {file_format} files"):
        streamrec.tfds.open_sync(str(folder))


def test_missing_shard_is_an_error_before_the_first_record(folder: Path) -> None:
    (folder / "kinds-train.tfrecord-00001-of-00003").unlink()
    opened = streamrec.tfds.open_sync(str(folder))
    with pytest.raises(NotFoundError, match="this shard of split 'train' is missing"):
        opened.records("train")
    with pytest.raises(NotFoundError):
        opened.read("train[:2]")
    assert len(list(opened.read("test"))) == 5


def test_names_that_tell_of_other_shards_are_an_error(folder: Path) -> None:
    path = folder / "dataset_info.json"
    splits = json.loads(path.read_text())["splits"]
    splits[0]["shardLengths"] = splits[0]["shardLengths"][:2]
    change(path, splits=splits)
    opened = streamrec.tfds.open_sync(str(folder))
    with pytest.raises(ManifestError, match="it has 2 shards of 'train', and there is kinds-train"):
        opened.records("train")


def test_shard_of_another_length_is_an_error(folder: Path) -> None:
    path = folder / "dataset_info.json"
    splits = json.loads(path.read_text())["splits"]
    splits[0]["shardLengths"][2] = "9"
    change(path, splits=splits)
    opened = streamrec.tfds.open_sync(str(folder))
    with pytest.raises(ManifestError, match="says that this shard has 9 records, and it has 8"):
        list(opened.read("train"))


def test_damaged_descriptions_say_what_is_wrong(folder: Path) -> None:
    info = folder / "dataset_info.json"
    kept = info.read_text()
    for text, reason in (
        (kept[:99], "is not JSON"),
        ("[]", "it has no name"),
        (kept.replace('"23"', "1").replace('"shardLengths"', '"lengths"'), "no shardLengths"),
        (kept.replace("{DATASET}", "../{DATASET}"), "outside the folder"),
        (kept.replace("{DATASET}", "{PATH}"), "which streamrec does not know"),
        (kept.replace('"8"', '"x"'), "not numbers"),
    ):
        info.write_text(text)
        with pytest.raises(ManifestError, match=reason):
            streamrec.tfds.open_sync(str(folder))
    info.write_text(kept)
    features = folder / "features.json"
    features.write_text(features.read_text().replace('"text": {}', '"smell": {}'))
    with pytest.raises(FeatureError, match=r"text_feature.Text, which is not a kind"):
        streamrec.tfds.open_sync(str(folder))


def to_old(feature: Any, *, as_message: bool = False) -> Any:
    """A feature in the form from before TensorFlow Datasets 4.7."""
    name = feature["pythonClassName"]
    [kind] = feature.keys() - {"pythonClassName", "description"}
    content = feature[kind]
    if as_message:
        messages = {"featuresDict": "FeaturesDict", "sequence": "Sequence", "image": "ImageFeature"}
        message = f"tensorflow_datasets.{messages[kind]}"
        return {"type": name, "content": json.dumps(content), "proto_cls": message}
    if kind == "featuresDict":
        return {
            "type": name,
            "content": {key: to_old(one) for key, one in content["features"].items()},
        }
    old = {}
    for key, value in content.items():
        snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
        if key == "shape":
            sizes = [int(size) for size in value.get("dimensions", [])]
            old[snake] = [None if size < 0 else size for size in sizes]
        elif key == "feature":
            old[snake] = to_old(value)
        elif key in ("numClasses", "sampleRate"):
            old[snake] = int(value)
        elif key == "length":
            old[snake] = None if value == "-1" else int(value)
        elif key == "variableLanguagesPerExample":
            continue
        else:
            old[snake] = value
    return {"type": name, "content": old}


def plain(feature: Feature) -> Any:
    """A tree without the encodings and options that the old form does not have."""
    if isinstance(feature, LeafFeature):
        return (feature.kind, feature.shape, feature.dtype, feature.num_classes)
    if isinstance(feature, SequenceFeature):
        return (feature.length, feature.is_steps, plain(feature.feature))
    assert isinstance(feature, FeaturesDict)
    return {name: plain(child) for name, child in feature.features.items()}


@pytest.mark.parametrize("url", [KINDS_URL, ROBOT_URL])
def test_old_form_of_features_is_the_same_tree(url: str) -> None:
    text = Path(url, "features.json").read_text()
    new = features_from_json(text)
    assert plain(features_from_json(json.dumps(to_old(json.loads(text))))) == plain(new)
    # The old form could contain the message of today, as text.
    message = to_old(json.loads(text), as_message=True)
    assert features_from_json(json.dumps(message)) == new


def test_old_supervised_keys_and_names_without_a_template(folder: Path) -> None:
    path = folder / "dataset_info.json"
    splits = json.loads(path.read_text())["splits"]
    for split in splits:
        del split["filepathTemplate"]
    change(
        path,
        splits=splits,
        fileFormat=None,
        supervisedKeys={"input": "image", "output": "label"},
    )
    opened = streamrec.tfds.open_sync(str(folder))
    assert opened.supervised_keys == ("image", "label")
    assert len(list(opened.read("train"))) == 23


def test_shards_in_the_order_of_generation_are_read_in_turn(folder: Path) -> None:
    change(folder / "dataset_info.json", disableShuffling=True)
    opened = streamrec.tfds.open_sync(str(folder))
    assert list(opened.records("train")) == list(opened.records("train", cycle_length=1))


def test_web_server_without_listing_is_enough(folder: Path, http_store: Store) -> None:
    served = Path(shutil.copytree(folder, http_store.directory / "tfds-web"))
    url = f"{http_store.url}/tfds-web"
    opened = streamrec.tfds.open_sync(url, storage_options=http_store.options)
    assert opened.features["label"].names == ("cat", "dog", "fish")
    local = streamrec.tfds.open_sync(str(folder))
    assert list(opened.records("train")) == list(local.records("train"))
    (served / "kinds-test.tfrecord-00001-of-00003").unlink()
    with pytest.raises(NotFoundError, match="this shard of split 'test' is missing"):
        streamrec.tfds.open_sync(url, storage_options=http_store.options).records("test")


@pytest.mark.parametrize("store", ["s3_store", "gcs_store"])
def test_folder_in_an_object_store(
    folder: Path, store: str, request: pytest.FixtureRequest
) -> None:
    bucket: Store = request.getfixturevalue(store)
    url = f"{bucket.url}/tfds-{store}/kinds"
    bucket.put({f"{url}/1.0.0/{path.name}": path.read_bytes() for path in folder.iterdir()})
    opened = streamrec.tfds.open_sync(url, storage_options=bucket.options)
    assert opened.url == f"{url}/1.0.0"
    local = streamrec.tfds.open_sync(str(folder))
    split = "train[30%:]+test"
    assert list(opened.records(split)) == list(local.records(split))


def test_folder_in_memory_store_is_opened(folder: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder), "/tfds-test/kinds/1.0.0", recursive=True)
    opened = streamrec.tfds.open_sync("memory://tfds-test/kinds")
    assert len(list(opened.read("train[:50%]"))) == 12


def test_global_shuffle_of_a_slice_is_refused() -> None:
    kinds = streamrec.tfds.open_sync(KINDS_URL)
    with pytest.raises(ValueError, match="these are a slice of them"):
        kinds.records("train[1:]").global_shuffle(1, index="memory://x.index")


def test_global_shuffle_takes_a_whole_split_and_its_index(folder: Path) -> None:
    opened = streamrec.tfds.open_sync(str(folder))
    index = str(folder / "train.index")
    paths = [portion.path for portion in opened.portions("train")]
    streamrec.write_index_sync(paths, index)
    shuffled = list(opened.records("train").global_shuffle(3, index=index))
    assert shuffled != list(opened.records("train"))
    assert sorted(shuffled) == sorted(opened.records("train"))
