"""`streamrec bench`: measures how fast a store delivers objects, and says what to set."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import urandom
from typing import Any, Final
from uuid import uuid4

import click

import streamrec
from streamrec.cli import options
from streamrec.cli.bench_chart import curve, curves_svg
from streamrec.cli.clients import CLIENTS
from streamrec.cli.library import element, page, table
from streamrec.cli.measuring import compare, measure, measure_dataset, sides_of
from streamrec.cli.output import (
    plural,
    print_error,
    print_json,
    print_line,
    print_note,
    print_table,
    progress,
)
from streamrec.cli.reading import map_concurrently, run, take_sample
from streamrec.cli.sources import directory_of, find_records, storages_for
from streamrec.cli.sweep import (
    CONNECTIONS,
    QUANTILES,
    SIZES,
    BenchPlan,
    Condition,
    Measured,
    SideBySide,
    Sweep,
    advice,
    median_of,
    quantile,
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
COMPARED: Final = (
    "requests of",
    "client",
    ">MB/s",
    ">requests",
    ">request 50 %",
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
        "streamrec bench --against s3fs --against obstore s3://bucket/data/",
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
    "--against",
    type=click.Choice(list(CLIENTS)),
    multiple=True,
    callback=lambda _, __, names: tuple(dict.fromkeys(names)),
    help="Let this client make the same requests as streamrec, with the connections at the knee. "
    "May be repeated.",
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
    if plan.caution is not None:
        print_note(plan.caution)
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
        if sweep.comparison is not None:
            print_line("", plural(sweep.comparison.connections, "connection"))
            print_table(COMPARED, compared_rows(sweep.comparison))
            print_line("", *sweep.comparison.said(sweep.best[1]))
    print_note(sweep.read)
    # Last: a job that stops at a missed condition has the figures in its log, and the page.
    failures = [condition.failure(sweep.chosen) for condition in conditions]
    for failure in filter(None, failures):
        print_error(failure)
    if any(failures):
        raise click.exceptions.Exit(1)


def row(sweep: Sweep, connections: int) -> tuple[str, ...]:
    """A row of the table. The columns after the rates are those of the largest requests."""
    cells = [sweep.cells[connections, name] for name in SIZES]
    largest = cells[-1]
    return (
        str(connections),
        *(format_rate(cell.rate) for cell in cells),
        *quantile_cells(largest.first_byte),
        *cpu_cells(largest),
    )


def compared_rows(comparison: SideBySide) -> list[tuple[str, ...]]:
    """The rows of the table that compares clients."""
    return [
        (
            size,
            client,
            format_rate(cell.rate),
            f"{cell.requests:,}",
            *quantile_cells(cell.whole),
            *cpu_cells(cell),
        )
        for (size, client), cell in comparison.cells.items()
    ]


def quantile_cells(seconds: Sequence[float]) -> list[str]:
    """Milliseconds that half, nine tenths and 99 % of the requests did not exceed."""
    waits = [quantile(seconds, share) for share in QUANTILES]
    return ["" if wait is None else f"{wait * 1e3:,.1f} ms" for wait in waits]


def cpu_cells(measured: Measured) -> tuple[str, str]:
    """Processor time for each gigabyte, and the share of a core."""
    return f"{measured.cpu_per_gb:.2f}", f"{measured.core:.0%}"


def format_rate(rate: float) -> str:
    """MB/s. What is slow has a decimal: 1.4 is not 1.

    Examples:
        >>> format_rate(1434.2), format_rate(1.42), format_rate(9.96)
        ('1,434', '1.4', '10')
    """
    return f"{rate:.1f}" if rate < 9.95 else f"{rate:,.0f}"


def conclusions(sweep: Sweep) -> list[str]:
    """The best rate, what to set, how fast records are read with that, and how fast is written."""
    most, name = sweep.best
    best = sweep.cells[sweep.best]
    low, high = format_rate(min(best.rates)), format_rate(max(best.rates))
    spread = f" ({low} to {high})" if len(best.rates) > 1 else ""
    # A data set opens connections as they prove useful, which takes time; a busy core does not wait
    # for them.
    rises = sweep.dataset.rate < sweep.chosen.rate / 2 and sweep.dataset.core < 0.5
    lines = [
        f"the best is {format_rate(best.rate)} MB/s{spread}: {plural(most, 'connection')}, "
        f"requests of {name}, {best.core:.0%} of a core",
        *advice(sweep),
        f"TFRecordDataset(num_parallel_reads={sweep.knee}): {format_rate(sweep.dataset.rate)} "
        f"MB/s in its first {sweep.dataset.seconds:.1f} s, {sweep.dataset.cpu_per_gb:.2f} "
        "CPU-s/GB, every CRC32C checked" + "; a longer --seconds shows how it grows" * rises,
    ]
    if sweep.writing is not None:
        lines.append(
            f"ShardWriter, {plural(WRITTEN_SHARDS, 'shard')} at the same time: "
            f"{format_rate(sweep.writing.rate)} MB/s, {sweep.writing.cpu_per_gb:.2f} CPU-s/GB"
        )
    return lines


def as_page(title: str, sweep: Sweep) -> str:
    """The measurements as an HTML page, with a curve for each size of requests."""
    rows = [row(sweep, connections) for connections in sweep.connections]
    summary = [sweep.summary, *conclusions(sweep)]
    body = [curves_svg(sweep), element("div", table(COLUMNS, rows), kind="wide")]
    if sweep.comparison is not None:
        summary += sweep.comparison.said(sweep.best[1])
        compared = table(COMPARED, compared_rows(sweep.comparison))
        body.append(element("div", compared, kind="wide"))
    return page(title, summary, body)


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
    # Each object is noted before it is written, so that Ctrl-C at any time removes it, too.
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
    plan.check(max(item.size or 0 for item in found))
    sample = await take_sample(found[:1])
    # What does not fit or cannot read is said now, not after half a minute of measuring.
    if plan.against:
        async with sides_of(found, plan.against, 1):
            pass
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
        meter.add(dataset.nbytes)
        comparison = await compare(found, sweep.knee, plan, meter) if plan.against else None
    return replace(sweep, dataset=dataset, comparison=comparison)


def to_json(sweep: Sweep) -> dict[str, Any]:
    """The measurements as an object of JSON."""
    rows = [
        {"connections": connections, "request_bytes": SIZES[name], **cell_json(cell)}
        for (connections, name), cell in sweep.cells.items()
    ]
    compared = []
    if sweep.comparison is not None:
        found = {"connections": sweep.comparison.connections}
        compared = [
            {"client": client, **found, "request_bytes": SIZES[size], **cell_json(cell)}
            for (size, client), cell in sweep.comparison.cells.items()
        ]
    return {
        "measurements": rows,
        "against": compared,
        "knee": sweep.knee,
        "still_growing": sweep.grows,
        "dataset": rates_json(sweep.dataset),
        "writing": None if sweep.writing is None else rates_json(sweep.writing),
    }


def cell_json(cell: Measured) -> dict[str, Any]:
    """What the JSON has for each measurement of requests."""
    times = {"first_byte_seconds": cell.first_byte, "request_seconds": cell.whole}
    return {
        **rates_json(cell),
        "mb_per_second_of_repeats": list(cell.rates),
        **{
            name: None if not found else {str(share): quantile(found, share) for share in QUANTILES}
            for name, found in times.items()
        },
        "requests": cell.requests,
        "retries": cell.retries,
        "throttled": cell.throttled,
    }


def rates_json(of: Measured) -> dict[str, float]:
    """The two figures of a measurement that the JSON has for requests and for records alike."""
    return {"mb_per_second": of.rate, "cpu_seconds_per_gb": of.cpu_per_gb}


def to_csv(sweep: Sweep) -> str:
    """The measurements of requests as CSV, with a line of names.

    `client` is empty for those of the sweep. Times to the first byte are empty for other clients.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    percents = [f"p{share * 100:.0f}_ms" for share in QUANTILES]
    names = ["connections", "request_bytes", "mb_s", "least_mb_s", "most_mb_s", "cpu_s_gb"]
    counts = ["requests", "retries", "throttled"]
    whole = [f"request_{name}" for name in percents]
    lines.writerow([*names, *counts, *percents, *whole, "client"])
    rows = [("", connections, name, cell) for (connections, name), cell in sweep.cells.items()]
    if sweep.comparison is not None:
        for (name, client), cell in sweep.comparison.cells.items():
            rows.append((client, sweep.comparison.connections, name, cell))
    for client, connections, name, cell in rows:
        figures = (cell.rate, min(cell.rates), max(cell.rates), cell.cpu_per_gb)
        waits = [
            quantile(found, share) for found in (cell.first_byte, cell.whole) for share in QUANTILES
        ]
        lines.writerow(
            [
                connections,
                SIZES[name],
                *(f"{figure:.4g}" for figure in figures),
                cell.requests,
                cell.retries,
                cell.throttled,
                *("" if wait is None else f"{1000 * wait:.4g}" for wait in waits),
                client,
            ]
        )
    return text.getvalue()
