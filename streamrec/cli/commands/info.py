"""`streamrec ls`, `count` and `info`.

They show what the names stand for, how many records that is, and what they hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from streamrec.cli import options
from streamrec.cli.output import (
    format_bytes,
    mask_value,
    plural,
    print_json,
    print_line,
    print_note,
    print_record,
    print_table,
    progress_mode,
)
from streamrec.cli.reading import Sample, count_all, run, take_sample, total_bytes
from streamrec.cli.records import as_json as record_as_json
from streamrec.cli.records import as_lines
from streamrec.cli.sources import Item, check_present, find, find_records, storages_for
from streamrec.example import FeatureSummary
from streamrec.shards import Gap


@click.command(
    "ls",
    epilog=options.examples(
        "streamrec ls s3://bucket/train/",
        "streamrec ls 'gs://bucket/train-*.tfrecord' 'data/{00000..00003}.tfrecord'",
    ),
)
@options.sources
@click.option("-h", "--human", is_flag=True, help="Print sizes in readable units, such as 1.5 MB.")
@options.as_json
@options.source_options
def ls_command(sources: options.Sources, human: bool, as_json: bool) -> None:
    """Lists files and their sizes in bytes, and the total."""
    found = run(list_files(sources))
    if as_json:
        print_json([{"path": item.path, "bytes": item.size} for item in found])
        return
    sizes = [
        format_bytes(item.size) if human or item.size is None else f"{item.size:,}"
        for item in found
    ]
    total = total_bytes(found)
    width = max(map(len, sizes))
    for item, size in zip(found, sizes, strict=True):
        print_line(f"{size:>{width}}  {item.path}")
    if len(found) > 1 and total is not None and progress_mode() != "quiet":
        click.echo(f"{len(found):,} files, {format_bytes(total)}", err=True)


async def list_files(sources: options.Sources) -> list[Item]:
    async with storages_for(sources.storage_options) as storages:
        return await find(storages, sources)


@click.command("count")
@options.sources
@click.option("--each", "by_shard", is_flag=True, help="Also print the count of each shard.")
@options.as_json
@options.source_options
def count_command(sources: options.Sources, by_shard: bool, as_json: bool) -> None:
    """Counts records.

    If SOURCE is a manifest or an index (.json, .index, or a directory with a manifest.json), no
    shard is read, but each must have the size that the manifest says. Of uncompressed local shards
    only the lengths of records are read. All other shards are read once. Payloads are not checked:
    `streamrec verify` does that.
    """
    shards, counts, gaps = run(count_sources(sources))
    for gap in gaps:
        print_note(gap)
    if as_json:
        rows = [
            {"path": shard.path, "records": count}
            for shard, count in zip(shards, counts, strict=True)
        ]
        print_json({"records": sum(counts), "shards": rows, "gaps": [asdict(gap) for gap in gaps]})
        return
    if by_shard:
        width = max(len(f"{count:,}") for count in counts)
        for shard, count in zip(shards, counts, strict=True):
            print_line(f"{count:>{width},}  {shard.path}")
    click.echo(f"{sum(counts):,}" if by_shard else str(sum(counts)))


async def count_sources(sources: options.Sources) -> tuple[list[Item], list[int], list[Gap]]:
    shards, gaps = await find_present(sources)
    return shards, await count_all(shards), gaps


async def find_present(sources: options.Sources) -> tuple[list[Item], list[Gap]]:
    """The shards, after those that manifests name were found to be there; and which are missing.

    The names of the others tell which are missing.
    """
    gaps: list[Gap] = []
    async with storages_for(sources.storage_options) as storages:
        shards = await find_records(storages, sources, gaps=gaps)
        await check_present(storages, shards)
    return shards, gaps


@click.command("info")
@options.sources
@click.option(
    "--count", "exact", is_flag=True, help="Count records even if that reads more than 256 MB."
)
@click.option(
    "--python", "as_python", is_flag=True, help="Print only Python code that parses these records."
)
@options.as_json
@options.source_options
def info_command(sources: options.Sources, exact: bool, as_python: bool, as_json: bool) -> None:
    """Shows how many shards, records and bytes there are, how they are compressed, and which
    features they have.

    Features are inferred from up to 1,000 records at the start of up to 8 shards.
    """
    shards, gaps, sample, records = run(inspect(sources, exact))
    size = total_bytes(shards)
    compressions = compression_names(sample)
    if as_python:
        if not all_features(sample):
            raise click.UsageError(f"no features to propose: the records are {sample.are}")
        print_record(*str(sample.schema).splitlines())
        return
    if as_json:
        found = to_json(shards, sample, records)
        print_json(found | {"gaps": mask_value([asdict(gap) for gap in gaps])}, data=True)
        return
    print_line(f"shards       {len(shards):,}")
    print_line(*(f"incomplete   {gap}" for gap in gaps))
    print_line(f"records      {describe_count(records, size, sample)}")
    print_line(f"bytes        {'unknown' if size is None else f'{size:,} ({format_bytes(size)})'}")
    print_line(f"compression  {', '.join(compressions)}")
    print_line(f"records are  {sample.are}, {format_bytes(round(sample.record_bytes))} on average")
    if sample.other is not None:
        print_line(f"             one has {sample.other}")
    if sample.schema is not None:
        click.echo()
        print_line(
            f"features, as {plural(len(sample.records), 'record')} from the beginnings of shards "
            "show them"
        )
        columns = ("feature", "kind", ">missing", ">values", f"parse_{sample.kind} takes")
        print_table(
            columns, (feature_row(item, len(sample.records)) for item in all_features(sample))
        )
    if sample.records:
        click.echo("\nthe first record")
        for line in as_lines(sample.records[0], sample.kind):
            print_record(f"  {line}")


async def inspect(
    sources: options.Sources, exact: bool
) -> tuple[list[Item], list[Gap], Sample, int | None]:
    shards, gaps = await find_present(sources)
    sample = await take_sample(shards)
    unknown = total_bytes(shard for shard in shards if shard.records is None)
    if not exact and (
        unknown is None or unknown > 256 << 20
    ):  # the sample says about how many there are
        return shards, gaps, sample, None
    return shards, gaps, sample, sum(await count_all(shards))


def describe_count(records: int | None, size: int | None, sample: Sample) -> str:
    """How many records there are, or about how many there must be."""
    if records is not None:
        return f"{records:,}"
    if size is None or sample.compressions != ("",) or not sample.records:
        return "not counted: --count reads all shards"
    return (
        f"about {size / (sample.record_bytes + 16):,.0f}, by the sample; --count reads all shards"
    )


def all_features(sample: Sample) -> tuple[FeatureSummary, ...]:
    return () if sample.schema is None else sample.schema.summaries + sample.schema.list_summaries


def feature_row(item: FeatureSummary, records: int) -> tuple[str, ...]:
    values = (
        f"{item.longest:,}" if item.has_fixed_length else f"{item.shortest:,} to {item.longest:,}"
    )
    steps = (
        ""
        if item.longest_list is None
        else f", {item.shortest_list:,} to {item.longest_list:,} steps"
    )
    return (
        item.name,
        kind_of(item),
        f"{item.without_values / records:.1%}",
        values + steps,
        item.code,
    )


def kind_of(item: FeatureSummary) -> str:
    """The kind of its values; "unknown" where none was seen."""
    return "unknown" if item.dtype is None else item.dtype.__name__


def compression_names(sample: Sample) -> list[str]:
    """The compressions of the shards that were looked at, such as "GZIP"; "none" for none."""
    return [compression or "none" for compression in sample.compressions]


def to_json(shards: Sequence[Item], sample: Sample, records: int | None) -> dict[str, Any]:
    """The same as an object of JSON."""
    return {
        "shards": len(shards),
        "records": records,
        "bytes": total_bytes(shards),
        "compression": compression_names(sample),
        "kind": sample.kind,
        "looked_at": len(sample.records),
        "record_bytes": sample.record_bytes,
        "features": [
            {
                "name": item.name,
                "kind": kind_of(item),
                "values": [item.shortest, item.longest],
                "steps": None
                if item.longest_list is None
                else [item.shortest_list, item.longest_list],
                "missing": item.without_values,
                "parse": item.code,
            }
            for item in all_features(sample)
        ],
        "sample": json.loads(record_as_json(sample.records[0], sample.kind))
        if sample.records
        else None,
    }
