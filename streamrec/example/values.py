"""Converts the values of a feature, or of a column of features, to an Example's three kinds.

Rules of this file:
- The value determines the kind, as in TensorFlow's TFRecord tutorial: bytes and str are bytes
  (UTF-8); bool, enums and every integer are int64; every float is float32, rounded to nearest,
  infinite if it is too large.
- An empty array has a kind. An empty list has none: its Feature is written without a kind,
  which TensorFlow reads as a missing feature. Declare the kind to write an empty list of that kind.
- A declared kind takes precedence. An integer fits a declared float, or a list with a float.
  Nothing else is converted: a float never becomes an int64, a number never becomes a string, other
  mixed types are an error.
- Arrays of more than one dimension are flattened in row-major order; an Example has no shapes.
- None, and null in a column of Arrow or Polars, is an error. (NumPy would convert the column to
  floats, and null to NaN.)
- Every error is a FeatureError with the feature's name and both types.
- A column has one row for each record. The rows are those of an array's first dimension, the items
  of a list, the rows of a ragged tensor of one ragged dimension or of a sparse tensor whose rows
  are lists, or the byte strings of Frames (or of any `buffer` with `spans`).
- A list's kind is that of its rows; rows without a kind (empty lists) get the kind of the others.
- Values in their final form (int64, float32, bytes, a buffer with spans) are not copied.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.arguments import check_mapping, describe_value, name_type
from streamrec.errors import FeatureError
from streamrec.example.columns import (
    NO_GAPS,
    RaggedTensor,
    check_indices,
    check_splits,
    list_splits,
    with_nulls,
)
from streamrec.example.features import FIELDS, Dtype, as_dtype

Data: TypeAlias = npt.NDArray[Any] | tuple[bytes, ...]


class KindValues(NamedTuple):
    """The values of one feature.

    They are int64 or float32 of shape `[n]`, C-contiguous, or a tuple of bytes.

    A feature without a kind is written without a list; it has an empty tuple.
    """

    kind: Dtype | None
    data: Data


class PackedColumn(NamedTuple):
    """One feature of many records.

    Args:
        values: int64 or float32 of shape `[values]`, a tuple of bytes, or the buffer of `spans`.
        spans: int64 of shape `[values, 2]`, the start and end of each byte string in the buffer; or
            None.
        splits: int64 of shape `[rows + 1]`: row i has the values from split i to split i + 1. Or an
            int: the number of values in every row.
        rows: The number of records.
    """

    name: str
    kind: Dtype | None
    values: Any
    spans: npt.NDArray[np.int64] | None = None
    splits: npt.NDArray[np.int64] | int = 0
    rows: int = 0


_NOTHING = KindValues(None, ())
_ACCEPTED = "bytes, str, bool, int, float, or a list or array of these"
_KINDS_OF_DTYPES: Mapping[str, Dtype] = {
    "b": np.int64,
    "i": np.int64,
    "u": np.int64,
    "f": np.float32,
}
_ML_DTYPES: Mapping[str, Dtype] = {
    "bfloat16": np.float32,
    "float": np.float32,
    "int": np.int64,
    "uint": np.int64,
}
_EXACT: Mapping[type, Dtype] = {
    bytes: bytes,
    str: bytes,
    int: np.int64,
    bool: np.int64,
    float: np.float32,
}
_INT64 = np.iinfo(np.int64)
_LITTLE_INT64 = np.dtype("<i8")
_LITTLE_FLOAT32 = np.dtype("<f4")


def resolve_kinds(kinds: Mapping[str, Any] | None, names: Mapping[str, Any]) -> dict[str, Dtype]:
    """Converts what was declared of the features `names` to kinds.

    It may be dtypes, Python types, names or feature configurations.
    """
    if not kinds:
        return {}
    return {name: _resolve_kind(dtype, name) for name, dtype in kinds.items() if name in names}


def _resolve_kind(dtype: object, name: str) -> Dtype:
    if not isinstance(dtype, type | str):  # NumPy's own types have a `dtype`, too: a property
        dtype = getattr(dtype, "dtype", dtype)
    try:
        return as_dtype(dtype)
    except FeatureError as error:
        raise FeatureError(error.reason, name) from error


def to_values(value: Any, declared: Dtype | None = None, name: str | None = None) -> KindValues:
    """Converts the value of one feature to flat values and their kind."""
    kind = _EXACT.get(type(value))
    if kind is not None:
        return _of_leaves((value,), {type(value)}, declared, name)
    if isinstance(value, np.ndarray):
        return _of_array(value, declared, name)
    if is_composite(value):
        return _of_composite(value, declared, name)
    if isinstance(value, list | tuple | range):
        types = set(map(type, value))
        if not types <= _EXACT.keys():
            value = _leaves(value, name)
            types = set(map(type, value))
        return _of_leaves(value, types, declared, name)
    if natural_kind(type(value)) is not None or isinstance(value, enum.Enum):
        return _of_leaves((value,), {type(value)}, declared, name)
    if hasattr(value, "WhichOneof"):
        return _of_message(value, declared, name)
    return _of_array(_as_array(value, name), declared, name)


def natural_kind(of: type) -> Dtype | None:
    """The kind of a scalar's type; None for any other type."""
    kind = _EXACT.get(of)
    if kind is not None:
        return kind
    if issubclass(of, int | np.integer | np.bool_):
        return np.int64
    if issubclass(of, float | np.floating):
        return np.float32
    if issubclass(of, bytes | str | bytearray | memoryview):
        return bytes
    return _ml_dtype_kind(of.__name__) if of.__module__ == "ml_dtypes" else None


