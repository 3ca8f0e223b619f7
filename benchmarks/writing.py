"""Writing shards that are not compressed, beside TensorFlow.

    python -m benchmarks.writing [--rounds 3]

Files lie in memory (/dev/shm). Sides take turns, each in a process of its own on one core; medians
count. "records" is `TFRecordWriter.write` for each record, on both sides; "frames" is
`ShardWriter.write_batch` of many records in one buffer. "limit" is what the memory gives: one
CRC32C over bytes that are framed already, and the system's write, a megabyte at a time.
`benchmarks.compression` has shards that are.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.machine import describe, median, save
from streamrec import Frames, TFRecordOptions
from streamrec.kernels import crc32c

SIZES = {84: 600_000, 1_000: 150_000, 110_000: 3_000}
"""Record length: number of records."""

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, folder, size, cores = arguments.child
        print(json.dumps(measured(PLAIN_SIDES[side], Path(folder), int(size), int(cores))))
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        rows = [
            row(f"write {size} B", PLAIN_SIDES, folder, arguments.rounds, size) for size in SIZES
        ]
    save(
        "writing",
        {"machine": describe("tensorflow-cpu", "numpy"), "rounds": arguments.rounds, "rows": rows},
    )


def row(
    name: str,
    sides: dict[str, Any],
    folder: str,
    rounds: int,
    size: int = 0,
    cores: int = 1,
    module: str = "benchmarks.writing",
) -> dict[str, Any]:
    """All sides in turn, which are sides of that module: medians of MB/s of plain bytes, and of
    CPU-s/GB.
    """
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, taken in runs.items():
            taken.append(spawn(module, side, folder, size, cores))
    mb_s = {side: median(run[0] for run in taken) for side, taken in runs.items()}
    cpu = {side: median(run[1] for run in taken) for side, taken in runs.items()}
    print(
        name,
        {side: f"{mb_s[side]:.0f} MB/s, {cpu[side]:.2f} CPU-s/GB" for side in sides},
        flush=True,
    )
    return {"row": name, "mb_s": mb_s, "cpu_s_gb": cpu}


def spawn(module: str, side: str, folder: str, size: int, cores: int) -> tuple[float, float]:
    """One side, in a fresh process."""
    command = [sys.executable, "-m", module, "--child", side, folder, str(size), str(cores)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    mb_s, cpu = json.loads(done.stdout)
    return mb_s, cpu


def measured(
    work: Callable[[Path, int], int], folder: Path, size: int, cores: int
) -> tuple[float, float]:
    """MB/s and CPU-s/GB of the second pass."""
    os.sched_setaffinity(0, range(cores))
    work(folder, size)
    began, cpu = time.perf_counter(), time.process_time()
    nbytes = work(folder, size)
    return nbytes / (time.perf_counter() - began) / 1e6, (time.process_time() - cpu) / nbytes * 1e9


def records_of(size: int) -> list[bytes]:
    """Some records of one length: half of each is random, so that they can be compressed."""
    rng = np.random.default_rng(0)
    return [
        rng.bytes(size // 2) + bytes(size - size // 2)
        for _ in range(100 if size > 10_000 else 1_000)
    ]


def written(writer: Any, size: int) -> int:
    """Writes each record by a call of its own."""
    records = records_of(size)
    count = SIZES[size] // len(records)
    with writer:
        for _ in range(count):
            for record in records:
                writer.write(record)
    return count * len(records) * size


def by_tensorflow(folder: Path, size: int, compression: str = "") -> int:
    """TensorFlow's writer."""
    import tensorflow as tf

    return written(
        tf.io.TFRecordWriter(str(folder / "written"), tf.io.TFRecordOptions(compression)), size
    )


def by_records(folder: Path, size: int, options: TFRecordOptions | None = None) -> int:
    """The same loop over streamrec's."""
    return written(streamrec.TFRecordWriter(folder / "written", options), size)


def by_frames(folder: Path, size: int) -> int:
    """Batches of records."""

    async def write() -> int:
        frames = Frames.of(records_of(size))
        count = SIZES[size] // len(frames)
        async with streamrec.ShardWriter(str(folder / "written")) as writer:
            for _ in range(count):
                await writer.write_batch(frames)
        return count * len(frames) * size

    return asyncio.run(write())


def by_system(folder: Path, size: int) -> int:
    """Framed bytes, one checksum, the system's write, fsync and rename."""
    records = records_of(size)
    framed = memoryview(streamrec.encode_records(records))
    count = SIZES[size] // len(records)
    temporary = folder / "temporary"
    with temporary.open("wb", buffering=0) as file:
        for _ in range(count):
            for start in range(0, len(framed), 1 << 20):
                block = framed[start : start + (1 << 20)]
                crc32c(block)
                file.write(block)
        os.fsync(file.fileno())
    temporary.rename(folder / "written")
    return count * len(records) * size


PLAIN_SIDES: dict[str, Callable[[Path, int], int]] = {
    "tensorflow": by_tensorflow,
    "records": by_records,
    "frames": by_frames,
    "limit": by_system,
}


if __name__ == "__main__":
    main()
