"""How commands read shards: all records, only their number, or a sample; several at a time."""

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
from typing import Any, Final, TypeVar

import anyio
import click
import numpy as np

import streamrec
from streamrec.cli import library
from streamrec.cli.library import (
    LONG_BYTES,
    Expected,
    Kind,
    ReadOptions,
    Schema,
    ShardRange,
    ShardReader,
    describe_other,
    kind_of,
)
from streamrec.cli.options import JOBS
from streamrec.cli.output import Meter, progress
from streamrec.cli.records import check_where, find_matching, kind_of_all
from streamrec.cli.sources import Item, storages_for

PARALLEL: Final = 8
"""How many shards are read at the same time without `--jobs`."""

BATCH_BYTES: Final = 8 << 20
"""The approximate size of a batch."""

SAMPLE_BYTES: Final = 4 << 20
"""How much is read of each shard of a sample."""

KINDS: Final[dict[Kind, str]] = {
    "example": "Example",
    "sequence_example": "SequenceExample",
    "example_list": "ExampleListWithContext, as TF-Ranking writes",
    "bytes": "bytes, not Examples",
}
"""The types of records, for people."""

A = TypeVar("A")
B = TypeVar("B")


def run(work: Coroutine[Any, Any, B]) -> B:
    """Runs a command's async work. Ctrl-C cancels it, unless it has finished."""
    results: list[B] = []

    # `asyncio.run` would make the `repr` of a result, which took four times as long as the work.
    async def keep_result() -> None:
        results.append(await work)

    try:
        asyncio.run(keep_result())
    except KeyboardInterrupt:
        if not results:
            raise
    return results[0]


def total_bytes(shards: Iterable[Item]) -> int | None:
    """The sum of the shards' sizes in bytes; None if one of them is unknown."""
    sizes = [shard.size for shard in shards]
    return None if None in sizes else sum(size or 0 for size in sizes)


def jobs() -> int:
    """How many shards to read at the same time: `--jobs`, or 8."""
    context = click.get_current_context(silent=True)
    return (context and context.meta.get(JOBS)) or PARALLEL


async def map_concurrently(
    function: Callable[[A], Awaitable[B]], items: Sequence[A], concurrency: int | None = None
) -> list[B]:
    """Calls a function for each item, `concurrency` at a time (None: as many as `jobs` says).

    Returns:
        The results in the order of the items.

    Raises:
        Exception: The first error of a call, as it is. It cancels the other calls.
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
async def open_item(
    item: Item, start: int | None = None, end: int | None = None, **options: Any
) -> AsyncIterator[ShardReader]:
    """Opens a shard, and closes it when the block ends.

    Args:
        item: The shard, which must be as it was listed, or as its manifest says.
        start: The byte from which on the first record is searched; None for the shard's beginning.
        end: The byte before which the last record begins; None for the shard's end.
        options: The arguments of `ReadOptions`.
    """
    async with storages_for(item.storage_options) as storages:
        storage = await storages.at(item.path)
        opened = await ShardReader.open(
            storage,
            item.path,
            ReadOptions(**options),
            byte_range=ShardRange(start or 0, end) if start or end else None,
            expected=item.expected,
        )
        async with aclosing(opened) as reader:
            yield reader


async def blocks(
    reader: ShardReader, meter: Meter | None = None, expected: Expected | None = None
) -> AsyncIterator[streamrec.Frames]:
    """The blocks of one shard, as its reader yields them.

    Args:
        reader: The reader of the shard.
        meter: Counts the bytes that are read; None for no count.
        expected: The number of records that the shard must have if all of it is read and none of
            it is skipped as damaged; None for no check.
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
    shards: Sequence[Item],
    record_bytes: float,
    meter: Meter,
    *,
    batch_bytes: int = BATCH_BYTES,
    memory_bytes: int = 16 * BATCH_BYTES,
    **reading: Any,
) -> AsyncGenerator[streamrec.Frames, None]:
    """The records of all shards, shard after shard, in batches.

    Args:
        shards: The shards.
        record_bytes: The approximate length of a record, from which the size of a batch follows.
        meter: Counts the bytes that are read.
        batch_bytes: The approximate size of a batch.
        memory_bytes: At most so many are held: this is how far the run reads ahead.
        reading: Further arguments of `TFRecordDataset`.
    """
    portions = [shard.portion for shard in shards]
    options = shards[0].storage_options if shards else {}
    # The pipeline is imported here: commands that list or copy shards do without it.
    dataset = library.read_portions(portions, storage_options=options, **reading)
    size = int(max(1, min(1 << 16, batch_bytes / max(record_bytes, 1))))
    batched = dataset.batch(size).with_options(memory_budget=memory_bytes)
    done = 0
    async with aclosing(batched.aiterate()) as run:
        async for frames in run:
            now = run.stats().bytes_read
            meter.add(now - done)
            done = now
            yield frames


