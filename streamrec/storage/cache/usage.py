"""How many bytes the cache takes, counted by all its processes in one file."""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from streamrec.storage.cache.files import locked, open_counter
from streamrec.storage.cache.names import USAGE

_COUNT: Final = struct.Struct("<8sq")
_MAGIC: Final = b"SRusage1"

SPARE_BYTES: Final = 1 << 20
"""The most that a process reserves ahead, and keeps of what it has freed."""

SPARE_SHARE: Final = 20_000
"""It is one of so many parts of the limit, so that hundreds of processes hold back little of it."""


class Usage:
    """The count of bytes on the disk, and of those that writers have reserved.

    A process that is killed while it writes leaves its reservation. It is gone when the cache is
    measured the next time: by the first process of a job, while no other uses the cache.
    """

    def __init__(self, root: int, ahead: int = SPARE_BYTES) -> None:
        self._ahead = ahead
        self._file = open_counter(USAGE, root)
        # The lock of a file does not exclude the threads of one process.
        self._threads = threading.Lock()
        self._spare = 0

    def measure(self, count: Callable[[], int]) -> None:
        """Sets the count to what `count` finds on the disk, while no process changes it."""
        with self._hold():
            self._write(count())

    def is_known(self) -> bool:
        """Whether the file holds a count."""
        with self._hold():
            return self._read() is not None

    def used(self) -> int:
        """Returns the bytes on the disk."""
        with self._hold():
            return self._read() or 0

    def reserve(self, charge: int, limit: int) -> int:
        """Adds to the count if it stays within the limit; returns 0, or the bytes that exceed
        it.

        Short blocks are reserved many at a time: locking the count costs more than writing one.
        """
        with self._threads:
            if charge <= self._spare:
                self._spare -= charge
                return 0
            with locked(self._file):
                used = self._read() or 0
                lacking = charge - self._spare
                if used + lacking > limit:
                    return used + lacking - limit
                more = self._ahead if used + lacking + self._ahead <= limit else 0
                self._write(used + lacking + more)
                self._spare = more
            return 0

    def release(self, charge: int) -> None:
        """Returns bytes that this process has reserved, or keeps a few for the next block."""
        with self._threads:
            self._spare += charge
            if self._spare > 2 * self._ahead:
                self._give_back(self._spare - self._ahead)

    def free(self, charge: int) -> None:
        """Takes the bytes of a removed file from the count.

        None of them are kept for the next block: while the cache is above its limit, removing must
        not admit anything.
        """
        with self._hold():
            self._write(max(0, (self._read() or 0) - charge))

    def settle(self) -> None:
        """Gives back what is reserved ahead: this process may end without notice from now on."""
        with self._threads:
            self._give_back(self._spare)

    def close(self) -> None:
        """Closes the file, and nothing else: in a forked child, a thread that is gone may hold the
        lock, and the reservation is the parent's. May be called twice.
        """
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _give_back(self, nbytes: int) -> None:
        if nbytes:
            with locked(self._file):
                self._write(max(0, (self._read() or 0) - nbytes))
            self._spare -= nbytes

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with self._threads, locked(self._file):
            yield

    def _read(self) -> int | None:
        data = os.pread(self._file, _COUNT.size, 0)
        if len(data) < _COUNT.size:
            return None
        magic, used = _COUNT.unpack(data)
        return int(used) if magic == _MAGIC and used >= 0 else None

    def _write(self, used: int) -> None:
        os.pwrite(self._file, _COUNT.pack(_MAGIC, used), 0)


def bytes_ahead(limit: int) -> int:
    """Returns how many bytes a process reserves ahead under this limit.

    >>> bytes_ahead(500 << 30) == SPARE_BYTES, bytes_ahead(16 << 20)
    (True, 838)
    """
    return min(SPARE_BYTES, limit // SPARE_SHARE)
