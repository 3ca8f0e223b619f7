"""`streamrec bench`: how fast a store gives what is there, and what to set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import urandom
from typing import Any, Final
from uuid import uuid4

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.measuring import Measured, measure, measure_dataset
from streamrec.cli.output import format_bytes, plural, print_json, print_line, progress
from streamrec.cli.reading import run, take_sample, total_bytes
from streamrec.cli.rendering import print_table
from streamrec.cli.sources import Item, directory_of, find_records, storages_for
from streamrec.cli.writing import temporary_objects, write_text
from streamrec.html import element, page, table

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
SIZES: Final = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
QUANTILES: Final = (0.5, 0.9, 0.99)
WRITTEN_SHARDS: Final = 8
COLUMNS: Final = ("connections", *(f">{name}" for name in SIZES), ">first byte 50 %", ">90 %", ">99 %", ">CPU-s/GB")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was measured."""

    objects: Sequence[Item]
    cells: Mapping[tuple[int, str], Measured]
    dataset: Measured = Measured(0, 1.0, 0.0)

    @property
    def summary(self) -> str:
        """The objects in a line, and what the table shows of them."""
        return f"{plural(len(self.objects), 'object')}, {format_bytes(total_bytes(self.objects))}; MB/s by request size"

    @property
    def best(self) -> tuple[int, str]:
        """The connections and the name of the size that gave most."""
        return max(self.cells, key=lambda cell: self.cells[cell].rate)

    def rates(self, name: str) -> dict[int, float]:
        """MB/s by connections, of requests of one size."""
        return {connections: self.cells[connections, name].rate for connections in CONNECTIONS}

    @property
    def knee(self) -> int:
        """The knee of the best size."""
        return knee(self.rates(self.best[1]))

    def row(self, connections: int) -> tuple[str, ...]:
        """A line of the table; what follows the rates is of the largest requests."""
        cells = [self.cells[connections, name] for name in SIZES]
        first = cells[-1].first_byte
        waits = ["" if first is None else f"{first.quantile(share) * 1e3:,.1f} ms" for share in QUANTILES]
        return str(connections), *(f"{cell.rate:,.0f}" for cell in cells), *waits, f"{cells[-1].cpu_per_gb:.2f}"


