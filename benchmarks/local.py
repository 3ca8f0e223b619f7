"""The whole way from a local file: `for frames in TFRecordDataset(path).batch(1024)` beside
tf.data's.

    python -m benchmarks.local [--rounds 3]

Both read the same file from the page cache, check every CRC32C and give batches of 1,024 records to
a `for` loop; in turn, each in a process of its own, after one pass that is not counted. streamrec
has one core. tf.data runs twice: on one core, and on all cores as it comes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Figures, Meter, pin
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec import Frames, encode_records

SIZES = {84: (1_000_000, 40), 680: (300_000, 12), 110_000: (4_000, 2.5)}
"""Record length: number of records, and the ratio to reach."""

ALL_CORES = "tensorflow, all cores"
SIDES = ("tensorflow", ALL_CORES, "streamrec")


def main(*, rounds: int = 3) -> None:
    """A row for each length of records."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size, (count, bar) in SIZES.items():
            path = write(Path(folder) / f"{size}.tfrecord", size, count)
            rows.append({"record_bytes": size, "bar": bar, **compared(path, rounds)})
            print(
                "{record_bytes:>7} B: x{ratio} of tf.data on one core, x{ratio_all_cores} of "
                "tf.data on all (bar x{bar}); MB/s {mb_s}".format(**rows[-1]),
                flush=True,
            )
    save("local", ["tensorflow-cpu", "numpy"], rounds=rounds, rows=rows)


def write(path: Path, size: int, count: int) -> str:
    """A file of random records of one length."""
    starts = np.arange(count, dtype=np.int64) * size
    payloads = np.random.default_rng(0).bytes(count * size)
    path.write_bytes(encode_records(Frames(payloads, np.stack([starts, starts + size], axis=1))))
    return str(path)


def compared(path: str, rounds: int) -> dict[str, Any]:
    """All sides in turn."""
    taken = in_turn(sides_of(measured, SIDES, path=path), rounds)
    return {
        "ratio": taken.ratio("mb_s", "streamrec", "tensorflow"),
        "ratio_range": taken.spread("mb_s", "streamrec", "tensorflow"),
        "ratio_all_cores": taken.ratio("mb_s", "streamrec", ALL_CORES),
        "mb_s": taken.by_side("mb_s"),
        **taken.calm,
    }


def measured(side: str, path: str) -> Figures:
    """The better one of two passes, after one that does not count."""
    if side != ALL_CORES:
        pin()
    read = read_by_streamrec if side == "streamrec" else read_by_tensorflow
    read(path)
    speeds = []
    for _ in range(2):
        with Meter() as meter:
            read(path)
        speeds.append(meter.rates(os.path.getsize(path))["mb_s"])
    return {"mb_s": max(speeds)}


def read_by_streamrec(path: str) -> int:
    """The loop that a user writes."""
    return sum(len(frames) for frames in streamrec.TFRecordDataset(path).batch(1024))


def read_by_tensorflow(path: str) -> int:
    """The same with tf.data."""
    import tensorflow as tf

    return sum(int(batch.shape[0]) for batch in tf.data.TFRecordDataset(path).batch(1024))


if __name__ == "__main__":
    run(main)
