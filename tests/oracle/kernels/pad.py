"""Rows of different lengths as rows of one length; the twin of pad.c."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING

from streamrec.kernels.codes import BytesLike, Int64s
from tests.oracle.kernels.args import bytes_of, int64s, integer

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["pad_rows"]


def pad_rows(values: BytesLike, splits: Int64s, longest: int, fill: BytesLike) -> Buffer:
    """Rows of different lengths, which lie one after the other, as rows of one length.

    Args:
        values: The elements of all rows, of any type.
        splits: int64 [rows + 1]: row i goes from element `splits[i]` to `splits[i + 1]` (exclusive).
        longest: How many elements each row of the result has.
        fill: One element: what stands behind the shorter rows. Its size is that of all elements.

    Returns:
        A new, writable buffer of `rows * longest` elements.

    Raises:
        ValueError: A row outside of the values, or longer than `longest`; no splits; elements that are not whole.

    >>> import numpy as np
    >>> bytes(pad_rows(b"abc", np.array([0, 1, 1, 3]), 2, b"."))
    b'a...bc'
    """
    content, element, room = bytes_of(values), bytes_of(fill), integer(longest, sys.maxsize)
    places = int64s(splits, 1, "row splits as an int64 array of shape [n]").tolist()
    if not places or not element or len(content) % len(element):
        raise ValueError(
            f"found {len(places)} row splits, and {len(content)} bytes of elements of {len(element)}: wanted at least "
            "one split, and whole elements"
        )
    count, result = len(content) // len(element), bytearray()
    for i, (start, end) in enumerate(itertools.pairwise(places)):
        if not 0 <= start <= end <= count or end - start > room:
            raise ValueError(f"row {i} is [{start}, {end}): wanted up to {room} of {count} elements")
        result += content[start * len(element) : end * len(element)] + element * (room - (end - start))
    return result
