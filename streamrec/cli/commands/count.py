"""`streamrec count`: how many records there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import click

from streamrec.cli import options
from streamrec.cli.output import print_json, print_line
from streamrec.cli.progress import Meter, progress
from streamrec.cli.reading import blocks, map_concurrently, open_to_scan, run, total_bytes
from streamrec.cli.sources import Found, check_present, find_records, storages_for

__all__ = ["command", "count_all", "count_one"]


@click.command("count")
@options.sources
@click.option("--each", "by_shard", is_flag=True, help="Each shard by itself, too.")
@options.as_json
@options.storage_options
def command(sources: Sequence[str], by_shard: bool, as_json: bool, storage_options: Mapping[str, Any]) -> None:
    """Counts records.

    A manifest or an index (SOURCE ends in .json or .index, or is a directory with a manifest.json) tells it, and no
    shard is read; but each must be there with the size that the manifest says. Of local shards that are not compressed
    only the lengths are read. All others are read once. Payloads are not checked: `streamrec verify` does that.
    """
    shards, counts = run(count_sources(sources, storage_options))
    if as_json:
        rows = [{"path": shard.path, "records": count} for shard, count in zip(shards, counts, strict=True)]
        print_json({"records": sum(counts), "shards": rows})
        return
    if by_shard:
        width = max(len(f"{count:,}") for count in counts)
        for shard, count in zip(shards, counts, strict=True):
            print_line(f"{count:>{width},}  {shard.path}")
    click.echo(f"{sum(counts):,}" if by_shard else str(sum(counts)))


async def count_sources(sources: Sequence[str], storage_options: Mapping[str, Any]) -> tuple[list[Found], list[int]]:
    async with storages_for(storage_options) as storages:
        shards = await find_records(storages, sources)
        await check_present(storages, shards)
    return shards, await count_all(shards, storage_options)


async def count_all(shards: Sequence[Found], storage_options: Mapping[str, Any]) -> list[int]:
    """How many records each shard holds; those of which a manifest says it are not read."""
    unknown = [shard for shard in shards if shard.records is None]
    with progress("counting", total_bytes(unknown)) as meter:
        counts = iter(await map_concurrently(partial(count_one, meter=meter, storage_options=storage_options), unknown))
    return [next(counts) if shard.records is None else shard.records for shard in shards]


async def count_one(shard: Found, meter: Meter, storage_options: Mapping[str, Any]) -> int:
    """How many records one shard holds, by its lengths.

    Raises:
        CorruptRecordError, TruncatedShardError: A length is damaged, or the shard ends within a record.
    """
    async with open_to_scan(shard, storage_options, verify=False) as reader:
        async for _ in blocks(reader, meter):
            pass
        return reader.place.record
