"""Writing and reading compressed shards, beside TensorFlow and the compression libraries alone.

    python -m benchmarks.compression [--rounds 3]

Files lie in memory (/dev/shm). Sides take turns, each in a process of its own, on one core or two;
medians count. Writing GZIP is `TFRecordWriter.write` for each record, on both sides. "write ZSTD"
writes one shard of 30 MB of text. "inflate" reads four such shards of GZIP or ZSTD to batches of
records; beside it the library inflates the same bytes and drops them.
"""

from __future__ import annotations

import tempfile
import zlib
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import streamrec
from benchmarks.harness.meter import Figures
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.writing import MEMORY, Work, by_records, by_tensorflow, row_of, second_pass
from streamrec import TFRecordOptions
from streamrec.tfrecord.compression import zstd_module

SHARDS, PLAIN = 4, 30_000_000


def main(*, rounds: int = 3) -> None:
    """A row for each kind of work, on one core or on two."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        fill(Path(folder))
        of = partial(row_of, function=measured, rounds=rounds, folder=folder, size=1_000)
        rows = [
            of("write GZIP", sides=GZIP_SIDES, cores=1),
            of("inflate", sides=INFLATE_SIDES, cores=1),
            of("inflate, two cores", sides=INFLATE_SIDES, cores=2),
            of("inflate ZSTD", sides=ZSTD_INFLATE_SIDES, cores=1),
            of("inflate ZSTD, two cores", sides=ZSTD_INFLATE_SIDES, cores=2),
            of("write ZSTD, two cores", sides=ZSTD_SIDES, cores=2),
        ]
    packages = ["tensorflow-cpu", "isal", "backports.zstd", "numpy"]
    save("compression", packages, rounds=rounds, rows=rows)


def measured(side: str, folder: str, size: int, cores: int) -> Figures:
    """One side, in a process of its own."""
    works = {**GZIP_SIDES, **ZSTD_SIDES, **INFLATE_SIDES, **ZSTD_INFLATE_SIDES}
    return second_pass(works[side], folder, size, cores)


@cache
def texts() -> list[bytes]:
    """The records of one shard that can be compressed to a quarter."""
    return [
        b"".join(b"%d words of some text, " % (index * step) for step in range(20))
        + np.random.default_rng(index).bytes(100)
        for index in range(PLAIN // 700)
    ]


def by_threads(threads: int | None) -> Work:
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


def inflated(reads: int, ending: str = "gz") -> Work:
    """Records of so many shards at a time."""

    def read(folder: Path, size: int) -> int:
        dataset = streamrec.TFRecordDataset(str(folder / f"*.{ending}"), num_parallel_reads=reads)
        return sum(frames.nbytes + 16 * len(frames) for frames in dataset.batch(1000))

    return read


def inflated_by_tensorflow(reads: int) -> Work:
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


GZIP_SIDES: dict[str, Work] = {
    "tensorflow, GZIP": lambda folder, size: by_tensorflow(folder, size, "GZIP"),
    "zlib": lambda folder, size: by_records(folder, size, TFRecordOptions("GZIP")),
    "isal": lambda folder, size: by_records(folder, size, TFRecordOptions("GZIP", library="isal")),
}
ZSTD_SIDES: dict[str, Work] = {
    "zstd": by_threads(None),
    "zstd, one thread": by_threads(1),
    "zstd, two threads": by_threads(2),
}
INFLATE_SIDES: dict[str, Work] = {
    "tf.data": inflated_by_tensorflow(1),
    "tf.data, four at a time": inflated_by_tensorflow(4),
    "zlib alone": by_library,
    "isal alone": by_isal,
    "one at a time": inflated(1),
    "four at a time": inflated(4),
}
ZSTD_INFLATE_SIDES: dict[str, Work] = {
    "zstd alone": by_zstd,
    "ZSTD, one at a time": inflated(1, "zst"),
    "ZSTD, four at a time": inflated(4, "zst"),
}


if __name__ == "__main__":
    run(main)
