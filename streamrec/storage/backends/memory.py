"""fsspec's memory filesystem: `memory://` URLs, in tests and notebooks.

It shares its files with the user's own `fsspec.filesystem("memory")`. A body reads the file object
that existed when it was opened, so its bytes never mix with those of a replacement; versions
distinguish the two as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from streamrec.errors import NotFoundError
from streamrec.storage.backend import (
    Backend,
    Body,
    BytesBody,
    ContentDigest,
    ObjectInfo,
    PartSink,
    Pieces,
)
from streamrec.storage.faults import RetryPolicy, changed_error, exists_error
from streamrec.storage.options import ClientOptions
from streamrec.storage.urls import Glob


async def connect(source: ClientOptions, policy: RetryPolicy) -> MemoryBackend:
    """Uses the user's instance, or a new one over the process-wide store."""
    return MemoryBackend(source.filesystem or MemoryFileSystem(**source.options))


class MemoryBackend(Backend):
    may_stall = False

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self._fs = filesystem

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        start = prefix.removeprefix("memory://").lstrip("/")
        files = {
            name.lstrip("/"): file for name, file in self._fs.store.items()
        }  # a name with "::" begins without "/"
        return [
            _info(f"memory://{name}", file)
            for name, file in files.items()
            if name.startswith(start)
        ], None

    async def stat(self, path: str) -> ObjectInfo:
        return _info(path, self._file(path))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        file = self._file(path)
        info = _info(path, file)
        if version is not None and version != info.version:
            raise changed_error(path, start, end)
        return BytesBody(info, memoryview(file.getvalue())[start:end])

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        upload = _MemoryUpload(self._fs, path, overwrite)
        upload.check_free()
        return upload

    async def copy(self, source: str, target: str) -> None:
        self._fs.pipe_file(target, self._file(source).getvalue())

    async def remove(self, path: str) -> None:
        self._file(path)
        self._fs.rm_file(path)

    def _file(self, path: str) -> Any:
        try:
            return self._fs.store[self._fs._strip_protocol(path)]
        except KeyError:
            raise NotFoundError("there is no such object in memory: check the URL", path) from None


class _MemoryUpload(PartSink):
    def __init__(self, filesystem: MemoryFileSystem, path: str, overwrite: bool) -> None:
        self._fs = filesystem
        self._path = path
        self._overwrite = overwrite
        self._data = bytearray()

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        self._data[offset:] = b"".join(pieces)

    def check_free(self) -> None:
        """Raises AlreadyExistsError if the object exists and must not be replaced."""
        if not self._overwrite and self._fs._strip_protocol(self._path) in self._fs.store:
            raise exists_error(self._path)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        self.check_free()
        self._fs.pipe_file(self._path, bytes(self._data))
        return _info(self._path, self._fs.store[self._fs._strip_protocol(self._path)])

    async def abort(self) -> None:
        self._data = bytearray()


def _info(path: str, file: Any) -> ObjectInfo:
    return ObjectInfo(path, file.getbuffer().nbytes, f"{file.created.isoformat()}-{id(file):x}")
