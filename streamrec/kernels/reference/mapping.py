"""Bytes of files; the twin of mapped.c, which does without the copies. Plain Python could not guard a mapping."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["file_stamp", "is_cached", "is_safe_to_map", "lost_pages", "map_file"]


def file_stamp(path: str | os.PathLike[str], /) -> tuple[int, int, int, int]:
    """Which file a name leads to and how it stands: device, inode, size, nanosecond in which it was last written to.

    The interpreter's lock is kept meanwhile, unlike by `os.stat`: for files whose filesystem answers at once.

    Args:
        path: Its name.

    Raises:
        OSError: There is none, or it may not be looked at.
    """
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


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


def is_safe_to_map(file: int) -> bool:
    """Whether an open file lies on this machine, and losing pages of its mappings does not end the process.

    Args:
        file: Its descriptor.

    Returns:
        Here False: nothing is mapped.
    """
    return False


def lost_pages() -> list[tuple[Any, int]]:
    """What could not be read of mappings any more, because a file was cut off or its disk failed.

    There are zeros in its place, in pages that nothing else has.

    Returns:
        For each mapping of which pages were lost, ever: its label, and where in the file the one lies that was lost
        first. Here none.
    """
    return []


def map_file(file: int, offset: int, size: int, label: object = None) -> Buffer:
    """Read-only bytes of an open file, as they lie in the page cache; here, a copy.

    They show what is written to the file later on. Pages of a file that is cut off are lost: see `lost_pages`. Where
    somebody else took SIGBUS over since the first mapping, looking at them ends the process: see `is_safe_to_map`.

    Args:
        file: Its descriptor; it may be closed afterwards.
        offset: The first byte.
        size: How many; 1 or more.
        label: What `lost_pages` calls it; kept for as long as the mapping, and for ever if it loses pages.

    Raises:
        ValueError: The file has no such bytes.
        OSError: It cannot be mapped.
    """
    if offset < 0 or size < 1:
        raise ValueError(f"{size} bytes from {offset} on: wanted 1 or more, from 0 on")
    found = os.fstat(file).st_size
    if size > found - offset:
        raise ValueError(f"{size} bytes from {offset} on, of a file of {found}")
    return b"".join(_pieces(file, offset, size))


def _pieces(file: int, offset: int, size: int) -> Iterator[bytes]:
    """The system reads no more than 2 GiB at once."""
    end = offset + size
    while offset < end and (data := os.pread(file, end - offset, offset)):
        yield data
        offset += len(data)
