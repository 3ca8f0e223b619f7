"""The data sets in tests/golden/tfds: what their examples are, and how they were written.

`python -m tests.tfds.folders` writes them again; it needs tensorflow-datasets (`make peers`). The
examples need only NumPy, so tests without it know what a reader must give.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

GOLDEN = Path(__file__).parents[1] / "golden" / "tfds"

KINDS_URL = str(GOLDEN / "kinds" / "1.0.0")
ROBOT_URL = str(GOLDEN / "robot" / "0.1.0")

KINDS_SPLITS = {"train": range(23), "test": range(100, 105)}
ROBOT_SPLITS = {"train": range(12), "val": range(50, 53)}


class Kind(NamedTuple):
    """A feature: how TensorFlow Datasets describes it, and its value in an example.

    `value(random, number)` may use the example's random numbers. `pixels` tells that it is stored
    as JPEG, which changes pixels a little.
    """

    describe: Callable[[Any], Any]
    value: Callable[[np.random.Generator, int], Any]
    pixels: bool = False


def pixels(random: np.random.Generator, *shape: int) -> Any:
    return random.integers(0, 256, shape, dtype=np.uint8)


def floats(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def numbers(random: np.random.Generator, *shape: int) -> Any:
    return random.integers(-9, 9, shape)


def scalars() -> dict[str, Kind]:
    """A number of each dtype, near the end of its range."""
    values: dict[Any, Callable[[int], Any]] = {
        np.int8: lambda i: -i,
        np.uint8: lambda i: 150 + i,
        np.int16: lambda i: -100 * i,
        np.uint16: lambda i: 65_000 + i,
        np.int32: lambda i: -(10**7) * i,
        np.uint32: lambda i: 4 * 10**9 + i,
        np.int64: lambda i: -(2**62) + i,
        np.uint64: lambda i: 2**64 - 1 - i,
        np.float16: lambda i: i / 3,
        np.float32: lambda i: i / 3,
        np.float64: lambda i: i / 4,
        np.bool_: lambda i: i % 2 == 0,
    }
    return {
        f"scalar_{dtype.__name__.rstrip('_')}": Kind(
            lambda f, dtype=dtype: f.Scalar(dtype),
            lambda random, i, dtype=dtype, value=value: dtype(value(i)),
        )
        for dtype, value in values.items()
    }


KINDS: dict[str, Kind] = {
    **scalars(),
    "image": Kind(lambda f: f.Image(), lambda r, i: pixels(r, 3 + i % 4, 4, 3)),
    "image_jpeg": Kind(
        lambda f: f.Image(shape=(None, None, 3), encoding_format="jpeg"),
        lambda r, i: pixels(r, 8, 8 + i % 3, 3),
        pixels=True,
    ),
    "image_gray": Kind(
        lambda f: f.Image(shape=(4, 5, 1), encoding_format="png"), lambda r, i: pixels(r, 4, 5, 1)
    ),
    "image_alpha": Kind(
        lambda f: f.Image(shape=(None, None, 4)), lambda r, i: pixels(r, 2, 2 + i % 4, 4)
    ),
    "image_16_bits": Kind(
        lambda f: f.Image(shape=(None, None, 1), dtype=np.uint16, encoding_format="png"),
        lambda r, i: r.integers(0, 65536, (3, 2 + i % 4, 1), dtype=np.uint16),
    ),
    "image_16_bits_rgb": Kind(
        lambda f: f.Image(shape=(2, 3, 3), dtype=np.uint16, encoding_format="png"),
        lambda r, i: r.integers(0, 65536, (2, 3, 3), dtype=np.uint16),
    ),
    "depth": Kind(
        lambda f: f.Image(shape=(None, None, 1), dtype=np.float32, encoding_format="png"),
        lambda r, i: floats(r, 2, 3 + i % 2, 1),
    ),
    "segments": Kind(
        lambda f: f.LabeledImage(labels=["sky", "road"], shape=(None, None, 1)),
        lambda r, i: r.integers(0, 2, (3, 2 + i % 4, 1)).astype(np.uint8),
    ),
    "video": Kind(lambda f: f.Video(shape=(None, 3, 4, 3)), lambda r, i: pixels(r, i % 4, 3, 4, 3)),
    "video_fixed": Kind(
        lambda f: f.Video(shape=(2, 8, 8, 3), encoding_format="jpeg"),
        lambda r, i: pixels(r, 2, 8, 8, 3),
        pixels=True,
    ),
    "audio": Kind(lambda f: f.Audio(), lambda r, i: r.integers(-30_000, 30_000, (5 * (i % 3),))),
    "audio_stereo": Kind(
        lambda f: f.Audio(shape=(None, 2), dtype=np.float32, sample_rate=16_000),
        lambda r, i: floats(r, i % 4, 2),
    ),
    "text": Kind(lambda f: f.Text(), lambda r, i: f"snö {i}".encode()),
    "label": Kind(
        lambda f: f.ClassLabel(names=["cat", "dog", "fish"]), lambda r, i: np.int64(i % 3)
    ),
    "label_of_7": Kind(lambda f: f.ClassLabel(num_classes=7), lambda r, i: np.int64(i % 7)),
    "no_label": Kind(lambda f: f.ClassLabel(num_classes=2), lambda r, i: np.int64(-1)),
    "string": Kind(lambda f: f.Scalar(np.object_), lambda r, i: b"\x00\xff%d\x00" % i),
    "array": Kind(lambda f: f.Tensor(shape=(2, 3), dtype=np.float32), lambda r, i: floats(r, 2, 3)),
    "array_first_unknown": Kind(
        lambda f: f.Tensor(shape=(None, 3), dtype=np.int32),
        lambda r, i: numbers(r, i % 4, 3).astype(np.int32),
    ),
    "array_last_unknown": Kind(
        lambda f: f.Tensor(shape=(3, None), dtype=np.int32),
        lambda r, i: numbers(r, 3, i % 4).astype(np.int32),
    ),
    "array_of_strings": Kind(
        lambda f: f.Tensor(shape=(2, 2), dtype=np.object_),
        lambda r, i: np.array([[b"a", b"bb"], [b"", b"d\0"]], object),
    ),
    "array_of_flags": Kind(
        lambda f: f.Tensor(shape=(3,), dtype=np.bool_), lambda r, i: np.array([True, False, i > 3])
    ),
    "array_uint64": Kind(
        lambda f: f.Tensor(shape=(2,), dtype=np.uint64),
        lambda r, i: np.array([2**63 + i, 1], np.uint64),
    ),
    "array_bytes": Kind(
        lambda f: f.Tensor(shape=(2, 3), dtype=np.float64, encoding="bytes"),
        lambda r, i: r.standard_normal((2, 3)),
    ),
    "array_zlib": Kind(
        lambda f: f.Tensor(shape=(None, 4), dtype=np.uint8, encoding="zlib"),
        lambda r, i: pixels(r, i % 4, 4),
    ),
    "array_any_zlib": Kind(
        lambda f: f.Tensor(shape=(None, None, 2), dtype=np.int16, encoding="zlib"),
        lambda r, i: numbers(r, i % 4, i % 3, 2).astype(np.int16),
    ),
    "array_any_bytes": Kind(
        lambda f: f.Tensor(shape=(None, None), dtype=np.float32, encoding="bytes"),
        lambda r, i: floats(r, i % 3, i % 4),
    ),
    "flags_bytes": Kind(
        lambda f: f.Tensor(shape=(5,), dtype=np.bool_, encoding="bytes"),
        lambda r, i: np.arange(5) < i % 5,
    ),
    "array_without_values": Kind(
        lambda f: f.Tensor(shape=(0, 3), dtype=np.int32), lambda r, i: np.zeros((0, 3), np.int32)
    ),
    "box": Kind(
        lambda f: f.BBoxFeature(),
        lambda r, i: np.array([0.125, 0.25, 0.5, 0.5 + i / 256], np.float32),
    ),
    "translation": Kind(
        lambda f: f.Translation(languages=["en", "sv"]),
        lambda r, i: {"en": b"snow %d" % i, "sv": "snö".encode()},
    ),
    "sequence": Kind(lambda f: f.Sequence(np.int32), lambda r, i: np.arange(i % 4, dtype=np.int32)),
    "sequence_of_3": Kind(
        lambda f: f.Sequence(np.float32, length=3), lambda r, i: np.array([1, 2, i], np.float32)
    ),
    "sequence_of_arrays": Kind(
        lambda f: f.Sequence(f.Tensor(shape=(2,), dtype=np.float32)),
        lambda r, i: floats(r, i % 4, 2),
    ),
    "sequence_of_flags": Kind(lambda f: f.Sequence(np.bool_), lambda r, i: np.arange(i % 4) > 1),
    "sequence_of_uint64": Kind(
        lambda f: f.Sequence(np.uint64),
        lambda r, i: np.uint64(2**64 - 1) - np.arange(i % 4, dtype=np.uint64),
    ),
    "sequence_of_images": Kind(
        lambda f: f.Sequence(f.Image(shape=(2, 3, 3))), lambda r, i: pixels(r, i % 4, 2, 3, 3)
    ),
    "sequence_of_texts": Kind(
        lambda f: f.Sequence(f.Text()),
        lambda r, i: np.array([b"word %d" % n for n in range(i % 4)], object),
    ),
    "sequence_of_labels": Kind(
        lambda f: f.Sequence(f.ClassLabel(num_classes=5)), lambda r, i: np.arange(i % 4)
    ),
    "sequence_zlib": Kind(
        lambda f: f.Sequence(f.Tensor(shape=(2, 2), dtype=np.int16, encoding="zlib")),
        lambda r, i: numbers(r, i % 4, 2, 2).astype(np.int16),
    ),
    "objects": Kind(
        lambda f: f.Sequence(
            {
                "box": f.BBoxFeature(),
                "label": f.ClassLabel(names=["car", "tree"]),
                "name": f.Text(),
                "crowd": np.bool_,
            }
        ),
        lambda r, i: {
            "box": np.full((i % 4, 4), [0.0, 0.25, 0.5, 0.75], np.float32),
            "label": np.arange(i % 4) % 2,
            "name": np.array([b"object %d" % n for n in range(i % 4)], object),
            "crowd": np.arange(i % 4) % 2 == 0,
        },
    ),
    "rows": Kind(
        lambda f: f.Sequence(f.Sequence(np.int32)),
        lambda r, i: [list(range(n)) for n in range(i % 4)],
    ),
    "rows_of_texts": Kind(
        lambda f: f.Sequence({"words": f.Sequence(f.Text()), "id": np.int64}),
        lambda r, i: {
            "words": [[b"w%d" % k for k in range(n)] for n in range(i % 4)],
            "id": np.arange(i % 4),
        },
    ),
    "rows_of_rows": Kind(
        lambda f: f.Sequence(f.Sequence(f.Sequence(np.float32))),
        lambda r, i: [[[float(k) for k in range(m)] for m in range(n)] for n in range(i % 4)],
    ),
    "rows_of_arrays": Kind(
        lambda f: f.Sequence(f.Sequence(f.Tensor(shape=(2,), dtype=np.int64))),
        lambda r, i: [[[k, n] for k in range(n)] for n in range(i % 4)],
    ),
    "videos": Kind(
        lambda f: f.Sequence(f.Video(shape=(None, 2, 2, 3))),
        lambda r, i: [pixels(r, n, 2, 2, 3).tolist() for n in range(i % 4)],
    ),
    "nested": Kind(
        lambda f: {
            "a": np.int32,
            "deep": {"b": f.Text(), "c": f.Tensor(shape=(2,), dtype=np.float32)},
        },
        lambda r, i: {
            "a": np.int32(i),
            "deep": {"b": b"b%d" % i, "c": np.array([i, i + 0.5], np.float32)},
        },
    ),
    "with/slash": Kind(lambda f: np.int64, lambda r, i: np.int64(i)),
    "maybe_text": Kind(
        lambda f: f.Text(optional=True), lambda r, i: None if i % 2 else b"text %d" % i
    ),
    "maybe_number": Kind(
        lambda f: f.Scalar(np.int32, optional=True),
        lambda r, i: None if i % 3 == 0 else np.int32(i),
    ),
    "maybe_array": Kind(
        lambda f: f.Tensor(shape=(2,), dtype=np.float32, optional=True),
        lambda r, i: None if i % 2 else np.array([i, 1], np.float32),
    ),
}


def kinds_example(number: int) -> dict[str, Any]:
    """An example of the data set `kinds`, as a reader must give it."""
    random = np.random.default_rng(number)
    return {name: kind.value(random, number) for name, kind in sorted(KINDS.items())}


def episode(number: int) -> dict[str, Any]:
    """An episode of the data set `robot`: the columns of its steps, and its metadata."""
    random = np.random.default_rng(number)
    steps = 1 + number % 5
    last = np.arange(steps) == steps - 1
    return {
        "steps": {
            "observation": {
                "image": pixels(random, steps, 8, 8, 3),
                "wrist": pixels(random, steps, 4, 4, 3),
                "depth": floats(random, steps, 2, 3, 1),
                "state": floats(random, steps, 4),
            },
            "action": floats(random, steps, 3),
            "reward": last.astype(np.float32),
            "discount": np.ones(steps, np.float32),
            "is_first": np.arange(steps) == 0,
            "is_last": last,
            "is_terminal": last & (number % 2 == 0),
            "language_instruction": np.array([b"pick %d" % number] * steps, object),
        },
        "episode_metadata": {
            "file_path": b"/data/%d.npy" % number,
            "episode_id": np.int32(number),
        },
    }


def step_list(columns: Any) -> list[Any]:
    """The steps of an episode, one by one."""
    count = len(columns["action"])

    def at(value: Any, step: int) -> Any:
        if isinstance(value, dict):
            return {name: at(each, step) for name, each in value.items()}
        return value[step]

    return [at(columns, step) for step in range(count)]


def to_write(value: Any) -> Any:
    """A value in a form that TensorFlow Datasets takes."""
    if isinstance(value, dict):
        return {name: to_write(each) for name, each in value.items()}
    if isinstance(value, np.generic):
        return value.item()
    return value


def write(directory: str) -> None:
    """Writes both data sets with TensorFlow Datasets."""
    import tensorflow_datasets as tfds

    features = tfds.features
    box = features.BBox

    def kinds(numbers: range) -> Iterator[Any]:
        for number in numbers:
            example = kinds_example(number)
            example["box"] = box(*map(float, example["box"]))
            objects = example["objects"]
            example["objects"] = [
                {
                    "box": box(*map(float, objects["box"][n])),
                    **{name: to_write(objects[name][n]) for name in ("label", "name", "crowd")},
                }
                for n in range(len(objects["label"]))
            ]
            words = example["rows_of_texts"]
            example["rows_of_texts"] = [
                {"words": row, "id": int(n)}
                for row, n in zip(words["words"], words["id"], strict=True)
            ]
            example["videos"] = [
                np.array(v, np.uint8).reshape(-1, 2, 2, 3) for v in example["videos"]
            ]
            example["rows_of_arrays"] = [
                np.array(rows, np.int64).reshape(-1, 2) for rows in example["rows_of_arrays"]
            ]
            yield number, to_write(example)

    def robot(numbers: range) -> Iterator[Any]:
        for number in numbers:
            example = episode(number)
            example["steps"] = step_list(example["steps"])
            yield number, to_write(example)

    class Kinds(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            tree = {name: kind.describe(features) for name, kind in KINDS.items()}
            return tfds.core.DatasetInfo(
                builder=self,
                description="Every kind of feature.",
                features=features.FeaturesDict(tree),
                supervised_keys=("image", "label"),
            )

        def _split_generators(self, manager: Any) -> Any:
            return {name: kinds(numbers) for name, numbers in KINDS_SPLITS.items()}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    class Robot(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("0.1.0")

        def _info(self) -> Any:
            step = {
                "observation": {
                    "image": features.Image(shape=(8, 8, 3), encoding_format="jpeg"),
                    "wrist": features.Image(shape=(4, 4, 3), encoding_format="png"),
                    "depth": features.Tensor(shape=(2, 3, 1), dtype=np.float32, encoding="zlib"),
                    "state": features.Tensor(shape=(4,), dtype=np.float32),
                },
                "action": features.Tensor(shape=(3,), dtype=np.float32),
                **dict.fromkeys(("reward", "discount"), np.float32),
                **dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_),
                "language_instruction": features.Text(),
            }
            metadata = {"file_path": features.Text(), "episode_id": np.int32}
            return tfds.core.DatasetInfo(
                builder=self,
                features=features.FeaturesDict(
                    {"steps": features.Dataset(step), "episode_metadata": metadata}
                ),
            )

        def _split_generators(self, manager: Any) -> Any:
            return {name: robot(numbers) for name, numbers in ROBOT_SPLITS.items()}

        def _generate_examples(self) -> None:
            raise NotImplementedError

    for builder in (Kinds(data_dir=directory), Robot(data_dir=directory)):
        builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))


if __name__ == "__main__":
    write(sys.argv[1] if len(sys.argv) > 1 else str(GOLDEN))
