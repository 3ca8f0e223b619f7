"""Columns: elements that are dicts, tuples or rows of arrays, kept as columns.

An element becomes objects only when someone asks for it.

Rules:
- A column is Frames, an array (its rows are the values), RaggedRows, SparseRows, or any other
  sequence. All columns of some elements have one length.
- A nest is an element, or dicts and tuples of elements (named tuples too), as in tf.data; a list is
  not a nest.
- Elements of different containers, once joined, are Mixed.
- Windows share memory with the whole. Batches and joined parts are copies, except for Frames; short
  records of merged parts are copied once, long ones not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.arguments import describe_value, name_type
from streamrec.example import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.columns import CompositeTensor, with_nulls
from streamrec.pipeline.elements.positions import Numbers
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows, ragged_rows
from streamrec.tfrecord import Frames, Scattered, are_long, as_spans, join_frames


class Columns:
    """Elements whose values are in columns of one length, in dicts and tuples.

    Examples:
        >>> columns = Columns((np.arange(3), Frames.of([b"a", b"b", b"c"])))
        >>> len(columns), columns[1][1], len(columns[:2])
        (3, b'b', 2)
    """

    __slots__ = ("nest",)

    def __init__(self, nest: Any) -> None:
        self.nest = nest

    # Not at run time: the interpreter's own iterator knows how many elements are left.
    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int:
        return len(next(leaves(self.nest)))

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            first, last, _ = index.indices(len(self))
            return Columns(map_nest(lambda column: nest_of(window(column, first, last)), self.nest))
        if not 0 <= index < len(self):
            raise IndexError(index)
        return map_nest(lambda column: column[index], self.nest)


def window(elements: Any, first: int, last: int) -> Any:
    """Elements first to last (exclusive); Frames and arrays share memory."""
    return elements.window(first, last) if isinstance(elements, Frames) else elements[first:last]


def nest_of(elements: Any) -> Any:
    """The nest of columns; other elements are a column."""
    return elements.nest if isinstance(elements, Columns) else elements


def pieces(elements: Any) -> Iterator[list[Any]]:
    """All elements as objects, in new lists of at most 1,024; of long records fewer."""
    if isinstance(elements, Frames):
        yield from elements.pieces()
        return
    for first in range(0, len(elements), 1024):
        piece = elements[first : first + 1024]
        yield rows(piece.nest) if isinstance(piece, Columns) else list(piece)


def rows(nest: Any) -> list[Any]:
    """The elements of columns, as objects."""
    if not is_nest(nest):
        return list(nest)
    if isinstance(nest, dict):
        return [
            dict(zip(nest, values, strict=True))
            for values in zip(*map(rows, nest.values()), strict=True)
        ]
    values = zip(*map(rows, nest), strict=True)
    return [type(nest)(*parts) for parts in values] if hasattr(nest, "_fields") else list(values)


def select(elements: Any, indices: npt.NDArray[np.int64]) -> Any:
    """The elements at these indices.

    Few records of a large buffer are copied, so that the buffer can be freed.
    """
    if isinstance(elements, Columns):
        return Columns(map_nest(lambda column: nest_of(select(column, indices)), elements.nest))
    if isinstance(elements, np.ndarray):
        return elements[indices]
    if isinstance(elements, RaggedRows | SparseRows | Mixed):
        return elements.take(indices)
    if not isinstance(elements, Frames):
        return [elements[index] for index in indices.tolist()]
    return compact(elements.take(indices))


def compact(elements: Any) -> Any:
    """The same elements; records are copied out of a much larger buffer."""
    if isinstance(elements, Columns):
        return Columns(map_nest(compact, elements.nest))
    return elements.trim() if isinstance(elements, Frames) else elements


def join_windows(parts: Sequence[Any]) -> Any:
    """Joins windows: a container that all share is kept; others become Mixed."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if not all(joins(first, part) for part in parts[1:]):
        return Mixed.merging(parts, np.arange(sum(map(len, parts))))
    if isinstance(first, Frames):
        return join_frames([parts])
    if isinstance(first, np.ndarray):
        return np.concatenate(parts)
    if isinstance(first, RaggedRows | SparseRows):
        return type(first).join(parts)
    if isinstance(first, Columns):
        return Columns(map_nests(join_windows, [part.nest for part in parts]))
    return [element for part in parts for element in part]


