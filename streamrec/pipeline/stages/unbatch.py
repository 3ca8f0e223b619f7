"""Unbatch: elements split into their rows, in columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from streamrec.pipeline.elements.chunk import Batches, Chunk
from streamrec.pipeline.elements.columns import rows_of, window
from streamrec.pipeline.elements.positions import Position, Positions, Precursor, with_state
from streamrec.pipeline.engine.stage import Stage, Step

__all__ = ["Unbatch"]


@dataclass(frozen=True, slots=True)
class Unbatch(Stage):
    """Splits each element into its rows: the records of Frames, the rows of arrays (in dicts and tuples too)."""

    def start(self, key: str, state: int | None) -> Step:
        return _Unbatching(key, state or 0)


class _Unbatching:
    done = False

    def __init__(self, key: str, first: int) -> None:
        self._key = key
        self._first = first
        self.failures: list[tuple[Exception, int]] = []

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self.failures = []
        if isinstance(chunk.elements, Batches):
            parts = [self._rows(chunk, 0, chunk.elements.frames, chunk.elements.size)]
        else:
            parts = [self._tried(chunk, index, batch) for index, batch in enumerate(chunk.elements)]
        return [part for part in parts if len(part.elements) or part.error]

    def flush(self) -> list[Chunk]:
        return []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """A failure goes on as it is."""
        return [chunk]

    def _tried(self, chunk: Chunk, index: int, batch: Any) -> Chunk:
        """The rows of one batch, or what is wrong with it."""
        try:
            return self._rows(chunk, index, rows_of(batch))
        except Exception as error:
            self.failures.append((error, index))
            return Chunk.failure(error, chunk.positions, index + 1)

    def _rows(self, chunk: Chunk, index: int, rows: Any, size: int | None = None) -> Chunk:
        """The rows of one batch, or of several of one size; without those that came before the run was resumed."""
        first, self._first = self._first, 0
        positions = RowPositions(chunk.positions, self._key, index, len(rows) if size is None else size, first)
        rows = window(rows, first, len(rows)) if first else rows
        return Chunk.weighed(rows, positions)


@dataclass(frozen=True, slots=True)
class RowPositions(Positions):
    """Positions of the rows of batches of `size`, of which the first is `batch`; row `first` of it comes first."""

    inner: Positions
    stage: str
    batch: int
    size: int
    first: int

    def at(self, index: int) -> Position:
        batches, row = divmod(self.first + index, self.size)
        return with_state(self.inner.at(self.batch + batches), self.stage, row)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        batches, own = divmod(self.first + index, self.size)
        return (Precursor(self.inner, self.batch + batches, own),)
