"""Specs describe the elements of a Dataset, with tf.data's names.

`conform` converts values to fit a spec.

An element that is a dict or tuple has a dict or tuple of specs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.arguments import add_article, describe_value
from streamrec.errors import FeatureError
from streamrec.example import RaggedTensor, SparseTensor
from streamrec.example.dtypes import tensor_dtype
from streamrec.pipeline.elements.columns import (
    Columns,
    as_array,
    is_nest,
    leaves,
    map_nest,
    strings,
)
from streamrec.tfrecord import Frames

Shape: TypeAlias = tuple[int | None, ...] | None
"""The size of each dimension, None for one that varies; None for any number of dimensions."""


def as_shape(shape: Any) -> Shape:
    """Converts a shape, which may be TensorFlow's `TensorShape` or have -1 for sizes that vary."""
    if shape is None or getattr(shape, "rank", 0) is None:
        return None
    try:
        sizes = [
            None if size is None else index(size)
            for size in (shape if isinstance(shape, Iterable) else [shape])
        ]
    except (TypeError, ValueError):
        raise TypeError(
            f"shape is {describe_value(shape)}: it must be a list of sizes, such as [None, 3]"
        ) from None
    return tuple(None if size in (None, -1) else size for size in sizes)


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """Converts a dtype to NumPy's; object for byte strings."""
    try:
        return tensor_dtype(dtype)
    except FeatureError as error:
        raise TypeError(f"dtype is {describe_value(dtype)}: {error}") from None


@dataclass(frozen=True, slots=True)
class Spec:
    """The base of specs."""

    shape: Any
    dtype: Any = np.float32

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", as_shape(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))


class TensorSpec(Spec):
    """An array or a number.

    Args:
        shape: Sizes: `()` for a number or a byte string, None for a size that varies; None for any
            shape.
        dtype: NumPy's, TensorFlow's, or a name; `bytes` for byte strings, which becomes `object`.

    Examples:
        >>> TensorSpec([None, 3], "int64")
        TensorSpec(shape=(None, 3), dtype=dtype('int64'))
    """

    __slots__ = ()


def record_spec() -> TensorSpec:
    """The spec of a record: a byte string without dimensions."""
    return TensorSpec((), bytes)


@dataclass(frozen=True, slots=True)
class RaggedTensorSpec(Spec):
    """A `RaggedTensor` with `ragged_rank` ragged dimensions after the first."""

    ragged_rank: int = 1


class SparseTensorSpec(Spec):
    """A `SparseTensor`."""

    __slots__ = ()


def signature_of(nest: Any) -> Any:
    """A nest of specs as the user passed it; TensorFlow's specs become ours."""
    return map_nest(spec_of, tuple(nest) if isinstance(nest, list) else nest)


def spec_of(spec: Any) -> Spec:
    """A spec, which may be TensorFlow's; a TypeError for other values.

    TensorFlow's are known by the name of their class, so that TensorFlow is not imported.
    """
    if isinstance(spec, Spec):
        return spec
    kind = type(spec).__name__
    if kind not in ("TensorSpec", "RaggedTensorSpec", "SparseTensorSpec"):
        raise TypeError(
            f"output_signature holds {describe_value(spec)}: pass streamrec.TensorSpec(shape, "
            "dtype), or dicts and tuples of them"
        )
    if kind == "RaggedTensorSpec":
        return RaggedTensorSpec(spec.shape, spec.dtype, spec.ragged_rank)
    return (TensorSpec if kind == "TensorSpec" else SparseTensorSpec)(spec.shape, spec.dtype)


def conform(spec: Any, value: Any) -> Any:
    """Converts a value to fit a spec.

    Numbers and lists become arrays of its dtype, text becomes bytes.

    A TypeError says that it has another structure, or a dtype that cannot be converted without
    loss; a ValueError, that it has another shape.
    """
    if is_nest(spec):
        return conform_parts(spec, value)
    if isinstance(spec, TensorSpec):
        return conform_array(spec, value)
    wanted = RaggedTensor if isinstance(spec, RaggedTensorSpec) else SparseTensor
    if not isinstance(value, wanted):
        raise TypeError(
            f"it is {describe_value(value)}, where {add_article(wanted.__name__)} is expected"
        )
    return value


