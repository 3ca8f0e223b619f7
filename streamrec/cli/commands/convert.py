"""`streamrec convert`: the same records in another format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Final

import click

from streamrec.cli import options
from streamrec.cli.cluster import connect, map_on, ray_option
from streamrec.cli.converting import (
    Conversion,
    Written,
    as_text,
    locate_errors,
    look_at,
    needed_look,
    read,
    write_records,
)
from streamrec.cli.output import Meter, format_bytes, plural, print_error, print_json, print_line, progress
from streamrec.cli.reading import run, total_bytes
from streamrec.cli.sources import Found, directory_of, find_records, storages_for
from streamrec.cli.writing import (
    SHARD_BYTES,
    Target,
    check_numbered,
    check_target,
    compression_of,
    pattern_of,
    write_manifest,
)
from streamrec.interchange import FORMATS, Changes, Column, Format, Look, Reading, format_of
from streamrec.shards import is_numbered, shard_path
from streamrec.storage import Replacement

SCHEMA_BYTES: Final = 64 << 20
FORMAT: Final = click.Choice([*FORMATS])
FOREIGN: Final = (".csv", ".tsv", ".json", ".txt", ".arrow", ".feather", ".avro", ".orc", ".npy", ".npz", ".h5", ".zip")
"""Endings of names that are not meant for TFRecord shards."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write.

    Attributes:
        target: Where.
        form: The format.
        text: Features whose bytes become text.
        shard_bytes, shard_records: The most that one file holds; None for no limit.
        overwrite: Whether to replace objects of these names.
        ray_address: The cluster that does the work, a file for each SOURCE; None for this process.
    """

    target: Target
    form: Format
    text: Sequence[str]
    shard_bytes: int | None
    shard_records: int | None
    overwrite: bool
    ray_address: str | None

    @property
    def manifest(self) -> str | None:
        """The manifest's URL; only TFRecord shards have one."""
        return self.target.manifest if self.form.name == "tfrecord" else None


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
@click.argument("target")
@click.option("--from", "source", type=FORMAT, help="What SOURCEs are.  [default: as their names end]")
@click.option("--to", "wanted", type=FORMAT, help="What TARGET is.  [default: as it ends]")
@options.features
@click.option("--text", metavar="A,B", callback=options.parsed_names, help="Features whose bytes are text in Parquet.")
@click.option("--schema", metavar="FILE", help="Kinds of features, as `streamrec info --json` prints them.")
@click.option("--shard-bytes", metavar="SIZE", callback=options.parsed_size, help="Files of about this size.")
@click.option("--shard-records", type=click.IntRange(1), metavar="N", help="Files of up to N records.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@ray_option
@options.as_json
@options.storage_options
@options.target_options
def convert_command(
    sources: Sequence[str],
    target: str,
    source: str | None,
    wanted: str | None,
    features: Sequence[str] | None,
    text: Sequence[str] | None,
    schema: str | None,
    shard_bytes: int | None,
    shard_records: int | None,
    overwrite: bool,
    ray_address: str | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
    target_options: Mapping[str, Any],
) -> None:
    """Writes the Examples of all SOURCEs to TARGET in another format.

    Names tell the formats: .parquet, .jsonl or .ndjson, .tar, and TFRecord for all others; .jsonl.gz and .tar.gz are
    compressed. TARGET is one file, has {shard:05d} where a number goes, or is a directory (with --to). Nothing is left
    of a run that fails or is interrupted.
    """
    if directory_of(target) is not None and wanted is None:
        raise click.UsageError(f"{target} is a directory: say with --to what is written there")
    if wanted is None and target.lower().endswith(FOREIGN):
        endings = ", ".join(endings[0] for endings in FORMATS.values())
        raise click.UsageError(f"{target} has the ending of a format that is not written: use {endings}, or --to")
    form = format_of(target, wanted)
    if text and form.name != "parquet":
        raise click.UsageError(
            f"--text is for Parquet, which {target} is not: JSON lines has text wherever bytes are UTF-8, and TFRecord "
            "and tar hold bytes"
        )
    pattern = target_pattern(target, form)
    if shard_bytes or shard_records:
        check_numbered(pattern)
        if ray_address is not None:
            raise click.UsageError(
                "with --ray each SOURCE becomes one file: leave --shard-bytes and --shard-records out"
            )
    elif is_numbered(pattern):
        shard_bytes = SHARD_BYTES
    compression = compression_of(pattern, None) if form.name == "tfrecord" else ""
    goal = Target(pattern, compression, target_options or storage_options)
    plan = Plan(goal, form, text or (), shard_bytes, shard_records, overwrite, ray_address)
    if ray_address is not None:
        connect(ray_address)
    written, changes = run(convert(sources, source, features, schema, plan, storage_options))
    if changed := str(changes):
        print_error(changed)
    if as_json:
        files = [{"path": file.path, "records": file.records, "bytes": file.bytes} for file in written]
        print_json({"files": files, "manifest": plan.manifest})
        return
    records, size = sum(file.records for file in written), sum(file.bytes for file in written)
    print_line(f"{plural(len(written), 'file')}, {plural(records, 'record')}, {format_bytes(size)}")
    if plan.manifest is not None:
        print_line(f"manifest: {plan.manifest}")


def target_pattern(target: str, form: Format) -> str:
    """The names of the files that TARGET stands for."""
    directory = directory_of(target)
    if directory is not None and form.name != "tfrecord":
        return f"{directory}shard-{{shard:05d}}{FORMATS[form.name][0]}"
    return pattern_of(target, "", None)


async def convert(
    sources: Sequence[str],
    source: str | None,
    features: Sequence[str] | None,
    schema: str | None,
    plan: Plan,
    storage_options: Mapping[str, Any],
) -> tuple[list[Written], Changes]:
    """Reads and writes; returns the new files, and what they hold in another form than the SOURCEs."""
    async with storages_for(storage_options) as storages, storages_for(plan.target.storage_options) as goal:
        found = await find_records(storages, sources)
        files = [*found, *(() if schema is None else [Found(schema, None)])]
        spared = await check_target(storages, sources, files, goal, plan.target, plan.manifest, plan.overwrite)
        columns = None if schema is None else await read_schema(storages, schema, features)
        kinds = {column.name: column.kind for column in columns or () if column.kind is not None}
        if columns is not None:
            columns = as_text(columns, plan.text)
        reading = Reading(None if features is None else frozenset(features), kinds)
        how = Conversion(source, reading, storage_options)
        objects = Replacement(goal, stages=plan.overwrite, keeps=False, spared=spared)
        async with locate_errors(found, how), objects:
            written = await write(found, how, columns, plan, objects)
            check_features(features or (), reading.changes, sum(file.records for file in written))
        return written, reading.changes


async def write(
    found: Sequence[Found], how: Conversion, columns: tuple[Column, ...] | None, plan: Plan, objects: Replacement
) -> list[Written]:
    """Writes all files, here or on a cluster, and the manifest."""
    changes = how.reading.changes
    if plan.ray_address is not None and len(found) > 1:
        check_numbered(plan.target.pattern)
    if look := needed_look(plan.form, columns):
        if plan.ray_address is None:
            seen = await look_at_all(found, how, look)
        else:
            seen = reduce(look.join, await map_on(partial(look_at_one, how, plan.form), found))
        columns = as_text(look.columns(seen, changes), plan.text)
    if plan.ray_address is not None:
        written = await write_on_cluster(found, how, columns, plan, objects)
    else:
        with progress("writing", total_bytes(found)) as meter:
            async with aclosing(read(found, how, meter)) as records:
                limits = plan.shard_bytes, plan.shard_records
                written = await write_records(records, plan.target, plan.form, columns or (), objects, *limits, changes)
    if plan.manifest is not None:
        await write_manifest(plan.manifest, plan.target, [item.shard for item in written if item.shard], objects)
    return written


async def look_at_all(found: Sequence[Found], how: Conversion, look: Look) -> Any:
    """What all records show of their columns, for which they are read once."""
    with progress("looking", total_bytes(found)) as meter:
        async with aclosing(read(found, how, meter)) as records:
            return await look_at(records, look)


async def look_at_one(how: Conversion, form: Format, item: Found) -> Any:
    """What the records of one file show of their columns; runs on a worker."""
    look = needed_look(form, None)
    assert look is not None
    async with locate_errors([item], how), aclosing(read([item], how, Meter())) as records:
        return await look_at(records, look)


async def write_on_cluster(
    found: Sequence[Found], how: Conversion, columns: Sequence[Column] | None, plan: Plan, objects: Replacement
) -> list[Written]:
    """Converts each file to one file of the other format, in a task of its own."""
    paths = [shard_path(plan.target.pattern, number) for number in range(len(found))]
    places = [await objects.name(path) for path in paths]
    convert_one = partial(write_one, how, columns or (), plan)
    results = await map_on(convert_one, list(zip(places, found, strict=True)))
    for _, changes in results:
        how.reading.changes.update(changes)
    return [
        replace(item, path=path, shard=item.shard and replace(item.shard, path=path))
        for (item, _), path in zip(results, paths, strict=True)
    ]


async def write_one(
    how: Conversion, columns: Sequence[Column], plan: Plan, work: tuple[str, Found]
) -> tuple[Written, Changes]:
    """Converts one file; returns the new one and what changes in it; runs on a worker."""
    path, item = work
    target = replace(plan.target, pattern=path)
    async with (
        locate_errors([item], how),
        storages_for(target.storage_options) as storages,
        Replacement(storages, stages=False, keeps=False) as objects,
        aclosing(read([item], how, Meter())) as records,
    ):
        limits = None, None, how.reading.changes
        [written] = await write_records(records, target, plan.form, columns, objects, *limits)
    return written, how.reading.changes


def check_features(wanted: Sequence[str], changes: Changes, records: int) -> None:
    """Refuses a result that lacks a feature that was asked for, before it replaces anything.

    Raises:
        UsageError: There are records, and none of them has it.
    """
    missing = [name for name in wanted if name not in changes.features]
    if missing and records:
        known = ", ".join(sorted(changes.features)) or "no features"
        raise click.UsageError(f"--features: no record has {', '.join(missing)}: they have {known}")


async def read_schema(storages: Any, path: str, features: Sequence[str] | None) -> tuple[Column, ...]:
    """The columns that a file says there are, in the form of `streamrec info --json`.

    Raises:
        UsageError: It has another form.
    """
    text = await (await storages.at(path)).read_range(path, 0, SCHEMA_BYTES)
    try:
        rows = [row for row in json.loads(text)["features"] if features is None or row["name"] in features]
        return tuple(
            Column(
                row["name"],
                None if row["kind"] == "unknown" else row["kind"],
                row["values"] == [1, 1],
            )
            for row in rows
        )
    except (ValueError, LookupError, TypeError) as error:
        raise click.UsageError(f"{path} is no schema: write one with streamrec info --json SOURCE > {path}") from error
