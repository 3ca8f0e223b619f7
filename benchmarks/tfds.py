"""A folder of TensorFlow Datasets: `streamrec.tfds` beside tfds with TensorFlow.

    python -m benchmarks.tfds [--rounds 3]

tfds writes three folders: small features (numbers and a text), JPEGs of 500 x 375 with a label, and
RLDS episodes with JPEGs of 128 x 128. Each side reads a whole split in batches of 64, or all steps,
in a process of its own, and drops what it reads.

tfds runs as its guide for performance says: one `as_dataset`, `batch` (`ragged_batch` of the small
features, which have a sequence) and `prefetch(AUTOTUNE)`; steps come by `flat_map`.

Windows of two observations and four actions are taken of the same episodes. Beside them runs what
dlimp, and loaders of Octo and OpenVLA, do with tfds: a trajectory is one element with undecoded
images, windows are gathered of it, and images are decoded last.

A row has the elements a second and the processor time of a second pass; the time from the start of
the interpreter to the first batch; and the memory of the process. Ratios are those of one round;
their medians count.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.harness.meter import Figures, Meter, peak_mb
from benchmarks.harness.process import in_own_process, seconds_since_start, sides_of
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import Rounds, in_turn

BATCH = 64
SIDES = ("streamrec", "tfds")
COUNTS = {"small": 60_000, "images": 600, "robot": 40, "windows": 40}
"""How many examples are read; an episode has STEPS steps. Windows are of the folder `robot`."""

EPISODES = ("robot", "windows")
HISTORY = 2
FUTURE = 4

STEPS = 60


def main(*, rounds: int = 3) -> None:
    """A row for each folder."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        in_own_process(write, directory=directory, counts=COUNTS)
        for kind, count in COUNTS.items():
            wanted = count * (STEPS if kind in EPISODES else 1)
            folder = f"{directory}/{'robot' if kind in EPISODES else kind}/1.0.0"
            task = {"folder": folder, "kind": kind, "wanted": wanted}
            taken = in_turn(sides_of(measured, SIDES, **task), rounds)
            rows.append({"data": kind, **row_of(taken)})
            print(rows[-1], flush=True)
    packages = ["tensorflow-datasets", "tensorflow-cpu", "simplejpeg", "numpy"]
    save("tfds", packages, rounds=rounds, batch=BATCH, rows=rows)


def row_of(taken: Rounds) -> dict[str, Any]:
    """The medians of each side, and the ratios: above 1, streamrec is better."""
    row: dict[str, Any] = {side: taken.medians(side) for side in SIDES}
    for name in row["tfds"]:
        better_if_small = name != "elements/s"
        sides = reversed(SIDES) if better_if_small else SIDES
        row[f"ratio, {name}"] = taken.ratio(name, *sides)
    return {**row, **taken.calm}


def measured(side: str, folder: str, kind: str, wanted: int) -> Figures:
    """One side reads all of a split, twice."""
    read = {"streamrec": with_streamrec, "tfds": with_tfds}[side]
    batches = read(folder, kind)
    count = next(batches)
    first = seconds_since_start()
    assert count + sum(batches) == wanted
    # The second pass is measured: imports, traces of graphs and the first files are behind it.
    with Meter() as meter:
        assert sum(read(folder, kind)) == wanted
    return {
        "elements/s": wanted / meter.seconds,
        "processor s": meter.cpu_seconds,
        "first batch s": first,
        "memory MB": peak_mb(),
    }


def with_streamrec(folder: str, kind: str) -> Iterator[int]:
    """The sizes of batches that streamrec gives."""
    import streamrec.tfds

    opened = streamrec.tfds.open_sync(folder)
    if kind in EPISODES:
        window: dict[str, Any] = {"history": HISTORY, "future": FUTURE} if kind == "windows" else {}
        for batch in opened.steps("train", batch_size=BATCH, **window):
            yield len(batch["step"])
    else:
        for batch in opened.read("train", batch_size=BATCH):
            yield len(batch["label"])


