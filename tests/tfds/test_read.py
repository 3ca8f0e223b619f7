"""Reads the golden folders: every kind of feature, rows and columns, slices, parts of features."""

import asyncio
import json
import pickle
import shutil
import wave
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

import streamrec
import streamrec.tfds
from streamrec import AUTOTUNE, FeatureError, RaggedTensor
from streamrec.tfds import Folder, skip
from streamrec.tfds.decoder import make_decoder
from streamrec.tfds.features_json import features_from_json
from tests.tfds.compare import assert_same
from tests.tfds.folders import (
    KINDS,
    KINDS_SPLITS,
    KINDS_URL,
    ROBOT_URL,
    episode,
    kinds_example,
)


@pytest.fixture(scope="module")
def kinds() -> Folder:
    return streamrec.tfds.open_sync(KINDS_URL)


def numbers_of(examples: Any) -> list[int]:
    return [int(example["with/slash"]) for example in examples]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_of_feature_is_read_as_it_was_written(kinds: Folder, name: str) -> None:
    read = kinds.read("train+test", features=[name, "with/slash"])
    found = list(read)
    written = [number for numbers in KINDS_SPLITS.values() for number in numbers]
    assert sorted(numbers_of(found)) == written
    for example in found:
        expected = kinds_example(int(example["with/slash"]))[name]
        if KINDS[name].pixels:  # JPEG changes pixels; the peers' test compares these
            assert example[name].shape == expected.shape
            assert example[name].dtype == np.uint8
        else:
            assert_same(example[name], expected, name)


def test_columns_are_the_rows_together(kinds: Folder) -> None:
    rows = list(kinds.read("train"))
    first = 0
    for batch in kinds.read("train", batch_size=10):
        count = len(batch["array"])
        expected = rows[first : first + count]
        for name in ("array", "label", "array_zlib", "sequence", "rows", "image", "box", "text"):
            for row, value in zip(expected, batch[name], strict=True):
                assert_same(value, getattr(row[name], "to_list", lambda value=row[name]: value)())
        first += count
    assert first == len(rows)


def test_columns_have_the_type_of_their_shape(kinds: Folder) -> None:
    batch = next(iter(kinds.read("train", batch_size=6)))
    assert batch["array"].shape == (6, 2, 3)
    assert batch["image_gray"].shape == (6, 4, 5, 1)
    assert batch["video_fixed"].shape == (6, 2, 8, 8, 3)
    assert batch["sequence_of_3"].shape == (6, 3)
    for name in ("sequence", "array_first_unknown", "video", "rows_of_rows", "audio"):
        assert isinstance(batch[name], RaggedTensor), name
    assert isinstance(batch["objects"]["box"], RaggedTensor)
    for name in ("image", "array_any_zlib", "array_last_unknown", "text"):
        assert batch[name].dtype == object, name
        assert batch[name].shape == (6,), name
    assert isinstance(batch["maybe_number"], np.ma.MaskedArray)
    assert batch["maybe_number"].dtype == np.int32
    present = [value is not None for value in batch["maybe_text"]]
    assert True in present
    assert False in present


def test_one_record_makes_one_example(kinds: Folder) -> None:
    decoder = kinds.decoder(features=["text", "objects", "maybe_number"])
    record = next(iter(kinds.records("test")))
    assert_same(decoder(record), next(iter(kinds.read("test", features=list(decoder(record))))))


def test_order_interleaves_shards_as_asked(kinds: Folder) -> None:
    # The writer shuffles: which examples are in which shard is seen by reading one at a time.
    shards = [numbers_of(kinds.read(f"train[{shard}shard]")) for shard in range(3)]
    in_turn = numbers_of(kinds.read("train", cycle_length=1))
    assert in_turn == [number for shard in shards for number in shard]
    by_two = numbers_of(kinds.read("train", cycle_length=2, block_length=1))
    assert by_two[:4] == [shards[0][0], shards[1][0], shards[0][1], shards[1][1]]


def test_slices_give_the_records_between_their_bounds(kinds: Folder) -> None:
    everything = numbers_of(kinds.read("train", cycle_length=1))
    for expression, first, last in (("train[5:9]", 5, 9), ("train[50%:]", 12, 23)):
        read = kinds.read(expression, cycle_length=1)
        assert numbers_of(read) == everything[first:last]
        assert len(kinds.read(expression)) == last - first


