"""Special files: named pipes, devices, /dev/stdin, and files of /proc, which report a size of 0.

They are read to their end, once, in order: they have no size and no version, and cannot be read
from an offset. They are written directly, not under a temporary name, so data written before an
error stays.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from streamrec.errors import StorageError
from streamrec.storage.backend import ContentDigest, ObjectInfo, PartSink, Pieces
from streamrec.storage.tasks import call_in_thread, finish, run_to_completion


def is_unsized(number: int) -> bool:
    """Whether an open file is not a regular file, or has bytes although it reports a size of 0."""
    status = os.fstat(number)
    if not stat.S_ISREG(status.st_mode):
        return True
    return status.st_size == 0 and bool(os.pread(number, 1, 0))


class SpecialBody:
    """A Body over an open file that is read in order, by a thread."""

    splits = False
    has_arrived = False

    def __init__(self, path: str, number: int) -> None:
        self.info = ObjectInfo(path, None, None)
        self._number = number
        self._woken, self._waking = os.pipe()
        self._reading: asyncio.Future[bytes] | None = None
        self._closed = False

    @classmethod
    async def open(cls, path: str, local: Path, start: int) -> SpecialBody:
        """Opens it; for a named pipe, waits until its other end is opened. A `start` above 0 is a
        StorageError.
        """
        if start:
            raise StorageError(
                "this is not a plain file: it is read once, from its beginning, and cannot be "
                "continued",
                path,
            )
        opening = partial(os.open, local, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            number = await call_in_thread(opening, undo=os.close)
        except asyncio.CancelledError:
            await run_to_completion(partial(_free, local))
            raise
        return cls(path, number)

    async def readinto(self, buffer: memoryview) -> int:
        if self._reading is None:  # else a cancelled call has begun to read
            reading = partial(self._read, min(len(buffer), 1 << 20))
            self._reading = asyncio.get_running_loop().run_in_executor(None, reading)
        data = await asyncio.shield(self._reading)
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        self._reading = None
        if count < len(data):
            self._reading = asyncio.get_running_loop().create_future()
            self._reading.set_result(data[count:])
        return count

    async def aclose(self) -> None:
        """Closes it, after it has woken and awaited a thread that reads."""
        if not self._closed:
            self._closed = True
            await finish(self._close())

    def _read(self, most: int) -> bytes:
        ready, _, _ = select.select([self._number, self._woken], [], [])
        return b"" if self._woken in ready else os.read(self._number, most)

    async def _close(self) -> None:
        os.write(self._waking, b"x")
        if self._reading is not None:
            await asyncio.wait([self._reading])
        for number in (self._number, self._woken, self._waking):
            os.close(number)


def _free(local: Path) -> None:
    """Frees a thread that waits for the other end of a named pipe, by opening that end."""
    with suppress(OSError):  # no thread waits
        os.close(os.open(local, os.O_WRONLY | os.O_NONBLOCK))


class DirectUpload(PartSink):
    """A PartSink that writes directly to a special file."""

    def __init__(self, path: str, local: Path) -> None:
        self._path = path
        self._local = local
        self._number: int | None = None

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        await finish(asyncio.to_thread(self._write, pieces))

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        await self.abort()
        return ObjectInfo(self._path, None, None)

    async def abort(self) -> None:
        """Closes the file; written data stays."""
        number = self._number
        self._number = None
        if number is not None:
            await run_to_completion(partial(os.close, number))

    def _write(self, pieces: Sequence[memoryview]) -> None:
        if self._number is None:
            self._number = os.open(self._local, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        for piece in pieces:
            while piece:
                piece = piece[os.write(self._number, piece) :]
