"""`streamrec convert`: writes the same records in another format."""

from __future__ import annotations

import asyncio
import io
import json
import re
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
from streamrec.cli.formats import (
    FORMATS,
    RECORD_BYTES,
    BoundedGzip,
    Field,
    FileEncoder,
    Format,
    LimitedFile,
    Look,
    Reading,
    codec_of,
    describe_limit,
    format_of,
)
from streamrec.cli.library import (
    Changes,
    ObjectInfo,
    Replacement,
    ShardInfo,
    Storage,
    Storages,
    display_name,
    example_of,
    features_of,
    is_numbered,
    shard_path,
)
from streamrec.cli.output import Meter, print_json, print_line, print_note, print_written, progress
from streamrec.cli.reading import batches, count_one, keep_matching, run, take_sample, total_bytes
from streamrec.cli.records import names_in, refuse_unknown
from streamrec.cli.sources import Item, directory_of, find_records, storages_for

FORMAT: Final = click.Choice([*FORMATS])
ENDING: Final = re.compile(r"\.[A-Za-z]\w*$")
"""The ending of a name. In `train.tfrecord-00000-of-00008` and `v1.5` there is none."""

TFRECORD_ENDINGS: Final = (*FORMATS["tfrecord"], ".tfrec", ".tfr", ".record", ".records")
"""Endings of TFRecord shards that other programs use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What to read, and what to write; workers of a cluster get it, too.

    Attributes:
        source_format: The format of the files that are read; None for that of their names.
        reading: Which features are read, and the changes that this notes.
        storage_options: The options of the sources' stores.
        target: Where the new files go.
        target_format: The format of the new files.
        text: The names of the features that are written as text.
        shard_bytes: The approximate size of a new file; None for no limit.
        shard_records: The number of records of a new file; None for no limit.
        overwrite: Whether objects that exist may be replaced.
        on_cluster: Whether a Ray cluster does the work.
        renames: The new names of features by their old names.
        where: The tree of `--where`; None for all records.
        record_limit: The largest size of a record in JSON lines or tar, in bytes.
        columns: The columns of the new files; None if they are not known yet, or the format has
            none.
    """

    source_format: str | None
    reading: Reading
    storage_options: Mapping[str, Any]
    target: writing.Target
    target_format: Format
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
        return self.target.manifest if self.target_format.name == "tfrecord" else None

    @property
    def look(self) -> Look | None:
        """The pass over all records that finds the columns.

        None if the format needs no columns, or they are known.
        """
        if self.target_format.name == "tfrecord":
            return None
        look = codec_of(self.target_format.name).look
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
@click.option(
    "--from", "source_format", type=FORMAT, help="The format of SOURCE.  [default: by its name]"
)
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
        "Refuse larger records. One that becomes another format takes up to 8 times its size in "
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
    source_format: str | None,
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

    The endings of the names decide the formats: .parquet, .jsonl or .ndjson, .tar, and .tfrecord or
    no ending for TFRecord; any other SOURCE is read as TFRecord. .jsonl.gz and .tar.gz are
    compressed. TARGET is one file, a pattern with {shard:05d} for the file's number, or a directory
    (with --to). A run that fails or is interrupted leaves nothing behind.
    """
    # All that the options say is checked before the first request.
    check_target_name(target, wanted)
    target_format = format_of(target, wanted)
    new_names = parse_renames(renames)
    if where is not None and ray_address is not None:
        raise click.UsageError("--where does not run on a cluster: leave --ray out")
    if text and target_format.name != "parquet":
        raise click.UsageError(
            f"--text is for Parquet, which {target} is not: JSON lines has text wherever bytes are "
            "UTF-8, and TFRecord and tar hold bytes"
        )
    pattern = target_pattern(target, target_format)
    # Limits need a name with a number. Such a name without limits gets one of bytes, and a name
    # without a number is one file of any size.
    if shard_bytes or shard_records:
        writing.check_numbered(pattern)
        if ray_address is not None:
            raise click.UsageError(
                "with --ray each SOURCE becomes one file: leave --shard-bytes and --shard-records "
                "out"
            )
    elif is_numbered(pattern):
        shard_bytes = writing.SHARD_BYTES
    is_tfrecord = target_format.name == "tfrecord"
    conversion = Conversion(
        source_format=source_format,
        reading=Reading(None if features is None else tuple(features)),
        storage_options=sources.storage_options,
        target=writing.Target(
            pattern,
            # The encoders of the other formats compress on their own.
            writing.compression_of(pattern, None) if is_tfrecord else "",
            target_options or sources.storage_options,
        ),
        target_format=target_format,
        text=text or (),
        shard_bytes=shard_bytes,
        shard_records=shard_records,
        record_limit=record_limit,
        overwrite=overwrite,
        on_cluster=ray_address is not None,
        renames=new_names,
        where=where,
    )
    if ray_address is not None:
        connect(ray_address)
    written = run(convert(sources, schema, conversion))
    if changed := str(conversion.reading.changes):
        print_note(changed)
    if as_json:
        files = [
            {"path": file.path, "records": file.records, "bytes": file.bytes} for file in written
        ]
        print_json({"files": files, "manifest": conversion.manifest})
        return
    print_written("file", written)
    if conversion.manifest is not None:
        print_line(f"manifest: {conversion.manifest}")


def check_target_name(target: str, wanted: str | None) -> None:
    """Checks that the name of TARGET says which format is written, unless `--to` does.

    A name without an ending is one of a TFRecord shard: many shards have none.

    Raises:
        click.UsageError: TARGET is a directory, or its ending is not that of a format.
    """
    if wanted is not None:
        return
    if directory_of(target) is not None:
        raise click.UsageError(f"{target} is a directory: choose the format of its files with --to")
    ending = unknown_ending(target)
    if ending is not None:
        endings = ", ".join(endings[0] for endings in FORMATS.values())
        raise click.UsageError(
            f"{target}: {ending} is not the ending of a format that can be written: use {endings}, "
            "or choose the format with --to"
        )


def unknown_ending(name: str) -> str | None:
    """The ending of a name if it says no format; None if it does, or if there is no ending.

    Examples:
        >>> [unknown_ending(name) for name in ("a/x.foo", "x.CSV.gz", "x.csv-{shard:05d}.json")]
        ['.foo', '.CSV', '.json']
        >>> names = ["x", "s3://b.c/train-00000", "x.tfrec", "x.jsonl.gz", "x.tgz", "v1.5"]
        >>> [name for name in names if unknown_ending(name)]
        []
    """
    if format_of(name).name != "tfrecord":
        return None
    for compressed in writing.ENDINGS:
        name = name.removesuffix(compressed)
    ending = ENDING.search(name.rpartition("/")[2])
    if ending is None or ending[0].lower() in TFRECORD_ENDINGS:
        return None
    return ending[0]


def parse_renames(words: Sequence[str]) -> dict[str, str]:
    """Parses OLD=NEW to the new names of features by the old ones.

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


