"""Parsing Examples against TensorFlow and vahidk's tfrecord, as ratios measured in one run.

    python -m benchmarks.parse [--rounds 3]

Each kind of records is measured in two ways, in batches of 1,024.

From a file in the page cache to columns; the bars count here, because that is how AUTOTUNE is used:
- streamrec: the file is read into the blocks of a `Framer`, 1 MiB or a few records at a time; it
  checks all CRCs, and `parse_example` takes its Frames in batches of up to 1,024; one thread on one
  core. Byte strings come with and without `string_columns`.
- TensorFlow: `TFRecordDataset(path).batch(1024).map(parse_example, AUTOTUNE).prefetch(AUTOTUNE)`,
  with its own buffer size and with 8 MiB, on all cores, and once more in batches of 64; the fastest
  counts. The dataset is made and traced once, before the clock starts, as in training. For
  comparison also with all its threads on one core.
- tfrecord (vahidk; `pip install tfrecord`, left out if it is not there): `example_loader` on one
  core, without CRCs, as it has none. It gives a dict for each record.

Parsing alone, the records in memory (no bars):
- streamrec: `parse_example` on spans over one buffer, one core.
- TensorFlow: `tf.io.parse_example` on a ready string tensor, on all cores: called eagerly, as a
  `tf.function`, and mapped by `tf.data` with AUTOTUNE; the fastest counts.

The contenders take turns in each round, after one that does not count.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import seconds_of
from benchmarks.shards import KINDS, Columns
from streamrec.example import encode_examples
from streamrec.example.features import Feature, FixedLenFeature
from streamrec.example.parse import parse_example
from streamrec.kernels import encode_frames
from streamrec.tfrecord import Framer, Frames

BATCH = 1024
ONE_CORE = "tf.data on one core"


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One kind of records, and what is parsed out of them.

    Attributes:
        name: For the table.
        bar: How many times TensorFlow's speed is wanted.
        columns: Makes so many records.
        features: What is parsed.
        batches: How many batches of `BATCH` records are parsed.
        tfrecord_types: The features for the package `tfrecord`.
    """

    name: str
    bar: float
    columns: Callable[[np.random.Generator, int], Columns]
    features: Mapping[str, Feature]
    batches: int
    tfrecord_types: Mapping[str, str]

    @cached_property
    def records(self) -> list[bytes]:
        """One batch, with features in the order of their names, as protobuf writes them."""
        columns = self.columns(np.random.default_rng(7), BATCH)
        return list(map(bytes, encode_examples(dict(sorted(columns.items())))))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result: records per second, medians of the rounds."""

    name: str
    way: str
    streamrec: float
    peer: str
    peer_speed: float
    ratio: float
    bar: float | None = None
    note: str = ""


VECTORS = [f"vector_{index}" for index in range(8)]


def vectors(rng: np.random.Generator, count: int) -> Columns:
    """Eight dense features of 64 floats."""
    return {name: rng.standard_normal((count, 64)).astype(np.float32) for name in VECTORS}


def of_kind(name: str, key: str, bar: float, batches: int) -> Workload:
    """The records of a kind of `benchmarks.shards`."""
    kind = KINDS[key]
    return Workload(
        name=name,
        bar=bar,
        columns=kind.columns,
        features=kind.features,
        batches=batches,
        tfrecord_types=kind.tfrecord_types,
    )


WORKLOADS = (
    of_kind("four scalar features", "four", 20, 256),
    of_kind("forty scalar features", "forty", 8, 64),
    of_kind("ragged int64, 200-1,000 values", "padded", 10, 64),
    Workload(
        name="eight float[64] features",
        bar=5,
        columns=vectors,
        features={name: FixedLenFeature([64], np.float32) for name in VECTORS},
        batches=96,
        tfrecord_types=dict.fromkeys(VECTORS, "float"),
    ),
    of_kind("image bytes and label", "images", 3, 4),
)


def framed(records: list[bytes]) -> tuple[bytes, Frames]:
    """The records as a TFRecord file, and as a reader gives them."""
    ends = np.cumsum([0, *map(len, records)])
    file = encode_frames(b"".join(records), np.stack([ends[:-1], ends[1:]], axis=1))
    return file, Framer().feed(file)


def read_size(records: list[bytes]) -> int:
    """The bytes of each read: 1 MiB, or eight MiB where records are long."""
    return 1 << 20 if max(map(len, records)) < 1 << 16 else 8 << 20


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """Keeps the calling thread on one core; other threads stay where they are."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def has_strings(workload: Workload) -> bool:
    """Whether string_columns makes a difference."""
    return any(feature.dtype is bytes for feature in workload.features.values())


