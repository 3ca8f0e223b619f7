"""The results of parsing: SparseTensor, RaggedTensor, and BytesColumn for uncopied strings."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import html, kernels
from streamrec.arguments import check_spans
from streamrec.errors import FeatureError
from streamrec.kernels.arrow_buffers import export_binary

MAX_EMPTY_ROWS: Final = 1 << 25
"""A batch may have this many more rows than values.

A few bytes that claim more must not fill the memory.
"""
NO_GAPS: Final = (
    "the values of a list are in order, without gaps: write indices and values as two features, "
    "and parse them with a SparseFeature"
)


class BytesColumn:
    """An array of byte strings without a copy: spans over the buffers that they were parsed from.

    The column keeps these buffers alive as a whole; `compact()` copies the strings to a buffer of
    their size. It is immutable, and creates its strings on demand. An interleaved or shuffled batch
    has several buffers: `buffer` and `spans` then copy the strings to one buffer, on first use.

    Args:
        buffer: A C-contiguous buffer of bytes.
        spans: int64 of shape `[*shape, 2]`: start and end of each string in `buffer`.

    A scalar feature of a single example is a column of shape `[]`; `column[()]` is its string.

    Attributes:
        places: int64 of shape `[*shape, 2]`, the spans; with several buffers `[*shape, 4]`: start,
            end, the number of the buffer times 2**32, and an unused number.

    Raises:
        ValueError: The spans have another shape, or leave the buffer.

    Example:
        >>> column = BytesColumn(b"onetwothree", np.array([[0, 3], [3, 6], [6, 11]]))
        >>> len(column), column[2], column[1:].to_numpy()
        (3, b'three', array([b'two', b'three'], dtype=object))
    """

    __slots__ = ("_joined", "_sources", "places")

    def __init__(self, buffer: Any, spans: npt.NDArray[np.int64]) -> None:
        view = memoryview(buffer).cast("B")
        spans = np.asarray(spans, dtype=np.int64)
        if spans.ndim < 1 or spans.shape[-1] != 2:
            raise ValueError(
                f"spans have the shape {spans.shape}: it must be [..., 2], start and end"
            )
        check_spans(spans, len(view))
        self.places = spans
        self._sources: tuple[Any, ...] = (view,)
        self._joined: BytesColumn | None = None

    @classmethod
    def of(cls, strings: Sequence[bytes], shape: tuple[int, ...] = (-1,)) -> BytesColumn:
        """Copies strings into a new column, back to back."""
        ends = np.cumsum([0, *map(len, strings)])
        return cls(b"".join(strings), np.stack([ends[:-1], ends[1:]], axis=-1).reshape(*shape, 2))

    @classmethod
    def over(cls, sources: Any, places: npt.NDArray[np.int64]) -> BytesColumn:
        """A column of unchecked places in one buffer, or in a tuple of buffers."""
        column = cls.__new__(cls)
        column.places = places
        column._sources = sources if isinstance(sources, tuple) else (sources,)
        column._joined = None
        return column

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The buffers of the strings: one, or several."""
        return tuple([memoryview(source).cast("B") for source in self._sources])

    @property
    def is_scattered(self) -> bool:
        """Whether the strings are in several buffers."""
        width: int = self.places.shape[-1]
        return width > 2

    @property
    def buffer(self) -> memoryview:
        """The buffer of the strings; scattered ones are copied to one on first use."""
        return self._in_one().buffers[0]

    @property
    def spans(self) -> npt.NDArray[np.int64]:
        """Start and end of each string in `buffer`, of shape `[*shape, 2]`."""
        return self._in_one().places

    def _in_one(self) -> BytesColumn:
        if not self.is_scattered:
            return self
        if self._joined is None:
            self._joined = self.compact()
        return self._joined

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array of strings."""
        return self.places.shape[:-1]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of bytes of each string, int64 of the column's shape."""
        lengths: npt.NDArray[np.int64] = self.places[..., 1] - self.places[..., 0]
        return lengths

    @property
    def nbytes(self) -> int:
        """Bytes of all strings together."""
        return int(self.lengths.sum())

    @property
    def pinned(self) -> int:
        """Bytes that the strings keep alive."""
        return sum(memoryview(source).nbytes for source in self._sources)

    def __len__(self) -> int:
        """The size of the first dimension; a TypeError for a scalar, as in NumPy."""
        if not self.shape:
            raise TypeError("a scalar BytesColumn has no length")
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        """One string as bytes; for any other NumPy index, a BytesColumn over the same buffers."""
        if isinstance(index, tuple):
            index = (*index, slice(None))
        places = self.places[index]
        if places.ndim == 1:
            return self._string(*places.tolist())
        return BytesColumn.over(self._sources, places)

    def _string(self, start: int, end: int, tag: int = 0, _: int = 0) -> bytes:
        return bytes(memoryview(self._sources[tag >> 32]).cast("B")[start:end])

    def __iter__(self) -> Iterator[Any]:
        """The strings, or the items of the first dimension."""
        if len(self.shape) == 1:
            return (self._string(*place) for place in self.places.tolist())
        return (self[index] for index in range(len(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self.compact()
        return BytesColumn, (bytes(packed.buffer), packed.spans)

    def __repr__(self) -> str:
        """Shape and bytes, not the strings."""
        return f"BytesColumn(shape={list(self.shape)}, bytes={self.nbytes:,})"

    def _repr_html_(self) -> str:
        """The first strings, for notebooks."""
        flat = self.reshape(-1)
        return html.payloads(repr(self), flat.lengths, flat)

    def reshape(self, *shape: int) -> BytesColumn:
        """The same strings in another shape."""
        return BytesColumn.over(self._sources, self.places.reshape(*shape, self.places.shape[-1]))

    def compact(self) -> BytesColumn:
        """A copy with the strings back to back in one new buffer."""
        flat = np.ascontiguousarray(self.places.reshape(-1, self.places.shape[-1]))
        if self.is_scattered:
            buffer, packed = kernels.pick(self._sources, flat)
        else:
            buffer, packed = kernels.gather(self._sources, None, flat)
        spans = np.frombuffer(memoryview(packed), np.int64).reshape(*self.shape, 2)
        return BytesColumn.over((memoryview(buffer),), spans)

    def to_numpy(self) -> npt.NDArray[np.object_]:
        """An object array of bytes of the column's shape, as parsing returns it by default."""
        array = np.empty(self.shape, dtype=object).reshape(-1)
        flat = self.places.reshape(-1, self.places.shape[-1])
        array[:] = [self._string(*place) for place in flat.tolist()]
        return array.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """NumPy's conversion; always a copy."""
        if copy is False:
            raise ValueError(
                "a BytesColumn cannot become an array without a copy: leave copy=False out"
            )
        return self.to_numpy() if dtype is None else self.to_numpy().astype(dtype)

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The strings as an Arrow large_binary array, through the Arrow PyCapsule interface.

        Arrow needs strings back to back, so they are copied once: `pyarrow.array(column)`.

        Raises:
            ValueError: The column has more than one dimension; reshape it first.
        """
        if len(self.shape) != 1:
            raise ValueError(
                f"Arrow arrays have one dimension, this column has {len(self.shape)}: reshape it"
            )
        packed = self.compact()
        return export_binary(packed.buffer, packed.spans, requested_schema)


Values: TypeAlias = "npt.NDArray[Any] | BytesColumn"
"""Values of a column: int64, float32, an object array of bytes, or, on request, a BytesColumn."""


class CompositeTensor:
    """The common base of ragged and sparse tensors.

    The constructors check nothing: a tensor is checked when it is converted, encoded, displayed or
    split into rows.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]]

    @property
    def parts(self) -> tuple[Any, ...]:
        """The fields, in order."""
        return tuple(getattr(self, name) for name in self.__match_args__)

    def map_parts(self, function: Callable[[Any], Any]) -> Self:
        """A tensor of the function's results for each part.

        The row splits, a tuple, are one part.
        """
        kind: Any = type(self)
        mapped: Self = kind(*map(function, self.parts))
        return mapped

    def to(self, device: Any, **options: Any) -> Self:
        """Moves the torch tensors in it to a device, like `torch.Tensor.to`."""
        return self.map_parts(lambda part: call_each(part, "to", device, **options))

    def pin_memory(self) -> Self:
        """Copies the torch tensors in it to pinned memory, as a DataLoader does."""
        return self.map_parts(lambda part: call_each(part, "pin_memory"))

    def __repr__(self) -> str:
        parts = zip(self.__match_args__, self.parts, strict=True)
        shown = ", ".join(f"{name}={format_values(part)}" for name, part in parts)
        return f"{type(self).__name__}({shown})"


@dataclass(slots=True, repr=False)
class SparseTensor(CompositeTensor):
    """The values of a sparse array and their positions.

    `tensor[i]` is row i, with one dimension less (in a tensor of one dimension a value; 0 or b"" if
    it is missing), `tensor[i:j]` is a tensor of some rows, and `len(tensor)` is the number of rows.

    Args:
        indices: int64 of shape `[n, rank]`, in row-major order.
        values: The n values.
        dense_shape: int64 of shape `[rank]`.
    """

    indices: npt.NDArray[np.int64]
    values: Values
    dense_shape: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.dense_shape[0])

    def __iter__(self) -> Iterator[Any]:
        splits = row_splits(self)
        return (self._rows(splits, row) for row in np.arange(len(self)))

    def __getitem__(self, index: Any) -> Any:
        return self._rows(row_splits(self), np.arange(len(self))[index])

    def _rows(self, splits: npt.NDArray[np.int64], rows: Any) -> Any:
        """One row, or a tensor of an array of rows."""
        places, new_splits = places_of_rows(splits, np.atleast_1d(rows))
        indices = np.asarray(self.indices)[places]
        values = select(self.values, places)
        shape = self.dense_shape
        if np.ndim(rows):
            indices[:, 0] = np.repeat(np.arange(len(rows)), np.diff(new_splits))
            return SparseTensor(indices, values, np.array([len(rows), *shape[1:]], np.int64))
        if len(shape) > 1:
            return SparseTensor(np.ascontiguousarray(indices[:, 1:]), values, shape[1:])
        return dense(values, [np.zeros(len(places), np.int64)], [1], None)[0]

    def to_dense(self, default_value: Any = None) -> npt.NDArray[Any]:
        """An array of `dense_shape`, as from `tf.sparse.to_dense`.

        By default missing values are 0 or b"".

        Examples:
            >>> indices = np.array([[0, 0], [2, 0], [2, 1]])
            >>> words = SparseTensor(indices, np.array([7, 8, 9]), np.array([3, 2]))
            >>> words.to_dense(-1).tolist(), words.to_list()
            ([[7, -1], [-1, -1], [8, 9]], [[7], [], [8, 9]])
        """
        return dense(self.values, check_indices(self).T, self.dense_shape, default_value)

    def to_list(self) -> list[Any]:
        """A list of values for each row; for two dimensions, as a VarLenFeature returns them."""
        return RaggedTensor(self.values, (list_splits(self),)).to_list()


