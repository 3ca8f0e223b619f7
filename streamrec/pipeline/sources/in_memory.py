"""Sources that have their elements already: ranges of numbers, and the rows of arrays. No I/O."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel
import numpy as np

from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.codec import digest_of
from streamrec.pipeline.elements.columns import Columns, leaves, map_nest, rows_of, window
from streamrec.pipeline.elements.positions import NumberedPositions, Positions
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows
from streamrec.pipeline.elements.specs import TensorSpec, spec_of_rows
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.stages.batch import stack
from streamrec.tfrecord import Frames

__all__ = ["CHUNK_BYTES", "CHUNK_ROWS", "InMemory", "Range", "Slices"]

CHUNK_ROWS = 1 << 14
CHUNK_BYTES = 1 << 20


class InMemory(Source):
    """Elements that need no I/O: their number is known, and a position is a number.

    Attributes:
        origin: What they were made of; None where that is not known.
    """

    __slots__ = ()

    @property
    def origin(self) -> Positions | None:
        return None

    def __len__(self) -> int:
        raise NotImplementedError

    def rows(self, first: int, last: int) -> Any:
        """Elements first to last, exclusive."""
        raise NotImplementedError

    def cardinality(self, rank: Rank | None) -> int:
        return len(self)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        first = state["next"] if state else 0
        total = len(self)
        while first < total:
            rows = self.rows(first, min(total, first + CHUNK_ROWS))
            count = max(1, len(rows) * CHUNK_BYTES // max(weigh(rows), CHUNK_BYTES))
            elements = window(rows, 0, count)
            await anyio.lowlevel.checkpoint()
            yield Chunk.weighed(elements, NumberedPositions(first, self.origin))
            first += count


@dataclass(frozen=True, slots=True)
class Range(InMemory):
    """The numbers of a `range`, as scalars of a NumPy dtype."""

    start: int
    stop: int
    step: int = 1
    dtype: str = "int64"

    def __post_init__(self) -> None:
        if self.step == 0:
            raise ValueError("step=0 must be another number: the range would have no end")

    @classmethod
    def of(cls, args: Sequence[int], output_type: Any) -> Range:
        """The numbers of `range(*args)`, as scalars of what NumPy takes for a dtype.

        Raises:
            ValueError: The step is 0.
            TypeError: Other than one to three arguments.
        """
        if not 1 <= len(args) <= 3:
            raise TypeError(f"range takes one to three numbers, not {len(args)}")
        start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        return cls(int(start), int(stop), int(step), np.dtype(output_type).name)

    def __len__(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def rows(self, first: int, last: int) -> Columns:
        numbers = range(self.start, self.stop, self.step)[first:last]
        return Columns(np.arange(numbers.start, numbers.stop, numbers.step).astype(self.dtype))

    def element_spec(self) -> Any:
        return TensorSpec((), self.dtype)


@dataclass(frozen=True, slots=True)
class Slices(InMemory):
    """The rows of arrays. Made by `of`; two are equal when their structure and all their values are.

    Args:
        data: The rows.
        digest: What tells them from others.
        origin: What the rows were made of; None where that is not known.
    """

    data: Frames | Columns = field(repr=False, compare=False)
    digest: str
    origin: Positions | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, tensors: Any) -> Slices:
        """The rows of arrays, or of dicts and tuples of them: a copy, so that what happens to them later does not show.

        Raises:
            TypeError: A part has no rows.
            ValueError: The parts have different numbers of rows.
        """
        rows = rows_of(tensors)
        data = Columns(map_nest(freeze, rows.nest)) if isinstance(rows, Columns) else rows
        return cls(data, digest_of(data.nest if isinstance(data, Columns) else data))

    @classmethod
    def single(cls, element: Any) -> Slices:
        """One element: an array, a list, or dicts and tuples of them, as a whole."""
        batch = stack([map_nest(lambda value: value.encode() if isinstance(value, str) else value, element)])
        return cls.of(batch)

    @classmethod
    def holding(cls, column: Any, origin: Positions | None = None) -> Slices:
        """The values of a column of the caller's, or of dicts and tuples of them, which it gives away."""
        for part in leaves(column):
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
        return cls(column if isinstance(column, Frames) else Columns(column), digest_of(column), origin)

    def __len__(self) -> int:
        return len(self.data)

    def rows(self, first: int, last: int) -> Any:
        return window(self.data, first, last)

    def element_spec(self) -> Any:
        return spec_of_rows(self.data)


def freeze(column: Any) -> Any:
    """A read-only copy; Frames, which are never written to, as they are."""
    if isinstance(column, Frames):
        return column
    if isinstance(column, SparseRows):
        return SparseRows(freeze(column.indices), freeze(column.values), column.shapes.copy())
    if isinstance(column, RaggedRows):
        rows = column.compact()
        rows.values.flags.writeable = False
        return rows
    copy = deepcopy(column)
    if isinstance(copy, np.ndarray):
        copy.flags.writeable = False
    return copy