def test_slice_reads_no_shard_that_it_leaves_out(tmp_path: Any) -> None:
    folder = copy_folder(tmp_path)
    opened = streamrec.tfds.open_sync(str(folder))
    for path in folder.glob("kinds-train.tfrecord-*-of-00003"):
        if "-00001-" not in path.name:
            path.write_bytes(b"damaged" * (path.stat().st_size // 7 + 1))
    assert len(list(opened.read("train[1shard]"))) == 7


def test_cardinality_follows_from_the_description(kinds: Folder) -> None:
    assert len(kinds.records("train")) == 23
    assert kinds.read("train").cardinality() == 23
    assert kinds.read("train[:30%]+test", batch_size=4).cardinality() == 3
    assert kinds.read("train", batch_size=4, drop_remainder=True).cardinality() == 5
    assert kinds.records("train", on_error="skip_record").cardinality() == -2


@pytest.mark.parametrize("split", ["train", "train[3:-2]", "train+test[1:]"])
@pytest.mark.parametrize("readers", [1, 2, 3, 5, 30])
def test_distribute_divides_records_without_a_manifest(
    kinds: Folder, split: str, readers: int
) -> None:
    decode = kinds.decoder(features="with/slash")
    everything = numbers_of(kinds.read(split, features="with/slash"))
    shares = [
        numbers_of(kinds.records(split).distribute(rank, readers).map(decode))
        for rank in range(readers)
    ]
    assert sorted(number for share in shares for number in share) == sorted(everything)
    for even in ("drop", "pad", "cycle"):
        even_records = [
            kinds.records(split).distribute(rank, readers, even=even) for rank in range(readers)
        ]
        counts = [len(list(records)) for records in even_records]
        assert counts == [len(records) for records in even_records]
        assert len(set(counts)) == 1
        assert counts[0] == (
            len(everything) // readers if even == "drop" else -(-len(everything) // readers)
        )


def test_reading_resumes_exactly(kinds: Folder) -> None:
    read = kinds.read("train[2:]+test", batch_size=4, features=["with/slash", "image"])
    expected = [batch["with/slash"].tolist() for batch in read]
    iterator = read.iterate()
    begun = [next(iterator)["with/slash"].tolist() for _ in range(3)]
    state = iterator.state_dict()
    iterator.close()
    rest = [batch["with/slash"].tolist() for batch in read.iterate(state)]
    assert begun + rest == expected


def test_state_of_another_slice_is_refused(kinds: Folder) -> None:
    records = kinds.records("train[2:]")
    iterator = records.iterate()
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    with pytest.raises(streamrec.errors.PositionMismatchError):
        list(kinds.records("train[3:]").iterate(state))


def test_supervised_examples_are_tuples(kinds: Folder) -> None:
    for image, label in kinds.read("test", as_supervised=True):
        assert image.ndim == 3
        assert label in (0, 1, 2)
    images, labels = next(iter(kinds.read("test", as_supervised=True, batch_size=5)))
    assert len(images) == len(labels) == 5
    with pytest.raises(ValueError, match="no supervised keys"):
        streamrec.tfds.open_sync(ROBOT_URL).read("train", as_supervised=True)


def test_labels_as_names(kinds: Folder) -> None:
    read = kinds.read("test", features=["label", "no_label", "with/slash"], labels="names")
    for example in read:
        assert example["label"] == ["cat", "dog", "fish"][int(example["with/slash"]) % 3]
        assert example["no_label"] is None


def test_decoders_replace_the_decoding(kinds: Folder) -> None:
    decoders = {
        "image": skip,
        "video": skip,
        "nested": {"deep": {"b": bytes.upper}},
        "array_zlib": skip,
    }
    for example in kinds.read("test", decoders=decoders):
        assert example["image"].startswith(b"\x89PNG")
        assert all(frame.startswith(b"\x89PNG") for frame in example["video"])
        assert example["nested"]["deep"]["b"].startswith(b"B")
        assert isinstance(example["array_zlib"], bytes)
    with pytest.raises(TypeError, match=r"streamrec\.tfds\.skip or a function"):
        kinds.read("test", decoders={"image": "skip"})
    with pytest.raises(ValueError, match=r"there is no feature 'imag' .*: there are image,"):
        kinds.read("test", decoders={"imag": skip})


def test_part_of_the_features_is_parsed_alone(kinds: Folder) -> None:
    read = kinds.read("test", features={"nested": {"a": True}, "objects": ["label"]})
    [*examples] = read
    assert examples[0].keys() == {"nested", "objects"}
    assert examples[0]["nested"].keys() == {"a"}
    assert examples[0]["objects"].keys() == {"label"}
    with pytest.raises(ValueError, match=r"there is no feature 'labels' .*: there are label,"):
        kinds.read("test", features=["labels"])


def test_records_shuffle_and_batch_before_they_are_decoded(kinds: Folder) -> None:
    records = kinds.records("train").shuffle(8, seed=1).batch(6)
    batches = list(records.map(kinds.decoder(features=["image", "with/slash"]), AUTOTUNE))
    found = [int(number) for batch in batches for number in batch["with/slash"]]
    assert found != sorted(found)
    assert sorted(found) == list(KINDS_SPLITS["train"])


def test_folder_and_datasets_are_pickled(kinds: Folder) -> None:
    copy = pickle.loads(pickle.dumps(kinds))
    assert copy == kinds
    assert numbers_of(pickle.loads(pickle.dumps(copy.read("test")))) == numbers_of(
        kinds.read("test")
    )


def test_async_program_opens_and_reads() -> None:
    async def read() -> list[int]:
        folder = await streamrec.tfds.open(KINDS_URL)
        return numbers_of([example async for example in folder.read("test")])

    assert sorted(asyncio.run(read())) == list(KINDS_SPLITS["test"])


def test_episodes_have_columns_of_steps() -> None:
    robot = streamrec.tfds.open_sync(ROBOT_URL)
    for found in robot.read("train", decoders={"steps/observation/image": skip}):
        expected = episode(int(found["episode_metadata"]["episode_id"]))
        del expected["steps"]["observation"]["image"], found["steps"]["observation"]["image"]
        assert_same(found, expected)


def test_value_that_does_not_fit_names_feature_and_record(kinds: Folder, tmp_path: Any) -> None:
    folder = copy_folder(tmp_path)
    text = (folder / "features.json").read_text()
    assert '"4",\n                            "5",' in text  # the shape of image_gray
    (folder / "features.json").write_text(
        text.replace(
            '"4",\n                            "5",', '"4",\n                            "6",'
        )
    )
    with pytest.raises(FeatureError, match=r"shape \[4, 5, 1\], and features.json says") as caught:
        list(streamrec.tfds.open_sync(str(folder)).read("test", batch_size=5))
    assert caught.value.feature == "image_gray"
    assert caught.value.record == 0


def copy_folder(tmp_path: Any) -> Any:
    """A copy of the folder `kinds` that a test may change."""
    return shutil.copytree(KINDS_URL, tmp_path / "kinds" / "1.0.0")


def wav(samples: Any, width: int) -> bytes:
    """A WAV file of whole numbers of `width` bytes, of shape `[frames, channels]`."""
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(samples.shape[1])
        writer.setsampwidth(width)
        writer.setframerate(8000)
        offset = 128 if width == 1 else 0  # only 8 bits have no sign
        parts = [
            int(one + offset).to_bytes(width, "little", signed=width > 1) for one in samples.flat
        ]
        writer.writeframes(b"".join(parts))
    return file.getvalue()


def audio_decoder(shape: list[int], dtype: str, **options: Any) -> Any:
    """The decoder of a feature `audio` whose values are files."""
    audio = {"shape": {"dimensions": shape}, "dtype": dtype, "lazyDecode": True}
    tree = {"featuresDict": {"features": {"audio": {"audio": audio}}}}
    return make_decoder(features_from_json(json.dumps(tree)), **options)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_audio_that_is_stored_as_its_file_is_decoded(width: int, channels: int) -> None:
    random = np.random.default_rng(width)
    most = 1 << (8 * width - 1)
    samples = random.integers(-most, most, (50, channels))
    record = streamrec.encode_example({"audio": [wav(samples, width)]})
    shape = [-1] if channels == 1 else [-1, channels]
    found = audio_decoder(shape, "int32")(record)["audio"]
    scaled = samples * 256 if width == 3 else samples
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, scaled.reshape([len(samples), *shape[1:]]))


def test_audio_of_another_format_is_an_error_that_helps() -> None:
    record = streamrec.encode_example({"audio": [b"fLaC" + bytes(100)]})
    with pytest.raises(FeatureError, match=r"only WAV files.*skip") as caught:
        audio_decoder([-1], "int16")(record)
    assert caught.value.feature == "audio"
    decoders = {"audio": skip}
    assert audio_decoder([-1], "int16", decoders=decoders)(record)["audio"][:4] == b"fLaC"
    sizes = audio_decoder([-1], "int16", decoders={"audio": len})(record)
    assert sizes["audio"] == 104
    stereo = streamrec.encode_example({"audio": [wav(np.zeros((3, 2), int), 2)]})
    with pytest.raises(FeatureError, match="it has 2 channels"):
        audio_decoder([-1], "int16")(stereo)


def test_images_of_one_size_are_one_array_of_an_example() -> None:
    feature = {"feature": {"image": {"shape": {"dimensions": [-1, -1, 1]}}}}
    tree = {"featuresDict": {"features": {"frames": {"sequence": feature}}}}
    decode = make_decoder(features_from_json(json.dumps(tree)), as_rows=True)
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 3, 4, 1)
    files = [png(one) for one in pixels]
    lists = [files, [], [files[0], png(pixels[0, :2])]]
    records = [streamrec.encode_example({"frames": each}) for each in lists]
    same, empty, several = (row["frames"] for row in decode(records))
    np.testing.assert_array_equal(same, pixels)
    assert (empty.shape, empty.dtype) == ((0, 0, 0, 1), np.uint8)
    assert [one.shape for one in several] == [(3, 4, 1), (2, 4, 1)]
    np.testing.assert_array_equal(decode(records[0])["frames"], pixels)


def png(pixels: Any) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels[..., 0]).save(file, "PNG")
    return file.getvalue()


def test_sequence_of_arrays_without_values_is_empty() -> None:
    tensor = {"tensor": {"shape": {"dimensions": [0, 2]}, "dtype": "float32"}}
    tree = {"featuresDict": {"features": {"x": {"sequence": {"feature": tensor, "length": "-1"}}}}}
    decode = make_decoder(features_from_json(json.dumps(tree)))
    record = streamrec.encode_example({"x": np.zeros(0, np.float32)})
    found = decode(record)["x"]
    assert (found.dtype, found.shape) == (np.float32, (0, 0, 2))
    assert [row.shape for row in decode([record, record])["x"]] == [(0, 0, 2)] * 2
