"""What people put into a feature, as one of the three kinds of values that an Example holds.

Rules of this file:
- The kind comes from the value, as in TensorFlow's TFRecord tutorial: bytes and str are bytes (UTF-8); bool,
  enums and every integer are int64; every float is float32, rounded to nearest, infinite where too large.
- An array has a kind even when it is empty. An empty list has none: its Feature is written without a kind,
  which TensorFlow reads as a missing feature. Declare the kind to write an empty list of that kind.
- A declared kind decides, and an integer fits a declared float, or a list that holds a float. Nothing else is
  converted: a float never becomes an int64, a number never becomes a string, other mixed types are an error.
- Arrays of more than one dimension are flattened in row-major order; an Example keeps no shapes.
- None, and null in a column of Arrow or Polars, is an error. (NumPy would make the column floats, and null NaN.)
- Every error is a FeatureError with the feature's name and both types.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.columns import NO_GAPS, check_indices, with_nulls
from streamrec.example.features import Dtype, as_dtype

__all__ = ["Kind", "KindValues", "declared_kind", "is_composite", "natural_kind", "to_values"]


class Kind(enum.IntEnum):
    """The kinds of a Feature; the numbers are those of its oneof's fields."""

    NONE = 0
    BYTES = 1
    FLOAT = 2
    INT64 = 3


KIND_NAMES = {Kind.NONE: "no kind", Kind.BYTES: "bytes", Kind.FLOAT: "float32", Kind.INT64: "int64"}
Data: TypeAlias = npt.NDArray[Any] | tuple[bytes, ...]


class KindValues(NamedTuple):
    """The values of one feature.

    Args:
        kind: What they are.
        data: int64 or float32 of shape `[n]`, C-contiguous; a tuple of bytes for `Kind.BYTES`; an empty tuple
            for `Kind.NONE`.
    """

    kind: Kind
    data: Data


_NOTHING = KindValues(Kind.NONE, ())
_ACCEPTED = "bytes, str, bool, int, float, or a list or array of these"
_KINDS_OF_DTYPES = {"b": Kind.INT64, "i": Kind.INT64, "u": Kind.INT64, "f": Kind.FLOAT}
_ML_DTYPES = {"bfloat16": Kind.FLOAT, "float": Kind.FLOAT, "int": Kind.INT64, "uint": Kind.INT64}
_KINDS_OF_DECLARED: dict[Dtype, Kind] = {bytes: Kind.BYTES, np.float32: Kind.FLOAT, np.int64: Kind.INT64}
_EXACT: dict[type, Kind] = {
    bytes: Kind.BYTES,
    str: Kind.BYTES,
    int: Kind.INT64,
    bool: Kind.INT64,
    float: Kind.FLOAT,
}
_INT64 = np.iinfo(np.int64)
_LITTLE_INT64 = np.dtype("<i8")
_LITTLE_FLOAT32 = np.dtype("<f4")


def declared_kind(dtype: object, name: str | None = None) -> Kind:
    """The kind that a dtype, a Python type, a name or a feature configuration (its `dtype`) means."""
    if not isinstance(dtype, type | str):  # NumPy's own types have a `dtype`, too: a property
        dtype = getattr(dtype, "dtype", dtype)
    try:
        return _KINDS_OF_DECLARED[as_dtype(dtype)]
    except FeatureError as error:
        raise FeatureError(error.reason, name) from error


def to_values(value: Any, declared: Kind | None = None, name: str | None = None) -> KindValues:
    """The values of one feature, flat."""
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


def natural_kind(of: type) -> Kind | None:
    """The kind of a scalar's type; None for any other type."""
    kind = _EXACT.get(of)
    if kind is not None:
        return kind
    if issubclass(of, int | np.integer | np.bool_):
        return Kind.INT64
    if issubclass(of, float | np.floating):
        return Kind.FLOAT
    if issubclass(of, bytes | str | bytearray | memoryview):
        return Kind.BYTES
    return _ml_dtype_kind(of.__name__) if of.__module__ == "ml_dtypes" else None


def is_composite(value: Any) -> bool:
    """Whether it is a ragged or sparse tensor, ours (which are tuples) or TensorFlow's."""
    return hasattr(value, "dense_shape") or hasattr(value, "nested_row_splits")


def _of_composite(value: Any, declared: Kind | None, name: str | None) -> KindValues:
    """The values of a sparse tensor of one dimension, as parse_single_example gives it."""
    if len(getattr(value, "dense_shape", ())) != 1:
        advice = "encode_examples and write(batched=True) take a batch; an Example holds one list of each feature"
        raise FeatureError(f"a {type(value).__name__} of several rows where one list is wanted; {advice}", name)
    indices = check_indices(value, name)[:, 0]
    wrong = np.flatnonzero(indices != np.arange(len(indices)))
    if len(wrong):
        raise FeatureError(f"a sparse value at place {indices[wrong[0]]:,} that is not the next one; {NO_GAPS}", name)
    return to_values(value.values, declared, name)