def is_composite(value: Any) -> bool:
    """Whether the value is a ragged or sparse tensor, ours or TensorFlow's."""
    return hasattr(value, "dense_shape") or hasattr(value, "nested_row_splits")


def _of_composite(value: Any, declared: Dtype | None, name: str | None) -> KindValues:
    """The values of a sparse tensor of one dimension, as parse_single_example returns it."""
    if len(getattr(value, "dense_shape", ())) != 1:
        advice = (
            "encode_examples and write(batched=True) take a batch; an Example holds one list of "
            "each feature"
        )
        raise FeatureError(
            f"{name_type(value)} of several rows where one list is expected; {advice}", name
        )
    indices = check_indices(value, name)[:, 0]
    wrong = np.flatnonzero(indices != np.arange(len(indices)))
    if len(wrong):
        raise FeatureError(
            f"index {indices[wrong[0]]:,} of a sparse tensor is not the next one: {NO_GAPS}", name
        )
    return to_values(value.values, declared, name)


def _ml_dtype_kind(name: str) -> Dtype | None:
    """The kind of a dtype of ml_dtypes, such as bfloat16, float8_e5m2 or int4.

    NumPy gives all of these the kind "V".
    """
    family = name if name == "bfloat16" else name.partition("_")[0].rstrip("0123456789")
    return _ML_DTYPES.get(family)


def _check_declared(
    kind: Dtype | None, found: str, declared: Dtype | None, name: str | None
) -> Dtype | None:
    """The kind to write: the declared one, which the natural one must fit."""
    if declared is None or declared is kind:
        return kind
    if declared is np.float32 and kind is np.int64:
        return declared
    advice = f"give {declared.__name__} or declare another kind"
    if declared is np.int64 and "float" in found:
        advice = "round or cut the values yourself and convert them with .astype(np.int64)"
    raise FeatureError(f"{found} where {declared.__name__} is expected; {advice}", name)


def _of_message(feature: Any, declared: Dtype | None, name: str | None) -> KindValues:
    """The values and kind of a Feature message, ours or TensorFlow's."""
    field = feature.WhichOneof("kind") if hasattr(feature, "int64_list") else None
    if field is None:
        if hasattr(feature, "int64_list"):
            return _NOTHING
        raise FeatureError(f"{name_type(feature)} message where a Feature is expected", name)
    value = list(getattr(feature, field).value)
    kind = FIELDS[field]
    _check_declared(kind, f"{kind.__name__} (in a Feature)", declared, name)
    return _of_leaves(value, set(map(type, value)), declared or kind, name)


