"""Bytes of local files as they lie in the page cache, mapped instead of read.

Whoever looks at a page that is not in the cache waits for the disk, with the event loop. So it is asked for a byte here
and there first, without waiting; if one is missing, all are fetched in a thread.

What happens to a file later shows in its pages, too. So a run notes the files of which it has mappings (`Mappings`),
and looks whether they are as they were before it hands anything out.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

from streamrec import kernels
from streamrec.errors import StorageError
from streamrec.storage.resilience.faults import changed
from streamrec.storage.resilience.shield import finish

__all__ = ["MappedFile", "Mappings", "noting", "read_at", "read_cached"]

STEP_BYTES = 512 << 10
"""What lies between two bytes that are there is there too, most likely: files are read, and forgotten, in stretches."""

LOST = (
    "a page of this file, which was mapped, could not be read any more: the file was cut off, or its disk fails. "
    "Read it again, and with memory_map=False if its disk does fail"
)

REST_FOR_LOOK = 20.0
"""After a run looked at its files it rests for so many times as long as that took: 2 to 10 microseconds for each on
this machine's disks, milliseconds where a server is asked."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """A file as it stood when it was first mapped.

    Attributes:
        path: Its URL, for errors.
        name: Its path.
        near: Whether it lies on this machine, where looking at it takes a microsecond. It is not worth giving the
            interpreter's lock away: of a training loop beside a stream from sixteen files that took 3.5 % of the speed.
        identity: Which file it is: its device and inode.
        state: How it stood: its size, and when it was written to.
    """

    path: str
    name: str
    near: bool
    identity: tuple[int, int]
    state: tuple[int, int]

    @classmethod
    def of(cls, path: str, name: os.PathLike[str], file: int) -> Stamp:
        """That of an open file of these names."""
        found = os.fstat(file)
        near = kernels.is_safe_to_map(file)
        identity, state = (found.st_dev, found.st_ino), (found.st_size, found.st_mtime_ns)
        return cls(path, os.fspath(name), near, identity, state)

    def check(self) -> None:
        """Raises ObjectChangedError where the file was written to, or cut off.

        Not where its name is gone, or has gone to another file: then nobody finds it to write to it.
        """
        try:
            now = kernels.file_stamp(self.name) if self.near else _far_stamp(self.name)
        except OSError:
            return
        if now[:2] == self.identity and now[2:] != self.state:
            raise changed(self.path)


class MappedFile:
    """A local file that is open, of which bytes are mapped: for as long as any of them are.

    Args:
        path: Its URL, for errors.
        name: Its path.
        number: Its descriptor.
        noted: Whether the run that maps it looks whether it changed, for as long as any bytes are mapped.
    """

    __slots__ = ("__weakref__", "_mappings", "stamp")

    def __init__(self, path: str, name: os.PathLike[str], number: int, noted: bool) -> None:
        self.stamp = Stamp.of(path, name, number)
        self._mappings = _noting.get() if noted else None
        if self._mappings is not None:
            self._mappings.note(self)

    async def view(self, number: int, start: int, end: int) -> memoryview:
        """Its bytes from `start` to `end`; they are in the page cache. The descriptor may be closed afterwards.

        Raises:
            ObjectChangedError: It has no such bytes any more.
        """
        if not kernels.is_cached(number, start, end - start, STEP_BYTES):
            await finish(asyncio.to_thread(_fetch, number, start, end))
        try:
            return memoryview(kernels.map_file(number, start, end - start, self))
        except ValueError as error:
            raise changed(self.stamp.path, start, end) from error

    def check_pages(self) -> None:
        """Raises StorageError where pages could not be read: there are zeros in their place."""
        for file, offset in kernels.lost_pages():
            if file is self:
                raise StorageError(LOST, self.stamp.path, offset)


class Mappings:
    """The files of which a run has mappings. They are noted in one thread, and looked at in any other."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[Stamp, weakref.ref[MappedFile]]] = {}
        self._left: list[Stamp] = []  # what was copied out of them is maybe still to be handed out
        self._rests_until = 0.0
        self._error: StorageError | None = None

    def __bool__(self) -> bool:
        """Whether there are any to look at."""
        return bool(self._files or self._left)

    def note(self, file: MappedFile) -> None:
        """One more; until its last mapping is gone."""
        number, stamp = id(file), file.stamp

        def leave(_: object) -> None:
            self._files.pop(number, None)
            self._left.append(stamp)

        self._files[number] = stamp, weakref.ref(file, leave)

    def check(self) -> None:
        """Looks whether all of them are as they were, unless that was done a moment ago.

        Raises:
            StorageError: What is wrong with one; from then on always.
        """
        if self._error is not None:
            raise self._error
        if not self._left and perf_counter() < self._rests_until:
            return
        began = perf_counter()
        try:
            self._check_all()
        except StorageError as error:
            self._error = error
            raise
        ended = perf_counter()
        self._rests_until = ended + REST_FOR_LOOK * (ended - began)

    def _check_all(self) -> None:
        left, self._left = self._left, []
        files = [*self._files.values()]
        for stamp in left:
            stamp.check()
        for stamp, _ in files:
            stamp.check()
        if kernels.lost_pages():
            for _, reference in files:
                if (file := reference()) is not None:
                    file.check_pages()


_noting: ContextVar[Mappings | None] = ContextVar("streamrec_mappings", default=None)


@contextmanager
def noting(mappings: Mappings) -> Iterator[None]:
    """Files that are mapped within the block, by this task and those it starts, are noted in `mappings`."""
    token = _noting.set(mappings)
    try:
        yield
    finally:
        _noting.reset(token)


def read_cached(file: int, buffer: memoryview, position: int) -> int | None:
    """What the page cache holds of the file, as `os.preadv`; None where reading would wait, or may."""
    try:
        return os.preadv(file, [buffer], position, os.RWF_NOWAIT)
    except (AttributeError, OSError):  # not on this system, not on this filesystem, or not in the cache
        return None


def read_at(file: int, buffer: memoryview, position: int) -> int:
    """What the file holds there, read into the buffer; how many bytes came. Without preadv(2) they are copied once."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], position)
    data = os.pread(file, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def _far_stamp(name: str) -> tuple[int, int, int, int]:
    """As `kernels.file_stamp`, while other threads run: the file's server may take its time."""
    found = os.stat(name)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _fetch(file: int, start: int, end: int) -> None:
    """Waits until these bytes are in the page cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, start, end - start, os.POSIX_FADV_WILLNEED)
    for place in range(start, end, STEP_BYTES):
        os.pread(file, 1, place)
    os.pread(file, 1, end - 1)
