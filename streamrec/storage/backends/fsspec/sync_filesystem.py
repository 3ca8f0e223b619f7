"""Any sync fsspec filesystem, and chains of filesystems: each call in a thread.

A thread cannot be stopped. A cancelled or timed-out call is left behind: it works on memory of its own, never
on the caller's buffer, and its file is closed when it comes back. A filesystem that hangs keeps that thread.

Filesystems that have one connection, or one open archive, for all their files are called by one thread at a time. What
a cache opens is opened by one thread at a time: another one would read what the first has not fetched yet.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread
import fsspec.core

from streamrec.storage.backend import Backend, Body, BytesBody, ObjectInfo, PartSink
from streamrec.storage.backends.fsspec import common, repairs
from streamrec.storage.backends.fsspec.common import SpooledUpload
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.options import ClientOptions
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.tasks import in_thread, run_to_completion
from streamrec.storage.urls import CACHES, Glob, protocol_of, split_chain, temporary_name

__all__ = ["SyncFsBackend", "connect"]

T = TypeVar("T")

BLOCK: Final = 1 << 20
"""Bytes of one read: below that the hop to the thread shows."""

SHARED: Final = {"ftp", "git", "libarchive", "tar", *repairs.SFTP}
"""Filesystems that bear one call at a time."""


async def connect(source: ClientOptions, policy: RetryPolicy) -> SyncFsBackend:
    """Takes the user's filesystem as it is, or makes one."""
    if source.filesystem is not None:
        return SyncFsBackend(source.filesystem)
    options = {name: dict(value) if isinstance(value, dict) else value for name, value in source.options.items()}
    options["skip_instance_cache"] = True
    if protocol_of(source.url) not in repairs.SFTP:  # it hands this on to a client that does not know it
        options["use_listings_cache"] = False
    with common.translate_errors(source.url):
        filesystem, _ = await _in_thread(lambda: fsspec.core.url_to_fs(common.root_of(source.url), **options))
    return SyncFsBackend(filesystem, ours=True)


def _is_shared(filesystem: object) -> bool:
    """Whether all files of a filesystem, or of what it is over, are read through one connection or archive."""
    if not isinstance(filesystem, fsspec.AbstractFileSystem):
        return False
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    return bool(protocols & SHARED) or _is_shared(getattr(filesystem, "fs", None))


