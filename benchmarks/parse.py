"""Parsing Examples against TensorFlow and vahidk's tfrecord, as ratios measured in one run.

Run it from the project's root, where TensorFlow is installed and nothing else keeps the machine busy:

    python -m benchmarks.parse [--rounds 9] [--output benchmarks/results/parse.json]

- streamrec: `parse_example` on batches of 1,024 records that lie as spans over one buffer, as a reader gives
  them, in one thread on one core. Where there are byte strings, with and without `string_columns`.
- TensorFlow: `tf.io.parse_example` on the same batches as a ready string tensor, on all cores: called
  eagerly, as a `tf.function`, and in `tf.data` with `num_parallel_calls=AUTOTUNE` and prefetching; the
  fastest counts.
- tfrecord (vahidk; `pip install tfrecord`, left out if it is not there): `example_loader` on a file of the
  same records in the page cache, one core. It gives a dict for each record.

The contenders take turns in each round, so that what disturbs the machine disturbs them alike; medians of the
rounds count.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamrec.example.features import Feature, FixedLenFeature, RaggedFeature
from streamrec.example.messages import Example
from streamrec.example.parse import parse_example
from streamrec.kernels import NATIVE

RESULTS = Path(__file__).with_name("results") / "parse.json"
BATCH = 1024
WORDS = [b"cat", b"dog", b"chicken", b"horse", b"goat"]


@dataclass(frozen=True)
class Workload:
    """One kind of records, what is parsed out of them, and how many times TensorFlow's speed is wanted."""

    name: str
    bar: float
    records: list[bytes]
    features: dict[str, Feature]
    calls: int
    vahidk: dict[str, str]


@dataclass(frozen=True)
class Row:
    """One line of the result: records per second, medians of the rounds."""

    name: str
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


def workloads() -> list[Workload]:
    """The five kinds of records of the bars."""
    rng = np.random.default_rng(7)
    return [scalars(rng), many_scalars(rng), ragged(rng), vectors(rng), images(rng)]


def scalars(rng: np.random.Generator) -> Workload:
    """The four scalar features of TensorFlow's tutorial."""

    def record() -> bytes:
        choice = int(rng.integers(5))
        values = {"feature0": [int(rng.integers(2))], "feature1": [choice], "feature2": [WORDS[choice]]}
        return serialized({**values, "feature3": [float(rng.normal())]})

    features: dict[str, Feature] = {
        "feature0": FixedLenFeature([], np.int64, 0),
        "feature1": FixedLenFeature([], np.int64, 0),
        "feature2": FixedLenFeature([], bytes, ""),
        "feature3": FixedLenFeature([], np.float32, 0.0),
    }
    names = {"feature0": "int", "feature1": "int", "feature2": "byte", "feature3": "float"}
    return Workload("four scalar features", 20, [record() for _ in range(BATCH)], features, 60, names)


def many_scalars(rng: np.random.Generator) -> Workload:
    """Forty scalar features, as of a table of clicks: 20 of int64 below a million, 20 of float32."""
    ints = [f"int_feature_{index}" for index in range(20)]
    floats = [f"float_feature_{index}" for index in range(20)]

    def record() -> bytes:
        values: dict[str, Any] = {name: [int(rng.integers(1_000_000))] for name in ints}
        return serialized({**values, **{name: [float(rng.normal())] for name in floats}})

    features: dict[str, Feature] = {name: FixedLenFeature([], np.int64) for name in ints}
    features |= {name: FixedLenFeature([], np.float32) for name in floats}
    names = dict.fromkeys(ints, "int") | dict.fromkeys(floats, "float")
    return Workload("forty scalar features", 8, [record() for _ in range(BATCH)], features, 10, names)


def ragged(rng: np.random.Generator) -> Workload:
    """One list of 200 to 1,000 token numbers of a vocabulary of 32,000."""
    lengths = rng.integers(200, 1001, BATCH)
    records = [serialized({"tokens": rng.integers(0, 32_000, length).tolist()}) for length in lengths]
    name = "ragged int64, 200-1,000 values"
    return Workload(name, 10, records, {"tokens": RaggedFeature(np.int64)}, 5, {"tokens": "int"})


def vectors(rng: np.random.Generator) -> Workload:
    """Eight dense features of 64 floats."""
    names = [f"vector_{index}" for index in range(8)]
    records = [serialized({name: rng.normal(size=64).tolist() for name in names}) for _ in range(BATCH)]
    features: dict[str, Feature] = {name: FixedLenFeature([64], np.float32) for name in names}
    return Workload("eight float[64] features", 5, records, features, 20, dict.fromkeys(names, "float"))


def images(rng: np.random.Generator) -> Workload:
    """Bytes of about 110 kB, as of a JPEG image, and a label."""
    sizes = rng.integers(90_000, 130_000, BATCH)
    labelled = enumerate(sizes.tolist())
    records = [serialized({"image": [rng.bytes(size)], "label": [index % 10]}) for index, size in labelled]
    features: dict[str, Feature] = {"image": FixedLenFeature([], bytes), "label": FixedLenFeature([],
    np.int64)} return Workload("image bytes and label", 3, records, features, 1, {"image": "byte", "label":
    "int"})


