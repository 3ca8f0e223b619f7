"""The directories of a cache, and who may use them: its user, and a version that knows its format.

All names in a cache are relative to these open directories.
"""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from typing import Final

from streamrec.storage.cache.files import (
    make_directory,
    open_counter,
    open_directory,
    read_short_file,
)
from streamrec.storage.cache.names import MARKER, RUNS, SETS

FORMAT: Final = 2

READ_FORMATS: Final = (1, FORMAT)
"""The first format has no packs, and is else the same: such a cache goes on as one of this format,
which a process of an earlier version refuses."""


class CacheUnusableError(Exception):
    """This directory cannot be a cache; the text says why."""


class Directories:
    """The open directories of a cache: `root`, and `sets` and `runs` in it.

    CacheUnusableError: They cannot be a cache of this user and version; OSError: the disk fails.
    """

    def __init__(self, directory: str) -> None:
        self.root = open_root(directory)
        self.sets = self.runs = -1
        try:
            self.sets = open_own(SETS, self.root)
            self.runs = open_own(RUNS, self.root)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Closes them. May be called twice."""
        for file in (self.root, self.sets, self.runs):
            if file >= 0:
                os.close(file)
        self.root = self.sets = self.runs = -1


def open_root(directory: str) -> int:
    """Opens the directory of a cache, and makes it if it is missing."""
    try:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        root = open_directory(directory)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(directory):
            raise CacheUnusableError("it is a symbolic link: give the directory itself") from error
        raise
    try:
        check_owner(root)
        check_format(root)
    except BaseException:
        os.close(root)
        raise
    return root


def open_own(name: str, parent: int) -> int:
    """Opens a directory of the cache, and makes it if it is missing."""
    make_directory(name, parent)
    directory = open_directory(name, parent)
    try:
        check_owner(directory)
    except BaseException:
        os.close(directory)
        raise
    return directory


def check_owner(directory: int) -> None:
    """Refuses a directory of another user, who could read or replace what is in it."""
    if os.fstat(directory).st_uid != os.geteuid():
        raise CacheUnusableError(
            "it belongs to another user: give a directory of your own, such as one in it"
        )


def check_format(root: int) -> None:
    """Refuses a cache that another version of this package wrote; marks a new one, and one of a
    format that this one continues.
    """
    try:
        found = read_short_file(MARKER, root)
    except FileNotFoundError:
        found = b""
    try:
        format_number = json.loads(found)["format"] if found else None
    except (ValueError, LookupError, TypeError):
        format_number = 0
    if format_number is None or (format_number in READ_FORMATS and format_number != FORMAT):
        file = open_counter(MARKER, root)
        try:
            os.pwrite(file, json.dumps({"format": FORMAT}).encode(), 0)
        finally:
            os.close(file)
    elif format_number != FORMAT:
        raise CacheUnusableError(
            "another version of streamrec wrote it: give another directory, or remove this one"
        )
