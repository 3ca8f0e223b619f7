"""A store as it is far away: 60 MB/s a connection, 30-50 ms to the first byte, and 2 % of all
requests slow.

    python -m benchmarks.paced [--rounds 3]
        [--only large,small,crawl,shards,medium,crawl_large,first,cpu]

The store is `tests.servers.objectstore`, paced by the kernel, on the machine's last core; each
client has the first, in a process of its own. Rows:

- shards: 16 shards at a time. The bare client is 16 of s3fs' own streamed GETs, bytes dropped as
  they come.
- large: one shard of 1 GB.
- small: a thousand shards of 100 kB.
- medium: shards of 16 MB, which the dataset reads one after the other, as it does where nothing is
  said.
- crawl, crawl_large: as shards and large, and one connection in fifty flows at 6 MB/s.
- first: from asking an open store for a shard to its first record, beside a bare GET's first byte.
  It should be within two first-byte times and 20 ms.
- cpu: no pacing and no faults: what reading costs beside the bare client.

streamrec reads in two ways: `readers` is the storage and a reader a shard; `dataset` is the whole
way into a `for` loop. Beside them are s3fs and gcsfs as they are used today: `fs.open()` and a
thread for each shard. These take minutes and are measured once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gcsfs.core
import s3fs  # before the clock starts: each side needs it

from benchmarks import readers, stores
from benchmarks.harness.meter import Figures, Meter, passes, pin
from benchmarks.harness.process import in_own_process, sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save, with_saved
from benchmarks.harness.rounds import in_turn, median
from streamrec.shards import ShardReader
from streamrec.storage import Storages
from tests.servers.faults import NO_FAULTS, Faults

FAR = replace(stores.FAR, slow=0.02)
CRAWLING = replace(FAR, seed=2, crawl=0.02, crawl_rate=6e6)
RECORD, BATCH = 110_000, 32
READ_BYTES = 8 << 20

Options = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What a row reads, and who reads it."""

    shards: int
    shard_bytes: int
    sides: tuple[str, ...]
    faults: Faults = FAR


FILES = ("s3fs_open", "gcsfs_open")
ROWS = {
    "shards": Row(16, 256 << 20, ("bare", "readers", "dataset", *FILES)),
    "large": Row(1, 1_000_000_000, ("readers", "dataset", *FILES)),
    "small": Row(1_000, 100_000, ("bare", "dataset", "s3fs_open")),
    "medium": Row(100, 16_000_000, ("bare", "one_by_one")),
    "crawl": Row(16, 64 << 20, ("bare", "readers", "dataset"), CRAWLING),
    "crawl_large": Row(1, 1_000_000_000, ("readers", "dataset"), CRAWLING),
    "cpu": Row(16, 256 << 20, ("bare", "readers", "dataset"), NO_FAULTS),
}


def main(*, rounds: int = 3, only: Names = ("large", "small", "crawl")) -> None:
    """Each row, with all its sides in turn."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name in only:
            rows.append(first(root) if name == "first" else compared(root, name, rounds))
            print(rows[-1], flush=True)
    save("paced", ["s3fs", "gcsfs", "aiohttp"], rows=with_saved("paced", rows, "row"))


def compared(root: Path, name: str, rounds: int) -> dict[str, Any]:
    """One row: the medians of its sides."""
    row = ROWS[name]
    size = row.shard_bytes
    with stores.simulated(root, name, shards=row.shards, size=size, faults=row.faults) as where:
        sides = sides_of(measured, row.sides, urls=where[0], options=where[1])
        taken = in_turn(sides, rounds, once=FILES)
    found: dict[str, Any] = {"row": name, "shards": row.shards, "shard_bytes": size}
    found |= {"rounds": rounds, "load": os.getloadavg()[0], **taken.calm}
    for side in row.sides:
        found[side] = taken.medians(side, "mb_s", "cpu_s_gb", "peak_mb")
    return found


def first(root: Path) -> dict[str, Any]:
    """The time to the first record."""
    with stores.simulated(root, "first", shards=16, size=8 << 20, faults=stores.FAR) as where:
        found: Figures = in_own_process(first_times, urls=where[0], options=where[1])
    return {"row": "first", **found}


def measured(side: str, urls: list[str], options: Options) -> Figures:
    """One side reads all shards, three times."""
    read = {
        "bare": lambda: readers.by_bare_client(urls, options)[0],
        "readers": lambda: asyncio.run(read_by_readers(urls, options)),
        "dataset": lambda: readers.by_streamrec(urls, options, batch=BATCH)[0],
        "one_by_one": lambda: readers.by_streamrec(urls, options, batch=BATCH, parallel=1)[0],
        "s3fs_open": lambda: read_files(s3fs.S3FileSystem(**options), urls),
        "gcsfs_open": lambda: read_files(
            gcsfs.core.GCSFileSystem(
                endpoint_url=options["endpoint_url"], token="anon", project="p"
            ),
            urls,
        ),
    }
    return passes(read[side])


async def read_by_readers(urls: Sequence[str], options: Options) -> int:
    """Storage and readers, 16 shards at a time, without a pipeline above them."""
    gate = asyncio.Semaphore(readers.PARALLEL)
    async with Storages(options, buffer_bytes=180 << 20) as storages:

        async def read(url: str) -> int:
            async with gate:
                reader = await ShardReader.open(await storages.at(url), url)
                size = sum([readers.bytes_of(frames) async for frames in reader.frames()])
                await reader.aclose()
                return size

        return sum(await asyncio.gather(*map(read, urls)))


def read_files(fs: Any, urls: Sequence[str]) -> int:
    """As one reads today: `fs.open()`, a thread for each of 16 shards at a time."""

    def read(url: str) -> int:
        size = 0
        with fs.open(url.removeprefix("s3://"), "rb") as file:
            while data := file.read(READ_BYTES):
                size += len(data)
        return size

    with ThreadPoolExecutor(readers.PARALLEL) as threads:
        return sum(threads.map(read, urls))


def first_times(urls: list[str], options: Options) -> Figures:
    """Milliseconds to the first byte of a bare GET, and to the first record; medians, after one
    that warms up.
    """
    pin()
    return asyncio.run(timed_first(urls, options))


async def timed_first(urls: Sequence[str], options: Options) -> Figures:
    """The same, in an event loop."""
    bodies = readers.s3_bodies(options)
    opened = await anext(bodies)
    bare, ours = [], []
    async with Storages(options) as storages:
        for url in urls:
            with Meter() as meter:
                async for _ in opened(url):
                    break
            bare.append(meter.seconds)
            with Meter() as meter:
                reader = await ShardReader.open(await storages.at(url), url)
                await reader.read()
            ours.append(meter.seconds)
            await reader.aclose()
    await bodies.aclose()
    first_byte, first_record = 1e3 * median(bare[1:]), 1e3 * median(ours[1:])
    limit = 2 * first_byte + 20
    return {"first_byte_ms": first_byte, "first_record_ms": first_record, "limit_ms": limit}


if __name__ == "__main__":
    run(main)