def _as_array(value: Any, name: str | None) -> npt.NDArray[Any]:
    if value is None or not hasattr(value, "__array__"):
        advice = "leave the feature out of the record" if value is None else "convert it"
        raise FeatureError(f"{name_type(value)} where {_ACCEPTED} is expected; {advice}", name)
    try:
        return with_nulls(value, np.asarray(value))
    except Exception as error:  # whatever a foreign tensor raises when it gives no array
        found = f"{name_type(value)} ({getattr(value, 'dtype', 'no dtype')})"
        raise FeatureError(f"{found} gives no NumPy array: {error}; convert it", name) from error


def _of_array(array: npt.NDArray[Any], declared: Dtype | None, name: str | None) -> KindValues:
    if np.ma.is_masked(array):
        raise FeatureError("a masked array lacks some values; fill it first", name)
    if array.dtype.kind in "SUTO":
        leaves = array.ravel().tolist()
        empty = None if array.dtype.kind == "O" else bytes
        return _of_leaves(leaves, set(map(type, leaves)), declared, name, empty)
    kind = _KINDS_OF_DTYPES.get(array.dtype.kind)
    if kind is None and array.dtype.type.__module__ == "ml_dtypes":
        kind = _ml_dtype_kind(array.dtype.name)
    if kind is None:
        advice = "convert it to int64 or float32, or store it with serialize_tensor"
        raise FeatureError(f"{array.dtype} values where {_ACCEPTED} is expected; {advice}", name)
    kind = _check_declared(kind, str(array.dtype), declared, name)
    return KindValues(kind, _to_floats(array) if kind is np.float32 else _to_int64(array, name))


def _to_floats(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)  # protobuf goes through a double, too
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=_LITTLE_FLOAT32).ravel()


def _to_int64(array: npt.NDArray[Any], name: str | None) -> npt.NDArray[np.int64]:
    if (
        array.dtype.kind == "u"
        and array.dtype.itemsize == 8
        and array.size
        and array.max() > _INT64.max
    ):
        raise FeatureError(
            f"uint64 {array.max()} where int64 is expected; the largest is {_INT64.max}", name
        )
    return np.ascontiguousarray(array, dtype=_LITTLE_INT64).ravel()


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value),) if isinstance(value, list | tuple | range) else np.shape(value)


def _leaves(value: Sequence[Any], name: str | None) -> Sequence[Any]:
    """The scalars of a list or of rectangular nested lists and arrays, in row-major order."""
    for item in value:
        if is_composite(item):
            _of_composite(item, None, name)
            raise FeatureError(f"{name_type(item)} within a list; give its values", name)
    nested = [isinstance(item, list | tuple | range | np.ndarray) for item in value]
    if not any(nested):
        return value
    if not all(nested):
        one = value[nested.index(True)]
        other = value[nested.index(False)]
        raise FeatureError(
            f"a ragged list: {type(one).__name__} next to {type(other).__name__}", name
        )
    shapes = [_shape(item) for item in value]
    if len(set(shapes)) > 1:
        found = next(shape for shape in shapes if shape != shapes[0])
        raise FeatureError(
            f"a ragged list: rows of shape {list(shapes[0])} and {list(found)}; an Example holds "
            "flat lists: give the values flat and the row lengths as a feature of their own",
            name,
        )
    rows = [item.tolist() if isinstance(item, np.ndarray) else item for item in value]
    if shapes[0] == ():  # arrays without a dimension
        return rows
    return _leaves([leaf for row in rows for leaf in row], name)


