"""Copies during which other threads run.

Assigning to a slice of a memoryview copies with the interpreter lock held: half a millisecond for a megabyte that left
the cache, in which a training loop waits. NumPy releases the lock while it copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["copy_bytes"]

LARGE = 128 << 10
"""From this many bytes on, releasing the lock costs less than holding it."""


def copy_bytes(target: memoryview, source: Buffer) -> None:
    """Copies bytes from one buffer into another of the same size.

    Args:
        target: Writable bytes.
        source: Bytes, or a contiguous view of them.

    Raises:
        ValueError: They differ in size.

    >>> room = bytearray(3)
    >>> copy_bytes(memoryview(room), b"abc")
    >>> room
    bytearray(b'abc')
    """
    if len(target) < LARGE:
        target[:] = memoryview(source)
        return
    content = np.frombuffer(memoryview(source), np.uint8)
    if len(content) != len(target):
        raise ValueError(f"{len(content)} bytes where {len(target)} are wanted")
    np.frombuffer(target, np.uint8)[:] = content