class SyncFsBackend(Backend):
    """One sync filesystem.

    Args:
        filesystem: Any; but for those in `SHARED` it must bear calls from several threads.
        ours: Whether it was made here, and so is closed here.
    """

    def __init__(self, filesystem: fsspec.AbstractFileSystem, ours: bool = False) -> None:
        self._fs = filesystem
        self._ours = ours
        repairs.mend(filesystem)
        self._lock = threading.RLock() if _is_shared(filesystem) else None
        self._opening: WeakValueDictionary[str, _Lock] = WeakValueDictionary()

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        with common.translate_errors(prefix):
            root = self._name(common.parent(prefix)) or ("/" if protocol_of(prefix) in repairs.SFTP else "")
            return await self.call(lambda: self._find(prefix, root, glob)), None

    async def stat(self, path: str) -> ObjectInfo:
        """Fsspec's info, never from its cache."""
        with common.translate_errors(path):
            return common.info_of(path, await self.call(lambda: self._info(self._name(path))))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        info = await self.stat(path)
        common.check_version(info, version, start, end)
        stop = info.size if end is None or (info.size is not None and info.size < end) else end
        if stop is not None and start >= stop:
            return BytesBody(info)
        with common.translate_errors(path, start, end):
            opening = partial(self._open_file, self._name(path), start, info.size)
            file = await in_thread(opening, undo=_File.close, run=self.call)
        return _FileBody(self, file, info, start, stop)

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """By way of a local file and a temporary name."""
        common.check_writable(path, overwrite)
        name = self._name(path)
        temporary = temporary_name(name)

        def put(local: str, size: int) -> None:
            self._fs.makedirs(self._fs._parent(name), exist_ok=True)
            self._fs.put_file(local, temporary)
            common.check_size(path, common.info_of(path, self._info(temporary)), size)
            self._fs.mv(temporary, name)

        async def deliver(local: str, size: int) -> ObjectInfo:
            with common.translate_errors(path):
                await self.call(lambda: put(local, size))
            return await self.stat(path)

        async def discard() -> None:
            with common.translate_errors(path), suppress(FileNotFoundError):
                await self.call(lambda: self._fs.rm_file(temporary))

        return await SpooledUpload.start(deliver, discard)

    async def copy(self, source: str, target: str) -> None:
        """A copy under a temporary name, which is moved; by way of a local file where the filesystem cannot copy."""
        name, temporary = self._name(target), temporary_name(self._name(target))

        def copy() -> None:
            try:
                self._fs.cp_file(self._name(source), temporary)
            except NotImplementedError:
                with tempfile.TemporaryDirectory(prefix="streamrec-") as folder:
                    self._fs.get_file(self._name(source), f"{folder}/copy")
                    self._fs.put_file(f"{folder}/copy", temporary)
            self._fs.mv(temporary, name)

        with common.translate_errors(target):
            await self.call(copy)

    async def remove(self, path: str) -> None:
        with common.translate_errors(path):
            await self.call(lambda: self._fs.rm_file(self._name(path)))

    async def call(self, function: Callable[[], T]) -> T:
        """Calls in a thread, and at the same time as others where the filesystem bears that."""
        lock = self._lock
        if lock is None:
            return await _in_thread(function)

        def alone() -> T:
            with lock:
                return function()

        return await _in_thread(alone)

    async def aclose(self) -> None:
        if self._ours:
            repairs.close(self._fs)

    def _find(self, prefix: str, root: str, glob: Glob | None) -> list[ObjectInfo]:
        repairs.connect_again(self._fs)
        if not common.lists_directories(repairs.below(self._fs)):
            try:
                return common.infos_of(prefix, self._fs.find(root, detail=True))
            except FileNotFoundError:
                return []
        found, directories = list[ObjectInfo](), [root]
        while directories:
            directory = directories.pop()
            with suppress(FileNotFoundError):  # it is not there, or went meanwhile
                entries = self._fs.ls(directory, detail=True)
                infos, below = common.in_directory(prefix, directory, entries, glob)
                found += infos
                directories += below
        return found

    def _info(self, name: str) -> Any:
        repairs.connect_again(self._fs)
        self._fs.invalidate_cache(self._fs._parent(name))
        return repairs.below(self._fs).info(name)  # a filecache lists the directory, which a web server may refuse

    def _open_file(self, name: str, start: int, size: int | None) -> _File:
        repairs.connect_again(self._fs)
        with self._opening.setdefault(name, _Lock()), repairs.whole(self._fs, name, size):
            return _File(self._fs.open(name, "rb"), start, self._lock)

    def _name(self, path: str) -> str:
        chain = split_chain(path)
        cached = chain.before and protocol_of(path) in CACHES  # its own way makes "zip:" of "zip://"
        return common.name_of(self._fs.fs if cached else self._fs, chain.url)


class _Lock:
    """A lock that is dropped when no thread holds it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class _File:
    """A file for threads: one call at a time, of those of its filesystem too if it shares a lock with them, and a
    close that waits for its turn.
    """

    def __init__(self, file: Any, start: int, lock: threading.RLock | None) -> None:
        self._file = file
        self._lock = lock or threading.RLock()
        if start:
            file.seek(start)

    def read(self, count: int) -> bytes:
        with self._lock:
            return bytes(self._file.read(count))

    def close(self) -> None:
        with self._lock:
            self._file.close()


class _FileBody:
    keeps_time = False
    splits = False

    def __init__(self, backend: SyncFsBackend, file: _File, info: ObjectInfo, start: int, stop: int | None) -> None:
        self.info = info
        self._backend = backend
        self._file = file
        self._position = start
        self._stop = stop
        self._left = memoryview(b"")
        self._busy = False

    async def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            self._left = memoryview(await self._next_block())
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def aclose(self) -> None:
        """Closes the file; one that a thread still reads is closed when that thread is done."""
        self._left = memoryview(b"")
        if self._busy:
            threading.Thread(target=self._file.close, name="streamrec closes a file", daemon=True).start()
        else:
            with common.translate_errors(self.info.path):
                await run_to_completion(self._file.close)

    async def _next_block(self) -> bytes:
        wanted = BLOCK if self._stop is None else min(BLOCK, self._stop - self._position)
        if not wanted:
            return b""
        self._busy = True
        with common.translate_errors(self.info.path, self._position, self._stop):
            data = await _in_thread(lambda: self._file.read(wanted))
        self._busy = False
        if not data and self._stop is not None:
            raise TransientError(Cause.BROKEN, f"the file ended at byte {self._position:,} of {self._stop:,}")
        self._position += len(data)
        if self._position == self._stop or not data:
            common.check_version(
                await self._backend.stat(self.info.path), self.info.version, self._position, self._stop
            )
        return data


async def _in_thread(call: Callable[[], T]) -> T:
    """Calls in a thread; a cancelled caller leaves it behind."""
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
