"""Local files, through aiofiles: unbuffered, straight into the caller's buffer.

What is in the page cache is read at once, on the loop: Linux can be asked not to wait (RWF_NOWAIT), and
copying a megabyte takes less than the hop to a thread. Many bodies take turns of the loop (`take_turn`), so that
other work goes on between them. What is not in the cache is read in a thread, as much as the caller's buffer
takes. A thread that reads cannot be stopped, so a cancelled `readinto` waits for it: no thread writes into a
buffer that its owner believes to be free. What is short is read in the thread that opens the file, one or many at a
time: of thousands of small shards, going to a thread and back is most of what each costs.

Uploads go to a temporary name in the same directory (`temporary_files.py`) and are put in place by fsync, rename (or
a hard link, which never replaces), fsync of the directory. A process that is killed leaves the temporary file,
which no listing shows; the next upload to the same name removes it.

What is not a plain file is read and written by `special_files.py`. Paths are plain, or `file://` or `local://` URLs;
listings come in the style that was asked for.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiofiles

from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    PermissionDeniedError,
    StorageError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import Backend, Body, BytesBody, ContentDigest, ObjectInfo, PartSink, Pieces, ShortObject
from streamrec.storage.backends.local.special_files import DirectUpload, SpecialBody, is_unsized
from streamrec.storage.backends.local.temporary_files import (
    copy_file,
    create_temporary,
    make_directories,
    put_in_place,
    remove_abandoned,
    sync_directory,
)
from streamrec.storage.faults import changed_error, error_translator, exists, too_many_files
from streamrec.storage.identity import is_special
from streamrec.storage.options import ClientOptions
from streamrec.storage.retry import RetryPolicy
from streamrec.storage.tasks import finish, in_thread, run_to_completion
from streamrec.storage.urls import Glob, directory_advice, local_name, local_path, strip_scheme

__all__ = ["SHORT_BYTES", "LocalBackend", "ShortFile", "connect", "read_all", "read_if_short", "take_turn"]


async def take_turn(turns: asyncio.Lock) -> None:
    """Waits for a turn of the event loop that no other caller has, first in, first out; it may be this one."""
    await turns.acquire()
    asyncio.get_running_loop().call_soon(turns.release)


SHORT_BYTES: Final = 256 << 10
"""Files of up to this many bytes are read while they are opened."""


ShortFile = tuple[bytes, os.stat_result]
"""What was asked for of a file, all of it, and the file's status."""