@click.command(
    "bench",
    epilog=options.examples(
        "streamrec bench 's3://bucket/train-*.tfrecord'", "streamrec bench --write s3://bucket/scratch/"
    ),
)
@options.sources
@click.option("--seconds", type=click.FloatRange(0.05), default=1.0, show_default=True, help="For each measurement.")
@click.option("--write", is_flag=True, help="Write objects (256 MB) below SOURCE, a directory; remove them at the end.")
@click.option("--html", metavar="FILE", help="Write a page with the curves there, too; any URL.")
@options.as_json
@options.storage_options
def bench_command(
    sources: Sequence[str],
    seconds: float,
    write: bool,
    html: str | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Reads ranges of objects with 1 to 32 connections, in requests of 64 KiB to 4 MiB.

    The objects are there already, or are written for this with --write, and removed again, also on Ctrl-C.

    Shows megabytes a second, the time to the first byte, and processor seconds for each gigabyte; says where more
    connections bring little, and how fast streamrec reads the same objects as records.
    """
    work = sweep_written if write else sweep_store
    sweep = run(work(sources, seconds, storage_options))
    if html is not None:
        page = as_page(", ".join(sources), sweep)
        run(write_text(html, page, [item.path for item in sweep.objects], storage_options))
    if as_json:
        print_json(to_json(sweep))
        return
    print_line(sweep.summary)
    print_table(COLUMNS, map(sweep.row, CONNECTIONS))
    click.echo()
    print_line(*curve(sweep), "", *conclusions(sweep))


def curve(sweep: Sweep) -> list[str]:
    """A bar for each number of connections, with requests of the best size."""
    rates, most = sweep.rates(sweep.best[1]), sweep.cells[sweep.best].rate or 1.0
    width = len(f"{most:,.0f}")
    marks = {sweep.knee: "  the knee"}
    lines = [
        f"{connections:>11}  {rate:>{width},.0f} MB/s  {bar(rate / most, 40)}{marks.get(connections, '')}"
        for connections, rate in rates.items()
    ]
    return [f"requests of {sweep.best[1]}", *lines]


def conclusions(sweep: Sweep) -> list[str]:
    """What follows from it."""
    (most, name), best = sweep.best, sweep.cells[sweep.best]
    return [
        f"the best is {best.rate:,.0f} MB/s: {plural(most, 'connection')}, requests of {name}",
        f"the knee is at {plural(sweep.knee, 'connection')}: set num_parallel_reads={sweep.knee}",
        f"TFRecordDataset(num_parallel_reads={sweep.knee}): {sweep.dataset.rate:,.0f} MB/s, "
        f"{sweep.dataset.cpu_per_gb:.2f} CPU-s/GB, every CRC32C checked",
    ]


def as_page(title: str, sweep: Sweep) -> str:
    """The same as an HTML page, with a curve for each size of requests."""
    rates = element("div", table(COLUMNS, map(sweep.row, CONNECTIONS)), kind="wide")
    return page(title, [sweep.summary, *conclusions(sweep)], [curves_svg(sweep), rates])


def bar(share: float, width: int) -> str:
    """A bar that takes this share of `width` characters, to an eighth of one.

    Examples:
        >>> bar(1.0, 4), bar(0.4, 4), bar(0.0, 4)
        ('████', '█▋', '')
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def curves_svg(sweep: Sweep) -> str:
    """A curve for each size of requests: its MB/s by ascending numbers of connections; a line marks the knee."""
    best, base, height = sweep.cells[sweep.best].rate or 1.0, 206, 188
    at = {connections: 10 + 90 * number for number, connections in enumerate(CONNECTIONS)}
    knee = at[sweep.knee]
    parts = [
        f'<line class="axis" x1="0" y1="{base}" x2="520" y2="{base}"/>',
        f'<line class="axis" x1="{knee}" y1="{base - height}" x2="{knee}" y2="{base}" stroke-dasharray="3 3"/>',
        f'<text x="{knee}" y="{base - height - 6}" text-anchor="middle">knee</text>',
        *(f'<text x="{x}" y="{base + 14}" text-anchor="middle">{number}</text>' for number, x in at.items()),
        f'<text x="520" y="{base + 30}" text-anchor="end">connections; the highest point: {best:,.0f} MB/s</text>',
    ]
    below = float(base)
    for name in sorted(SIZES, key=lambda name: sweep.rates(name)[CONNECTIONS[-1]]):  # from below: no name over another
        points = [(at[number], base - height * rate / best, number, rate) for number, rate in sweep.rates(name).items()]
        parts.append(f'<polyline class="curve" points="{" ".join(f"{x},{y:.1f}" for x, y, *_ in points)}"/>')
        for x, y, number, rate in points:
            tip = f"{name}, {number} connections: {rate:,.0f} MB/s"
            parts.append(f'<circle class="bar" cx="{x}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>')
        below = min(points[-1][1], below - 12)
        parts.append(f'<text x="468" y="{below + 4:.1f}">{name}</text>')
    label = "MB/s by connections, a curve for each size of requests"
    return "\n".join([f'<svg viewBox="0 0 520 240" role="img" aria-label="{label}">', *parts, "</svg>"])


async def sweep_written(sources: Sequence[str], seconds: float, storage_options: Mapping[str, Any]) -> Sweep:
    """Writes shards below the one directory that was named, measures with them, and removes them."""
    folder = directory_of(sources[0])
    if folder is None or len(sources) > 1:
        raise click.UsageError("--write wants one directory: a URL that ends in /")
    name = f"{folder}streamrec-bench-{uuid4().hex[:8]}"
    paths = [f"{name}-{number}.tfrecord" for number in range(WRITTEN_SHARDS)]
    frames = streamrec.Frames.of([urandom(100_000)] * 320)
    async with temporary_objects(storage_options) as written:
        with progress("writing", frames.nbytes * WRITTEN_SHARDS) as meter:
            for path in paths:
                written.append(path)
                async with streamrec.ShardWriter(path, storage_options=storage_options) as writer:
                    await writer.write_batch(frames)
                meter.add(frames.nbytes)
        return await sweep_store(paths, seconds, storage_options)


async def sweep_store(sources: Sequence[str], seconds: float, storage_options: Mapping[str, Any]) -> Sweep:
    async with storages_for(storage_options) as storages:
        found = [item for item in await find_records(storages, sources) if item.size]
    if not found:
        raise click.UsageError("these objects are empty, or their sizes are unknown: name others")
    sample = await take_sample(found, storage_options)
    cells = {}
    with progress("measuring", None) as meter:
        for connections in CONNECTIONS:
            for name, size in SIZES.items():
                cell = cells[connections, name] = await measure(found, connections, size, seconds, storage_options)
                meter.add(cell.nbytes)
    reads = Sweep(found, cells).knee
    dataset = await measure_dataset(found, reads, sample.record_bytes, 2 * seconds, storage_options)
    return Sweep(found, cells, dataset)


def knee(rates: Mapping[int, float]) -> int:
    """The fewest connections that give nine tenths of the best rate.

    Examples:
        >>> knee({1: 60, 2: 118, 4: 230, 8: 300, 16: 310})
        8
    """
    best = max(rates.values())
    return min(connections for connections, rate in rates.items() if rate >= 0.9 * best)


def to_json(sweep: Sweep) -> dict[str, Any]:
    """All of it as an object of JSON."""
    rows = [
        {
            "connections": connections,
            "request_bytes": SIZES[name],
            **rates_json(cell),
            "first_byte_seconds": None
            if cell.first_byte is None
            else {str(share): cell.first_byte.quantile(share) for share in QUANTILES},
            "retries": cell.retries,
        }
        for (connections, name), cell in sweep.cells.items()
    ]
    return {"measurements": rows, "knee": sweep.knee, "dataset": rates_json(sweep.dataset)}


def rates_json(of: Measured) -> dict[str, float]:
    return {"mb_per_second": of.rate, "cpu_seconds_per_gb": of.cpu_per_gb}
