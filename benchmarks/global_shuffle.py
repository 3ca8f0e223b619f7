"""A global shuffle beside the plain interleaved data set, of the same bytes from the same store.

    python -m benchmarks.global_shuffle [--rounds 3] [--megabytes 1024] [--only 1kB,110kB]

The store is `tests.servers.objectstore`: 30 to 50 ms to the first byte, 60 MB/s a connection. It
has the machine's last core, each side the first, in a process of its own. All sides have one memory
budget and hand batches to a `for` loop; the plain one reads 16 shards at a time. A side reads all
shards once to warm up and then three times (`exact`: once); MB/s and CPU-s/GB are of those, bytes
and requests of one epoch. Ratios are those to the plain data set.

Quality is measured by `benchmarks.shuffle_quality`.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import s3fs  # noqa: F401  # before the clock starts

import streamrec
from benchmarks import readers, stores
from benchmarks.harness.meter import Figures, Meter, peak_mb, pin
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec.shards import write_index_sync

BUDGET = 448 << 20
RECORDS = {"1kB": (1000, 1024), "110kB": (110_000, 64)}
"""Their lengths, and how many make a batch."""

SIDES = {"1kB": ("plain", "blocks"), "110kB": ("plain", "blocks", "exact")}


def main(*, rounds: int = 3, megabytes: int = 1024, only: Names = ("1kB", "110kB")) -> None:
    """A row for each length of records."""
    rows = []
    with TemporaryDirectory() as directory:
        for name in only:
            rows.append(compared(Path(directory), name, megabytes << 20, rounds))
            print(rows[-1], flush=True)
    save("global_shuffle", ["s3fs", "aiohttp"], budget_mb=BUDGET >> 20, rows=rows)


def compared(root: Path, name: str, size: int, rounds: int) -> dict[str, Any]:
    """All sides in turn; the medians, and their ratios to the plain data set."""
    record, batch = RECORDS[name]
    bucket = name.lower()
    with stores.simulated(
        root, bucket, shards=16, size=size // 16, faults=stores.FAR, record=record
    ) as (urls, options):
        index = str(root / bucket / "train.index")
        write_index_sync(urls, index, storage_options=options)
        sides = sides_of(measured, SIDES[name], bucket=bucket, options=options, batch=batch)
        taken = in_turn(sides, rounds)
    row: dict[str, Any] = {"records": name, "megabytes": size >> 20}
    row |= {"load": os.getloadavg()[0], **taken.calm}
    for side in sides:
        row[side] = taken.medians(side)
        row[side]["speed_ratio"] = taken.ratio("mb_s", side, "plain")
        row[side]["bytes_ratio"] = taken.ratio("mb", side, "plain")
    return row


def measured(side: str, bucket: str, options: dict[str, Any], batch: int) -> Figures:
    """Reads all shards in one way."""
    pin()
    dataset: streamrec.Dataset[Any] = streamrec.TFRecordDataset(
        f"s3://{bucket}/*.tfrecord", num_parallel_reads=16, storage_options=options
    )
    if side == "plain":
        dataset = dataset.batch(batch)
    else:
        quality: Any = side
        index = f"s3://{bucket}/train.index"
        dataset = dataset.global_shuffle(7, index=index, global_batch_size=batch, quality=quality)
    dataset = dataset.with_options(memory_budget=BUDGET)
    one_epoch(dataset)
    with Meter() as meter:
        epochs = [one_epoch(dataset) for _ in range(1 if side == "exact" else 3)]
    figures = meter.rates(sum(epoch["size"] for epoch in epochs))
    asked = {"mb": epochs[0]["bytes"] / 1e6, "requests": epochs[0]["requests"]}
    return {**figures, **asked, "peak_mb": peak_mb()}


def one_epoch(dataset: streamrec.Dataset[Any]) -> dict[str, int]:
    """Bytes of all records, and what the store was asked for."""
    with dataset.iterate() as batches:
        size = sum(readers.bytes_of(frames) for frames in batches)
        counts = batches.stats().storage.backends["s3"]
    return {"size": size, "bytes": counts.bytes, "requests": counts.requests}


if __name__ == "__main__":
    run(main)
