"""Many small shards: 10,000 local files of 20 records of 100 bytes, beside tf.data; and how long four of them take.

    python -m benchmarks.small_shards [--rounds 3]

Sides take turns, each in a process of its own, over files in the page cache. "in turn" interleaves 16 shards; else they
are read one after the other, as is the default on both sides. "four" is an iteration over four shards from its start to
its end, the mean of 300.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import streamrec
from benchmarks.machine import describe, median, save

SHARDS, RECORDS, SIZE = 10_000, 20, 100
ITERATIONS = 300


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, folder = arguments.child
        print(json.dumps(measured(SIDES[side], sorted(map(str, Path(folder).iterdir())))))
        return
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder))
        for _ in range(arguments.rounds):
            for side, taken in runs.items():
                taken.append(spawn(side, folder))
    rows = [
        {"side": side, "us": median(run[0] for run in taken), "cpu_us": median(run[1] for run in taken)}
        for side, taken in runs.items()
    ]
    for row in rows:
        print(row, flush=True)
    save("small_shards", {"machine": describe("tensorflow-cpu", "numpy"), "rounds": arguments.rounds, "rows": rows})


def fill(folder: Path) -> None:
    """The shards."""
    for shard in range(SHARDS):
        records = [b"%d,%d;" % (shard, index) + bytes(SIZE) for index in range(RECORDS)]
        (folder / f"{shard:05}.tfrecord").write_bytes(streamrec.encode_records(records))


def spawn(side: str, folder: str) -> tuple[float, float]:
    """One side, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.small_shards", "--child", side, folder]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    if done.returncode:
        raise SystemExit(done.stderr)
    us, cpu_us = json.loads(done.stdout)
    return us, cpu_us


def measured(work: Callable[[Sequence[str]], int], paths: Sequence[str]) -> tuple[float, float]:
    """Microseconds, and those of processor time, of each shard or iteration; the second time that it is done."""
    work(paths[:100])
    began, cpu = time.perf_counter(), time.process_time()
    count = work(paths)
    return (time.perf_counter() - began) / count * 1e6, (time.process_time() - cpu) / count * 1e6


def by_streamrec(paths: Sequence[str], reads: int | None = None) -> int:
    """Batches of records."""
    dataset = streamrec.TFRecordDataset(list(paths), num_parallel_reads=reads)
    assert sum(len(batch) for batch in dataset.batch(1000)) == RECORDS * len(paths)
    return len(paths)


def by_tensorflow(paths: Sequence[str], cycle: int = 1) -> int:
    """Batches of tf.data's."""
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(list(paths))
    if cycle > 1:
        names = tf.data.Dataset.from_tensor_slices(list(paths))
        dataset = names.interleave(tf.data.TFRecordDataset, cycle, 1, tf.data.AUTOTUNE)
    assert sum(int(batch.shape[0]) for batch in dataset.batch(1000)) == RECORDS * len(paths)
    return len(paths)


def iterated(paths: Sequence[str]) -> int:
    """Iterations over four shards; each counts as one."""
    dataset = streamrec.TFRecordDataset(list(paths[:4]))
    count = ITERATIONS if len(paths) > 100 else 1
    for _ in range(count):
        assert sum(1 for _ in dataset) == 4 * RECORDS
    return count


SIDES: dict[str, Callable[[Sequence[str]], int]] = {
    "streamrec": by_streamrec,
    "tf.data": by_tensorflow,
    "streamrec, in turn": lambda paths: by_streamrec(paths, 16),
    "tf.data, in turn": lambda paths: by_tensorflow(paths, 16),
    "four": iterated,
}


if __name__ == "__main__":
    main()