def conform_parts(spec: Any, value: Any) -> Any:
    """`conform` for a dict or tuple of specs; a list fits a tuple, as in tf.data."""
    if isinstance(spec, dict):
        if not isinstance(value, dict) or value.keys() != spec.keys():
            raise TypeError(
                f"it is {describe_value(value)}, where a dict of {list(spec)} is expected"
            )
        return {key: conform(part, value[key]) for key, part in spec.items()}
    if not isinstance(value, tuple | list) or len(value) != len(spec):
        raise TypeError(
            f"it is {describe_value(value)}, where a tuple of {len(spec)} parts is expected"
        )
    parts = [conform(*pair) for pair in zip(spec, value, strict=True)]
    return type(spec)(*parts) if hasattr(spec, "_fields") else tuple(parts)


def conform_array(spec: TensorSpec, value: Any) -> Any:
    """`conform` for an array, a number or a string; a scalar stays a scalar.

    Frames that fit stay Frames.
    """
    if isinstance(value, Frames) and spec.dtype.kind == "O" and fits((len(value),), spec.shape):
        return value
    if spec.dtype.kind == "O":
        plain = as_array(value)
        flat = np.asarray(plain, object).ravel().tolist()
        array = strings(flat).reshape(np.shape(plain))
        if not all(isinstance(one, bytes) for one in array.flat):
            raise TypeError(f"it is {describe_value(value)}, where bytes are expected")
    else:
        array = cast(np.asarray(as_array(value)), value, spec.dtype)
    if not fits(array.shape, spec.shape):
        raise ValueError(
            f"it has the shape {list(array.shape)}, where {list(spec.shape)} is expected"
        )
    return array if array.ndim else array[()]


def cast(array: npt.NDArray[Any], value: Any, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Converts an array made of `value` to a dtype.

    It changes numbers only by rounding to floats; otherwise it raises a TypeError.
    """
    if array.dtype == dtype:
        return array
    if array.dtype.kind != "O" and (not array.size or np.can_cast(array.dtype, dtype, "safe")):
        return array.astype(dtype)
    kinds = array.dtype.kind + dtype.kind
    related = kinds in ("ui", "iu") or (
        kinds[0] in "biuf" and np.can_cast(array.dtype, dtype, "same_kind")
    )
    if related and not isinstance(value, np.ndarray | np.generic):  # Python's numbers have no dtype
        converted = array.astype(dtype)
        if dtype.kind not in "iu" or np.array_equal(converted, array):
            return converted
    raise TypeError(
        f"it is {describe_value(value)} of {array.dtype.name}, which does not fit in {dtype.name}"
    )


def fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    """Whether an array of this shape fits a spec's, in which None stands for any size."""
    return wanted is None or (
        len(shape) == len(wanted)
        and all(want in (None, size) for size, want in zip(shape, wanted, strict=True))
    )


def common_spec(specs: Iterable[Any]) -> Any:
    """The spec that all parts have; None if they differ."""
    first, *others = specs
    return first if all(other == first for other in others) else None


def spec_of_rows(rows: Any) -> Any:
    """The spec of the elements of columns; None if it is unknown."""
    if isinstance(rows, Frames):
        return record_spec()
    specs = map_nest(spec_of_column, rows.nest if isinstance(rows, Columns) else rows)
    return None if None in leaves(specs) else specs


def spec_of_column(column: Any) -> TensorSpec | None:
    """The spec of a column's rows; None for lists and ragged or sparse rows."""
    if isinstance(column, Frames):
        return record_spec()
    return TensorSpec(column.shape[1:], column.dtype) if isinstance(column, np.ndarray) else None
