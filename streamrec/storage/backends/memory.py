"""fsspec's memory filesystem: `memory://` URLs, in tests and notebooks.

It shares its files with the user's own `fsspec.filesystem("memory")`. A body reads the file object
that existed when it was opened, so its bytes never mix with those of a replacement; versions
distinguish the two as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fsspec.implementations.memory import MemoryFileSystem

from streamrec.errors import NotFoundError
from streamrec.storage.backend import (
    Backend,
    Body,
    BytesBody,
    ContentDigest,
    Held,
    ObjectInfo,
    PartSink,
    Pieces,
    Precondition,
    Replaced,
    UploadTerms,
    check_replaced,
)
from streamrec.storage.faults import RetryPolicy, changed_error, exists_error
from streamrec.storage.options import ClientOptions
from streamrec.storage.urls import Glob


async def connect(source: ClientOptions, policy: RetryPolicy) -> MemoryBackend:
    """Uses the user's instance, or a new one over the process-wide store."""
    return MemoryBackend(source.filesystem or MemoryFileSystem(**source.options))


class MemoryBackend(Backend):
    """The files of fsspec's memory filesystem, in this process."""

    may_stall = False

    def __init__(self, filesystem: MemoryFileSystem) -> None:
        self._fs = filesystem

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        start = prefix.removeprefix("memory://").lstrip("/")
        # A name with "::" begins without "/".
        files = {name.lstrip("/"): file for name, file in self._fs.store.items()}
        found = [
            _info(f"memory://{name}", file)
            for name, file in files.items()
            if name.startswith(start)
        ]
        return found, None

    async def stat(self, path: str) -> ObjectInfo:
        return _info(path, self._file(path))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        file = self._file(path)
        info = _info(path, file)
        if version is not None and version != info.version:
            raise changed_error(path, start, end)
        return BytesBody(info, memoryview(file.getvalue())[start:end])

    async def identify(self, path: str) -> Held:
        """Returns the token that its upload has left on the file object; copies keep it."""
        file = self._file(path)
        return Held(_info(path, file), getattr(file, _MARK, None))

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        upload = _MemoryUpload(self._fs, path, terms)
        upload.check_free()
        return upload

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        file = self._file(source)
        if source_version is not None:
            self._check(source, source_version)
        self._check(target, replaces)
        _store(self._fs, target, file.getvalue(), getattr(file, _MARK, None))
        return None

    async def remove(self, path: str, version: str | None = None) -> None:
        self._file(path)
        if version is not None:
            self._check(path, version)
        self._fs.rm_file(path)

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        self._check(path, replaces)
        return _store(self._fs, path, data, None).version

    def _check(self, path: str, replaces: Replaced) -> None:
        """Raises an ObjectChangedError if something else is there than what may be replaced."""
        file = self._fs.store.get(self._fs._strip_protocol(path))
        found = Precondition.ABSENT if file is None else _info(path, file).version
        check_replaced(path, found, replaces)

    def _file(self, path: str) -> Any:
        try:
            return self._fs.store[self._fs._strip_protocol(path)]
        except KeyError:
            raise NotFoundError("there is no such object in memory: check the URL", path) from None


class _MemoryUpload(PartSink):
    def __init__(self, filesystem: MemoryFileSystem, path: str, terms: UploadTerms) -> None:
        self.mark = terms.mark
        self._fs = filesystem
        self._path = path
        self._overwrite = terms.overwrite
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
        return _store(self._fs, self._path, bytes(self._data), self.mark)

    async def abort(self) -> None:
        self._data = bytearray()


_MARK: Final = "streamrec_upload"
"""The attribute of fsspec's file object that holds the token of its upload."""


def _store(filesystem: MemoryFileSystem, path: str, data: bytes, mark: str | None) -> ObjectInfo:
    filesystem.pipe_file(path, data)
    file = filesystem.store[filesystem._strip_protocol(path)]
    if mark is not None:
        setattr(file, _MARK, mark)
    return _info(path, file)


def _info(path: str, file: Any) -> ObjectInfo:
    return ObjectInfo(path, file.getbuffer().nbytes, f"{file.created.isoformat()}-{id(file):x}")