def spans(records: list[bytes]) -> Any:
    """The records as a reader gives them: spans over one buffer, with the framing in between."""
    ends = np.cumsum([len(record) + 16 for record in records])
    lengths = np.array([len(record) for record in records])
    buffer = b"".join(b"\0" * 12 + record + b"\0" * 4 for record in records)
    return SimpleNamespace(buffer=buffer, spans=np.stack([ends - 4 - lengths, ends - 4], axis=1))


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """This thread on one core; other threads stay where they are."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def our_contenders(workload: Workload) -> dict[str, Callable[[], object]]:
    """parse_example, with and without string_columns where there are strings."""
    source = spans(workload.records)

    def parse(columns: bool) -> Callable[[], object]:
        def work() -> None:
            with one_core():
                for _ in range(workload.calls):
                    parse_example(source, workload.features, string_columns=columns)

        return work

    ours = {"streamrec": parse(False)}
    if any(feature.dtype is bytes for feature in workload.features.values()):
        ours["streamrec, string_columns"] = parse(True)
    return ours


def tensorflow_contenders(workload: Workload) -> dict[str, Callable[[], object]]:
    """tf.io.parse_example in the three ways it is used."""
    import tensorflow as tf

    batch = tf.constant(workload.records, tf.string)
    types = {np.int64: tf.int64, np.float32: tf.float32, bytes: tf.string}
    features = {
        name: tf.io.RaggedFeature(types[feature.dtype])
        if isinstance(feature, RaggedFeature)
        else tf.io.FixedLenFeature(feature.shape, types[feature.dtype], feature.default_value)  # type:
        ignore[union-attr] for name, feature in workload.features.items()
    }
    compiled = tf.function(lambda records: tf.io.parse_example(records, features))

    def calls(parse: Callable[[Any], object]) -> Callable[[], object]:
        def work() -> None:
            for _ in range(workload.calls):
                parse(batch)

        return work

    def dataset() -> None:
        batches = tf.data.Dataset.from_tensors(batch).repeat(max(workload.calls, 4))
        for _ in batches.map(compiled, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE):
            pass

    return {
        "tf.io.parse_example, eager": calls(lambda records: tf.io.parse_example(records, features)),
        "tf.io.parse_example, tf.function": calls(compiled),
        "tf.io.parse_example, tf.data AUTOTUNE": dataset,
    }


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
def vahidk_contenders(workload: Workload) -> Iterator[dict[str, Callable[[], object]]]:
    """tfrecord's example_loader on a file, if it is installed; in a process without TensorFlow, as it needs."""
    if importlib.util.find_spec("tfrecord") is None:
        yield {}
        return
    source = spans(workload.records)
    data = bytearray(source.buffer)
    for start, end in source.spans.tolist():
        data[start - 12 : start - 4] = (end - start).to_bytes(8, "little")
    with tempfile.NamedTemporaryFile(suffix=".tfrecord") as file:
        file.write(data)
        file.flush()
        command = [sys.executable, "-W", "ignore", "-c", VAHIDK, json.dumps([file.name, workload.vahidk])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:

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


def rows_of(workload: Workload, rounds: int) -> list[Row]:
    """Each of our ways against TensorFlow's fastest, and against tfrecord."""
    ours, tensorflow = our_contenders(workload), tensorflow_contenders(workload)
    with vahidk_contenders(workload) as others:
        times = medians(ours | tensorflow | others, rounds)
    counts = dict.fromkeys(times, workload.calls * BATCH) | dict.fromkeys(others, BATCH)
    counts["tf.io.parse_example, tf.data AUTOTUNE"] = max(workload.calls, 4) * BATCH
    speeds = {name: counts[name] / spent for name, spent in times.items()}
    best = max(tensorflow, key=speeds.__getitem__)
    rows = []
    for mine in ours:
        name = workload.name + mine.removeprefix("streamrec")
        ratio = speeds[mine] / speeds[best]
        rows.append(Row(name, speeds[mine], best, speeds[best], ratio, workload.bar, note_of(workload, mine,
        ratio))) rows += [Row(name, speeds[mine], peer, speeds[peer], speeds[mine] / speeds[peer], None) for
        peer in others]
    return rows


def note_of(workload: Workload, mine: str, ratio: float) -> str:
    """What limits a row that misses its bar."""
    if ratio >= workload.bar:
        return ""
    if workload.name.startswith("image"):
        return "copying the strings into fresh bytes objects takes all the time: one memory copy and its page faults"
    return "missed"


def machine() -> dict[str, str]:
    """What the figures depend on; nothing that names the machine."""
    import tensorflow as tf

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "cores_used": "streamrec and tfrecord 1, TensorFlow all",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def show(rows: list[Row]) -> None:
    """The table."""
    print(f"{'records':<48} {'streamrec':>15} {'peer':>15} {'ratio':>8} {'wanted':>7}  peer")
    for row in rows:
        ours, peer = f"{row.streamrec / 1e6:.3f} M/s", f"{row.peer_speed / 1e6:.4f} M/s"
        bar = "" if row.bar is None else f"x{row.bar:g}"
        missed = "  MISSED" if row.bar is not None and row.ratio < row.bar else ""
        print(f"{row.name:<48} {ours:>15} {peer:>15} {f'x{row.ratio:.1f}':>8} {bar:>7}  {row.peer}{missed}")


def main() -> None:
    """Measures, prints the table and writes the data."""
    parser = argparse.ArgumentParser(description="Parsing Examples against TensorFlow and tfrecord.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if not NATIVE:
        sys.exit("STREAMREC_PURE=1 is set: there is nothing to measure")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows = [row for workload in workloads() for row in rows_of(workload, options.rounds)]
    show(rows)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine(), "rounds": options.rounds, "rows": [asdict(row) for row in rows]}
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
