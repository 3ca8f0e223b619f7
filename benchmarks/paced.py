"""A store as it is far away: 60 MB/s a connection, 30-50 ms to the first byte, and 2 % of all
requests slow.

    python -m benchmarks.paced [--rounds 3]
        [--only large,small,crawl,shards,medium,crawl_large,first,cpu]

The store is `tests.servers.objectstore`, paced by the kernel, on the machine's second core; each
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
thread for each shard.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import gcsfs.core
import s3fs  # before the clock starts: each side needs it

from benchmarks.machine import describe, median, merge, save
from benchmarks.stream import bare_s3, fill, measured, read_bare, read_by_streamrec, spawn
from streamrec.shards import ShardReader
from streamrec.storage import Storages
from tests.servers.faults import NO_FAULTS, Faults

MODULE = "benchmarks.paced"
FAR = Faults(first_byte=0.03, jitter=0.02, rate=60e6, slow=0.02)
CRAWLING = replace(FAR, seed=2, crawl=0.02, crawl_rate=6e6)
FAULTS = {"cpu": NO_FAULTS, "crawl": CRAWLING, "crawl_large": CRAWLING}
"""Where it is not FAR."""
RECORD, BATCH = 110_000, 32
PARALLEL = 16
READ_BYTES = 8 << 20

SIZES = {
    "shards": (16, 256 << 20),
    "large": (1, 1_000_000_000),
    "small": (1_000, 100_000),
    "medium": (100, 16_000_000),
    "crawl": (16, 64 << 20),
    "crawl_large": (1, 1_000_000_000),
    "cpu": (16, 256 << 20),
}
SIDES = {
    "shards": ("bare", "readers", "dataset", "s3fs_open", "gcsfs_open"),
    "large": ("readers", "dataset", "s3fs_open", "gcsfs_open"),
    "small": ("bare", "dataset", "s3fs_open"),
    "medium": ("bare", "one_by_one"),
    "crawl": ("bare", "readers", "dataset"),
    "crawl_large": ("readers", "dataset"),
    "cpu": ("bare", "readers", "dataset"),
}
ONCE = ("s3fs_open", "gcsfs_open")
"""Sides that take minutes and are run once."""


def main() -> None:
    """Runs the rows, or one side as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="large,small,crawl")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(**json.loads(arguments.child))))
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in arguments.only.split(","):
            row = (
                first(Path(directory))
                if name == "first"
                else compared(Path(directory), name, arguments.rounds)
            )
            print(json.dumps(row), flush=True)
            rows.append(row)
    save(
        "paced",
        {"machine": describe("s3fs", "gcsfs", "aiohttp"), "rows": merge("paced", rows, "row")},
    )


def compared(root: Path, name: str, rounds: int) -> dict[str, Any]:
    """One row: all its sides in turn, `rounds` times; medians."""
    count, size = SIZES[name]
    with served(root, name, count, size, FAULTS.get(name, FAR)) as (url, names):
        runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES[name]}
        for index in range(rounds):
            for side, found in runs.items():
                if index == 0 or side not in ONCE:
                    found.append(spawn(MODULE, side=side, url=url, names=names))
    row: dict[str, Any] = {"row": name, "shards": count, "shard_bytes": size, "rounds": rounds}
    row["load"] = os.getloadavg()[0]
    for side, found in runs.items():
        row[side] = {
            key: median(run[key] for run in found) for key in ("mb_s", "cpu_s_gb", "peak_mb")
        }
    return row


def first(root: Path) -> dict[str, Any]:
    """The time to the first record."""
    with served(root, "first", 16, 8 << 20, Faults(first_byte=0.03, jitter=0.02, rate=60e6)) as (
        url,
        names,
    ):
        return {"row": "first", **spawn(MODULE, side="first", url=url, names=names)}


