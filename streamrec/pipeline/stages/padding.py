"""Batches of arrays that differ in length: padded to one shape, or as ragged tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.example import RaggedTensor
from streamrec.pipeline.columns import as_array
from streamrec.pipeline.nests import is_nest, map_nests

__all__ = ["Padding", "ragged"]


@dataclass(frozen=True, slots=True)
class Padding:
    """How arrays are padded, as in tf.data.

    Args:
        shapes: For each part of an element its shape, with None or -1 where the longest counts; None: everywhere.
        values: For each part a number, or `bytes` for strings; None: 0 and empty strings. A single one is for all.
    """

    shapes: Any = None
    values: Any = None

    def batch(self, elements: Sequence[Any]) -> Any:
        """Elements as one batch."""
        return self._part(list(elements), self.shapes, self.values, "element")

    def _part(self, values: list[Any], shapes: Any, padding: Any, place: str) -> Any:
        first = values[0]
        if not is_nest(first):
            return padded([as_array(value) for value in values], shapes, padding, place)
        keys = list(first) if isinstance(first, dict) else list(range(len(first)))
        parts = [
            self._part(
                [value[key] for value in values],
                shapes if shapes is None else shapes[key],
                padding[key] if is_nest(padding) else padding,
                f"{place}[{key!r}]",
            )
            for key in keys
        ]
        if isinstance(first, dict):
            return dict(zip(keys, parts, strict=True))
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def padded(arrays: list[npt.NDArray[Any]], shape: Any, value: Any, place: str) -> npt.NDArray[Any]:
    """Arrays of one rank as one array, filled up behind each.

    Raises:
        ValueError: The arrays have several ranks, or one is larger than `shape`.
    """
    if len({array.ndim for array in arrays}) > 1:
        ranks = sorted({array.ndim for array in arrays})
        raise ValueError(f"{place}: arrays of {ranks} dimensions do not make one batch, however they are padded")
    longest = tuple(np.max([array.shape for array in arrays], axis=0)) if arrays[0].ndim else ()
    wanted = (None,) * len(longest) if shape is None else tuple(shape)
    if len(wanted) != len(longest):
        raise ValueError(
            f"{place}: padded_shapes has {len(wanted)} dimensions, {wanted}, and arrays have {len(longest)}"
        )
    sizes = [int(has) if want in (None, -1) else int(want) for want, has in zip(wanted, longest, strict=True)]
    if any(size < has for size, has in zip(sizes, longest, strict=True)):
        raise ValueError(f"{place}: an array of up to {[*map(int, longest)]} does not fit into padded_shapes {wanted}")
    dtype = np.result_type(*arrays)
    fill = value if value is not None else b"" if dtype.kind == "O" else 0
    batch = np.full((len(arrays), *sizes), fill, dtype)
    for index, array in enumerate(arrays):
        place_of: tuple[int | slice, ...] = (index, *(slice(size) for size in array.shape))
        batch[place_of] = array[()]
    return batch


def ragged(elements: Sequence[Any]) -> Any:
    """Elements as one batch, each array as a row of a ragged tensor; numbers and strings as an array."""
    return map_nests(ragged_part, list(elements))


def ragged_part(values: list[Any]) -> Any:
    """One part of a ragged batch.

    Raises:
        ValueError: The arrays have several ranks.
    """
    arrays = [as_array(value) for value in values]
    ranks = {array.ndim for array in arrays}
    if len(ranks) > 1:
        raise ValueError(f"arrays of {sorted(ranks)} dimensions do not make one ragged batch")
    if not arrays[0].ndim:
        return padded(arrays, None, None, "element")
    flat = np.concatenate([array.ravel() for array in arrays])
    return RaggedTensor(flat, tuple(np.cumsum([0, *lengths], dtype=np.int64) for lengths in row_lengths(arrays)))


def row_lengths(arrays: list[npt.NDArray[Any]]) -> Iterator[list[int]]:
    """For each dimension, outermost first, the lengths of all its rows."""
    for axis in range(arrays[0].ndim):
        yield [array.shape[axis] for array in arrays for _ in range(int(np.prod(array.shape[:axis], dtype=int)))]
