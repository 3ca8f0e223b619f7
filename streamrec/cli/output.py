"""What commands print: lines and tables for people, JSON for scripts, progress on standard error.

Text about names and stores masks secrets. No text passes control characters on to a terminal.

A command that shows neither a table nor a progress bar does not load rich, which is slow to import.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from time import monotonic
from typing import Any, Final, TextIO

import click

from streamrec.cli.library import display_text, escape, escape_json, mask_secrets

UNITS = ("kB", "MB", "GB", "TB", "PB")
PROGRESS: Final = "streamrec.progress"
"""The key of the progress mode in the context of a command: "auto", "never", or "quiet" (`-q`)."""


def print_json(value: Any, *, data: bool = False, file: TextIO | None = None) -> None:
    """Prints one line of JSON, with control characters escaped.

    Args:
        value: A value that JSON can hold.
        data: Whether its strings are values of records, which are printed as they are. In other
            strings secrets are masked.
        file: The file to print to; None for standard output.
    """
    print(
        escape_json(json.dumps(value if data else mask_value(value), ensure_ascii=False)), file=file
    )


def mask_value(value: Any) -> Any:
    """A copy of a JSON value in which the secrets of all strings are masked; keys stay."""
    if isinstance(value, dict):
        return {name: mask_value(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(item) for item in value]
    return mask_secrets(value) if isinstance(value, str) else value


def print_line(*lines: str) -> None:
    """Prints lines about names and stores, with secrets masked and controls escaped."""
    for line in lines:
        print(display_text(line))


def print_written(things: str, written: Sequence[Any], ending: str = "") -> None:
    """Prints how many files were written, and how many records and bytes they hold.

    Each file has the attributes `records` and `bytes`.
    """
    records = sum(each.records for each in written)
    size = sum(each.bytes for each in written)
    print_line(
        f"{plural(len(written), things)}, {plural(records, 'record')}, {format_bytes(size)}{ending}"
    )


def print_record(*lines: str) -> None:
    """Prints lines of values of records, with controls escaped."""
    for line in lines:
        print(escape(line))


def print_error(text: object) -> None:
    """Prints a line on standard error."""
    click.echo(f"streamrec: {display_text(str(text))}", err=True)


def print_note(text: object) -> None:
    """Prints a line on standard error that is not an error, unless `-q` was typed."""
    if progress_mode() != "quiet":
        print_error(text)


def progress_mode() -> str:
    """The mode that the options of the running command set: "auto", "never" or "quiet"."""
    context = click.get_current_context(silent=True)
    return "auto" if context is None else context.meta.get(PROGRESS, "auto")


def format_bytes(count: int | None) -> str:
    """A number of bytes with three digits and a decimal unit; "?" for None.

    Examples:
        >>> format_bytes(999), format_bytes(1_536_000), format_bytes(None)
        ('999 B', '1.54 MB', '?')
    """
    if count is None:
        return "?"
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in UNITS:
        size /= 1000
        if size < 999.5 or unit == UNITS[-1]:
            break
    return f"{size:.3g} {unit}"


def plural(number: int, thing: str) -> str:
    """A number and a noun, in the plural unless the number is 1.

    Examples:
        >>> plural(1, "shard"), plural(2000, "shard")
        ('1 shard', '2,000 shards')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_number(value: float | int | None) -> str:
    """A number, short: with four digits, or all digits before the point up to a million million.

    Examples:
        >>> format_number(1234567), format_number(0.123456), format_number(None)
        ('1,234,567', '0.1235', '')
        >>> format_number(20000.4), format_number(2e15)
        ('20,000', '2e+15')
    """
    if value is None:
        return ""
    if abs(value) >= 10**12:
        return f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.0f}" if abs(value) >= 10**4 else f"{value:.4g}"


def format_range(start: float | int, end: float | int) -> str:
    """The numbers from `start` up to `end`, without `end`; integers as the first and the last one.

    Examples:
        >>> format_range(1, 11), format_range(10, 11), format_range(0.5, 1.5)
        ('1 to 10', '10', '0.5 to 1.5')
    """
    last = end - 1 if isinstance(start, int) and isinstance(end, int) else end
    if last == start:
        return format_number(start)
    return f"{format_number(start)} to {format_number(last)}"


class Meter:
    """Counts the bytes that are `done`, and shows the count."""

    def __init__(self, show: Callable[[int], None] = lambda done: None) -> None:
        self.done = 0
        self._show = show

    def add(self, nbytes: int) -> None:
        """Counts more bytes as done."""
        self.done += nbytes
        self._show(self.done)


@contextmanager
def progress(doing: str, total: int | None, *, quiet: bool = False) -> Iterator[Meter]:
    """Shows a bar while the block runs.

    Where standard error is not a terminal, prints a line every ten seconds.
    """
    if quiet or progress_mode() != "auto":
        yield Meter()
        return
    if not sys.stderr.isatty():
        yield Meter(line_printer(doing, total))
        return
    rich = import_module("rich.progress")
    columns = (
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    console = import_module("rich.console").Console(stderr=True)
    with rich.Progress(rich.TextColumn(doing), *columns, console=console, transient=True) as shown:
        task = shown.add_task("", total=total)
        yield Meter(lambda done: shown.update(task, completed=done))


def line_printer(doing: str, total: int | None) -> Callable[[int], None]:
    """A function that takes the number of bytes done, and prints it every ten seconds."""
    began = last = monotonic()

    def show(done: int) -> None:
        nonlocal last
        now = monotonic()
        if now < last + 10:
            return
        last = now
        speed = done / (now - began)
        size = "" if total is None else f" of {format_bytes(total)}"
        left = (
            f", {(total - done) / speed:,.0f} s left"
            if total is not None and 0 < done <= total
            else ""
        )
        print_error(f"{doing}: {format_bytes(done)}{size}, {format_bytes(round(speed))}/s{left}")

    return show


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table. A column whose name begins with ">" is aligned to the right."""
    rich = import_module("rich.table")
    text = import_module("rich.text")
    table = rich.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(
            column.removeprefix(">"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
        )
    for row in rows:
        table.add_row(*(text.Text(escape(cell)) for cell in row))
    # A pipe has no width: rich would fold the lines, and scripts read whole ones.
    width = None if sys.stdout.isatty() else 1 << 14
    console = import_module("rich.console").Console(file=sys.stdout, highlight=False, width=width)
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))
