"""Temporary files of local uploads: creates and locks them, and removes those of dead writers.

A file is abandoned if it is not locked: its writer holds a lock on it (flock), which the kernel
releases when the writer's process ends, however it ends. A process id would not work: it is reused,
and in containers every writer is process 1. Network filesystems may support locks per machine only,
so the machine's name is part of the file's name, and files of other machines are left alone.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import socket
import stat
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from streamrec.errors import UnsupportedOperationError
from streamrec.storage.urls import staged_object, temporary_name, temporary_prefix


def create_temporary(final: Path) -> tuple[Path, int]:
    """Creates and locks a file in the directory of the final one; returns its path and
    descriptor.
    """
    while True:
        path = final.with_name(f"{_prefix(final)}{secrets.token_hex(8)}")
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            locked = _lock(handle)
        except OSError:  # without locks, other writers cannot find the file abandoned either
            locked = True
        if locked and os.fstat(handle).st_nlink:
            return path, handle
        os.close(handle)  # another writer removed it as abandoned before it was locked


def remove_abandoned(final: Path) -> None:
    """Removes temporary files for this name that dead writers left on this machine."""
    prefix = _prefix(final)
    with suppress(OSError):  # the directory may be writable but not listable
        for name in os.listdir(final.parent):
            if name.startswith(prefix):
                _remove_if_unlocked(final.with_name(name))


def make_directories(path: Path) -> None:
    """Makes a directory and its parents, durably even if power fails."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for each in missing:
        sync_directory(each.parent)


def put_in_place(temporary: Path, final: Path) -> None:
    """Gives a complete file its name, and the mode and owner of the file that it replaces, or will
    replace.
    """
    with suppress(OSError):  # nothing is replaced, or this is not allowed
        old = os.stat(staged_object(str(final)) or final)
        new = os.stat(temporary)
        if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
            with suppress(OSError):
                os.chown(temporary, old.st_uid, old.st_gid)
        os.chmod(temporary, stat.S_IMODE(old.st_mode))
    os.replace(temporary, final)
    sync_directory(final.parent)


def copy_file(
    source: Path, target: Path, check: Callable[[os.stat_result], object], creates: bool = False
) -> os.stat_result:
    """Creates a hard link, replacing the target; a copy if the filesystem has no hard links.

    Returns the status of the new file. `check` gets the status of the file that is copied, and may
    raise an error before anything is replaced. With `creates`, an existing target is a
    FileExistsError.
    """
    if creates and (status := create_link(source, target, check)):
        return status
    temporary = Path(temporary_name(str(target)))
    try:
        try:
            # The name may move to another file at any time; the link does not.
            os.link(source, temporary)
            check(os.stat(temporary))
        except OSError:
            check(os.stat(source))
            shutil.copy2(source, temporary)
            check(os.stat(source))
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
        status = os.stat(temporary)
        os.replace(temporary, target)
        sync_directory(target.parent)
        return status
    finally:
        temporary.unlink(
            missing_ok=True
        )  # rename(2) does nothing if both names are links to one file


def create_link(
    source: Path, target: Path, check: Callable[[os.stat_result], object]
) -> os.stat_result | None:
    """Creates a hard link where there is no file, and returns its status; None if the filesystem
    has no hard links. `check` is as in `copy_file`.
    """
    try:
        os.link(source, target)
    except FileExistsError:
        raise
    except OSError:
        return None
    status = os.stat(target)
    try:
        check(status)
    except BaseException:
        os.unlink(target)
        raise
    sync_directory(target.parent)
    return status


def lock_directory(path: Path) -> Callable[[], None] | None:
    """Locks a directory, and returns the function that unlocks it; None if it is locked.

    A filesystem that locks files only raises UnsupportedOperationError (as NFS does).
    """
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _lock(handle):
            return partial(os.close, handle)
    except OSError as error:
        os.close(handle)
        raise UnsupportedOperationError(
            f"this filesystem has no locks ({error})", str(path)
        ) from error
    os.close(handle)
    return None


def sync_directory(path: Path) -> None:
    """Makes the names in a directory durable: a rename alone may be lost in a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _prefix(final: Path) -> str:
    """Returns the prefix of this machine's temporary names for a file (`urls.is_temporary`)."""
    machine = f"{zlib.crc32(socket.gethostname().encode()):08x}-"
    try:
        most = os.pathconf(final.parent, "PC_NAME_MAX")
    except OSError:  # the directory was removed, or its filesystem has no limit
        most = 255
    if len(os.fsencode(final.name)) > most:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(final))
    return temporary_prefix(final.name, most, machine)


def _remove_if_unlocked(path: Path) -> None:
    with suppress(
        OSError
    ):  # it was removed, belongs to another user, or the filesystem has no locks
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _lock(handle):
                path.unlink()
        finally:
            os.close(handle)


def _lock(handle: int) -> bool:
    """Tries to lock a file; an OSError if the filesystem has no locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
