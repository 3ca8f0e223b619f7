"""Progress in a terminal: a line that rich keeps at the bottom, refreshed by rich's own thread."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from streamrec.pipeline.telemetry.progress import RateLine

__all__ = ["Shown"]

REFRESHES: Final = 4
"""A second."""


class Shown:
    """A line on standard error. What the program prints meanwhile appears above it."""

    def __init__(self, pulse: RateLine) -> None:
        self._pulse = pulse
        self._live = Live(
            console=Console(stderr=True), get_renderable=self._text, refresh_per_second=REFRESHES, auto_refresh=True
        )

    def start(self) -> None:
        self._live.start()

    def tick(self) -> None:
        """Nothing to do: rich looks by itself."""

    def close(self) -> None:
        self._live.stop()

    def _text(self) -> Text:
        return Text(self._pulse.line())