def target_pattern(target: str, file_format: Format) -> str:
    """The pattern of the files for a TARGET; in a directory they get names of their own."""
    directory = directory_of(target)
    if directory is not None and file_format.name != "tfrecord":
        return f"{directory}shard-{{shard:05d}}{FORMATS[file_format.name][0]}"
    return writing.pattern_of(target, "", None)


async def convert(
    sources: Sequence[str], schema: str | None, conversion: Conversion
) -> list[ShardInfo]:
    """Reads the sources and writes the new files; returns these.

    Args:
        sources: The names that were typed.
        schema: A file with the types of the features; None to find them in the records.
        conversion: What to read, and what to write.
    """
    async with (
        storages_for(conversion.storage_options) as storages,
        storages_for(conversion.target.storage_options) as target_storages,
    ):
        found = await find_records(storages, sources, mixes=False, slices=True)
        files = [*found, *(() if schema is None else [Item(path=schema, size=None)])]
        spared = await writing.check_target(
            storages,
            sources,
            files,
            target_storages,
            conversion.target,
            manifest=conversion.manifest,
            overwrite=conversion.overwrite,
        )
        # A schema replaces the pass over all records that would find the columns.
        if schema is not None:
            columns = await read_schema(storages, schema, conversion.reading)
            kinds = {column.name: column.kind for column in columns if column.kind is not None}
            columns = tuple(
                replace(column, name=conversion.renames.get(column.name, column.name))
                for column in columns
            )
            conversion = replace(
                conversion,
                reading=replace(conversion.reading, kinds=kinds),
                columns=as_text(columns, conversion.text),
            )
        objects = writing.open_set(target_storages, conversion.overwrite, spared)
        async with locate_errors(found, conversion), objects:
            written = await write(found, conversion, objects)
            check_features(conversion, sum(file.records for file in written))
            await writing.tell_leftovers(target_storages, conversion.target, written, objects)
        return written