def _of_leaves(
    leaves: Sequence[Any],
    types: set[type],
    declared: Dtype | None,
    name: str | None,
    empty: Dtype | None = None,
) -> KindValues:
    """The values of scalars of these types; `empty` is the kind if there are none."""
    if not leaves and empty is None:
        return KindValues(declared, () if declared in (None, bytes) else np.empty(0, declared))
    if not types <= _EXACT.keys() and any(issubclass(found, enum.Enum) for found in types):
        leaves = [leaf.value if isinstance(leaf, enum.Enum) else leaf for leaf in leaves]
        types = set(map(type, leaves))
    kind = empty if not types else _kind_of_types(types, declared, leaves, name)
    if declared is not None:
        kind = _check_declared(kind, type(leaves[0]).__name__ if leaves else "str", declared, name)
    if kind is bytes:
        return KindValues(
            kind, tuple(leaves if types == {bytes} else [_to_bytes(leaf, name) for leaf in leaves])
        )
    try:
        if kind is np.float32:
            return KindValues(kind, _to_floats(np.array(leaves, dtype=np.float64)))
        # As Python's ints: NumPy would wrap its own uint64.
        numbers = leaves if types == {int} else [int(leaf) for leaf in leaves]
        return KindValues(kind, np.array(numbers, dtype=_LITTLE_INT64))
    except OverflowError as error:
        if kind is np.float32:
            raise FeatureError(
                "an int too large for any float where float32 is expected", name
            ) from error
        found = next(
            number for number in map(int, leaves) if not _INT64.min <= number <= _INT64.max
        )
        bounds = f"{_INT64.min} to {_INT64.max}"
        raise FeatureError(
            f"the int {found} where int64 is expected, which goes from {bounds}", name
        ) from error


def _kind_of_types(
    types: set[type], declared: Dtype | None, leaves: Sequence[Any], name: str | None
) -> Dtype | None:
    kinds = {natural_kind(found) for found in types}
    if len(kinds) == 1 and None not in kinds:
        return kinds.pop()
    if kinds == {np.int64, np.float32} and (
        declared is np.float32 or (declared is None and bool not in types)
    ):
        return np.float32
    for leaf in leaves:
        if natural_kind(type(leaf)) is None:
            raise FeatureError(
                f"{name_type(leaf)} where {_ACCEPTED} is expected; leave it out or convert it", name
            )
    ordered = list(dict.fromkeys(map(type, leaves)))
    other = next(found for found in ordered if natural_kind(found) is not natural_kind(ordered[0]))
    raise FeatureError(
        f"mixed types: {ordered[0].__name__} and {other.__name__} where one kind is expected; "
        "convert them to one",
        name,
    )


def _to_bytes(leaf: Any, name: str | None) -> bytes:
    if type(leaf) is bytes:
        return leaf
    if not isinstance(leaf, str):
        return bytes(leaf)
    try:
        return leaf.encode()
    except UnicodeEncodeError as error:
        raise FeatureError(
            f"{describe_value(leaf)} has no UTF-8 form where bytes is expected", name
        ) from error


def to_columns(
    columns: Mapping[str, Any], kinds: Mapping[str, Any] | None = None
) -> list[PackedColumn]:
    """Converts all columns of a batch, which must have the same number of rows."""
    check_mapping("columns", columns, "columns by the names of features")
    declared = resolve_kinds(kinds, columns)
    packed = [to_column(name, value, declared.get(name)) for name, value in columns.items()]
    for column in packed:
        if column.rows != packed[0].rows:
            raise FeatureError(
                f"{column.rows:,} rows where {packed[0].rows:,} are expected, as in "
                f"{packed[0].name!r}; every column needs one row for each record",
                column.name,
            )
    return packed


def to_column(name: str, value: Any, declared: Dtype | None = None) -> PackedColumn:
    """Converts a column in any of the forms that `encode_examples` accepts."""
    if hasattr(value, "spans") and hasattr(value, "buffer"):
        return _of_spans(name, value, declared)
    if hasattr(value, "nested_row_splits"):
        return _of_ragged(name, value, declared)
    if hasattr(value, "dense_shape"):
        return _of_ragged(name, RaggedTensor(value.values, (list_splits(value, name),)), declared)
    if isinstance(value, list | tuple | range):
        return _of_list(name, value, declared)
    return _column_of_array(name, value, declared)


