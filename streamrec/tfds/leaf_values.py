"""The values of one feature as an Example stores them: the inverse of `leaf_column.py`.

A value that its feature cannot keep is an error: another shape, a number outside the range of the
dtype, a class without a name. Floats are rounded to the dtype, as TensorFlow Datasets does.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.arguments import describe_value
from streamrec.errors import FeatureError
from streamrec.example.dtypes import dtype_by_name
from streamrec.tfds.features import LeafFeature
from streamrec.tfds.image_files import encode_pixels

Array: TypeAlias = "npt.NDArray[Any]"


def to_label(value: Any, leaf: LeafFeature) -> int:
    """The number of a class, which is given by its number or name; -1 is no class."""
    plain = (
        value.item() if isinstance(value, np.generic | np.ndarray) and value.size == 1 else value
    )
    if isinstance(plain, bytes):
        plain = plain.decode("utf-8", "replace")
    if isinstance(plain, str):
        try:
            return leaf.number_of(plain)
        except ValueError as error:
            raise FeatureError(str(error)) from None
    if not isinstance(plain, int) or isinstance(plain, bool):
        raise FeatureError(f"{describe_value(value)} is neither the number nor the name of a class")
    if not -1 <= plain < (leaf.num_classes or 0):
        raise FeatureError(
            f"there is no class {plain:,}: there are {leaf.num_classes or 0:,}, and -1 is no class"
        )
    return plain


def to_bytes(value: Any) -> bytes:
    """A byte string; text becomes UTF-8."""
    plain = value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if isinstance(plain, str):
        return plain.encode()
    if isinstance(plain, bytes):
        return bytes(plain)
    if isinstance(plain, bytearray | memoryview):
        return bytes(plain)
    raise FeatureError(f"{describe_value(value)} is neither text nor bytes")


def to_strings(value: Any, shape: Sequence[int | None]) -> list[bytes]:
    """The byte strings of an array of them, in C order."""
    if isinstance(value, bytearray | memoryview):
        value = bytes(value)  # NumPy would take it for an array of numbers
    array = fit_shape(read_array(value, object), shape)
    return [to_bytes(each) for each in array.reshape(-1).tolist()]


def read_array(value: Any, dtype: Any = None) -> Array:
    """An array of what a user gave; arrays stay as they are."""
    if isinstance(value, np.ndarray):
        return value
    try:
        return np.asarray(value, dtype)
    except (ValueError, TypeError) as error:
        raise FeatureError(
            f"{describe_value(value)} is no array; its parts may have several shapes: {error}"
        ) from error


def to_array(value: Any, dtype: np.dtype[Any], shape: Sequence[int | None]) -> Array:
    """An array of the feature's dtype and shape."""
    array = read_array(value)
    if array.dtype != dtype:
        array = cast(array, dtype, value)
    return fit_shape(array, shape)


def cast(array: Array, dtype: np.dtype[Any], value: Any) -> Array:
    """An array in another dtype that can keep its values.

    Raises:
        FeatureError: It cannot.
    """
    if not array.size:
        return array.astype(dtype)
    # bfloat16 is of a kind of its own; NumPy knows no order of it and other dtypes.
    wanted = "f" if dtype.kind == "V" else dtype.kind
    found = "f" if array.dtype.kind == "V" and array.dtype.names is None else array.dtype.kind
    fits = found in {"b": "b", "i": "biu", "u": "biu", "f": "biuf"}.get(wanted, "")
    if not fits:
        raise FeatureError(f"{describe_value(value)} is {array.dtype}, and the feature is {dtype}")
    if found == "f":
        return round_floats(array, dtype)
    if wanted in "iu":
        limits = np.iinfo(dtype)
        least = int(array.min())
        greatest = int(array.max())
        if least < limits.min or greatest > limits.max:
            wrong = least if least < limits.min else greatest
            raise FeatureError(f"{wrong:,} is outside the range of {dtype}")
    return array.astype(dtype)


def round_floats(array: Array, dtype: np.dtype[Any]) -> Array:
    """Floats rounded to a dtype; one that is too large for it is an error, and not infinite."""
    with np.errstate(over="ignore"):
        rounded = array.astype(dtype)
    lost = np.isfinite(array) & ~np.isfinite(rounded)
    if lost.any():
        raise FeatureError(f"{array[lost].reshape(-1)[0]} is outside the range of {dtype}")
    return rounded


def fit_shape(array: Array, shape: Sequence[int | None]) -> Array:
    """The array, if it has the shape; an empty list has that of an empty array."""
    if not array.size and array.ndim < len(shape) and array.shape == (0,):
        sizes = tuple(size or 0 for size in shape)
        array = array if 0 not in sizes else array.reshape(sizes)
    known = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or any(size not in (None, n) for n, size in known):
        wanted = ", ".join("?" if size is None else str(size) for size in shape)
        raise FeatureError(f"it has the shape {list(array.shape)}, and the feature is [{wanted}]")
    return array


def to_numbers(array: Array) -> Array:
    """Numbers as an Example has them, in C order: int64 or float32."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if flat.dtype == np.float64:
        return round_floats(flat, np.dtype(np.float32))
    if flat.dtype.kind in "fV":
        return flat.astype(np.float32, copy=False)
    # int64 has the bits of a uint64, not its value.
    return flat.view(np.int64) if flat.dtype == np.uint64 else flat.astype(np.int64, copy=False)


def to_file(value: Any, leaf: LeafFeature) -> tuple[bytes, tuple[int, ...]]:
    """A value that is stored as one string, and the shape of its array; `()` for a file as it is.

    The bytes of an image or audio file are stored as they are.
    """
    if leaf.encoding == "file":
        return to_bytes(value), ()
    if leaf.kind in ("image", "labeled image"):
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value), ()
        pixels = to_array(value, dtype_by_name(leaf.dtype), leaf.shape)
        return encode_pixels(pixels, leaf), pixels.shape
    array = to_array(value, dtype_by_name(leaf.dtype), leaf.shape)
    little = array.dtype.newbyteorder("<") if array.dtype.isbuiltin else array.dtype
    data = array.astype(little).tobytes()
    return zlib.compress(data) if leaf.encoding == "zlib" else data, array.shape
