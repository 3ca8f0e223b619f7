"""Dtypes of NumPy, TensorFlow and other libraries, by their names: none of the libraries is imported for that."""

from __future__ import annotations

import re
from typing import Any, Final, cast

import numpy as np

__all__ = ["dtype_name", "nearest_kind"]

_INTEGER: Final = re.compile(r"u?int\d|bool|long|short")
_FLOAT: Final = re.compile("b?float|double|half")


def dtype_name(dtype: object) -> str:
    """The name that NumPy would use; of what NumPy does not know, what stands behind the last dot of its name or repr.

    >>> dtype_name(np.int64), dtype_name("torch.int64"), dtype_name(np.dtype("S7"))
    ('int64', 'int64', 'bytes56')
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None)  # np.dtype and tf.DType have one
    if not isinstance(name, str):
        try:
            return str(np.dtype(cast(Any, dtype)).name) if dtype is not None else "None"
        except TypeError:
            name = repr(dtype)
    return name.strip("<>'").rpartition(".")[2].lower()


def nearest_kind(name: str) -> str:
    """What to do about a dtype that an Example does not hold, for the end of a message."""
    for pattern, what, kind in ((_INTEGER, "integers", "int64"), (_FLOAT, "floats", "float32")):
        if pattern.match(name):
            return f"it holds {what} as {kind} and nothing else: write np.{kind}, and convert after parsing"
    return "write np.int64, np.float32 or bytes, and convert after parsing"
