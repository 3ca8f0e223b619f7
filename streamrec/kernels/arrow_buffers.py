"""Converts byte strings to Arrow arrays with pyarrow, which is imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import MissingExtraError, install_command


def load_pyarrow() -> Any:
    """pyarrow; a MissingExtraError names the extra if it is not installed."""
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise MissingExtraError(
            f"Arrow needs another package: {install_command('arrow')}"
        ) from error


def large_binary(buffer: Any, spans: npt.NDArray[np.int64], text: bool = False) -> Any:
    """A `pyarrow.LargeBinaryArray` over byte strings that follow each other, without a copy.

    Args:
        buffer: Any C-contiguous bytes-like object.
        spans: int64 of shape `[n, 2]`: start and end of each string. Each string starts where the
            one before it ends.
        text: Whether to make a `pyarrow.LargeStringArray` instead; the bytes must be UTF-8.
    """
    pa = load_pyarrow()
    offsets = np.append(spans[:, 0], spans[-1:, 1] if len(spans) else 0)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    kind = pa.large_string() if text else pa.large_binary()
    return pa.Array.from_buffers(kind, len(spans), buffers)


def export_binary(
    buffer: Any, spans: npt.NDArray[np.int64], requested_schema: object = None
) -> tuple[object, object]:
    """The capsules `arrow_schema` and `arrow_array` of byte strings that follow each other.

    The strings are those of `large_binary`.
    """
    capsules: tuple[object, object] = large_binary(buffer, spans).__arrow_c_array__(
        requested_schema
    )
    return capsules
