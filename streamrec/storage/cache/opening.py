"""The caches that a process has open: one for each directory and limit, until the process ends."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from typing import Final

from streamrec.display import display_name, warn_once
from streamrec.storage.cache.directories import CacheUnusableError
from streamrec.storage.cache.disk_cache import CacheMode, DiskCache
from streamrec.storage.cache.writer import Writer
from streamrec.storage.cache_settings import CacheSettings


@dataclass(frozen=True, slots=True)
class OpenCache:
    """A cache, and the thread that writes it."""

    disk: DiskCache
    writer: Writer


END_SECONDS: Final = 5.0
"""How long the end of a process waits for what is still being written."""

_caches: dict[CacheSettings, OpenCache | None] = {}
_opening = threading.Lock()


def open_cache(settings: CacheSettings) -> OpenCache | None:
    """Returns this process's cache; None, with one warning, if the directory cannot be one."""
    with _opening:
        if settings not in _caches:
            _caches[settings] = _open(settings)
        return _caches[settings]


def _open(settings: CacheSettings) -> OpenCache | None:
    disk = None
    try:
        disk = DiskCache(settings)
        disk.begin()
    except (CacheUnusableError, OSError) as error:
        if disk is not None:
            disk.close()
        reason = error.strerror or error if isinstance(error, OSError) else error
        warn_once(
            f"{display_name(settings.directory)} cannot be a cache: {reason}. This process goes on "
            "without it, and reads the store"
        )
        return None
    return OpenCache(disk, Writer(disk))


def close_caches(*, ends: bool = True) -> None:
    """Closes all caches of this process; they are opened again when they are next used."""
    for cache in _caches.values():
        if cache is not None:
            if ends and not cache.writer.end(END_SECONDS):
                # A slow disk: the thread would write to files that took over the closed numbers.
                cache.disk.state = CacheMode.OFF
                continue
            cache.disk.close(ends=ends)
    _caches.clear()


def _leave_to_parent() -> None:
    """In a forked child: the open files, the locks and the writing thread are its parent's."""
    global _opening
    _opening = threading.Lock()
    close_caches(ends=False)


atexit.register(close_caches)
os.register_at_fork(after_in_child=_leave_to_parent)
