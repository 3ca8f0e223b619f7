"""The kernels against TensorFlow and google-crc32c, as ratios measured in one run on one core.

    python -m benchmarks.kernels [--rounds 3]

- Scanning: `scan_frames` over a file's bytes in memory, all CRCs checked, against
  `tf.data.TFRecordDataset(path).batch(1024)` on the same file, which lies in the page cache.
  TensorFlow runs with its own buffer size and with a larger one, and the faster of the two counts.
- CRC32C of 1 MiB, against google-crc32c's C implementation.
- gather, encode_frames and find_header: how fast; they have no counterpart there that does the same
  work.

The contenders take turns in each round, after one that does not count. Everything runs on one core:
the process is pinned to it before TensorFlow makes its threads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

import google_crc32c
import numpy as np
import numpy.typing as npt

from benchmarks.harness.meter import pin
from benchmarks.harness.program import run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import seconds_of
from streamrec import kernels

BATCH = 1024
MIB = 1 << 20
NO_LIMIT = 1 << 40
SHARDS = 16
PASSES = 20
"""Scans of a file for each pass of TensorFlow's: one alone lasts 3 ms, and its first page faults
would count most."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Records of about one size, and how many times TensorFlow's speed is wanted for them."""

    name: str
    shortest: int
    longest: int
    total_bytes: int
    bar: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the result: speeds in `unit` per second, medians of the rounds."""

    name: str
    unit: str
    streamrec: float
    peer: str = ""
    peer_speed: float | None = None
    ratio: float | None = None
    bar: float | None = None


WORKLOADS = [
    Workload(
        name="scan, records of 83-87 bytes",
        shortest=83,
        longest=87,
        total_bytes=32 * MIB,
        bar=100,
    ),
    Workload(
        name="scan, records of 580-780 bytes",
        shortest=580,
        longest=780,
        total_bytes=64 * MIB,
        bar=20,
    ),
    Workload(
        name="scan, records of 100-120 kB",
        shortest=100_000,
        longest=120_000,
        total_bytes=128 * MIB,
        bar=6,
    ),
]


def records(shortest: int, longest: int, total_bytes: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Random payloads back to back, and their spans."""
    rng = np.random.default_rng(7)
    mean = (shortest + longest) // 2
    lengths = rng.integers(shortest, longest + 1, total_bytes // mean)
    ends = np.cumsum(lengths)
    return rng.bytes(int(ends[-1])), np.stack([ends - lengths, ends], 1)


def repeat(work: Callable[[], object], calls: int) -> Callable[[], object]:
    """The same many times, each result freed before the next is made."""

    def many() -> None:
        for _ in range(calls):
            work()

    return many


def tensorflow_readers(path: str) -> dict[str, Callable[[], object]]:
    """TensorFlow's reader with its own buffer size and with 8 MiB."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
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
    buffer, spans = records(workload.shortest, workload.longest, workload.total_bytes)
    data = kernels.encode_frames(buffer, spans)
    with tempfile.NamedTemporaryFile(suffix=".tfrecord") as file:
        file.write(data)
        file.flush()
        readers = tensorflow_readers(file.name)
        ours = {"streamrec": repeat(lambda: kernels.scan_frames(data, 0, True, NO_LIMIT), PASSES)}
        found, position, code, _ = kernels.scan_frames(data, 0, True, NO_LIMIT)
        assert (memoryview(found).nbytes, position, code) == (spans.nbytes, len(data), kernels.OK)
        times = seconds_of(ours | readers, rounds)
    peer = min(readers, key=times.__getitem__)
    seconds = times["streamrec"] / PASSES
    return Row(
        name=workload.name,
        unit="records",
        streamrec=len(spans) / seconds,
        peer=peer,
        peer_speed=len(spans) / times[peer],
        ratio=times[peer] / seconds,
        bar=workload.bar,
    )


def crc_row(rounds: int) -> Row:
    """CRC32C of 1 MiB against google-crc32c."""
    data = np.random.default_rng(7).bytes(MIB)
    calls = 200
    assert google_crc32c.implementation == "c"
    assert kernels.crc32c(data) == google_crc32c.value(data)
    times = seconds_of(
        {
            "ours": repeat(lambda: kernels.crc32c(data), calls),
            "google": repeat(lambda: google_crc32c.value(data), calls),
        },
        rounds,
    )
    ours, google = calls * MIB / times["ours"], calls * MIB / times["google"]
    return Row(
        name="CRC32C of 1 MiB",
        unit="bytes",
        streamrec=ours,
        peer="google_crc32c.value",
        peer_speed=google,
        ratio=ours / google,
        bar=0.9,
    )


def copy_rows(rounds: int) -> list[Row]:
    """Interleaving 16 shards record by record, and framing, 16 chunks of 64 KiB, 83-87 bytes a
    record.
    """
    chunk, spans = records(83, 87, MIB // SHARDS)
    buffers = [bytes(bytearray(chunk)) for _ in range(SHARDS)]
    sources = np.tile(np.arange(SHARDS), len(spans))
    interleaved = np.repeat(spans, SHARDS, axis=0)
    calls = 200
    times = seconds_of(
        {
            "gather": repeat(lambda: kernels.gather(buffers, sources, interleaved), calls),
            "encode": repeat(lambda: kernels.encode_frames(chunk, spans), calls),
        },
        rounds,
    )
    count = calls * len(spans)
    speeds = {
        "gather, 16 shards in turn, 83-87 bytes": SHARDS * count / times["gather"],
        "encode_frames, 83-87 bytes": count / times["encode"],
    }
    return [Row(name=name, unit="records", streamrec=speed) for name, speed in speeds.items()]


def search_rows(rounds: int) -> list[Row]:
    """Searching after damage: bytes that are mostly no lengths, and bytes that all may be."""
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
    times = seconds_of(works, rounds)
    return [
        Row(name=f"find_header, {name}", unit="bytes", streamrec=total / times[name])
        for name in works
    ]


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


def main(*, rounds: int = 3) -> None:
    """All rows, on one core."""
    pin()
    rows = [crc_row(rounds), *copy_rows(rounds), *search_rows(rounds)]
    rows += [scan_row(workload, rounds) for workload in WORKLOADS]
    show(rows)
    packages = ["numpy", "tensorflow-cpu", "google-crc32c"]
    code = ", ".join(kernels.crc32c_implementations())
    save("kernels", packages, rounds=rounds, crc32c=code, rows=[asdict(row) for row in rows])


if __name__ == "__main__":
    run(main)