@contextlib.contextmanager
def all_on_one_core() -> Iterator[None]:
    """Keeps every thread of the process on one core; new threads inherit it."""
    cores, tasks = os.sched_getaffinity(0), Path("/proc/self/task")
    for task in tasks.iterdir():
        os.sched_setaffinity(int(task.name), {min(cores)})
    try:
        yield
    finally:
        for task in tasks.iterdir():
            os.sched_setaffinity(int(task.name), cores)


def our_ways(workload: Workload, work: Callable[[bool], object]) -> dict[str, Callable[[], object]]:
    """The work with and without string_columns where there are strings, on one core."""

    def on_one_core(columns: bool) -> Callable[[], object]:
        def run() -> None:
            with one_core():
                work(columns)

        return run

    ways = {"streamrec": on_one_core(False)}
    return (
        ways | {"streamrec, string_columns": on_one_core(True)} if has_strings(workload) else ways
    )


def twins(workload: Workload) -> dict[str, Any]:
    """The same features for TensorFlow."""
    types = {np.int64: tf.int64, np.float32: tf.float32, bytes: tf.string}
    made = {}
    for name, feature in workload.features.items():
        if isinstance(feature, FixedLenFeature):
            made[name] = tf.io.FixedLenFeature(
                feature.shape, types[feature.dtype], feature.default_value
            )
        else:
            made[name] = tf.io.RaggedFeature(types[feature.dtype])
    return made


def memory_contenders(
    workload: Workload,
) -> tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]:
    """Parsing alone: ours, and TensorFlow's; each parses the workload's batches."""
    _, source = framed(workload.records)
    batch, features = tf.constant(workload.records, tf.string), twins(workload)
    compiled = tf.function(lambda records: tf.io.parse_example(records, features))

    def ours(columns: bool) -> None:
        for _ in range(workload.batches):
            parse_example(source, workload.features, string_columns=columns)

    def calls(parse: Callable[[Any], object]) -> Callable[[], object]:
        def run() -> None:
            for _ in range(workload.batches):
                parse(batch)

        return run

    def dataset() -> None:
        batches = tf.data.Dataset.from_tensors(batch).repeat(workload.batches)
        for _ in batches.map(compiled, num_parallel_calls=tf.data.AUTOTUNE).prefetch(
            tf.data.AUTOTUNE
        ):
            pass

    theirs = {
        "tf.io.parse_example, eager": calls(lambda records: tf.io.parse_example(records, features)),
        "tf.io.parse_example, tf.function": calls(compiled),
        "tf.io.parse_example, tf.data AUTOTUNE": dataset,
    }
    return our_ways(workload, ours), theirs


def file_contenders(
    workload: Workload, path: str
) -> tuple[dict[str, Callable[[], object]], dict[str, Callable[[], object]]]:
    """From file to columns: ours, and TensorFlow's. The file holds the same batch again and
    again.
    """
    features, size = twins(workload), read_size(workload.records)

    def ours(columns: bool) -> None:
        framer = Framer()
        with open(path, "rb", buffering=0) as file:
            while count := file.readinto(framer.reserve(size)):
                frames = framer.commit(count)
                for start in range(0, len(frames), BATCH):
                    parse_example(
                        frames.window(start, start + BATCH),
                        workload.features,
                        string_columns=columns,
                    )
        framer.close()

    def theirs(buffer_size: int | None, batch_size: int) -> Callable[[], object]:
        batches = tf.data.TFRecordDataset(path, buffer_size=buffer_size).batch(batch_size)
        parsed = batches.map(
            lambda records: tf.io.parse_example(records, features), tf.data.AUTOTUNE
        )
        ahead = parsed.prefetch(tf.data.AUTOTUNE)

        def run() -> None:
            for _ in ahead:
                pass

        return run

    peers = {
        "tf.data, AUTOTUNE": theirs(None, BATCH),
        "tf.data, AUTOTUNE, buffer_size 8 MiB": theirs(8 << 20, BATCH),
        "tf.data, AUTOTUNE, buffer_size 8 MiB, batches of 64": theirs(8 << 20, 64),
        ONE_CORE: theirs(8 << 20, BATCH),
    }
    if sys.platform == "linux":
        free = peers[ONE_CORE]

        def pinned() -> None:
            with all_on_one_core():
                free()

        peers[ONE_CORE] = pinned
    else:
        del peers[ONE_CORE]
    return our_ways(workload, ours), peers


TFRECORD_LOADER = """
import json, os, sys
from tfrecord.reader import example_loader
path, description = json.loads(sys.argv[1])
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
for line in sys.stdin:
    for _ in example_loader(path, None, description):
        pass
    print("done", flush=True)
"""


