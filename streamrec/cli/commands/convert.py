"""`streamrec convert`: the same records in another format."""

from __future__ import annotations

import asyncio
import io
import json
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import groupby
from typing import Any, BinaryIO, Final

import anyio
import click

from streamrec import CorruptRecordError, FeatureError, Frames
from streamrec.cli import options, writing
from streamrec.cli.cluster import connect, map_on, ray_option
from streamrec.cli.output import Meter, print_json, print_line, print_note, print_written, progress
from streamrec.cli.reading import batches, count_one, keep_matching, run, take_sample, total_bytes
from streamrec.cli.records import names_in, refuse_unknown
from streamrec.cli.sources import Item, directory_of, find_records, storages_for
from streamrec.display import display_name
from streamrec.interchange import (
    FORMATS,
    RECORD_BYTES,
    BoundedGzip,
    Changes,
    Field,
    FileEncoder,
    Format,
    LimitedFile,
    Look,
    Reading,
    codec_of,
    example_of,
    features_of,
    format_of,
)
from streamrec.shards import ShardInfo, is_numbered, shard_path
from streamrec.storage import ObjectInfo, Replacement, Storage, Storages

FORMAT: Final = click.Choice([*FORMATS])
FOREIGN: Final = (
    ".csv",
    ".tsv",
    ".json",
    ".txt",
    ".arrow",
    ".feather",
    ".avro",
    ".orc",
    ".npy",
    ".npz",
    ".h5",
    ".zip",
)
"""Endings of names that are not meant for TFRecord shards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What to read and what to write; workers of a cluster have it, too.

    Attributes:
        source: The format of what is read; None: as names end.
        renames: New names of features, by those in what is read.
        where: The tree of `--where`; None for all records.
        record_limit: The most bytes of a record in JSON lines or tar.
        columns: What the files hold; None where that is not known yet, or no file needs it.
    """

    source: str | None
    reading: Reading
    storage_options: Mapping[str, Any]
    target: writing.Target
    form: Format
    text: Sequence[str]
    shard_bytes: int | None
    shard_records: int | None
    record_limit: int
    overwrite: options.Overwrite
    on_cluster: bool
    renames: Mapping[str, str]
    where: tuple[Any, ...] | None
    columns: tuple[Field, ...] | None = None

    @property
    def manifest(self) -> str | None:
        """The manifest's URL; only TFRecord shards have one."""
        return self.target.manifest if self.form.name == "tfrecord" else None

    @property
    def look(self) -> Look | None:
        """How to infer columns before a file is written.

        None where the format needs none, or they are known.
        """
        look = None if self.form.name == "tfrecord" else codec_of(self.form.name).look
        return None if look is None or (look.saved and self.columns is not None) else look


