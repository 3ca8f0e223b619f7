"""IgnoreErrors: leaves out elements that failed."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.stage import Stage, Step

__all__ = ["IgnoreErrors"]

logger = logging.getLogger("streamrec")


@dataclass(frozen=True, slots=True)
class IgnoreErrors(Stage):
    """Leaves out elements that failed in stages before it; the run's statistics count them.

    Args:
        log_warning: Whether the log tells of each.
    """

    log_warning: bool = field(default=False, repr=False)

    def start(self, key: str, state: None) -> Step:
        return _Ignoring(self.log_warning)


class _Ignoring:
    done = False

    def __init__(self, log_warning: bool) -> None:
        self._log_warning = log_warning

    def feed(self, chunk: Chunk) -> list[Chunk]:
        return [chunk]

    def flush(self) -> list[Chunk]:
        return []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Tells of it, and leaves it out."""
        error = chunk.error
        if self._log_warning and error is not None:
            places = "; ".join(getattr(error, "__notes__", ())) or "its place is not known"
            logger.warning("an element is left out: %s: %s (%s)", type(error).__name__, error, places)
        return []
