"""`streamrec stat`: statistics of each feature, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import click

from streamrec.cli import options
from streamrec.cli.figures import FeatureFigures, FigureTable, Moments
from streamrec.cli.output import bytes_in_words, counted, print_json, print_line, print_table
from streamrec.cli.plots import page, sparkline
from streamrec.cli.plots.page import each, extremes, missing, value_text
from streamrec.cli.progress import progress
from streamrec.cli.reading import batches, run, total_bytes
from streamrec.cli.records import plain
from streamrec.cli.sampling import Sample, take_sample
from streamrec.cli.sources import Found, find_records, storages_for

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
    shards, table = run(gathered(sources, features, html, storage_options))
    if as_json:
        print_json(described(shards, table))
        return
    print_line(summary(shards, table))
    columns = ("feature", "kind", ">missing", ">values each", ">min", ">mean", ">max", "histogram")
    click.echo()
    print_table(columns, [row(item) for item in table.features] or [row(table.records)])
    common = [f"{item.name}: {values}" for item in table.features if (values := most_frequent(item))]
    if common:
        print_line("\n".join(["", "most frequent", *common]))


async def gathered(
    sources: Sequence[str], wanted: Sequence[str] | None, html: str | None, storage_options: Mapping[str, Any]
) -> tuple[list[Found], FigureTable]:
    async with storages_for(storage_options) as storages:
        shards = await find_records(storages, sources)
        sample = await take_sample(shards, storage_options)
        table = FigureTable(sample.schema, lambda name: wanted is None or name in wanted)
        check_names(wanted, sample)
        with progress("reading", total_bytes(shards)) as meter:
            async with aclosing(batches(shards, sample.record_bytes, storage_options, meter.set)) as blocks:
                async for frames in blocks:
                    await anyio.to_thread.run_sync(table.add, frames)
        if html is not None:
            text = page(", ".join(sources), summary(shards, table), table)
            async with await (await storages.at(html)).upload(html) as upload:
                await upload.write(text.encode())
    return shards, table


def check_names(wanted: Sequence[str] | None, sample: Sample) -> None:
    schema = sample.schema
    known = [item.name for item in schema.summaries + schema.list_summaries] if schema else []
    if unknown := [name for name in wanted or () if name not in known]:
        raise click.UsageError(f"no feature {', '.join(unknown)} was found: there are {', '.join(known) or 'none'}")


def summary(shards: Sequence[Found], table: FigureTable) -> str:
    """The data set in a line."""
    size = total_bytes(shards)
    return f"{counted(len(shards), 'shard')}, {counted(table.records.records, 'record')}, {bytes_in_words(size)}"


def row(item: FeatureFigures) -> tuple[str, ...]:
    bars = sparkline([bin.count for bin in item.histogram.bins(BARS)])
    kind = "bytes long" if item.kind == "bytes" else item.kind
    return item.name or "(record)", kind, missing(item), each(item), *extremes(item), bars


def most_frequent(item: FeatureFigures) -> str:
    """The most frequent values in a line; nothing where none of many stands out."""
    values, share = item.frequent.most(FREQUENT), item.numbers.count
    many = item.frequent.different is None or item.frequent.different > FEW
    if not values or (many and values[0][1] < STANDS_OUT * share):
        return ""
    about = "" if item.frequent.exact else "at least "
    different = "" if item.long or not item.frequent.exact else f"; {item.frequent.different:,} different"
    return ", ".join(f"{value_text(value)} {about}{count / share:.1%}" for value, count in values) + different


def described(shards: Sequence[Found], table: FigureTable) -> dict[str, Any]:
    """All figures as an object of JSON."""
    return {
        "shards": len(shards),
        "bytes": total_bytes(shards),
        "records": table.records.records,
        "record_bytes": moments(table.records.numbers),
        "features": [figures(item) for item in table.features],
    }


def figures(item: FeatureFigures) -> dict[str, Any]:
    return {
        "name": item.name,
        "kind": item.kind,
        "missing": item.missing,
        "values_per_record": moments(item.per_record),
        "lengths" if item.kind == "bytes" else "numbers": moments(item.numbers),
        "not_finite": item.not_finite,
        "histogram": [[bin.start, bin.end, bin.count] for bin in item.histogram.bins(BARS)],
        "frequent": [[plain(value), count] for value, count in item.frequent.most(FREQUENT_JSON)],
        "frequent_too_low_by": item.frequent.missed,
        "different": None if item.long else item.frequent.different,
    }


def moments(of: Moments) -> dict[str, Any]:
    return {"count": of.count, "min": of.least, "mean": of.mean, "max": of.most, "deviation": of.deviation}