@click.command(
    "convert",
    epilog=options.examples(
        "streamrec convert 's3://bucket/train-*.tfrecord' train.parquet",
        "streamrec convert --shard-bytes 200MB data/ 's3://bucket/train-{shard:05d}.tar'",
        "streamrec convert 'table-*.parquet' 'train-{shard:05d}.tfrecord'",
        "streamrec convert --text title,tags train.tfrecord train.parquet",
        "streamrec convert --features label,text train.tfrecord train.jsonl.gz",
    ),
)
@options.sources
@options.target
@click.option("--from", "source", type=FORMAT, help="The format of SOURCE.  [default: by its name]")
@click.option("--to", "wanted", type=FORMAT, help="The format of TARGET.  [default: by its name]")
@options.features
@options.where
@click.option(
    "--rename",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="Rename a feature; may be repeated.",
)
@click.option(
    "--text",
    metavar="A,B",
    callback=options.parse_names,
    help="Features to write as text in Parquet.",
)
@options.file_option(
    "--schema", help="A file with the types of the features, as `streamrec info --json` prints."
)
@options.shard_bytes
@options.shard_records
@click.option(
    "--record-limit",
    metavar="SIZE",
    default=f"{RECORD_BYTES >> 20}MiB",
    show_default=True,
    callback=options.parse_size,
    help=(
        "Refuse larger records of JSON lines and tar. A record takes up to 8 times its size in "
        "memory."
    ),
)
@options.overwrite
@options.dry_run
@ray_option
@options.as_json
@options.source_options
@options.target_options
def convert_command(
    sources: options.Sources,
    target: str,
    source: str | None,
    wanted: str | None,
    features: Sequence[str] | None,
    where: tuple[Any, ...] | None,
    renames: Sequence[str],
    text: Sequence[str] | None,
    schema: str | None,
    shard_bytes: int | None,
    shard_records: int | None,
    record_limit: int,
    overwrite: options.Overwrite,
    ray_address: str | None,
    as_json: bool,
    target_options: Mapping[str, Any],
) -> None:
    """Writes the Examples of all SOURCEs to TARGET in another format.

    The names decide the formats: .parquet, .jsonl or .ndjson, .tar, and TFRecord for all others;
    .jsonl.gz and .tar.gz are compressed. TARGET is one file, a pattern with {shard:05d} for the
    file's number, or a directory (with --to). A run that fails or is interrupted leaves nothing
    behind.
    """
    if directory_of(target) is not None and wanted is None:
        raise click.UsageError(f"{target} is a directory: choose the format of its files with --to")
    if wanted is None and target.lower().endswith(FOREIGN):
        endings = ", ".join(endings[0] for endings in FORMATS.values())
        raise click.UsageError(
            f"{target} has the ending of a format that is not written: use {endings}, or --to"
        )
    # All that the options say is checked before the first request.
    form = format_of(target, wanted)
    names = parse_renames(renames)
    if where is not None and ray_address is not None:
        raise click.UsageError("--where does not run on a cluster: leave --ray out")
    if text and form.name != "parquet":
        raise click.UsageError(
            f"--text is for Parquet, which {target} is not: JSON lines has text wherever bytes are "
            "UTF-8, and TFRecord and tar hold bytes"
        )
    pattern = target_pattern(target, form)
    if shard_bytes or shard_records:
        writing.check_numbered(pattern)
        if ray_address is not None:
            raise click.UsageError(
                "with --ray each SOURCE becomes one file: leave --shard-bytes and --shard-records "
                "out"
            )
    elif is_numbered(pattern):
        shard_bytes = writing.SHARD_BYTES
    compression = writing.compression_of(pattern, None) if form.name == "tfrecord" else ""
    reading = Reading(None if features is None else tuple(features))
    goal = writing.Target(pattern, compression, target_options or sources.storage_options)
    how = Conversion(
        source=source,
        reading=reading,
        storage_options=sources.storage_options,
        target=goal,
        form=form,
        text=text or (),
        shard_bytes=shard_bytes,
        shard_records=shard_records,
        record_limit=record_limit,
        overwrite=overwrite,
        on_cluster=ray_address is not None,
        renames=names,
        where=where,
    )
    if ray_address is not None:
        connect(ray_address)
    written = run(convert(sources, schema, how))
    if changed := str(reading.changes):
        print_note(changed)
    if as_json:
        files = [
            {"path": file.path, "records": file.records, "bytes": file.bytes} for file in written
        ]
        print_json({"files": files, "manifest": how.manifest})
        return
    print_written("file", written)
    if how.manifest is not None:
        print_line(f"manifest: {how.manifest}")


def parse_renames(words: Sequence[str]) -> dict[str, str]:
    """New names of features by the old ones.

    Examples:
        >>> parse_renames(["image/encoded=image", "id=key"])
        {'image/encoded': 'image', 'id': 'key'}
    """
    pairs = [(old, new) for old, _, new in (word.partition("=") for word in words)]
    for column in zip(*pairs, strict=True):
        if not all(column) or len(set(column)) < len(column):
            raise click.UsageError(
                "--rename takes OLD=NEW, each name once: write --rename image/encoded=image"
            )
    return dict(pairs)


def target_pattern(target: str, form: Format) -> str:
    """The names of the files that TARGET stands for."""
    directory = directory_of(target)
    if directory is not None and form.name != "tfrecord":
        return f"{directory}shard-{{shard:05d}}{FORMATS[form.name][0]}"
    return writing.pattern_of(target, "", None)


