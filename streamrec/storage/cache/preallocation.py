"""Asks the filesystem for all the space of a block at once, so that no write need ask for its part.

On ext4 that takes a third of the processor time of writing new files: 0.19 → 0.12 s for each GB.
Where it does not help, blocks are written without it.
"""

from __future__ import annotations

import errno
import os
import time
from typing import Final

LEAST_BYTES: Final = 1 << 20
"""Shorter blocks are one or two writes: asking for their space costs as much as it saves."""

SLOW_SECONDS: Final = 1e-3
"""A filesystem takes some 50 microseconds of processor time for a block. If it cannot, glibc
writes a byte to each page instead, which takes 2,000 calls."""

UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENODEV, errno.ENOSYS, errno.EOPNOTSUPP})


class Preallocation:
    """Reserves space in files, as long as that is cheap; one thread uses it.

    Attributes:
        is_on: Whether it still does.
    """

    def __init__(self) -> None:
        self.is_on = hasattr(os, "posix_fallocate")  # macOS has none

    def extend(self, file: int, nbytes: int) -> bool:
        """Gives an empty file its size and the space for it; returns whether it did.

        What is not written of it must be cut off. OSError: the disk is full, or faulty.
        """
        if not self.is_on or nbytes < LEAST_BYTES:
            return False
        began = time.thread_time()
        try:
            os.posix_fallocate(file, 0, nbytes)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self.is_on = False
            return False
        if time.thread_time() - began > SLOW_SECONDS:
            self.is_on = False
        return True


def cut_off(file: int, nbytes: int) -> None:
    """Gives back the space of a file after its first bytes."""
    os.ftruncate(file, nbytes)
