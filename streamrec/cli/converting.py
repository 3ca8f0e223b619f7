"""Records of any format, read from and written to files in stores."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO, Final, cast

import anyio
import click

from streamrec import CorruptRecordError, FeatureError, Frames
from streamrec.cli.output import Meter
from streamrec.cli.reading import batches, count_one, take_sample
from streamrec.cli.sources import Found, storages_for
from streamrec.cli.writing import Feed, Target, write_limited
from streamrec.display import display_name
from streamrec.interchange import (
    Changes,
    Column,
    Encoder,
    Format,
    Look,
    Reading,
    codec_of,
    example_of,
    features_of,
    format_of,
)
from streamrec.shards import ShardInfo, shard_path
from streamrec.storage import Replacement, Storage, Storages, Upload

BLOCK_RECORDS: Final = 4096
"""At most this many records are encoded at a time."""

BUFFER_BYTES: Final = 8 << 20
"""How much a decoder reads at a time."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """How to read records.

    Attributes:
        source: The format of all files; None: as each name says.
        reading: Which features, and of which kinds.
        storage_options: Of their stores.
    """

    source: str | None
    reading: Reading
    storage_options: Any


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written: its URL, its number of records, its size, and what a manifest says of it."""

    path: str
    records: int
    bytes: int
    shard: ShardInfo | None = None


async def read(found: Sequence[Found], how: Conversion, meter: Meter) -> AsyncGenerator[Frames, None]:
    """The records of files, one file after the other, as serialized Examples."""
    async with storages_for(how.storage_options) as storages:
        for form, group in groupby(found, lambda item: format_of(item.path, how.source)):
            files = list(group)
            if form.name == "tfrecord":
                blocks = read_tfrecords(files, how, meter)
            else:
                blocks = decode(storages, files, form, how.reading, meter)
            async with aclosing(blocks):
                async for frames in blocks:
                    yield frames


async def read_tfrecords(found: Sequence[Found], how: Conversion, meter: Meter) -> AsyncGenerator[Frames, None]:
    """The records of TFRecord shards, maybe with some of their features only."""
    sample = await take_sample(found, how.storage_options)
    number = done = 0

    def note(nbytes: int) -> None:
        nonlocal done
        meter.add(nbytes - done)
        done = nbytes

    async with aclosing(batches(found, sample.record_bytes, how.storage_options, note)) as blocks:
        async for frames in blocks:
            if how.reading.features is not None:
                frames = await anyio.to_thread.run_sync(select_features, frames, number, how.reading)
            number += len(frames)
            yield frames


def select_features(frames: Frames, first: int, reading: Reading) -> Frames:
    """The records with the features that are wanted."""
    rows = (features_of(record, number) for number, record in enumerate(frames, first))
    return Frames.of(example_of({name: row[name] for name in row if reading.wants(name)}) for row in rows)


async def decode(
    storages: Storages, found: Sequence[Found], form: Format, reading: Reading, meter: Meter
) -> AsyncGenerator[Frames, None]:
    """The records of files in another format, decoded in a thread."""
    codec = codec_of(form.name)
    for item in found:
        async with open_object(await storages.at(item.path), item.path, meter) as file:
            plain = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if form.gzip else file
            records = codec.decode(plain, reading)
            while (batch := await anyio.to_thread.run_sync(next_batch, records, item.path)) is not None:
                yield Frames.of(batch)


def next_batch(records: Any, path: str) -> list[bytes] | None:
    """The next batch; an error says which file is damaged."""
    try:
        batch: list[bytes] | None = next(records, None)
        return batch
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, path, error.offset, error.record) from error
    except FeatureError as error:
        raise FeatureError(f"{error.reason} (in {display_name(path)})", error.feature, error.record) from error


@asynccontextmanager
async def locate_errors(found: Sequence[Found], how: Conversion) -> AsyncIterator[None]:
    """Adds to an error of the block in which shard its record is, whose number it says counts over all shards.

    Counts the shards before it for this, where their numbers of records are not known.
    """
    try:
        yield
    except FeatureError as error:
        number = error.record
        if number is None or any(format_of(item.path, how.source).name != "tfrecord" for item in found):
            raise  # errors of other formats name their files
        for item in found:
            records = item.records
            if records is None:
                records = await count_one(item, how.storage_options)
            if number < records:
                where = display_name(item.path)
                raise FeatureError(f"{error.reason} (in {where})", error.feature, number) from error
            number -= records
        raise


