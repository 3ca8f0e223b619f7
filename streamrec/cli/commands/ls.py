"""`streamrec ls`: what the names stand for, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from streamrec.cli import options
from streamrec.cli.output import format_bytes, print_json, print_line
from streamrec.cli.reading import run, total_bytes
from streamrec.cli.sources import Found, find, storages_for

__all__ = ["command"]


@click.command(
    "ls",
    epilog=options.examples(
        "streamrec ls s3://bucket/train/",
        "streamrec ls 'gs://bucket/train-*.tfrecord' 'data/{00000..00003}.tfrecord'",
    ),
)
@options.sources
@click.option("-h", "--human", is_flag=True, help="Sizes as 1.5 MB.")
@options.as_json
@options.storage_options
def command(sources: Sequence[str], human: bool, as_json: bool, storage_options: Mapping[str, Any]) -> None:
    """Lists files and their sizes in bytes, and how much they are together."""
    found = run(list_files(sources, storage_options))
    if as_json:
        print_json([{"path": item.path, "bytes": item.size} for item in found])
        return
    sizes = [format_bytes(item.size) if human or item.size is None else f"{item.size:,}" for item in found]
    total = total_bytes(found)
    width = max(map(len, sizes))
    for item, size in zip(found, sizes, strict=True):
        print_line(f"{size:>{width}}  {item.path}")
    if len(found) > 1 and total is not None:
        click.echo(f"{len(found):,} files, {format_bytes(total)}", err=True)


async def list_files(sources: Sequence[str], storage_options: Mapping[str, Any]) -> list[Found]:
    async with storages_for(storage_options) as storages:
        return await find(storages, sources)