def read_if_short(file: int, start: int, end: int | None) -> ShortFile | None:
    """What an open file has from `start` to `end`; None where that is long, or nothing, or is being written."""
    before = os.fstat(file)
    count = (before.st_size if end is None else min(end, before.st_size)) - start
    if not 0 < count <= SHORT_BYTES:
        return None
    data = os.pread(file, count, start)
    after = os.fstat(file)
    if len(data) < count or (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        return None
    return data, before


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


async def connect(source: ClientOptions, policy: RetryPolicy) -> LocalBackend:
    """Needs nothing of the options: a local path has none."""
    return LocalBackend()


class LocalBackend(Backend):
    """The files of this machine."""

    reads_short = True

    def __init__(self) -> None:
        self._turns = asyncio.Lock()

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        with _translate_errors(prefix):
            return await asyncio.to_thread(_list, prefix, glob), None

    async def stat(self, path: str) -> ObjectInfo:
        """Size, and a version from inode, time of change and size."""
        with _translate_errors(path):
            return _info(path, await asyncio.to_thread(_stat_file, local_path(path)))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Opens the file and stays with that one, even when its name moves to another."""
        local = local_path(path)
        with _translate_errors(path, start, end):
            opened = await in_thread(partial(_open, local, start, end), undo=_close_opened)
            if opened is None:
                return await SpecialBody.open(path, local, start)
            if isinstance(opened, tuple):  # what was read is what the file was then, whatever happens to it
                data, status = opened
                info = _info(path, status)
                if version is not None and version != info.version:
                    raise changed_error(path, start, end)
                return BytesBody(info, data)
            file = _wrap(opened, start)
        info = _info(path, os.fstat(file.fileno()))
        if version is not None and version != info.version:
            await finish(_close(file))
            raise changed_error(path, start, end)
        if not info.size and is_unsized(file.fileno()):
            special = SpecialBody(path, os.dup(file.fileno()))
            await finish(_close(file))
            return special
        if start >= (info.size or 0):
            await finish(_close(file))
            return BytesBody(info)
        return _LocalBody(file, info, start, self._turns)

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        read = await finish(asyncio.to_thread(read_all, [local_name(path) for path in paths]))
        return [
            None if short is None else ShortObject(_info(path, short[1]), short[0])
            for path, short in zip(paths, read, strict=True)
        ]

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """Makes the directories, and a temporary file in the final one's directory.

        A symbolic link is followed: what it leads to is replaced, and the link stays.
        """
        final = local_path(path)
        with _translate_errors(path):
            if await asyncio.to_thread(is_special, final):
                return DirectUpload(path, final)
            if await asyncio.to_thread(os.path.islink, final):
                final = Path(await asyncio.to_thread(os.path.realpath, final))
            if not overwrite and await asyncio.to_thread(os.path.lexists, final):
                raise exists(path)
            return await finish(_begin(path, final, overwrite), undo=_LocalUpload.abort)

    async def follow(self, path: str) -> str | None:
        """Where a symbolic link leads; None for what is not a plain file."""
        return await asyncio.to_thread(_follow, path)

    async def copy(self, source: str, target: str) -> None:
        """A second name for the same file; a copy if the file system has no hard links."""
        with _translate_errors(target):
            await finish(asyncio.to_thread(copy_file, *map(_resolve, (source, target))))

    async def remove(self, path: str) -> None:
        with _translate_errors(path):
            await finish(asyncio.to_thread(os.unlink, _resolve(path)))


class _LocalBody:
    keeps_time = True
    splits = False

    def __init__(self, file: Any, info: ObjectInfo, position: int, turns: asyncio.Lock) -> None:
        self.info = info
        self._file = file
        self._number = file.fileno()
        self._position = position
        self._turns = turns

    async def readinto(self, buffer: memoryview) -> int:
        """One read system call into the caller's buffer. A file that was changed in place is an error, not damage."""
        await take_turn(self._turns)
        file, position = self._number, self._position
        with _translate_errors(self.info.path, position):
            count = _read_cached(file, buffer, position)
            if count is None:
                count = await finish(asyncio.to_thread(_read_at, file, buffer, position))
        if _info(self.info.path, os.fstat(file)).version != self.info.version:
            raise changed_error(self.info.path, position)  # it was written to, or cut off
        self._position += count
        return count

    async def aclose(self) -> None:
        await finish(_close(self._file))


class _LocalUpload(PartSink):
    def __init__(self, path: str, final: Path, temporary: Path, file: Any, overwrite: bool) -> None:
        self._path = path
        self._final = final
        self._temporary = temporary
        self._file = file
        self._overwrite = overwrite
        self._left = weakref.finalize(self, remove_own, temporary, os.getpid())

    async def put_part(self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
        with _translate_errors(self._path, offset, offset + sum(map(len, pieces))):
            await finish(asyncio.to_thread(_write_all, self._file.fileno(), offset, pieces))

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        with _translate_errors(self._path):
            return _info(self._path, await finish(self._commit(sent)))

    async def abort(self) -> None:
        with _translate_errors(self._path):
            await _close(self._file)
            await run_to_completion(partial(self._temporary.unlink, missing_ok=True))
            self._left.detach()

    async def _commit(self, sent: ContentDigest) -> os.stat_result:
        """The file stays open, and so locked, until it has its final name."""
        stat = await asyncio.to_thread(self._put_in_place, sent)
        self._left.detach()
        await self._file.close()
        return stat

    def _put_in_place(self, sent: ContentDigest) -> os.stat_result:
        handle = self._file.fileno()
        os.fsync(handle)
        stat = os.fstat(handle)
        if stat.st_size != sent.size:
            raise IntegrityError(
                f"the file has {stat.st_size:,} bytes of the {sent.size:,} that were sent: write it again", self._path
            )
        if self._overwrite:
            put_in_place(self._temporary, self._final)
        else:
            self._link()
            sync_directory(self._final.parent)
        return stat

    def _link(self) -> None:
        """A second name, which is never put over another; then the first one goes."""
        try:
            os.link(self._temporary, self._final)
        except FileExistsError as error:
            raise exists(self._path) from error
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise UnsupportedOperationError(
                    f"this filesystem has no hard links ({error}), so it cannot create a file only where there is none:"
                    " pass overwrite=True",
                    self._path,
                ) from error
            raise
        self._temporary.unlink()


def remove_own(temporary: Path, maker: int) -> None:
    """An upload was dropped without an end, or the interpreter ends: its file goes, unless a parent process has it."""
    if os.getpid() == maker:
        temporary.unlink(missing_ok=True)


_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


async def _begin(path: str, final: Path, overwrite: bool) -> _LocalUpload:
    await asyncio.to_thread(make_directories, final.parent)
    await asyncio.to_thread(remove_abandoned, final)
    temporary, handle = await asyncio.to_thread(create_temporary, final)
    file = await aiofiles.open(handle, "wb", buffering=0)
    return _LocalUpload(path, final, temporary, file, overwrite)


async def _close(file: Any) -> None:
    """Closes a file of aiofiles, also where the task that does it is cancelled before the thread has begun."""
    await run_to_completion(file._file.close)


def _resolve(url: str) -> Path:
    return Path(os.path.realpath(local_path(url)))


def _follow(url: str) -> str | None:
    local = local_path(url)
    if is_special(local):
        return None
    return os.path.realpath(local) if os.path.islink(local) else url


def _open(path: Path, start: int, end: int | None) -> io.FileIO | ShortFile | None:
    """Opens a plain file, or reads what was asked for where that is short. None for what is not a plain file."""
    if is_special(path):
        return None
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - its caller closes it
    try:
        short = read_if_short(file.fileno(), start, end)
    except BaseException:
        file.close()
        raise
    if short is None:
        return file
    file.close()
    return short


def _close_opened(opened: io.FileIO | ShortFile | None) -> None:
    if isinstance(opened, io.FileIO):
        opened.close()


def _wrap(file: io.FileIO, start: int) -> Any:
    """The file as one of aiofiles, at a place."""
    file.seek(start)
    wrapped = aiofiles.threadpool.wrap(file, loop=asyncio.get_running_loop())
    weakref.finalize(wrapped, file.close).atexit = False  # a run that is dropped while its loop ends closes nothing
    return wrapped


def _read_cached(file: int, buffer: memoryview, position: int) -> int | None:
    """What the page cache holds of the file, as `os.preadv`; None where reading would wait, or may."""
    try:
        return os.preadv(file, [buffer], position, os.RWF_NOWAIT)
    except (AttributeError, OSError):  # not on this system, not on this filesystem, or not in the cache
        return None


def _read_at(file: int, buffer: memoryview, position: int) -> int:
    """Reads what the file holds there; returns how many bytes that was. Without preadv(2) they are copied once."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], position)
    data = os.pread(file, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def _write_all(file: int, offset: int, pieces: Sequence[memoryview]) -> None:
    for piece in pieces:
        while piece:
            count = os.pwrite(file, piece, offset)
            offset, piece = offset + count, piece[count:]


def _stat_file(path: Path) -> os.stat_result:
    stat = os.stat(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    return stat


def _info(path: str, stat: os.stat_result | None) -> ObjectInfo:
    if stat is None:
        return ObjectInfo(path, None, None)
    return ObjectInfo(path, stat.st_size, f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}")


def _list(prefix: str, glob: Glob | None) -> list[ObjectInfo]:
    """All files whose path begins with the prefix; of these, the ones that a glob wants."""
    named = strip_scheme(prefix)
    wanted = os.path.expanduser(named) if "/" in named else named  # the "~" of "~*" is the beginning of a name
    head = prefix.removesuffix(named) + named

    def url(path: str) -> str:
        return head + path[len(wanted) :]

    def enters(directory: str) -> bool:
        if directory.startswith(wanted):
            return glob is None or glob.enters(url(directory))
        return wanted.startswith(directory)

    def wants(path: str) -> bool:
        return path.startswith(wanted) and (glob is None or glob.wants(url(path)))

    files = _walk(wanted[: wanted.rfind("/") + 1], enters, wants)
    return [_info(url(path), status) for path, status in files]


def _walk(
    directory: str,
    enters: Callable[[str], bool],
    wants: Callable[[str], bool],
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[str, os.stat_result | None]]:
    """The files below a directory that are wanted, without a status where a name leads to none.

    Links to directories are followed, but not into a directory that is being walked: a link to one above ends there.

    Args:
        directory: Its path, which ends with a slash; "" for the working directory. One that is not there has no files.
        enters: Whether a directory, given likewise, is listed.
        wants: Whether a file is wanted.
        above: Device and inode of the directories that are being walked.

    Raises:
        OSError: A directory that was to be listed cannot be.
    """
    try:
        status = os.stat(directory or ".")
        walked = above | {(status.st_dev, status.st_ino)}
        entries = [] if len(walked) == len(above) else list(os.scandir(directory or "."))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = directory + entry.name
        entered, wanted = enters(path + "/"), wants(path)
        if (entered or wanted) and _is_directory(entry):
            if entered:
                yield from _walk(path + "/", enters, wants, walked)
        elif wanted:
            try:
                yield path, entry.stat()
            except OSError:  # a link that leads nowhere, or a file that may not be looked at: opening it tells
                yield path, None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a directory, or a link to one."""
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link to itself
            return False
        raise


def _translate(error: OSError, path: str, start: int | None, end: int | None) -> StorageError:
    """What the operating system says; none of it passes by trying again."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(local_name(path)):
            return NotFoundError("this symbolic link leads nowhere: restore its target, or remove it", path, start, end)
        advice = r"write it with / and no drive (in WSL, C:\ is /mnt/c/)" if "\\" in path else "check the path"
        return NotFoundError(f"there is no such file: {advice}", path, start, end)
    if isinstance(error, PermissionError):
        return PermissionDeniedError(f"access refused ({error}): check its owner and mode", path, start, end)
    if error.errno == errno.ENAMETOOLONG:
        return StorageError("this name is longer than its filesystem allows: shorten it", path, start, end)
    if error.errno == errno.EMFILE:
        return StorageError(too_many_files(), path, start, end)
    if isinstance(error, IsADirectoryError):
        return StorageError(directory_advice(path), path)
    return StorageError(f"{type(error).__name__}: {error}", path, start, end)


_translate_errors = error_translator((OSError,), _translate)