async def convert(sources: Sequence[str], schema: str | None, how: Conversion) -> list[ShardInfo]:
    """Reads and writes; returns the new files."""
    async with (
        storages_for(how.storage_options) as storages,
        storages_for(how.target.storage_options) as goal,
    ):
        found = await find_records(storages, sources, mixes=False)
        files = [*found, *(() if schema is None else [Item(path=schema, size=None)])]
        spared = await writing.check_target(
            storages,
            sources,
            files,
            goal,
            how.target,
            manifest=how.manifest,
            overwrite=how.overwrite,
        )
        # A schema replaces the pass over all records that would find the columns.
        if schema is not None:
            columns = await read_schema(storages, schema, how.reading)
            kinds = {column.name: column.kind for column in columns if column.kind is not None}
            columns = tuple(
                replace(column, name=how.renames.get(column.name, column.name))
                for column in columns
            )
            how = replace(
                how, reading=replace(how.reading, kinds=kinds), columns=as_text(columns, how.text)
            )
        objects = writing.open_set(goal, how.overwrite, spared)
        async with locate_errors(found, how), objects:
            written = await write(found, how, objects)
            check_features(how, sum(file.records for file in written))
            await writing.tell_leftovers(goal, how.target, written, objects)
        return written


async def write(found: Sequence[Item], how: Conversion, objects: Replacement) -> list[ShardInfo]:
    """Writes all files, here or on a cluster, and the manifest."""
    if how.on_cluster and len(found) > 1:
        writing.check_numbered(how.target.pattern)
    if look := how.look:
        if how.on_cluster:
            seen = reduce(look.join, await map_on(partial(look_at_one, how), found))
        else:
            with progress("looking", total_bytes(found)) as meter:
                seen = await look_at(found, how, look, meter)
        how = replace(how, columns=as_text(look.columns(seen, how.reading.changes), how.text))
    if how.on_cluster:
        written = await write_on_cluster(found, how, objects)
    else:
        with progress("writing", total_bytes(found)) as meter:
            written = await write_records(found, how, objects, meter)
    if how.manifest is not None:
        await writing.write_manifest(how.manifest, how.target, written, objects)
    return written


async def look_at_one(how: Conversion, item: Item) -> Any:
    """What all records of one file show of their columns; runs on a worker."""
    assert how.look is not None
    async with locate_errors([item], how):
        return await look_at([item], how, how.look, Meter())


async def look_at(found: Sequence[Item], how: Conversion, look: Look, meter: Meter) -> Any:
    """What all records show of their columns, for which they are read once."""
    seen = look.see(())
    count = 0
    async with aclosing(read(found, how, meter)) as records:
        async for frames in records:
            try:
                seen = look.join(seen, await anyio.to_thread.run_sync(look.see, frames))
            except FeatureError as error:
                raise FeatureError(
                    error.reason, error.feature, count + (error.record or 0)
                ) from error
            count += len(frames)
    return seen


def as_text(columns: Sequence[Field], names: Sequence[str]) -> tuple[Field, ...]:
    """The columns, with those of these names as text."""
    known = {column.name: column.kind for column in columns}
    for name in names:
        if name not in known:
            refuse_unknown("--text", [name], known)
        if known[name] not in ("bytes", None):
            raise click.UsageError(f"--text: {name} is {known[name]}, and only bytes become text")
    return tuple(
        replace(column, text=column.name in names and column.kind is not None) for column in columns
    )


async def write_on_cluster(
    found: Sequence[Item], how: Conversion, objects: Replacement
) -> list[ShardInfo]:
    """Converts each file to one file of the other format, in a task of its own."""
    paths = [shard_path(how.target.pattern, number) for number in range(len(found))]
    places = [await objects.name(path) for path in paths]
    results = await map_on(partial(write_one, how), list(zip(places, found, strict=True)))
    for _, changes in results:
        how.reading.changes.update(changes)
    return [replace(item, path=path) for (item, _), path in zip(results, paths, strict=True)]


