"""`streamrec stat`: statistics of each feature, in the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import click

from streamrec.cli import options
from streamrec.cli.feature_stats import DatasetStats, FeatureStats, Moments
from streamrec.cli.output import (
    format_bytes,
    format_number,
    plural,
    print_json,
    print_line,
    print_record,
    print_table,
    progress,
)
from streamrec.cli.reading import Sample, batches, run, take_sample, total_bytes
from streamrec.cli.records import plain, quoted
from streamrec.cli.sources import Item, find_records, storages_for
from streamrec.cli.writing import write_text
from streamrec.display import text_of
from streamrec.html import element, image, page, table, whole_text

COLUMNS: Final = ("feature", "kind", ">missing", ">values each", ">min", ">mean", ">max", "histogram")
BARS: Final = 16
FREQUENT_JSON: Final = 20
"""Of the histograms and frequent values in JSON. Not tuned."""


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
@options.source_options
def stat_command(
    sources: options.Sources, features: Sequence[str] | None, html: str | None, as_json: bool
) -> None:
    """Reads all records, and shows for each feature how often it is missing, min, mean, max, and frequent values.

    Strings are measured by their lengths in bytes. Which features there are is inferred from up to 1,000 records.
    """
    shards, stats = run(collect(sources, features, html))
    if as_json:
        print_json(to_json(shards, stats), data=True)
        return
    print_line(summary(shards, stats))
    click.echo()
    print_table(COLUMNS, [feature_row(item) for item in stats.features] or [feature_row(stats.records)])
    common = [f"{item.label}: {values}" for item in stats.features if (values := most_frequent(item))]
    if common:
        print_record("", "most frequent", *common)


async def collect(
    sources: options.Sources, wanted: Sequence[str] | None, html: str | None
) -> tuple[list[Item], DatasetStats]:
    async with storages_for(sources.storage_options) as storages:
        shards = await find_records(storages, sources)
        sample = await take_sample(shards)
        stats = DatasetStats(sample.schema, lambda name: wanted is None or name in wanted)
        check_names(wanted, sample)
        with progress("reading", total_bytes(shards)) as meter:
            async with aclosing(batches(shards, sample.record_bytes, meter)) as blocks:
                async for frames in blocks:
                    await anyio.to_thread.run_sync(stats.add, frames)
        if html is not None:
            text = as_page(", ".join(sources), summary(shards, stats), stats)
            await write_text(html, text, [shard.path for shard in shards], sources.storage_options)
    return shards, stats


def check_names(wanted: Sequence[str] | None, sample: Sample) -> None:
    schema = sample.schema
    known = [item.name for item in schema.summaries + schema.list_summaries] if schema else []
    if unknown := [name for name in wanted or () if name not in known]:
        raise click.UsageError(f"no feature {', '.join(unknown)} was found: there are {', '.join(known) or 'none'}")


def summary(shards: Sequence[Item], stats: DatasetStats) -> str:
    """The data set in a line."""
    size = total_bytes(shards)
    return f"{plural(len(shards), 'shard')}, {plural(stats.records.records, 'record')}, {format_bytes(size)}"


def feature_row(item: FeatureStats) -> tuple[str, ...]:
    bars = sparkline([count for *_, count in item.numbers.bins(BARS)])
    kind = "bytes long" if item.kind == "bytes" else item.kind
    return item.label or "(record)", kind, missing_share(item), values_per_record(item), *extremes(item), bars


def most_frequent(item: FeatureStats) -> str:
    """The most frequent values in a line; nothing where no value is much more frequent than others."""
    values, share = item.frequent.most(5), item.numbers.count
    many = item.frequent.different is None or item.frequent.different > 100
    if not values or (many and values[0][1] < 0.01 * share):
        return ""
    about = "" if item.frequent.exact else "at least "
    different = "" if item.long or not item.frequent.exact else f"; {item.frequent.different:,} different"
    return ", ".join(f"{value_text(value)} {about}{count / share:.1%}" for value, count in values) + different


def to_json(shards: Sequence[Item], stats: DatasetStats) -> dict[str, Any]:
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
        "histogram": item.numbers.bins(BARS),
        "frequent": [[plain(value), count] for value, count in item.frequent.most(FREQUENT_JSON)],
        "frequent_too_low_by": item.frequent.missed,
        "different": None if item.long else item.frequent.different,
    }


def moments_json(of: Moments) -> dict[str, Any]:
    return {"count": of.count, "min": of.least, "mean": of.mean, "max": of.most, "deviation": of.deviation}


def as_page(title: str, summary: str, stats: DatasetStats) -> str:
    """All statistics as an HTML page, with plots and thumbnails."""
    rows = []
    for number, item in enumerate(stats.features):
        name, *cells = map(whole_text, feature_row(item)[:-1])
        rows.append((f'<a href="#f{number}">{name}</a>', *cells))
    body = [
        element("div", table(COLUMNS[:-1], rows), kind="wide") if rows else "",
        "<h2>Length of a record, in bytes</h2>",
        measures(stats.records),
        plot(stats.records),
        *[section(number, figures) for number, figures in enumerate(stats.features)],
    ]
    return page(title, [summary], body)


def section(number: int, item: FeatureStats) -> str:
    """All about one feature."""
    what = "length of the strings in bytes" if item.kind == "bytes" else "the numbers"
    tags = [image(data, kind, format_bytes(len(data))) for kind, data in item.images]
    return "\n".join(
        [
            f'<h2 id="f{number}">{whole_text(item.label)} <span class="faint">{item.kind}</span></h2>',
            f"<p>missing in {missing_share(item)} of the records; values in each other: {values_per_record(item)}</p>",
            measures(item),
            f'<p class="faint">{what}</p>' if item.numbers.count else "",
            element("div", plot(item), frequent_table(item), kind="beside"),
            element("div", *tags, kind="images") if tags else "",
        ]
    )


def measures(item: FeatureStats) -> str:
    least, mean, most = extremes(item)
    odd = f", {item.not_finite:,} not finite" if item.not_finite else ""
    if not item.numbers.count:
        return f"<p>no values{odd}</p>"
    return (
        f"<p>min {least}, mean {mean}, max {most}, standard deviation {format_number(item.numbers.deviation)}, "
        f"{item.numbers.count:,} values{odd}</p>"
    )


def frequent_table(item: FeatureStats) -> str:
    values = item.frequent.most(FREQUENT_JSON)
    if not values or (item.frequent.exact and values[0][1] == 1 and len(values) == FREQUENT_JSON):
        return ""
    head = "most frequent", f">times{'' if item.frequent.exact else ' at least'}"
    rows = [(element("code", whole_text(value_text(value))), f"{count:,}") for value, count in values]
    return table(head, rows)


def value_text(value: object) -> str:
    """A value that was counted, as text."""
    if isinstance(value, bytes):
        text = text_of(value)
        return repr(value) if text is None else quoted(text)
    return format_number(value) if isinstance(value, float) else str(value)


def missing_share(item: FeatureStats) -> str:
    return f"{item.missing / item.records:.1%}" if item.records else ""


def values_per_record(item: FeatureStats) -> str:
    least, most = item.per_record.least, item.per_record.most
    return format_number(least) if least == most else f"{format_number(least)} to {format_number(most)}"


def extremes(item: FeatureStats) -> tuple[str, str, str]:
    if not item.numbers.count:
        return "", "", ""
    return format_number(item.numbers.least), format_number(item.numbers.mean), format_number(item.numbers.most)


def sparkline(counts: Sequence[int]) -> str:
    """A character for each count; a space for none, the highest bar for the most.

    Examples:
        >>> sparkline([0, 1, 4, 8])
        ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(" " if not count else "▁▂▃▄▅▆▇█"[-(-count * 8 // most) - 1] for count in counts)


def plot(item: FeatureStats) -> str:
    """A histogram as bars; each shows its range and count under the pointer. Screen readers read the title."""
    bins = item.numbers.bins(52)
    if not bins:
        return ""
    most = max(count for *_, count in bins)
    bars = [
        f'<span style="height: {100 * count / most:.1f}%" '
        f'title="{format_number(start)} to {format_number(end)}: {count:,}"></span>'
        for start, end, count in bins
    ]
    title = f"histogram of {whole_text(item.label) or 'record lengths'}"
    below = f"{format_number(bins[0][0])} to {format_number(bins[-1][1])}; highest bar: {most:,}"
    figure = f'<div class="plot" role="img" aria-label="{title}">{"".join(bars)}</div>'
    return f'<div>{figure}<small class="faint">{below}</small></div>'
