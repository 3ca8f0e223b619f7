"""Writing shards that are not compressed, beside TensorFlow.

    python -m benchmarks.writing [--rounds 3]

Files lie in memory (/dev/shm). Sides take turns, each in a process of its own on one core; medians
count. "records" is `TFRecordWriter.write` for each record, on both sides; "frames" is
`ShardWriter.write_batch` of many records in one buffer. "limit" is what the memory gives: one
CRC32C over bytes that are framed already, and the system's write, a megabyte at a time.
`benchmarks.compression` has shards that are.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Figures, Meter, pin
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec import Frames, TFRecordOptions
from streamrec.kernels import crc32c

Work = Callable[[Path, int], int]
"""Writes or reads in a folder; returns the bytes of the records."""

SIZES = {84: 600_000, 1_000: 150_000, 110_000: 3_000}
"""Record length: number of records."""

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None


def main(*, rounds: int = 3) -> None:
    """A row for each length of records."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        rows = [
            row_of(f"write {size} B", measured, PLAIN_SIDES, rounds, folder=folder, size=size)
            for size in SIZES
        ]
    save("writing", ["tensorflow-cpu", "numpy"], rounds=rounds, rows=rows)


def row_of(
    name: str, function: Callable[..., Figures], sides: Iterable[str], rounds: int, **task: Any
) -> dict[str, Any]:
    """All sides in turn: medians of MB/s of plain bytes, and of CPU-s/GB."""
    taken = in_turn(sides_of(function, sides, **task), rounds)
    row = {"row": name, "mb_s": taken.by_side("mb_s"), "cpu_s_gb": taken.by_side("cpu_s_gb")}
    print(row, flush=True)
    return {**row, **taken.calm}


def measured(side: str, folder: str, size: int) -> Figures:
    """One side of this benchmark, on one core."""
    return second_pass(PLAIN_SIDES[side], folder, size)


def second_pass(work: Work, folder: str, size: int, cores: int = 1) -> Figures:
    """MB/s and CPU-s/GB of the second of two passes."""
    pin(range(cores))
    work(Path(folder), size)
    with Meter() as meter:
        nbytes = work(Path(folder), size)
    return meter.rates(nbytes)


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


PLAIN_SIDES: dict[str, Work] = {
    "tensorflow": by_tensorflow,
    "records": by_records,
    "frames": by_frames,
    "limit": by_system,
}


if __name__ == "__main__":
    run(main)