async def keep_matching(
    blocks: AsyncGenerator[streamrec.Frames, None], where: tuple[Any, ...] | None
) -> AsyncGenerator[streamrec.Frames, None]:
    """The records that match `--where`; a thread finds them.

    Args:
        blocks: The records.
        where: The tree of `--where`; None for all records.

    Raises:
        click.UsageError: `where` names a feature that no record has.
    """
    seen: set[str] = set()
    count = 0
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
    """Records from the beginnings of some shards, which show what all records are like.

    Attributes:
        records: The records, shard after shard.
        compressions: How these shards are compressed: "", "GZIP", "ZLIB" or "ZSTD", each once.
    """

    records: tuple[bytes, ...]
    compressions: tuple[str, ...]

    @cached_property
    def kind(self) -> Kind:
        """The type of message that all records can be read as; "bytes" if there is none."""
        return kind_of_all(self.records) or ("example" if self.records else "bytes")

    @cached_property
    def other(self) -> str | None:
        """Describes the first record that is not a known message; None if all are, or are empty."""
        found = next((record for record in self.records if kind_of(record) == "bytes"), None)
        return None if found is None else describe_other(found)

    @property
    def are(self) -> str:
        """What the records are, as text after "the records are"."""
        if self.kind == "bytes" and not all(kind_of(record) == "bytes" for record in self.records):
            return "not all of them Examples"
        return KINDS[self.kind]

    @cached_property
    def schema(self) -> Schema | None:
        """The features of the records; None unless they are Examples or SequenceExamples."""
        if self.kind == "bytes" or self.kind == "example_list":
            return None
        return streamrec.infer_features(self.records, kind=self.kind)

    @property
    def record_bytes(self) -> float:
        """The mean length of a record in bytes; 0.0 without records."""
        return sum(map(len, self.records)) / len(self.records) if self.records else 0.0


async def take_sample(shards: Sequence[Item]) -> Sample:
    """Reads the beginnings of up to 8 shards: up to 1,000 records, fewer if they are long."""
    # At equal distances in the list: shards of one data set often follow one another.
    step = max(1, len(shards) // 8)
    samples = await map_concurrently(first_records, shards[::step][:8])
    records = tuple(record for taken, _ in samples for record in taken)
    return Sample(records, tuple(dict.fromkeys(compression for _, compression in samples)))


async def first_records(shard: Item) -> tuple[list[bytes], str]:
    """The first records of a shard, up to 125 or SAMPLE_BYTES, and its compression."""
    if shard.size is None or shard.size > SAMPLE_BYTES:
        # A request without an end brings what the network holds when the reader leaves: 310 MB in
        # place of 32 for eight shards on this machine.
        try:
            return await records_before(shard, SAMPLE_BYTES)
        except streamrec.StreamrecError:
            raise
        except ValueError:
            pass  # it is compressed: it has no byte ranges
    return await records_before(shard, None)


async def records_before(shard: Item, end: int | None) -> tuple[list[bytes], str]:
    """The first records of a shard that begin before this byte, at most as many as a sample has."""
    taken: list[bytes] = []
    async with open_item(shard, end=end, block_bytes=1 << 16) as reader:
        async for record in reader:
            taken.append(record)
            if len(taken) == 125 or sum(map(len, taken)) >= SAMPLE_BYTES:
                break
        return taken, reader.compression_type


async def count_all(shards: Sequence[Item]) -> list[int]:
    """The number of records of each shard; those whose number a manifest gives are not read."""
    unknown = [shard for shard in shards if shard.records is None]
    with progress("counting", total_bytes(unknown)) as meter:
        counts = iter(await map_concurrently(partial(count_one, meter=meter), unknown))
    return [next(counts) if shard.records is None else shard.records for shard in shards]


async def count_one(shard: Item, meter: Meter | None = None) -> int:
    """Counts the records of one shard by their lengths, without a check of their payloads."""
    async with open_item(shard, verify=False, long_bytes=LONG_BYTES) as reader:
        async for _ in blocks(reader, meter):
            pass
        return reader.place.record
