"""RaggedRows: the rows of a ragged tensor as a column, one flat array and where each row lies in it.

Shuffled, picked, joined, padded or made ragged again, it costs no object per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from streamrec import kernels

__all__ = ["RaggedRows"]

Numbers = npt.NDArray[np.int64]


class RaggedRows(Sequence[npt.NDArray[Any]]):
    """Arrays of numbers that differ in their first dimension alone.

    Args:
        values: What they lie in, one after the other or not.
        starts: int64: where each begins.
        ends: int64: where each ends, exclusive.

    Examples:
        >>> rows = RaggedRows(np.arange(6), np.array([0, 2, 2]), np.array([2, 2, 6]))
        >>> [row.tolist() for row in rows], rows[1:].lengths.tolist()
        ([[0, 1], [], [2, 3, 4, 5]], [0, 4])
    """

    __slots__ = ("ends", "starts", "values")

    def __init__(self, values: npt.NDArray[Any], starts: Numbers, ends: Numbers) -> None:
        self.values = values
        self.starts = starts
        self.ends = ends

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> RaggedRows: ...
    def __getitem__(self, index: int | slice) -> npt.NDArray[Any] | RaggedRows:
        if isinstance(index, slice):
            return RaggedRows(self.values, self.starts[index], self.ends[index])
        return self.values[self.starts[index] : self.ends[index]]

    def __iter__(self) -> Iterator[npt.NDArray[Any]]:
        for start, end in zip(self.starts.tolist(), self.ends.tolist(), strict=True):
            yield self.values[start:end]

    @property
    def lengths(self) -> Numbers:
        """int64: how long each is."""
        return self.ends - self.starts

    @property
    def row_bytes(self) -> Numbers:
        """int64: how many bytes each has."""
        return self.lengths * (self.values.itemsize * int(np.prod(self.values.shape[1:])))

    @property
    def nbytes(self) -> int:
        """How many bytes all have."""
        return int(self.row_bytes.sum())

    def picked(self, indices: Numbers) -> RaggedRows:
        """These, in this order, where they lie."""
        return RaggedRows(self.values, self.starts[indices], self.ends[indices])

    def flat(self) -> tuple[npt.NDArray[Any], Numbers]:
        """All values, one row after the other, and the int64 row splits: without a copy where they lie so."""
        splits = np.concatenate([[0], np.cumsum(self.lengths)])
        if not len(self):
            return self.values[:0], splits
        if np.array_equal(self.starts[1:], self.ends[:-1]):
            return self.values[self.starts[0] : self.ends[-1]], splits
        return np.concatenate(list(self), dtype=self.values.dtype), splits

    def compact(self) -> RaggedRows:
        """The same, in memory that holds nothing else."""
        values, splits = self.flat()
        own = values.copy() if np.shares_memory(values, self.values) else values
        return RaggedRows(own, splits[:-1], splits[1:])

    def joins(self, other: object) -> bool:
        """Whether rows of both fit into one column."""
        if not isinstance(other, RaggedRows):
            return False
        return self.values.dtype == other.values.dtype and self.values.shape[1:] == other.values.shape[1:]

    @classmethod
    def joined(cls, parts: Sequence[RaggedRows]) -> RaggedRows:
        """The rows of several that fit; a copy."""
        found = [part.flat() for part in parts]
        splits = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(splits) for _, splits in found]))])
        values = np.concatenate([values for values, _ in found], dtype=parts[0].values.dtype)
        return cls(values, splits[:-1], splits[1:])

    def padded(self, size: int, fill: Any) -> npt.NDArray[Any]:
        """An array of rows of one size, none of which may be longer; of rows of one dimension."""
        values, splits = self.flat()
        native = np.ascontiguousarray(values, np.result_type(values))
        memory = kernels.pad_rows(native, splits, size, np.full(1, fill, native.dtype))
        return np.ndarray((len(self), size), native.dtype, memoryview(memory))
