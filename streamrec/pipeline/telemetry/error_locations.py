"""Where in the data a stage failed: what the positions of the chunk at which it did say of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamrec.display import display_text
from streamrec.errors import FeatureError
from streamrec.pipeline.elements.chunk import Chunk, records_behind

__all__ = ["FailedElement"]


@dataclass(frozen=True, slots=True)
class FailedElement:
    """An element at which a stage failed.

    Args:
        number: Which one of those that the stage had in this run, from 0 on.
        chunk: The chunk that it came in.
        index: Its place there.
        row: Of a batch, the row that the error names.
    """

    number: int
    chunk: Chunk
    index: int
    row: int = 0

    def blamed_by(self, error: Exception) -> FailedElement:
        """The same, with the row that an error of parsing or decoding names."""
        row = error.record if isinstance(error, FeatureError) else None
        return replace(self, row=row or 0)

    def __str__(self) -> str:
        """Its number, and the record that it was made of; of a batch that of the row, of several parts that of each."""
        records = " and ".join(str(record) for record in records_behind(self.chunk.positions, self.index, self.row))
        number = f", element {self.number:,} of this run"
        return f"{number}: {display_text(records)}" if records else number