def merge_windows(parts: Sequence[Any], order: Numbers) -> Any:
    """Merges elements of several windows.

    `order` has each one's index among the elements of all windows, back to back.

    A container that all windows share is kept; others become Mixed.
    """
    first = parts[0]
    if not all(joins(first, part) for part in parts[1:]):
        return Mixed.merging(parts, order)
    if isinstance(first, Frames):
        if are_long(sum(part.nbytes for part in parts), sum(map(len, parts))):
            return Scattered.in_turn([[part.trim() for part in parts]], 1).take(order)
        sources = np.repeat(np.arange(len(parts)), [len(part) for part in parts])[order]
        spans = np.concatenate([part.spans for part in parts])[order]
        buffer, packed = kernels.gather([part.buffer for part in parts], sources, spans)
        return Frames(buffer, as_spans(packed))
    if isinstance(first, Columns):
        return Columns(
            map_nests(lambda columns: merge_windows(columns, order), [part.nest for part in parts])
        )
    return (
        np.concatenate(parts)[order]
        if isinstance(first, np.ndarray)
        else select(join_windows(parts), order)
    )


def joins(one: Any, other: Any) -> bool:
    """Whether one container can hold the elements of both, unchanged."""
    if isinstance(one, Frames):
        return isinstance(other, Frames)
    if isinstance(one, Columns):
        return isinstance(other, Columns) and same_nest(one.nest, other.nest)
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and one.dtype == other.dtype
            and one.shape[1:] == other.shape[1:]
        )
    if isinstance(one, RaggedRows | SparseRows):
        return one.joins(other)
    return not isinstance(one, Mixed) and (type(other) is list or not isinstance(other, CONTAINERS))


class Mixed(list[Any]):
    """Elements of different containers.

    `order` has each one's index among the elements of all parts, back to back.

    A batch must not depend on where chunks end, since a resumed run has other chunks. So elements
    that were in one container are in such a container again when they are taken.
    """

    __slots__ = ("order", "parts")

    def __init__(self, parts: Sequence[Any], order: Numbers) -> None:
        elements = [element for part in parts for element in part]
        super().__init__([elements[index] for index in order.tolist()])
        self.parts = parts
        self.order = order

    @classmethod
    def merging(cls, windows: Sequence[Any], order: Numbers) -> Mixed:
        """The elements of several windows; `order` as for `merge_windows`."""
        firsts = np.cumsum([0, *map(len, windows)])
        orders = [
            each.order if isinstance(each, Mixed) else np.arange(len(each)) for each in windows
        ]
        indices = [first + each for first, each in zip(firsts, orders, strict=False)]
        order = np.concatenate(indices)[order]
        flat: list[Any] = []
        for each in windows:
            flat += each.parts if isinstance(each, Mixed) else [each]
        kinds = [
            next(kind for kind, first in enumerate(flat) if joins(first, part)) for part in flat
        ]
        # Parts that one container can hold are joined, so that elements that were in one container
        # are in one again, however many chunks they came in.
        by_kind = np.argsort(np.repeat(kinds, list(map(len, flat))), kind="stable")
        groups = [
            [part for part, kind in zip(flat, kinds, strict=True) if kind == group]
            for group in sorted({*kinds})
        ]
        return cls([join_windows(group) for group in groups], np.argsort(by_kind)[order])

    def __getitem__(self, index: Any) -> Any:
        return (
            self.take(np.arange(len(self))[index])
            if isinstance(index, slice)
            else super().__getitem__(index)
        )

    def take(self, indices: Numbers) -> Any:
        """The elements at these indices: Mixed only if their containers differ."""
        order = self.order[indices]
        first = 0
        parts = []
        places = []
        for part in self.parts:
            at = np.flatnonzero((order >= first) & (order < first + len(part)))
            if len(at):
                parts.append(select(part, order[at] - first))
                places.append(at)
            first += len(part)
        if len(parts) > 1:
            return merge_windows(parts, np.argsort(np.concatenate(places)))
        return parts[0] if parts else []


CONTAINERS = Frames | Columns | np.ndarray | RaggedRows | SparseRows | Mixed
"""Containers that make other batches of their elements than a list of these does."""


def in_turn(inputs: Sequence[Sequence[Any]], block: int) -> Any:
    """Merges elements of several inputs, each in windows, `block` of each in turn.

    The last turn may be shorter.
    """
    windows = [window for one in inputs for window in one]
    if all(isinstance(window, Frames) for window in windows):
        return join_frames(inputs, block)
    sizes = np.array([sum(map(len, one)) for one in inputs], np.int64)
    turns, within = np.divmod(np.arange(sizes.sum()), block)
    rounds, numbers = np.divmod(turns, len(inputs))
    order = (np.cumsum(sizes) - sizes)[numbers] + rounds * block + within
    return merge_windows(windows, order)


