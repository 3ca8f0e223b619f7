"""An object in a store as a file that a thread reads: for decoders that want one (tarfile, gzip, pyarrow)."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import BinaryIO, Final

from streamrec.cli.progress import Meter
from streamrec.storage import Storage

__all__ = ["opened"]

BUFFER_BYTES: Final = 8 << 20
"""How much is asked for at a time."""


@asynccontextmanager
async def opened(storage: Storage, path: str, meter: Meter | None = None) -> AsyncIterator[BinaryIO]:
    """An object as a file, for a thread other than the loop's. All of it is of one version.

    Args:
        storage: Where it lies.
        path: Its URL.
        meter: Is told of the bytes that are read.
    """
    about = await storage.stat(path)
    raw = _ObjectFile(storage, path, about.size, about.version, meter)
    with io.BufferedReader(raw, BUFFER_BYTES) as file:
        yield file


class _ObjectFile(io.RawIOBase):
    def __init__(self, storage: Storage, path: str, size: int | None, version: str | None, meter: Meter | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._storage, self._path, self._version, self._meter = storage, path, version, meter
        self._size = size
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._size is not None

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base is None:
            raise io.UnsupportedOperation(f"{self._path}: the store does not say how large this object is")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        reading = self._storage.read_range(self._path, self._position, self._position + len(view), self._version)
        data = asyncio.run_coroutine_threadsafe(reading, self._loop).result()
        view[: len(data)] = data
        self._position += len(data)
        if self._meter is not None:
            self._meter.add(len(data))
        return len(data)
