"""TensorFlow's five feature configurations, which describe how to parse a feature.

They have TensorFlow's names and arguments.

Rules of this file:
- A configuration is a frozen value: its constructor converts lists to tuples and dtypes to one of
  `np.int64`, `np.float32` and `bytes`, so it can be hashed, pickled and shared.
- Two configurations are equal only if they have the same meaning: they are the keys of plans. (So a
  partition is not a tuple, which could equal one of another class.)
- The constructor raises all errors that can be found without data (TensorFlow waits for the first
  call).
- The meaning of each class is TensorFlow's (tf.io, 2.21). Checks that depend on data are in
  assemble.py and walk.py.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, SupportsIndex, TypeAlias, cast

import numpy as np

from streamrec.arguments import add_article, check_flag, describe_value
from streamrec.display import shorten
from streamrec.errors import FeatureError
from streamrec.example.dtypes import dtype_name, nearest_kind
from streamrec.tracebacks import border_methods

Dtype: TypeAlias = type[np.int64] | type[np.float32] | type[bytes]
"""The three kinds of values in an Example: `np.int64`, `np.float32` and `bytes`."""

FIELDS: Final[Mapping[str, Dtype]] = {
    "bytes_list": bytes,
    "float_list": np.float32,
    "int64_list": np.int64,
}
"""The fields of a Feature message, in the order of their numbers, and their kinds."""

NUMBERS: Final[Mapping[Dtype | None, int]] = {None: 0, bytes: 1, np.float32: 2, np.int64: 3}
"""The field numbers of the kinds, for the kernels; 0 stands for no field."""

_KINDS: Final[Mapping[str, Dtype]] = {"int64": np.int64, "float32": np.float32, "object": bytes}


def as_dtype(dtype: object) -> Dtype:
    """Converts a dtype to one of the three kinds.

    It may be NumPy's, TensorFlow's, a Python type or a name.
    """
    if dtype is float:
        return np.float32
    if dtype is bytes or dtype is str:
        return bytes
    name = dtype_name(dtype)
    kind = bytes if name.startswith(("bytes", "str")) else _KINDS.get(name)
    if kind is None:
        raise FeatureError(
            f"dtype {shorten(repr(dtype))} is not a kind that an Example holds; "
            f"{nearest_kind(name)}"
        )
    return kind


def _as_shape(shape: int | Iterable[Any], why: str) -> tuple[int, ...]:
    """Converts a shape to a tuple of sizes; `why` is advice for an unknown size."""
    if isinstance(shape, type | str | np.dtype) or not isinstance(shape, Iterable | SupportsIndex):
        raise FeatureError(
            f"shape is {describe_value(shape)}: a list of sizes comes first, then the dtype: ([], "
            "np.int64)"
        )
    dims = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if any(dim is None for dim in dims):
        raise FeatureError(f"shape {list(dims)} has an unknown size; {why}")
    sizes = tuple(_as_size(dim, "a size in shape") for dim in dims)
    if any(size < 0 for size in sizes):
        raise FeatureError(f"shape {list(sizes)} has a negative size; {why}")
    return sizes


def _as_size(value: Any, what: str) -> int:
    """Converts a size to an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise FeatureError(
            f"{what} is {describe_value(value)}: it must be a whole number"
        ) from None


def _freeze(value: Any, dtype: Dtype) -> Any:
    """Converts arrays and lists to nested tuples of Python scalars.

    So configurations are immutable.

    NumPy's numbers are cast to the feature's kind, as in TensorFlow: np.float64(1.0) is a default
    for int64, the float 1.0 is not.
    """
    if hasattr(value, "numpy"):  # a TensorFlow tensor
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        numeric = value.dtype.kind in "biuf" and dtype is not bytes
        # A float64 beyond float32 becomes infinite, as in TensorFlow.
        with np.errstate(over="ignore"):
            value = value.astype(cast(Any, dtype)).tolist() if numeric else value.tolist()
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, dtype) for item in value)
    return value


