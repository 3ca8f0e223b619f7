"""Dtypes of NumPy, TensorFlow and other libraries, by name.

Only ml_dtypes is imported, for its own dtypes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

import numpy as np

from streamrec.errors import FeatureError, MissingExtraError
from streamrec.lazy import lazy_pattern

TENSOR_DTYPES: Final = {
    "float32": 1,
    "float64": 2,
    "int32": 3,
    "uint8": 4,
    "int16": 5,
    "int8": 6,
    "complex64": 8,
    "int64": 9,
    "bool": 10,
    "bfloat16": 14,
    "uint16": 17,
    "complex128": 18,
    "float16": 19,
    "uint32": 22,
    "uint64": 23,
    "float8_e5m2": 24,
    "float8_e4m3fn": 25,
    "float8_e4m3fnuz": 26,
    "float8_e4m3b11fnuz": 27,
    "float8_e5m2fnuz": 28,
    "int4": 29,
    "uint4": 30,
    "int2": 31,
    "uint2": 32,
}
"""The numbers of TensorFlow's dtypes in a TensorProto, by name; without strings."""

_INTEGER: Final = lazy_pattern(r"u?int\d|bool|long|short")
_FLOAT: Final = lazy_pattern("b?float|double|half")


def dtype_name(dtype: object) -> str:
    """NumPy's name of a dtype.

    For any other object, the part of its name or repr after the last dot.

    >>> dtype_name(np.int64), dtype_name("torch.int64"), dtype_name(np.dtype("S7"))
    ('int64', 'int64', 'bytes56')
    """
    # np.dtype and tf.DType have a name.
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)
    if not isinstance(name, str):
        try:
            return str(np.dtype(cast(Any, dtype)).name) if dtype is not None else "None"
        except TypeError:
            name = repr(dtype)
    return name.strip("<>'").rpartition(".")[2].lower()


def nearest_kind(name: str) -> str:
    """Advice for a dtype that an Example does not support, for the end of a message."""
    for pattern, what, kind in ((_INTEGER, "integers", "int64"), (_FLOAT, "floats", "float32")):
        if pattern.match(name):
            return (
                f"an Example stores {what} only as {kind}: write np.{kind}, and convert after "
                "parsing"
            )
    return "write np.int64, np.float32 or bytes, and convert after parsing"


def tensor_dtype(dtype: object) -> np.dtype[Any]:
    """Converts a dtype, a Python type, a name or a TensorFlow DType to a NumPy dtype.

    Object for strings.
    """
    name = dtype_name(dtype)
    if name == "object" or name.startswith(("bytes", "str")):
        return np.dtype(object)
    if name not in TENSOR_DTYPES:
        raise FeatureError(
            f"TensorFlow's tensors have no dtype {dtype!r}: give np.float32, 'int64', bytes ..."
        )
    return dtype_by_name(name)


def dtype_by_name(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a name; ml_dtypes is imported for the names that it registers."""
    try:
        return np.dtype(name)
    except TypeError:
        pass
    try:
        import_module("ml_dtypes")
    except ImportError as error:
        raise MissingExtraError(f"{name} needs another package: pip install ml_dtypes") from error
    return np.dtype(name)
