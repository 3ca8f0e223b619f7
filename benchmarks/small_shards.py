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

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import streamrec
from benchmarks import stores
from benchmarks.harness.meter import Figures, Meter
from benchmarks.harness.process import sides_of
from benchmarks.harness.program import Names, run
from benchmarks.harness.results import save
from benchmarks.harness.rounds import in_turn
from streamrec.storage import Storage, Storages
from tests.servers.real import Store, nginx, seaweedfs

SHARDS = 10_000
OBJECTS = 2_000
RECORDS = 20
SIZE = 100
ITERATIONS = 300
AT_ONCE = 16


def main(*, rounds: int = 3, only: Names = ("local", "s3")) -> None:
    """A row for each side, of each place."""
    found: dict[str, Any] = {}
    if "local" in only:
        with tempfile.TemporaryDirectory() as folder:
            fill(Path(folder), SHARDS)
            found["rows"] = compared(sides_of(read_files, SIDES, folder=folder), rounds)
    for name, serving in (("s3", seaweedfs), ("http", nginx)):
        if name in only:
            with ExitStack() as stack:
                with stores.last_core():
                    store = stack.enter_context(serving())
                if name == "http":
                    fill(store.directory, OBJECTS)
                else:
                    asyncio.run(upload(store))
                task = {"url": store.url, "options": dict(store.options), "count": OBJECTS}
                found[name] = compared(sides_of(read_objects, STORE_SIDES, **task), rounds)
    packages = ["tensorflow-cpu", "numpy", "s3fs", "aiohttp"]
    save("small_shards", packages, rounds=rounds, **found)


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


def compared(sides: dict[str, Any], rounds: int) -> list[dict[str, Any]]:
    """A row for each side: microseconds, and those of the processor, of each shard."""
    taken = in_turn(sides, rounds)
    rows = [{"side": side, **taken.medians(side), **taken.calm} for side in sides]
    for row in rows:
        print(row, flush=True)
    return rows


def read_files(side: str, folder: str) -> Figures:
    """One side over local files; the second time that it reads some of them."""
    return second_time(SIDES[side], sorted(map(str, Path(folder).iterdir())))


def read_objects(side: str, url: str, options: dict[str, Any], count: int) -> Figures:
    """One side over the objects of a store."""
    paths = [f"{url}/{number:05}.tfrecord" for number in range(count)]
    if side == "client":
        get = by_s3fs if url.startswith("s3:") else by_aiohttp
        return asyncio.run(get(paths, options))
    reads = 16 if "in turn" in side else None
    return second_time(partial(by_streamrec, reads=reads, options=options), paths)


def second_time(work: Callable[[Sequence[str]], int], paths: Sequence[str]) -> Figures:
    """Microseconds of each shard or iteration, after a hundred shards that do not count."""
    work(paths[:100])
    with Meter() as meter:
        count = work(paths)
    return meter.each(count)


async def by_s3fs(paths: Sequence[str], options: dict[str, Any]) -> Figures:
    """Whole objects, by s3fs."""
    import s3fs

    fs = s3fs.S3FileSystem(**options, asynchronous=True, skip_instance_cache=True)
    await fs.set_session()
    try:
        return await got(fs._cat_file, paths)
    finally:
        await fs._s3creator.__aexit__(None, None, None)


async def by_aiohttp(paths: Sequence[str], options: dict[str, Any]) -> Figures:
    """Whole objects, by aiohttp."""
    import aiohttp

    async with aiohttp.ClientSession() as session:

        async def get(path: str) -> bytes:
            async with session.get(path) as answer:
                return await answer.read()

        return await got(get, paths)


async def got(get: Callable[[str], Awaitable[bytes]], paths: Sequence[str]) -> Figures:
    """Microseconds of each object, after a hundred objects that do not count."""

    async def some(left: Iterable[str]) -> None:
        for path in left:
            assert len(await get(path)) > RECORDS * SIZE

    async def every(paths: Sequence[str]) -> None:
        left = iter(paths)
        await asyncio.gather(*(some(left) for _ in range(AT_ONCE)))

    await every(paths[:100])
    with Meter() as meter:
        await every(paths)
    return meter.each(len(paths))


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
    run(main)
