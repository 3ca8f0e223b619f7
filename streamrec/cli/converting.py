"""Records of any format, read from and written to files in stores."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any, BinaryIO, cast

import anyio
import click

from streamrec import CorruptRecordError, FeatureError, Frames
from streamrec.cli.commands.count import count_one
from streamrec.cli.object_file import opened
from streamrec.cli.progress import Meter
from streamrec.cli.reading import batches
from streamrec.cli.resharding import Feed, Target
from streamrec.cli.sampling import take_sample
from streamrec.cli.sources import Found, storages_for
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
from streamrec.shards import shard_path
from streamrec.storage import Replacement, Storages, Upload

__all__ = ["Conversion", "Written", "as_text", "look_at", "needed_look", "placing", "read", "write_files"]

BLOCK_RECORDS = 4096
"""Records that are encoded at a time, at the most."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """How records are read.

    Attributes:
        source: The format of all files; None: as each name says.
        reading: What is read of them.
        storage_options: Of their stores.
    """

    source: str | None
    reading: Reading
    storage_options: Any


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written.

    Attributes:
        path: Its URL.
        records: How many it holds.
        bytes: Its size.
    """

    path: str
    records: int
    bytes: int


async def read(found: Sequence[Found], how: Conversion, meter: Meter) -> AsyncGenerator[Frames, None]:
    """The records of files, one file after the other, as serialized Examples."""
    async with storages_for(how.storage_options) as storages:
        for form, group in groupby(found, lambda item: format_of(item.path, how.source)):
            files = list(group)
            if form.name == "tfrecord":
                blocks = tfrecords(files, how, meter)
            else:
                blocks = decoded(storages, files, form, how.reading, meter)
            async with aclosing(blocks):
                async for frames in blocks:
                    yield frames


async def tfrecords(found: Sequence[Found], how: Conversion, meter: Meter) -> AsyncGenerator[Frames, None]:
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
                frames = await anyio.to_thread.run_sync(selected, frames, number, how.reading)
            number += len(frames)
            yield frames


def selected(frames: Frames, first: int, reading: Reading) -> Frames:
    """The records with the features that are wanted."""
    rows = (features_of(record, number) for number, record in enumerate(frames, first))
    return Frames.of(example_of({name: row[name] for name in row if reading.wants(name)}) for row in rows)


async def decoded(
    storages: Storages, found: Sequence[Found], form: Format, reading: Reading, meter: Meter
) -> AsyncGenerator[Frames, None]:
    """The records of files in another format. They are decoded in a thread."""
    codec = codec_of(form.name)
    for item in found:
        async with opened(await storages.at(item.path), item.path, meter) as file:
            plain = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if form.gzip else file
            records = codec.decode(plain, reading)
            while (batch := await anyio.to_thread.run_sync(following, records, item.path)) is not None:
                yield Frames.of(batch)


def following(records: Any, path: str) -> list[bytes] | None:
    """The next batch; its error says which file is damaged."""
    try:
        batch: list[bytes] | None = next(records, None)
        return batch
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, path, error.offset, error.record) from error
    except FeatureError as error:
        raise FeatureError(f"{error.reason} (in {display_name(path)})", error.feature, error.record) from error


@asynccontextmanager
async def placing(found: Sequence[Found], how: Conversion) -> AsyncIterator[None]:
    """An error of the block that names a record by its number among all of them says which shard it is in.

    The shards before it are counted then, where nobody knows how many records they hold.
    """
    try:
        yield
    except FeatureError as error:
        number = error.record
        if number is None or any(format_of(item.path, how.source).name != "tfrecord" for item in found):
            raise  # files of other formats are decoded one by one, and their errors name them
        for item in found:
            records = item.records
            if records is None:
                records = await count_one(item, Meter(), how.storage_options)
            if number < records:
                where = display_name(item.path)
                raise FeatureError(f"{error.reason} (in {where})", error.feature, number) from error
            number -= records
        raise


def as_text(columns: Sequence[Column], names: Sequence[str]) -> tuple[Column, ...]:
    """The columns, of which those that are named hold text.

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
    """What all records say of their columns.

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
    """How columns are found out before a file is written; None where the format needs none, or they are known."""
    look = None if form.name == "tfrecord" else codec_of(form.name).look
    return None if look is None or (look.saved and columns is not None) else look


async def write_files(
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
        """Bytes of records of which nothing was given yet."""
        return self._encoder.waiting

    def write(self, records: Any) -> bytes:
        """Takes records."""
        return self._compressor.compress(self._encoder.write(records))

    def finish(self) -> bytes:
        """The rest of the file."""
        return self._compressor.compress(self._encoder.finish()) + self._compressor.flush()
