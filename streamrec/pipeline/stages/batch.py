"""Stages that join elements to batches.

A batch of records is Frames; it is copied only if it spans several chunks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.arguments import at_least_one, check_fields, check_flag
from streamrec.example import RaggedTensor, SparseTensor
from streamrec.pipeline.elements.chunk import NUMBERS, Batches, Chunk, weigh_one
from streamrec.pipeline.elements.columns import (
    Columns,
    Mixed,
    as_array,
    compact,
    join_windows,
    map_nest,
    map_nests,
    objects,
    window,
)
from streamrec.pipeline.elements.positions import (
    IndexMap,
    OneElement,
    Positions,
    shift,
)
from streamrec.pipeline.elements.ragged_rows import (
    RaggedRows,
    SparseRows,
    stack_ragged,
    stack_sparse,
)
from streamrec.pipeline.elements.specs import RaggedTensorSpec
from streamrec.pipeline.engine.stage import Stage, Step
from streamrec.pipeline.stages.padding import Padding, make_ragged
from streamrec.tfrecord import Frames


class Batching(Stage):
    """The base of stages that join `batch_size` elements to a batch."""

    __slots__ = ()
    batch_size: int
    drop_remainder: bool

    def __post_init__(self) -> None:
        check_fields(self, batch_size=at_least_one, drop_remainder=check_flag)

    def cardinality(self, count: int) -> int:
        if count < 0:
            return count
        whole = count // self.batch_size
        return whole if self.drop_remainder else whole + (count % self.batch_size > 0)

    def cardinalities(self, count: int, rows: int) -> tuple[int, int]:
        dropped = count % self.batch_size if self.drop_remainder and count >= 0 else 0
        return self.cardinality(count), count - dropped

    def start(self, key: str, state: int | None) -> Step:
        return BatchStep(self)

    def combine(self, elements: Any) -> Any:
        """Makes one batch of the elements of a window; an error becomes a failed batch."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Batch(Batching):
    """Joins `batch_size` elements.

    Records become Frames; arrays, in dicts and tuples too, are stacked.
    """

    batch_size: int
    drop_remainder: bool = False

    @property
    def windows_of(self) -> int:
        return self.batch_size

    def element_spec(self, spec: Any) -> Any:
        return batch_spec(spec, self.batch_size if self.drop_remainder else None)

    def combine(self, elements: Any) -> Any:
        return make_batch(elements)


@dataclass(frozen=True, slots=True)
class PaddedBatch(Batching):
    """Joins `batch_size` elements whose arrays differ in length.

    It pads these to the longest or to a given shape.
    """

    batch_size: int
    padding: Padding = Padding()
    drop_remainder: bool = False

    def combine(self, elements: Any) -> Any:
        return self.padding.batch(elements)


@dataclass(frozen=True, slots=True)
class RaggedBatch(Batching):
    """Joins `batch_size` elements whose arrays differ in length to ragged tensors."""

    batch_size: int
    drop_remainder: bool = False

    def combine(self, elements: Any) -> Any:
        return make_ragged(elements)


def batch_spec(spec: Any, size: int | None) -> Any:
    """The spec of batches of `size` elements; None if the batches differ in size."""

    def part(spec: Any) -> Any:
        if isinstance(spec, RaggedTensorSpec):
            shape = None if spec.shape is None else (size, *spec.shape)
            return RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank + 1)
        return type(spec)(None if spec.shape is None else (size, *spec.shape), spec.dtype)

    return map_nest(part, spec)


