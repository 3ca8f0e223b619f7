"""What a cache holds, for people: its data sets, and how to make it smaller."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from streamrec.display import display_repr
from streamrec.errors import StorageError
from streamrec.storage.cache.disk_cache import CacheUnusableError, DiskCache
from streamrec.storage.cache.names import MARKER
from streamrec.storage.cache_settings import SEGMENT_BYTES, CacheSettings


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSet:
    """A data set in a cache: what was read from one directory of a store.

    Attributes:
        url: The directory, without secrets; "" if the cache does not say.
        blocks: How many files it has.
        bytes: How many bytes of the disk it takes.
        used: When a process last began to use it, in seconds since 1970.
        in_use: Whether a process that runs now has used it.
    """

    url: str
    blocks: int
    bytes: int
    used: float
    in_use: bool


def list_cache(directory: str | os.PathLike[str]) -> list[CachedSet]:
    """Returns the data sets in a cache, the one first that was used last.

    StorageError: The directory is no cache, or belongs to another user.
    """
    with _opened(os.fspath(directory)) as disk:
        in_use = disk.runs.in_use()
        found = [
            CachedSet(
                url=disk.about(stored.name),
                blocks=len(stored.blocks),
                bytes=sum(block.charge for block in stored.blocks),
                used=stored.used,
                in_use=stored.name in in_use,
            )
            for stored in disk.stored_sets()
        ]
    return sorted(found, key=lambda stored: (-stored.used, stored.url))


def trim_cache(directory: str | os.PathLike[str], limit: int = 0) -> int:
    """Removes blocks until the cache takes at most `limit` bytes; returns how many are free now.

    The data sets go first that were used longest ago; those that a running process uses stay.

    StorageError: The directory is no cache, or belongs to another user.
    """
    with _opened(os.fspath(directory)) as disk:
        disk.begin()  # a killed process may have left temporary files
        used = sum(block.charge for stored in disk.stored_sets() for block in stored.blocks)
        return disk.remove_blocks(max(0, used - limit))


@contextmanager
def _opened(directory: str) -> Iterator[DiskCache]:
    """Opens a cache that exists."""
    directory = os.path.abspath(os.path.expanduser(directory))
    if not os.path.exists(os.path.join(directory, MARKER)):
        raise StorageError(
            "this directory is no cache: give the cache_dir of a run that has read from a store",
            directory,
        )
    try:
        disk = DiskCache(CacheSettings(directory, max(SEGMENT_BYTES, 1 << 62)))
    except CacheUnusableError as error:
        raise StorageError(str(error), directory) from error
    except OSError as error:
        raise StorageError(f"the cache cannot be opened: {error.strerror}", directory) from error
    try:
        yield disk
    except OSError as error:
        raise StorageError(f"the cache cannot be read: {error.strerror}", directory) from error
    finally:
        disk.close()
