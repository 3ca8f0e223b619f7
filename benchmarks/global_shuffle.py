"""A global shuffle beside the plain interleaved data set, of the same bytes from the same store.

    python -m benchmarks.global_shuffle [--rounds 3] [--megabytes 1024] [--only 1kB,110kB]

The store is `tests.servers.objectstore`: 30 to 50 ms to the first byte, 60 MB/s a connection. It
has the machine's second core, each side the first, in a process of its own. All sides have one
memory budget and hand batches to a `for` loop; the plain one reads 16 shards at a time. A side
reads all shards once to warm up and then three times (`exact`: once); MB/s and CPU-s/GB are of
those, bytes and requests of one epoch. The ratios are of neighbours in time; medians.

Quality is measured by `benchmarks.shuffle_quality`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import s3fs  # noqa: F401  # before the clock starts

import streamrec
from benchmarks.machine import describe, median, save
from benchmarks.paced import served
from benchmarks.stream import peak_mb, spawn
from streamrec.shards import write_index_sync
from tests.servers.faults import Faults

MODULE = "benchmarks.global_shuffle"
STORE = Faults(first_byte=0.03, jitter=0.02, rate=60e6)
BUDGET = 448 << 20
RECORDS = {"1kB": (1000, 1024), "110kB": (110_000, 64)}
"""Their lengths, and how many make a batch."""
SIDES = {"1kB": ("plain", "blocks"), "110kB": ("plain", "blocks", "exact")}


def main() -> None:
    """Runs the rows, or one side as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--only", default="1kB,110kB")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**json.loads(arguments.child))))
        return
    rows = []
    with TemporaryDirectory() as directory:
        for name in arguments.only.split(","):
            rows.append(
                compared(Path(directory), name, arguments.megabytes << 20, arguments.rounds)
            )
            print(json.dumps(rows[-1]), flush=True)
    save(
        "global_shuffle",
        {"machine": describe("s3fs", "aiohttp"), "budget_mb": BUDGET >> 20, "rows": rows},
    )


def compared(root: Path, name: str, size: int, rounds: int) -> dict[str, Any]:
    """All sides in turn; the medians, and their ratios to the plain data set."""
    record, batch = RECORDS[name]
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES[name]}
    with served(root, name.lower(), 16, size // 16, STORE, record) as (url, names):
        index = root / name.lower() / "train.index"
        stores = {"endpoint_url": url, "anon": True}
        write_index_sync([f"s3://{shard}" for shard in names], str(index), storage_options=stores)
        for _ in range(rounds):
            for side, found in runs.items():
                found.append(spawn(MODULE, side=side, url=url, folder=name.lower(), batch=batch))
    row: dict[str, Any] = {"records": name, "megabytes": size >> 20, "load": os.getloadavg()[0]}
    for side, found in runs.items():
        row[side] = {key: median(run[key] for run in found) for key in found[0]}
        pairs = list(zip(found, runs["plain"], strict=True))
        row[side]["speed_ratio"] = median(run["mb_s"] / plain["mb_s"] for run, plain in pairs)
        row[side]["bytes_ratio"] = median(run["mb"] / plain["mb"] for run, plain in pairs)
    return row


def child(side: str, url: str, folder: str, batch: int) -> dict[str, Any]:
    """Reads all shards in one way, and measures it."""
    os.sched_setaffinity(0, {0})
    stores = {"endpoint_url": url, "anon": True}
    dataset = streamrec.TFRecordDataset(
        f"s3://{folder}/*.tfrecord", num_parallel_reads=16, storage_options=stores
    )
    if side == "plain":
        dataset = dataset.batch(batch)
    else:
        quality: Any = side
        dataset = dataset.global_shuffle(
            7, index=f"s3://{folder}/train.index", global_batch_size=batch, quality=quality
        )
    dataset = dataset.with_options(memory_budget=BUDGET)
    one_epoch(dataset)
    passes = 1 if side == "exact" else 3
    started, cpu = time.perf_counter(), cpu_seconds()
    epochs = [one_epoch(dataset) for _ in range(passes)]
    seconds, used, size = (
        time.perf_counter() - started,
        cpu_seconds() - cpu,
        sum(epoch["size"] for epoch in epochs),
    )
    return {
        "mb_s": size / seconds / 1e6,
        "cpu_s_gb": used / size * 1e9,
        "mb": epochs[0]["bytes"] / 1e6,
        "requests": epochs[0]["requests"],
        "peak_mb": peak_mb(),
    }


def one_epoch(dataset: streamrec.Dataset[Any]) -> dict[str, int]:
    """Bytes of all records, and what the store was asked for."""
    size = 0
    with dataset.iterate() as run:
        for frames in run:
            size += frames.nbytes + 16 * len(frames)
        counts = run.stats().storage.backends["s3"]
    return {"size": size, "bytes": counts.bytes, "requests": counts.requests}


def cpu_seconds() -> float:
    """Of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
