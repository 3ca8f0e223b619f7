"""What parsing returns: SparseTensor, RaggedTensor, and BytesColumn for strings without a copy."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BytesColumn", "RaggedTensor", "SparseTensor", "Values"]


class BytesColumn:
    """Byte strings as offsets over the buffer that they were parsed from (to come)."""


Values: TypeAlias = "npt.NDArray[Any] | BytesColumn"
"""Values of a column: int64, float32, an object array of bytes, or a BytesColumn where that was asked for."""


class SparseTensor(NamedTuple):
    """The values of a sparse array and where they stand.

    Args:
        indices: int64 of shape `[n, rank]`, in row-major order.
        values: The n values.
        dense_shape: int64 of shape `[rank]`.
    """

    indices: npt.NDArray[np.int64]
    values: Values
    dense_shape: npt.NDArray[np.int64]


class RaggedTensor(NamedTuple):
    """Values with one or more dimensions of rows that differ in length.

    Args:
        flat_values: All values, one after the other; more than one dimension where the innermost partitions
            are uniform.
        nested_row_splits: One array for each ragged dimension, outermost first: row i of a dimension goes
            from split i to split i + 1 of the next one.
    """

    flat_values: Values
    nested_row_splits: tuple[npt.NDArray[Any], ...]
