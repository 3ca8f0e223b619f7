"""to_tensors: an element of a Dataset with tensors in the place of its arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt
import torch

from streamrec.pipeline.loading import converted

__all__ = ["dtype_of", "to_tensor", "to_tensors"]

NOT_NUMPYS: Final = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
"""Dtypes of ml_dtypes that torch has too: it takes their bits."""


def to_tensors(element: Any) -> Any:
    """An element with its arrays and numbers as tensors, in dicts and tuples too.

    An array that may be written to shares its memory with its tensor; any other is copied. `RaggedTensor` and
    `SparseTensor` keep their kind, with tensors in it. Records (`Frames`) and byte strings become lists of `bytes`.

    Examples:
        >>> import numpy as np
        >>> to_tensors({"id": np.arange(3), "name": np.array([b"a", b"b"], object)})
        {'id': tensor([0, 1, 2]), 'name': [b'a', b'b']}
    """
    return converted(element, to_tensor)


def to_tensor(array: npt.NDArray[Any], name: str = "") -> Any:
    """An array of numbers as a tensor: without a copy where it may be written to, and torch takes its layout."""
    own = array.astype(array.dtype.newbyteorder("="), copy=False)
    if not own.flags.writeable or any(stride < 0 for stride in own.strides):
        own = own.copy()
    dtype = dtype_of(own, name)
    if own.dtype.name in NOT_NUMPYS:
        return torch.from_numpy(own.view(f"i{own.dtype.itemsize}")).view(dtype)
    return torch.from_numpy(own)


def dtype_of(array: npt.NDArray[Any], name: str) -> Any:
    """Torch's dtype of this name.

    Raises:
        TypeError: It has none.
    """
    found = getattr(torch, array.dtype.name, None)
    if not isinstance(found, torch.dtype):
        where = f"column {name!r}: " if name else ""
        raise TypeError(f"{where}torch has no dtype {array.dtype.name}: map it to another one before it is loaded")
    return found