def as_text(columns: Sequence[Column], names: Sequence[str]) -> tuple[Column, ...]:
    """The columns, with those of these names as text.

    Raises:
        UsageError: There is no such column, or its values are not bytes.
    """
    known = {column.name: column.kind for column in columns}
    for name in names:
        if name not in known:
            raise click.UsageError(
                f"--text: no record has {name}: they have {', '.join(sorted(known)) or 'no features'}"
            )
        if known[name] not in ("bytes", None):
            raise click.UsageError(f"--text: {name} is {known[name]}, and only bytes become text")
    return tuple(replace(column, text=column.name in names and column.kind is not None) for column in columns)


async def look_at(records: AsyncIterator[Frames], look: Look) -> Any:
    """What all records show of their columns.

    Raises:
        FeatureError: A record is not an Example, or does not fit the others.
    """
    seen, count = look.see(()), 0
    async for frames in records:
        try:
            seen = look.join(seen, await anyio.to_thread.run_sync(look.see, frames))
        except FeatureError as error:
            raise FeatureError(error.reason, error.feature, count + (error.record or 0)) from error
        count += len(frames)
    return seen


def needed_look(form: Format, columns: Sequence[Column] | None) -> Look | None:
    """How to infer columns before a file is written; None where the format needs none, or they are known."""
    look = None if form.name == "tfrecord" else codec_of(form.name).look
    return None if look is None or (look.saved and columns is not None) else look


async def write_records(
    records: AsyncIterator[Frames],
    target: Target,
    form: Format,
    columns: Sequence[Column],
    objects: Replacement,
    nbytes: int | None,
    count: int | None,
    changes: Changes,
) -> list[Written]:
    """Writes files up to about a size in bytes, or up to a number of records, or both; at least one."""
    if form.name == "tfrecord":
        shards = await write_limited(records, target, objects, nbytes, count)
        return [Written(shard.path, shard.records, shard.bytes, shard) for shard in shards]
    feed, written, done = Feed(records), list[Written](), 0
    while not written or not await feed.ended():
        path = shard_path(target.pattern, len(written))
        encoder = await anyio.to_thread.run_sync(partial(codec_of(form.name).encoder, columns, done, changes))
        if form.gzip:
            encoder = Gzipped(encoder)
        item = await write_file(feed, encoder, await objects.upload(path), nbytes, count)
        written.append(replace(item, path=path))
        done += item.records
    return written


async def write_file(feed: Feed, encoder: Encoder, upload: Upload, nbytes: int | None, count: int | None) -> Written:
    """Writes one file, up to a limit."""
    records = size = 0
    async with upload:

        async def put(make: Callable[[], bytes]) -> None:
            data = await anyio.to_thread.run_sync(make)
            await upload.write(data)
            nonlocal size
            size += len(data)

        while (nbytes is None or size + encoder.waiting < nbytes) and (count is None or records < count):
            most = BLOCK_RECORDS if count is None else min(BLOCK_RECORDS, count - records)
            frames = await feed.block(most)
            if frames is None:
                break
            await put(partial(encoder.write, frames))
            records += len(frames)
        await put(encoder.finish)
    return Written(upload.path, records, size)


class Gzipped:
    """An encoder whose file is compressed."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._compressor = zlib.compressobj(wbits=31)

    @property
    def waiting(self) -> int:
        """Bytes of records that are not in the file yet."""
        return self._encoder.waiting

    def write(self, records: Any) -> bytes:
        """Takes records."""
        return self._compressor.compress(self._encoder.write(records))

    def finish(self) -> bytes:
        """The rest of the file."""
        return self._compressor.compress(self._encoder.finish()) + self._compressor.flush()


@asynccontextmanager
async def open_object(storage: Storage, path: str, meter: Meter) -> AsyncIterator[BinaryIO]:
    """An object as a file for decoders (tarfile, gzip, pyarrow) in other threads. All of it is of one version."""
    about = await storage.stat(path)
    raw = _ObjectFile(storage, path, about.size, about.version, meter)
    with io.BufferedReader(raw, BUFFER_BYTES) as file:
        yield file


class _ObjectFile(io.RawIOBase):
    def __init__(self, storage: Storage, path: str, size: int | None, version: str | None, meter: Meter) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage, self._path, self._version, self._meter = storage, path, version, meter
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base is None:
            raise io.UnsupportedOperation(f"{self._path}: the store does not say how large this object is")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        reading = self._storage.read_range(self._path, self._position, self._position + len(view), self._version)
        data = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        view[: len(data)] = data
        self._position += len(data)
        self._meter.add(len(data))
        return len(data)
