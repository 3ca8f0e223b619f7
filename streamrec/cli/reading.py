"""Shards, read block by block, several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from importlib import import_module
from typing import Any, Final, TypeVar

import anyio

import streamrec
from streamrec.cli.progress import Meter
from streamrec.cli.sources import Found, storages_for
from streamrec.shards import Expected, Portion, ReadOptions
from streamrec.tfrecord import LONG_BYTES

__all__ = ["PARALLEL", "batches", "blocks", "map_concurrently", "open_found", "open_to_scan", "run", "total_bytes"]

PARALLEL: Final = 8
"""Shards that are read at the same time."""

BATCH_BYTES: Final = 8 << 20
"""About how much the records of a batch hold together."""

A = TypeVar("A")
B = TypeVar("B")


def run(work: Coroutine[Any, Any, B]) -> B:
    """Runs a command's async work. Ctrl-C cancels it: what it has open is closed, what it writes is dropped.

    One that comes when the work is done, and all that it wrote is there, comes too late.
    """
    results: list[B] = []

    async def keep_result() -> None:  # `asyncio.run` makes a text of what its task returns, four times as long
        results.append(await work)

    try:
        asyncio.run(keep_result())
    except KeyboardInterrupt:
        if not results:
            raise
    return results[0]


def total_bytes(shards: Iterable[Found]) -> int | None:
    """The size of all shards together; None where one of them is not known."""
    sizes = [shard.size for shard in shards]
    return None if None in sizes else sum(size or 0 for size in sizes)


async def map_concurrently(
    function: Callable[[A], Awaitable[B]], items: Sequence[A], concurrency: int = PARALLEL
) -> list[B]:
    """Calls a function for each item, `concurrency` of them at a time; returns the results in the items' order.

    Raises:
        Exception: The first error ends all, and is raised as it is.
    """
    left = iter(enumerate(items))
    results: dict[int, B] = {}
    errors: list[Exception] = []

    async def work() -> None:
        try:
            for number, item in left:
                results[number] = await function(item)
        except Exception as error:
            errors.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(min(concurrency, len(items))):
            group.start_soon(work)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


@asynccontextmanager
async def open_to_scan(
    shard: Found, storage_options: Mapping[str, Any], **how: Any
) -> AsyncIterator[streamrec.ShardReader]:
    """Opens a shard whose records are counted or checked: those above LONG_BYTES take no more memory than a block.

    Args:
        shard: The shard, which must be as it was listed.
        storage_options: Of its store.
        how: Passed to `ReadOptions`.
    """
    async with storages_for(storage_options) as storages:
        options = ReadOptions(long_bytes=LONG_BYTES, **how)
        storage = await storages.at(shard.path)
        reader = await streamrec.ShardReader.open(storage, shard.path, options, expected=shard.expected)
        try:
            yield reader
        finally:
            await reader.aclose()


@asynccontextmanager
async def open_found(shard: Found, **reading: Any) -> AsyncIterator[streamrec.ShardReader]:
    """Opens a shard, which must be as it was listed or as the manifest says; arguments as for `open_shard`.

    Raises:
        ObjectChangedError, ManifestError: It has another size or version.
    """
    async with streamrec.open_shard(shard.path, **reading) as reader:
        shard.expected.check(reader.info)
        yield reader


async def blocks(
    reader: streamrec.ShardReader, meter: Meter | None = None, expected: Expected | None = None
) -> AsyncIterator[streamrec.Frames]:
    """The blocks of one shard.

    Args:
        reader: The shard.
        meter: Told of the bytes that were read, as they are stored.
        expected: What the number of its records is compared with, where it is read from its beginning to its end.

    Raises:
        ManifestError: It has another number of records than the manifest says.
    """
    done = 0
    async for frames in reader.frames():
        yield frames
        if meter is not None:
            now = reader.statistics.bytes if reader.compression_type else reader.place.offset
            meter.add(now - done)
            done = now
    if expected is not None and not reader.skipped:
        expected.check_records(reader.path, reader.place.record)


async def batches(
    shards: Sequence[Found],
    record_bytes: float,
    options: Mapping[str, Any],
    on_bytes_read: Callable[[int], None],
    **reading: Any,
) -> AsyncGenerator[streamrec.Frames, None]:
    """The records of all shards, one shard after the other, in batches of about BATCH_BYTES.

    Args:
        shards: The shards.
        record_bytes: How long a record is, about.
        options: Storage options.
        on_bytes_read: Called with how many bytes were read in all.
        reading: Passed to `TFRecordDataset`.
    """
    portions = [Portion(shard.path, expected=shard.expected) for shard in shards]
    dataset = import_module("streamrec.pipeline").read_portions(portions, storage_options=options, **reading)
    size = int(max(1, min(1 << 16, BATCH_BYTES / max(record_bytes, 1))))
    async with aclosing(dataset.batch(size).with_options(memory_budget=16 * BATCH_BYTES).aiterate()) as taken:
        async for frames in taken:
            on_bytes_read(taken.stats().bytes_read)
            yield frames
