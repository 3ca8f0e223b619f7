"""Any other filesystem of fsspec, and chains of filesystems: async ones in the loop, sync ones in threads.

fsspec has no streamed read. An async body is a row of ranged reads, the next one under way while the caller works on
the last: two blocks of memory a stream. A sync body is an open file, read by a thread. `stat` and `open` ask for the
object's info each.

A thread cannot be stopped. A call that is cancelled or timed out is abandoned: it works on memory of its own, never on
the caller's buffer, and its file is closed when it returns. A filesystem that hangs keeps that thread.

Filesystems that have one connection, or one open archive, for all their files are called by one thread at a time. What
a cache opens is opened by one thread at a time: another one would read what the first has not fetched yet.

These stores only take whole files: the parts of an upload are gathered in a local temporary file. It goes to a
temporary name in the store; when it has the right size there, it is moved to its final one. Where the store moves in
one step, so does the object appear. Memory is bounded by the parts, disk space by the object. A process that is
killed leaves its temporary names: `.NAME.streamrec-*` in the store, which no listing shows, and `streamrec-*` among
this machine's temporary files. Whether their writer lives is not known, so they are never removed.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import IO, Any, Final, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread
import fsspec
from fsspec.asyn import AsyncFileSystem

from streamrec.errors import StorageError, UnsupportedOperationError
from streamrec.storage.backend import Backend, Body, BytesBody, ContentDigest, ObjectInfo, PartSink, Pieces
from streamrec.storage.backends.fsspec import common, repairs
from streamrec.storage.backends.fsspec.common import translate_errors
from streamrec.storage.faults import Cause, TransientError, changed_error
from streamrec.storage.options import ClientOptions, build
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.tasks import finish, in_thread, run_to_completion
from streamrec.storage.urls import CACHES, Glob, protocol_of, split_chain, temporary_name

__all__ = ["FsspecBackend", "connect_async", "connect_sync"]

T = TypeVar("T")

ASYNC_BLOCK: Final = 4 << 20
"""Bytes of one read: below that the cost of a request shows, on S3 above all."""

SYNC_BLOCK: Final = 1 << 20
"""Likewise in a thread: below that the hop to it shows."""

SHARED: Final = {"ftp", "git", "libarchive", "tar", *repairs.SFTP}
"""Filesystems that bear one call at a time."""


async def connect_async(source: ClientOptions, policy: RetryPolicy) -> FsspecBackend:
    """Makes an async filesystem for the running loop."""
    cls = AsyncFileSystem if source.filesystem else fsspec.get_filesystem_class(source.protocol)
    of_url = {} if source.filesystem else cls._get_kwargs_from_urls(source.url)
    with translate_errors(source.url):
        filesystem = build(cls, source, **{name: value for name, value in of_url.items() if name not in source.options})
        if hasattr(filesystem, "set_session"):
            await filesystem.set_session()
    repairs.retry_nothing(filesystem)
    return FsspecBackend(filesystem, is_async=True)


async def connect_sync(source: ClientOptions, policy: RetryPolicy) -> FsspecBackend:
    """Takes the user's filesystem as it is, or makes one."""
    if source.filesystem is not None:
        return FsspecBackend(source.filesystem)
    options = {name: dict(value) if isinstance(value, dict) else value for name, value in source.options.items()}
    options["skip_instance_cache"] = True
    if protocol_of(source.url) not in repairs.SFTP:  # it hands this on to a client that does not know it
        options["use_listings_cache"] = False
    with translate_errors(source.url):
        filesystem = await _in_thread(partial(_make, source.url, options))
    return FsspecBackend(filesystem, ours=True)


