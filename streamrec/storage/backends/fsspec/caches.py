"""fsspec's simplecache keeps what it has of a file when a download breaks off, and takes it for the file: not here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from streamrec.storage.resilience.faults import Cause, TransientError

__all__ = ["whole"]


@contextmanager
def whole(filesystem: Any, name: str, size: int | None) -> Iterator[None]:
    """Opens a file within: a copy that is not whole is removed, so that the next attempt fetches it again.

    Args:
        filesystem: Any; only a simplecache is looked at.
        name: The file.
        size: Its bytes, as its store says; None where it does not.

    Raises:
        TransientError: The copy has another number of bytes.
    """
    if "simplecache" not in filesystem.protocol:
        yield
        return
    try:
        yield
        copy = filesystem._check_file(filesystem._strip_protocol(name))
        if size is not None and (found := os.path.getsize(copy)) != size:
            raise TransientError(Cause.BROKEN, f"the copy in the cache has {found:,} bytes of {size:,}")
    except BaseException:
        copy = filesystem._check_file(filesystem._strip_protocol(name))
        if copy is not None and copy.startswith(filesystem.storage[-1]):
            with suppress(OSError):
                os.unlink(copy)
        raise