@contextlib.contextmanager
def tfrecord_contenders(workload: Workload, path: str) -> Iterator[dict[str, Callable[[], object]]]:
    """Tfrecord's example_loader, if it is installed; in a process without TensorFlow, as its protos
    need.
    """
    if importlib.util.find_spec("tfrecord") is None:
        yield {}
        return
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        TFRECORD_LOADER,
        json.dumps([path, dict(workload.tfrecord_types)]),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as worker:

        def load() -> None:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
            assert worker.stdout.readline() == "done\n"

        yield {"tfrecord example_loader": load}


def file_rows(workload: Workload, rounds: int) -> list[Row]:
    """From file to columns, against TensorFlow and tfrecord."""
    file, _ = framed(workload.records)
    with tempfile.TemporaryDirectory() as folder:
        whole, short = Path(folder, "whole.tfrecord"), Path(folder, "short.tfrecord")
        whole.write_bytes(file * workload.batches)
        short.write_bytes(file)
        ours, tensorflow = file_contenders(workload, str(whole))
        with tfrecord_contenders(workload, str(short)) as others:
            times = seconds_of(ours | tensorflow | others, rounds)
    speeds = {name: workload.batches * BATCH / spent for name, spent in times.items()}
    speeds |= {name: BATCH / times[name] for name in others}
    best = max(tensorflow.keys() - {ONE_CORE}, key=speeds.__getitem__)
    more = [name for name in times if name == ONE_CORE or name in others]
    rows = []
    for mine in ours:
        row = partial(row_of, workload.name, "file", mine, speeds)
        note = note_of(workload, speeds[mine] / speeds[best])
        rows.append(row(best, bar=workload.bar, note=note))
        rows += [row(peer) for peer in more]
    return rows


def row_of(
    name: str, way: str, mine: str, speeds: Mapping[str, float], peer: str, **more: Any
) -> Row:
    """One of our ways beside one of the others."""
    return Row(
        name=name + mine.removeprefix("streamrec"),
        way=way,
        streamrec=speeds[mine],
        peer=peer,
        peer_speed=speeds[peer],
        ratio=speeds[mine] / speeds[peer],
        **more,
    )


def memory_rows(workload: Workload, rounds: int) -> list[Row]:
    """Parsing alone, against TensorFlow's fastest."""
    ours, tensorflow = memory_contenders(workload)
    times = seconds_of(ours | tensorflow, rounds)
    speeds = {name: workload.batches * BATCH / spent for name, spent in times.items()}
    best = max(tensorflow, key=speeds.__getitem__)
    return [row_of(workload.name, "memory", mine, speeds, best) for mine in ours]


def note_of(workload: Workload, ratio: float) -> str:
    """What limits a row that misses its bar."""
    if ratio >= workload.bar:
        return ""
    if workload.name.startswith("image"):
        return (
            "the copy of each string into a fresh bytes object is what it takes: memory and its "
            "page faults"
        )
    if workload.name.startswith("ragged"):
        return (
            "reading and CRCs take a quarter, 8 bytes written for each value the rest; TensorFlow "
            "had all cores"
        )
    if "float" in workload.name:
        return (
            "two kilobytes a record: reading, CRCs and one copy, at the memory's speed; TensorFlow "
            "had all cores"
        )
    return (
        "a batch in Python and a bytes object for a string take a third; TensorFlow had all cores, "
        "see the next row"
    )


def show(row: Row) -> None:
    """One line of the table."""
    ours, peer = f"{row.streamrec / 1e6:.3f} M/s", f"{row.peer_speed / 1e6:.4f} M/s"
    bar = "" if row.bar is None else f"x{row.bar:g}"
    missed = "  MISSED" if row.bar is not None and row.ratio < row.bar else ""
    ratio = f"x{row.ratio:.1f}"
    print(
        f"{row.name:<47} {row.way:<7}{ours:>13} {peer:>13} {ratio:>7} {bar:>5}  {row.peer}{missed}",
        flush=True,
    )


def main(*, rounds: int = 3) -> None:
    """A row for each kind of records, each way, and each contender."""
    rows = []
    for workload in WORKLOADS:
        for row in file_rows(workload, rounds) + memory_rows(workload, rounds):
            show(row)
            rows.append(row)
    packages = ["numpy", "tensorflow-cpu"]
    if any("example_loader" in row.peer for row in rows):
        packages.append("tfrecord")
    cores = {"streamrec_and_tfrecord": 1, "tensorflow": os.cpu_count()}
    found = [asdict(row) for row in rows]
    save("parse", packages, rounds=rounds, cores_used=cores, rows=found)


if __name__ == "__main__":
    run(main)
