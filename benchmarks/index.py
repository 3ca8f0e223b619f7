"""Indexes: what writing one costs beside streaming the same shards, what opening one costs, and
random access.

    python -m benchmarks.index [--rounds 3] [--shard-mib 64] [--only write,open,random]

The store is `tests.servers.objectstore` in a process of its own. Rows:

- write: 16 shards, streamed into a `for` loop and indexed in turn, from a store without limits
  (`cpu`) and from one that answers after 30 to 50 ms and gives 60 MB/s a connection (`far`);
  records of 1 kB and of 110 kB. Then the same shards on a local disk, where the index is made from
  headers.
- open: an index of 10^8 records, from a file and from the far store: seconds, memory, bytes a
  record, and the time to the lengths of 1,000 records anywhere.
- random: batches of 256 random records from the far store.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import describe, median, merge, save
from benchmarks.stream import fill, peak_mb, spawn
from streamrec import Frames, RecordSource, TFRecordDataset, bridge, write_index_sync
from streamrec.shards import IndexedRecords, ShardInfo, open_index
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.storage import Storages
from streamrec.tfrecord import LengthPacker
from tests.servers.faults import NO_FAULTS, Faults
from tests.servers.program import ServerProcess

MODULE = "benchmarks.index"
FAR = Faults(first_byte=0.03, jitter=0.02, rate=60e6)
STORES = {"cpu": NO_FAULTS, "far": FAR}
RECORDS = {"1 kB": 1_000, "110 kB": 110_000}
SHARDS, PARALLEL = 16, 16
OPEN_SHARDS, OPEN_RECORDS = 10_000, 10_000
BATCH, BATCHES = 256, 20


def main() -> None:
    """Runs the rows, or one as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shard-mib", type=int, default=64)
    parser.add_argument("--only", default="write,open,random")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(opened(**json.loads(arguments.child))))
        return
    wanted = arguments.only.split(",")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "bucket").mkdir()
        with ServerProcess("tests.servers.objectstore", ("--root", directory)) as store:
            if "open" in wanted:
                rows += open_rows(Path(directory), store)
            for name, record in RECORDS.items():
                if {"write", "random"} & set(wanted):
                    bridge.run(
                        fill, f"{directory}/bucket", None, SHARDS, arguments.shard_mib << 20, record
                    )
                if "write" in wanted:
                    rows += write_rows(Path(directory), store, name, arguments.rounds)
                if "random" in wanted:
                    rows.append(random_row(Path(directory), store, name))
    save("index", {"machine": describe("s3fs"), "rows": merge("index", rows, "row")})


def write_rows(root: Path, store: ServerProcess, name: str, rounds: int) -> list[dict[str, Any]]:
    """Streaming and indexing in turn."""
    options = {"endpoint_url": store.url, "anon": True}
    rows = []
    for place, faults in STORES.items():
        store.faults = faults
        row = compared("s3://bucket/*.tfrecord", root, options, rounds)
        rows.append({"row": "write", "store": place, "records": name, **row})
    rows.append(
        {
            "row": "write",
            "store": "disk",
            "records": name,
            **compared(f"{root}/bucket/*", root, None, rounds),
        }
    )
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def compared(names: str, root: Path, options: dict[str, Any] | None, rounds: int) -> dict[str, Any]:
    sides: dict[str, Callable[[], int]] = {
        "stream": lambda: stream(names, options),
        "index": lambda: (
            write_index_sync(
                names, f"{root}/x.index", storage_options=options, parallel=PARALLEL
            ).nbytes
        ),
    }
    for run in sides.values():
        run()  # imports, page faults
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, run in sides.items():
            runs[side].append(timed(run)[:2])
    row: dict[str, Any] = {}
    for side, found in runs.items():
        row[side] = {
            "mb_s": median(speed for speed, _ in found),
            "cpu_s_gb": median(cpu for _, cpu in found),
        }
    row["ratio"] = median(
        index / alone for (index, _), (alone, _) in zip(runs["index"], runs["stream"], strict=True)
    )
    return row


