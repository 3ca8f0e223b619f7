"""`streamrec reshard`: writes the same records into other shards.

On a cluster, a task writes each new shard. The number of records of each old shard is known first,
from a manifest or because tasks count them. So each task computes which records it must write, and
the order of all records stays.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import anyio
import click
import numpy as np

from streamrec import Framer, Frames, ShardWriter, StorageError, encode_records
from streamrec.cli import options, writing
from streamrec.cli.cluster import connect, map_on, ray_option
from streamrec.cli.library import (
    Expected,
    Replacement,
    ShardInfo,
    assign_records,
    read_portions,
    shard_path,
)
from streamrec.cli.output import (
    Meter,
    print_json,
    print_line,
    print_written,
    progress,
)
from streamrec.cli.reading import (
    batches,
    count_all,
    count_one,
    keep_matching,
    run,
    take_sample,
    total_bytes,
)
from streamrec.cli.sources import Item, find_records, storages_for


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardPlan:
    """How to make the new shards. The fields are the options of the command."""

    shards: int | None
    shard_bytes: int | None
    shard_records: int | None
    shuffle: bool
    seed: int | None
    temp: str | None
    manifest: str | None
    overwrite: options.Overwrite
    where: tuple[Any, ...] | None
    ray_address: str | None


@click.command(
    "reshard",
    epilog=options.examples(
        "streamrec reshard --shard-bytes 200MB 's3://b/old/*' 's3://b/new/train-{shard:05d}.tfrecord'",
        "streamrec reshard --shards 64 --shuffle --seed 7 --compression zstd old/ new/",
        "streamrec reshard part-0.tfrecord part-1.tfrecord whole.tfrecord",
    ),
)
@options.sources
@options.target
@click.option(
    "--shards",
    type=click.IntRange(1),
    metavar="N",
    help="Write N shards with about equally many records.",
)
@options.shard_bytes
@options.shard_records
@click.option(
    "--compression",
    type=click.Choice(writing.COMPRESSIONS),
    help="Compression of the new shards.  [default: from TARGET: .gz, .zz, .zst]",
)
@click.option(
    "--shuffle", is_flag=True, help="Put all records in random order; they are buffered on disk."
)
@click.option(
    "--seed", type=click.IntRange(0), metavar="N", help="The same seed gives the same order."
)
@click.option(
    "--temp",
    type=click.Path(exists=True, file_okay=False),
    help="Where --shuffle buffers records.",
)
@options.file_option(
    "--manifest",
    metavar="URL",
    help="Where to write the manifest.  [default: manifest.json next to the shards]",
)
@options.where
@options.overwrite
@options.dry_run
@ray_option
@options.as_json
@options.source_options
@options.target_options
def reshard_command(
    sources: options.Sources,
    target: str,
    compression: str | None,
    as_json: bool,
    target_options: Mapping[str, Any],
    **choices: Any,
) -> None:
    """Writes the records of all SOURCEs into new shards, and a manifest for them.

    TARGET is a pattern with {shard:05d} for the shard's number (and, with --shards, {shards:05d}
    for how many there are), a directory, or one name for one shard. Records keep their order,
    unless they are shuffled. A run that fails or is interrupted leaves nothing behind.
    """
    plan = ReshardPlan(**choices)
    kind = writing.compression_of(target, compression)
    pattern = writing.pattern_of(target, kind, plan.shards)
    check_plan(plan, pattern)
    new_target = writing.Target(pattern, kind, target_options or sources.storage_options)
    if plan.ray_address is not None:
        connect(plan.ray_address)
    shards, manifest = run(reshard(sources, new_target, plan))
    if as_json:
        rows = [
            {key: value for key, value in asdict(shard).items() if key != "marks"}
            for shard in shards
        ]
        print_json({"manifest": manifest, "shards": rows})
        return
    print_written("shard", shards)
    print_line(f"manifest: {manifest}")


def check_plan(plan: ReshardPlan, pattern: str) -> None:
    """Refuses options that exclude each other."""
    if plan.shards is not None and (plan.shard_bytes or plan.shard_records):
        raise click.UsageError(
            "--shards says how many there are, --shard-bytes and --shard-records how large: give "
            "one"
        )
    limited = plan.shard_bytes or plan.shard_records or (plan.shards or 1) > 1
    if limited:
        writing.check_numbered(pattern)
    if plan.seed is not None and not plan.shuffle:
        raise click.UsageError("--seed is for --shuffle: add it")
    if plan.where is not None and plan.ray_address is not None:
        raise click.UsageError("--where does not run on a cluster: leave --ray out")
    if plan.shuffle and plan.ray_address is not None:
        raise click.UsageError("--shuffle needs all records in one place: leave --ray out")


async def reshard(
    sources: options.Sources, target: writing.Target, plan: ReshardPlan
) -> tuple[list[ShardInfo], str]:
    """Reads, shuffles if asked to, and writes; returns the new shards and the manifest's URL."""
    manifest = plan.manifest or target.manifest
    async with AsyncExitStack() as stack:
        storages = await stack.enter_async_context(storages_for(sources.storage_options))
        target_storages = await stack.enter_async_context(storages_for(target.storage_options))
        found = await find_records(storages, sources, mixes=False)
        spared = await writing.check_target(
            storages=storages,
            sources=sources,
            found=found,
            target_storages=target_storages,
            target=target,
            manifest=manifest,
            overwrite=plan.overwrite,
        )
        objects = writing.open_set(target_storages, plan.overwrite, spared)
        await stack.enter_async_context(objects)
        if plan.ray_address is not None:
            shards = await write_on(found, target, objects, plan)
        else:
            records, total = await open_records(stack, found, plan)
            if plan.shards is None:
                shards = await writing.write_limited(
                    records, target, objects, plan.shard_bytes, plan.shard_records
                )
            else:
                shards = await writing.write_even(records, target, objects, plan.shards, total)
        # Before the block's end puts the new objects in place: then no old one would be found.
        await writing.write_manifest(manifest, target, shards, objects)
        await writing.tell_leftovers(target_storages, target, shards, objects)
    return shards, manifest