@contextmanager
def served(
    root: Path, name: str, count: int, size: int, faults: Faults, record: int = RECORD
) -> Iterator[tuple[str, list[str]]]:
    """A simulated store on the second core that holds the shards: one that was written, under many
    names.
    """
    bucket = root / name
    asyncio.run(fill(str(bucket), None, 1, size, min(record, size)))
    names = [f"{name}/{index:05d}.tfrecord" for index in range(count)]
    for other in names[1:]:
        os.link(bucket / "000.tfrecord", root / other)
    (bucket / "000.tfrecord").rename(root / names[0])
    command = [
        sys.executable,
        "-m",
        "tests.servers.objectstore",
        "--root",
        str(root),
        "--port",
        "0",
    ]
    command += ["--faults", json.dumps(faults.to_dict())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            for task in Path(f"/proc/{server.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {(os.cpu_count() or 1) - 1})
            yield url, names
        finally:
            server.terminate()
            for path in bucket.iterdir():
                path.unlink()


def child(side: str, url: str, names: list[str]) -> dict[str, Any]:
    """Reads all shards once, in one way, and measures it."""
    s3 = {"endpoint_url": url, "anon": True}
    urls = [f"s3://{name}" for name in names]
    if side == "first":
        os.sched_setaffinity(0, {0})
        return asyncio.run(first_times(urls, s3))
    ways: dict[str, Callable[[], tuple[int, int]]] = {
        "bare": lambda: asyncio.run(read_bare(urls, s3, False)),
        "readers": lambda: asyncio.run(read_by_readers(urls, s3)),
        "dataset": lambda: read_by_streamrec(urls, s3, BATCH),
        "one_by_one": lambda: read_by_streamrec(urls, s3, BATCH, parallel=1),
        "s3fs_open": lambda: read_by_files("s3fs", s3, names),
        "gcsfs_open": lambda: read_by_files(
            "gcsfs", {"endpoint_url": url, "token": "anon", "project": "p"}, names
        ),
    }
    return measured(ways[side])


async def read_by_readers(urls: Sequence[str], options: dict[str, Any]) -> tuple[int, int]:
    """Storage and readers, 16 shards at a time, without a pipeline above them."""
    gate = asyncio.Semaphore(PARALLEL)
    async with Storages(options, buffer_bytes=180 << 20) as storages:

        async def read(url: str) -> int:
            async with gate:
                reader = await ShardReader.open(await storages.at(url), url)
                size = 0
                async for frames in reader.frames():
                    size += frames.nbytes + 16 * len(frames)
                await reader.aclose()
                return size

        return sum(await asyncio.gather(*map(read, urls))), 0


def read_by_files(package: str, options: dict[str, Any], names: Sequence[str]) -> tuple[int, int]:
    """As one reads today: `fs.open()`, a thread for each of 16 shards at a time."""
    cls = s3fs.S3FileSystem if package == "s3fs" else gcsfs.core.GCSFileSystem
    fs = cls(**options)

    def read(name: str) -> int:
        size = 0
        with fs.open(name, "rb") as file:
            while data := file.read(READ_BYTES):
                size += len(data)
        return size

    with ThreadPoolExecutor(PARALLEL) as threads:
        return sum(threads.map(read, names)), 0


async def first_times(urls: Sequence[str], options: dict[str, Any]) -> dict[str, float]:
    """Milliseconds to the first byte of a bare GET, and to the first record; medians, after one
    that warms up.
    """
    bodies = bare_s3(options)
    opened = await anext(bodies)
    bare, ours = [], []
    async with Storages(options) as storages:
        for url in urls:
            asked = time.perf_counter()
            async for _ in opened(url):
                break
            bare.append(time.perf_counter() - asked)
            asked = time.perf_counter()
            reader = await ShardReader.open(await storages.at(url), url)
            await reader.read()
            ours.append(time.perf_counter() - asked)
            await reader.aclose()
    await bodies.aclose()
    first_byte, first_record = 1e3 * median(bare[1:]), 1e3 * median(ours[1:])
    return {
        "first_byte_ms": first_byte,
        "first_record_ms": first_record,
        "limit_ms": 2 * first_byte + 20,
    }


if __name__ == "__main__":
    main()
