"""Decoded images a second, on all cores: `decode_jpeg` beside Pillow, both in `map`, and beside
tf.data.

    python -m benchmarks.images [--rounds 3]

One local shard of Examples with a JPEG each (500 x 375, as ImageNet's; a large one is 2,000 x
1,500) goes through parsing and decoding to a loop that drops the pixels. tf.data runs
`parse_single_example` and `tf.io.decode_jpeg` in one `map` with AUTOTUNE, and with its accurate
inverse transform too, which gives the pixels that streamrec gives. Each side runs in a process of
its own, one after the other; ratios are those of one round, and their medians count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calm import calmest
from benchmarks.machine import describe, median, save

KINDS = {"500 x 375": (375, 500, 1, 400), "2000 x 1500, ratio=4": (1500, 2000, 4, 40)}
"""Height, width, ratio, and how many."""

BATCH = 16
SIDES = ("streamrec", "streamrec, a record a call", "Pillow in map", "tf.data", "tf.data, accurate")


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, path, ratio = arguments.child
        print(json.dumps(child(side, path, int(ratio))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (height, width, ratio, count) in KINDS.items():
            path = write(Path(folder) / f"{height}.tfrecord", height, width, count)
            rows.append({"images": name, "count": count, **row(path, ratio, arguments.rounds)})
            print(json.dumps(rows[-1]), flush=True)
    machine = describe("simplejpeg", "pillow", "tensorflow-cpu", "numpy")
    save("images", {"machine": machine, "rounds": arguments.rounds, "batch": BATCH, "rows": rows})


def write(path: Path, height: int, width: int, count: int) -> str:
    """A shard of Examples with a JPEG each: 20 pictures with the detail of photographs, again and
    again.
    """
    from PIL import Image

    from streamrec import encode_example, encode_records

    jpegs = []
    for seed in range(20):
        random = np.random.default_rng(seed)
        coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
            (width, height), 3
        )
        fine = Image.fromarray(
            random.integers(0, 256, (height // 3, width // 3, 3), dtype=np.uint8)
        )
        file = BytesIO()
        Image.blend(coarse, fine.resize((width, height), 3), 0.15).save(file, "JPEG", quality=90)
        jpegs.append(file.getvalue())
    records = [encode_example({"image": jpegs[row % 20], "label": row}) for row in range(count)]
    path.write_bytes(encode_records(records))
    return str(path)


def row(path: str, ratio: int, rounds: int) -> dict[str, Any]:
    """All sides in turn; the ratios of neighbours in time, and their medians."""
    runs, calm = calmest(lambda: {side: spawn(side, path, ratio) for side in SIDES}, rounds)
    speed = {side: median(run[side]["a_second"] for run in runs) for side in SIDES}
    return {
        "images_a_second": speed,
        "cpu_ms_an_image": {side: median(run[side]["cpu_ms"] for run in runs) for side in SIDES},
        "ratio_to": {
            side: median(run["streamrec"]["a_second"] / run[side]["a_second"] for run in runs)
            for side in SIDES[1:]
        },
        **calm,
    }


def spawn(side: str, path: str, ratio: int) -> dict[str, float]:
    """One side, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.images", "--child", side, path, str(ratio)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def child(side: str, path: str, ratio: int) -> dict[str, float]:
    """Images a second and processor time of the second of two passes."""
    images = SIDE[side](path, ratio)
    sum(1 for _ in images())
    began, busy = time.perf_counter(), time.process_time()
    count = sum(images())
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    return {"a_second": count / seconds, "cpu_ms": 1e3 * cpu / count}


def by_streamrec(path: str, ratio: int, batch: int = BATCH) -> Callable[[], Iterator[int]]:
    """`decode_jpeg` of a column in `map`."""
    import streamrec
    from streamrec.images import decode_jpeg

    return in_map(
        path, batch, lambda columns: decode_jpeg(columns["image"], 3, ratio), streamrec.AUTOTUNE
    )


def by_pillow(path: str, ratio: int) -> Callable[[], Iterator[int]]:
    """The same pipeline with what people write who have Pillow."""
    from PIL import Image

    import streamrec

    def pixels(data: bytes) -> Any:
        image = Image.open(BytesIO(data))
        if ratio > 1:
            image.draft("RGB", (image.width // ratio, image.height // ratio))
        return np.asarray(image.convert("RGB"))

    return in_map(
        path, BATCH, lambda columns: [pixels(data) for data in columns["image"]], streamrec.AUTOTUNE
    )


def in_map(
    path: str, batch: int, decode: Callable[[Any], Any], calls: int
) -> Callable[[], Iterator[int]]:
    """A streamrec pipeline that decodes batches."""
    import streamrec

    features = {
        "image": streamrec.FixedLenFeature([], bytes),
        "label": streamrec.FixedLenFeature([], np.int64),
    }
    parsed = (
        streamrec.TFRecordDataset(path).batch(batch).parse_example(features, string_columns=True)
    )
    images = parsed.map(decode, num_parallel_calls=calls)
    return lambda: (len(each) for each in images)


def by_tensorflow(path: str, ratio: int, method: str = "") -> Callable[[], Iterator[int]]:
    """tf.data, record by record, as its guides write it."""
    import tensorflow as tf

    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }

    def decoded(record: Any) -> Any:
        image = tf.io.parse_single_example(record, features)["image"]
        return tf.io.decode_jpeg(image, channels=3, ratio=ratio, dct_method=method)

    dataset = (
        tf.data.TFRecordDataset(path).map(decoded, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH)
    )
    return lambda: (int(each.shape[0]) for each in dataset.prefetch(tf.data.AUTOTUNE))


SIDE: dict[str, Callable[[str, int], Callable[[], Iterator[int]]]] = {
    "streamrec": by_streamrec,
    "streamrec, a record a call": lambda path, ratio: by_streamrec(path, ratio, 1),
    "Pillow in map": by_pillow,
    "tf.data": by_tensorflow,
    "tf.data, accurate": lambda path, ratio: by_tensorflow(path, ratio, "INTEGER_ACCURATE"),
}


if __name__ == "__main__":
    main()