async def open_records(
    stack: AsyncExitStack, found: Sequence[Item], plan: ReshardPlan
) -> tuple[AsyncIterator[Frames], int]:
    """The records in their new order, and their number if `plan.shards` needs it, else 0.

    They are read while they are iterated. The stack closes what this opens.
    """
    sample = await take_sample(found)
    size = total_bytes(found)

    def read(meter: Meter) -> AsyncGenerator[Frames, None]:
        return keep_matching(batches(found, sample.record_bytes, meter), plan.where)

    if not plan.shuffle:
        total = 0
        if plan.shards and plan.where is None:
            total = sum(await count_all(found))
        elif plan.shards:
            with progress("counting", size) as meter:
                total = sum([len(each) async for each in read(meter)])
        meter = stack.enter_context(progress("writing", size))
        return await stack.enter_async_context(aclosing(read(meter))), total
    shuffle = stack.enter_context(DiskShuffle(plan.seed, plan.temp))
    # How many bytes are to be scattered decides the number of buckets: 4 to 1 is a guess.
    plain = size if sample.compressions == ("",) or size is None else size * 4
    with progress("reading", size) as meter:
        async with aclosing(read(meter)) as records:
            await shuffle.scatter(records, plain)
    meter = stack.enter_context(progress("writing", shuffle.nbytes))
    return await stack.enter_async_context(aclosing(shuffle.read_shuffled(meter))), shuffle.records


async def write_on(
    found: Sequence[Item], target: writing.Target, objects: Replacement, plan: ReshardPlan
) -> list[ShardInfo]:
    """Writes new shards on a cluster; their numbers of records differ by at most one."""
    unknown = [item for item in found if item.records is None]
    counts = iter(await map_on(count_one, unknown))
    known = [
        replace(item, records=next(counts)) if item.records is None else item for item in found
    ]
    shards = [ShardInfo(item.path, item.records or 0, item.size or 0, None) for item in known]
    expected = {item.path: replace(item.expected, records=item.records) for item in known}
    count = how_many(plan, sum(shard.records for shard in shards), total_bytes(found) or 0, target)
    paths = [shard_path(target.pattern, number) for number in range(count)]
    places = [await objects.name(path) for path in paths]
    work = partial(
        write_one,
        shards,
        expected,
        target,
        count=count,
        storage_options=dict(found[0].storage_options),
        overwrite=plan.overwrite or True,
    )
    written = await map_on(work, list(enumerate(places)))
    return [replace(shard, path=path) for shard, path in zip(written, paths, strict=True)]


def how_many(plan: ReshardPlan, records: int, nbytes: int, target: writing.Target) -> int:
    """The number of new shards that the options and the size of the data ask for."""
    if not target.numbered:
        return 1
    shard_bytes = plan.shard_bytes or (
        math.inf if plan.shards or plan.shard_records else writing.SHARD_BYTES
    )
    by_records = math.ceil(records / plan.shard_records) if plan.shard_records else 1
    return max(plan.shards or 1, math.ceil(nbytes / shard_bytes), by_records)


async def write_one(
    shards: Sequence[ShardInfo],
    expected: Mapping[str, Expected],
    target: writing.Target,
    numbered: tuple[int, str],
    *,
    count: int,
    storage_options: Mapping[str, Any],
    overwrite: options.Overwrite,
) -> ShardInfo:
    """Writes one of the new shards; a worker of a cluster runs it.

    Args:
        shards: The old shards with their numbers of records.
        expected: What each of them must be like, by path.
        target: How the new shards are compressed, and the options of their store.
        numbered: The number and the URL of this shard.
        count: The number of new shards.
        storage_options: The options of the old shards' store.
        overwrite: Whether it may replace an object, as for `ShardWriter`.
    """
    number, path = numbered
    async with ShardWriter(
        path, target.compression, overwrite=overwrite, storage_options=target.storage_options
    ) as writer:
        portions = [
            replace(own, expected=expected[own.path])
            for own in assign_records(shards, count, number)
        ]
        records = read_portions(portions, storage_options=storage_options).batch(256)
        async with aclosing(records.aiterate()) as taken:
            async for frames in taken:
                await writer.write_batch(frames)
    return writer.shards[0]


