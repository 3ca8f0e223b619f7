"""Bytes of files without a copy; the twin of mapped.c."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["map_file"]


def map_file(file: int, offset: int, size: int) -> Buffer:
    """Read-only bytes of an open file, as they lie in the page cache.

    They show what is written to the file later on. Of a file that is cut off, reading them ends the process (SIGBUS).

    Args:
        file: Its descriptor; it may be closed afterwards.
        offset: The first byte.
        size: How many; 1 or more.

    Raises:
        ValueError: The file has no such bytes.
        OSError: It cannot be mapped.
    """
    if offset < 0 or size < 1:
        raise ValueError(f"{size} bytes from {offset} on: wanted 1 or more, from 0 on")
    found = os.fstat(file).st_size
    if size > found - offset:
        raise ValueError(f"{size} bytes from {offset} on, of a file of {found}")
    before = offset % mmap.ALLOCATIONGRANULARITY
    mapped = mmap.mmap(file, before + size, access=mmap.ACCESS_READ, offset=offset - before)
    return memoryview(mapped)[before:]
