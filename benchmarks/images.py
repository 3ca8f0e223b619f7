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

import tempfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn

KINDS = {"500 x 375": (375, 500, 1, 400), "2000 x 1500, ratio=4": (1500, 2000, 4, 40)}
"""Height, width, ratio, and how many."""

BATCH = 16
SIDES = ("streamrec", "streamrec, a record a call", "Pillow in map", "tf.data", "tf.data, accurate")


def main(*, rounds: int = 3) -> None:
    """A row for each size of images."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (height, width, ratio, count) in KINDS.items():
            path = write(Path(folder) / f"{height}.tfrecord", height, width, count)
            rows.append({"images": name, "count": count, **compared(path, ratio, rounds)})
            print(rows[-1], flush=True)
    packages = ["simplejpeg", "pillow", "tensorflow-cpu", "numpy"]
    save("images", packages, rounds=rounds, batch=BATCH, rows=rows)


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


def compared(path: str, ratio: int, rounds: int) -> dict[str, Any]:
    """All sides in turn."""
    taken = in_turn(sides_of(measured, SIDES, path=path, ratio=ratio), rounds)
    return {
        "images_a_second": taken.by_side("a_second"),
        "cpu_ms_an_image": taken.by_side("cpu_ms"),
        "ratio_to": {side: taken.ratio("a_second", SIDES[0], side) for side in SIDES[1:]},
        **taken.calm,
    }


def measured(side: str, path: str, ratio: int) -> Figures:
    """Images a second and processor time of the second of two passes."""
    images = SIDE[side](path, ratio)
    sum(images())
    with Meter() as meter:
        count = sum(images())
    return {"a_second": count / meter.seconds, "cpu_ms": meter.each(count)["cpu_us"] / 1e3}


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
    run(main)
