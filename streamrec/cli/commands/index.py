"""`streamrec index` and `manifest`: write files that describe shards.

A manifest gives the size, checksum and number of records of each shard; an index also gives the
offset of each record. Readers then need not read the shards to find out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click
import numpy as np

import streamrec
from streamrec.cli import options
from streamrec.cli.cluster import connect, map_on, ray_option
from streamrec.cli.commands.stat import Moments
from streamrec.cli.library import (
    Index,
    IndexedRecords,
    ShardInfo,
    Storages,
    join_index,
    open_index,
    part_of,
)
from streamrec.cli.output import (
    format_bytes,
    format_number,
    plural,
    print_json,
    print_line,
    print_written,
    progress,
)
from streamrec.cli.program import BAD_DATA
from streamrec.cli.reading import jobs, map_concurrently, run, total_bytes
from streamrec.cli.sources import find, find_records, storages_for
from streamrec.cli.writing import end_dry_run, refuse_existing, refuse_sources, temporary_objects

ENDING = ".index"


@click.command(
    "manifest",
    epilog=options.examples(
        "streamrec manifest 's3://bucket/train-*.tfrecord.gz' s3://bucket/manifest.json"
    ),
)
@options.sources
@options.target
@options.overwrite
@options.dry_run
@options.jobs
@options.as_json
@options.source_options
def manifest_command(
    sources: options.Sources, target: str, overwrite: options.Overwrite, as_json: bool
) -> None:
    """Writes the size, CRC32C and number of records of each shard to TARGET (*.json).

    Each shard is read once; it may be compressed. `verify` and `count` use the manifest, and so
    does `distribute`.
    """
    if not target.endswith(".json"):
        raise click.UsageError(
            f"{target}: the name of a manifest ends in .json: write {target}.json"
        )
    shards = run(count_shards(sources, target, overwrite))
    if as_json:
        rows = [
            {"path": shard.path, "records": shard.records, "bytes": shard.bytes} for shard in shards
        ]
        print_json({"manifest": target, "shards": rows})
        return
    print_written("shard", shards)
    print_line(f"manifest: {target}")


async def count_shards(
    sources: options.Sources, target: str, overwrite: options.Overwrite
) -> tuple[ShardInfo, ...]:
    """Reads the shards, and writes their manifest; returns what it lists."""
    async with storages_for(sources.storage_options) as storages:
        if not overwrite:
            await refuse_existing(storages, [target])
        shards = await find_records(storages, sources, mixes=False)
        paths = [shard.path for shard in shards]
        await refuse_sources(storages, paths, storages, [target])
    end_dry_run(shards, [target])
    return await streamrec.write_manifest(
        paths,
        target,
        overwrite=overwrite or True,  # it is not there, or this would have been refused
        parallel=jobs(),
        storage_options=sources.storage_options,
    )


def parse_part(
    _: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, int] | None:
    """Parses a part of the work, such as 3/16.

    Examples:
        >>> parse_part(None, None, "3/16"), parse_part(None, None, None)
        ((3, 16), None)
    """
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not found or int(found[1]) >= int(found[2]):
        raise click.BadParameter(f"{text!r} is not a part: write 0/16 to 15/16", param=parameter)
    return int(found[1]), int(found[2])


@click.command(
    "index",
    epilog=options.examples(
        "streamrec index 's3://bucket/train-*.tfrecord' s3://bucket/train.index",
        "streamrec index --from-idx 'idx/*.idx' 'train-*.tfrecord' train.index",
        "streamrec index --part 3/16 's3://bucket/train-*.tfrecord' s3://bucket/train.index",
        "streamrec index --join 's3://bucket/train.index.part-*' s3://bucket/train.index",
        "streamrec index --update train.index",
        "streamrec index --check train.index",
        "streamrec index --stat train.index",
    ),
)
@options.names_argument("names", "[SOURCE...] INDEX")
@options.split
@options.shard_root
@click.option(
    "--from-idx",
    metavar="PATTERN",
    help="The files of tfrecord2idx, one per shard, in the same order.",
)
@click.option(
    "--part",
    callback=parse_part,
    metavar="I/N",
    help="Index only part I of N of the shards; I counts from 0.",
)
@click.option("--join", is_flag=True, help="Join the parts that SOURCE names into one index.")
@click.option(
    "--update",
    is_flag=True,
    help="Read only shards that changed; without SOURCE, those that INDEX names.",
)
@click.option("--check", is_flag=True, help="Report which shards changed since INDEX was written.")
@click.option("--stat", is_flag=True, help="Show what INDEX contains.")
@options.overwrite
@options.dry_run
@options.jobs
@ray_option
@options.as_json
@options.source_options
def index_command(
    names: options.Sources,
    from_idx: str | None,
    part: tuple[int, int] | None,
    join: bool,
    update: bool,
    check: bool,
    stat: bool,
    overwrite: options.Overwrite,
    ray_address: str | None,
    as_json: bool,
) -> int:
    """Writes INDEX (*.index): a manifest that also holds the offset of each record.

    Remote shards are read once; in local shards, only the headers are read. Compressed shards
    cannot be indexed. `streamrec cat --records` and RecordSource use it to read any record.
    """
    *sources, index = names
    if not index.endswith(ENDING):
        example = f"streamrec index {' '.join(names)} train{ENDING}"
        raise click.UsageError(
            f"the last name is the index and ends in {ENDING}, and {index} does not: {example}"
        )
    if check + stat + join + update + (part is not None) > 1:
        raise click.UsageError("--check, --stat, --join, --update and --part exclude each other")
    if bool(sources) == (check or stat) and not update:
        advice = "INDEX alone" if sources else "the shards, then INDEX"
        raise click.UsageError(f"write {advice}: see streamrec index --help")
    if ray_address and (check or stat or join or update or part):
        raise click.UsageError("--ray divides the work by itself: leave the other options out")
    if check:
        return run(check_index(index, names, as_json))
    if stat:
        return run(print_stat(index, names, as_json))
    if ray_address is not None:
        connect(ray_address)
    work = build(
        sources,
        index,
        names,
        join=join,
        overwrite=overwrite or update,  # an update replaces the index that it reads
        ray_address=ray_address,
        idx_files=from_idx,
        part=part,
        update=update,
    )
    found = run(work)
    if as_json:
        print_json(
            {
                "index": found.path,
                "records": len(found),
                "shards": len(found.shards),
                "digest": found.digest,
            }
        )
    else:
        print_line(
            f"{found.path}: {plural(len(found), 'record')} in {plural(len(found.shards), 'shard')}"
        )
    return 0


async def build(
    sources: list[str],
    index: str,
    typed: options.Sources,
    *,
    join: bool,
    overwrite: options.Overwrite,
    ray_address: str | None,
    idx_files: str | None,
    part: tuple[int, int] | None,
    update: bool,
) -> Index:
    """Writes an index.

    Args:
        sources: The names of the shards, or with `join` of the parts; empty for those that the
            index lists.
        index: The URL of the index.
        typed: All names that were typed, with the options for reading.
        join: Whether to join parts.
        overwrite: Whether an index that exists is replaced.
        ray_address: A Ray cluster that does the work; None for this process.
        idx_files: The files of tfrecord2idx; None if there are none.
        part: Which part of the shards is indexed, and of how many; None for all.
        update: Whether only shards that changed are read.
    """
    storage_options = typed.storage_options
    target = index if part is None else part_of(index, *part)
    async with storages_for(storage_options) as storages:
        if not overwrite:
            await refuse_existing(storages, [target])
        if join:
            end_dry_run(await find(storages, sources), [index])
            return await join_index(
                sources, index, overwrite=overwrite or True, storage_options=storage_options
            )
        # Without shards it is an update, which reads those that the index lists.
        shards = await find_records(storages, typed.only(sources or [index]), mixes=False)
    paths = [shard.path for shard in shards]
    end_dry_run(shards, [target])
    if ray_address is not None:
        return await build_on(
            paths,
            index,
            idx_files,
            overwrite=overwrite or True,
            storage_options=storage_options,
        )
    with progress("indexing", total_bytes(shards)) as meter:
        return await streamrec.write_index(
            paths,
            index,
            overwrite=overwrite or True,
            on_shard=lambda shard: meter.add(shard.bytes),
            parallel=jobs(),
            storage_options=storage_options,
            idx_files=idx_files,
            part=part,
            update=update,
        )


async def build_on(
    paths: Sequence[str],
    index: str,
    idx_files: str | None,
    *,
    overwrite: options.Overwrite,
    storage_options: Mapping[str, Any],
) -> Index:
    """Writes up to 64 parts of an index on a cluster, joins them here, and removes them."""
    count = min(len(paths), 64)
    names = [part_of(index, number, count) for number in range(count)]
    async with storages_for(storage_options) as storages:
        await refuse_existing(storages, names, "move it away")
    async with temporary_objects(storage_options) as parts:
        parts += names
        write = partial(write_part, paths, index, idx_files, storage_options)
        await map_on(write, [(number, count) for number in range(count)])
        return await join_index(names, index, overwrite=overwrite, storage_options=storage_options)


async def write_part(
    paths: Sequence[str],
    index: str,
    idx_files: str | None,
    storage_options: Mapping[str, Any],
    part: tuple[int, int],
) -> None:
    """Writes one part of an index; a worker runs it, and returns nothing: an index may be large."""
    await streamrec.write_index(
        list(paths), index, idx_files=idx_files, part=part, storage_options=storage_options
    )


async def check_index(index: str, typed: options.Sources, as_json: bool) -> int:
    """Compares each shard's size and version with the index; returns the exit code."""
    async with storages_for(typed.storage_options) as storages:
        found = (await open_index(await storages.at(index), index)).follow(typed.shard_root)
        differences = await map_concurrently(partial(difference, storages), found.shards, 16)
    differing = [
        {"path": shard.path, "how": text}
        for shard, text in zip(found.shards, differences, strict=True)
        if text
    ]
    if as_json:
        print_json({"ok": not differing, "shards": len(found.shards), "changed": differing})
    else:
        print_line(*(f"{each['path']}: {each['how']}" for each in differing))
        state = (
            f"{len(differing):,} changed: streamrec index --update {index}"
            if differing
            else "no shard has changed"
        )
        print_line(f"{index}: {plural(len(found.shards), 'shard')}, {state}")
    return BAD_DATA if differing else 0


