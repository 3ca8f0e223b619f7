"""What the processes of a cache tell each other: a file in each data set, to which all append.

A line is the name of a file with blocks that is complete. It is written before their locks are
freed: a process that gets a lock, and then reads the new lines, knows the block if it is there.
Listing the directory instead would take a second where it has a million files.

Only time depends on it: a block whose line is lost is fetched twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from streamrec.storage.cache.files import open_file, open_to_append, remove_file
from streamrec.storage.cache.names import JOURNAL

MOST_BYTES: Final = 16 << 20
"""A longer journal is removed, and the next line begins another one."""


def add_line(line: str, directory: int) -> None:
    """Tells the other processes; `directory` is the open one of the data set."""
    file = open_to_append(JOURNAL, directory)
    try:
        # The first newline ends what a process that was killed may have left unfinished.
        os.write(file, f"\n{line}\n".encode())
        too_long = os.fstat(file).st_size > MOST_BYTES
    finally:
        os.close(file)
    if too_long:
        remove_file(JOURNAL, directory)


class JournalReader:
    """Reads the lines that were added since the last time; one thread at a time."""

    def __init__(self) -> None:
        self._number = 0
        self._offset = 0

    def skip(self, directory: int) -> None:
        """Skips what is there: the caller lists the directory after that."""
        self._number, self._offset = end_of_journal(directory)

    def new_lines(self, directory: int) -> Sequence[str] | None:
        """Returns the new lines; None if they may not be all, so that the caller must `skip`."""
        number, end = end_of_journal(directory)
        if self._number not in (0, number) or end < self._offset:
            return None  # it was removed, and what others wrote into it is unknown
        if end == self._offset:
            return ()
        try:
            file = open_file(JOURNAL, directory)
        except FileNotFoundError:
            return None
        try:
            data = os.pread(file, end - self._offset, self._offset)
        finally:
            os.close(file)
        whole = data[: data.rfind(b"\n") + 1]
        self._number = number
        self._offset += len(whole)
        return [line for line in whole.decode(errors="replace").split("\n") if line]


def end_of_journal(directory: int) -> tuple[int, int]:
    """Returns the number of the file, and its length; zeros if there is none."""
    try:
        found = os.stat(JOURNAL, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0, 0
    return found.st_ino, found.st_size