@dataclass(slots=True, repr=False)
class RaggedTensor(CompositeTensor):
    """Values in rows of different lengths, with one or more ragged dimensions.

    `tensor[i]` is row i: an array, or a ragged tensor if there are more ragged dimensions.
    `tensor[i:j]` is a tensor of some rows, and `len(tensor)` is the number of rows.

    Args:
        flat_values: All values, one after the other; more than one dimension if the innermost
            partitions are uniform.
        nested_row_splits: One array for each ragged dimension, outermost first: row i of a
            dimension goes from split i to split i + 1 of the next one.
    """

    flat_values: Values
    nested_row_splits: tuple[npt.NDArray[Any], ...]

    def __len__(self) -> int:
        return len(self.nested_row_splits[0]) - 1

    def __iter__(self) -> Iterator[Any]:
        check_splits(self)
        return (self[row] for row in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        rows = np.arange(len(self))[index]
        kept: list[Any] = []
        if rows.ndim:
            for splits in check_splits(self):
                rows, new_splits = places_of_rows(splits, rows)
                kept.append(new_splits.astype(splits.dtype))
            return RaggedTensor(select(self.flat_values, rows), tuple(kept))
        first = int(rows)
        last = first + 1
        for splits in self.nested_row_splits:
            if not 0 <= first <= last < len(splits):
                check_splits(self)  # raises with the reason
            kept.append(splits[first : last + 1] - splits[first])
            first, last = int(splits[first]), int(splits[last])
        if not 0 <= first <= last <= len(self.flat_values):
            check_splits(self)
        values = self.flat_values[first:last]
        return RaggedTensor(values, tuple(kept[1:])) if kept[1:] else values

    def to_dense(self, default_value: Any = None) -> npt.NDArray[Any]:
        """An array with all rows padded to the longest, as from TensorFlow's `to_tensor`.

        By default with 0 or b"".

        Examples:
            >>> words = RaggedTensor(np.array([7, 8, 9]), (np.array([0, 1, 1, 3]),))
            >>> words.to_dense(-1).tolist(), words.to_list()
            ([[7, -1], [-1, -1], [8, 9]], [[7], [], [8, 9]])
        """
        levels = check_splits(self)
        count = len(levels[0]) - 1
        shape = [count]
        places = [np.arange(count)]
        for splits in levels:
            lengths = np.diff(splits)
            places = [np.repeat(place, lengths) for place in places]
            places.append(np.arange(len(places[0])) - np.repeat(splits[:-1], lengths))
            shape.append(int(lengths.max(initial=0)))
        return dense(self.flat_values, places, shape, default_value)

    def to_list(self) -> list[Any]:
        """Nested lists with a list for each row, as from TensorFlow's `to_list`."""
        values = objects_of(self.flat_values).tolist()
        for splits in reversed(check_splits(self)):
            values = [values[first:last] for first, last in pairwise(splits.tolist())]
        return list(values)


def places_of_rows(
    splits: npt.NDArray[Any], rows: npt.NDArray[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The indices of the values of selected rows, and the row splits of a tensor of these rows."""
    new_splits = np.append(0, np.cumsum(np.diff(splits)[rows]))
    offsets = splits[:-1][rows] - new_splits[:-1]
    return np.repeat(offsets, np.diff(new_splits)) + np.arange(new_splits[-1]), new_splits


def select(values: Any, places: npt.NDArray[Any]) -> Any:
    """The values at some indices; adapters may have strings in a list."""
    if isinstance(values, list):
        return [values[place] for place in places.tolist()]
    return values[places]


def call_each(part: Any, method: str, *args: Any, **options: Any) -> Any:
    """Calls a method of an array, or of each array in a tuple.

    An array without the method stays as it is.
    """
    if isinstance(part, tuple):
        return tuple(call_each(each, method, *args, **options) for each in part)
    return getattr(part, method)(*args, **options) if hasattr(part, method) else part


def format_values(values: Any) -> str:
    """The `repr` of an array or of a tuple of arrays, with long strings shortened."""
    if isinstance(values, tuple):
        return f"({', '.join(map(format_values, values))}{',' * (len(values) == 1)})"
    if not isinstance(values, np.ndarray) or values.dtype != object:
        return repr(values)
    return (
        f"array({np.array2string(values, separator=', ', formatter={'object': reprlib.repr})}, "
        "dtype=object)"
    )


def objects_of(values: Any) -> npt.NDArray[Any]:
    """Values as an array, with strings as objects; adapters may have strings in a list."""
    if isinstance(values, BytesColumn):
        return values.to_numpy()
    return np.array(values, object) if isinstance(values, list) else np.asarray(values)


def dense(
    values: Any, places: Iterable[Any], shape: Iterable[int], default: Any
) -> npt.NDArray[Any]:
    """An array with values at some places, and the default elsewhere.

    `places` has an array of indices for each dimension.
    """
    values = objects_of(values)
    out = np.empty((*shape, *values.shape[1:]), values.dtype)
    missing = (b"" if out.dtype == object else 0) if default is None else default
    out.fill(missing.encode() if isinstance(missing, str) else missing)
    out[tuple(places)] = values
    return out


Column: TypeAlias = "Values | SparseTensor | RaggedTensor"
"""The result of parsing a feature."""


def check_column(column: object, name: str | None = None) -> None:
    """Checks that a ragged or sparse tensor stays within its values and its shape."""
    if isinstance(column, RaggedTensor):
        check_splits(column, name)
    elif isinstance(column, SparseTensor):
        check_indices(column, name)


def check_splits(ragged: Any, name: str | None = None) -> list[npt.NDArray[Any]]:
    """Checks and returns the row splits of a ragged tensor, outermost first.

    The last of them splits the values.
    """
    levels = [np.asarray(splits) for splits in ragged.nested_row_splits]
    if not levels or not np.ndim(ragged.flat_values):
        raise FeatureError(
            "a ragged tensor has no row splits, or its values have no dimension: give both", name
        )
    for splits in levels:
        if splits.ndim != 1 or not len(splits) or splits.dtype.kind not in "iu":
            shape = f"row splits of shape {list(splits.shape)} and dtype {splits.dtype}"
            raise FeatureError(f"{shape} must be integers of shape [rows + 1]", name)
    # Arrow's readers, torch and jax trust splits, and read outside the values if these are wrong.
    counts = [*(len(inner) - 1 for inner in levels[1:]), len(ragged.flat_values)]
    for splits, count in zip(levels, counts, strict=True):
        first = int(splits[0])
        last = int(splits[-1])
        if first != 0 or last != count:
            reason = (
                f"row splits from {first:,} to {last:,} must go from 0 to {count:,}, the number of "
                "values"
            )
            raise FeatureError(f"{reason}: slice a ragged tensor by its rows, tensor[i:j]", name)
        descents = splits[1:] < splits[:-1]
        if descents.any():
            row = int(descents.argmax()) if splits is levels[0] else None
            raise FeatureError(
                "row splits descend: each row must end at or after its start", name, row
            )
    return levels


def check_indices(sparse: Any, name: str | None = None) -> npt.NDArray[np.int64]:
    """Checks and returns the indices of a sparse tensor, int64 of shape `[values, rank]`."""
    indices = np.asarray(sparse.indices)
    shape = np.asarray(sparse.dense_shape)
    count = len(sparse.values)
    # TensorFlow's and a user's tensors come here, too, so nothing is certain of the three.
    fits = shape.ndim == 1 and indices.shape == (count, len(shape))
    if not fits or indices.dtype.kind not in "iu" or shape.dtype.kind not in "iu":
        parts = (
            f"indices of shape {list(indices.shape)}, {count:,} values and a dense_shape of "
            f"{list(shape.shape)}"
        )
        raise FeatureError(
            f"{parts} are not a sparse tensor: it has integers of shape [n, rank], n and [rank]",
            name,
        )
    if (shape < 0).any():
        raise FeatureError(
            f"the dense_shape {shape.tolist()} of a sparse tensor has a negative size", name
        )
    outside = ((indices < 0) | (indices >= shape)).any(axis=1)
    if outside.any():
        index = indices[outside.argmax()].tolist()
        raise FeatureError(
            f"the index {index} of a sparse tensor is outside its dense_shape {shape.tolist()}",
            name,
        )
    return indices.astype(np.int64, copy=False)


def row_splits(sparse: Any, name: str | None = None) -> npt.NDArray[np.int64]:
    """The row splits of a sparse tensor, whose values must be in the order of their rows."""
    indices = check_indices(sparse, name)
    if not indices.shape[1]:
        raise FeatureError("a sparse tensor without a dimension has no rows", name)
    rows = indices[:, 0]
    count = int(sparse.dense_shape[0])
    if count > MAX_EMPTY_ROWS + len(rows):
        reason = f"a sparse tensor of {count:,} rows has only {len(rows):,} values"
        raise FeatureError(f"{reason}: only {MAX_EMPTY_ROWS:,} rows may be empty", name)
    descents = rows[1:] < rows[:-1]
    if descents.any():
        row = int(rows[1:][descents.argmax()])
        raise FeatureError("sparse values are out of order: sort them by their indices", name, row)
    return np.append(0, np.cumsum(np.bincount(rows, minlength=count)))


def list_splits(sparse: Any, name: str | None = None) -> npt.NDArray[np.int64]:
    """The row splits of a sparse tensor whose rows are lists without gaps.

    `tf.RaggedTensor.from_sparse` needs such rows, too.
    """
    splits = row_splits(sparse, name)
    indices = np.asarray(sparse.indices)
    if indices.shape[1] != 2:
        reason = (
            f"a sparse tensor has {indices.shape[1]} dimensions: it must have 2, a list in each row"
        )
        raise FeatureError(f"{reason}; parse the feature with a RaggedFeature", name)
    rows = indices[:, 0]
    places = indices[:, 1]
    wrong = np.flatnonzero(places != np.arange(len(rows)) - splits[:-1][rows])
    if len(wrong):
        row, place = indices[wrong[0]].tolist()
        raise FeatureError(
            f"row {row:,} is not a list (index {place:,} is not the next one): {NO_GAPS}", name, row
        )
    return splits


def with_nulls(value: Any, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """An Arrow, Polars or pandas column's array.

    If NumPy made null NaN, an array of objects with None instead.
    """
    na_value = getattr(getattr(value, "dtype", None), "na_value", None)
    may_have_nulls = hasattr(value, "null_count") or type(na_value).__name__ == "NAType"
    if not may_have_nulls or not holds_nan(array):
        return array
    if hasattr(value, "isna"):
        items = array.astype(object)
        items[np.asarray(value.isna())] = None
        return items
    items = value.to_pylist() if hasattr(value, "to_pylist") else value.to_list()
    restored = np.empty(len(items), object)
    for row, item in enumerate(items):
        restored[row] = item
    return restored


def holds_nan(array: npt.NDArray[Any]) -> bool:
    """Whether floats, also in arrays within an object array, have a NaN."""
    if array.dtype == object:
        return any(isinstance(item, np.ndarray) and holds_nan(item) for item in array.flat)
    return array.dtype.kind == "f" and bool(np.isnan(array).any())