async def write(
    found: Sequence[Item], conversion: Conversion, objects: Replacement
) -> list[ShardInfo]:
    """Writes all files, here or on a cluster, and the manifest; returns the files.

    Formats with columns need a pass over all records first, which finds them.
    """
    if conversion.on_cluster and len(found) > 1:
        writing.check_numbered(conversion.target.pattern)
    if look := conversion.look:
        if conversion.on_cluster:
            seen = reduce(look.join, await map_on(partial(look_at_one, conversion), found))
        else:
            with progress("looking", total_bytes(found)) as meter:
                seen = await look_at(found, conversion, look, meter)
        conversion = replace(
            conversion,
            columns=as_text(look.columns(seen, conversion.reading.changes), conversion.text),
        )
    # The conversion that goes to workers now has the columns, so that all files get the same ones.
    if conversion.on_cluster:
        written = await write_on_cluster(found, conversion, objects)
    else:
        with progress("writing", total_bytes(found)) as meter:
            written = await write_records(found, conversion, objects, meter)
    if conversion.manifest is not None:
        await writing.write_manifest(conversion.manifest, conversion.target, written, objects)
    return written


async def look_at_one(conversion: Conversion, item: Item) -> Any:
    """Summarizes the columns of all records of one file; a worker of a cluster runs it."""
    assert conversion.look is not None
    async with locate_errors([item], conversion):
        return await look_at([item], conversion, conversion.look, Meter())


async def look_at(found: Sequence[Item], conversion: Conversion, look: Look, meter: Meter) -> Any:
    """Reads all records once, and summarizes their columns."""
    seen = look.see(())
    count = 0
    async with aclosing(read(found, conversion, meter)) as records:
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
    """The columns; those with these names become columns of text.

    Raises:
        click.UsageError: There is no such column, or it has numbers.
    """
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
    found: Sequence[Item], conversion: Conversion, objects: Replacement
) -> list[ShardInfo]:
    """Converts each file to one file of the other format, in a task of its own.

    The workers send back which changes they made, since `conversion` there is a copy.
    """
    paths = [shard_path(conversion.target.pattern, number) for number in range(len(found))]
    places = [await objects.name(path) for path in paths]
    results = await map_on(partial(write_one, conversion), list(zip(places, found, strict=True)))
    for _, changes in results:
        conversion.reading.changes.update(changes)
    return [replace(item, path=path) for (item, _), path in zip(results, paths, strict=True)]


async def write_one(conversion: Conversion, work: tuple[str, Item]) -> tuple[ShardInfo, Changes]:
    """Converts one file; a worker of a cluster runs it.

    Returns:
        The new file, and the changes to values and types.
    """
    path, item = work
    conversion = replace(
        conversion,
        target=replace(conversion.target, pattern=path),
        shard_bytes=None,
        shard_records=None,
    )
    async with (
        locate_errors([item], conversion),
        storages_for(conversion.target.storage_options) as storages,
        Replacement(
            storages, stages=False, keeps=False, unsecured=conversion.overwrite == "unsecured"
        ) as objects,
    ):
        [written] = await write_records([item], conversion, objects, Meter())
    return written, conversion.reading.changes


