"""Writing and reading compressed shards, beside TensorFlow and the compression libraries alone.

    python -m benchmarks.compression [--rounds 3]

Files lie in memory (/dev/shm). Sides take turns, each in a process of its own, on one core or two;
medians count. Writing GZIP is `TFRecordWriter.write` for each record, on both sides. "write ZSTD"
writes one shard of 30 MB of text. "inflate" reads four such shards of GZIP or ZSTD to batches of
records; beside it the library inflates the same bytes and drops them.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.machine import describe, save
from benchmarks.writing import MEMORY, by_records, by_tensorflow, measured, row
from streamrec import TFRecordOptions
from streamrec.tfrecord.compression import zstd_module

SHARDS, PLAIN = 4, 30_000_000


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
        work = {**GZIP_SIDES, **ZSTD_SIDES, **INFLATE_SIDES, **ZSTD_INFLATE_SIDES}[side]
        print(json.dumps(measured(work, Path(folder), int(size), int(cores))))
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        fill(Path(folder))
        of = partial(row, folder=folder, rounds=arguments.rounds, module="benchmarks.compression")
        rows = [
            of("write GZIP", GZIP_SIDES, size=1_000),
            of("inflate", INFLATE_SIDES),
            of("inflate, two cores", INFLATE_SIDES, cores=2),
            of("inflate ZSTD", ZSTD_INFLATE_SIDES),
            of("inflate ZSTD, two cores", ZSTD_INFLATE_SIDES, cores=2),
            of("write ZSTD, two cores", ZSTD_SIDES, cores=2),
        ]
    machine = describe("tensorflow-cpu", "isal", "backports.zstd", "numpy")
    load = round(os.getloadavg()[2], 1)
    save(
        "compression", {"machine": machine, "load": load, "rounds": arguments.rounds, "rows": rows}
    )


@cache
def texts() -> list[bytes]:
    """The records of one shard that can be compressed to a quarter."""
    return [
        b"".join(b"%d words of some text, " % (index * step) for step in range(20))
        + np.random.default_rng(index).bytes(100)
        for index in range(PLAIN // 700)
    ]


def by_threads(threads: int | None) -> Callable[[Path, int], int]:
    """A shard of text, compressed by so many threads of zstd."""

    def write(folder: Path, size: int) -> int:
        with streamrec.TFRecordWriter(
            folder / "written", TFRecordOptions("ZSTD", compression_threads=threads)
        ) as writer:
            for text in texts():
                writer.write(text)
        return sum(map(len, texts()))

    return write


def fill(folder: Path) -> None:
    """The GZIP and ZSTD shards."""
    for shard in range(SHARDS):
        with (
            streamrec.TFRecordWriter(
                folder / f"{shard}.gz", TFRecordOptions("GZIP", library="isal")
            ) as gzip,
            streamrec.TFRecordWriter(folder / f"{shard}.zst", TFRecordOptions("ZSTD")) as zstd,
        ):
            for text in texts():
                gzip.write(text)
                zstd.write(text)


def by_library(folder: Path, size: int, module: Any = zlib) -> int:
    """The library alone, as fast as it goes."""
    nbytes = 0
    for shard in range(SHARDS):
        data, stream = (folder / f"{shard}.gz").read_bytes(), module.decompressobj(31)
        for start in range(0, len(data), 1 << 20):
            rest: bytes = data[start : start + (1 << 20)]
            while rest:
                nbytes += len(stream.decompress(rest, 1 << 20))
                rest = stream.unconsumed_tail
    return nbytes


def by_isal(folder: Path, size: int) -> int:
    """ISA-L alone."""
    from isal import isal_zlib

    return by_library(folder, size, isal_zlib)


def by_zstd(folder: Path, size: int) -> int:
    """The zstd library alone."""
    nbytes = 0
    for shard in range(SHARDS):
        data, stream = (folder / f"{shard}.zst").read_bytes(), zstd_module().ZstdDecompressor()
        for start in range(0, len(data), 1 << 20):
            rest = data[start : start + (1 << 20)]
            while rest or not (stream.needs_input or stream.eof):
                nbytes += len(stream.decompress(rest, 1 << 20))
                rest = b""
    return nbytes


def inflated(reads: int, ending: str = "gz") -> Callable[[Path, int], int]:
    """Records of so many shards at a time."""

    def read(folder: Path, size: int) -> int:
        dataset = streamrec.TFRecordDataset(str(folder / f"*.{ending}"), num_parallel_reads=reads)
        return sum(frames.nbytes + 16 * len(frames) for frames in dataset.batch(1000))

    return read


def inflated_by_tensorflow(reads: int) -> Callable[[Path, int], int]:
    """tf.data's records in batches, of so many shards at a time."""

    def read(folder: Path, size: int) -> int:
        import tensorflow as tf

        names = sorted(map(str, folder.glob("*.gz")))
        records = tf.data.TFRecordDataset(names, "GZIP", num_parallel_reads=reads)
        count = sum(int(batch.shape[0]) for batch in records.batch(1000))
        return by_size(folder) if count else 0

    return read


def by_size(folder: Path) -> int:
    """Plain bytes of all GZIP shards: the last four bytes of each say how many."""
    return sum(int.from_bytes(path.read_bytes()[-4:], "little") for path in folder.glob("*.gz"))


GZIP_SIDES: dict[str, Callable[[Path, int], int]] = {
    "tensorflow, GZIP": lambda folder, size: by_tensorflow(folder, size, "GZIP"),
    "zlib": lambda folder, size: by_records(folder, size, TFRecordOptions("GZIP")),
    "isal": lambda folder, size: by_records(folder, size, TFRecordOptions("GZIP", library="isal")),
}
ZSTD_SIDES: dict[str, Callable[[Path, int], int]] = {
    "zstd": by_threads(None),
    "zstd, one thread": by_threads(1),
    "zstd, two threads": by_threads(2),
}
INFLATE_SIDES: dict[str, Callable[[Path, int], int]] = {
    "tf.data": inflated_by_tensorflow(1),
    "tf.data, four at a time": inflated_by_tensorflow(4),
    "zlib alone": by_library,
    "isal alone": by_isal,
    "one at a time": inflated(1),
    "four at a time": inflated(4),
}
ZSTD_INFLATE_SIDES: dict[str, Callable[[Path, int], int]] = {
    "zstd alone": by_zstd,
    "ZSTD, one at a time": inflated(1, "zst"),
    "ZSTD, four at a time": inflated(4, "zst"),
}


if __name__ == "__main__":
    main()
