"""`streamrec bench`: measures how fast a store delivers objects, and says what to set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from os import urandom
from typing import Any, Final
from uuid import uuid4

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.output import (
    Meter,
    format_bytes,
    plural,
    print_json,
    print_line,
    print_table,
    progress,
)
from streamrec.cli.reading import batches, map_concurrently, run, take_sample, total_bytes
from streamrec.cli.sources import Item, directory_of, find_records, storages_for
from streamrec.cli.writing import temporary_objects, write_text
from streamrec.html import element, page, table
from streamrec.storage import Distribution, Storage

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
SIZES: Final = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
QUANTILES: Final = (0.5, 0.9, 0.99)
WRITTEN_SHARDS: Final = 8
COLUMNS: Final = (
    "connections",
    *(f">{name}" for name in SIZES),
    ">first byte 50 %",
    ">90 %",
    ">99 %",
    ">CPU-s/GB",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
        nbytes: Bytes that arrived.
        seconds: The time they took.
        cpu_seconds: Processor time that this process spent on them.
        first_byte: How long requests took to their first byte; None where that was not measured.
        retries: Requests that were made again, or sent because another was late.
    """

    nbytes: int
    seconds: float
    cpu_seconds: float
    first_byte: Distribution | None = None
    retries: int = 0

    @property
    def rate(self) -> float:
        """Megabytes (10**6) a second."""
        return self.nbytes / self.seconds / 1e6

    @property
    def cpu_per_gb(self) -> float:
        """Seconds of processor time for each gigabyte (10**9)."""
        return self.cpu_seconds / self.nbytes * 1e9 if self.nbytes else 0.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """All measurements of one run.

    Attributes:
        objects: The objects that were read.
        cells: The measurements by the number of connections and the name of the request size.
        dataset: The same objects read as records, with the connections at the knee.
    """

    objects: Sequence[Item]
    cells: Mapping[tuple[int, str], Measured]
    dataset: Measured = Measured(nbytes=0, seconds=1.0, cpu_seconds=0.0)

    @property
    def summary(self) -> str:
        """The line above the table: the objects, and what the numbers are."""
        return (
            f"{plural(len(self.objects), 'object')}, {format_bytes(total_bytes(self.objects))}; "
            "MB/s by request size"
        )

    @property
    def best(self) -> tuple[int, str]:
        """The number of connections and the name of the request size with the highest rate."""
        return max(self.cells, key=lambda cell: self.cells[cell].rate)

    def rates(self, name: str) -> dict[int, float]:
        """MB/s by the number of connections, for requests of one size."""
        return {connections: self.cells[connections, name].rate for connections in CONNECTIONS}

    @property
    def knee(self) -> int:
        """The number of connections that is enough for requests of the best size."""
        return knee(self.rates(self.best[1]))

    def row(self, connections: int) -> tuple[str, ...]:
        """A row of the table. The columns after the rates are those of the largest requests."""
        cells = [self.cells[connections, name] for name in SIZES]
        first = cells[-1].first_byte
        waits = [
            "" if first is None else f"{first.quantile(share) * 1e3:,.1f} ms" for share in QUANTILES
        ]
        return (
            str(connections),
            *(f"{cell.rate:,.0f}" for cell in cells),
            *waits,
            f"{cells[-1].cpu_per_gb:.2f}",
        )


@click.command(
    "bench",
    epilog=options.examples(
        "streamrec bench 's3://bucket/train-*.tfrecord'",
        "streamrec bench --write s3://bucket/scratch/",
    ),
)
@options.sources
@click.option(
    "--seconds",
    type=click.FloatRange(0.05),
    default=1.0,
    show_default=True,
    help="Duration of each measurement.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Write test objects (256 MB) below SOURCE, a directory, and remove them.",
)
@options.file_option("--html", help="Also write a page with the curves to FILE, a path or URL.")
@options.as_json
@options.source_options
def bench_command(
    sources: options.Sources, seconds: float, write: bool, html: str | None, as_json: bool
) -> None:
    """Reads ranges of objects with 1 to 32 connections, in requests of 64 KiB to 4 MiB.

    It reads the objects of SOURCE. With --write, it writes test objects first and removes them
    afterwards, even after Ctrl-C.

    Shows MB/s, the time to the first byte, and processor seconds per gigabyte; says how many
    connections are enough, and how fast streamrec reads the same objects as records.
    """
    work = sweep_written if write else sweep_store
    sweep = run(work(sources, seconds, sources.storage_options))
    if html is not None:
        page = as_page(", ".join(sources), sweep)
        run(write_text(html, page, [item.path for item in sweep.objects], sources.storage_options))
    if as_json:
        print_json(to_json(sweep))
        return
    print_line(sweep.summary)
    print_table(COLUMNS, map(sweep.row, CONNECTIONS))
    click.echo()
    print_line(*curve(sweep), "", *conclusions(sweep))


