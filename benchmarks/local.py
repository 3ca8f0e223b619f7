"""The whole way from a local file: `for frames in TFRecordDataset(path).batch(1024)` beside
tf.data's.

    python -m benchmarks.local [--rounds 3]

Both read the same file from the page cache, check every CRC32C and give batches of 1,024 records to
a `for` loop; in turn, each in a process of its own, after one pass that is not counted. streamrec
has one core. tf.data runs twice: on one core, and on all cores as it comes. The calmest
rounds count (`benchmarks.calm`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.calm import calmest
from benchmarks.machine import describe, median, save
from streamrec import Frames, encode_records

SIZES = {84: (1_000_000, 40), 680: (300_000, 12), 110_000: (4_000, 2.5)}
"""Record length: number of records, and the ratio to reach."""

SIDES = ("tensorflow", "tensorflow, all cores", "streamrec")


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(*arguments.child)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size, (count, bar) in SIZES.items():
            path = write(Path(folder) / f"{size}.tfrecord", size, count)
            rows.append(row(path, size, bar, arguments.rounds))
            print(
                "{record_bytes:>7} B: x{ratio} of tf.data on one core, x{ratio_all_cores} of "
                "tf.data on all (bar x{bar}); MB/s {mb_s}".format(**rows[-1]),
                flush=True,
            )
    save(
        "local",
        {"machine": describe("tensorflow-cpu", "numpy"), "rounds": arguments.rounds, "rows": rows},
    )


def write(path: Path, size: int, count: int) -> str:
    """A file of random records of one length."""
    starts = np.arange(count, dtype=np.int64) * size
    payloads = np.random.default_rng(0).bytes(count * size)
    path.write_bytes(encode_records(Frames(payloads, np.stack([starts, starts + size], axis=1))))
    return str(path)


def row(path: str, size: int, bar: float, rounds: int) -> dict[str, Any]:
    """All sides in turn; the ratios of neighbours in time, and their medians."""
    runs, calm = calmest(lambda: {side: spawn(side, path) for side in SIDES}, rounds)
    speed = {side: median(run[side] for run in runs) for side in SIDES}

    def ratio(side: str, peer: str) -> float:
        return median(run[side] / run[peer] for run in runs)

    return {
        "record_bytes": size,
        "ratio": ratio("streamrec", "tensorflow"),
        "ratio_all_cores": ratio("streamrec", "tensorflow, all cores"),
        "bar": bar,
        "mb_s": speed,
        **calm,
    }


def spawn(side: str, path: str) -> float:
    """MB/s of one side, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.local", "--child", side, path]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(json.loads(done.stdout))


def child(side: str, path: str) -> float:
    """MB/s of the second and third pass, the better one."""
    if side != "tensorflow, all cores":
        os.sched_setaffinity(0, {0})
    read = read_by_tensorflow if side.startswith("tensorflow") else read_by_streamrec
    read(path)
    return max(os.path.getsize(path) / timed(read, path) / 1e6 for _ in range(2))


def timed(read: Any, path: str) -> float:
    """Seconds of one pass."""
    start = time.perf_counter()
    read(path)
    return time.perf_counter() - start


def read_by_streamrec(path: str) -> int:
    """The loop that a user writes."""
    return sum(len(frames) for frames in streamrec.TFRecordDataset(path).batch(1024))


def read_by_tensorflow(path: str) -> int:
    """The same with tf.data."""
    import tensorflow as tf

    return sum(int(batch.shape[0]) for batch in tf.data.TFRecordDataset(path).batch(1024))


if __name__ == "__main__":
    main()