def _ml_dtype_kind(name: str) -> Kind | None:
    """bfloat16, float8_e5m2, int4 and their like: numbers of NumPy's kind "V", which ml_dtypes registers."""
    return _ML_DTYPES.get(name if name == "bfloat16" else name.partition("_")[0].rstrip("0123456789"))


def _found(kind_or_type: str, declared: Kind, name: str | None) -> FeatureError:
    advice = (
        "round or cut the values yourself and convert them with .astype(np.int64)"
        if declared is Kind.INT64 and "float" in kind_or_type
        else f"give {KIND_NAMES[declared]} or declare the kind that it is"
    )
    return FeatureError(f"{kind_or_type} where {KIND_NAMES[declared]} is wanted; {advice}", name)


def _check_declared(kind: Kind, found: str, declared: Kind | None, name: str | None) -> Kind:
    """The kind to write: the declared one where the natural one fits it."""
    if declared is None or declared is kind:
        return kind
    if declared is Kind.FLOAT and kind is Kind.INT64:
        return declared
    raise _found(found, declared, name)


def _of_message(feature: Any, declared: Kind | None, name: str | None) -> KindValues:
    """The values of a Feature message, ours or TensorFlow's; it says its kind itself."""
    field = feature.WhichOneof("kind") if hasattr(feature, "int64_list") else None
    if field is None:
        if hasattr(feature, "int64_list"):
            return _NOTHING
        raise FeatureError(f"a {type(feature).__name__} message where a Feature is wanted", name)
    value = list(getattr(feature, field).value)
    kind = {"bytes_list": Kind.BYTES, "float_list": Kind.FLOAT, "int64_list": Kind.INT64}[field]
    _check_declared(kind, f"{KIND_NAMES[kind]} (in a Feature)", declared, name)
    return _of_leaves(value, set(map(type, value)), declared or kind, name)


def _as_array(value: Any, name: str | None) -> npt.NDArray[Any]:
    """An array from another object, by `__array__`; errors say what was found."""
    if value is None or not hasattr(value, "__array__"):
        found = "None" if value is None else f"a {type(value).__name__}"
        advice = "leave the feature out of the record" if value is None else "convert it"
        raise FeatureError(f"{found} where {_ACCEPTED} is wanted; {advice}", name)
    try:
        return with_nulls(value, np.asarray(value))
    except Exception as error:  # whatever a foreign tensor raises when it gives no array
        found = f"a {type(value).__name__} ({getattr(value, 'dtype', 'no dtype')})"
        raise FeatureError(f"{found} gives no NumPy array: {error}", name) from error


def _of_array(array: npt.NDArray[Any], declared: Kind | None, name: str | None) -> KindValues:
    if np.ma.is_masked(array):
        raise FeatureError("a masked array where all values are wanted; fill it first", name)
    if array.dtype.kind in "SUTO":
        leaves = array.ravel().tolist()
        empty = Kind.NONE if array.dtype.kind == "O" else Kind.BYTES
        return _of_leaves(leaves, set(map(type, leaves)), declared, name, empty)
    kind = _KINDS_OF_DTYPES.get(array.dtype.kind)
    if kind is None and array.dtype.type.__module__ == "ml_dtypes":
        kind = _ml_dtype_kind(array.dtype.name)
    if kind is None:
        advice = "view or convert it to int64 or float32, or serialize_tensor it"
        raise FeatureError(f"{array.dtype} values where {_ACCEPTED} is wanted; {advice}", name)
    kind = _check_declared(kind, str(array.dtype), declared, name)
    return KindValues(kind, _to_floats(array) if kind is Kind.FLOAT else _to_int64(array, name))


def _to_floats(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)  # protobuf goes through a double, too
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=_LITTLE_FLOAT32).ravel()


def _to_int64(array: npt.NDArray[Any], name: str | None) -> npt.NDArray[np.int64]:
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size and array.max() > _INT64.max:
        raise FeatureError(f"uint64 {array.max()} where int64 is wanted; the largest is {_INT64.max}", name)
    return np.ascontiguousarray(array, dtype=_LITTLE_INT64).ravel()


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value),) if isinstance(value, list | tuple | range) else np.shape(value)