def _of_spans(name: str, value: Any, declared: Dtype | None) -> PackedColumn:
    if declared is not None and declared is not bytes:
        raise FeatureError(f"byte strings where {declared.__name__} is expected", name)
    spans = np.ascontiguousarray(value.spans, dtype="<i8")
    if spans.ndim < 2 or spans.shape[-1] != 2:
        raise FeatureError(f"spans of shape {list(spans.shape)} where [n, 2] is expected", name)
    return PackedColumn(
        name=name,
        kind=bytes,
        values=value.buffer,
        spans=spans.reshape(-1, 2),
        splits=math.prod(spans.shape[1:-1]),
        rows=len(spans),
    )


def _column_array(name: str, value: Any) -> npt.NDArray[Any]:
    raw = value
    if not hasattr(value, "__array__") and hasattr(value, "to_numpy"):  # such as columns of Arrow
        raw = value.to_numpy()
    if not hasattr(raw, "__array__"):
        raise FeatureError(
            f"{name_type(value)} where a column is expected: an array, a list with a row for each "
            "record, a ragged tensor, or Frames",
            name,
        )
    array = with_nulls(value, raw if isinstance(raw, np.ndarray) else np.asarray(raw))
    if array.ndim == 0:
        raise FeatureError(
            f"one {array.dtype} where a column with a row for each record is expected", name
        )
    return array


def _column_of_array(name: str, value: Any, declared: Dtype | None) -> PackedColumn:
    array = _column_array(name, value)
    if array.dtype.kind == "O" and array.ndim == 1:
        return _of_list(name, array.tolist(), declared)
    kind, data = to_values(array, declared, name)
    width = 0 if kind is None else math.prod(array.shape[1:])
    return PackedColumn(name, kind, data, splits=width, rows=len(array))


def _of_ragged(name: str, value: Any, declared: Dtype | None) -> PackedColumn:
    splits, *inner = check_splits(value, name)
    if inner:
        raise FeatureError(
            f"a ragged tensor of {1 + len(inner)} ragged dimensions, and a feature of an Example "
            "is one list: write the values as RaggedTensor(flat_values, "
            "(splits[1][splits[0]],)), and the lengths of the inner rows as "
            "RaggedTensor(np.diff(splits[1]), (splits[0],)), a feature that "
            "RaggedFeature.RowLengths names",
            name,
        )
    flat = value.flat_values
    array = flat if isinstance(flat, np.ndarray) else _column_array(name, flat)
    kind, data = to_values(array, declared, name)
    width = 0 if kind is None else math.prod(array.shape[1:])
    bounds = np.ascontiguousarray(splits.astype(np.int64) * width, dtype="<i8")
    return PackedColumn(name, kind, data, splits=bounds, rows=len(splits) - 1)


def _of_list(name: str, value: Sequence[Any], declared: Dtype | None) -> PackedColumn:
    if all(natural_kind(of) is not None for of in set(map(type, value))):
        kind, data = to_values(value, declared, name)
        return PackedColumn(name, kind, data, splits=0 if kind is None else 1, rows=len(value))
    kind = None
    rows: list[Data] = []
    for index, row in enumerate(value):
        try:
            found, data = to_values(row, declared, name)
        except FeatureError as error:
            raise FeatureError(error.reason, name, index) from error
        kind = found if kind is None else kind
        if found is not None and kind is not None and found is not kind:
            what = f"{found.__name__} where {kind.__name__} is expected, as in the rows before"
            raise FeatureError(f"{what}; convert the rows to one kind, or declare it", name, index)
        rows.append(data)
    splits = np.zeros(len(rows) + 1, dtype="<i8")
    np.cumsum(list(map(len, rows)), out=splits[1:])
    # Without empty lists, which have no kind.
    arrays = [data for data in rows if isinstance(data, np.ndarray)]
    joined = np.concatenate(arrays) if arrays else tuple(chain.from_iterable(rows))
    return PackedColumn(name, kind, joined, splits=splits, rows=len(rows))