def _make(url: str, options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    """The filesystem of a URL. An OSError without a number means that this machine lacks a library, such as libhdfs."""
    try:
        return fsspec.core.url_to_fs(common.root_of(url), **options)[0]
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise StorageError(
                f"no client can be made on this machine ({error}): install what it lacks", url
            ) from error
        raise


class FsspecBackend(Backend):
    """One filesystem.

    Args:
        filesystem: Made for the running loop where it is async; else it must bear calls from several threads, but for
            those in `SHARED`.
        is_async: Whether its async methods are called.
        ours: Whether a sync one was made here, and so is closed here.
    """

    def __init__(self, filesystem: fsspec.AbstractFileSystem, is_async: bool = False, ours: bool = False) -> None:
        self.remote = self._async = is_async
        self._fs = filesystem
        self._ours = ours
        repairs.mend(filesystem)
        self._lock = threading.RLock() if not is_async and _is_shared(filesystem) else None
        self._opening: WeakValueDictionary[str, threading.Semaphore] = WeakValueDictionary()

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        root = self._name(common.parent(prefix)) or ("/" if protocol_of(prefix) in repairs.SFTP else "")
        found, directories = list[ObjectInfo](), [root]
        with translate_errors(prefix):
            if not common.lists_directories(repairs.below(self._fs)):
                with suppress(FileNotFoundError):
                    found = common.infos_of(prefix, await self._call("find", root, detail=True))
                return found, None
            while directories:
                directory = directories.pop()
                with suppress(FileNotFoundError):  # it is not there, or went meanwhile
                    entries = await self._call("ls", directory, detail=True)
                    infos, below = common.in_directory(prefix, directory, entries, glob)
                    found += infos
                    directories += below
        return found, None

    async def stat(self, path: str) -> ObjectInfo:
        """Fsspec's info, never from its cache."""
        with translate_errors(path):
            return common.info_of(path, await self._info(self._name(path)))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Asks for size and version. The first block of an async body is under way when this returns."""
        info = await self.stat(path)
        _check_version(info, version, start, end)
        stop = end if info.size is None else info.size if end is None else min(end, info.size)
        if stop is not None and start >= stop:
            return BytesBody(info)
        if self._async:
            return _BlocksBody(self, None, info, start, stop)
        with translate_errors(path, start, end):
            opening = partial(self._open_file, self._name(path), start, info.size)
            file = await in_thread(opening, undo=_File.close, run=self._in_turn)
        return _BlocksBody(self, file, info, start, stop)

    async def read(self, file: _File | None, info: ObjectInfo, start: int, count: int, stop: int | None) -> bytes:
        """One block of a body; with its last one, the version is compared once more.

        It may be shorter than was asked for: an async one only at the end of an object of unknown size.
        """
        with translate_errors(info.path, start, stop):
            if file is not None:
                data = await _in_thread(lambda: file.read(count))
            else:
                data = bytes(await self._fs._cat_file(self._name(info.path), start=start, end=start + count))
        end = start + len(data)
        is_short = len(data) != count and info.size is not None if file is None else not data and stop is not None
        if is_short:
            raise TransientError(Cause.BROKEN, f"the file ended at byte {end:,} of {stop or start + count:,}")
        if end == stop or not data:
            _check_version(await self.stat(info.path), info.version, start, stop)
        return data

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """By way of a local file and a temporary name.

        No verb of fsspec creates and never replaces, so that cannot be promised. Chains are only read.
        """
        if split_chain(path).is_chain:
            raise UnsupportedOperationError(
                "nothing can be written to a chain of URLs: write to the store itself", path
            )
        if not overwrite:
            raise UnsupportedOperationError(
                "fsspec has no way to create an object only where there is none: pass overwrite=True, and make sure"
                " that no other writer uses this name",
                path,
            )
        file: Any = await asyncio.to_thread(tempfile.NamedTemporaryFile, prefix="streamrec-")
        return _SpooledUpload(self, path, temporary_name(self._name(path)), file)

    async def deliver(self, local: str, size: int, temporary: str, path: str) -> ObjectInfo:
        """Puts a local file into the store, under its temporary name and then its final one. May be called again."""
        name = self._name(path)
        with translate_errors(path):
            if not self._async:
                await self._call("makedirs", self._fs._parent(name), exist_ok=True)
            await self._call("put_file", local, temporary)
            common.check_size(path, common.info_of(path, await self._info(temporary)), size)
            await self._call("mv_file" if self._async else "mv", temporary, name)
        return await self.stat(path)

    async def discard(self, name: str, path: str) -> None:
        """Removes what an unfinished `deliver` may have left in the store."""
        with translate_errors(path), suppress(FileNotFoundError):
            await self._call("rm_file", name)

    async def copy(self, source: str, target: str) -> None:
        """A copy; of a sync filesystem, under a temporary name, which is moved."""
        old, new = self._name(source), self._name(target)
        with translate_errors(target):
            if self._async:
                await self._call("cp_file", old, new)
                return
            temporary = temporary_name(new)
            try:
                await self._call("cp_file", old, temporary)
            except NotImplementedError:  # then by way of a local file
                with tempfile.TemporaryDirectory(prefix="streamrec-") as folder:
                    await self._call("get_file", old, f"{folder}/copy")
                    await self._call("put_file", f"{folder}/copy", temporary)
            await self._call("mv", temporary, new)

    async def remove(self, path: str) -> None:
        with translate_errors(path):
            await self._call("rm_file", self._name(path))

    async def aclose(self) -> None:
        if self._async:
            await repairs.close_clients(self._fs)
        elif self._ours:
            repairs.close(self._fs)

    async def _call(self, verb: str, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the filesystem: the async one, or the sync one in a thread."""
        if self._async:
            return await getattr(self._fs, f"_{verb}")(*args, **kwargs)

        def call() -> Any:
            repairs.connect_again(self._fs)
            return getattr(self._fs, verb)(*args, **kwargs)

        return await self._in_turn(call)

    async def _in_turn(self, function: Callable[[], T]) -> T:
        """Calls in a thread, and at the same time as others where the filesystem bears that."""
        lock = self._lock
        if lock is None:
            return await _in_thread(function)

        def alone() -> T:
            with lock:
                return function()

        return await _in_thread(alone)

    async def _info(self, name: str) -> Any:
        if self._async:
            return await self._fs._info(name)

        def info() -> Any:
            repairs.connect_again(self._fs)
            self._fs.invalidate_cache(self._fs._parent(name))
            return repairs.below(self._fs).info(name)  # a filecache lists the directory, which a web server may refuse

        return await self._in_turn(info)

    def _open_file(self, name: str, start: int, size: int | None) -> _File:
        repairs.connect_again(self._fs)
        with self._opening.setdefault(name, threading.Semaphore()), repairs.whole(self._fs, name, size):
            return _File(self._fs.open(name, "rb"), start, self._lock)

    def _name(self, path: str) -> str:
        chain = split_chain(path)
        cached = chain.before and protocol_of(path) in CACHES  # its own way makes "zip:" of "zip://"
        return common.name_of(self._fs.fs if cached else self._fs, chain.url)


def _is_shared(filesystem: object) -> bool:
    """Whether all files of a filesystem, or of what it is over, are read through one connection or archive."""
    if not isinstance(filesystem, fsspec.AbstractFileSystem):
        return False
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    return bool(protocols & SHARED) or _is_shared(getattr(filesystem, "fs", None))


def _check_version(info: ObjectInfo, version: str | None, start: int, end: int | None) -> None:
    """Most filesystems cannot pin a version: it is compared when a body is opened, and again with its last bytes."""
    if version is not None and info.version is not None and info.version != version:
        raise changed_error(info.path, start, end)


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


class _BlocksBody:
    """Reads block by block: from an open file, or where there is none by ranges, the next one ahead."""

    keeps_time = False
    splits = False

    def __init__(
        self, backend: FsspecBackend, file: _File | None, info: ObjectInfo, start: int, stop: int | None
    ) -> None:
        self.info = info
        self._backend = backend
        self._file = file
        self._position = start
        self._stop = stop
        self._left = memoryview(b"")
        self._block: asyncio.Task[bytes] | None = None
        if file is None:
            self._read_block()

    async def readinto(self, buffer: memoryview) -> int:
        if not self._left:
            if self._file is not None:
                self._read_block()
            await self._next_block()
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def aclose(self) -> None:
        """Abandons the block that is under way; a file that a thread still reads is closed when it is done."""
        task, self._block = self._block, None
        file, self._file = self._file, None
        self._left = memoryview(b"")
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if file is not None and task is not None:
            threading.Thread(target=file.close, name="streamrec closes a file", daemon=True).start()
        elif file is not None:
            with translate_errors(self.info.path):
                await run_to_completion(file.close)

    def _read_block(self) -> None:
        size = ASYNC_BLOCK if self._file is None else SYNC_BLOCK
        count = size if self._stop is None else min(size, self._stop - self._position)
        if count:
            read = self._backend.read(self._file, self.info, self._position, count, self._stop)
            self._block = asyncio.get_running_loop().create_task(read)

    async def _next_block(self) -> None:
        if self._block is not None:
            data = await self._block
            self._block = None
            self._left = memoryview(data)
            self._position += len(data)
            if self._file is None and len(data) == ASYNC_BLOCK:
                self._read_block()


class _SpooledUpload(PartSink):
    """An upload by way of a local file, which is deleted when it is closed."""

    def __init__(self, backend: FsspecBackend, path: str, temporary: str, file: IO[bytes]) -> None:
        self._backend = backend
        self._path = path
        self._temporary = temporary
        self._file = file
        self._delivering = False

    async def put_part(self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
        await finish(asyncio.to_thread(self._write, offset, pieces))

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        self._delivering = True
        info = await self._backend.deliver(self._file.name, sent.size, self._temporary, self._path)
        await asyncio.to_thread(self._file.close)
        return info

    async def abort(self) -> None:
        """Deletes the local file, and what may be in the store."""
        await asyncio.to_thread(self._file.close)
        if self._delivering:
            await self._backend.discard(self._temporary, self._path)

    def _write(self, offset: int, pieces: Sequence[memoryview]) -> None:
        self._file.seek(offset)
        self._file.writelines(pieces)
        self._file.flush()


async def _in_thread(call: Callable[[], T]) -> T:
    """Calls in a thread; a cancelled caller abandons it."""
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
