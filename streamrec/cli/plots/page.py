"""One HTML page about a data set: self-contained, so that it can be mailed or put in a bucket."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import Final

from streamrec.cli.output import escaped, format_bytes, format_number
from streamrec.cli.plots.svg import histogram_svg
from streamrec.cli.records import text_of
from streamrec.cli.stats import DatasetStats, FeatureStats

__all__ = ["page"]

BARS: Final = 52
VALUES: Final = 20

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2733; --faint: #66727f; --line: #d8dee4; --bar: #2f6fb5; --page: #ffffff }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e3e8ee; --faint: #93a0ad; --line: #36414d; --bar: #6ea8e6; --page: #14191f }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 64rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2.5rem 0 .3rem; border-top: 1px solid var(--line);
  padding-top: 1rem }
p { margin: .3rem 0 } .faint { color: var(--faint) } code { overflow-wrap: anywhere }
.beside { display: flex; flex-wrap: wrap; gap: 2rem; align-items: flex-start }
svg { width: 520px; max-width: 100%; height: auto } .bar { fill: var(--bar) } .axis { stroke: var(--faint) }
text { font-size: 11px; fill: var(--faint) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
th, td { text-align: left; padding: .15rem .9rem .15rem 0; border-bottom: 1px solid var(--line) }
.number { text-align: right } th { font-weight: 600 } a { color: inherit }
.images { display: flex; flex-wrap: wrap; gap: .5rem; margin-top: .7rem }
.images img { height: 96px; max-width: 192px; object-fit: contain; background: var(--line); border-radius: 3px }
"""


def page(title: str, summary: str, stats: DatasetStats) -> str:
    """The page, as text.

    Args:
        title: What the data set is called.
        summary: One line about it.
        stats: What was counted.
    """
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape_text(title)}</title><style>{STYLE}</style></head><body>",
            f"<h1><code>{escape_text(title)}</code></h1>",
            f"<p>{escape_text(summary)}</p>",
            overview(stats.features) if stats.features else "",
            "<h2>Length of a record, in bytes</h2>",
            measures(stats.records),
            plot(stats.records),
            *[section(number, figures) for number, figures in enumerate(stats.features)],
            "</body></html>\n",
        ]
    )


def escape_text(text: str) -> str:
    """Any text, as text of the page."""
    return escape(escaped(text))


def overview(features: Sequence[FeatureStats]) -> str:
    """A row for each feature."""
    head = ("feature", "kind", "missing", "values each", "min", "mean", "max")
    rows = []
    for number, item in enumerate(features):
        numbers = missing_share(item), values_per_record(item), *extremes(item)
        cells = [f'<td><a href="#f{number}">{escape_text(item.name)}</a></td><td>{item.kind}</td>']
        cells += [f'<td class="number">{text}</td>' for text in numbers]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head_cells = "".join(f"<th{'' if place < 2 else ' class=number'}>{text}</th>" for place, text in enumerate(head))
    return f'<div class="wide"><table><tr>{head_cells}</tr>{"".join(rows)}</table></div>'


def section(number: int, item: FeatureStats) -> str:
    """All about one feature."""
    what = "length of the strings in bytes" if item.kind == "bytes" else "the numbers"
    return "\n".join(
        [
            f'<h2 id="f{number}">{escape_text(item.name)} <span class="faint">{item.kind}</span></h2>',
            f"<p>missing in {missing_share(item)} of the records; values in each other: {values_per_record(item)}</p>",
            measures(item),
            f'<p class="faint">{what}</p>' if item.numbers.count else "",
            '<div class="beside">',
            plot(item),
            frequent_table(item),
            "</div>",
            thumbnails(item),
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


def plot(item: FeatureStats) -> str:
    return histogram_svg(item.histogram.bins(BARS), f"histogram of {escape_text(item.name) or 'record lengths'}")


def frequent_table(item: FeatureStats) -> str:
    values = item.frequent.most(VALUES)
    if not values or (item.frequent.exact and values[0][1] == 1 and len(values) == VALUES):
        return ""
    about = "" if item.frequent.exact else " at least"
    rows = "".join(
        f'<tr><td><code>{escape_text(value_text(value))}</code></td><td class="number">{count:,}</td></tr>'
        for value, count in values
    )
    return f'<table><tr><th>most frequent</th><th class="number">times{about}</th></tr>{rows}</table>'


def thumbnails(item: FeatureStats) -> str:
    tags = [
        f'<img src="data:image/{image.type};base64,{base64.b64encode(image.data).decode()}" loading="lazy" '
        f'alt="{image.type}, {format_bytes(len(image.data))}" title="{format_bytes(len(image.data))}">'
        for image in item.images
    ]
    return f'<div class="images">{"".join(tags)}</div>' if tags else ""


def value_text(value: object) -> str:
    """A value that was counted, as text."""
    if isinstance(value, bytes):
        text = text_of(value)
        return repr(value if text is None else text)
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
