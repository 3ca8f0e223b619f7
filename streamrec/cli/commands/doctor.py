"""`streamrec doctor`: whether a store can be reached, and does what streamrec stands on."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

import click

from streamrec.cli import options
from streamrec.cli.output import print_json, print_line
from streamrec.cli.probing.checks import examine
from streamrec.cli.probing.rows import CheckResult
from streamrec.cli.program import STORE_FAILED
from streamrec.cli.reading import run
from streamrec.display import display_name

__all__ = ["command"]

MARKS = {True: "ok  ", False: "FAIL", None: "-   "}


@click.command(
    "doctor",
    epilog=options.examples("streamrec doctor s3://bucket/train/", "streamrec doctor --write s3://bucket/scratch/"),
)
@click.argument("url")
@click.option(
    "--write/--no-write",
    default=None,
    help="Write objects of 1 and 9 MB below URL and remove them again, or not; without either, a terminal asks.",
)
@options.as_json
@options.storage_options
def command(url: str, write: bool | None, as_json: bool, storage_options: Mapping[str, Any]) -> int:
    """Looks at a store, step by step: its name, connection, TLS, clock, listing, reading, versions, checksums, speed.

    What fails says what to do about it, and the exit code is 3. URL is a directory, a pattern or an object.
    """
    if write is None:
        write = (
            sys.stdin.isatty()
            and not as_json
            and click.confirm(f"Write and remove test objects (10 MB) below {display_name(url)}?")
        )
    rows = run(run_checks(url, write, as_json, storage_options))
    if as_json:
        print_json({"ok": all(row.ok is not False for row in rows), "checks": [asdict(row) for row in rows]})
    return STORE_FAILED if any(row.ok is False for row in rows) else 0


async def run_checks(url: str, write: bool, quiet: bool, storage_options: Mapping[str, Any]) -> list[CheckResult]:
    """Makes all checks, and prints each when it is done."""
    rows = []
    async with aclosing(examine(url, write, storage_options)) as examined:
        async for row in examined:
            rows.append(row)
            if not quiet:
                print_line(f"{MARKS[row.ok]}  {row.name:<9}  {row.seconds:6.3f} s  {row.found}")
                sys.stdout.flush()
    return rows