async def difference(storages: Storages, shard: ShardInfo) -> str | None:
    """How a shard differs from what the index says of it; None if it does not."""
    try:
        about = await (await storages.at(shard.path)).stat(shard.path)
    except streamrec.NotFoundError:
        return "it does not exist"
    if about.size != shard.bytes:
        return f"{format_number(about.size)} bytes where the index says {shard.bytes:,}"
    if shard.version is not None and about.version != shard.version:
        return "its version is not that of the index: it was written again, or it is a copy"
    return None


async def print_stat(index: str, typed: options.Sources, as_json: bool) -> int:
    """Prints the numbers and lengths of the records in an index; returns the exit code."""
    async with storages_for(typed.storage_options) as storages:
        storage = await storages.at(index)
        found = await open_index(storage, index)
        size = (await storage.stat(index)).size or 0
        reader = IndexedRecords(storages, found)
        lengths = Moments()
        # A million records at a time: all lengths of a large index would not fit into memory.
        for first in range(0, len(found), 1 << 20):
            lengths.add(np.asarray(await reader.lengths(first, min(first + (1 << 20), len(found)))))
    mean = lengths.mean if lengths.count else None
    values = {
        "records": len(found),
        "shards": len(found.shards),
        "bytes": found.nbytes,
        "shortest": lengths.least,
        "mean": mean,
        "longest": lengths.most,
        "index_bytes": size,
        "digest": found.digest,
    }
    if as_json:
        print_json(values)
        return 0
    print_line(
        f"{plural(len(found), 'record')} in {plural(len(found.shards), 'shard')}, "
        f"{format_bytes(found.nbytes)}"
    )
    if mean is not None:
        print_line(f"lengths: {lengths.least:,} to {lengths.most:,} bytes, {mean:,.1f} on average")
        print_line(
            f"the index: {format_bytes(size)}, {size / len(found):.2f} bytes a record; digest "
            f"{found.digest}"
        )
    return 0
