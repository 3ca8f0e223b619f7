"""Tables and progress bars, by rich, which a command that shows neither does not load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from streamrec.display import escape


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Prints a table. A column whose name begins with ">" is set to the right."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold", no_wrap=right)
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    width = None if sys.stdout.isatty() else 1 << 14  # of a pipe: no line is cut or folded
    console = Console(file=sys.stdout, highlight=False, width=width)
    with console.capture() as capture:
        console.print(table)
    print("\n".join(line.rstrip() for line in capture.get().splitlines()))


@contextmanager
def bar(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Shows a bar on standard error while the block runs; gives the function that sets how many bytes are done."""
    columns = (TextColumn(doing), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda done: shown.update(task, completed=done)
