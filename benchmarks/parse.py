"""Parsing Examples against TensorFlow and vahidk's tfrecord, as ratios measured in one run.

Run it from the project's root, where TensorFlow is installed and nothing else keeps the machine
busy:

    python -m benchmarks.parse [--rounds 7]

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

The contenders take turns in each round, so that what disturbs the machine disturbs them alike;
medians of the rounds count.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from benchmarks.machine import describe, save
from streamrec.example.features import Feature, FixedLenFeature, RaggedFeature
from streamrec.example.messages import Example
from streamrec.example.parse import parse_example
from streamrec.kernels import encode_frames
from streamrec.tfrecord import Framer, Frames

BATCH = 1024
ONE_CORE = "tf.data on one core"
WORDS = [b"cat", b"dog", b"chicken", b"horse", b"goat"]


@dataclass(frozen=True)
class Workload:
    """One kind of records, what is parsed out of them, and how many times TensorFlow's speed is
    wanted.
    """

    name: str
    bar: float
    records: list[bytes]
    features: dict[str, Feature]
    batches: int
    vahidk: dict[str, str]


@dataclass(frozen=True)
class Row:
    """One line of the result: records per second, medians of the rounds."""

    name: str
    way: str
    streamrec: float
    peer: str
    peer_speed: float
    ratio: float
    bar: float | None
    note: str = ""


def serialized(values: dict[str, Any]) -> bytes:
    """An Example of lists of int, float and bytes."""
    example = Example()
    for key, value in values.items():
        feature = example.features.feature[key]
        if isinstance(value[0], bytes):
            feature.bytes_list.value.extend(value)
        elif isinstance(value[0], float):
            feature.float_list.value.extend(value)
        else:
            feature.int64_list.value.extend(value)
    return example.SerializeToString(deterministic=True)


def workloads() -> Iterator[Workload]:
    """The five kinds of records of the bars."""
    rng = np.random.default_rng(7)
    for make in (scalars, many_scalars, ragged, vectors, images):
        yield make(rng)


def scalars(rng: np.random.Generator) -> Workload:
    """The four scalar features of TensorFlow's tutorial."""

    def record() -> bytes:
        choice = int(rng.integers(5))
        values = {
            "feature0": [int(rng.integers(2))],
            "feature1": [choice],
            "feature2": [WORDS[choice]],
        }
        return serialized({**values, "feature3": [float(rng.normal())]})

    features: dict[str, Feature] = {
        "feature0": FixedLenFeature([], np.int64, 0),
        "feature1": FixedLenFeature([], np.int64, 0),
        "feature2": FixedLenFeature([], bytes, ""),
        "feature3": FixedLenFeature([], np.float32, 0.0),
    }
    names = {"feature0": "int", "feature1": "int", "feature2": "byte", "feature3": "float"}
    return Workload(
        "four scalar features", 20, [record() for _ in range(BATCH)], features, 256, names
    )


def many_scalars(rng: np.random.Generator) -> Workload:
    """Forty scalar features, as of a table of clicks: 20 of int64 below a million, 20 of
    float32.
    """
    ints = [f"int_feature_{index}" for index in range(20)]
    floats = [f"float_feature_{index}" for index in range(20)]

    def record() -> bytes:
        values: dict[str, Any] = {name: [int(rng.integers(1_000_000))] for name in ints}
        return serialized({**values, **{name: [float(rng.normal())] for name in floats}})

    features: dict[str, Feature] = {name: FixedLenFeature([], np.int64) for name in ints}
    features |= {name: FixedLenFeature([], np.float32) for name in floats}
    names = dict.fromkeys(ints, "int") | dict.fromkeys(floats, "float")
    return Workload(
        "forty scalar features", 8, [record() for _ in range(BATCH)], features, 64, names
    )


def ragged(rng: np.random.Generator) -> Workload:
    """One list of 200 to 1,000 token numbers of a vocabulary of 32,000."""
    lengths = rng.integers(200, 1001, BATCH)
    records = [
        serialized({"tokens": rng.integers(0, 32_000, length).tolist()}) for length in lengths
    ]
    name = "ragged int64, 200-1,000 values"
    return Workload(name, 10, records, {"tokens": RaggedFeature(np.int64)}, 64, {"tokens": "int"})