def curve(sweep: Sweep) -> list[str]:
    """Lines of text: a bar for each number of connections, with requests of the best size."""
    rates = sweep.rates(sweep.best[1])
    most = sweep.cells[sweep.best].rate or 1.0
    width = len(f"{most:,.0f}")
    marks = {sweep.knee: "  the knee"}
    lines = [
        f"{connections:>11}  {rate:>{width},.0f} MB/s  "
        f"{bar(rate / most, 40)}{marks.get(connections, '')}"
        for connections, rate in rates.items()
    ]
    return [f"requests of {sweep.best[1]}", *lines]


def conclusions(sweep: Sweep) -> list[str]:
    """Three lines: the best rate, what to set, and how fast records are read with that."""
    most, name = sweep.best
    best = sweep.cells[sweep.best]
    return [
        f"the best is {best.rate:,.0f} MB/s: {plural(most, 'connection')}, requests of {name}",
        f"the knee is at {plural(sweep.knee, 'connection')}: set num_parallel_reads={sweep.knee}",
        f"TFRecordDataset(num_parallel_reads={sweep.knee}): {sweep.dataset.rate:,.0f} MB/s, "
        f"{sweep.dataset.cpu_per_gb:.2f} CPU-s/GB, every CRC32C checked",
    ]


def as_page(title: str, sweep: Sweep) -> str:
    """The measurements as an HTML page, with a curve for each size of requests."""
    rates = element("div", table(COLUMNS, map(sweep.row, CONNECTIONS)), kind="wide")
    return page(title, [sweep.summary, *conclusions(sweep)], [curves_svg(sweep), rates])


