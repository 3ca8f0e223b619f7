"""`streamrec cache`: shows, fills and empties a cache on a local disk."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final

import click

from streamrec.cli import options
from streamrec.cli.library import CachedSet, Storages, list_cache, trim_cache
from streamrec.cli.output import (
    Meter,
    format_bytes,
    plural,
    print_json,
    print_line,
    print_note,
    print_table,
    progress,
)
from streamrec.cli.reading import map_concurrently, run, total_bytes
from streamrec.cli.sources import Item, find_records

READ_BYTES: Final = 1 << 20
"""Bytes that are read at a time."""


@click.command(
    "cache",
    epilog=options.examples(
        "streamrec cache /nvme/streamrec",
        "streamrec cache /nvme/streamrec --trim 100GB",
        "streamrec cache /nvme/streamrec --limit 500GB --warm 's3://bucket/train-*'",
    ),
)
@click.argument("directory", shell_complete=options.complete_files)
@click.option("--clear", is_flag=True, help="Remove everything that no running process uses.")
@click.option(
    "--trim",
    metavar="SIZE",
    callback=options.parse_size,
    help="Remove what was used longest ago, until the cache takes at most this, such as 100GB.",
)
@click.option(
    "--warm",
    metavar="SOURCE",
    multiple=True,
    help="Read these shards, so that a job finds them here. May be repeated.",
)
@click.option(
    "--limit",
    metavar="SIZE",
    envvar="STREAMREC_CACHE_BYTES",
    help="With --warm: how many bytes the cache may take, such as 500GB.",
)
@options.as_json
@options.storage_options
def cache_command(
    directory: str,
    clear: bool,
    trim: int | None,
    warm: tuple[str, ...],
    limit: str | None,
    as_json: bool,
    storage_options: Mapping[str, Any],
) -> None:
    """Lists what the cache in DIRECTORY holds: data sets, sizes and ages.

    The cache is what `cache_dir` in the storage options of a run names. What a running process uses
    is never removed.
    """
    if warm:
        if limit is None:
            raise click.UsageError(
                "--warm needs --limit, how many bytes the cache may take, such as --limit 500GB"
            )
        cached = {**storage_options, "cache_dir": directory, "cache_bytes": limit}
        run(fill(options.Sources(warm), cached))
    if clear or trim is not None:
        freed = trim_cache(directory, 0 if clear or trim is None else trim)
        if not as_json:
            print_line(f"{format_bytes(freed)} removed")
    show(list_cache(directory), as_json)


async def fill(sources: options.Sources, storage_options: Mapping[str, Any]) -> None:
    """Reads shards through the cache that the options name."""
    try:
        storages = Storages(storage_options, cached=True)
    except (ValueError, TypeError) as error:
        raise click.UsageError(str(error)) from error
    async with storages:
        found = await find_records(storages, sources)
        with progress("filling", total_bytes(found)) as meter:
            await map_concurrently(partial(read, storages, meter), found)
    # Closing them has written what was waiting. More does not fit, or the disk was too slow.
    counts = storages.statistics.snapshot().backends.get("cache")
    if counts is not None and counts.bytes_not_admitted:
        print_note(
            f"{format_bytes(counts.bytes_not_admitted)} of {format_bytes(total_bytes(found) or 0)} "
            "are not in the cache: give a larger --limit, or a faster disk"
        )


async def read(storages: Storages, meter: Meter, item: Item) -> None:
    """Reads one shard to its end."""
    storage = await storages.at(item.path)
    stream = await storage.stream(item.path, size=item.expected.size)
    try:
        buffer = memoryview(bytearray(READ_BYTES))
        while count := await stream.readinto(buffer):
            meter.add(count)
    finally:
        await stream.aclose()


def show(found: Sequence[CachedSet], as_json: bool) -> None:
    """Prints the data sets, as a table or as JSON."""
    if as_json:
        print_json([asdict(each) for each in found])
        return
    if not found:
        print_line("the cache is empty")
        return
    now = time.time()
    rows = [
        (
            each.url or "?",
            f"{each.blocks:,}",
            format_bytes(each.bytes),
            "now" if each.in_use else f"{format_age(now - each.used)} ago",
        )
        for each in found
    ]
    print_table(("data set", ">blocks", ">size", ">used"), rows)
    print_line(
        f"{format_bytes(sum(each.bytes for each in found))} in {plural(len(found), 'data set')}"
    )


def format_age(seconds: float) -> str:
    """Formats an age for people.

    Examples:
        >>> format_age(3.2), format_age(200), format_age(7300), format_age(400_000)
        ('3 s', '3 min', '2 h', '5 days')
    """
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 2 * 86400 else f"{seconds / 86400:.0f} days"
