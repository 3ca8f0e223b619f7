"""Progress displays: show the progress of a run while it runs.

Rules:
- In a notebook, the display is an output that is updated, which needs only IPython; in a terminal,
  a line that rich keeps below the program's output; if standard error is not a terminal, a plain
  line from time to time.
- Displays start no threads: a display is called when the consumer takes a chunk; rich refreshes in
  its own thread.
- A display starts when the consumer first asks for a chunk. It is closed at the end, after an error
  or an interrupt, and when the iterator is closed or dropped; the last line stays. Closing twice is
  allowed.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from importlib import import_module
from time import perf_counter
from typing import Any, ClassVar, TextIO

from streamrec.errors import MissingExtraError, install_command
from streamrec.pipeline.telemetry.stats import CACHE, Stats, format_speed


def choose_display(stats: Callable[[], Stats]) -> Display:
    """The display for a notebook, a terminal or another stream."""
    ipython: Any = sys.modules.get("IPython")
    if hasattr(ipython and ipython.get_ipython(), "kernel"):  # this process is a notebook's kernel
        return NotebookDisplay(stats)
    return TerminalDisplay(stats) if sys.stderr.isatty() else PlainDisplay(stats, sys.stderr)


class Display:
    """Shows the progress of a run in a line: over the whole run, and over the last seconds."""

    seconds: ClassVar[float] = 10.0
    """The time between two lines. Not tuned."""

    def __init__(
        self, stats: Callable[[], Stats], clock: Callable[[], float] = perf_counter
    ) -> None:
        self._stats = stats
        self._clock = clock
        self._seen: deque[tuple[float, Stats]] = deque()
        self._running = False
        self._next = 0.0

    def line(self) -> str:
        """The line to show now."""
        now = self._clock()
        stats = self._stats()
        self._seen.append((now, stats))
        while len(self._seen) > 2 and now - self._seen[1][0] >= 5:  # seconds; not tuned
            self._seen.popleft()
        then, earlier = self._seen[0]
        return format_line(stats, earlier if now > then else None, now - then)

    def start(self) -> None:
        """Called when the consumer first asks for a chunk."""
        self._running = True
        self._next = self._clock() + self.seconds

    def tick(self) -> None:
        """Called when the consumer takes a chunk."""
        if self._running and self._clock() >= self._next:
            self._next = self._clock() + self.seconds
            self.show()

    def close(self) -> None:
        """Called when the run has ended."""
        if self._running:
            self._running = False
            self.show()

    def show(self) -> None:
        """Shows `line()` in place of the last one, from the consumer's thread."""
        raise NotImplementedError


def format_line(stats: Stats, earlier: Stats | None, seconds: float) -> str:
    """Formats a run's statistics as one line.

    Speed and waits are those of the `seconds` since `earlier`. Without earlier statistics, they are
    those since the consumer first asked.
    """
    recent = stats if earlier is None else stats.since(earlier)
    seconds = stats.seconds if earlier is None else seconds
    speeds = format_speed(recent)
    read = stats.bytes_read - (0 if earlier is None else earlier.bytes_read)
    speed = read / 1e6 / seconds if seconds else 0.0
    waits = stats.storage.waits
    kept = stats.storage.backends.get(CACHE)
    share = kept.bytes / max(stats.bytes_read, 1) if kept is not None else 0.0
    return (
        f"streamrec: {stats.elements:,} elements ({stats.records:,} records read), {speed:,.1f} "
        f"MB/s{speeds}, waited {recent.waited_share:.0%}, bottleneck: {recent.bottleneck}"
        + (f", {share:.0%} of the bytes from the cache" if kept is not None else "")
        + (f"; {waits[0]}" if waits else "")
    )


class PlainDisplay(Display):
    """Prints a line on a stream from time to time and at the end."""

    def __init__(
        self, stats: Callable[[], Stats], stream: TextIO, clock: Callable[[], float] = perf_counter
    ) -> None:
        super().__init__(stats, clock)
        self._stream = stream

    def show(self) -> None:
        print(self.line(), file=self._stream, flush=True)


class TerminalDisplay(Display):
    """A line on standard error that rich keeps below the program's output.

    rich refreshes it in its own thread.
    """

    def __init__(self, stats: Callable[[], Stats]) -> None:
        super().__init__(stats)
        try:
            console, live, text = (
                import_module(f"rich.{name}") for name in ("console", "live", "text")
            )
        except ImportError as error:
            raise MissingExtraError(
                f"progress=True in a terminal needs rich: {install_command('cli')}"
            ) from error
        self._live = live.Live(
            console=console.Console(stderr=True), get_renderable=lambda: text.Text(self.line())
        )

    def start(self) -> None:
        self._live.start()

    def tick(self) -> None:
        """Nothing: rich refreshes the line."""

    def close(self) -> None:
        self._live.stop()


class NotebookDisplay(Display):
    """An output of the current cell, updated by IPython's messages.

    All front ends (Jupyter, VS Code, Colab) understand these without a package for widgets.
    """

    seconds = 0.5

    def start(self) -> None:
        super().start()
        display = import_module("IPython.display").display
        self._handle = display(self._data(), raw=True, display_id=True)

    def show(self) -> None:
        self._handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        return {"text/plain": self.line()}
