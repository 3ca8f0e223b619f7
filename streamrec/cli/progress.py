"""Progress on standard error, where that is a terminal: share, rate, remaining time. Else nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module

__all__ = ["Meter", "progress"]


class Meter:
    """How far the work has come, in bytes; nobody sees it until `show`."""

    def __init__(self) -> None:
        self._done = 0
        self._shown: Callable[[int], None] | None = None

    def show(self, shown: Callable[[int], None]) -> None:
        """From now on, `shown` is called with how many bytes are done in all."""
        self._shown = shown

    def add(self, nbytes: int) -> None:
        """So many more bytes are done."""
        self._done += nbytes
        if self._shown is not None:
            self._shown(self._done)

    def set(self, nbytes: int) -> None:
        """So many bytes are done in all."""
        self.add(nbytes - self._done)


@contextmanager
def progress(doing: str, total: int | None, *, quiet: bool = False) -> Iterator[Meter]:
    """Shows a bar while the block runs, where standard error is a terminal; it is gone afterwards.

    Args:
        doing: What is done, in a word.
        total: Bytes that there are to do; None where nobody knows.
        quiet: Whether nothing is shown in a terminal either.
    """
    meter = Meter()
    if quiet or not sys.stderr.isatty():
        yield meter
        return
    with import_module("streamrec.cli.rendering").bar(doing, total) as shown:  # rich is slow to import
        meter.show(shown)
        yield meter
