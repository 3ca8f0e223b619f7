"""Any other filesystem of fsspec, and chains of filesystems: async ones in the loop, sync ones in
threads.

fsspec has no streamed read. An async body is a series of ranged reads, with the next one in
progress while the caller processes the last: two blocks of memory per stream. A sync body is an
open file, read by a thread. `stat` and `open` each request the object's info.

A thread cannot be stopped. A call that is cancelled or timed out is abandoned: it uses memory of
its own, never the caller's buffer, and its file is closed when it returns. A filesystem that hangs
keeps that thread.

One thread at a time calls a filesystem that has one connection, or one open archive, for all its
files. One thread at a time opens a file through a cache: another one would read bytes that the
first has not fetched yet.

These stores take whole files only, so the parts of an upload are collected in a local temporary
file. It is uploaded under a temporary name; when it has the right size there, it is moved to its
final name. If the store moves atomically, the object appears atomically. Memory is bounded by the
parts, disk space by the object. A killed process leaves its temporary files: `.NAME.streamrec-*` in
the store, which no listing shows, and `streamrec-*` in this machine's temporary directory. They are
never removed, because their writer may still run.
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

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    StorageError,
    UnsupportedOperationError,
)
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
from streamrec.storage.backends.fsspec import common, repairs
from streamrec.storage.backends.fsspec.common import translate_errors
from streamrec.storage.faults import Cause, RetryPolicy, TransientError, changed_error
from streamrec.storage.options import ClientOptions, build
from streamrec.storage.tasks import call_in_thread, finish, run_to_completion
from streamrec.storage.urls import CACHES, Glob, protocol_of, split_chain, temporary_name

T = TypeVar("T")

ASYNC_BLOCK: Final = 4 << 20
"""Bytes per read of an async filesystem: smaller reads are slower, especially on S3."""

SYNC_BLOCK: Final = 1 << 20
"""Bytes per read in a thread: with smaller reads the switch to the thread costs noticeable time."""

AZURE_MARK: Final = "streamrec_upload"
"""The name of the metadata that holds an upload's token; Azure allows no "-" in it."""

SHARED: Final = {"ftp", "git", "libarchive", "tar", *repairs.SFTP}
"""Filesystems that allow one call at a time."""


async def connect_async(source: ClientOptions, policy: RetryPolicy) -> FsspecBackend:
    """Makes an async filesystem for the running loop."""
    cls = AsyncFileSystem if source.filesystem else fsspec.get_filesystem_class(source.protocol)
    from_url = {} if source.filesystem else cls._get_kwargs_from_urls(source.url)
    with translate_errors(source.url):
        filesystem = build(
            cls,
            source,
            **{name: from_url[name] for name in from_url.keys() - source.options.keys()},
        )
        if hasattr(filesystem, "set_session"):
            await filesystem.set_session()
    repairs.retry_nothing(filesystem)
    return FsspecBackend(filesystem, is_async=True)


async def connect_sync(source: ClientOptions, policy: RetryPolicy) -> FsspecBackend:
    """Uses the user's filesystem as it is, or makes one."""
    if source.filesystem is not None:
        return FsspecBackend(source.filesystem)
    options = {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in source.options.items()
    }
    options["skip_instance_cache"] = True
    if (
        protocol_of(source.url) not in repairs.SFTP
    ):  # it passes this on to a client that does not know it
        options["use_listings_cache"] = False
    with translate_errors(source.url):
        filesystem = await _in_thread(partial(_make, source.url, options))
    return FsspecBackend(filesystem, ours=True)


def _make(url: str, options: dict[str, Any]) -> fsspec.AbstractFileSystem:
    """Makes the filesystem of a URL. An OSError without a number means a missing library, such as
    libhdfs.
    """
    try:
        return fsspec.core.url_to_fs(common.root_of(url), **options)[0]
    except OSError as error:
        if type(error) is OSError and error.errno is None:
            raise StorageError(
                f"no client can be made on this machine ({error}): install what it lacks", url
            ) from error
        raise