def timed(run: Callable[[], int]) -> tuple[float, float, int]:
    """MB/s, CPU-s/GB and bytes of one run."""
    began, cpu = time.perf_counter(), time.process_time()
    nbytes = run()
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return nbytes / 1e6 / seconds, cpu / nbytes * 1e9, nbytes


def stream(names: str, options: dict[str, Any] | None) -> int:
    """All records, 1 MiB of them at a time."""
    dataset = TFRecordDataset(names, num_parallel_reads=PARALLEL, storage_options=options)
    nbytes = 0
    for frames in dataset.batch(32):
        nbytes += frames.nbytes + 16 * len(frames)
    return nbytes


def open_rows(root: Path, store: ServerProcess) -> list[dict[str, Any]]:
    """An index of 10^8 records: one shard's lengths under ten thousand names."""
    packer = LengthPacker()
    packer.add(np.random.default_rng(1).integers(55_000, 165_000, OPEN_RECORDS))
    lengths = packer.finish()
    shards = [
        IndexedShard(
            ShardInfo(
                f"s3://bucket/train-{number:05d}.tfrecord",
                OPEN_RECORDS,
                lengths.end,
                number,
                version=f"v{number}",
            ),
            lengths,
        )
        for number in range(OPEN_SHARDS)
    ]
    (root / "bucket" / "large.index").write_bytes(encode_index("s3://bucket/large.index", shards))
    store.faults = FAR
    rows = []
    for place, url in (("disk", f"{root}/bucket/large.index"), ("far", "s3://bucket/large.index")):
        options = {"endpoint_url": store.url, "anon": True} if place == "far" else None
        runs = [spawn(MODULE, url=url, options=options) for _ in range(3)]
        rows.append(
            {
                "row": "open",
                "store": place,
                **{key: median(run[key] for run in runs) for key in runs[0]},
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    (root / "bucket" / "large.index").unlink()
    return rows


def opened(url: str, options: dict[str, Any] | None) -> dict[str, float]:
    """Opens an index in a fresh process."""

    async def measure() -> dict[str, float]:
        async with Storages(options) as storages:
            storage = await storages.at(url)
            size = (await storage.stat(url)).size or 0
            before, began = peak_mb(), time.perf_counter()
            index = await open_index(storage, url)
            found = {"seconds": time.perf_counter() - began, "mb": peak_mb() - before}
            reader = IndexedRecords(storages, index)
            began = time.perf_counter()
            await reader.places(np.random.default_rng(2).integers(0, len(index), 1_000))
            found["places_seconds"] = time.perf_counter() - began
            return {"records": len(index), "bytes_a_record": size / len(index), **found}

    return bridge.run(measure)


def random_row(root: Path, store: ServerProcess, name: str) -> dict[str, Any]:
    """Batches of random records."""
    options = {"endpoint_url": store.url, "anon": True}
    store.faults = NO_FAULTS
    write_index_sync("s3://bucket/*.tfrecord", f"{root}/x.index", storage_options=options)
    store.faults = FAR
    source = RecordSource(f"{root}/x.index", storage_options=options)
    draw = np.random.default_rng(3)
    source.__getitems__(draw.integers(0, len(source), BATCH))
    began, cpu = time.perf_counter(), time.process_time()
    nbytes = 0
    for _ in range(BATCHES):
        frames: Frames = source.__getitems__(draw.integers(0, len(source), BATCH))
        nbytes += frames.nbytes
    seconds = time.perf_counter() - began
    records = BATCH * BATCHES
    row = {
        "row": "random",
        "records": name,
        "records_s": float(f"{records / seconds:.3g}"),
        "mb_s": float(f"{nbytes / 1e6 / seconds:.3g}"),
        "cpu_us_record": float(f"{(time.process_time() - cpu) / records * 1e6:.3g}"),
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
