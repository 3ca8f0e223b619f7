"""fsspec's caches of whole files keep what they have when a download breaks off, and take it for the file: not here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fsspec.implementations.cached import CachingFileSystem, WholeFileCacheFileSystem

from streamrec.storage.resilience.faults import Cause, TransientError

__all__ = ["below", "whole"]


def below(filesystem: Any) -> Any:
    """What a cache keeps copies of; anything else as it is."""
    return filesystem.fs if isinstance(filesystem, CachingFileSystem) else filesystem


@contextmanager
def whole(filesystem: Any, name: str, size: int | None) -> Iterator[None]:
    """Opens a file within: a copy that is not whole is removed, so that the next attempt fetches it again.

    Args:
        filesystem: Any; only a simplecache and a filecache are looked at.
        name: The file.
        size: Its bytes, as its store says; None where it does not.

    Raises:
        TransientError: The copy has another number of bytes.
    """
    if not isinstance(filesystem, WholeFileCacheFileSystem):  # whose `protocol` an old fsspec takes from what it caches
        yield
        return
    try:
        yield
        copy = copy_of(filesystem, name)
        if size is not None and copy is not None and (found := os.path.getsize(copy)) != size:
            raise TransientError(Cause.BROKEN, f"the copy in the cache has {found:,} bytes of {size:,}")
    except BaseException:
        copy = copy_of(filesystem, name)
        if copy is not None and copy.startswith(filesystem.storage[-1]):
            with suppress(OSError):
                os.unlink(copy)
        raise


def copy_of(filesystem: Any, name: str) -> str | None:
    """Where the copy of a file is; None where there is none."""
    found = filesystem._check_file(filesystem._strip_protocol(name))
    return (found[1] if isinstance(found, tuple) else found) or None
