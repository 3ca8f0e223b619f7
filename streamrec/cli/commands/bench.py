"""`streamrec bench`: measures how fast a store delivers objects, and says what to set."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import count, islice
from os import urandom
from typing import Any, Final
from uuid import uuid4

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.bench_chart import curve, curves_svg
from streamrec.cli.library import Storage, element, page, table
from streamrec.cli.output import (
    Meter,
    plural,
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
    progress,
)
from streamrec.cli.reading import batches, map_concurrently, run, take_sample
from streamrec.cli.sources import Item, directory_of, find_records, storages_for
from streamrec.cli.sweep import (
    CONNECTIONS,
    QUANTILES,
    SIZES,
    BenchPlan,
    Condition,
    Measured,
    Sweep,
    median_of,
)
from streamrec.cli.writing import temporary_objects, write_text

WRITTEN_SHARDS: Final = 8
COLUMNS: Final = (
    "connections",
    *(f">{name}" for name in SIZES),
    ">first byte 50 %",
    ">90 %",
    ">99 %",
    ">CPU-s/GB",
    ">core",
)


def parse_connections(_: click.Context, __: click.Parameter, text: str) -> tuple[int, ...]:
    """The numbers of connections, ascending.

    Examples:
        >>> parse_connections(None, None, "16,1,4")
        (1, 4, 16)
    """
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or numbers[0] < 1 or numbers[-1] > 1024:
        raise click.BadParameter(f"{text!r}: write numbers from 1 to 1024, such as 1,8,64")
    return tuple(numbers)


def parse_conditions(
    _: click.Context, __: click.Parameter, texts: tuple[str, ...]
) -> tuple[Condition, ...]:
    """The conditions of `--fail-if`."""
    return tuple(map(Condition.parse, texts))


@click.command(
    "bench",
    epilog=options.examples(
        "streamrec bench 's3://bucket/train-*.tfrecord'",
        "streamrec bench --write s3://bucket/scratch/",
        "streamrec bench --budget 500MB --fail-if 'p99 > 80ms' s3://bucket/data/",
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
    "--repeats",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How often each measurement is made. The median counts.",
)
@click.option(
    "--connections",
    metavar="N,N",
    default=",".join(map(str, CONNECTIONS)),
    show_default=True,
    callback=parse_connections,
    help="Numbers of connections to try.",
)
@click.option(
    "--budget",
    metavar="SIZE",
    default="2GB",
    show_default=True,
    callback=options.parse_size,
    help="Read at most so many bytes.",
)
@click.option(
    "--fail-if",
    "conditions",
    metavar="CONDITION",
    multiple=True,
    callback=parse_conditions,
    help="Exit with 1 if this is true at the knee: p50, p90, p99 (ms), mb_s or cpu_s_gb, as in "
    "'p99 > 80ms'. May be repeated.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Write test objects (256 MB) below SOURCE, a directory, measure that, too, and remove "
    "them.",
)
@options.file_option("--html", help="Also write a page with the curves to FILE, a path or URL.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the measurements as CSV.")
@options.as_json
@options.source_options
def bench_command(
    sources: options.Sources,
    write: bool,
    html: str | None,
    as_csv: bool,
    as_json: bool,
    conditions: tuple[Condition, ...],
    **wanted: Any,
) -> None:
    """Reads ranges of objects with 1 to 32 connections, in requests of 64 KiB to 4 MiB.

    It reads the objects of SOURCE. With --write, it writes test objects first and removes them
    afterwards, even after Ctrl-C. It says first how much it will read, and at the end how much it
    has read.

    Shows MB/s, the time to the first byte, and processor seconds per gigabyte; says how many
    connections are enough, and how fast streamrec reads the same objects as records.
    """
    plan = BenchPlan(**wanted)
    print_note(plan)
    work = sweep_written if write else sweep_store
    sweep = run(work(sources, plan, sources.storage_options))
    if html is not None:
        page = as_page(", ".join(sources), sweep)
        run(write_text(html, page, [item.path for item in sweep.objects], sources.storage_options))
    if as_json:
        print_json(to_json(sweep))
    elif as_csv:
        print_line(*to_csv(sweep).splitlines())
    else:
        print_line(sweep.summary)
        print_table(COLUMNS, [row(sweep, connections) for connections in sweep.connections])
        click.echo()
        print_line(*curve(sweep), "", *conclusions(sweep))
    print_note(sweep.read)
    failures = [condition.failure(sweep.chosen) for condition in conditions]
    for failure in filter(None, failures):
        print_error(failure)
    if any(failures):
        raise click.exceptions.Exit(1)


def row(sweep: Sweep, connections: int) -> tuple[str, ...]:
    """A row of the table. The columns after the rates are those of the largest requests."""
    cells = [sweep.cells[connections, name] for name in SIZES]
    largest = cells[-1]
    waits = [largest.quantile(share) for share in QUANTILES]
    return (
        str(connections),
        *(f"{cell.rate:,.0f}" for cell in cells),
        *("" if wait is None else f"{wait * 1e3:,.1f} ms" for wait in waits),
        f"{largest.cpu_per_gb:.2f}",
        f"{largest.core:.0%}",
    )


def conclusions(sweep: Sweep) -> list[str]:
    """The best rate, what to set, how fast records are read with that, and how fast is written."""
    most, name = sweep.best
    best = sweep.cells[sweep.best]
    spread = f" ({min(best.rates):,.0f} to {max(best.rates):,.0f})" if len(best.rates) > 1 else ""
    found = f"the knee is at {plural(sweep.knee, 'connection')}"
    if sweep.grows:
        found = (
            f"the knee is at more than {most}: try --connections {most},{2 * most},{4 * most}; "
            "until then"
        )
    lines = [
        f"the best is {best.rate:,.0f} MB/s{spread}: {plural(most, 'connection')}, requests of "
        f"{name}, {best.core:.0%} of a core",
        f"{found}: set num_parallel_reads={sweep.knee}",
        f"TFRecordDataset(num_parallel_reads={sweep.knee}): {sweep.dataset.rate:,.0f} MB/s, "
        f"{sweep.dataset.cpu_per_gb:.2f} CPU-s/GB, every CRC32C checked",
    ]
    if sweep.writing is not None:
        lines.append(
            f"ShardWriter, {plural(WRITTEN_SHARDS, 'shard')} at the same time: "
            f"{sweep.writing.rate:,.0f} MB/s, {sweep.writing.cpu_per_gb:.2f} CPU-s/GB"
        )
    return lines


def as_page(title: str, sweep: Sweep) -> str:
    """The measurements as an HTML page, with a curve for each size of requests."""
    rows = [row(sweep, connections) for connections in sweep.connections]
    rates = element("div", table(COLUMNS, rows), kind="wide")
    return page(title, [sweep.summary, *conclusions(sweep)], [curves_svg(sweep), rates])


async def sweep_written(
    sources: Sequence[str], plan: BenchPlan, storage_options: Mapping[str, Any]
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

            async def write(path: str) -> None:
                written.append(path)
                async with streamrec.ShardWriter(path, storage_options=storage_options) as writer:
                    await writer.write_batch(frames)
                meter.add(frames.nbytes)

            began = time.perf_counter()
            cpu = time.process_time()
            await map_concurrently(write, paths, WRITTEN_SHARDS)
            writing = Measured(
                nbytes=frames.nbytes * WRITTEN_SHARDS,
                seconds=time.perf_counter() - began,
                cpu_seconds=time.process_time() - cpu,
            )
        return replace(await sweep_store(paths, plan, storage_options), writing=writing)


async def sweep_store(
    sources: Sequence[str], plan: BenchPlan, storage_options: Mapping[str, Any]
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
    with progress("measuring", plan.budget) as meter:
        for connections in plan.connections:
            for name, size in SIZES.items():
                repeats = [
                    await measure(found, connections, size, plan) for _ in range(plan.repeats)
                ]
                meter.add(sum(measured.nbytes for measured in repeats))
                cells[connections, name] = median_of(repeats)
    sweep = Sweep(objects=found, cells=cells)
    dataset = await measure_dataset(found, sweep.knee, sample.record_bytes, plan)
    return replace(sweep, dataset=dataset)


def to_json(sweep: Sweep) -> dict[str, Any]:
    """The measurements as an object of JSON."""
    rows = [
        {
            "connections": connections,
            "request_bytes": SIZES[name],
            **rates_json(cell),
            "mb_per_second_of_repeats": list(cell.rates),
            "first_byte_seconds": None
            if cell.first_byte is None
            else {str(share): cell.quantile(share) for share in QUANTILES},
            "requests": cell.requests,
            "retries": cell.retries,
        }
        for (connections, name), cell in sweep.cells.items()
    ]
    return {
        "measurements": rows,
        "knee": sweep.knee,
        "still_growing": sweep.grows,
        "dataset": rates_json(sweep.dataset),
        "writing": None if sweep.writing is None else rates_json(sweep.writing),
    }


def to_csv(sweep: Sweep) -> str:
    """The measurements of requests as CSV, with a line of names."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    quantiles = [f"p{share * 100:.0f}_ms" for share in QUANTILES]
    names = ["connections", "request_bytes", "mb_s", "least_mb_s", "most_mb_s", "cpu_s_gb"]
    lines.writerow([*names, "requests", "retries", *quantiles])
    for (connections, name), cell in sweep.cells.items():
        waits = [cell.quantile(share) for share in QUANTILES]
        figures = (cell.rate, min(cell.rates), max(cell.rates), cell.cpu_per_gb)
        lines.writerow(
            [
                connections,
                SIZES[name],
                *(f"{figure:.4g}" for figure in figures),
                cell.requests,
                cell.retries,
                *("" if wait is None else f"{1000 * wait:.4g}" for wait in waits),
            ]
        )
    return text.getvalue()


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