def with_tfds(folder: str, kind: str) -> Iterator[int]:
    """The sizes of batches that tfds gives."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(folder)
    if kind == "windows":
        undecoded = {"steps": tfds.decode.SkipDecoding()}
        dataset = windows(builder.as_dataset(split="train", decoders=undecoded))
    else:
        dataset = builder.as_dataset(split="train")
    if kind == "robot":
        dataset = dataset.flat_map(lambda episode: episode["steps"])
    batched = dataset.ragged_batch(BATCH) if kind == "small" else dataset.batch(BATCH)
    dataset = batched.prefetch(tf.data.AUTOTUNE)
    for batch in tfds.as_numpy(dataset):
        yield len(batch["action" if kind in EPISODES else "label"])


def windows(trajectories: Any) -> Any:
    """Steps with their windows, of trajectories whose images are not decoded."""
    import tensorflow as tf

    def gather(trajectory: Any) -> Any:
        steps = trajectory["steps"]
        count = tf.shape(steps["action"])[0]
        past = tf.range(count)[:, None] + tf.range(1 - HISTORY, 1)
        ahead = tf.range(count)[:, None] + tf.range(FUTURE)
        return {
            "image": tf.gather(steps["observation"]["image"], tf.maximum(past, 0)),
            "timestep_pad_mask": past >= 0,
            "action": tf.gather(steps["action"], tf.minimum(ahead, count - 1)),
            "action_pad_mask": ahead < count,
            "is_last": steps["is_last"],
        }

    def decode(step: Any) -> Any:
        files = [step["image"][number] for number in range(HISTORY)]
        return {**step, "image": tf.stack([tf.io.decode_jpeg(file, channels=3) for file in files])}

    calls = tf.data.AUTOTUNE
    steps = trajectories.map(gather, calls).flat_map(tf.data.Dataset.from_tensor_slices)
    return steps.map(decode, calls)


def write(directory: str, counts: dict[str, int]) -> None:
    """Writes the folders with tfds."""
    import tensorflow_datasets as tfds

    features = tfds.features
    random = np.random.default_rng(0)
    photo = jpeg(random, 375, 500)
    frame = jpeg(random, 128, 128)
    step = {
        "observation": {"image": features.Image(shape=(128, 128, 3), encoding_format="jpeg")},
        "action": features.Tensor(shape=(7,), dtype=np.float32),
        "is_last": np.bool_,
    }
    trees = {
        "small": {
            "label": np.int64,
            "vector": features.Tensor(shape=(8,), dtype=np.float32),
            "name": features.Text(),
            "tags": features.Sequence(np.int64),
        },
        "images": {
            "image": features.Image(shape=(None, None, 3), encoding_format="jpeg"),
            "label": np.int64,
        },
        "robot": {"steps": features.Dataset(step)},
    }

    def example(kind: str, number: int) -> Any:
        if kind == "small":
            vector = random.random(8, np.float32)
            tags = list(range(number % 5))
            return {"label": number, "vector": vector, "name": f"name {number}", "tags": tags}
        if kind == "images":
            return {"image": io.BytesIO(photo), "label": number}
        steps = [
            {
                "observation": {"image": io.BytesIO(frame)},
                "action": random.random(7, np.float32),
                "is_last": at == STEPS - 1,
            }
            for at in range(STEPS)
        ]
        return {"steps": steps}

    class Base(tfds.core.GeneratorBasedBuilder):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> Any:
            tree = features.FeaturesDict(trees[self.name])
            return tfds.core.DatasetInfo(builder=self, features=tree)

        def _split_generators(self, manager: Any) -> Any:
            return {"train": self._generate_examples()}

        def _generate_examples(self) -> Any:
            for number in range(counts[self.name]):
                yield number, example(self.name, number)

    for kind in trees:
        builder = type(kind.capitalize(), (Base,), {"name": kind})(data_dir=directory)
        options = tfds.download.DownloadConfig(num_shards=4)
        builder.download_and_prepare(download_config=options)


def jpeg(random: np.random.Generator, height: int, width: int) -> bytes:
    """A JPEG with smooth shapes and a little noise, about as dense as a photograph."""
    from PIL import Image

    coarse = random.integers(0, 256, (height // 16 + 1, width // 16 + 1, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noise = random.integers(-12, 13, smooth.shape)
    file = io.BytesIO()
    pixels = np.clip(smooth.astype(int) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


if __name__ == "__main__":
    run(main)