def rows_of(batch: Any) -> Any:
    """The elements of a batch: Frames for Frames, Columns for other batches."""
    if isinstance(batch, Frames):
        return batch
    nest = map_nest(column_of, batch)
    lengths = {len(column) for column in leaves(nest)}
    if len(lengths) != 1:
        raise ValueError(
            f"the columns have {sorted(lengths)} rows: all columns must have the same number of "
            "rows"
        )
    return Columns(nest)


def column_of(value: Any) -> Any:
    """One part of a batch as a sequence of rows; text becomes bytes, as in tf.data."""
    if isinstance(value, Frames):
        return value
    if isinstance(value, BytesColumn):
        return value.to_numpy()
    if isinstance(value, RaggedTensor):
        return ragged_rows(value)
    if isinstance(value, SparseTensor):
        return SparseRows.of(value)
    array = as_array(value)
    if array.ndim < 1:
        raise TypeError(f"{name_type(value)} has no rows: pass an array, a list or Frames")
    return array


def numpy_array(value: Any) -> npt.NDArray[Any]:
    """NumPy's array of a value; rows of different lengths are a ValueError that says so."""
    try:
        return np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{describe_value(value)} is not an array: its rows have different lengths: pad "
            "them, or make a RaggedTensor of them"
        ) from None


def as_array(value: Any) -> npt.NDArray[Any]:
    """Converts a value to an array; strings become objects, which keep trailing NULs."""
    if isinstance(value, CompositeTensor):
        raise TypeError(f"{name_type(value)} is not an array: map such elements to arrays")
    if isinstance(value, BytesColumn):
        return value.to_numpy()
    if isinstance(value, bytes | str):
        return objects([value]).reshape(())
    if isinstance(value, Frames):
        return strings(list(value))
    # NumPy would make a dtype "S" or "U" of these, which drops NULs at the end of strings.
    if isinstance(value, list) and any(isinstance(one, bytes | str) for one in value):
        array: npt.NDArray[Any] = strings(value)
    else:
        array = with_nulls(value, numpy_array(value))
    if np.ma.is_masked(value):
        raise TypeError("a masked array has masked values: fill them first")
    # An object without a length is neither a string nor an array; usually a function returned None.
    if array.dtype.hasobject and (
        odd := [one for one in array.flat if not hasattr(one, "__len__")]
    ):
        if value is None:
            raise TypeError(
                "None where numbers or bytes are expected: does the function of map return its "
                "element?"
            )
        raise TypeError(
            f"{describe_value(None if None in odd else odd[0])} in {name_type(value)} where "
            "numbers or bytes are expected: fill or convert it"
        )
    return (
        strings(array.ravel().tolist()).reshape(array.shape) if array.dtype.kind in "US" else array
    )


def strings(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """An object array of strings as bytes, which keeps trailing NULs."""
    return objects([value.encode() if isinstance(value, str) else value for value in values])


def objects(values: Sequence[Any]) -> npt.NDArray[np.object_]:
    """An object array of these values."""
    array = np.empty(len(values), object)
    array[:] = values
    return array


def is_nest(value: Any) -> bool:
    """Whether a value has parts that are elements: a dict or a tuple, but not a list."""
    return isinstance(value, dict | tuple)


def leaves(nest: Any) -> Iterator[Any]:
    """All values of a nest, in order."""
    if not is_nest(nest):
        yield nest
        return
    for part in nest.values() if isinstance(nest, dict) else nest:
        yield from leaves(part)


def map_nest(function: Callable[[Any], Any], nest: Any) -> Any:
    """A nest of the function's results for each value."""
    return map_nests(lambda values: function(values[0]), [nest])


def map_nests(function: Callable[[list[Any]], Any], nests: list[Any]) -> Any:
    """A nest of the function's results for corresponding values.

    The nests have one structure; the function gets a list with the value of each.
    """
    first = nests[0]
    if not is_nest(first):
        return function(nests)
    if isinstance(first, dict):
        return {key: map_nests(function, [nest[key] for nest in nests]) for key in first}
    parts = [map_nests(function, list(values)) for values in zip(*nests, strict=True)]
    return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)


def same_nest(one: Any, other: Any) -> bool:
    """Whether two nests have the same keys, lengths and tuple types; values may differ."""
    if not is_nest(one) or type(one) is not type(other):
        return not is_nest(one) and not is_nest(other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_nest(one[key], other[key]) for key in one)
    return len(one) == len(other) and all(map(same_nest, one, other))
