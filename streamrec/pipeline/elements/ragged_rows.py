"""RaggedRows, SparseRows: the rows of ragged or sparse tensors as columns, and their batches.

A column is a few arrays and the bounds of each row in them, so shuffling, picking, joining, padding
and batching need no object per row. As in tf.data, a batch of ragged tensors has one more ragged
dimension in front; a batch of sparse tensors has one more dimension, and in the others the largest
size of a row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.columns import check_column, check_splits, row_splits
from streamrec.pipeline.elements.positions import Numbers


class RaggedRows(Sequence[npt.NDArray[Any]]):
    """Arrays of numbers or strings that differ only in their first dimension.

    A row is `values[start:end]`, with the row's int64 `starts` and `ends`.

    Examples:
        >>> rows = RaggedRows(np.arange(6), np.array([0, 2, 2]), np.array([2, 2, 6]))
        >>> [row.tolist() for row in rows], rows[1:].lengths.tolist()
        ([[0, 1], [], [2, 3, 4, 5]], [0, 4])
    """

    __slots__ = ("ends", "splits_dtype", "starts", "values")

    def __init__(
        self, values: npt.NDArray[Any], starts: Numbers, ends: Numbers, splits_dtype: Any = np.int64
    ) -> None:
        self.values = values
        self.starts = starts
        self.ends = ends
        self.splits_dtype = splits_dtype

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        return self.values[self.starts[index] : self.ends[index]]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.values[start:end]

    @property
    def lengths(self) -> Numbers:
        return self.ends - self.starts

    @property
    def row_bytes(self) -> Numbers:
        """int64: the bytes of each row; of strings with their pointers."""
        if self.values.dtype == object:
            sizes = np.cumsum(
                [0, *(len(value) + self.values.itemsize for value in self.flat()[0].flat)]
            )
            ends = np.append(0, np.cumsum(self.lengths)) * int(np.prod(self.values.shape[1:]))
            return np.diff(sizes[ends])  # type: ignore[no-any-return]
        return self.lengths * (self.values.itemsize * int(np.prod(self.values.shape[1:])))

    @property
    def nbytes(self) -> int:
        return int(self.row_bytes.sum())

    def take(self, indices: Any) -> RaggedRows:
        """The rows at some indices, or in a slice; values are shared."""
        return RaggedRows(self.values, self.starts[indices], self.ends[indices], self.splits_dtype)

    def flat(self) -> tuple[npt.NDArray[Any], Numbers]:
        """All values in the order of rows, and the int64 row splits.

        Values are shared if the rows are in order.
        """
        splits = np.concatenate([[0], np.cumsum(self.lengths)])
        if not len(self):
            return self.values[:0], splits
        if np.array_equal(self.starts[1:], self.ends[:-1]):
            return self.values[self.starts[0] : self.ends[-1]], splits
        return np.concatenate(list(self), dtype=self.values.dtype), splits

    def compact(self) -> RaggedRows:
        """A copy of the rows, in order and without other values."""
        values, splits = self.flat()
        values = values.copy() if np.shares_memory(values, self.values) else values
        return RaggedRows(values, splits[:-1], splits[1:], self.splits_dtype)

    def tensor(self) -> RaggedTensor:
        """A ragged tensor with a copy of all rows."""
        rows = self.compact()
        return RaggedTensor(rows.values, (np.append(0, rows.ends).astype(self.splits_dtype),))

    def joins(self, other: object) -> bool:
        """Whether `join` can join both columns."""
        if not isinstance(other, RaggedRows):
            return False
        return (
            self.values.dtype == other.values.dtype
            and self.values.shape[1:] == other.values.shape[1:]
        )

    @classmethod
    def join(cls, parts: Sequence[RaggedRows]) -> RaggedRows:
        """A copy of the rows of several columns."""
        splits = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in parts]))])
        values = np.concatenate([part.flat()[0] for part in parts], dtype=parts[0].values.dtype)
        return cls(values, splits[:-1], splits[1:], parts[0].splits_dtype)

    def pad(self, size: int, fill: Any) -> npt.NDArray[Any]:
        """A 2D array of the 1D rows, padded to `size`; no row may be longer."""
        values, splits = self.flat()
        native = np.ascontiguousarray(values, np.result_type(values))
        memory = kernels.pad_rows(native, splits, size, np.full(1, fill, native.dtype))
        return np.ndarray((len(self), size), native.dtype, memoryview(memory))


class SparseRows(Sequence[SparseTensor]):
    """Sparse tensors of one rank.

    Each row has indices, int64 [n, rank], and n values. `shapes` has their dense shapes, int64
    [rows, rank].
    """

    __slots__ = ("indices", "shapes", "values")

    def __init__(self, indices: RaggedRows, values: RaggedRows, shapes: Numbers) -> None:
        self.indices = indices
        self.values = values
        self.shapes = shapes

    @classmethod
    def of(cls, tensor: SparseTensor) -> SparseRows:
        """The rows of a tensor.

        Raises a FeatureError if its indices are outside its dense shape or out of order.
        """
        bounds = row_splits(tensor)
        starts = bounds[:-1]
        ends = bounds[1:]
        shapes = np.broadcast_to(tensor.dense_shape[1:], (len(starts), len(tensor.dense_shape) - 1))
        indices = RaggedRows(tensor.indices[:, 1:], starts, ends)
        return cls(indices, RaggedRows(plain_values(tensor.values), starts, ends), shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        return SparseTensor(self.indices[index], self.values[index], self.shapes[index])

    @property
    def row_bytes(self) -> Numbers:
        """int64: about how many bytes each row keeps alive."""
        nbytes: Numbers = (
            self.indices.row_bytes
            + self.values.row_bytes
            + self.shapes.itemsize * self.shapes.shape[1]
        )
        return nbytes

    @property
    def nbytes(self) -> int:
        return int(self.row_bytes.sum())

    def take(self, indices: Any) -> SparseRows:
        """The rows at some indices, or in a slice; values are shared."""
        return SparseRows(
            self.indices.take(indices), self.values.take(indices), self.shapes[indices]
        )

    def compact(self) -> SparseRows:
        """A copy of the rows, in order and without other values."""
        return SparseRows(self.indices.compact(), self.values.compact(), self.shapes.copy())

    def tensor(self) -> SparseTensor:
        """A batch of all rows."""
        indices, _ = self.indices.flat()
        numbers = np.repeat(np.arange(len(self)), self.indices.lengths)
        shape = np.array([len(self), *self.shapes.max(0, initial=0)], np.int64)
        return SparseTensor(
            np.column_stack([numbers, indices]), self.values.compact().values, shape
        )

    def joins(self, other: object) -> bool:
        """Whether `join` can join both columns."""
        return (
            isinstance(other, SparseRows)
            and self.values.joins(other.values)
            and self.indices.joins(other.indices)
        )

    @classmethod
    def join(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """A copy of the rows of several columns."""
        indices = RaggedRows.join([part.indices for part in parts])
        values = RaggedRows.join([part.values for part in parts])
        return cls(indices, values, np.concatenate([part.shapes for part in parts]))


def ragged_rows(ragged: RaggedTensor) -> Sequence[Any]:
    """The rows of a ragged tensor.

    They are arrays, or ragged tensors if more than one dimension is ragged.
    """
    outer, *inner = check_splits(ragged)
    values = plain_values(ragged.flat_values)
    if not inner:
        bounds = outer.astype(np.int64, copy=False)
        return RaggedRows(values, bounds[:-1], bounds[1:], outer.dtype)
    return list(RaggedTensor(values, (outer, *inner)))


def stack_ragged(tensors: Sequence[RaggedTensor]) -> RaggedTensor:
    """Joins ragged tensors to one batch; a ValueError if their ranks or inner shapes differ."""
    for tensor in tensors:
        check_column(tensor)
    flat = [plain_values(tensor.flat_values) for tensor in tensors]
    kinds = {
        (len(tensor.nested_row_splits), values.shape[1:])
        for tensor, values in zip(tensors, flat, strict=True)
    }
    if len(kinds) > 1:
        names = " and ".join(
            f"{depth} ragged dimensions, inner shape {shape}" for depth, shape in sorted(kinds)
        )
        raise ValueError(f"ragged tensors of {names} cannot form one batch")
    levels = list(zip(*(tensor.nested_row_splits for tensor in tensors), strict=True))
    # The new outer dimension counts the rows of each tensor; the other levels are the tensors' own.
    lengths = [np.array([len(splits) - 1 for splits in levels[0]], np.int64)]
    lengths += [np.concatenate([np.diff(splits) for splits in level]) for level in levels]
    dtype = levels[0][0].dtype
    splits = tuple(np.append(0, np.cumsum(each)).astype(dtype) for each in lengths)
    return RaggedTensor(np.concatenate(flat), splits)


def stack_sparse(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Joins sparse tensors to one batch; a ValueError if their ranks differ."""
    for tensor in tensors:
        check_column(tensor)
    ranks = sorted({len(tensor.dense_shape) for tensor in tensors})
    if len(ranks) > 1:
        raise ValueError(f"sparse tensors of {ranks} dimensions cannot form one batch")
    numbers = np.repeat(np.arange(len(tensors)), [len(tensor.indices) for tensor in tensors])
    indices = np.concatenate([tensor.indices for tensor in tensors])
    values = np.concatenate([plain_values(tensor.values) for tensor in tensors])
    largest = np.max([tensor.dense_shape for tensor in tensors], axis=0)
    return SparseTensor(
        np.column_stack([numbers, indices]),
        values,
        np.array([len(tensors), *largest], np.int64),
    )


def plain_values(values: Any) -> npt.NDArray[Any]:
    """The values of a tensor as an array: a `BytesColumn` becomes an object array of bytes."""
    return values.to_numpy() if isinstance(values, BytesColumn) else values
