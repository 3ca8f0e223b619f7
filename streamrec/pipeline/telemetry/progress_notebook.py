"""Progress in a notebook: an output of the cell that is rewritten, by IPython's own messages.

That is what every front end understands (Jupyter, VS Code, Colab) and needs no package for widgets.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any, Final

from IPython.display import display

from streamrec.pipeline.telemetry.progress import RateLine

__all__ = ["Shown"]

INTERVAL: Final = 0.5
"""Seconds between two updates, at the least."""


class Shown:
    """An output of the cell that the consumer runs in."""

    def __init__(self, pulse: RateLine) -> None:
        self._pulse = pulse
        self._handle: Any = None
        self._next = 0.0

    def start(self) -> None:
        self._handle = display(self._data(), raw=True, display_id=True)  # type: ignore[no-untyped-call, unused-ignore]

    def tick(self) -> None:
        if self._handle is not None and perf_counter() >= self._next:
            self._next = perf_counter() + INTERVAL
            self._handle.update(self._data(), raw=True)

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.update(self._data(), raw=True)

    def _data(self) -> dict[str, str]:
        return {"text/plain": self._pulse.line()}