def bar(share: float, width: int) -> str:
    """A bar of text that fills this share of `width` characters, to an eighth of a character.

    Examples:
        >>> bar(1.0, 4), bar(0.4, 4), bar(0.0, 4)
        ('████', '█▋', '')
    """
    whole, eighths = divmod(round(share * width * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[eighths].strip()


def curves_svg(sweep: Sweep) -> str:
    """An SVG image: for each size of requests, a curve of MB/s by the number of connections.

    A vertical line marks the knee.
    """
    best = sweep.cells[sweep.best].rate or 1.0
    base = 206
    height = 188
    at = {connections: 10 + 90 * number for number, connections in enumerate(CONNECTIONS)}
    knee = at[sweep.knee]
    parts = [
        f'<line class="axis" x1="0" y1="{base}" x2="520" y2="{base}"/>',
        f'<line class="axis" x1="{knee}" y1="{base - height}" x2="{knee}" y2="{base}" '
        'stroke-dasharray="3 3"/>',
        f'<text x="{knee}" y="{base - height - 6}" text-anchor="middle">knee</text>',
        *(
            f'<text x="{x}" y="{base + 14}" text-anchor="middle">{number}</text>'
            for number, x in at.items()
        ),
        f'<text x="520" y="{base + 30}" text-anchor="end">connections; the highest point: '
        f"{best:,.0f} MB/s</text>",
    ]
    below = float(base)
    # From below, so that no name is written over another.
    for name in sorted(SIZES, key=lambda name: sweep.rates(name)[CONNECTIONS[-1]]):
        points = [
            (at[number], base - height * rate / best, number, rate)
            for number, rate in sweep.rates(name).items()
        ]
        parts.append(
            f'<polyline class="curve" points="{" ".join(f"{x},{y:.1f}" for x, y, *_ in points)}"/>'
        )
        for x, y, number, rate in points:
            tip = f"{name}, {number} connections: {rate:,.0f} MB/s"
            parts.append(
                f'<circle class="bar" cx="{x}" cy="{y:.1f}" r="3"><title>{tip}</title></circle>'
            )
        below = min(points[-1][1], below - 12)
        parts.append(f'<text x="468" y="{below + 4:.1f}">{name}</text>')
    label = "MB/s by connections, a curve for each size of requests"
    return "\n".join(
        [f'<svg viewBox="0 0 520 240" role="img" aria-label="{label}">', *parts, "</svg>"]
    )


async def sweep_written(
    sources: Sequence[str], seconds: float, storage_options: Mapping[str, Any]
) -> Sweep:
    """Writes shards below the directory that was typed, measures with them, and removes them."""
    folder = directory_of(sources[0])
    if folder is None or len(sources) > 1:
        raise click.UsageError("--write takes one directory: a URL that ends in /")
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


async def sweep_store(
    sources: Sequence[str], seconds: float, storage_options: Mapping[str, Any]
) -> Sweep:
    """Measures with the objects that the names stand for.

    Raises:
        click.UsageError: All of them are empty or of unknown size.
    """
    async with storages_for(storage_options) as storages:
        found = [item for item in await find_records(storages, sources) if item.size]
    if not found:
        raise click.UsageError("these objects are empty, or their sizes are unknown: name others")
    sample = await take_sample(found)
    cells = {}
    with progress("measuring", None) as meter:
        for connections in CONNECTIONS:
            for name, size in SIZES.items():
                cell = cells[connections, name] = await measure(found, connections, size, seconds)
                meter.add(cell.nbytes)
    reads = Sweep(found, cells).knee
    dataset = await measure_dataset(found, reads, sample.record_bytes, 2 * seconds)
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
    """The measurements as an object of JSON."""
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
    """The two figures of a measurement that the JSON has for requests and for records alike."""
    return {"mb_per_second": of.rate, "cpu_seconds_per_gb": of.cpu_per_gb}


def ranges_of(objects: Sequence[Item], size: int) -> Iterator[tuple[str, int, int]]:
    """Ranges of `size` bytes of all objects in turn, endlessly: path, start and end.

    A shorter object is one range.

    Examples:
        >>> found = ranges_of([Item(path="a", size=25), Item(path="b", size=5)], 10)
        >>> [part for part, _ in zip(found, range(4))]
        [('a', 0, 10), ('b', 0, 5), ('a', 10, 20), ('a', 0, 10)]
    """
    for step in count():
        whole = max(1, max(item.size or 0 for item in objects) // size)
        start = step % whole * size
        for item in objects:
            if start + size <= (item.size or 0) or start == 0:
                yield item.path, start, min(start + size, item.size or 0)


async def measure(objects: Sequence[Item], connections: int, size: int, seconds: float) -> Measured:
    """Reads ranges of `size` bytes for `seconds`, with `connections` at the same time.

    A range of up to 4 MiB is one request.
    """
    ranges = ranges_of(objects, size)
    async with storages_for(objects[0].storage_options) as storages:
        storage = await storages.at(objects[0].path)
        began = time.perf_counter()
        cpu = time.process_time()

        # Each worker reads into one buffer of its own: memory is not what is measured here.
        async def work(_: int) -> int:
            buffer = memoryview(bytearray(size))
            done = 0
            while time.perf_counter() < began + seconds:
                done += await read(storage, *next(ranges), buffer)
            return done

        nbytes = sum(await map_concurrently(work, range(connections), connections))
        took = time.perf_counter() - began
        cpu_seconds = time.process_time() - cpu
        counts = list(storages.statistics.snapshot().backends.values())
    retries = sum(sum(item.retries.values()) + item.hedges for item in counts)
    return Measured(
        nbytes=nbytes,
        seconds=took,
        cpu_seconds=cpu_seconds,
        first_byte=counts[0].first_byte if counts else None,
        retries=retries,
    )


async def measure_dataset(
    objects: Sequence[Item], reads: int, record_bytes: float, seconds: float
) -> Measured:
    """Reads shards as a training loop does, with every CRC32C checked, for `seconds`.

    It begins again at the end of short shards.
    """
    began = time.perf_counter()
    cpu = time.process_time()
    meter = Meter()
    while time.perf_counter() < began + seconds:
        async with aclosing(
            batches(objects, record_bytes, meter, num_parallel_reads=reads)
        ) as taken:
            async for _ in taken:
                if time.perf_counter() > began + seconds:
                    break
    return Measured(
        nbytes=meter.done,
        seconds=time.perf_counter() - began,
        cpu_seconds=time.process_time() - cpu,
    )


async def read(storage: Storage, path: str, start: int, end: int, buffer: memoryview) -> int:
    """Reads a range into the buffer; returns the number of bytes.

    Raises:
        StorageError: The object ends within the range.
    """
    stream = await storage.stream(path, start, end)
    try:
        filled = 0
        while filled < end - start:
            got = await stream.readinto(buffer[filled : end - start])
            if not got:
                raise streamrec.StorageError(
                    "the object ends before its size: was it replaced? list it again", path
                )
            filled += got
        return filled
    finally:
        await stream.aclose()
