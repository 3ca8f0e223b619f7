"""The kernels against TensorFlow and google-crc32c, as ratios measured in one run on one core.

Run it from the project's root, where TensorFlow is installed and nothing else keeps the machine
busy:

    python -m benchmarks.kernels [--rounds 7] [--output benchmarks/results/kernels.json]

- Scanning: `scan_frames` over a file's bytes in memory, all CRCs checked, against
  `tf.data.TFRecordDataset(path).batch(1024)` on the same file, which lies in the page cache.
  TensorFlow runs with its own buffer size and with a larger one, and the faster of the two counts.
- CRC32C of 1 MiB, against google-crc32c's C implementation.
- gather, encode_frames and find_header: how fast; they have no counterpart there that does the same
  work.

The contenders take turns in each round, so that what disturbs the machine disturbs them alike;
medians of the rounds count. Everything runs on one core (the process is pinned to it before
TensorFlow makes its threads).
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt

from streamrec import kernels

RESULTS = Path(__file__).with_name("results") / "kernels.json"
BATCH = 1024
MIB = 1 << 20
NO_LIMIT = 1 << 40
SHARDS = 16
PASSES = 20
"""Scans of a file for each pass of TensorFlow's: one alone lasts 3 ms, and its first page faults
would count most."""


@dataclass(frozen=True)
class Workload:
    """Records of about one size, and how many times TensorFlow's speed is wanted for them."""

    name: str
    shortest: int
    longest: int
    total_bytes: int
    bar: float


@dataclass(frozen=True)
class Row:
    """One line of the result: speeds in `unit` per second, medians of the rounds."""

    name: str
    unit: str
    streamrec: float
    peer: str
    peer_speed: float | None
    ratio: float | None
    bar: float | None


WORKLOADS = [
    Workload("scan, records of 83-87 bytes", 83, 87, 32 * MIB, 100),
    Workload("scan, records of 580-780 bytes", 580, 780, 64 * MIB, 20),
    Workload("scan, records of 100-120 kB", 100_000, 120_000, 128 * MIB, 6),
]


def records(workload: Workload) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Random payloads back to back, and their spans."""
    rng = np.random.default_rng(7)
    mean = (workload.shortest + workload.longest) // 2
    lengths = rng.integers(workload.shortest, workload.longest + 1, workload.total_bytes // mean)
    ends = np.cumsum(lengths)
    return rng.bytes(int(ends[-1])), np.stack([ends - lengths, ends], 1)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    gc.collect()
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def repeat(work: Callable[[], object], calls: int) -> Callable[[], object]:
    """The same many times, each result freed before the next is made."""

    def many() -> None:
        for _ in range(calls):
            work()

    return many


def medians(contenders: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Seconds of each contender: they take turns, after a first round that does not count."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in contenders.items():
            spent = seconds(work)
            if turn > 0:
                taken[name].append(spent)
    return {name: statistics.median(times) for name, times in taken.items()}


def tensorflow_readers(path: str) -> dict[str, Callable[[], object]]:
    """TensorFlow's reader with its own buffer size and with 8 MiB."""
    import tensorflow as tf

    def reader(buffer_size: int | None) -> Callable[[], object]:
        def read() -> int:
            dataset = tf.data.TFRecordDataset(path, buffer_size=buffer_size).batch(BATCH)
            return sum(1 for _ in dataset)

        return read

    return {
        "tf.data.TFRecordDataset(path).batch(1024)": reader(None),
        "tf.data.TFRecordDataset(path, buffer_size=8 MiB).batch(1024)": reader(8 * MIB),
    }


def scan_row(workload: Workload, rounds: int) -> Row:
    """Scanning against TensorFlow on the same bytes."""
    buffer, spans = records(workload)
    data = kernels.encode_frames(buffer, spans)
    with tempfile.NamedTemporaryFile(suffix=".tfrecord") as file:
        file.write(data)
        file.flush()
        readers = tensorflow_readers(file.name)
        ours = {"streamrec": repeat(lambda: kernels.scan_frames(data, 0, True, NO_LIMIT), PASSES)}
        found, position, code, _ = kernels.scan_frames(data, 0, True, NO_LIMIT)
        assert (len(found), position, code) == (spans.nbytes, len(data), kernels.OK)
        times = medians(ours | readers, rounds)
    peer = min(readers, key=times.__getitem__)
    n = len(spans)
    pass_time = times["streamrec"] / PASSES
    return Row(
        workload.name,
        "records",
        n / pass_time,
        peer,
        n / times[peer],
        times[peer] / pass_time,
        workload.bar,
    )


