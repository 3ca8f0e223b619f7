"""What a cache holds, for people: its data sets, and how to make it smaller."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from streamrec.display import display_repr
from streamrec.errors import StorageError
from streamrec.storage.cache.directories import CacheUnusableError
from streamrec.storage.cache.disk_cache import DiskCache
from streamrec.storage.cache.names import MARKER, count_blocks
from streamrec.storage.cache_settings import CacheSettings, find_settings


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class CachedSet:
    """A data set in a cache: what was read from one directory of a store.

    Attributes:
        url: The directory, without secrets; "" if the cache does not say.
        blocks: How many blocks it has; those of short objects share files.
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
                blocks=sum(count_blocks(block.name) for block in stored.blocks),
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
    with _held(CacheSettings(directory, 1 << 62)) as disk:
        yield disk


@contextmanager
def _held(settings: CacheSettings) -> Iterator[DiskCache]:
    """Opens a cache, and makes it if it is missing."""
    directory = settings.directory
    try:
        disk = DiskCache(settings)
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


SAMPLE_BYTES: Final = 32 << 20
"""What is written and read to measure a disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheDisk:
    """The disk of a cache.

    Attributes:
        directory: The cache's directory.
        limit: How many bytes the cache may take.
        used: How many bytes it takes.
        free: How many bytes are free on the disk.
        write_rate, read_rate: Bytes a second, as the disk takes and gives them.
    """

    directory: str
    limit: int
    used: int
    free: int
    write_rate: float
    read_rate: float


def examine_cache(storage_options: Mapping[str, Any]) -> CacheDisk | None:
    """Measures the disk of the cache that the options or the environment name; None without one.

    It writes and reads 32 MiB, which are gone afterwards. A missing directory is made.

    StorageError: The directory cannot be a cache, or the disk fails.
    """
    settings = find_settings(storage_options)
    if settings is None:
        return None
    with _held(settings) as disk:
        disk.begin()
        status = os.statvfs(settings.directory)
        write_rate, read_rate = measure_disk(settings.directory)
        return CacheDisk(
            directory=settings.directory,
            limit=settings.limit,
            used=disk.usage.used(),
            free=status.f_bavail * status.f_frsize,
            write_rate=write_rate,
            read_rate=read_rate,
        )


def measure_disk(directory: str) -> tuple[float, float]:
    """Returns the bytes a second that a disk takes and gives."""
    with tempfile.TemporaryFile(dir=directory) as file:  # without a name: nothing can be left
        number = file.fileno()
        data = os.urandom(1 << 20)
        began = time.perf_counter()
        for _ in range(SAMPLE_BYTES >> 20):
            os.write(number, data)
        os.fsync(number)
        written = time.perf_counter()
        if hasattr(os, "posix_fadvise"):  # else memory is measured
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        for index in range(SAMPLE_BYTES >> 20):
            os.pread(number, 1 << 20, index << 20)
        read = time.perf_counter()
    return SAMPLE_BYTES / (written - began), SAMPLE_BYTES / (read - written)