BUCKETS: Final = 256
"""How many files are open at a time. Not tuned."""


class DiskShuffle:
    """Puts all records into a random order; every order is equally likely.

    It needs little memory, and a folder on disk.

    Each record is written to a random bucket, which is a file. Then one bucket after the other is
    read, and its records are put into a random order. A bucket that is too large for that is
    scattered to buckets again. The random words come directly from PCG64, so that a seed gives the
    same order with every version of NumPy.

    Use it in a `with` block: `await scatter(...)` all records, then iterate `read_shuffled()`.

    Args:
        seed: The same seed gives the same order; None for a new order each time.
        folder: Where the buckets are; None for the system's folder of temporary files.
        bucket_bytes: The approximate size of a bucket; one of twice the size is scattered again.

    Attributes:
        records: How many records were scattered.
        nbytes: How many bytes they take up in the buckets.
    """

    def __init__(
        self, seed: int | None, folder: str | None = None, bucket_bytes: int = 64 << 20
    ) -> None:
        self.records = 0
        self.nbytes = 0
        self._random = np.random.PCG64(seed)
        self._bucket_bytes = bucket_bytes
        self._stack = ExitStack()
        self._folder = folder or tempfile.gettempdir()
        self._buckets: list[Path] = []

    def __enter__(self) -> DiskShuffle:
        with folder_errors(self._folder):
            made = tempfile.TemporaryDirectory(prefix="streamrec-", dir=self._folder)
            self._folder = self._stack.enter_context(made)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    async def scatter(self, blocks: AsyncIterator[Frames], nbytes: int | None) -> None:
        """Takes all records; `nbytes` is their approximate size, None if it is unknown."""
        with self._open_buckets(nbytes or BUCKETS * self._bucket_bytes) as files:
            async for frames in blocks:
                self.records += len(frames)
                self.nbytes += await anyio.to_thread.run_sync(self._write, frames, files)
        self._buckets = [Path(file.name) for file in files]

    async def read_shuffled(self, meter: Meter) -> AsyncGenerator[Frames, None]:
        """The records in their new order, a bucket at a time. It can be iterated only once."""
        buckets_read = self._read_buckets(self._buckets)
        while (frames := await anyio.to_thread.run_sync(next, buckets_read, None)) is not None:
            yield frames
            meter.add(frames.nbytes)

    def _read_buckets(self, buckets: Iterable[Path], whole: float = math.inf) -> Iterator[Frames]:
        """The records of buckets into which `whole` bytes were scattered."""
        for path in buckets:
            nbytes = path.stat().st_size
            # Scattering does not divide a bucket that is one large record: it got all the bytes.
            if 2 * self._bucket_bytes < nbytes < whole:
                with self._open_buckets(nbytes) as files, path.open("rb") as file:
                    framer = Framer(verify=False)
                    while data := file.read(8 << 20):
                        self._write(framer.feed(data), files)
                path.unlink()
                yield from self._read_buckets([Path(file.name) for file in files], nbytes)
            elif nbytes:
                frames = Framer(verify=False).feed(path.read_bytes())
                path.unlink()
                yield frames.take(np.argsort(self._random.random_raw(len(frames)), kind="stable"))

    @contextmanager
    def _open_buckets(self, nbytes: int) -> Iterator[list[IO[bytes]]]:
        count = min(BUCKETS, nbytes // self._bucket_bytes + 1)
        with folder_errors(self._folder), ExitStack() as stack:
            yield [
                stack.enter_context(
                    tempfile.NamedTemporaryFile("w+b", 128 << 10, dir=self._folder, delete=False)
                )
                for _ in range(count)
            ]

    def _write(self, frames: Frames, files: list[IO[bytes]]) -> int:
        """Scatters records to the files; returns the number of bytes that it wrote."""
        places = self._random.random_raw(len(frames)) % np.uint64(len(files))
        order = np.argsort(places, kind="stable")
        nbytes = 0
        ends = np.searchsorted(places[order], np.arange(len(files) + 1, dtype=np.uint64))
        for number, file in enumerate(files):
            own = order[ends[number] : ends[number + 1]]
            nbytes += file.write(encode_records(frames.take(own))) if len(own) else 0
        return nbytes


@contextmanager
def folder_errors(folder: str) -> Iterator[None]:
    """Makes an OSError of the block a StorageError that says what to do."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        message = (
            f"the records wait here to be shuffled, and it fails ({error}): choose another folder "
            "with --temp"
        )
        raise StorageError(message, folder) from error