def check_features(conversion: Conversion, records: int) -> None:
    """Checks that the records had all features that were asked for, before anything is replaced."""
    known = conversion.reading.changes.features
    for option, names in (
        ("--features", conversion.reading.features or ()),
        ("--rename", conversion.renames),
    ):
        missing = [name for name in names if name not in known]
        if missing and records:
            refuse_unknown(option, missing, known)


async def read_schema(storages: Storages, path: str, reading: Reading) -> tuple[Field, ...]:
    """Reads columns from a file that has the JSON of `streamrec info --json`.

    Raises:
        click.UsageError: The file has another content.
    """
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
    found: Sequence[Item], conversion: Conversion, meter: Meter
) -> AsyncGenerator[Frames, None]:
    """The records of files, one file after the other, as serialized Examples.

    Neighbours of one format are read together, so that shards are read ahead.
    """
    number = 0
    async with storages_for(conversion.storage_options) as storages:
        for file_format, group in groupby(
            found, lambda item: format_of(item.path, conversion.source_format)
        ):
            files = list(group)
            if file_format.name == "tfrecord":
                sample = await take_sample(files)
                blocks = batches(files, sample.record_bytes, meter)
                if conversion.target_format.name != "tfrecord":
                    blocks = refuse_large(blocks, conversion.record_limit, number)
            else:
                blocks = decode(storages, files, file_format, conversion, meter)
            async with aclosing(keep_matching(blocks, conversion.where)) as matching:
                async for frames in matching:
                    # Decoders of other formats select features, unless `where` needs others.
                    if conversion.renames or (
                        conversion.reading.features is not None
                        and (file_format.name == "tfrecord" or conversion.where)
                    ):
                        frames = await anyio.to_thread.run_sync(
                            select_features, frames, number, conversion
                        )
                    number += len(frames)
                    yield frames


async def refuse_large(
    blocks: AsyncGenerator[Frames, None], most: int, first: int
) -> AsyncGenerator[Frames, None]:
    """Passes blocks of records on; `first` numbers the first record.

    Raises:
        FeatureError: A record has more than `most` bytes.
    """
    async with aclosing(blocks) as taken:
        async for frames in taken:
            large = frames.lengths > most
            if large.any():
                raise FeatureError(describe_limit(most), None, first + int(large.argmax()))
            first += len(frames)
            yield frames


def select_features(frames: Frames, first: int, conversion: Conversion) -> Frames:
    """The records with the chosen features under their new names; `first` numbers the first one.

    Raises:
        FeatureError: A record has a feature of such a new name already.
    """
    selected = []
    for number, record in enumerate(frames, first):
        row = {
            name: values
            for name, values in features_of(record, number).items()
            if conversion.reading.wants(name)
        }
        renamed = {conversion.renames.get(name, name): values for name, values in row.items()}
        if len(renamed) < len(row):
            twice = next(
                new for old, new in conversion.renames.items() if old in row and new in row
            )
            raise FeatureError(
                "the record has a feature of this name: give --rename another one", twice, number
            )
        selected.append(example_of(renamed))
    return Frames.of(selected)


async def decode(
    storages: Storages,
    found: Sequence[Item],
    file_format: Format,
    conversion: Conversion,
    meter: Meter,
) -> AsyncGenerator[Frames, None]:
    """The records of files in another format than TFRecord, decoded in a thread.

    All ranges of a file are those of one version: one that is replaced meanwhile is an error.
    """
    codec = codec_of(file_format.name)
    reading = conversion.reading
    if conversion.where is not None and reading.features is not None:
        reading = replace(reading, features=(*reading.features, *names_in(conversion.where)))
    for item in found:
        storage = await storages.at(item.path)
        raw = _ObjectFile(storage, await storage.stat(item.path), meter)
        with io.BufferedReader(raw, 8 << 20) as file:
            plain, began = limit_records(file, file_format, conversion.record_limit)
            records = codec.decode(plain, reading, began)
            while (
                batch := await anyio.to_thread.run_sync(next_batch, records, item.path)
            ) is not None:
                yield Frames.of(batch)