def _leaves(value: Sequence[Any], name: str | None) -> Sequence[Any]:
    """The scalars of a list or of a rectangular nest of lists and arrays, in row-major order."""
    for item in value:
        if is_composite(item):
            _of_composite(item, None, name)
            raise FeatureError(f"a {type(item).__name__} within a list; give its values", name)
    nested = [isinstance(item, list | tuple | range | np.ndarray) for item in value]
    if not any(nested):
        return value
    if not all(nested):
        one, other = value[nested.index(True)], value[nested.index(False)]
        raise FeatureError(f"a ragged list: {type(one).__name__} next to {type(other).__name__}", name)
    shapes = [_shape(item) for item in value]
    if len(set(shapes)) > 1:
        found = next(shape for shape in shapes if shape != shapes[0])
        raise FeatureError(
            f"a ragged list: rows of shape {list(shapes[0])} and {list(found)}; an Example holds flat lists: "
            "give the values flat and the row lengths as a feature of their own",
            name,
        )
    rows = [item.tolist() if isinstance(item, np.ndarray) else item for item in value]
    if shapes[0] == ():  # arrays without a dimension
        return rows
    return _leaves([leaf for row in rows for leaf in row], name)


def _of_leaves(
    leaves: Sequence[Any], types: set[type], declared: Kind | None, name: str | None, empty: Kind = Kind.NONE
) -> KindValues:
    """The values of scalars, whose types are given."""
    if not leaves and empty is Kind.NONE:
        return _empty(declared)
    if not types <= _EXACT.keys() and any(issubclass(found, enum.Enum) for found in types):
        leaves = [leaf.value if isinstance(leaf, enum.Enum) else leaf for leaf in leaves]
        types = set(map(type, leaves))
    kind = empty if not types else _kind_of_types(types, declared, leaves, name)
    if declared is not None:
        kind = _check_declared(kind, type(leaves[0]).__name__ if leaves else "str", declared, name)
    if kind is Kind.INT64:
        return KindValues(kind, _int64_leaves(leaves if types == {int} else [int(leaf) for leaf in leaves], name))
    if kind is Kind.FLOAT:
        return KindValues(kind, _float_leaves(leaves, name))
    return KindValues(kind, tuple(leaves if types == {bytes} else [_to_bytes(leaf, name) for leaf in leaves]))


def _empty(declared: Kind | None) -> KindValues:
    if declared is None or declared is Kind.NONE:
        return _NOTHING
    if declared is Kind.BYTES:
        return KindValues(declared, ())
    return KindValues(declared, np.empty(0, np.float32 if declared is Kind.FLOAT else np.int64))


def _kind_of_types(types: set[type], declared: Kind | None, leaves: Sequence[Any], name: str | None) -> Kind:
    """The kind that all scalars of a list have."""
    if len(types) == 1:
        kind = natural_kind(*types)
        if kind is not None:
            return kind
    kinds = {natural_kind(found) for found in types}
    if len(kinds) == 1 and None not in kinds:
        return kinds.pop() or Kind.NONE
    if kinds == {Kind.INT64, Kind.FLOAT} and (declared is Kind.FLOAT or (declared is None and bool not in types)):
        return Kind.FLOAT
    ordered = list(dict.fromkeys(map(type, leaves)))
    for found in ordered:
        if natural_kind(found) is None:
            what = "None" if found is type(None) else f"a {found.__name__}"
            raise FeatureError(f"{what} where {_ACCEPTED} is wanted; leave it out or convert it", name)
    other = next(found for found in ordered if natural_kind(found) is not natural_kind(ordered[0]))
    raise FeatureError(
        f"mixed types: {ordered[0].__name__} and {other.__name__} where one kind is wanted; convert them to one", name
    )


def _int64_leaves(numbers: Sequence[int], name: str | None) -> npt.NDArray[np.int64]:
    """An array of Python's ints. (NumPy would wrap its own uint64 silently.)"""
    try:
        return np.array(numbers, dtype=_LITTLE_INT64)
    except OverflowError as error:
        found = next(number for number in numbers if not _INT64.min <= number <= _INT64.max)
        bounds = f"{_INT64.min} to {_INT64.max}"
        raise FeatureError(f"the int {found} where int64 is wanted, which goes from {bounds}", name) from error


def _float_leaves(leaves: Sequence[Any], name: str | None) -> npt.NDArray[np.float32]:
    try:
        numbers = np.array(leaves, dtype=np.float64)
    except OverflowError as error:
        raise FeatureError("an int too large for any float where float32 is wanted", name) from error
    return _to_floats(numbers)


def _to_bytes(leaf: Any, name: str | None) -> bytes:
    if type(leaf) is bytes:
        return leaf
    if not isinstance(leaf, str):
        return bytes(leaf)
    try:
        return leaf.encode()
    except UnicodeEncodeError as error:
        raise FeatureError(f"the str {leaf!r} has no UTF-8 form where bytes is wanted", name) from error
