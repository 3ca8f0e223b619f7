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

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import readers, stores
from benchmarks.harness.meter import Figures, Meter, peak_mb
from benchmarks.harness.process import in_own_process
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save, with_saved
from benchmarks.harness.rounds import in_turn, median, significant
from streamrec import RecordSource, TFRecordDataset, bridge, write_index_sync
from streamrec.shards import IndexedRecords, ShardInfo, open_index
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.storage import Storages
from streamrec.tfrecord import LengthPacker
from tests.servers.faults import NO_FAULTS
from tests.servers.program import ServerProcess

PLACES = {"cpu": NO_FAULTS, "far": stores.FAR}
RECORDS = {"1 kB": 1_000, "110 kB": 110_000}
SHARDS, PARALLEL = 16, 16
OPEN_SHARDS, OPEN_RECORDS = 10_000, 10_000
BATCH, BATCHES = 256, 20


def main(
    *, rounds: int = 3, shard_mib: int = 64, only: Names = ("write", "open", "random")
) -> None:
    """Runs the rows."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "bucket").mkdir()
        with stores.far_server(root, NO_FAULTS) as store:
            if "open" in only:
                rows += open_rows(root, store)
            for name, record in RECORDS.items() if {"write", "random"} & set(only) else ():
                size = shard_mib << 20
                fill = partial(stores.fill, shards=SHARDS, size=size, record=record)
                bridge.run(fill, f"{root}/bucket", None)
                if "write" in only:
                    rows += write_rows(root, store, name, rounds)
                if "random" in only:
                    rows.append(random_row(root, store, name))
    save("index", ["s3fs"], rows=with_saved("index", rows, "row"))


def write_rows(root: Path, store: ServerProcess, name: str, rounds: int) -> list[dict[str, Any]]:
    """Streaming and indexing in turn."""
    options = {"endpoint_url": store.url, "anon": True}
    rows = []
    for place in (*PLACES, "disk"):
        if place == "disk":
            found = compared(f"{root}/bucket/*", root, None, rounds)
        else:
            store.faults = PLACES[place]
            found = compared("s3://bucket/*.tfrecord", root, options, rounds)
        rows.append({"row": "write", "store": place, "records": name, **found})
        print(rows[-1], flush=True)
    return rows


def compared(names: str, root: Path, options: dict[str, Any] | None, rounds: int) -> dict[str, Any]:
    """Both in this process; the first round loads modules and does not count."""

    def index() -> int:
        # an index of other shards would not be replaced without a warning
        where = f"{root}/{'store' if options else 'disk'}.index"
        written = write_index_sync(names, where, storage_options=options, parallel=PARALLEL)
        return written.nbytes

    works: dict[str, Callable[[], int]] = {
        "stream": partial(stream, names, options),
        "index": index,
    }
    sides = {name: partial(rates, work) for name, work in works.items()}
    taken = in_turn(sides, rounds, warm=1)
    row: dict[str, Any] = {side: taken.medians(side) for side in sides}
    return {**row, "ratio": taken.ratio("mb_s", "index", "stream"), **taken.calm}


def rates(work: Callable[[], int]) -> Figures:
    """MB/s and CPU-s/GB of what returns its bytes."""
    with Meter() as meter:
        nbytes = work()
    return meter.rates(nbytes)


def stream(names: str, options: dict[str, Any] | None) -> int:
    """All records, 1 MiB of them at a time."""
    dataset = TFRecordDataset(names, num_parallel_reads=PARALLEL, storage_options=options)
    return sum(readers.bytes_of(frames) for frames in dataset.batch(32))


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
    store.faults = stores.FAR
    rows = []
    for place, url in (("disk", f"{root}/bucket/large.index"), ("far", "s3://bucket/large.index")):
        options = {"endpoint_url": store.url, "anon": True} if place == "far" else None
        runs = [in_own_process(opened, url=url, options=options) for _ in range(3)]
        found = {key: median(run[key] for run in runs) for key in runs[0]}
        rows.append({"row": "open", "store": place, **found})
        print(rows[-1], flush=True)
    (root / "bucket" / "large.index").unlink()
    return rows


def opened(url: str, options: dict[str, Any] | None) -> Figures:
    """Opens an index, in a process of its own."""

    async def measure() -> Figures:
        async with Storages(options) as storages:
            storage = await storages.at(url)
            size = (await storage.stat(url)).size or 0
            before = peak_mb()
            with Meter() as opening:
                index = await open_index(storage, url)
            taken = peak_mb() - before
            reader = IndexedRecords(storages, index)
            wanted = np.random.default_rng(2).integers(0, len(index), 1_000)
            with Meter() as placing:
                await reader.places(wanted)
            return {
                "records": len(index),
                "bytes_a_record": size / len(index),
                "seconds": opening.seconds,
                "mb": taken,
                "places_seconds": placing.seconds,
            }

    return bridge.run(measure)


def random_row(root: Path, store: ServerProcess, name: str) -> dict[str, Any]:
    """Batches of random records."""
    options = {"endpoint_url": store.url, "anon": True}
    store.faults = NO_FAULTS
    index = f"{root}/random.index"
    write_index_sync("s3://bucket/*.tfrecord", index, storage_options=options)
    store.faults = stores.FAR
    source = RecordSource(index, storage_options=options, shard_root="s3://bucket/")
    draw = np.random.default_rng(3)

    def batch() -> int:
        return source.__getitems__(draw.integers(0, len(source), BATCH)).nbytes

    batch()  # the first one opens the index and connects
    with Meter() as meter:
        nbytes = sum(batch() for _ in range(BATCHES))
    count = BATCH * BATCHES
    row = {
        "row": "random",
        "records": name,
        "records_s": significant(count / meter.seconds),
        "mb_s": significant(meter.rates(nbytes)["mb_s"]),
        "cpu_us_record": significant(meter.each(count)["cpu_us"]),
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    run(main)
