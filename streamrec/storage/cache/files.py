"""Files of the cache: thin I/O that follows no symbolic link and leaves nothing open.

Every name is relative to an open directory, so that a directory that is moved or replaced under a
running job leads nowhere else. Files are for their owner alone.
"""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

LOCK_PATIENCE: Final = 5.0
"""Seconds to wait for a lock that is held for moments only; its holder may be suspended."""

_BASE: Final = os.O_NOFOLLOW | os.O_CLOEXEC


def open_directory(name: str, parent: int | None = None) -> int:
    """Opens a directory."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | _BASE, dir_fd=parent)


def make_directory(name: str, parent: int) -> None:
    """Makes a directory for its owner alone, if it is missing."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)


def open_file(name: str, parent: int) -> int:
    """Opens a regular file to read it; OSError for anything else."""
    # O_NONBLOCK: a pipe of this name must not make the reader wait
    file = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _BASE, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise FileNotFoundError(f"{name} is not a regular file")
    return file


class OneOpenFile:
    """Keeps the file open that was asked for last; leaving the context closes it."""

    def __init__(self) -> None:
        self._file = -1
        self._known: tuple[str, int] | None = None

    def __enter__(self) -> OneOpenFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def open(self, name: str, parent: int) -> int:
        """Opens a file as `open_file` does, unless it is open."""
        if self._known != (name, parent):
            self._close()
            self._file = open_file(name, parent)
            self._known = name, parent
        return self._file

    def _close(self) -> None:
        file, self._file = self._file, -1
        self._known = None
        if file >= 0:
            os.close(file)


def create_file(name: str, parent: int) -> int:
    """Creates a file to write it; FileExistsError if there is anything of this name."""
    return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BASE, 0o600, dir_fd=parent)


def open_to_append(name: str, parent: int) -> int:
    """Opens a file to add to its end, and creates it if it is missing."""
    # O_NONBLOCK: a pipe of this name must not make the writer wait
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | _BASE
    return os.open(name, flags, 0o600, dir_fd=parent)


def open_counter(name: str, parent: int) -> int:
    """Opens a file to read and write it, and creates it if it is missing."""
    return os.open(name, os.O_RDWR | os.O_CREAT | _BASE, 0o600, dir_fd=parent)


def read_short_file(name: str, parent: int, most: int = 1 << 20) -> bytes:
    """Returns the first `most` bytes of a file."""
    file = open_file(name, parent)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


def exists(name: str, parent: int) -> bool:
    """Whether there is anything of this name; a symbolic link counts as itself."""
    try:
        os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def write_all(file: int, pieces: Sequence[memoryview]) -> None:
    """Writes all pieces at the file's position, by one system call if the system takes all."""
    written = os.writev(file, pieces)
    for piece in pieces:
        rest = piece[min(written, len(piece)) :]
        written -= len(piece) - len(rest)
        while rest:
            rest = rest[os.write(file, rest) :]


def remove_file(name: str, parent: int) -> bool:
    """Removes a file; returns whether there was one."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def locked(file: int, patience: float = LOCK_PATIENCE) -> Iterator[None]:
    """Holds the lock of an open file, which the kernel frees when the process ends.

    TimeoutError: another process held it all the time.
    """
    until = time.monotonic() + patience
    while not try_lock(file):
        if time.monotonic() > until:
            raise TimeoutError("another process holds the lock of the cache")
        time.sleep(0.005)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Locks an open file, if no other process has locked it."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
