"""Bytes of local files as they lie in the page cache, mapped instead of read.

Whoever looks at a page that is not in the cache waits for the disk, with the event loop. So it is asked for a byte here
and there first, without waiting; if one is missing, all are fetched in a thread.
"""

from __future__ import annotations

import asyncio
import os

from streamrec import kernels
from streamrec.storage.shield import finish

__all__ = ["map_cached", "read_cached"]

STEP_BYTES = 512 << 10
"""What lies between two bytes that are there is there too, most likely: files are read, and forgotten, in stretches."""


async def map_cached(file: int, start: int, end: int) -> memoryview:
    """The bytes of an open file from `start` to `end`, which it must have; they are in the page cache."""
    if not kernels.is_cached(file, start, end - start, STEP_BYTES):
        await finish(asyncio.to_thread(_fetch, file, start, end))
    return memoryview(kernels.map_file(file, start, end - start))


def read_cached(file: int, buffer: memoryview, position: int) -> int | None:
    """What the page cache holds of the file, as `os.preadv`; None where reading would wait, or may."""
    try:
        return os.preadv(file, [buffer], position, os.RWF_NOWAIT)
    except (AttributeError, OSError):  # not on this system, not on this filesystem, or not in the cache
        return None


def _fetch(file: int, start: int, end: int) -> None:
    """Waits until these bytes are in the page cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, start, end - start, os.POSIX_FADV_WILLNEED)
    for place in range(start, end, STEP_BYTES):
        os.pread(file, 1, place)
    os.pread(file, 1, end - 1)
