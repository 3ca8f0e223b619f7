"""How commands read shards: whole, counted, or a sample; several at a time."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any, Final, TypeVar

import anyio
import click
import numpy as np

import streamrec
from streamrec.cli.options import JOBS
from streamrec.cli.output import Meter, progress
from streamrec.cli.records import check_where, find_matching, kind_of_all
from streamrec.cli.sources import Item, storages_for
from streamrec.example import Kind, describe_other, kind_of
from streamrec.shards import LONG_BYTES, Expected, Portion, ReadOptions, ShardRange, ShardReader

PARALLEL: Final = 8
"""Shards that are read at the same time, without `--jobs`."""

BATCH_BYTES: Final = 8 << 20
"""About the size of a batch."""

KINDS: Final[dict[Kind, str]] = {
    "example": "Example",
    "sequence_example": "SequenceExample",
    "example_list": "ExampleListWithContext, as TF-Ranking writes",
    "bytes": "bytes, no Examples",
}
"""The types of records, for people."""

A = TypeVar("A")
B = TypeVar("B")


def run(work: Coroutine[Any, Any, B]) -> B:
    """Runs a command's async work. Ctrl-C cancels it, unless the work is done by then."""
    results: list[B] = []

    async def keep_result() -> (
        None
    ):  # `asyncio.run` makes a `repr` of what its task returns, four times as long
        results.append(await work)

    try:
        asyncio.run(keep_result())
    except KeyboardInterrupt:
        if not results:
            raise
    return results[0]


def total_bytes(shards: Iterable[Item]) -> int | None:
    """The size of all shards together; None where one of them is not known."""
    sizes = [shard.size for shard in shards]
    return None if None in sizes else sum(size or 0 for size in sizes)


def jobs() -> int:
    """How many shards are read at the same time."""
    context = click.get_current_context(silent=True)
    return (context and context.meta.get(JOBS)) or PARALLEL


async def map_concurrently(
    function: Callable[[A], Awaitable[B]], items: Sequence[A], concurrency: int | None = None
) -> list[B]:
    """Calls a function for each item, `concurrency` at a time (None: `jobs`).

    Returns the results in the items' order.

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
        for _ in range(min(concurrency or jobs(), len(items))):
            group.start_soon(work)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(items))]


@asynccontextmanager
async def open_item(item: Item, start: int | None = None, **how: Any) -> AsyncIterator[ShardReader]:
    """Opens a shard, from the first record at byte `start` or after it.

    `how` is passed to `ReadOptions`.

    The shard must be as it was listed, or as a manifest says.
    """
    async with storages_for(item.storage_options) as storages:
        storage, byte_range = await storages.at(item.path), ShardRange(start) if start else None
        made = await ShardReader.open(
            storage, item.path, ReadOptions(**how), byte_range=byte_range, expected=item.expected
        )
        async with aclosing(made) as reader:
            yield reader


async def blocks(
    reader: ShardReader, meter: Meter | None = None, expected: Expected | None = None
) -> AsyncIterator[streamrec.Frames]:
    """The blocks of one shard.

    The number of its records is compared with `expected` if all of it is read.
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
    shards: Sequence[Item], record_bytes: float, meter: Meter, **reading: Any
) -> AsyncGenerator[streamrec.Frames, None]:
    """The records of all shards, shard after shard, in batches of about BATCH_BYTES.

    The meter counts the bytes that are read; `reading` is passed to `TFRecordDataset`.
    """
    portions = [Portion(path=shard.path, expected=shard.expected) for shard in shards]
    options = shards[0].storage_options if shards else {}
    dataset = import_module("streamrec.pipeline").read_portions(
        portions, storage_options=options, **reading
    )
    size, nbytes = int(max(1, min(1 << 16, BATCH_BYTES / max(record_bytes, 1)))), 0
    async with aclosing(
        dataset.batch(size).with_options(memory_budget=16 * BATCH_BYTES).aiterate()
    ) as run:
        async for frames in run:
            done, nbytes = nbytes, run.stats().bytes_read
            meter.add(nbytes - done)
            yield frames


async def keep_matching(
    blocks: AsyncGenerator[streamrec.Frames, None], where: tuple[Any, ...] | None
) -> AsyncGenerator[streamrec.Frames, None]:
    """The records for which the tree of `--where` is true, found in a thread.

    None for all records.
    """
    seen, count = set[str](), 0
    async with aclosing(blocks):
        async for frames in blocks:
            kept = frames
            if where is not None:
                rows = await anyio.to_thread.run_sync(find_matching, frames, where, seen, count)
                kept = frames.take(np.array(rows, np.int64))
            count += len(frames)
            if len(kept):
                yield kept
    if where is not None and count:
        check_where(where, seen)


@dataclass(frozen=True)
class Sample:
    """Records from the beginnings of some shards, at equal distances in the list."""

    records: tuple[bytes, ...]
    compressions: tuple[str, ...]

    @cached_property
    def kind(self) -> Kind:
        """What the records are."""
        return kind_of_all(self.records) or ("example" if self.records else "bytes")

    @cached_property
    def other(self) -> str | None:
        """What the first record is that is no known message; None if each is one, or empty."""
        found = next((record for record in self.records if kind_of(record) == "bytes"), None)
        return None if found is None else describe_other(found)

    @property
    def are(self) -> str:
        """What the records are, for people."""
        if self.kind == "bytes" and not all(kind_of(record) == "bytes" for record in self.records):
            return "not all of them Examples"
        return KINDS[self.kind]

    @cached_property
    def schema(self) -> streamrec.example.Schema | None:
        """Their features; None where they are neither Examples nor SequenceExamples."""
        if self.kind == "bytes" or self.kind == "example_list":
            return None
        return streamrec.infer_features(self.records, kind=self.kind)

    @property
    def record_bytes(self) -> float:
        """How long a record is, on average; 0.0 without one."""
        return sum(map(len, self.records)) / len(self.records) if self.records else 0.0


async def take_sample(shards: Sequence[Item]) -> Sample:
    """Reads the beginnings of up to 8 shards: up to 1,000 records, fewer where they are long."""
    step = max(1, len(shards) // 8)
    samples = await map_concurrently(first_records, shards[::step][:8])
    records = tuple(record for taken, _ in samples for record in taken)
    return Sample(records, tuple(dict.fromkeys(compression for _, compression in samples)))


async def first_records(shard: Item) -> tuple[list[bytes], str]:
    """The first records of a shard, and how it is compressed."""
    taken: list[bytes] = []
    async with open_item(shard, block_bytes=1 << 16) as reader:
        async for record in reader:
            taken.append(record)
            if len(taken) == 125 or sum(map(len, taken)) >= 4 << 20:
                break
        return taken, reader.compression_type


async def count_all(shards: Sequence[Item]) -> list[int]:
    """The number of records of each shard.

    The command reads no shard whose number a manifest says.
    """
    unknown = [shard for shard in shards if shard.records is None]
    with progress("counting", total_bytes(unknown)) as meter:
        counts = iter(await map_concurrently(partial(count_one, meter=meter), unknown))
    return [next(counts) if shard.records is None else shard.records for shard in shards]


async def count_one(shard: Item, meter: Meter | None = None) -> int:
    """The number of records of one shard, by their lengths."""
    async with open_item(shard, verify=False, long_bytes=LONG_BYTES) as reader:
        async for _ in blocks(reader, meter):
            pass
        return reader.place.record
