"""`streamrec stat`: statistics of each feature, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import click

from streamrec.cli import options
from streamrec.cli.output import format_bytes, plural, print_json, print_line, print_record
from streamrec.cli.plots import page, sparkline
from streamrec.cli.plots.page import extremes, missing_share, value_text, values_per_record
from streamrec.cli.progress import progress
from streamrec.cli.reading import batches, run, total_bytes
from streamrec.cli.records import plain
from streamrec.cli.rendering import print_table
from streamrec.cli.sampling import Sample, take_sample
from streamrec.cli.sources import Found, find_records, storages_for
from streamrec.cli.stats import DatasetStats, FeatureStats, Moments
from streamrec.cli.writing import write_text

__all__ = ["command"]

BARS = 16
FREQUENT = 5
FREQUENT_JSON = 20
FEW = 100
STANDS_OUT = 0.01


@click.command(
    "stat",
    epilog=options.examples(
        "streamrec stat 's3://bucket/train-*.tfrecord'",
        "streamrec stat --features label,width --html train.html data/",
    ),
)
@options.sources
@options.features
@click.option("--html", metavar="FILE", help="Write a page with plots and thumbnails there, too; any URL.")
@options.as_json
@options.storage_options
def command(
    sources: Sequence[str],
    features: Sequence[str] | None,
    html: str | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Reads all records, and shows for each feature how often it is missing, min, mean, max, and frequent values.

    Strings are measured by their lengths in bytes. Which features there are is inferred from up to 1,000 records.
    """
    shards, stats = run(collect(sources, features, html, storage_options))
    if as_json:
        print_json(to_json(shards, stats), data=True)
        return
    print_line(summary(shards, stats))
    columns = ("feature", "kind", ">missing", ">values each", ">min", ">mean", ">max", "histogram")
    click.echo()
    print_table(columns, [feature_row(item) for item in stats.features] or [feature_row(stats.records)])
    common = [f"{item.label}: {values}" for item in stats.features if (values := most_frequent(item))]
    if common:
        print_record("", "most frequent", *common)


async def collect(
    sources: Sequence[str], wanted: Sequence[str] | None, html: str | None, storage_options: Mapping[str, Any]
) -> tuple[list[Found], DatasetStats]:
    async with storages_for(storage_options) as storages:
        shards = await find_records(storages, sources)
        sample = await take_sample(shards, storage_options)
        stats = DatasetStats(sample.schema, lambda name: wanted is None or name in wanted)
        check_names(wanted, sample)
        with progress("reading", total_bytes(shards)) as meter:
            async with aclosing(batches(shards, sample.record_bytes, storage_options, meter.set)) as blocks:
                async for frames in blocks:
                    await anyio.to_thread.run_sync(stats.add, frames)
        if html is not None:
            text = page(", ".join(sources), summary(shards, stats), stats)
            await write_text(html, text, [shard.path for shard in shards], storage_options)
    return shards, stats


def check_names(wanted: Sequence[str] | None, sample: Sample) -> None:
    schema = sample.schema
    known = [item.name for item in schema.summaries + schema.list_summaries] if schema else []
    if unknown := [name for name in wanted or () if name not in known]:
        raise click.UsageError(f"no feature {', '.join(unknown)} was found: there are {', '.join(known) or 'none'}")


def summary(shards: Sequence[Found], stats: DatasetStats) -> str:
    """The data set in a line."""
    size = total_bytes(shards)
    return f"{plural(len(shards), 'shard')}, {plural(stats.records.records, 'record')}, {format_bytes(size)}"


def feature_row(item: FeatureStats) -> tuple[str, ...]:
    bars = sparkline([bin.count for bin in item.histogram.bins(BARS)])
    kind = "bytes long" if item.kind == "bytes" else item.kind
    return item.label or "(record)", kind, missing_share(item), values_per_record(item), *extremes(item), bars


def most_frequent(item: FeatureStats) -> str:
    """The most frequent values in a line; nothing where none of many stands out."""
    values, share = item.frequent.most(FREQUENT), item.numbers.count
    many = item.frequent.different is None or item.frequent.different > FEW
    if not values or (many and values[0][1] < STANDS_OUT * share):
        return ""
    about = "" if item.frequent.exact else "at least "
    different = "" if item.long or not item.frequent.exact else f"; {item.frequent.different:,} different"
    return ", ".join(f"{value_text(value)} {about}{count / share:.1%}" for value, count in values) + different


def to_json(shards: Sequence[Found], stats: DatasetStats) -> dict[str, Any]:
    """All statistics as an object of JSON."""
    return {
        "shards": len(shards),
        "bytes": total_bytes(shards),
        "records": stats.records.records,
        "record_bytes": moments_json(stats.records.numbers),
        "features": [feature_json(item) for item in stats.features],
    }


def feature_json(item: FeatureStats) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "feature_list": item.is_list,
        "missing": item.missing,
        "values_per_record": moments_json(item.per_record),
        "lengths" if item.kind == "bytes" else "numbers": moments_json(item.numbers),
        "not_finite": item.not_finite,
        "histogram": [[bin.start, bin.end, bin.count] for bin in item.histogram.bins(BARS)],
        "frequent": [[plain(value), count] for value, count in item.frequent.most(FREQUENT_JSON)],
        "frequent_too_low_by": item.frequent.missed,
        "different": None if item.long else item.frequent.different,
    }


def moments_json(of: Moments) -> dict[str, Any]:
    return {"count": of.count, "min": of.least, "mean": of.mean, "max": of.most, "deviation": of.deviation}
