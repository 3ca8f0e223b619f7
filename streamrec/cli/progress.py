"""Progress on standard error, where that is a terminal: share, rate, remaining time. Else nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

__all__ = ["Meter", "progress"]


class Meter:
    """How far the work has come, in bytes."""

    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total)
        self._counted = 0

    def add(self, nbytes: int) -> None:
        """So many more bytes are done."""
        self._counted += nbytes
        self._bar.update(self._task, completed=self._counted)

    def set(self, nbytes: int) -> None:
        """So many bytes are done in all."""
        self.add(nbytes - self._counted)


@contextmanager
def progress(doing: str, total: int | None, *, quiet: bool = False) -> Iterator[Meter]:
    """Shows a bar while the block runs; it is gone afterwards.

    Args:
        doing: What is done, in a word.
        total: Bytes that there are to do; None where nobody knows.
        quiet: Whether nothing is shown in a terminal either.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn(doing),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        yield Meter(bar, total)