class FsspecBackend(Backend):
    """One filesystem: an async one of the running loop, or a thread-safe sync one, unless its
    protocol is in `SHARED`.

    `aclose` closes a sync filesystem only if it is `ours`, made here.
    """

    def __init__(
        self, filesystem: fsspec.AbstractFileSystem, is_async: bool = False, ours: bool = False
    ) -> None:
        self.remote = self._async = is_async
        self._fs = filesystem
        self._ours = ours
        repairs.mend(filesystem, ours=ours)
        self._lock = threading.RLock() if not is_async and _is_shared(filesystem) else None
        self._opening: WeakValueDictionary[str, threading.Semaphore] = WeakValueDictionary()

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        root = self._name(common.parent(prefix)) or (
            "/" if protocol_of(prefix) in repairs.SFTP else ""
        )
        infos = list[ObjectInfo]()
        directories = [root]
        with translate_errors(prefix):
            if not common.lists_directories(repairs.below(self._fs)):
                with suppress(FileNotFoundError):
                    infos = common.infos_of(prefix, await self._call("find", root, detail=True))
                return infos, None
            while directories:
                directory = directories.pop()
                with suppress(FileNotFoundError):  # it does not exist, or was removed meanwhile
                    entries = await self._call("ls", directory, detail=True)
                    files, below = common.select_entries(prefix, directory, entries, glob)
                    infos += files
                    directories += below
        return infos, None

    async def stat(self, path: str) -> ObjectInfo:
        """Returns size and version from fsspec's info, never from its cache."""
        with translate_errors(path):
            return common.info_of(path, await self._info(self._name(path)))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Requests size and version, and starts to read the first block of an async body."""
        info = await self.stat(path)
        _check_version(info, version, start, end)
        stop = end if info.size is None else info.size if end is None else min(end, info.size)
        if stop is not None and start >= stop:
            return BytesBody(info)
        if self._async:
            return _BlocksBody(self, None, info, start, stop)
        with translate_errors(path, start, end):
            opening = partial(self._open_file, self._name(path), start, info.size)
            file = await call_in_thread(opening, undo=_File.close, run=self._in_turn)
        return _BlocksBody(self, file, info, start, stop)

    async def read(
        self, file: _File | None, info: ObjectInfo, start: int, count: int, stop: int | None
    ) -> bytes:
        """Reads one block of a body; with the last one, compares the version again.

        The block may be shorter than `count`; an async one only at the end of an object of unknown
        size.
        """
        with translate_errors(info.path, start, stop):
            if file is not None:
                data = await _in_thread(lambda: file.read(count))
            else:
                data = bytes(
                    await self._fs._cat_file(self._name(info.path), start=start, end=start + count)
                )
        end = start + len(data)
        if file is None:
            is_short = len(data) != count and info.size is not None
        else:  # a file may return fewer bytes than it was asked for, and more the next time
            is_short = not data and stop is not None
        if is_short:
            raise TransientError(
                Cause.BROKEN, f"the file ended at byte {end:,} of {stop or start + count:,}"
            )
        if end == stop or not data:
            _check_version(await self.stat(info.path), info.version, start, stop)
        return data

    async def identify(self, path: str) -> Held:
        """Returns the token in the metadata of an Azure blob. Other filesystems have no place for
        one, and their versions prove nothing.
        """
        with translate_errors(path):
            entry = await self._info(self._name(path))
        metadata = entry.get("metadata") or {}
        return Held(common.info_of(path, entry), metadata.get(AZURE_MARK))

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        """Starts an upload through a local file and a temporary name.

        fsspec cannot create an object without replacing another one, so `overwrite` must be True.
        Chains are read-only.
        """
        if split_chain(path).is_chain:
            raise UnsupportedOperationError(
                "nothing can be written to a chain of URLs: write to the store itself", path
            )
        if not terms.overwrite and terms.guaranteed:
            raise UnsupportedOperationError(
                "fsspec has no way to create an object only where there is none: pass "
                "overwrite=True, and make sure"
                " that no other writer uses this name",
                path,
            )
        file: Any = await asyncio.to_thread(tempfile.NamedTemporaryFile, prefix="streamrec-")
        return _SpooledUpload(self, path, temporary_name(self._name(path)), file, terms)

    @property
    def keeps_tokens(self) -> bool:
        """Whether objects carry the token of their writer: adlfs can set metadata."""
        return self._async and hasattr(self._fs, "_setxattrs")

    async def deliver(
        self, local: str, size: int, temporary: str, path: str, terms: UploadTerms
    ) -> ObjectInfo:
        """Uploads a local file under its temporary name, and moves it to its final one. May be
        called again.
        """
        name = self._name(path)
        with translate_errors(path):
            if not self._async:
                await self._call("makedirs", self._fs._parent(name), exist_ok=True)
            await self._call("put_file", local, temporary)
            found = common.info_of(path, await self._info(temporary)).size
            if found not in (None, size):
                raise IntegrityError(
                    f"{found:,} bytes arrived of the {size:,} that were sent: write it again", path
                )
            if self.keeps_tokens and terms.token:  # a move keeps it
                with suppress(FileNotFoundError):  # adlfs' name for any error; it stays without
                    await self._fs._setxattrs(
                        temporary, is_directory="false", **{AZURE_MARK: terms.token}
                    )
            if not terms.overwrite:  # fsspec has no condition: it is looked at just before
                await self._check_target(path, Precondition.ABSENT)
            await self._call("mv_file" if self._async else "mv", temporary, name)
        return await self.stat(path)

    async def discard(self, name: str, path: str) -> None:
        """Removes the temporary object that an unfinished `deliver` may have left in the store."""
        with translate_errors(path), suppress(FileNotFoundError):
            await self._call("rm_file", name)

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Copies an object; in a sync filesystem under a temporary name, which is then moved."""
        old = self._name(source)
        new = self._name(target)
        if source_version is not None:
            await self._check_target(source, source_version)
        await self._check_target(target, replaces)
        with translate_errors(target):
            if self._async:
                await self._call("cp_file", old, new)
                return None
            temporary = temporary_name(new)
            try:
                await self._call("cp_file", old, temporary)
            except NotImplementedError:  # then by way of a local file
                with tempfile.TemporaryDirectory(prefix="streamrec-") as folder:
                    await self._call("get_file", old, f"{folder}/copy")
                    await self._call("put_file", f"{folder}/copy", temporary)
            await self._call("mv", temporary, new)
        return None

    async def _check_target(self, path: str, replaces: Replaced) -> None:
        """Raises an ObjectChangedError if something else is there than what may be replaced."""
        if replaces is Precondition.ANY:  # then a request would be in vain
            return
        try:
            found: Replaced | None = (await self.stat(path)).version
        except NotFoundError:
            found = Precondition.ABSENT
        check_replaced(path, found, replaces)

    async def remove(self, path: str, version: str | None = None) -> None:
        if version is not None:
            await self._check_target(path, version)
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
        """Calls a function in a thread, one at a time if the filesystem requires that."""
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
            return repairs.below(self._fs).info(
                name
            )  # a filecache would list the directory: web servers may refuse

        return await self._in_turn(info)

    def _open_file(self, name: str, start: int, size: int | None) -> _File:
        repairs.connect_again(self._fs)
        with (
            self._opening.setdefault(name, threading.Semaphore()),
            repairs.whole(self._fs, name, size),
        ):
            return _File(self._fs.open(name, "rb"), start, self._lock)

    def _name(self, path: str) -> str:
        chain = split_chain(path)
        cached = (
            chain.before and protocol_of(path) in CACHES
        )  # a cache would turn "zip://" into "zip:"
        return common.name_of(self._fs.fs if cached else self._fs, chain.url)


