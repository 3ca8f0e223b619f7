"""Output: a bar if the output is a terminal, plain lines otherwise, and the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.table import Table

__all__ = ["Show", "progress", "show_table"]

Show = Callable[[int, str], None]

LINES = 4  # how many lines a bar is worth where there is no terminal


@contextmanager
def progress(console: Console, title: str, total: int) -> Iterator[Show]:
    """Shows the progress of one task.

    Args:
        console: The console.
        title: The title of the task.
        total: The bytes of the whole task.

    Yields:
        A function that takes the bytes done so far, and a note to show next to them.
    """
    if not console.is_terminal:
        yield lines(console, title, total)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task(title, total=total, note="")
        yield lambda done, note: bars.update(bar, completed=done, note=note)


def lines(console: Console, title: str, total: int) -> Show:
    """Prints a line at the start and at each quarter."""
    console.print(f"{title} ({total / 1e6:,.0f} MB)", soft_wrap=True)
    shown = 0

    def show(done: int, note: str) -> None:
        nonlocal shown
        quarter = LINES * done // total
        if quarter > shown:
            shown = quarter
            console.print(f"  {100 * done // total} % {note}".rstrip(), soft_wrap=True)

    return show


def show_table(console: Console, rows: list[tuple[str, str]]) -> None:
    """Prints two columns: what was measured, and the value."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    console.print(table)
