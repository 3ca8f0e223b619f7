"""Progress: how a run goes, shown while it goes on. This file says what is shown, and where.

Rules:
- In a notebook it is an output that is rewritten, which needs nothing but IPython; in a terminal a line that rich keeps
  below what is printed; where standard error is not a terminal, a plain line now and then.
- No thread of ours: a display learns when the consumer takes a chunk, and rich refreshes by its own thread.
- A display begins when the consumer first asks. It is closed at the end, after an error, an interrupt, and when the
  iterator is closed or dropped, and leaves the last figures there. Closing twice is fine.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any, Final, TextIO

from streamrec.errors import MissingExtraError
from streamrec.pipeline.telemetry.stats import Stats

__all__ = ["Display", "PlainDisplay", "choose_display", "format_line"]

PLAIN_SECONDS: Final = 10.0
"""Between two lines, at least. Not tuned."""


def choose_display(stats: Callable[[], Stats]) -> Display:
    """The display that fits where the program runs.

    Raises:
        MissingExtraError: It runs in a terminal, and the package rich is not installed.
    """
    if is_notebook():
        return NotebookDisplay(stats)
    return TerminalDisplay(stats) if sys.stderr.isatty() else PlainDisplay(stats, sys.stderr)


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook: IPython is loaded there, and its shell has a kernel."""
    ipython: Any = sys.modules.get("IPython")
    return hasattr(ipython and ipython.get_ipython(), "kernel")


class Display:
    """Shows how a run goes, in a line: over all of it, and over the last seconds.

    Args:
        stats: Gives the run's figures.
        clock: Gives the time in seconds.
    """

    def __init__(self, stats: Callable[[], Stats], clock: Callable[[], float] = perf_counter) -> None:
        self._stats = stats
        self._clock = clock
        self._seen: deque[tuple[float, Stats]] = deque()

    def line(self) -> str:
        """What is shown now."""
        now, stats = self._clock(), self._stats()
        self._seen.append((now, stats))
        while len(self._seen) > 2 and now - self._seen[1][0] >= 5:  # seconds; not tuned
            self._seen.popleft()
        then, earlier = self._seen[0]
        return format_line(stats, earlier if now > then else None, now - then)

    def start(self) -> None:
        """The consumer asks for the first time."""

    def tick(self) -> None:
        """The consumer took a chunk."""

    def close(self) -> None:
        """The run is over."""


def format_line(stats: Stats, earlier: Stats | None, seconds: float) -> str:
    """A run in a line.

    Args:
        stats: Its figures.
        earlier: Its figures at an earlier moment; None for when it began.
        seconds: How long ago that was; without `earlier`, the time since the consumer first asked counts.
    """
    recent = stats if earlier is None else stats.since(earlier)
    seconds = stats.seconds if earlier is None else seconds
    read = stats.bytes_read - (0 if earlier is None else earlier.bytes_read)
    speed = read / 1e6 / seconds if seconds else 0.0
    waits = stats.storage.waits
    return (
        f"streamrec: {stats.elements:,} elements ({stats.records:,} records read), {speed:,.1f} MB/s, "
        f"waited {recent.waited_share:.0%}, bottleneck: {recent.bottleneck}"
    ) + (f"; {waits[0]}" if waits else "")


class PlainDisplay(Display):
    """A line on a stream that is not a terminal, now and then and at the end."""

    def __init__(self, stats: Callable[[], Stats], stream: TextIO, clock: Callable[[], float] = perf_counter) -> None:
        super().__init__(stats, clock)
        self._stream = stream
        self._next = 0.0
        self._running = False

    def start(self) -> None:
        self._running = True
        self._next = self._clock() + PLAIN_SECONDS

    def tick(self) -> None:
        if self._clock() >= self._next:
            self._next = self._clock() + PLAIN_SECONDS
            print(self.line(), file=self._stream, flush=True)

    def close(self) -> None:
        if self._running:
            self._running = False
            print(self.line(), file=self._stream, flush=True)


class TerminalDisplay(Display):
    """A line on standard error that rich keeps below what the program prints, and refreshes by its own thread."""

    def __init__(self, stats: Callable[[], Stats]) -> None:
        super().__init__(stats)
        try:
            console, live, text = (import_module(f"rich.{name}") for name in ("console", "live", "text"))
        except ImportError as error:
            raise MissingExtraError("progress=True in a terminal needs rich: pip install 'streamrec[cli]'") from error
        self._live = live.Live(console=console.Console(stderr=True), get_renderable=lambda: text.Text(self.line()))

    def start(self) -> None:
        self._live.start()

    def close(self) -> None:
        self._live.stop()


class NotebookDisplay(Display):
    """An output of the cell that the consumer runs in, rewritten by IPython's own messages.

    Every front end understands these (Jupyter, VS Code, Colab), and they need no package for widgets.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        super().__init__(stats)
        self._handle: Any = None
        self._next = 0.0

    def start(self) -> None:
        display = import_module("IPython.display").display
        self._handle = display(self._data(), raw=True, display_id=True)

    def tick(self) -> None:
        if self._handle is not None and self._clock() >= self._next:
            self._next = self._clock() + 0.5
            self._handle.update(self._data(), raw=True)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        return {"text/plain": self.line()}
