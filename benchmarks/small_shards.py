"""Many small shards, of 20 records of 100 bytes: 10,000 local files, beside tf.data, and 2,000
objects of a store.

    python -m benchmarks.small_shards [--rounds 3] [--only local,s3,http]

Sides take turns, each in a process of its own, over files in the page cache. "in turn" interleaves
16 shards; else they are read one after the other, as is the default on both sides. "four" is an
iteration over four shards from its start to its end, the mean of 300. Stores are a SeaweedFS (S3)
and an nginx (plain HTTP) on this machine; only the processor time of the client counts. "client" is
the client's own GET of the whole object, 16 at a time, whose bytes are dropped: by s3fs
(`_cat_file`), and by aiohttp (`session.get`).
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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import streamrec
from benchmarks.machine import describe, median, save
from streamrec.storage import Storage, Storages
from tests.servers.real import Store, nginx, seaweedfs

SHARDS, OBJECTS, RECORDS, SIZE = 10_000, 2_000, 20, 100
ITERATIONS = 300
AT_ONCE = 16


def main() -> None:
    """Runs the comparison, or one side of it as a child process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="local,s3")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        side, url, options = arguments.child
        print(json.dumps(measured(side, url, json.loads(options))))
        return
    only = arguments.only.split(",")
    data: dict[str, Any] = {
        "machine": describe("tensorflow-cpu", "numpy", "s3fs", "aiohttp"),
        "rounds": arguments.rounds,
    }
    if "local" in only:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), SHARDS)
            rows = taken_in_turn(SIDES, folder, {}, arguments.rounds)
        data["rows"] = rows
    for name in sorted({"s3", "http"} & set(only)):
        with nginx() if name == "http" else seaweedfs() as store:
            if name == "http":
                fill(store.directory, OBJECTS)
            else:
                asyncio.run(upload(store))
            data[name] = taken_in_turn(STORE_SIDES, store.url, store.options, arguments.rounds)
    save("small_shards", data)


def shard_of(number: int) -> bytes:
    """One shard's bytes."""
    return bytes(
        streamrec.encode_records(
            [b"%d,%d;" % (number, index) + bytes(SIZE) for index in range(RECORDS)]
        )
    )


def fill(folder: Path, count: int) -> None:
    """The shards, as files."""
    for number in range(count):
        (folder / f"{number:05}.tfrecord").write_bytes(shard_of(number))


async def upload(store: Store) -> None:
    """The shards, as objects."""

    async def put(storage: Storage, number: int) -> None:
        async with await storage.upload(f"{store.url}/{number:05}.tfrecord") as one:
            await one.write(shard_of(number))

    async with Storages(store.options) as storages:
        storage = await storages.at(store.url)
        for begin in range(0, OBJECTS, AT_ONCE):
            await asyncio.gather(
                *(put(storage, number) for number in range(begin, min(begin + AT_ONCE, OBJECTS)))
            )


def taken_in_turn(
    sides: Iterable[str], url: str, options: Mapping[str, Any], rounds: int
) -> list[dict[str, Any]]:
    """A row for each side."""
    runs: dict[str, list[tuple[float, float]]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, taken in runs.items():
            taken.append(spawn(side, url, options))
    rows = [
        {
            "side": side,
            "us": median(run[0] for run in taken),
            "cpu_us": median(run[1] for run in taken),
        }
        for side, taken in runs.items()
    ]
    for row in rows:
        print(row, flush=True)
    return rows


def spawn(side: str, url: str, options: Mapping[str, Any]) -> tuple[float, float]:
    """One side, in a fresh process."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.small_shards",
        "--child",
        side,
        url,
        json.dumps(dict(options)),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    us, cpu_us = json.loads(done.stdout)
    return us, cpu_us


def measured(side: str, url: str, options: dict[str, Any]) -> tuple[float, float]:
    """Microseconds, and those of processor time, of each shard or iteration; the second time that
    it is done.
    """
    work: Callable[[Sequence[str]], int]
    if "://" in url:
        paths = [f"{url}/{number:05}.tfrecord" for number in range(OBJECTS)]
        if side == "client":
            return asyncio.run((by_s3fs if url.startswith("s3:") else by_aiohttp)(paths, options))
        work = partial(by_streamrec, reads=16 if "in turn" in side else None, options=options)
    else:
        paths, work = sorted(map(str, Path(url).iterdir())), SIDES[side]
    work(paths[:100])
    began, cpu = time.perf_counter(), time.process_time()
    count = work(paths)
    return (time.perf_counter() - began) / count * 1e6, (time.process_time() - cpu) / count * 1e6


async def by_s3fs(paths: Sequence[str], options: dict[str, Any]) -> tuple[float, float]:
    """Whole objects, by s3fs."""
    import s3fs

    fs = s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await fs.set_session()
    try:
        return await got(fs._cat_file, paths)
    finally:
        await fs._s3creator.__aexit__(None, None, None)


async def by_aiohttp(paths: Sequence[str], options: dict[str, Any]) -> tuple[float, float]:
    """Whole objects, by aiohttp."""
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> bytes:
            async with session.get(path) as answer:
                return await answer.read()

        return await got(get, paths)


async def got(get: Callable[[str], Awaitable[bytes]], paths: Sequence[str]) -> tuple[float, float]:
    """Microseconds, and those of processor time, of each object; behind a hundred that do not
    count.
    """

    async def some(left: Iterable[str]) -> None:
        for path in left:
            assert len(await get(path)) > RECORDS * SIZE

    async def every(paths: Sequence[str]) -> None:
        left = iter(paths)
        await asyncio.gather(*(some(left) for _ in range(AT_ONCE)))

    await every(paths[:100])
    began, cpu = time.perf_counter(), time.process_time()
    await every(paths)
    return (time.perf_counter() - began) / len(paths) * 1e6, (time.process_time() - cpu) / len(
        paths
    ) * 1e6


def by_streamrec(
    paths: Sequence[str], reads: int | None = None, options: dict[str, Any] | None = None
) -> int:
    """Batches of records."""
    dataset = streamrec.TFRecordDataset(
        list(paths), num_parallel_reads=reads, storage_options=options
    )
    assert sum(len(batch) for batch in dataset.batch(1000)) == RECORDS * len(paths)
    return len(paths)


def by_tensorflow(paths: Sequence[str], cycle: int = 1) -> int:
    """Batches of tf.data's."""
    import tensorflow as tf

    dataset = tf.data.TFRecordDataset(list(paths))
    if cycle > 1:
        names = tf.data.Dataset.from_tensor_slices(list(paths))
        dataset = names.interleave(tf.data.TFRecordDataset, cycle, 1, tf.data.AUTOTUNE)
    assert sum(int(batch.shape[0]) for batch in dataset.batch(1000)) == RECORDS * len(paths)
    return len(paths)


def iterated(paths: Sequence[str]) -> int:
    """Iterations over four shards; each counts as one."""
    dataset = streamrec.TFRecordDataset(list(paths[:4]))
    count = ITERATIONS if len(paths) > 100 else 1
    for _ in range(count):
        assert sum(1 for _ in dataset) == 4 * RECORDS
    return count


SIDES: dict[str, Callable[[Sequence[str]], int]] = {
    "streamrec": by_streamrec,
    "tf.data": by_tensorflow,
    "streamrec, in turn": lambda paths: by_streamrec(paths, 16),
    "tf.data, in turn": lambda paths: by_tensorflow(paths, 16),
    "four": iterated,
}

STORE_SIDES = ("streamrec", "streamrec, in turn", "client")


if __name__ == "__main__":
    main()
