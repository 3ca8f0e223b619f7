"""`streamrec info`: what a data set is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamrec import FeatureSummary
from streamrec.cli import options
from streamrec.cli.commands.count import count_all
from streamrec.cli.output import format_bytes, plural, print_json, print_line, print_record
from streamrec.cli.reading import run, total_bytes
from streamrec.cli.records import as_json as record_as_json
from streamrec.cli.records import as_lines
from streamrec.cli.rendering import print_table
from streamrec.cli.sampling import Sample, take_sample
from streamrec.cli.sources import Found, check_present, find_records, storages_for

__all__ = ["command"]

COUNTED_BYTES = 256 << 20
"""Data sets up to this size are counted; of larger ones the number is worked out from the sample."""

KINDS = {"example": "Example", "sequence_example": "SequenceExample", "bytes": "bytes, no Examples"}


@click.command("info")
@options.sources
@click.option("--count", "exact", is_flag=True, help="Count records also where that reads more than 256 MB.")
@options.as_json
@options.storage_options
def command(sources: Sequence[str], exact: bool, as_json: bool, storage_options: Mapping[str, Any]) -> None:
    """Shows how many shards, records and bytes there are, how they are compressed, and which features they have.

    Features are inferred from up to 1,000 records at the beginnings of up to 8 shards.
    """
    shards, sample, records = run(inspect(sources, exact, storage_options))
    size = total_bytes(shards)
    compressions = [compression or "none" for compression in sample.compressions]
    if as_json:
        print_json(to_json(shards, sample, records), data=True)
        return
    print_line(f"shards       {len(shards):,}")
    print_line(f"records      {describe_count(records, size, sample)}")
    print_line(f"bytes        {'unknown' if size is None else f'{size:,} ({format_bytes(size)})'}")
    print_line(f"compression  {', '.join(compressions)}")
    print_line(f"records are  {KINDS[sample.kind]}, {format_bytes(round(sample.record_bytes))} on average")
    if sample.schema is not None:
        click.echo()
        print_line(f"features, as {plural(len(sample.records), 'record')} from the beginnings of shards show them")
        columns = ("feature", "kind", ">values", ">present", "parse_example takes")
        print_table(columns, (feature_row(item) for item in all_features(sample)))
    if sample.records:
        click.echo("\nthe first record")
        for line in as_lines(sample.records[0], sample.kind):
            print_record(f"  {line}")


async def inspect(
    sources: Sequence[str], exact: bool, storage_options: Mapping[str, Any]
) -> tuple[list[Found], Sample, int | None]:
    async with storages_for(storage_options) as storages:
        shards = await find_records(storages, sources)
        await check_present(storages, shards)
    sample = await take_sample(shards, storage_options)
    unknown = total_bytes(shard for shard in shards if shard.records is None)
    if not exact and (unknown is None or unknown > COUNTED_BYTES):
        return shards, sample, None
    return shards, sample, sum(await count_all(shards, storage_options))


def describe_count(records: int | None, size: int | None, sample: Sample) -> str:
    """How many records there are, or about how many there must be."""
    if records is not None:
        return f"{records:,}"
    if size is None or sample.compressions != ("",) or not sample.records:
        return "not counted: --count reads all shards"
    return f"about {size / (sample.record_bytes + 16):,.0f}, by the sample; --count reads all shards"


def all_features(sample: Sample) -> tuple[FeatureSummary, ...]:
    assert sample.schema is not None
    return sample.schema.summaries + sample.schema.list_summaries


def feature_row(item: FeatureSummary) -> tuple[str, ...]:
    values = f"{item.longest:,}" if item.fixed else f"{item.shortest:,} to {item.longest:,}"
    steps = "" if item.longest_list is None else f", {item.shortest_list:,} to {item.longest_list:,} steps"
    return item.name, kind_of(item), values + steps, f"{1 - item.missing_rate:.1%}", proposal(item)


def kind_of(item: FeatureSummary) -> str:
    """The kind of its values; "unknown" where none was seen."""
    return "unknown" if item.dtype is None else item.dtype.__name__


def proposal(item: FeatureSummary) -> str:
    """What reads this feature, without its default."""
    feature = item.proposal
    shape = getattr(feature, "shape", None)
    return f"{type(feature).__name__}({kind_of(item) if shape is None else f'{list(shape)}, {kind_of(item)}'})"


def to_json(shards: Sequence[Found], sample: Sample, records: int | None) -> dict[str, Any]:
    """The same as an object of JSON."""
    features = [] if sample.schema is None else all_features(sample)
    return {
        "shards": len(shards),
        "records": records,
        "bytes": total_bytes(shards),
        "compression": list(sample.compressions),
        "kind": sample.kind,
        "record_bytes": sample.record_bytes,
        "features": [
            {
                "name": item.name,
                "kind": kind_of(item),
                "values": [item.shortest, item.longest],
                "steps": None if item.longest_list is None else [item.shortest_list, item.longest_list],
                "present": 1 - item.missing_rate,
                "parse": proposal(item),
            }
            for item in features
        ],
        "sample": json.loads(record_as_json(sample.records[0], sample.kind)) if sample.records else None,
    }
