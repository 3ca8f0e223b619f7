"""Batches of arrays that differ in length: padded arrays, or ragged tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.example import RaggedTensor, SparseTensor
from streamrec.pipeline.elements.columns import Columns, as_array, is_nest, map_nest, map_nests
from streamrec.pipeline.elements.ragged_rows import (
    RaggedRows,
    SparseRows,
    stack_ragged,
    stack_sparse,
)


@dataclass(frozen=True, slots=True)
class Padding:
    """How arrays are padded, as in tf.data.

    Args:
        shapes: The shape of each part of an element; None or -1 pads a dimension to the longest
            array. None: all do.
        values: A number for each part, or `bytes` for strings; None: 0 and empty strings. One value
            is for all parts.
    """

    shapes: Any = None
    values: Any = None

    def batch(self, elements: Any) -> Any:
        """Joins elements to one batch."""
        values = elements.nest if isinstance(elements, Columns) else list(elements)
        return pad(values, self.shapes, self.values, "element")


def pad(values: Any, shapes: Any, padding: Any, name: str) -> Any:
    """Pads a column, a nest of columns, or a list whose elements may be nests.

    Errors use `name`.
    """
    if isinstance(values, list) and is_nest(values[0]):
        values = map_nests(list, values)
    if not is_nest(values):
        return pad_column(values, shapes, padding, name)
    keys = list(values) if isinstance(values, dict) else list(range(len(values)))
    parts = [
        pad(
            values[key],
            shapes if shapes is None else shapes[key],
            padding[key] if is_nest(padding) else padding,
            f"{name}[{key!r}]",
        )
        for key in keys
    ]
    if isinstance(values, dict):
        return dict(zip(keys, parts, strict=True))
    return type(values)(*parts) if hasattr(values, "_fields") else tuple(parts)


def pad_column(column: Any, shape: Any, value: Any, name: str) -> npt.NDArray[Any]:
    """Joins the arrays of a column, each padded at its end."""
    if isinstance(column, RaggedRows) and column.values.ndim == 1 and column.values.dtype != object:
        [size] = padded_shape((int(column.lengths.max()),), shape, name)
        return column.pad(size, 0 if value is None else value)
    if isinstance(column, np.ndarray) and column.dtype != object:
        longest = column.shape[1:]
        if padded_shape(longest, shape, name) == longest:
            return column.astype(np.result_type(column))
    return pad_arrays([as_array(element) for element in column], shape, value, name)


def pad_arrays(
    arrays: list[npt.NDArray[Any]], shape: Any, value: Any, name: str
) -> npt.NDArray[Any]:
    """Joins arrays of one rank, each padded at its end."""
    if len(ranks := {array.ndim for array in arrays}) > 1:
        raise ValueError(
            f"{name}: arrays of {sorted(ranks)} dimensions cannot form one batch, even if padded"
        )
    longest = (
        tuple(np.max([array.shape for array in arrays], axis=0).tolist()) if arrays[0].ndim else ()
    )
    dtype = np.result_type(*arrays)
    fill = value if value is not None else b"" if dtype.kind == "O" else 0
    batch = np.full((len(arrays), *padded_shape(longest, shape, name)), fill, dtype)
    for index, array in enumerate(arrays):
        region: tuple[int | slice, ...] = (index, *(slice(size) for size in array.shape))
        batch[region] = array[()]
    return batch


def padded_shape(longest: tuple[int, ...], shape: Any, name: str) -> tuple[int, ...]:
    """The shape that arrays of up to these sizes are padded to.

    `shape` is what the user asked for.
    """
    shape = (None,) * len(longest) if shape is None else tuple(shape)
    if len(shape) != len(longest):
        raise ValueError(
            f"{name}: padded_shapes has {len(shape)} dimensions, {shape}, and arrays have "
            f"{len(longest)}"
        )
    sizes = tuple(
        most if size in (None, -1) else int(size) for size, most in zip(shape, longest, strict=True)
    )
    if any(size < most for size, most in zip(sizes, longest, strict=True)):
        raise ValueError(
            f"{name}: an array of up to {[*longest]} does not fit into padded_shapes {shape}"
        )
    return sizes


def make_ragged(elements: Any) -> Any:
    """Joins elements to one batch: arrays to ragged tensors, numbers and strings to arrays."""
    if isinstance(elements, Columns):
        return map_nest(ragged_column, elements.nest)
    return map_nests(ragged_part, list(elements))


def ragged_column(column: Any) -> Any:
    """A batch of the rows of a column; ragged rows of one dimension stay in their arrays."""
    if isinstance(column, SparseRows) or (
        isinstance(column, RaggedRows) and column.values.ndim == 1
    ):
        return column.tensor()
    return map_nests(ragged_part, list(column))


def ragged_part(values: list[Any]) -> Any:
    """One part of a ragged batch; a ValueError if the values differ in their dimensions."""
    if all(isinstance(value, SparseTensor) for value in values):
        return stack_sparse(values)
    if all(isinstance(value, RaggedTensor) for value in values):
        return stack_ragged(values)
    arrays = [as_array(value) for value in values]
    if len(ranks := {array.ndim for array in arrays}) > 1:
        raise ValueError(f"arrays of {sorted(ranks)} dimensions do not make one ragged batch")
    if not arrays[0].ndim:
        return pad_arrays(arrays, None, None, "element")
    flat = np.concatenate([array.ravel() for array in arrays])
    return RaggedTensor(
        flat, tuple(np.cumsum([0, *lengths], dtype=np.int64) for lengths in row_lengths(arrays))
    )


def row_lengths(arrays: list[npt.NDArray[Any]]) -> Iterator[list[int]]:
    """The lengths of all rows, for each dimension from the outermost on."""
    for axis in range(arrays[0].ndim):
        lengths: list[int] = []
        for array in arrays:
            rows = int(np.prod(array.shape[:axis], dtype=int))
            lengths += [array.shape[axis]] * rows
        yield lengths
