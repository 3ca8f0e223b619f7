"""Sources without I/O: ranges, counters, random numbers, and the rows of arrays.

A position is a number.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from streamrec.arguments import check_fields, check_integer
from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.codec import digest_values
from streamrec.pipeline.elements.columns import Columns, Mixed, leaves, map_nest, rows_of, window
from streamrec.pipeline.elements.positions import NumberedPositions, OriginsOf
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows
from streamrec.pipeline.elements.specs import TensorSpec, spec_of_rows
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.seeds import RANDOM_BITS, words
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY
from streamrec.pipeline.stages.batch import stack
from streamrec.tfrecord import Frames

CHUNK_ROWS = 1 << 14
CHUNK_BYTES = 1 << 20


class InMemory(Source):
    """The base of sources whose elements can be computed from their numbers.

    `origins_of` says what they were made of. The count is None for an endless source.
    """

    __slots__ = ()

    @property
    def origins_of(self) -> OriginsOf | None:
        return None

    @property
    def count(self) -> int | None:
        return None

    def rows(self, first: int, last: int, context: RunContext | None = None) -> Any:
        """Elements first to last (exclusive) of a run."""
        raise NotImplementedError

    def cardinality(self, rank: Rank | None) -> int:
        return INFINITE_CARDINALITY if self.count is None else self.count

    @property
    def is_endless(self) -> bool:
        return self.count is None

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        first = state["next"] if state else 0
        total = self.count
        while total is None or first < total:
            last = first + CHUNK_ROWS
            rows = self.rows(first, last if total is None else min(total, last), context)
            count = max(1, len(rows) * CHUNK_BYTES // max(weigh(rows), CHUNK_BYTES))
            elements = window(rows, 0, count)
            await anyio.lowlevel.checkpoint()
            yield Chunk.weigh(elements, NumberedPositions(first, origins_of=self.origins_of))
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
            raise ValueError("step=0 would make an endless range: pass another step")

    @classmethod
    def of(cls, args: Sequence[int], output_type: Any) -> Range:
        """The numbers of `range(*args)`, as scalars of a dtype."""
        if not 1 <= len(args) <= 3:
            raise TypeError(f"range takes one to three numbers, not {len(args)}")
        start, stop, step = (0, *args, 1) if len(args) == 1 else (*args, 1)[:3]
        return cls(int(start), int(stop), int(step), np.dtype(output_type).name)

    @property
    def count(self) -> int:
        return len(range(self.start, self.stop, self.step))

    def rows(self, first: int, last: int, context: RunContext | None = None) -> Columns:
        numbers = range(self.start, self.stop, self.step)[first:last]
        return Columns(np.arange(numbers.start, numbers.stop, numbers.step).astype(self.dtype))

    def element_spec(self) -> Any:
        return TensorSpec((), self.dtype)


@dataclass(frozen=True, slots=True)
class Slices(InMemory):
    """The rows of arrays; equal if their structure and all their values are.

    `origins_of` says what they were made of.
    """

    data: Frames | Columns | Mixed = field(repr=False, compare=False)
    digest: str
    origins_of: OriginsOf | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, tensors: Any) -> Slices:
        """A copy of the rows of arrays, or of dicts and tuples of arrays."""
        rows = rows_of(tensors)
        data = Columns(map_nest(freeze, rows.nest)) if isinstance(rows, Columns) else rows
        return cls(data, digest_values(data.nest if isinstance(data, Columns) else data))

    @classmethod
    def single(cls, element: Any) -> Slices:
        """One element: an array, a list, or dicts and tuples of them."""
        batch = stack(
            [map_nest(lambda value: value.encode() if isinstance(value, str) else value, element)]
        )
        return cls.of(batch)

    @classmethod
    def holding(cls, column: Any, origins_of: OriginsOf | None = None) -> Slices:
        """The values of a column, or of dicts and tuples of columns, without a copy.

        The caller gives them up.
        """
        for part in leaves(column):
            if isinstance(part, np.ndarray):
                part.flags.writeable = False
        data = column if isinstance(column, Frames | Mixed) else Columns(column)
        return cls(data, digest_values(column), origins_of)

    @property
    def count(self) -> int:
        return len(self.data)

    def rows(self, first: int, last: int, context: RunContext | None = None) -> Any:
        return window(self.data, first, last)

    def element_spec(self) -> Any:
        return spec_of_rows(self.data)


def freeze(column: Any) -> Any:
    """A read-only copy; Frames are immutable and are not copied."""
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


@dataclass(frozen=True, slots=True)
class Counter(InMemory):
    """The numbers `start`, `start + step`, ..., as scalars of a NumPy dtype."""

    start: int
    step: int
    dtype: str = "int64"

    def __post_init__(self) -> None:
        check_fields(self, start=check_integer, step=check_integer)

    def element_spec(self) -> Any:
        return TensorSpec((), self.dtype)

    def rows(self, first: int, last: int, context: RunContext | None = None) -> Columns:
        return Columns((self.start + self.step * np.arange(first, last)).astype(self.dtype))


class RandomNumbers(InMemory):
    """The base of random numbers of a seed, None for the run's.

    If `rerandomize`, each epoch has other numbers.
    """

    __slots__ = ()
    seed: int | None
    rerandomize: bool

    def __post_init__(self) -> None:
        check_fields(self, seed=partial(check_integer, none=True))

    def rows(self, first: int, last: int, context: RunContext | None = None) -> Columns:
        assert context is not None
        seed = context.seed if self.seed is None else self.seed
        epoch = context.epoch if self.rerandomize else 0
        return Columns(self.draw(words(seed, epoch, first, last - first)))

    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    def draw(self, random_words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        """Converts random 64-bit words to numbers."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Random(RandomNumbers):
    """Random numbers, int64, from 0 to 2**32 - 1."""

    seed: int | None
    rerandomize: bool

    def draw(self, random_words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        return (random_words >> np.uint64(64 - RANDOM_BITS)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Choices(RandomNumbers):
    """Random numbers, int64, from 0 to `len(weights) - 1`.

    Their probabilities are proportional to the weights.
    """

    weights: tuple[float, ...]
    seed: int | None
    rerandomize: bool

    @property
    def draws_all(self) -> bool:
        """Whether each number occurs again and again: a weight may be too small to be drawn."""
        return min(self.weights) > 2.0**-40 * sum(self.weights)

    def draw(self, random_words: npt.NDArray[np.uint64]) -> npt.NDArray[Any]:
        bounds = np.cumsum(self.weights) / np.sum(self.weights)
        return np.searchsorted(bounds[:-1], (random_words >> np.uint64(11)) * 2.0**-53, "right")


def weights_of(weights: Any, count: int) -> list[float]:
    """The checked weights of this many datasets; all equal if `weights` is None."""
    if weights is None:
        return [1.0] * count
    checked = [float(weight) for weight in weights]
    if len(checked) != count:
        raise ValueError(
            f"weights={checked} has {len(checked)} numbers for {count} datasets: pass one for each"
        )
    if not all(0 <= weight < float("inf") for weight in checked):
        raise ValueError(f"weights={checked} must be finite numbers, 0 or more")
    return checked
