"""Any async fsspec filesystem that has no backend of its own.

fsspec has no streamed read, so a body is a row of ranged reads, the next one under way while the caller works
on the last: two blocks of memory per stream. `stat` and `open` ask for the object's info each.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from contextlib import suppress
from inspect import isawaitable
from typing import Any, Final

import fsspec
from fsspec.asyn import AsyncFileSystem

from streamrec.storage.backend import Backend, Body, BytesBody, ObjectInfo, PartSink
from streamrec.storage.backends.fsspec import common
from streamrec.storage.backends.fsspec.common import SpooledUpload
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.options import ClientOptions, build
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.urls import Glob, temporary_name

__all__ = ["AsyncFsBackend", "connect"]

CLIENTS: Final = ("_session", "service_client", "credential")
"""Where filesystems keep what must be closed: most of them, adlfs, adlfs."""

BLOCK: Final = 4 << 20
"""Bytes of one read: below that the cost of a request shows, on S3 above all."""


async def connect(source: ClientOptions, policy: RetryPolicy) -> AsyncFsBackend:
    """Makes the filesystem for the running loop."""
    cls = AsyncFileSystem if source.filesystem else fsspec.get_filesystem_class(source.protocol)
    of_url = {} if source.filesystem else cls._get_kwargs_from_urls(source.url)
    with common.translate_errors(source.url):
        filesystem = build(cls, source, **{name: value for name, value in of_url.items() if name not in source.options})
        if hasattr(filesystem, "set_session"):
            await filesystem.set_session()
    _retry_nothing(filesystem)
    return AsyncFsBackend(filesystem)


def _retry_nothing(filesystem: AsyncFileSystem) -> None:
    """Switches the retries of azure-core off: they would wait 15 s and more within each attempt of ours."""
    service = getattr(filesystem, "service_client", None)
    policy: Any = getattr(getattr(service, "_config", None), "retry_policy", None)
    if hasattr(policy, "total_retries"):
        policy.total_retries = 0


def _forget(filesystem: AsyncFileSystem) -> None:
    """Its finalizers would run when the interpreter ends, on a loop that is not there any more (adlfs)."""
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):
        peeked = finalizer.peek()
        if peeked is not None and peeked[0] is filesystem:
            finalizer.detach()


class AsyncFsBackend(Backend):
    """One async filesystem.

    Args:
        filesystem: Made for the running loop.
    """

    remote = True

    def __init__(self, filesystem: AsyncFileSystem) -> None:
        self._fs = filesystem

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        root = self._name(common.parent(prefix))
        with common.translate_errors(prefix):
            if not common.lists_directories(self._fs):
                try:
                    return common.infos_of(prefix, await self._fs._find(root, detail=True)), None
                except FileNotFoundError:
                    return [], None
            found, directories = list[ObjectInfo](), [root]
            while directories:
                directory = directories.pop()
                with suppress(FileNotFoundError):  # it is not there, or went meanwhile
                    entries = await self._fs._ls(directory, detail=True)
                    infos, below = common.in_directory(prefix, directory, entries, glob)
                    found += infos
                    directories += below
            return found, None

    async def stat(self, path: str) -> ObjectInfo:
        with common.translate_errors(path):
            return common.info_of(path, await self._fs._info(self._name(path)))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Asks for size and version; the first block is under way when this returns."""
        info = await self.stat(path)
        common.check_version(info, version, start, end)
        stop = end if info.size is None else info.size if end is None else min(end, info.size)
        return _RangesBody(self, info, start, stop) if stop is None or start < stop else BytesBody(info)

    async def read(self, info: ObjectInfo, start: int, stop: int, last: bool) -> bytes:
        """One block; with the last one of a body, the version is compared once more.

        It is shorter than was asked for only where the object's size is not known, at its end.
        """
        with common.translate_errors(info.path, start, stop):
            data = bytes(await self._fs._cat_file(self._name(info.path), start=start, end=stop))
        if len(data) != stop - start and info.size is not None:
            raise TransientError(Cause.BROKEN, f"{len(data):,} bytes came where {stop - start:,} were asked for")
        if last:
            common.check_version(await self.stat(info.path), info.version, start, stop)
        return data

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """By way of a local file and a temporary name."""
        common.check_writable(path, overwrite)
        name = self._name(path)
        temporary = temporary_name(name)

        async def deliver(local: str, size: int) -> ObjectInfo:
            with common.translate_errors(path):
                await self._fs._put_file(local, temporary)
                common.check_size(path, common.info_of(path, await self._fs._info(temporary)), size)
                await self._fs._mv_file(temporary, name)
            return await self.stat(path)

        async def discard() -> None:
            with common.translate_errors(path), suppress(FileNotFoundError):
                await self._fs._rm_file(temporary)

        return await SpooledUpload.start(deliver, discard)

    async def copy(self, source: str, target: str) -> None:
        with common.translate_errors(target):
            await self._fs._cp_file(self._name(source), self._name(target))

    async def remove(self, path: str) -> None:
        with common.translate_errors(path):
            await self._fs._rm_file(self._name(path))

    async def aclose(self) -> None:
        """Closes the clients that the filesystem has, as far as they are known: fsspec has no way to do so."""
        creator = getattr(self._fs, "_s3creator", None)
        if creator is not None:
            await creator.__aexit__(None, None, None)
            return
        for name in CLIENTS:
            close = getattr(getattr(self._fs, name, None), "close", None)
            if close is not None:
                done = close()
                if isawaitable(done):
                    await done
        _forget(self._fs)

    def _name(self, path: str) -> str:
        return common.name_of(self._fs, path)


class _RangesBody:
    keeps_time = False
    splits = False

    def __init__(self, backend: AsyncFsBackend, info: ObjectInfo, start: int, stop: int | None) -> None:
        self.info = info
        self._backend = backend
        self._at = self._next = start
        self._stop = stop
        self._left = memoryview(b"")
        self._ahead: asyncio.Task[bytes] | None = None
        self._read_ahead()

    async def readinto(self, buffer: memoryview) -> int:
        if not self._left and self._ahead is not None:
            asked = self._next - self._at
            self._left = memoryview(await self._ahead)
            self._ahead = None
            if len(self._left) == asked:
                self._read_ahead()
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def aclose(self) -> None:
        """Gives the block that is under way up."""
        task, self._ahead = self._ahead, None
        self._left = memoryview(b"")
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _read_ahead(self) -> None:
        self._ahead = None
        self._at, self._next = self._next, self._next + BLOCK
        if self._stop is not None:
            self._next = min(self._next, self._stop)
        if self._at < self._next:
            reading = self._backend.read(self.info, self._at, self._next, last=self._next == self._stop)
            self._ahead = asyncio.get_running_loop().create_task(reading)
