"""Short files: read while they are open for a moment, one alone or many in one go.

Of thousands of small shards, going to a thread and back is most of what each costs.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["SHORT_BYTES", "ShortFile", "read_all", "read_if_short"]

SHORT_BYTES: Final = 256 << 10
"""What is no longer than this is read while the file is opened."""


@dataclass(frozen=True, slots=True)
class ShortFile:
    """What was asked for of a file, all of it, and what the file was."""

    data: bytes
    stat: os.stat_result


def read_if_short(file: int, start: int, end: int | None) -> ShortFile | None:
    """What an open file has from `start` to `end`; None where that is long, or nothing, or somebody writes to it."""
    before = os.fstat(file)
    count = (before.st_size if end is None else min(end, before.st_size)) - start
    if not 0 < count <= SHORT_BYTES:
        return None
    data = os.pread(file, count, start)
    after = os.fstat(file)
    if len(data) < count or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        return None
    return ShortFile(data, before)


def read_all(names: Sequence[str]) -> list[ShortFile | None]:
    """Each file, whole; None for what is not short and plain, or cannot be read."""
    return [_whole(name) for name in names]


def _whole(name: str) -> ShortFile | None:
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):  # a pipe's writer would notice that it is opened
            return None
        file = os.open(name, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            return read_if_short(file, 0, None)
        finally:
            os.close(file)
    except OSError:
        return None