def _is_shared(filesystem: object) -> bool:
    """Whether a filesystem, or one that it wraps, reads all its files through one connection or
    archive.
    """
    if not isinstance(filesystem, fsspec.AbstractFileSystem):
        return False
    protocols = (
        {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    )
    return bool(protocols & SHARED) or _is_shared(getattr(filesystem, "fs", None))


def _check_version(info: ObjectInfo, version: str | None, start: int, end: int | None) -> None:
    """Compares versions when a body is opened and with its last bytes: most filesystems cannot pin
    a version.
    """
    if version is not None and info.version is not None and info.version != version:
        raise changed_error(info.path, start, end)


class _File:
    """A file with one call at a time: `lock` is shared with its filesystem; None: the file has its
    own lock.
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
    """Reads block by block: from an open file, or, if `file` is None, by ranges with one block of
    read-ahead.
    """

    splits = False
    has_arrived = False  # a block is requested, or must be read

    def __init__(
        self,
        backend: FsspecBackend,
        file: _File | None,
        info: ObjectInfo,
        start: int,
        stop: int | None,
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
        """Abandons the block in progress; a file that a thread still reads is closed after that
        read.
        """
        task = self._block
        self._block = None
        file = self._file
        self._file = None
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
    """An upload through a local file, which is deleted when it is closed."""

    def __init__(
        self,
        backend: FsspecBackend,
        path: str,
        temporary: str,
        file: IO[bytes],
        terms: UploadTerms,
    ) -> None:
        self.mark = terms.mark if backend.keeps_tokens else None
        self._terms = terms
        self._backend = backend
        self._path = path
        self._temporary = temporary
        self._file = file
        self._delivering = False

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        await finish(asyncio.to_thread(self._write, offset, pieces))

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        self._delivering = True
        info = await self._backend.deliver(
            self._file.name, sent.size, self._temporary, self._path, self._terms
        )
        await asyncio.to_thread(self._file.close)
        return info

    async def abort(self) -> None:
        """Deletes the local file, and the temporary object in the store."""
        await asyncio.to_thread(self._file.close)
        if self._delivering:
            await self._backend.discard(self._temporary, self._path)

    def _write(self, offset: int, pieces: Sequence[memoryview]) -> None:
        self._file.seek(offset)
        self._file.writelines(pieces)
        self._file.flush()


async def _in_thread(call: Callable[[], T]) -> T:
    """Calls a function in a thread; a cancelled caller abandons it."""
    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