def crc_row(rounds: int) -> Row:
    """CRC32C of 1 MiB against google-crc32c."""
    data = np.random.default_rng(7).bytes(MIB)
    calls = 200
    assert google_crc32c.implementation == "c"
    assert kernels.crc32c(data) == google_crc32c.value(data)
    times = medians(
        {
            "ours": repeat(lambda: kernels.crc32c(data), calls),
            "google": repeat(lambda: google_crc32c.value(data), calls),
        },
        rounds,
    )
    ours, google = calls * MIB / times["ours"], calls * MIB / times["google"]
    return Row("CRC32C of 1 MiB", "bytes", ours, "google_crc32c.value", google, ours / google, 0.9)


def copy_rows(rounds: int) -> list[Row]:
    """Interleaving 16 shards record by record, and framing, 16 chunks of 64 KiB, 83-87 bytes a
    record.
    """
    chunk, spans = records(Workload("", 83, 87, MIB // SHARDS, 0))
    buffers = [bytes(bytearray(chunk)) for _ in range(SHARDS)]
    sources = np.tile(np.arange(SHARDS), len(spans))
    interleaved = np.repeat(spans, SHARDS, axis=0)
    calls = 200
    times = medians(
        {
            "gather": repeat(lambda: kernels.gather(buffers, sources, interleaved), calls),
            "encode": repeat(lambda: kernels.encode_frames(chunk, spans), calls),
        },
        rounds,
    )
    n = calls * len(spans)
    return [
        Row(
            "gather, 16 shards in turn, 83-87 bytes",
            "records",
            SHARDS * n / times["gather"],
            "",
            None,
            None,
            None,
        ),
        Row("encode_frames, 83-87 bytes", "records", n / times["encode"], "", None, None, None),
    ]


def search_rows(rounds: int) -> list[Row]:
    """Searching behind damage: bytes that are mostly no lengths, and bytes that all may be."""
    total, rng = 64 * MIB, np.random.default_rng(7)
    contents = {
        "random bytes": rng.bytes(total),
        "floats, half of them zeros": np.maximum(rng.standard_normal(total // 4), 0)
        .astype(np.float32)
        .tobytes(),
        "zeros": bytes(total),
    }
    works: dict[str, Callable[[], object]] = {
        name: partial(kernels.find_header, data, 0, True, 1 << 30)
        for name, data in contents.items()
    }
    assert all(work() == (total - 11, 12) for work in works.values())
    times = medians(works, rounds)
    return [
        Row(f"find_header, {name}", "bytes", total / times[name], "", None, None, None)
        for name in works
    ]


def machine() -> dict[str, str]:
    """What the figures depend on; nothing that names the machine."""
    import tensorflow as tf

    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": str(os.cpu_count()),
        "cores_used": "1",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
        "crc32c": ", ".join(kernels.crc32c_implementations()),
        "load_average": f"{os.getloadavg()[0]:.1f}",  # above 1, others disturbed this run
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def show(rows: list[Row]) -> None:
    """The table."""
    print(f"{'work':<40} {'streamrec':>16} {'peer':>16} {'ratio':>8} {'wanted':>8}")
    for row in rows:
        scale, unit = (1e9, "GB/s") if row.unit == "bytes" else (1e6, "M rec/s")
        ours = f"{row.streamrec / scale:.2f} {unit}"
        peer = "" if row.peer_speed is None else f"{row.peer_speed / scale:.4f} {unit}"
        ratio = "" if row.ratio is None else f"x{row.ratio:.2f}"
        bar = "" if row.bar is None else f"x{row.bar:g}"
        missed = (
            "  MISSED"
            if row.ratio is not None and row.bar is not None and row.ratio < row.bar
            else ""
        )
        print(f"{row.name:<40} {ours:>16} {peer:>16} {ratio:>8} {bar:>8}{missed}")


def main() -> None:
    """Measures, prints the table and writes the data."""
    parser = argparse.ArgumentParser(
        description="The kernels against TensorFlow and google-crc32c, on one core."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    rows = [crc_row(options.rounds), *copy_rows(options.rounds), *search_rows(options.rounds)]
    rows += [scan_row(workload, options.rounds) for workload in WORKLOADS]
    show(rows)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": machine(), "rounds": options.rounds, "rows": [asdict(row) for row in rows]}
    options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
