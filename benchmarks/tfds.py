"""A folder of TensorFlow Datasets: `streamrec.tfds` beside tfds with TensorFlow.

    python -m benchmarks.tfds [--rounds 3]

tfds writes three folders: small features (numbers and a text), JPEGs of 500 x 375 with a label, and
RLDS episodes with JPEGs of 128 x 128. Each side reads a whole split in batches of 64, or all steps,
in a process of its own, and drops what it reads.

tfds runs as its guide for performance says: one `as_dataset`, `batch` (`ragged_batch` of the small
features, which have a sequence) and `prefetch(AUTOTUNE)`; steps come by `flat_map`.

A row has the elements a second and the processor time of a second pass; the time from the start of
the interpreter to the first batch; and the memory of the process. Ratios are those of one round;
their medians count.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.machine import describe, median, save

BATCH = 64
SIDES = ("streamrec", "tfds")
COUNTS = {"small": 60_000, "images": 600, "robot": 40}
"""How many examples each folder has; an episode has STEPS steps."""

STEPS = 60


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, folder, kind = arguments.child
        print(json.dumps(child(side, folder, kind)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        run_child("write", directory, "all")
        for kind in COUNTS:
            folder = f"{directory}/{kind}/1.0.0"
            rounds = [
                {side: run_child(side, folder, kind) for side in SIDES}
                for _ in range(arguments.rounds)
            ]
            rows.append({"data": kind, **summary(rounds)})
            print(json.dumps(rows[-1]), flush=True)
    machine = describe("tensorflow-datasets", "tensorflow-cpu", "simplejpeg", "numpy")
    save("tfds", {"machine": machine, "rounds": arguments.rounds, "batch": BATCH, "rows": rows})


def run_child(*arguments: str) -> dict[str, Any]:
    """What one side measured, in a process of its own."""
    began = time.time()
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "BEGAN": repr(began)}
    command = [sys.executable, "-m", "benchmarks.tfds", "--child", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    measured: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """The medians of all rounds, and of the ratios within each: above 1, streamrec is better."""
    found: dict[str, Any] = {
        side: {
            name: round(median([one[side][name] for one in rounds]), 3) for name in rounds[0][side]
        }
        for side in SIDES
    }
    better_if_small = ("first batch s", "processor s", "memory MB")
    for name in rounds[0]["tfds"]:
        ratios = [one["streamrec"][name] / one["tfds"][name] for one in rounds]
        if name in better_if_small:
            ratios = [1 / ratio for ratio in ratios]
        found[f"ratio, {name}"] = round(median(ratios), 2)
    return found


def child(side: str, folder: str, kind: str) -> dict[str, float]:
    """One side: reads all of a split."""
    if side == "write":
        write(folder)
        return {}
    read = {"streamrec": with_streamrec, "tfds": with_tfds}[side]
    batches = read(folder, kind)
    wanted = COUNTS[kind] * (STEPS if kind == "robot" else 1)
    count = next(batches)
    first = time.time() - float(os.environ["BEGAN"])
    assert count + sum(batches) == wanted
    # A second pass is measured: imports, traces of graphs and the first files are behind it.
    began = time.perf_counter()
    used = time.process_time()
    assert sum(read(folder, kind)) == wanted
    seconds = time.perf_counter() - began
    return {
        "elements/s": wanted / seconds,
        "processor s": time.process_time() - used,
        "first batch s": first,
        "memory MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def with_streamrec(folder: str, kind: str) -> Iterator[int]:
    """The sizes of batches that streamrec gives."""
    import streamrec.tfds

    opened = streamrec.tfds.open_sync(folder)
    if kind == "robot":
        for batch in opened.steps("train", batch_size=BATCH):
            yield len(batch["step"])
    else:
        for batch in opened.read("train", batch_size=BATCH):
            yield len(batch["label"])


def with_tfds(folder: str, kind: str) -> Iterator[int]:
    """The sizes of batches that tfds gives."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    dataset = tfds.builder_from_directory(folder).as_dataset(split="train")
    if kind == "robot":
        dataset = dataset.flat_map(lambda episode: episode["steps"])
    batched = dataset.ragged_batch(BATCH) if kind == "small" else dataset.batch(BATCH)
    dataset = batched.prefetch(tf.data.AUTOTUNE)
    for batch in tfds.as_numpy(dataset):
        yield len(batch["action" if kind == "robot" else "label"])


def write(directory: str) -> None:
    """Writes the folders with tfds."""
    import tensorflow_datasets as tfds

    features = tfds.features
    random = np.random.default_rng(0)
    photo = jpeg(random, 375, 500)
    frame = jpeg(random, 128, 128)
    step = {
        "image": features.Image(shape=(128, 128, 3), encoding_format="jpeg"),
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
                "image": io.BytesIO(frame),
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
            for number in range(COUNTS[self.name]):
                yield number, example(self.name, number)

    for kind in COUNTS:
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
    main()
