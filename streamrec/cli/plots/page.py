"""The page of `streamrec stat`: what each feature holds."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

from streamrec.cli.output import format_bytes, format_number
from streamrec.cli.plots.document import document, escape_text
from streamrec.cli.plots.svg import histogram_svg
from streamrec.cli.records import quoted
from streamrec.cli.stats import DatasetStats, FeatureStats
from streamrec.display import text_of

__all__ = ["page"]

BARS: Final = 52
VALUES: Final = 20


def page(title: str, summary: str, stats: DatasetStats) -> str:
    """The page, as text.

    Args:
        title: What the data set is called.
        summary: One line about it.
        stats: What was counted.
    """
    body = [
        overview(stats.features) if stats.features else "",
        "<h2>Length of a record, in bytes</h2>",
        measures(stats.records),
        plot(stats.records),
        *[section(number, figures) for number, figures in enumerate(stats.features)],
    ]
    return document(title, [summary], body)


def overview(features: Sequence[FeatureStats]) -> str:
    """A row for each feature."""
    head = ("feature", "kind", "missing", "values each", "min", "mean", "max")
    rows = []
    for number, item in enumerate(features):
        numbers = missing_share(item), values_per_record(item), *extremes(item)
        cells = [f'<td><a href="#f{number}">{escape_text(item.label)}</a></td><td>{item.kind}</td>']
        cells += [f'<td class="number">{text}</td>' for text in numbers]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head_cells = "".join(f"<th{'' if place < 2 else ' class=number'}>{text}</th>" for place, text in enumerate(head))
    return f'<div class="wide"><table><tr>{head_cells}</tr>{"".join(rows)}</table></div>'


def section(number: int, item: FeatureStats) -> str:
    """All about one feature."""
    what = "length of the strings in bytes" if item.kind == "bytes" else "the numbers"
    return "\n".join(
        [
            f'<h2 id="f{number}">{escape_text(item.label)} <span class="faint">{item.kind}</span></h2>',
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
    return histogram_svg(item.histogram.bins(BARS), f"histogram of {escape_text(item.label) or 'record lengths'}")


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
