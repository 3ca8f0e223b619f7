"""`streamrec stat`: statistics of each feature, in the terminal and as a page.

The memory that it needs does not grow with the number of records.

- `Histogram` need not know the range of the numbers. Its bins are [k * 2**e, (k + 1) * 2**e) for
  whole k. If a number is outside, the width doubles until all numbers fit, and neighbours are
  joined. No count moves over the edge of a bin, so the result does not depend on the order.
- `FrequentValues` uses the algorithm of Misra and Gries (1982). As long as all different values
  fit, counts are exact. After that, each count is too low by at most `missed`, and every value that
  is more frequent than `missed` is kept.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

import anyio
import click
import numpy as np
import numpy.typing as npt

from streamrec import (
    BytesColumn,
    FeatureError,
    Frames,
    RaggedFeature,
    parse_example,
    parse_sequence_example,
)
from streamrec.cli import options
from streamrec.cli.library import (
    CAN_COPY,
    Schema,
    describe_other,
    element,
    image,
    image_type,
    join_names,
    kind_of,
    page,
    table,
    text_of,
    whole_text,
)
from streamrec.cli.output import (
    format_bytes,
    format_number,
    format_range,
    plural,
    print_json,
    print_line,
    print_note,
    print_record,
    print_table,
    progress,
)
from streamrec.cli.reading import Sample, batches, run, take_sample, total_bytes
from streamrec.cli.records import name_class, plain, quote_text
from streamrec.cli.sources import Item, find_records, storages_for
from streamrec.cli.writing import write_text

COLUMNS: Final = (
    "feature",
    "kind",
    ">missing",
    ">values each",
    ">min",
    ">mean",
    ">max",
    "histogram",
)
BARS: Final = 16
FREQUENT_JSON: Final = 20
"""How many bars of a histogram, and frequent values, the JSON has. Not tuned."""

BINS: Final = 512
DIGITS: Final = 40
"""No bin is narrower than the largest number without its first 40 binary digits. Not tuned."""


@click.command(
    "stat",
    epilog=options.examples(
        "streamrec stat 's3://bucket/train-*.tfrecord'",
        "streamrec stat --features label,width --html train.html data/",
    ),
)
@options.sources
@options.features
@options.file_option(
    "--html", help="Also write a page with plots and thumbnails to FILE, a path or URL."
)
@options.as_json
@options.source_options
def stat_command(
    sources: options.Sources, features: Sequence[str] | None, html: str | None, as_json: bool
) -> None:
    """Reads all records, and shows how often each feature is missing, its min, mean and max, and
    frequent values.

    Strings are measured by their length in bytes. The features are inferred from up to 1,000
    records.
    """
    shards, stats = run(collect(sources, features, html))
    if as_json:
        print_json(to_json(shards, stats), data=True)
        return
    print_line(summary(shards, stats))
    click.echo()
    print_table(
        COLUMNS, [feature_row(item) for item in stats.features] or [feature_row(stats.records)]
    )
    common = [
        f"{item.label}: {values}" for item in stats.features if (values := most_frequent(item))
    ]
    if common:
        print_record("", "most frequent", *common)


async def collect(
    sources: options.Sources, wanted: Sequence[str] | None, html: str | None
) -> tuple[list[Item], DatasetStats]:
    """Reads all records, and writes the page if there is one; returns the shards and statistics."""
    async with storages_for(sources.storage_options) as storages:
        shards = await find_records(storages, sources, slices=True)
        sample = await take_sample(shards)
        stats = DatasetStats(sample.schema, lambda name: wanted is None or name in wanted)
        stats.name_classes(shards)
        check_names(wanted, sample)
        if sample.other is not None:
            print_note(f"only lengths of records, since they are {sample.are}: {sample.other}")
        with progress("reading", total_bytes(shards)) as meter:
            async with aclosing(batches(shards, sample.record_bytes, meter)) as blocks:
                async for frames in blocks:
                    await anyio.to_thread.run_sync(stats.add, frames)
        if html is not None:
            text = as_page(", ".join(sources), summary(shards, stats), stats)
            await write_text(html, text, [shard.path for shard in shards], sources.storage_options)
    return shards, stats


def check_names(wanted: Sequence[str] | None, sample: Sample) -> None:
    """Checks that the sample has the features that were asked for."""
    schema = sample.schema
    known = [item.name for item in schema.summaries + schema.list_summaries] if schema else []
    if unknown := [name for name in wanted or () if name not in known]:
        raise click.UsageError(
            f"no record has the feature {', '.join(unknown)}: they have "
            f"{join_names(known) or 'none'}"
        )


def summary(shards: Sequence[Item], stats: DatasetStats) -> str:
    """The numbers of shards, records and bytes in one line."""
    size = total_bytes(shards)
    return (
        f"{plural(len(shards), 'shard')}, {plural(stats.records.counts.records, 'record')}, "
        f"{format_bytes(size)}"
    )


def feature_row(item: FeatureStats) -> tuple[str, ...]:
    """The cells of a feature in the table, a histogram of block characters last."""
    bars = sparkline([count for *_, count in item.numbers.bins(BARS)])
    kind = "bytes long" if item.kind == "bytes" else item.kind
    return (
        item.label or "(record)",
        kind,
        missing_share(item),
        values_per_record(item),
        *extremes(item),
        bars,
    )


def most_frequent(item: FeatureStats) -> str:
    """The five most frequent values in one line.

    It is empty if there are many different values and even the first makes up less than 1 %.
    """
    values = item.frequent.most(5)
    total = item.numbers.count
    many = item.frequent.different is None or item.frequent.different > 100
    if not values or (many and values[0][1] < 0.01 * total):
        return ""
    about = "" if item.frequent.exact else "at least "
    different = (
        "" if item.long or not item.frequent.exact else f"; {item.frequent.different:,} different"
    )
    return (
        ", ".join(
            f"{value_text(value, item.classes)} {about}{count / total:.1%}"
            for value, count in values
        )
        + different
    )


def to_json(shards: Sequence[Item], stats: DatasetStats) -> dict[str, Any]:
    """All statistics as an object of JSON."""
    return {
        "shards": len(shards),
        "bytes": total_bytes(shards),
        "records": stats.records.counts.records,
        "record_bytes": moments_json(stats.records.numbers),
        "features": [feature_json(item) for item in stats.features],
    }


def feature_json(item: FeatureStats) -> dict[str, Any]:
    """The statistics of one feature as an object of JSON."""
    return {
        "name": item.name,
        "kind": item.kind,
        "feature_list": item.is_list,
        "missing": item.counts.missing,
        "values_per_record": moments_json(item.counts.per_record),
        "lengths" if item.kind == "bytes" else "numbers": moments_json(item.numbers),
        "not_finite": item.not_finite,
        "histogram": item.numbers.bins(BARS),
        "frequent": [[plain(value), count] for value, count in item.frequent.most(FREQUENT_JSON)],
        "frequent_classes": frequent_classes(item),
        "frequent_too_low_by": item.frequent.missed,
        "different": None if item.long else item.frequent.different,
    }


def frequent_classes(item: FeatureStats) -> list[str | None] | None:
    """The names of the classes that the frequent values stand for; None if it is no label."""
    if not item.classes:
        return None
    known = dict(enumerate(item.classes))
    return [known.get(value) for value, _ in item.frequent.most(FREQUENT_JSON)]


def moments_json(of: Moments) -> dict[str, Any]:
    """The figures of numbers as an object of JSON; null for those that are unknown."""
    return {
        "count": of.count,
        "min": of.least,
        "mean": of.mean,
        "max": of.most,
        "deviation": of.deviation,
    }


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
    """The part of the page that shows one feature."""
    what = "length of the strings in bytes" if item.kind == "bytes" else "the numbers"
    tags = [image(data, kind, format_bytes(len(data))) for kind, data in item.images]
    return "\n".join(
        [
            f'<h2 id="f{number}">{whole_text(item.label)} <span '
            f'class="faint">{item.kind}</span></h2>',
            f"<p>missing in {missing_share(item)} of the records; values in each other: "
            f"{values_per_record(item)}</p>",
            measures(item),
            f'<p class="faint">{what}</p>' if item.numbers.count else "",
            element("div", plot(item), frequent_table(item), kind="beside"),
            element("div", *tags, kind="images") if tags else "",
        ]
    )


def measures(item: FeatureStats) -> str:
    """A paragraph of HTML with the smallest and largest number, mean and deviation."""
    least, mean, most = extremes(item)
    odd = f", {item.not_finite:,} not finite" if item.not_finite else ""
    if not item.numbers.count:
        return f"<p>no values{odd}</p>"
    return (
        f"<p>min {least}, mean {mean}, max {most}, standard deviation "
        f"{format_number(item.numbers.deviation)}, "
        f"{item.numbers.count:,} values{odd}</p>"
    )


def frequent_table(item: FeatureStats) -> str:
    """A table of HTML with the most frequent values; empty if each occurs only once."""
    values = item.frequent.most(FREQUENT_JSON)
    if not values or (item.frequent.exact and values[0][1] == 1 and len(values) == FREQUENT_JSON):
        return ""
    head = "most frequent", f">times{'' if item.frequent.exact else ' at least'}"
    rows = [
        (element("code", whole_text(value_text(value, item.classes))), f"{count:,}")
        for value, count in values
    ]
    return table(head, rows)


def value_text(value: object, classes: Sequence[str] = ()) -> str:
    """A frequent value as text: strings in quotes, numbers as in the table, labels with names."""
    if isinstance(value, bytes):
        text = text_of(value)
        return repr(value) if text is None else quote_text(text)
    return format_number(value) if isinstance(value, float) else str(name_class(value, classes))


def missing_share(item: FeatureStats) -> str:
    """How many records lack the feature, in percent; empty without records."""
    counts = item.counts
    return f"{counts.missing / counts.records:.1%}" if counts.records else ""


def values_per_record(item: FeatureStats) -> str:
    """The smallest and largest number of values in a record that has the feature."""
    least = item.counts.per_record.least
    most = item.counts.per_record.most
    return (
        format_number(least)
        if least == most
        else f"{format_number(least)} to {format_number(most)}"
    )


def extremes(item: FeatureStats) -> tuple[str, str, str]:
    """The smallest number, the mean and the largest number as text; empty without numbers."""
    if not item.numbers.count:
        return "", "", ""
    return (
        format_number(item.numbers.least),
        format_number(item.numbers.mean),
        format_number(item.numbers.most),
    )


def sparkline(counts: Sequence[int]) -> str:
    """A bar of one character for each count: a space for 0, the highest bar for the largest.

    Examples:
        >>> sparkline([0, 1, 4, 8])
        ' ▁▄█'
    """
    most = max(counts, default=0)
    return "".join(" " if not count else "▁▂▃▄▅▆▇█"[-(-count * 8 // most) - 1] for count in counts)


def plot(item: FeatureStats) -> str:
    """A histogram of HTML. A bar shows its range and count when the pointer is over it.

    Screen readers read its title.
    """
    bins = item.numbers.bins(52)
    if not bins:
        return ""
    most = max(count for *_, count in bins)
    bars = [
        f'<span style="height: {100 * count / most:.1f}%" '
        f'title="{format_range(start, end)}: {count:,}"></span>'
        for start, end, count in bins
    ]
    title = f"histogram of {whole_text(item.label) or 'record lengths'}"
    below = f"{format_range(bins[0][0], bins[-1][1])}; highest bar: {most:,}"
    figure = f'<div class="plot" role="img" aria-label="{title}">{"".join(bars)}</div>'
    return f'<div>{figure}<small class="faint">{below}</small></div>'


class Moments:
    """The smallest number, the largest one, the mean and the standard deviation.

    >>> moments = Moments()
    >>> moments.add(np.array([1, 2])), moments.add(np.array([6]))
    (None, None)
    >>> moments.count, moments.least, moments.mean, moments.most
    (3, 1, 3.0, 6)

    Attributes:
        count: How many numbers there were.
        least, most: The smallest and the largest; None before the first one.
        mean: Their mean, in float64; 0.0 before the first one.
    """

    def __init__(self) -> None:
        self.count = 0
        self.least: float | int | None = None
        self.most: float | int | None = None
        self.mean = 0.0
        self._squares = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers as a whole population; 0.0 before the first one."""
        return math.sqrt(self._squares / self.count) if self.count else 0.0

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Adds numbers, all of them finite."""
        if not len(numbers):
            return
        least = numbers.min().item()
        most = numbers.max().item()
        self.least = least if self.least is None else min(self.least, least)
        self.most = most if self.most is None else max(self.most, most)
        # Chan's formula joins the means and the sums of squares of both parts.
        mean = float(numbers.mean(dtype=np.float64))
        squares = float(np.square(numbers.astype(np.float64) - mean).sum())
        count = self.count + len(numbers)
        delta = mean - self.mean
        self._squares += squares + delta * delta * self.count * len(numbers) / count
        self.mean += delta * len(numbers) / count
        self.count = count


class Histogram(Moments):
    """Moments of numbers that are also counted in at most 512 bins.

    Args:
        whole: Whether the numbers are whole, so that no bin needs to be narrower than 1.

    >>> histogram = Histogram(whole=True)
    >>> histogram.add(np.array([1, 1, 2])), histogram.add(np.array([3, 7]))
    (None, None)
    >>> histogram.bins(4)
    [(0, 2, 2), (2, 4, 2), (4, 6, 0), (6, 8, 1)]
    """

    def __init__(self, whole: bool = False) -> None:
        super().__init__()
        self._whole = whole
        self._exponent = 0
        self._first = 0
        self._counts = np.zeros(0, np.int64)

    def add(self, numbers: npt.NDArray[Any]) -> None:
        """Adds numbers, all of them finite."""
        known = (self.least, self.most)
        super().add(numbers)
        if self.least is None or self.most is None:
            return
        if (self.least, self.most) != known:
            self._make_room(float(self.least), float(self.most))
        places = np.floor(np.ldexp(numbers.astype(np.float64), -self._exponent)).astype(np.int64)
        # A negative number that is tiny compared to the width became -0.0, which is not below 0.
        places[(places == 0) & (numbers < 0)] = -1
        self._counts += np.bincount(places - self._first, minlength=len(self._counts))

    def bins(self, most: int) -> list[tuple[float, float, int]]:
        """At most `most` bins, from that of the smallest number to that of the largest one.

        Each bin is a start, an end, and the number of numbers from the start up to the end, which
        is not included. Start and end are integers if all numbers are.
        """
        used = len(self._counts)
        if not used:
            return []
        last = self._first + used - 1
        shift = 0
        while (last >> shift) - (self._first >> shift) >= most:
            shift += 1
        first = self._first >> shift
        places = ((np.arange(used) + self._first) >> shift) - first
        counts = np.bincount(places, self._counts).astype(np.int64)
        exponent = self._exponent + shift
        width = 1 << exponent if self._whole else math.ldexp(1.0, exponent)
        return [
            ((first + index) * width, (first + index + 1) * width, count)
            for index, count in enumerate(counts.tolist())
        ]

    def _make_room(self, least: float, most: float) -> None:
        """Makes bins for all numbers from `least` to `most`, and moves the counts to them."""
        exponent = math.frexp(max(abs(least), abs(most)))[1] - DIGITS
        exponent = max(0, exponent) if self._whole else max(-1022, exponent)
        if len(self._counts):
            exponent = max(exponent, self._exponent)
        while index(most, exponent) - index(least, exponent) >= BINS:
            exponent += 1
        first = index(least, exponent)
        counts = np.zeros(index(most, exponent) - first + 1, np.int64)
        moved = (
            (np.arange(len(self._counts)) + self._first) >> (exponent - self._exponent)
        ) - first
        np.add.at(counts, moved, self._counts)
        self._exponent = exponent
        self._first = first
        self._counts = counts


def index(number: float, exponent: int) -> int:
    """The number of the bin of width 2**exponent that contains a number."""
    return math.floor(math.ldexp(number, -exponent)) or -int(number < 0)


class FrequentValues:
    """Counts how often each value occurs, in bounded memory.

    Args:
        capacity: How many different values are kept. There may be up to twice as many before some
            are dropped.

    >>> frequent = FrequentValues()
    >>> frequent.add({"cat": 3, "dog": 1}), frequent.add({"dog": 1})
    (None, None)
    >>> frequent.most(1), frequent.different, frequent.exact
    ([('cat', 3)], 2, True)

    Attributes:
        missed: By how much a count may be too low.
    """

    def __init__(self, capacity: int = 10_000) -> None:
        self._capacity = capacity
        self._counts = Counter[Any]()
        self.missed = 0

    @property
    def exact(self) -> bool:
        """Whether all counts are exact."""
        return not self.missed

    @property
    def different(self) -> int | None:
        """How many different values there are; None if not all fit."""
        return len(self._counts) if self.exact else None

    def add(self, counts: Mapping[Any, int]) -> None:
        """Adds values, each with its count."""
        self._counts.update(counts)
        # All counts are lowered by that of the first value that does not fit: Misra and Gries.
        if len(self._counts) > 2 * self._capacity:
            cut = sorted(self._counts.values(), reverse=True)[self._capacity]
            self._counts = Counter(
                {value: count - cut for value, count in self._counts.items() if count > cut}
            )
            self.missed += cut

    def most(self, number: int) -> list[tuple[Any, int]]:
        """The most frequent values and their counts; the order of equal counts is that of the text.

        A value that may be less frequent than one that was dropped is left out.
        """
        safe = [(value, count) for value, count in self._counts.items() if count > self.missed]
        return sorted(safe, key=lambda pair: (-pair[1], str(pair[0])))[:number]


class ValueCounts:
    """How many values the records have.

    Attributes:
        records: The number of records.
        missing: How many records have no value.
        per_record: The numbers of values in the other records.

    >>> counts = ValueCounts()
    >>> counts.add(np.array([0, 2, 4]))
    >>> counts.records, counts.missing, counts.per_record.least, counts.per_record.most
    (3, 1, 2, 4)
    """

    def __init__(self) -> None:
        self.records = 0
        self.missing = 0
        self.per_record = Moments()

    def add(self, counts: npt.NDArray[Any]) -> None:
        """Adds records with these numbers of values."""
        present = counts[counts > 0]
        self.records += len(counts)
        self.missing += len(counts) - len(present)
        self.per_record.add(present)


class FeatureStats:
    """The statistics of one feature: of its numbers, or of the lengths of its strings in bytes.

    Attributes:
        name: The feature's name.
        kind: "int64", "float32" or "bytes".
        is_list: Whether it is a feature list of SequenceExamples, whose context may have a feature
            of the same name.
        counts: How many values the records have.
        numbers: The moments and bins of finite numbers, or of the lengths of strings.
        not_finite: How many numbers are infinite or NaN.
        frequent: The most frequent numbers, or strings of up to 64 bytes.
        long: How many strings are longer than 64 bytes.
        images: Up to 12 of the values that are images: "jpeg" or "png", and the bytes.
        classes: The names of the classes that the numbers stand for; () for other numbers.
    """

    def __init__(self, name: str, kind: str, is_list: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.is_list = is_list
        self.counts = ValueCounts()
        self.numbers = Histogram(whole=kind != "float32")
        self.not_finite = 0
        self.frequent = FrequentValues()
        self.long = 0
        self.images: list[tuple[str, bytes]] = []
        self.classes: Sequence[str] = ()

    @property
    def label(self) -> str:
        """The name, which says whether it is a feature list."""
        return f"{self.name} (feature list)" if self.is_list else self.name

    def add(self, values: npt.NDArray[Any] | BytesColumn, counts: npt.NDArray[Any]) -> None:
        """Adds the values of records.

        Args:
            values: The values of all these records, one after the other.
            counts: The number of values of each record.
        """
        self.counts.add(counts)
        if not isinstance(values, BytesColumn):
            finite = values[np.isfinite(values)]
            self.not_finite += len(values) - len(finite)
            self.numbers.add(finite)
            different, times = np.unique(finite, return_counts=True)
            self.frequent.add(dict(zip(different.tolist(), times.tolist(), strict=True)))
            return
        self.numbers.add(values.lengths)
        # Longer strings are hardly ever equal, and 20,000 of them would take much memory.
        short = np.flatnonzero(values.lengths <= 64)
        self.long += len(values) - len(short)
        self.frequent.add(Counter(values if len(short) == len(values) else values[short]))
        if len(short) < len(values):
            self._add_images(values)

    def _add_images(self, values: BytesColumn) -> None:
        """Keeps images of up to 256 KiB, from equal distances in the values, until it has 12."""
        wanted = 12 - len(self.images)
        for index in np.unique(np.linspace(0, len(values) - 1, wanted).astype(int)).tolist():
            if values.lengths[index] > 256 << 10:
                continue
            data = values[index]
            kind = image_type(data)
            if kind:
                self.images.append((kind, data))


class DatasetStats:
    """The statistics of all features, and of the lengths of the records.

    Args:
        schema: The features of a sample; None if the records have none.
        wanted: Whether a feature of this name is counted.

    Attributes:
        records: The statistics of the records as strings.
        features: The statistics of each feature, in the order of their names.
    """

    def __init__(self, schema: Schema | None, wanted: Callable[[str], bool]) -> None:
        self.records = FeatureStats("", "bytes")
        context = schema.summaries if schema else ()
        lists = schema.list_summaries if schema else ()
        self._context = {
            item.name: RaggedFeature(item.dtype)
            for item in context
            if item.dtype and wanted(item.name)
        }
        self._lists = {
            item.name: RaggedFeature(item.dtype)
            for item in lists
            if item.dtype and wanted(item.name)
        }
        self.features = tuple(
            FeatureStats(name, feature.dtype.__name__, part is self._lists)
            for part in (self._context, self._lists)
            for name, feature in part.items()
        )

    def name_classes(self, shards: Iterable[Item]) -> None:
        """Takes the names of labels' classes from descriptions, unless two of them differ."""
        for figures in self.features:
            known = {tuple(shard.classes.get(figures.name, ())) for shard in shards}
            if len(known) == 1 and not figures.is_list:
                [figures.classes] = known

    def add(self, frames: Frames) -> None:
        """Adds records.

        Raises:
            FeatureError: A record is not a message of this kind: none of its features would count.
        """
        columns = self._columns(frames)
        counts = [values_each(column.nested_row_splits) for column in columns]
        if counts:
            self._check_empty(frames, np.flatnonzero(np.logical_or.reduce(counts) == 0))
        self.records.counts.records += len(frames)
        self.records.numbers.add(frames.lengths)
        for figures, column, each in zip(self.features, columns, counts, strict=True):
            figures.add(column.flat_values, each)

    def _check_empty(self, frames: Frames, rows: npt.NDArray[Any]) -> None:
        """Checks that the records of these rows, which have none of the features, are messages."""
        for row in rows.tolist():
            if kind_of(record := frames[row]) == "bytes":
                number = self.records.counts.records + row
                raise FeatureError(f"{describe_other(record)}: {CAN_COPY}", None, number)

    def _columns(self, frames: Frames) -> list[Any]:
        if self._lists:
            context, lists, _ = parse_sequence_example(
                frames, self._context, self._lists, string_columns=True
            )
            return [*context.values(), *lists.values()]
        return (
            list(parse_example(frames, self._context, string_columns=True).values())
            if self._context
            else []
        )


def values_each(splits: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """The number of values of each record, over all its steps.

    Examples:
        >>> values_each([np.array([0, 2, 3]), np.array([0, 4, 4, 5])]).tolist()
        [4, 1]
    """
    ends = splits[0]
    for inner in splits[1:]:
        ends = inner[ends]
    return np.diff(ends).astype(np.int64)
