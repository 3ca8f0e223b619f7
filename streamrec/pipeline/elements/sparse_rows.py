"""SparseRows: the rows of a sparse tensor as a column, and how sparse tensors become one batch.

Shuffled, picked, joined or batched again, the rows cost no object each. A batch is as tf.data makes it: one dimension
more in front, and of the others the largest that a row has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from streamrec.example import BytesColumn, SparseTensor
from streamrec.example.columns import check_column, row_splits

__all__ = ["SparseRows", "stacked_sparse"]

Numbers = npt.NDArray[np.int64]


class SparseRows(Sequence[SparseTensor]):
    """Sparse tensors of one rank.

    Args:
        indices: int64 of shape [n, rank]: where the values stand, each within its row.
        values: The n values.
        starts: int64: where the values of each row begin.
        ends: int64: where they end, exclusive.
        shapes: int64 of shape [rows, rank]: the dense shape of each row.
    """

    __slots__ = ("ends", "indices", "shapes", "starts", "values")

    def __init__(
        self, indices: Numbers, values: npt.NDArray[Any], starts: Numbers, ends: Numbers, shapes: Numbers
    ) -> None:
        self.indices = indices
        self.values = values
        self.starts = starts
        self.ends = ends
        self.shapes = shapes

    @classmethod
    def of(cls, tensor: SparseTensor) -> SparseRows:
        """The rows of a tensor of one dimension or more.

        Raises:
            FeatureError: Its indices are outside its dense shape, or out of order.
        """
        bounds = row_splits(tensor)
        shapes = np.broadcast_to(tensor.dense_shape[1:], (len(bounds) - 1, len(tensor.dense_shape) - 1))
        return cls(tensor.indices[:, 1:], plain_values(tensor), bounds[:-1], bounds[1:], shapes)

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> SparseTensor: ...
    @overload
    def __getitem__(self, index: slice) -> SparseRows: ...
    def __getitem__(self, index: int | slice) -> SparseTensor | SparseRows:
        if isinstance(index, slice):
            return self.picked(index)
        stretch = slice(self.starts[index], self.ends[index])
        return SparseTensor(self.indices[stretch], self.values[stretch], self.shapes[index])

    @property
    def row_bytes(self) -> Numbers:
        """int64: about how many bytes each keeps alive."""
        each = self.indices.itemsize * self.indices.shape[1] + self.values.itemsize
        found: Numbers = (self.ends - self.starts) * each + self.shapes.itemsize * self.shapes.shape[1]
        return found

    @property
    def nbytes(self) -> int:
        """About how many bytes all keep alive."""
        return int(self.row_bytes.sum())

    def picked(self, indices: Any) -> SparseRows:
        """These, by indices or a slice, where they lie."""
        return SparseRows(self.indices, self.values, self.starts[indices], self.ends[indices], self.shapes[indices])

    def compact(self) -> SparseRows:
        """The same, in memory that holds nothing else."""
        counts = self.ends - self.starts
        ends = np.cumsum(counts)
        taken = np.repeat(self.starts - (ends - counts), counts) + np.arange(int(counts.sum()))
        return SparseRows(self.indices[taken], self.values[taken], ends - counts, ends, self.shapes.copy())

    def tensor(self) -> SparseTensor:
        """All rows as one batch."""
        rows = self.compact()
        numbers = np.repeat(np.arange(len(rows)), rows.ends - rows.starts)
        indices = np.column_stack([numbers, rows.indices])
        return SparseTensor(indices, rows.values, np.array([len(rows), *rows.shapes.max(0, initial=0)], np.int64))

    def joins(self, other: object) -> bool:
        """Whether rows of both fit into one column."""
        if not isinstance(other, SparseRows):
            return False
        return self.values.dtype == other.values.dtype and self.shapes.shape[1] == other.shapes.shape[1]

    @classmethod
    def joined(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """The rows of several that fit; a copy."""
        found = [part.compact() for part in parts]
        offsets = np.cumsum([0, *(len(part.values) for part in found[:-1])])
        return cls(
            np.concatenate([part.indices for part in found]),
            np.concatenate([part.values for part in found]),
            np.concatenate([part.starts + offset for part, offset in zip(found, offsets, strict=True)]),
            np.concatenate([part.ends + offset for part, offset in zip(found, offsets, strict=True)]),
            np.concatenate([part.shapes for part in found]),
        )


def stacked_sparse(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Sparse tensors as one batch.

    Raises:
        ValueError: They are of several ranks, or one is not sound.
    """
    for tensor in tensors:
        check_column(tensor)
    ranks = sorted({len(tensor.dense_shape) for tensor in tensors})
    if len(ranks) > 1:
        raise ValueError(f"sparse tensors of {ranks} dimensions do not make one batch")
    numbers = np.repeat(np.arange(len(tensors)), [len(tensor.indices) for tensor in tensors])
    return SparseTensor(
        np.column_stack([numbers, np.concatenate([tensor.indices for tensor in tensors])]),
        np.concatenate([plain_values(tensor) for tensor in tensors]),
        np.array([len(tensors), *np.max([tensor.dense_shape for tensor in tensors], axis=0)], np.int64),
    )


def plain_values(tensor: SparseTensor) -> npt.NDArray[Any]:
    """A tensor's values as an array."""
    return tensor.values.to_numpy() if isinstance(tensor.values, BytesColumn) else tensor.values