async def write_one(how: Conversion, work: tuple[str, Item]) -> tuple[ShardInfo, Changes]:
    """Converts one file; returns the new one and what changes in it; runs on a worker."""
    path, item = work
    how = replace(
        how, target=replace(how.target, pattern=path), shard_bytes=None, shard_records=None
    )
    async with (
        locate_errors([item], how),
        storages_for(how.target.storage_options) as storages,
        Replacement(
            storages, stages=False, keeps=False, unsecured=how.overwrite == "unsecured"
        ) as objects,
    ):
        [written] = await write_records([item], how, objects, Meter())
    return written, how.reading.changes


def check_features(how: Conversion, records: int) -> None:
    """Refuses a result that lacks a feature that was asked for, before it replaces anything."""
    known = how.reading.changes.features
    for option, names in (("--features", how.reading.features or ()), ("--rename", how.renames)):
        missing = [name for name in names if name not in known]
        if missing and records:
            refuse_unknown(option, missing, known)


async def read_schema(storages: Storages, path: str, reading: Reading) -> tuple[Field, ...]:
    """The columns that a file says there are, in the form of `streamrec info --json`."""
    text = await (await storages.at(path)).read_range(path, 0, 64 << 20)
    try:
        return tuple(
            Field(
                name=row["name"],
                kind=None if row["kind"] == "unknown" else row["kind"],
                scalar=row["values"] == [1, 1],
            )
            for row in json.loads(text)["features"]
            if reading.features is None or row["name"] in reading.features
        )
    except (ValueError, LookupError, TypeError) as error:
        raise click.UsageError(
            f"{path} is not a schema: run streamrec info --json SOURCE > {path}"
        ) from error


async def read(
    found: Sequence[Item], how: Conversion, meter: Meter
) -> AsyncGenerator[Frames, None]:
    """The records of files, one file after the other, as serialized Examples."""
    number = 0
    async with storages_for(how.storage_options) as storages:
        for form, group in groupby(found, lambda item: format_of(item.path, how.source)):
            files = list(group)
            if form.name == "tfrecord":
                sample = await take_sample(files)
                blocks = batches(files, sample.record_bytes, meter)
            else:
                blocks = decode(storages, files, form, how, meter)
            async with aclosing(keep_matching(blocks, how.where)) as matching:
                async for frames in matching:
                    if how.renames or (
                        how.reading.features is not None and (form.name == "tfrecord" or how.where)
                    ):
                        frames = await anyio.to_thread.run_sync(
                            select_features, frames, number, how
                        )
                    number += len(frames)
                    yield frames


def select_features(frames: Frames, first: int, how: Conversion) -> Frames:
    """The records with the chosen features, under their new names."""
    selected = []
    for number, record in enumerate(frames, first):
        row = {
            name: values
            for name, values in features_of(record, number).items()
            if how.reading.wants(name)
        }
        renamed = {how.renames.get(name, name): values for name, values in row.items()}
        if len(renamed) < len(row):
            twice = next(new for old, new in how.renames.items() if old in row and new in row)
            raise FeatureError(
                "the record has a feature of this name: give --rename another one", twice, number
            )
        selected.append(example_of(renamed))
    return Frames.of(selected)


async def decode(
    storages: Storages, found: Sequence[Item], form: Format, how: Conversion, meter: Meter
) -> AsyncGenerator[Frames, None]:
    """The records of files in another format, decoded in a thread.

    All of a file is of one version.
    """
    codec = codec_of(form.name)
    reading = how.reading
    if how.where is not None and reading.features is not None:
        reading = replace(reading, features=(*reading.features, *names_in(how.where)))
    for item in found:
        storage = await storages.at(item.path)
        raw = _ObjectFile(storage, await storage.stat(item.path), meter)
        with io.BufferedReader(raw, 8 << 20) as file:
            plain, began = limit_records(file, form, how.record_limit)
            records = codec.decode(plain, reading, began)
            while (
                batch := await anyio.to_thread.run_sync(next_batch, records, item.path)
            ) is not None:
                yield Frames.of(batch)


def limit_records(
    file: BinaryIO, form: Format, most: int
) -> tuple[BinaryIO, Callable[[], None] | None]:
    """Returns the decompressed file, which refuses records that are too large, and what to call
    where a record begins. Parquet seeks, and has its own units: row groups.
    """
    if form.name == "parquet":
        return file, None
    if not form.gzip:
        limited = LimitedFile(file, most)
        return limited.buffered(), limited.begin_record
    unpacked = BoundedGzip(file)
    limited = LimitedFile(unpacked.buffered(), most)

    def began() -> None:
        unpacked.begin_record()
        limited.begin_record()

    return limited.buffered(), began


