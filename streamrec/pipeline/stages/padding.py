"""Batches of arrays that differ in length: padded to one shape, or as ragged tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.example import RaggedTensor, SparseTensor
from streamrec.pipeline.elements.columns import Columns, as_array, is_nest, map_nest, map_nests
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows, stack_ragged, stack_sparse

__all__ = ["Padding", "make_ragged"]


@dataclass(frozen=True, slots=True)
class Padding:
    """How arrays are padded, as in tf.data.

    Args:
        shapes: For each part of an element its shape, with None or -1 where the longest counts; None: everywhere.
        values: For each part a number, or `bytes` for strings; None: 0 and empty strings. A single one is for all.
    """

    shapes: Any = None
    values: Any = None

    def batch(self, elements: Any) -> Any:
        """Elements as one batch."""
        values = elements.nest if isinstance(elements, Columns) else list(elements)
        return part(values, self.shapes, self.values, "element")


def part(values: Any, shapes: Any, padding: Any, place: str) -> Any:
    """One part of a batch, of a column, a nest of columns, or a list of what may be nests."""
    if isinstance(values, list) and is_nest(values[0]):
        values = map_nests(list, values)
    if not is_nest(values):
        return pad_column(values, shapes, padding, place)
    keys = list(values) if isinstance(values, dict) else list(range(len(values)))
    parts = [
        part(
            values[key],
            shapes if shapes is None else shapes[key],
            padding[key] if is_nest(padding) else padding,
            f"{place}[{key!r}]",
        )
        for key in keys
    ]
    if isinstance(values, dict):
        return dict(zip(keys, parts, strict=True))
    return type(values)(*parts) if hasattr(values, "_fields") else tuple(parts)


def pad_column(column: Any, shape: Any, value: Any, place: str) -> npt.NDArray[Any]:
    """The arrays of a column as one array, each filled up at its end."""
    if isinstance(column, RaggedRows) and column.values.ndim == 1 and column.values.dtype != object:
        [size] = sizes((int(column.lengths.max()),), shape, place)
        return column.pad(size, 0 if value is None else value)
    if isinstance(column, np.ndarray) and column.dtype != object:
        longest = column.shape[1:]
        if sizes(longest, shape, place) == longest:
            return column.astype(np.result_type(column))
    return pad_arrays([as_array(element) for element in column], shape, value, place)


def pad_arrays(arrays: list[npt.NDArray[Any]], shape: Any, value: Any, place: str) -> npt.NDArray[Any]:
    """Arrays of one rank as one array.

    Raises:
        ValueError: The arrays have several ranks, or one is larger than `shape`.
    """
    if len({array.ndim for array in arrays}) > 1:
        ranks = sorted({array.ndim for array in arrays})
        raise ValueError(f"{place}: arrays of {ranks} dimensions do not make one batch, however they are padded")
    longest = tuple(np.max([array.shape for array in arrays], axis=0).tolist()) if arrays[0].ndim else ()
    dtype = np.result_type(*arrays)
    fill = value if value is not None else b"" if dtype.kind == "O" else 0
    batch = np.full((len(arrays), *sizes(longest, shape, place)), fill, dtype)
    for index, array in enumerate(arrays):
        place_of: tuple[int | slice, ...] = (index, *(slice(size) for size in array.shape))
        batch[place_of] = array[()]
    return batch


def sizes(longest: tuple[int, ...], shape: Any, place: str) -> tuple[int, ...]:
    """The shape that arrays of up to these sizes are padded to.

    Raises:
        ValueError: One does not fit into the shape that is wanted.
    """
    wanted = (None,) * len(longest) if shape is None else tuple(shape)
    if len(wanted) != len(longest):
        raise ValueError(
            f"{place}: padded_shapes has {len(wanted)} dimensions, {wanted}, and arrays have {len(longest)}"
        )
    found = tuple(has if want in (None, -1) else int(want) for want, has in zip(wanted, longest, strict=True))
    if any(size < has for size, has in zip(found, longest, strict=True)):
        raise ValueError(f"{place}: an array of up to {[*longest]} does not fit into padded_shapes {wanted}")
    return found


def make_ragged(elements: Any) -> Any:
    """Elements as one batch, each array as a row of a ragged tensor; numbers and strings as an array."""
    if isinstance(elements, Columns):
        return map_nest(ragged_column, elements.nest)
    return map_nests(ragged_part, list(elements))


def ragged_column(column: Any) -> Any:
    """A column as one part of a ragged batch."""
    if isinstance(column, RaggedRows) and column.values.ndim == 1:
        return column.tensor()
    if isinstance(column, SparseRows):
        return column.tensor()
    return map_nests(ragged_part, list(column))


def ragged_part(values: list[Any]) -> Any:
    """One part of a ragged batch.

    Raises:
        ValueError: The arrays have several ranks.
    """
    if all(isinstance(value, SparseTensor) for value in values):
        return stack_sparse(values)
    if all(isinstance(value, RaggedTensor) for value in values):
        return stack_ragged(values)
    arrays = [as_array(value) for value in values]
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise ValueError(f"arrays of {sorted(ranks)} dimensions do not make one ragged batch")
    if not arrays[0].ndim:
        return pad_arrays(arrays, None, None, "element")
    flat = np.concatenate([array.ravel() for array in arrays])
    return RaggedTensor(flat, tuple(np.cumsum([0, *lengths], dtype=np.int64) for lengths in row_lengths(arrays)))


def row_lengths(arrays: list[npt.NDArray[Any]]) -> Iterator[list[int]]:
    """For each dimension, outermost first, the lengths of all its rows."""
    for axis in range(arrays[0].ndim):
        yield [array.shape[axis] for array in arrays for _ in range(int(np.prod(array.shape[:axis], dtype=int)))]
