"""`streamrec ls`, `count` and `info`: which files names stand for, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from streamrec.cli import options
from streamrec.cli.library import FeatureSummary, Gap
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
from streamrec.cli.sources import (
    Item,
    check_present,
    directory_of,
    find,
    find_records,
    storages_for,
)
from streamrec.cli.tfds_folders import open_folder

if TYPE_CHECKING:
    from streamrec.cli.library import Folder


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
    """All files that the names stand for, manifests included, with sizes."""
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
    counted = run(count_sources(sources))
    for gap in counted.gaps:
        print_note(gap)
    pairs = list(zip(counted.shards, counted.counts, strict=True))
    if as_json:
        rows = [{"path": shard.path, "records": count} for shard, count in pairs]
        gaps = [asdict(gap) for gap in counted.gaps]
        print_json({"records": counted.total, "shards": rows, "gaps": gaps})
        return
    if by_shard:
        width = max(len(f"{count:,}") for count in counted.counts)
        for shard, count in pairs:
            print_line(f"{count:>{width},}  {shard.path}")
    click.echo(f"{counted.total:,}" if by_shard else str(counted.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordCounts:
    """Shards with the numbers of their records.

    Attributes:
        shards: The shards.
        counts: The number of records of each shard.
        gaps: Which shards are missing, as the names of the others show.
    """

    shards: Sequence[Item]
    counts: Sequence[int]
    gaps: Sequence[Gap]

    @property
    def total(self) -> int:
        """The number of all records."""
        return sum(self.counts)


async def count_sources(sources: options.Sources) -> RecordCounts:
    """Counts the records of the shards that the names stand for."""
    shards, gaps = await find_present(sources)
    return RecordCounts(shards=shards, counts=await count_all(shards), gaps=gaps)


async def find_present(sources: options.Sources) -> tuple[list[Item], list[Gap]]:
    """Finds the shards, and checks that those which manifests list exist.

    Returns:
        The shards, and the gaps that their names show.
    """
    gaps: list[Gap] = []
    async with storages_for(sources.storage_options) as storages:
        shards = await find_records(storages, sources, gaps=gaps, slices=True)
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
    inspected = run(inspect(sources, exact))
    sample = inspected.sample
    if as_python:
        if not all_features(sample):
            raise click.UsageError(f"no features to propose: the records are {sample.are}")
        print_record(*str(sample.schema).splitlines())
    elif as_json:
        print_json(to_json(inspected), data=True)
    else:
        print_inspected(inspected)


def print_inspected(inspected: Inspected) -> None:
    """Prints what was found, as lines and a table."""
    sample = inspected.sample
    size = inspected.size
    print_line(f"shards       {len(inspected.shards):,}")
    print_line(*(f"incomplete   {gap}" for gap in inspected.gaps))
    print_line(f"records      {describe_count(inspected)}")
    print_line(f"bytes        {'unknown' if size is None else f'{size:,} ({format_bytes(size)})'}")
    print_line(f"compression  {', '.join(compression_names(sample))}")
    print_line(f"records are  {sample.are}, {format_bytes(round(sample.record_bytes))} on average")
    if sample.other is not None:
        print_line(f"             one has {sample.other}")
    if sample.schema is not None:
        click.echo()
        print_line(
            f"features, inferred from {plural(len(sample.records), 'record')} at the beginnings of "
            "shards"
        )
        columns = ("feature", "kind", ">missing", ">values", f"parse_{sample.kind} takes")
        print_table(
            columns, (feature_row(item, len(sample.records)) for item in all_features(sample))
        )
    for folder in inspected.folders:
        click.echo("\nfeatures, as the description of the data set gives them")
        print_line(*folder.lines())
    # Names and kinds alone do not show what a feature means: the values of one record do.
    if sample.records:
        click.echo("\nthe first record")
        for line in as_lines(sample.records[0], sample.kind, classes=inspected.shards[0].classes):
            print_record(f"  {line}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What `info` shows.

    Attributes:
        shards: The shards.
        gaps: Which shards are missing, as the names of the others show.
        sample: Records from the beginnings of shards.
        records: The number of all records; None if they were not counted.
        folders: The folders of TensorFlow Datasets among the names.
    """

    shards: Sequence[Item]
    gaps: Sequence[Gap]
    sample: Sample
    records: int | None
    folders: Sequence[Folder] = ()

    @property
    def size(self) -> int | None:
        """The size of all shards in bytes; None if one of them is unknown."""
        return total_bytes(self.shards)


async def inspect(sources: options.Sources, exact: bool) -> Inspected:
    """Reads a sample, and counts records if that is cheap or `exact`."""
    shards, gaps = await find_present(sources)
    sample = await take_sample(shards)
    unknown = total_bytes(shard for shard in shards if shard.records is None)
    # Counting reads all shards; beyond 256 MB the estimate from the sample is enough for most.
    cheap = unknown is not None and unknown <= 256 << 20
    return Inspected(
        shards=shards,
        gaps=gaps,
        sample=sample,
        records=sum(await count_all(shards)) if exact or cheap else None,
        folders=await folders_among(sources),
    )


async def folders_among(sources: options.Sources) -> list[Folder]:
    """The folders of TensorFlow Datasets among the names."""
    async with storages_for(sources.storage_options) as storages:
        directories = filter(None, map(directory_of, sources))
        found = [await open_folder(storages, directory) for directory in directories]
    return [folder for folder in found if folder is not None]


def describe_count(inspected: Inspected) -> str:
    """The number of records, or an estimate from the sample."""
    if inspected.records is not None:
        return f"{inspected.records:,}"
    size = inspected.size
    sample = inspected.sample
    if size is None or sample.compressions != ("",) or not sample.records:
        return "not counted: --count reads all shards"
    estimate = size / (sample.record_bytes + 16)
    return f"about {estimate:,.0f}, estimated from the sample; --count reads all shards"


def all_features(sample: Sample) -> tuple[FeatureSummary, ...]:
    """The features of Examples, or of the context and the feature lists of SequenceExamples."""
    return () if sample.schema is None else sample.schema.summaries + sample.schema.list_summaries


def feature_row(item: FeatureSummary, records: int) -> tuple[str, ...]:
    """The cells of a feature in the table; `records` is the size of the sample."""
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
    """The kind of a feature's values; "unknown" if the sample has none."""
    return "unknown" if item.dtype is None else item.dtype.__name__


def compression_names(sample: Sample) -> list[str]:
    """The compressions of the shards that were looked at, such as "GZIP"; "none" for none."""
    return [compression or "none" for compression in sample.compressions]


def to_json(inspected: Inspected) -> dict[str, Any]:
    """What `info` shows as an object of JSON; `convert --schema` reads its `features`."""
    sample = inspected.sample
    # Names of features and values are data: only the names of shards may hold secrets.
    gaps = mask_value([asdict(gap) for gap in inspected.gaps])
    return {
        "shards": len(inspected.shards),
        "records": inspected.records,
        "bytes": inspected.size,
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
        "gaps": gaps,
    }