def next_batch(records: Iterator[list[bytes]], path: str) -> list[bytes] | None:
    """The next batch; an error says which file is damaged."""
    try:
        return next(records, None)
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, path, error.offset, error.record) from error
    except FeatureError as error:
        raise FeatureError(
            f"{error.reason} (in {display_name(path)})", error.feature, error.record
        ) from error


@asynccontextmanager
async def locate_errors(found: Sequence[Item], how: Conversion) -> AsyncIterator[None]:
    """Adds to an error of the block which shard its record is in.

    The error's number counts over all shards.

    Counts the shards before it for this, where their numbers of records are not known.
    """
    try:
        yield
    except FeatureError as error:
        number = error.record
        if number is None or any(
            format_of(item.path, how.source).name != "tfrecord" for item in found
        ):
            raise  # errors of other formats name their files
        if how.where is not None:
            reason = (
                f"{error.reason} (counted among what --where keeps: convert without it to see the "
                "shard)"
            )
            raise FeatureError(reason, error.feature, number) from error
        for item in found:
            records = item.records
            if records is None:
                records = await count_one(item)
            if number < records:
                where = display_name(item.path)
                raise FeatureError(f"{error.reason} (in {where})", error.feature, number) from error
            number -= records
        raise


async def write_records(
    found: Sequence[Item], how: Conversion, objects: Replacement, meter: Meter
) -> list[ShardInfo]:
    """Writes files up to a size in bytes, a number of records, or both.

    It writes one file even without a record. The size is approximate.
    """
    async with aclosing(read(found, how, meter)) as records:
        if how.form.name == "tfrecord":
            return await writing.write_limited(
                records, how.target, objects, how.shard_bytes, how.shard_records
            )
        feed = writing.Feed(records)
        written: list[ShardInfo] = []
        done = 0
        begin = codec_of(how.form.name).encoder
        while not written or not await feed.is_over():
            path = shard_path(how.target.pattern, len(written))
            encoder = await anyio.to_thread.run_sync(
                begin, how.columns or (), done, how.reading.changes
            )
            written.append(await write_file(feed, path, encoder, how, objects))
            done += written[-1].records
    return written


async def write_file(
    feed: writing.Feed, path: str, encoder: FileEncoder, how: Conversion, objects: Replacement
) -> ShardInfo:
    """Writes one file, up to a limit."""
    compressor = zlib.compressobj(wbits=31) if how.form.gzip else None

    def encode(frames: Frames | None) -> bytes:
        data = encoder.finish() if frames is None else encoder.write(frames)
        if compressor is None:
            return data
        return compressor.compress(data) + (compressor.flush() if frames is None else b"")

    records = size = 0
    frames: Frames | None = Frames.of([])
    async with await objects.upload(path) as upload:
        while frames is not None:
            # The encoder may hold records back, whose bytes count before they are written.
            most = 4096 if how.shard_records is None else min(4096, how.shard_records - records)
            full = not most or (
                how.shard_bytes is not None and size + encoder.waiting >= how.shard_bytes
            )
            frames = None if full else await feed.block(most)
            data = await anyio.to_thread.run_sync(encode, frames)
            await upload.write(data)
            size += len(data)
            records += len(frames or ())
    return ShardInfo(path, records, size, None)


class _ObjectFile(io.RawIOBase):
    """An object as a file for decoders (tarfile, gzip, pyarrow) in other threads."""

    def __init__(self, storage: Storage, about: ObjectInfo, meter: Meter) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage = storage
        self._about = about
        self._meter = meter
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._about.size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._about.size}[whence]
        if base is None:
            reason = f"{self._about.path}: the store does not say how large this object is"
            raise io.UnsupportedOperation(reason)
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        about = self._about
        end = self._position + len(view)
        reading = self._storage.read_range(about.path, self._position, end, about.version)
        data = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        view[: len(data)] = data
        self._position += len(data)
        self._meter.add(len(data))
        return len(data)
