"""Bytes of files without a copy; the twin of mapped.c."""

from __future__ import annotations

import mmap
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["is_cached", "map_file"]


def is_cached(file: int, offset: int, size: int, step: int) -> bool:
    """Whether bytes of an open file lie in the page cache: some of them can be read without waiting (preadv2(2)).

    Args:
        file: Its descriptor.
        offset: The first byte.
        size: How many; 1 or more.
        step: One in so many is looked at, and the last one; 1 or more.

    Returns:
        False too where the system, the filesystem, or this kind of file cannot tell.
    """
    if offset < 0 or size < 1 or step < 1 or offset > sys.maxsize - size:
        raise ValueError(f"{size} bytes from {offset} on, in steps of {step}: wanted 1 or more, from 0 on")
    return all(_is_there(file, place) for place in [*range(offset, offset + size, step), offset + size - 1])


def _is_there(file: int, offset: int) -> bool:
    try:
        os.preadv(file, [bytearray(1)], offset, os.RWF_NOWAIT)
    except (AttributeError, OSError):
        return False
    return True


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