def limit_records(
    file: BinaryIO, file_format: Format, most: int
) -> tuple[BinaryIO, Callable[[], None] | None]:
    """Makes a file refuse records of more than `most` bytes.

    Returns:
        The decompressed file, and what to call where a record begins. For Parquet these are the
        file as it is and None: it is read by row groups, not from its beginning.
    """
    if file_format.name == "parquet":
        return file, None
    if not file_format.gzip:
        limited = LimitedFile(file, most)
        return limited.buffered(), limited.begin_record
    unpacked = BoundedGzip(file)
    limited = LimitedFile(unpacked.buffered(), most)

    def began() -> None:
        unpacked.begin_record()
        limited.begin_record()

    return limited.buffered(), began


def next_batch(records: Iterator[list[bytes]], path: str) -> list[bytes] | None:
    """The next batch, None at the end; its errors name the file."""
    try:
        return next(records, None)
    except CorruptRecordError as error:
        raise CorruptRecordError(error.reason, path, error.offset, error.record) from error
    except FeatureError as error:
        raise FeatureError(
            f"{error.reason} (in {display_name(path)})", error.feature, error.record
        ) from error


@asynccontextmanager
async def locate_errors(found: Sequence[Item], conversion: Conversion) -> AsyncIterator[None]:
    """Adds the shard of the record to a FeatureError of the block.

    The number in the error counts the records of all shards. So the records of the shards before
    it are counted, unless a manifest gives their numbers.
    """
    try:
        yield
    except FeatureError as error:
        number = error.record
        if number is None or any(
            format_of(item.path, conversion.source_format).name != "tfrecord" for item in found
        ):
            raise  # errors of other formats name their files
        if conversion.where is not None:
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
    found: Sequence[Item], conversion: Conversion, objects: Replacement, meter: Meter
) -> list[ShardInfo]:
    """Writes files up to an approximate size in bytes, a number of records, or both.

    It writes one file even if there is no record.
    """
    async with aclosing(read(found, conversion, meter)) as records:
        if conversion.target_format.name == "tfrecord":
            return await writing.write_limited(
                records,
                conversion.target,
                objects,
                conversion.shard_bytes,
                conversion.shard_records,
            )
        feed = writing.Feed(records)
        written: list[ShardInfo] = []
        done = 0
        begin = codec_of(conversion.target_format.name).encoder
        # Without a record there is still one file: its reader learns that the data is empty.
        while not written or not await feed.is_over():
            path = shard_path(conversion.target.pattern, len(written))
            encoder = await anyio.to_thread.run_sync(
                begin, conversion.columns or (), done, conversion.reading.changes
            )
            written.append(await write_file(feed, path, encoder, conversion, objects))
            done += written[-1].records
    return written


async def write_file(
    feed: writing.Feed,
    path: str,
    encoder: FileEncoder,
    conversion: Conversion,
    objects: Replacement,
) -> ShardInfo:
    """Writes one file, up to the limits on bytes and records."""
    compressor = zlib.compressobj(wbits=31) if conversion.target_format.gzip else None

    def encode(frames: Frames | None) -> bytes:
        data = encoder.finish() if frames is None else encoder.write(frames)
        if compressor is None:
            return data
        return compressor.compress(data) + (compressor.flush() if frames is None else b"")

    max_records = conversion.shard_records
    max_bytes = conversion.shard_bytes
    records = 0
    size = 0
    frames: Frames | None = Frames.of([])
    async with await objects.upload(path) as upload:
        while frames is not None:
            # The encoder may hold records back, whose bytes count before they are written.
            most = 4096 if max_records is None else min(4096, max_records - records)
            full = not most or (max_bytes is not None and size + encoder.waiting >= max_bytes)
            frames = None if full else await feed.block(most)
            data = await anyio.to_thread.run_sync(encode, frames)
            await upload.write(data)
            size += len(data)
            records += len(frames or ())
    return ShardInfo(path, records, size, None)


class _ObjectFile(io.RawIOBase):
    """An object as a file for decoders (tarfile, gzip, pyarrow), which run in other threads."""

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
