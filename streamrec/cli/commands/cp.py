"""`streamrec cp`: copies shards byte for byte, and checks every record on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final

import click

from streamrec import NotFoundError, StorageError
from streamrec.cli import options, writing
from streamrec.cli.library import (
    LONG_BYTES,
    AlreadyExistsError,
    IntegrityError,
    ReadOptions,
    Replacement,
    ShardInfo,
    ShardReader,
    Storages,
)
from streamrec.cli.output import (
    Meter,
    plural,
    print_json,
    print_line,
    print_note,
    print_written,
    progress,
)
from streamrec.cli.reading import blocks, map_concurrently, run, total_bytes
from streamrec.cli.sources import (
    NO_RECORDS,
    Item,
    directory_of,
    expand_names,
    find_below,
    find_records,
    storages_for,
)
from streamrec.cli.tfds_folders import find_descriptions

FILE_PART_BYTES: Final = 1 << 20
"""How many bytes of a file that describes shards are read at once. Not tuned."""


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
@click.option(
    "--resume",
    is_flag=True,
    help="Copy only what TARGET does not have in the same size, and keep what is copied if the "
    "command fails.",
)
@click.option(
    "--include",
    metavar="GLOB",
    multiple=True,
    help="Copy only shards whose names match, such as 'train-*'. May be repeated.",
)
@click.option(
    "--exclude",
    metavar="GLOB",
    multiple=True,
    help="Leave out shards whose names match. May be repeated.",
)
@click.option(
    "--bandwidth",
    metavar="SIZE",
    callback=options.parse_size,
    help="Read at most so many bytes a second, such as 50MB.",
)
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
    **wanted: Any,
) -> None:
    """Copies shards byte for byte, and checks the CRC32C of each record and of each object.

    TARGET is a directory or, for a single shard, a file name. Shards keep their names and their
    paths below the directory that they share. Of a folder of TensorFlow Datasets, the other files
    (dataset_info.json, features.json, names of classes) are copied, too. If a shard is damaged or
    differs from its manifest, or the copy fails or is interrupted, nothing is left behind; with
    --resume, complete copies stay, and the same command copies the rest.
    """
    choice = Choice(**wanted)
    if choice.resume and overwrite:
        raise click.UsageError(
            "--resume keeps what is there, and --overwrite replaces it: omit one"
        )
    copied = run(
        copy(sources, target, overwrite, choice, target_options or sources.storage_options)
    )
    if as_json:
        print_json(
            {
                "shards": [
                    {"path": each.path, "records": each.records, "bytes": each.bytes}
                    for each in copied.shards
                ],
                "files": copied.files,
            }
        )
        return
    print_written("shard", copied.shards, " copied")
    if copied.files:
        print_line(f"{plural(len(copied.files), 'file')} that describe the data set copied, too")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What of the sources is copied, and how fast.

    Attributes:
        resume: Only what the target does not have.
        include, exclude: Globs of names. A name is copied if it matches one of `include`, if there
            are any, and none of `exclude`.
        bandwidth: Bytes a second, at most; None: no limit.
    """

    resume: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    bandwidth: int | None = None

    def leaves_out(self, path: str) -> bool:
        """Whether a name matches one of `exclude`."""
        return any(PurePosixPath(path).match(glob) for glob in self.exclude)

    def takes(self, path: str) -> bool:
        """Whether an object is copied, by its name. A glob with a slash is one of directories, too.

        Examples:
            >>> choice = Choice(include=("train-*", "b/*"), exclude=("*-1",))
            >>> [choice.takes(f"s3://d/{name}") for name in ("a/train-0", "train-1", "b/x", "x")]
            [True, False, True, False]
        """
        name = PurePosixPath(path)
        if self.include and not any(name.match(glob) for glob in self.include):
            return False
        return not self.leaves_out(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was copied.

    Attributes:
        shards: The new shards.
        files: The paths of the other files of folders of TensorFlow Datasets.
    """

    shards: list[ShardInfo]
    files: list[str]


class Bandwidth:
    """Spreads bytes over time. Pure: the caller says what time it is, and waits.

    Examples:
        >>> limit = Bandwidth(1000)
        >>> limit.delay(500, now=0.0), limit.delay(500, now=0.1), limit.delay(500, now=9.0)
        (0.5, 0.9, 0.5)
    """

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._free = 0.0  # when the bytes so far have passed

    def delay(self, nbytes: int, now: float) -> float:
        """Returns the seconds to wait after so many more bytes."""
        if self._rate is None:
            return 0.0
        self._free = max(self._free, now) + nbytes / self._rate
        return self._free - now


async def copy(
    sources: options.Sources,
    target: str,
    overwrite: options.Overwrite,
    choice: Choice,
    target_options: Mapping[str, Any],
) -> Copied:
    """Copies all shards, and the files that describe them in folders of TensorFlow Datasets."""
    async with (
        storages_for(sources.storage_options) as storages,
        storages_for(target_options) as target_storages,
    ):
        found = await find_records(storages, sources)
        beside = await find_beside(storages, sources, found, target)
        paths = writing.copy_paths([item.path for item in found + beside], target, "TARGET")
        shards = choose(choice, list(zip(found, paths, strict=False)))
        files = [
            pair
            for pair in zip(beside, paths[len(found) :], strict=True)
            if not choice.leaves_out(pair[0].path)
        ]
        found = [item for item, _ in shards + files]
        paths = [path for _, path in shards + files]
        spared = await writing.refuse_sources(
            storages, writing.inputs(sources, found), target_storages, paths
        )
        if choice.resume:
            shards = await drop_copied(storages, target_storages, shards)
            files = await drop_equal(storages, target_storages, files)
        elif not overwrite:
            await writing.refuse_existing(target_storages, paths, "add --overwrite or --resume")
        found = [item for item, _ in shards + files]
        paths = [path for _, path in shards + files]
        writing.end_dry_run(found, paths)
        written = (
            Replacement(target_storages, stages=False, spared=spared)
            if choice.resume
            else writing.open_set(target_storages, overwrite, spared)
        )
        limit = Bandwidth(choice.bandwidth)
        async with written as objects:
            with progress("copying", total_bytes(found)) as meter:
                work = partial(copy_one, storages, objects, meter, limit)
                copied = await map_concurrently(work, shards)
                # A description comes last: with --resume, it appears when its shards are there.
                await map_concurrently(partial(copy_file, storages, objects, meter), files)
            # Before the block's end puts the copies in place: then the old shards would be gone.
            if objects.staged:
                await tell_leftovers(target_storages, target, paths, objects)
            return Copied(shards=copied, files=[path for _, path in files])


async def find_beside(
    storages: Storages, names: Sequence[str], shards: Sequence[Item], target: str
) -> list[Item]:
    """The files that describe the shards, if the names are folders of TensorFlow Datasets."""
    # One shard that gets a name of its own is no folder.
    if directory_of(target) is None and not target.endswith("/"):
        return []
    found: dict[str, Item] = {}
    for directory in filter(None, map(directory_of, await expand_names(storages, names))):
        infos = await find_descriptions(storages, directory, [item.path for item in shards])
        found |= {info.path: Item.from_listing(info) for info in infos}
    return list(found.values())


def choose(choice: Choice, pairs: list[tuple[Item, str]]) -> list[tuple[Item, str]]:
    """The shards that are copied, each with the path of its copy.

    These paths do not depend on the choice: a second command with another one adds to the copies.
    """
    chosen = [pair for pair in pairs if choice.takes(pair[0].path)]
    if not chosen:
        raise click.UsageError("--include and --exclude leave no shard to copy")
    return chosen


async def drop_equal(
    storages: Storages, target_storages: Storages, pairs: list[tuple[Item, str]]
) -> list[tuple[Item, str]]:
    """The files whose copies are not there yet. Unlike shards, they are compared byte by byte.

    Raises:
        AlreadyExistsError: Another file has the name of a copy.
    """
    left = []
    for item, path in pairs:
        try:
            present = await content_of(target_storages, path)
        except NotFoundError:
            left.append((item, path))
            continue
        if present != await content_of(storages, item.path):
            raise AlreadyExistsError(
                f"it differs from {item.path}: it is no copy; remove it, or copy with --overwrite",
                path,
            )
    return left


async def content_of(storages: Storages, path: str) -> bytes:
    """The bytes of a file that describes shards."""
    parts = [part async for part in read_parts(storages, path)]
    return b"".join(parts)


async def read_parts(storages: Storages, path: str) -> AsyncIterator[bytes]:
    """The bytes of a file, part by part."""
    stream = await (await storages.at(path)).stream(path)
    buffer = bytearray(FILE_PART_BYTES)
    try:
        while count := await stream.readinto(memoryview(buffer)):
            yield bytes(buffer[:count])
    finally:
        await stream.aclose()


async def copy_file(
    storages: Storages, objects: Replacement, meter: Meter, work: tuple[Item, str]
) -> None:
    """Copies one file that describes shards."""
    item, path = work
    async with await objects.upload(path) as upload:
        async for part in read_parts(storages, item.path):
            await upload.write(part)
            meter.add(len(part))


async def drop_copied(
    storages: Storages, target_storages: Storages, pairs: list[tuple[Item, str]]
) -> list[tuple[Item, str]]:
    """The shards whose copies are not there yet, each with the path of its copy.

    An object of the same size is a copy: objects appear complete, and were checked before.

    Raises:
        AlreadyExistsError: An object of another size has the name of a copy.
    """

    async def is_copied(pair: tuple[Item, str]) -> bool:
        item, path = pair
        try:
            present = await (await target_storages.at(path)).stat(path)
        except NotFoundError:
            return False
        size = item.size
        if size is None:
            size = (await (await storages.at(item.path)).stat(item.path)).size
        if present.size != size:
            raise AlreadyExistsError(
                f"this is not a copy of {item.path}: it has {present.size:,} bytes, and that has "
                f"{size:,}; remove it, or copy with --overwrite",
                path,
            )
        return True

    copied = await map_concurrently(is_copied, pairs)
    if any(copied):
        print_note(f"{plural(sum(copied), 'shard')} of {len(pairs):,} are copied already")
    return [pair for pair, done in zip(pairs, copied, strict=True) if not done]


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
    storages: Storages,
    objects: Replacement,
    meter: Meter,
    limit: Bandwidth,
    work: tuple[Item, str],
) -> ShardInfo:
    """Copies one shard: its bytes are read once, and go to the reader and to the upload.

    Raises:
        IntegrityError: Fewer or more bytes arrived than the object has.
    """
    item, path = work
    storage = await storages.at(item.path)
    async with await objects.upload(path) as upload:
        source = await storage.stream(item.path, size=item.expected.size)
        stream = CopyingStream(source, upload, limit)
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

    def __init__(self, stream: Any, upload: Any, limit: Bandwidth) -> None:
        self.info = stream.info
        self.tally = stream.tally
        self.position = 0
        self._stream = stream
        self._upload = upload
        self._limit = limit

    async def readinto(self, buffer: memoryview) -> int:
        """Reads bytes into the buffer, and uploads them; returns how many, 0 at the end."""
        count: int = await self._stream.readinto(buffer)
        await self._upload.write(buffer[:count])
        self.position += count
        delay = self._limit.delay(count, time.monotonic())
        if delay > 0:
            await asyncio.sleep(delay)
        return count

    async def aclose(self) -> None:
        """Closes the stream; the upload stays open."""
        await self._stream.aclose()
