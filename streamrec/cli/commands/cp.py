"""`streamrec cp`: copies shards byte for byte, and checks every record on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from streamrec.cli import options, writing
from streamrec.cli.output import Meter, print_json, print_written, progress
from streamrec.cli.reading import blocks, map_concurrently, run, total_bytes
from streamrec.cli.sources import (
    NO_RECORDS,
    Item,
    directory_of,
    find_below,
    find_records,
    storages_for,
)
from streamrec.errors import IntegrityError, StorageError
from streamrec.shards import LONG_BYTES, ReadOptions, ShardInfo, ShardReader
from streamrec.storage import Replacement, Storages


@click.command(
    "cp",
    epilog=options.examples(
        "streamrec cp 's3://bucket/train-*.tfrecord' train/",
        "streamrec cp train/manifest.json gs://bucket/train/",
        "streamrec cp -o anon=true -O endpoint_url=http://127.0.0.1:9000 s3://public/a.tfrecord s3://own/a.tfrecord",
    ),
)
@options.sources
@options.target
@options.overwrite
@options.dry_run
@options.jobs
@options.as_json
@options.source_options
@options.target_options
def cp_command(
    sources: options.Sources,
    target: str,
    overwrite: options.Overwrite,
    as_json: bool,
    target_options: Mapping[str, Any],
) -> None:
    """Copies shards byte for byte, and checks the CRC32C of each record and of each object.

    TARGET is a directory or, for a single shard, a file name. Shards keep their names and their
    paths below the directory that they share. If a shard is damaged or differs from its manifest,
    or the copy fails or is interrupted, nothing is left behind.
    """
    copied = run(copy(sources, target, overwrite, target_options or sources.storage_options))
    if as_json:
        print_json(
            {
                "shards": [
                    {"path": each.path, "records": each.records, "bytes": each.bytes}
                    for each in copied
                ]
            }
        )
        return
    print_written("shard", copied, " copied")


async def copy(
    sources: options.Sources,
    target: str,
    overwrite: options.Overwrite,
    target_options: Mapping[str, Any],
) -> list[ShardInfo]:
    """Copies all shards; returns the new ones."""
    async with (
        storages_for(sources.storage_options) as storages,
        storages_for(target_options) as target_storages,
    ):
        found = await find_records(storages, sources)
        paths = writing.copy_paths([item.path for item in found], target, "TARGET")
        spared = await writing.refuse_sources(
            storages, writing.inputs(sources, found), target_storages, paths
        )
        if not overwrite:
            await writing.refuse_existing(target_storages, paths)
        writing.end_dry_run(found, paths)
        async with writing.open_set(target_storages, overwrite, spared) as objects:
            with progress("copying", total_bytes(found)) as meter:
                work = partial(copy_one, storages, objects, meter)
                copied = await map_concurrently(work, list(zip(found, paths, strict=True)))
            # Before the block's end puts the copies in place: then the old shards would be gone.
            if objects.staged:
                await tell_leftovers(target_storages, target, paths, objects)
            return copied


async def tell_leftovers(
    storages: Storages, target: str, paths: Sequence[str], objects: Replacement
) -> None:
    """Prints how many files the copies replace, and which other shards are in their directory.

    A pattern or the directory's name would read those, too.
    """
    directory = directory_of(target)
    found: list[Item] = []
    with suppress(StorageError):  # this client may not list
        found = [] if directory is None else await find_below(storages, directory)
    present = {item.path for item in found if not NO_RECORDS.fullmatch(item.path)}
    replaced = objects.staged.intersection(item.path for item in found)
    writing.print_leftovers(len(replaced), sorted(present.difference(paths)))


async def copy_one(
    storages: Storages, objects: Replacement, meter: Meter, work: tuple[Item, str]
) -> ShardInfo:
    """Copies one shard: its bytes are read once, and go to the reader and to the upload.

    Raises:
        IntegrityError: Fewer or more bytes arrived than the object has.
    """
    item, path = work
    storage = await storages.at(item.path)
    async with await objects.upload(path) as upload:
        source = await storage.stream(item.path, size=item.expected.size)
        stream = CopyingStream(source, upload)
        options = ReadOptions(long_bytes=LONG_BYTES)
        # The reader pulls the bytes through the copy, and its checks fail before the upload ends.
        reader = await ShardReader.open(
            storage, item.path, options, stream=stream, expected=item.expected
        )
        try:
            async for _ in blocks(reader, meter, item.expected):
                pass
        finally:
            await reader.aclose()
        if stream.info.size not in (None, stream.position):
            reason = (
                f"{stream.position:,} bytes were read of {stream.info.size:,}: run the command "
                "again"
            )
            raise IntegrityError(reason, item.path)
    return ShardInfo(path, reader.place.record, stream.position, None)


class CopyingStream:
    """A ByteStream that forwards another one, and writes all bytes that are read to an upload.

    Attributes:
        info: The object, as the store describes it.
        tally: The statistics of the stream.
        position: The number of bytes that were read.
    """

    def __init__(self, stream: Any, upload: Any) -> None:
        self.info = stream.info
        self.tally = stream.tally
        self.position = 0
        self._stream = stream
        self._upload = upload

    async def readinto(self, buffer: memoryview) -> int:
        """Reads bytes into the buffer, and uploads them; returns how many, 0 at the end."""
        count: int = await self._stream.readinto(buffer)
        await self._upload.write(buffer[:count])
        self.position += count
        return count

    async def aclose(self) -> None:
        """Closes the stream; the upload stays open."""
        await self._stream.aclose()