class BatchStep(Step):
    """Joins elements to batches of one size.

    It holds only the elements of a batch that the next chunk continues.
    """

    def __init__(self, stage: Batching) -> None:
        super().__init__()
        self._size = stage.batch_size
        self._drop_remainder = stage.drop_remainder
        self._combine = stage.combine
        self._parts: list[Any] = []  # the elements of an incomplete batch
        self._slices: list[tuple[Positions, int, int]] = []
        self._held = 0
        self._end: tuple[Positions, int] | None = None

    def feed(self, chunk: Chunk) -> list[Chunk]:
        self.failures = []
        count = len(chunk.elements)
        first = min(count, self._size - self._held) if self._held else 0
        if first:
            self._hold(chunk, 0, first)
        completed = self._try_batch((chunk.positions, first)) if self._held == self._size else []
        last = count - (count - first) % self._size
        completed += self._split(chunk, first, last)
        if last < count:
            self._hold(chunk, last, count)
        self._end = (chunk.positions, count)
        return completed

    def flush(self) -> list[Chunk]:
        return self._try_batch(None) if self._parts and not self._drop_remainder else []

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Gives the elements before a failure as a smaller batch.

        The next batch begins after it.
        """
        left = self._try_batch(self._end) if self._parts and not self._drop_remainder else []
        self._release()
        return [*left, chunk]

    def _try_batch(self, end: tuple[Positions, int] | None) -> list[Chunk]:
        """Joins the held elements to a batch, or to a failure."""
        # Its end is not where its size puts it: it spans chunks, or the input ended or failed.
        positions = OneElement(tuple(self._slices), end)
        parts = self._release()
        try:
            batch = self._join(join_windows(parts))
            return [Chunk([batch], positions, weigh_one(batch))]
        except Exception as error:
            self.failures.append((error, 0))
            return [Chunk.failure(error, positions, 1)]

    def _split(self, chunk: Chunk, first: int, last: int) -> list[Chunk]:
        """Makes the batches whose elements are all in one chunk.

        Those of records share its memory.
        """
        if first == last:
            return []
        elements = window(chunk.elements, first, last)
        positions = IndexMap(chunk.positions, range(first, sys.maxsize, self._size), self._size)
        if isinstance(elements, Frames):
            return [Chunk(Batches(elements, self._size), positions, chunk.nbytes)]
        out: list[Chunk] = []
        batches: list[Any] = []
        for index, at in enumerate(range(0, last - first, self._size)):
            try:
                batches.append(self._join(window(elements, at, at + self._size)))
            except Exception as error:  # the batches before it are good, and go first
                self.failures.append((error, first + at))
                out += chunk_of(batches, positions, index)
                out.append(Chunk.failure(error, positions, index + 1))
                batches = []
        return [*out, *chunk_of(batches, positions, (last - first) // self._size)]

    def _join(self, elements: Any) -> Any:
        return elements if isinstance(elements, Frames) else self._combine(elements)

    def _hold(self, chunk: Chunk, first: int, last: int) -> None:
        self._parts.append(compact(window(chunk.elements, first, last)))
        self._slices.append((chunk.positions, first, last - first))
        self._held += last - first

    def _release(self) -> list[Any]:
        """Drops the held elements; returns their parts."""
        parts = self._parts
        self._parts = []
        self._slices = []
        self._held = 0
        return parts


def chunk_of(batches: list[Any], positions: Positions, end: int) -> list[Chunk]:
    """A list of one chunk with these batches, or an empty list without batches.

    The last batch ends at index `end`.
    """
    first = end - len(batches)
    return [Chunk.weigh(batches, shift(positions, first))] if batches else []


def make_batch(elements: Any) -> Any:
    """Joins elements to one batch: strings to Frames if the first is a record of Frames.

    Arrays are copied, since windows share their memory.
    """
    if isinstance(elements, Columns):
        return map_nest(make_batch, elements.nest)
    if isinstance(elements, Frames):
        return elements
    if isinstance(elements, RaggedRows | SparseRows):
        return elements.tensor()
    if isinstance(elements, Mixed) and isinstance(elements[:1], Frames):
        return Frames.of(elements)
    return elements.copy() if isinstance(elements, np.ndarray) else stack(elements)


def stack(elements: Sequence[Any]) -> Any:
    """Joins elements other than records to one batch, as tf.data does.

    Dicts and tuples are batched part by part. Arrays, numbers, and ragged and sparse tensors get a
    first dimension. `bytes` and `str` become an object array, which keeps trailing NULs.
    """
    return map_nests(stack_part, list(elements))


def stack_part(values: list[Any]) -> Any:
    """One part of a batch, from the values of that part; a ValueError if shapes differ."""
    kinds = set(map(type, values))
    if len(kinds) == 1 and (numbers := numbers_of(values, kinds.pop())) is not None:
        return numbers
    if all(isinstance(value, SparseTensor) for value in values):
        return stack_sparse(values)
    if all(isinstance(value, RaggedTensor) for value in values):
        return stack_ragged(values)
    if isinstance(values[0], bytes | str):
        return objects(values)
    arrays = [as_array(value) for value in values]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"elements of shapes {sorted(shapes)} cannot form one batch: map them to one shape"
        )
    return np.stack(arrays)


def numbers_of(values: list[Any], kind: type) -> npt.NDArray[Any] | None:
    """Numbers of one type as an array of their dtype; None if they have no common dtype."""
    if kind not in NUMBERS:
        return None
    array = np.array(values)  # all at once: one by one they cost twenty times as much
    return array if array.dtype == np.asarray(values[0]).dtype else None