def vectors(rng: np.random.Generator) -> Workload:
    """Eight dense features of 64 floats."""
    names = [f"vector_{index}" for index in range(8)]
    records = [
        serialized({name: rng.normal(size=64).tolist() for name in names}) for _ in range(BATCH)
    ]
    features: dict[str, Feature] = {name: FixedLenFeature([64], np.float32) for name in names}
    return Workload(
        "eight float[64] features", 5, records, features, 96, dict.fromkeys(names, "float")
    )


def images(rng: np.random.Generator) -> Workload:
    """Bytes of about 110 kB, as of a JPEG image, and a label."""
    sizes = rng.integers(90_000, 130_000, BATCH)
    labelled = enumerate(sizes.tolist())
    records = [
        serialized({"image": [rng.bytes(size)], "label": [index % 10]}) for index, size in labelled
    ]
    features: dict[str, Feature] = {
        "image": FixedLenFeature([], bytes),
        "label": FixedLenFeature([], np.int64),
    }
    return Workload(
        "image bytes and label", 3, records, features, 4, {"image": "byte", "label": "int"}
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


VAHIDK = """
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
def vahidk_contenders(workload: Workload, path: str) -> Iterator[dict[str, Callable[[], object]]]:
    """Tfrecord's example_loader, if it is installed; in a process without TensorFlow, as its protos
    need.
    """
    if importlib.util.find_spec("tfrecord") is None:
        yield {}
        return
    command = [sys.executable, "-W", "ignore", "-c", VAHIDK, json.dumps([path, workload.vahidk])]
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


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def medians(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each contender: they take turns, after a first round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            spent = seconds(work)
            if turn > 0:
                taken[name].append(spent)
    return {name: statistics.median(times) for name, times in taken.items()}


def file_rows(workload: Workload, rounds: int) -> list[Row]:
    """From file to columns, against TensorFlow and tfrecord."""
    file, _ = framed(workload.records)
    with tempfile.TemporaryDirectory() as folder:
        whole, short = Path(folder, "whole.tfrecord"), Path(folder, "short.tfrecord")
        whole.write_bytes(file * workload.batches)
        short.write_bytes(file)
        ours, tensorflow = file_contenders(workload, str(whole))
        with vahidk_contenders(workload, str(short)) as others:
            times = medians(ours | tensorflow | others, rounds)
    speeds = {name: workload.batches * BATCH / spent for name, spent in times.items()}
    speeds |= {name: BATCH / times[name] for name in others}
    best = max(tensorflow.keys() - {ONE_CORE}, key=speeds.__getitem__)
    more = [name for name in times if name == ONE_CORE or name in others]
    rows = []
    for mine in ours:
        name = workload.name + mine.removeprefix("streamrec")
        ratio = speeds[mine] / speeds[best]
        note = note_of(workload, ratio)
        rows.append(Row(name, "file", speeds[mine], best, speeds[best], ratio, workload.bar, note))
        for peer in more:
            rows.append(
                Row(
                    name,
                    "file",
                    speeds[mine],
                    peer,
                    speeds[peer],
                    speeds[mine] / speeds[peer],
                    None,
                )
            )
    return rows


def memory_rows(workload: Workload, rounds: int) -> list[Row]:
    """Parsing alone, against TensorFlow's fastest."""
    ours, tensorflow = memory_contenders(workload)
    times = medians(ours | tensorflow, rounds)
    speeds = {name: workload.batches * BATCH / spent for name, spent in times.items()}
    best = max(tensorflow, key=speeds.__getitem__)
    return [
        Row(
            workload.name + mine.removeprefix("streamrec"),
            "memory",
            speeds[mine],
            best,
            speeds[best],
            speeds[mine] / speeds[best],
            None,
        )
        for mine in ours
    ]


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


def main() -> None:
    """Measures, prints the table and writes the data."""
    parser = argparse.ArgumentParser(
        description="Parsing Examples against TensorFlow and tfrecord."
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    for workload in workloads():
        for row in file_rows(workload, options.rounds) + memory_rows(workload, options.rounds):
            show(row)
            rows.append(row)
    packages = ["numpy", "tensorflow-cpu"] + ["tfrecord"] * any(
        "example_loader" in row.peer for row in rows
    )
    cores = {"streamrec_and_tfrecord": 1, "tensorflow": os.cpu_count()}
    load = round(
        os.getloadavg()[0], 1
    )  # of the run's own last minute: at least one, above two on two cores is others
    machine = describe(*packages) | {"cores_used": cores, "load": load, "rounds": options.rounds}
    save("parse", {"machine": machine, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