async def measure(
    objects: Sequence[Item], connections: int, size: int, plan: BenchPlan
) -> Measured:
    """Reads ranges of `size` bytes, with `connections` at the same time.

    It ends when the plan's seconds are over, or its share of the budget. A range of up to 4 MiB is
    one request.
    """
    ranges = islice(ranges_of(objects, size), plan.requests(size))
    meter = Meter()
    async with storages_for(objects[0].storage_options) as storages:
        storage = await storages.at(objects[0].path)
        began = time.perf_counter()
        cpu = time.process_time()

        # Each worker reads into one buffer of its own: memory is not what is measured here.
        async def work(_: int) -> None:
            buffer = memoryview(bytearray(size))
            while time.perf_counter() < began + plan.seconds:
                path, start, end = next(ranges, ("", 0, 0))
                if not path:
                    return
                meter.add(end - start)
                await read(storage, path, start, end, buffer)

        await map_concurrently(work, range(connections), connections)
        took = time.perf_counter() - began
        cpu_seconds = time.process_time() - cpu
        counts = list(storages.statistics.snapshot().backends.values())
    retries = sum(sum(item.retries.values()) + item.hedges for item in counts)
    return Measured(
        nbytes=meter.done,
        seconds=took,
        cpu_seconds=cpu_seconds,
        first_byte=counts[0].first_byte if counts else None,
        requests=sum(item.requests for item in counts),
        retries=retries,
    )


async def measure_dataset(
    objects: Sequence[Item], reads: int, record_bytes: float, plan: BenchPlan
) -> Measured:
    """Reads shards as a training loop does, with every CRC32C checked.

    It takes twice the plan's seconds, or four shares of the budget, and begins again at the end of
    short shards.
    """
    seconds = 2 * plan.seconds
    most = 4 * plan.share
    began = time.perf_counter()
    cpu = time.process_time()
    meter = Meter()
    while time.perf_counter() < began + seconds and meter.done < most:
        async with aclosing(
            batches(objects, record_bytes, meter, num_parallel_reads=reads)
        ) as taken:
            async for _ in taken:
                if time.perf_counter() > began + seconds or meter.done >= most:
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