def default_array(value: Any, dtype: Dtype, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Converts a default value to an array of `shape`.

    Str becomes UTF-8 bytes, as in TensorFlow.
    """
    flat = list(_flatten(value))
    wanted = math.prod(shape)
    if len(flat) != wanted:
        raise FeatureError(
            f"the default has {len(flat)} values, but the shape {list(shape)} has {wanted}: give "
            "one for each element"
        )
    # A bool is an int, as in TensorFlow.
    wanted_types = {bytes: bytes | str, np.int64: int, np.float32: int | float}
    for item in flat:
        if not isinstance(item, wanted_types[dtype]):
            what = "bytes" if dtype is bytes else add_article(dtype.__name__)
            raise FeatureError(f"the default is {describe_value(item)}: it must be {what}")
    if dtype is bytes:
        array = np.empty(len(flat), dtype=object)
        array[:] = [item.encode() if isinstance(item, str) else item for item in flat]
        return array.reshape(shape)
    try:
        with np.errstate(over="ignore"):
            return np.array(flat, dtype=dtype).reshape(shape)
    except OverflowError as error:
        raise FeatureError(
            f"the default, {describe_value(value)}, does not fit in {dtype.__name__}"
        ) from error


def _flatten(value: Any) -> Iterable[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flatten(item)
    else:
        yield value


def encode_name(name: object) -> bytes:
    """A feature's name as UTF-8; a FeatureError for other types and for lone surrogates."""
    if not isinstance(name, str):
        raise FeatureError(f"a feature's name is {describe_value(name)}: it must be a str")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise FeatureError(
            "the name cannot be encoded as UTF-8: rename the feature", name
        ) from error


def _as_key(key: object, what: str) -> str:
    if not isinstance(key, str) or not key:
        raise FeatureError(f"{what} is {describe_value(key)}: it must be the name of a feature")
    encode_name(key)
    return key


def _set(feature: object, **values: object) -> None:
    """Sets the fields of a frozen dataclass, in its `__init__`."""
    for name, value in values.items():
        object.__setattr__(feature, name, value)


@border_methods
@dataclass(frozen=True)
class FixedLenFeature:
    """A feature with the same number of values in every example.

    It becomes a dense array of `[batch, *shape]`.

    Args:
        shape: Sizes of one example's array; `[]` for a scalar, 3 for `[3]`. Each example must have
            exactly that many values.
        dtype: `np.int64`, `np.float32` or `bytes` (or their TensorFlow or string names).
        default_value: The value of a missing or empty feature: a scalar for a scalar, else one
            value for each element, in any nesting. None makes the feature required.

    Example:
        >>> FixedLenFeature([2], "float32", default_value=[0, 1]).default_value
        (0, 1)
    """

    shape: tuple[int, ...]
    dtype: Dtype
    default_value: Any = None

    def __init__(
        self, shape: int | Iterable[Any], dtype: object, default_value: Any = None
    ) -> None:
        sizes = _as_shape(shape, "use FixedLenSequenceFeature for a first dimension that varies")
        kind = as_dtype(dtype)
        _set(self, shape=sizes, dtype=kind, default_value=_freeze(default_value, kind))
        if default_value is not None:
            default_array(self.default_value, self.dtype, self.shape)


@border_methods
@dataclass(frozen=True)
class VarLenFeature:
    """A feature with any number of values: a SparseTensor with the dense shape `[batch, longest]`.

    Args:
        dtype: `np.int64`, `np.float32` or `bytes` (or their TensorFlow or string names).
    """

    dtype: Dtype

    def __init__(self, dtype: object) -> None:
        _set(self, dtype=as_dtype(dtype))


@border_methods
@dataclass(frozen=True)
class FixedLenSequenceFeature:
    """Any number of arrays of one shape: a dense array of `[batch, longest, *shape]`, padded.

    Padding needs memory for `batch` times the longest example: if lengths differ much, use a
    RaggedFeature.

    Args:
        shape: Sizes of one step. The number of values must be a multiple of their product.
        dtype: `np.int64`, `np.float32` or `bytes` (or their TensorFlow or string names).
        allow_missing: Must be true for `parse_example`. In a SequenceExample's feature lists,
            whether the list may be missing.
        default_value: One value that pads shorter examples of a batch in `parse_example`; None for
            0 or `b""`. Feature lists are always padded with 0 or `b""` and accept no default.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    allow_missing: bool = False
    default_value: Any = None

    def __init__(
        self,
        shape: int | Iterable[Any],
        dtype: object,
        allow_missing: bool = False,
        default_value: Any = None,
    ) -> None:
        sizes = _as_shape(
            shape, "only the first dimension, the length, may vary, and it is not written down"
        )
        if 0 in sizes:
            raise FeatureError(
                f"shape {list(sizes)} of one step holds no value; leave the zero out"
            )
        kind = as_dtype(dtype)
        _set(self, shape=sizes, dtype=kind, allow_missing=bool(allow_missing))
        _set(self, default_value=_freeze(default_value, kind))
        if default_value is not None:
            default_array(self.default_value, self.dtype, ())


@border_methods
@dataclass(frozen=True)
class SparseFeature:
    """Values and their positions in two or more features: a SparseTensor of `[batch, *size]`.

    Args:
        index_key: The feature of int64 positions, or a list of one for each dimension.
        value_key: The feature of the values, one for each position.
        dtype: `np.int64`, `np.float32` or `bytes` (or their TensorFlow or string names).
        size: The dense size, or a list of one for each index key.
        already_sorted: Whether the positions are in row-major order already, and need no sorting.
    """

    index_key: str | tuple[str, ...]
    value_key: str
    dtype: Dtype
    size: int | tuple[int, ...]
    already_sorted: bool = False

    def __init__(
        self,
        index_key: str | Iterable[str],
        value_key: str,
        dtype: object,
        size: int | Iterable[int],
        already_sorted: bool = False,
    ) -> None:
        if not isinstance(index_key, str | Iterable):
            raise FeatureError(f"index_key is {describe_value(index_key)}: give a name, or several")
        # A single key and a list of one key are different: TensorFlow pairs a key with a number,
        # and a list with a list.
        keys: str | tuple[str, ...]
        if isinstance(index_key, str):
            keys = index_key
        else:
            keys = tuple(_as_key(key, "index_key") for key in index_key)
        if not keys:
            raise FeatureError("index_key is empty: name the feature of the positions")
        sizes: int | tuple[int, ...]
        if isinstance(size, Iterable):
            sizes = tuple(_as_size(each, "a size") for each in size)
        else:
            sizes = _as_size(size, "size")
        if isinstance(keys, str) != isinstance(sizes, int):
            raise FeatureError(
                f"index_key {index_key!r} and size {size!r} must both be lists or neither"
            )
        if isinstance(keys, tuple) and isinstance(sizes, tuple) and len(keys) != len(sizes):
            raise FeatureError(
                f"{len(keys)} index keys and {len(sizes)} sizes; give one size for each key"
            )
        value_key = _as_key(value_key, "value_key")
        _set(self, index_key=keys, value_key=value_key, dtype=as_dtype(dtype), size=sizes)
        _set(self, already_sorted=bool(already_sorted))

    @property
    def index_keys(self) -> tuple[str, ...]:
        """The index keys, always as a tuple."""
        return (self.index_key,) if isinstance(self.index_key, str) else self.index_key

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes, always as a tuple."""
        return (self.size,) if isinstance(self.size, int) else self.size


@dataclass(frozen=True)
class KeyedPartition:
    """A partition by the numbers of another feature, `key`."""

    key: str


@border_methods
@dataclass(frozen=True)
class RaggedFeature:
    """A feature with any number of values, split further by other features: a RaggedTensor.

    Args:
        dtype: `np.int64`, `np.float32` or `bytes` (or their TensorFlow or string names).
        value_key: The feature of the values; by default the key of this configuration.
        partitions: The splits of an example's values, from the outermost dimension to the
            innermost: any of `RowSplits`, `RowLengths`, `RowStarts`, `RowLimits`, `ValueRowIds`
            (each with the key of an int64 feature) and `UniformRowLength` (with a length).
        row_splits_dtype: `np.int32` (the default, as in TensorFlow) or `np.int64`.
        validate: Accepted for compatibility: partitions that do not fit the values of their record
            are always an error.
    """

    class RowSplits(KeyedPartition):
        """Row i goes from split i to split i + 1."""

    class RowLengths(KeyedPartition):
        """The length of each row."""

    class RowStarts(KeyedPartition):
        """Where each row starts; the last ends with the values."""

    class RowLimits(KeyedPartition):
        """Where each row ends; the first starts at 0."""

    class ValueRowIds(KeyedPartition):
        """The row of each value, in ascending order."""

    @dataclass(frozen=True)
    class UniformRowLength:
        """All rows are equally long."""

        length: int

    dtype: Dtype
    value_key: str | None = None
    partitions: tuple[Partition, ...] = ()
    row_splits_dtype: type[np.int32] | type[np.int64] = np.int32
    validate: bool = False

    def __init__(
        self,
        dtype: object,
        value_key: str | None = None,
        partitions: Sequence[Partition] = (),
        row_splits_dtype: object = np.int32,
        validate: bool = False,
    ) -> None:
        if not isinstance(partitions, list | tuple) or not all(
            isinstance(p, Partition) for p in partitions
        ):
            raise TypeError(
                "partitions must be a list of RaggedFeature.RowSplits and its like, not "
                f"{describe_value(partitions)}"
            )
        for each in partitions:
            if not isinstance(each, RaggedFeature.UniformRowLength):
                _as_key(each.key, "the key of a partition")
            elif _as_size(each.length, "a UniformRowLength") < 1:
                raise FeatureError("a UniformRowLength must be at least 1; leave the partition out")
        key = None if value_key is None else _as_key(value_key, "value_key")
        splits = {"int32": np.int32, "int64": np.int64}.get(dtype_name(row_splits_dtype))
        if splits is None:
            raise FeatureError(
                f"row_splits_dtype is {describe_value(row_splits_dtype)}: it must be np.int32 or "
                "np.int64"
            )
        _set(self, dtype=as_dtype(dtype), value_key=key, partitions=tuple(partitions))
        _set(self, row_splits_dtype=splits, validate=check_flag("validate", validate))

    @property
    def keyed_partitions(self) -> list[KeyedPartition]:
        """The partitions that other features define."""
        return [each for each in self.partitions if isinstance(each, KeyedPartition)]


Partition: TypeAlias = KeyedPartition | RaggedFeature.UniformRowLength
Feature: TypeAlias = (
    FixedLenFeature | VarLenFeature | FixedLenSequenceFeature | SparseFeature | RaggedFeature
)
"""Any of the five configurations."""
