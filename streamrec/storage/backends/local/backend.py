"""Local files, through aiofiles: unbuffered, directly into the caller's buffer.

Bytes in the page cache are read on the loop: Linux can read without waiting (RWF_NOWAIT), and
copying a megabyte takes less time than switching to a thread. Bodies alternate in the loop
(`ReadTurns`), so that other work runs between them. Other bytes are read in a thread, as many as
the caller's buffer takes. A thread that reads cannot be stopped, so a cancelled `readinto` waits
for it: no thread writes into a buffer whose owner believes it to be free. The thread that opens a
short file also reads it, one or many at a time: for small shards, switching to a thread is most of
the cost.

Uploads go to a temporary name in the same directory (`temporary_files.py`) and are put in place by
fsync, rename (or a hard link, which never replaces), fsync of the directory. A killed process
leaves the temporary file, which no listing shows; the next upload to the same name removes it.

`special_files.py` reads and writes what is not a regular file. Paths are plain, or `file://` or
`local://` URLs; listings use the style of the listed prefix.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import stat
import weakref
from collections import deque
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
    ShortObject,
    UploadTerms,
    check_replaced,
)
from streamrec.storage.backends.local.special_files import DirectUpload, SpecialBody, is_unsized
from streamrec.storage.backends.local.temporary_files import (
    copy_file,
    create_temporary,
    lock_directory,
    make_directories,
    put_in_place,
    remove_abandoned,
    sync_directory,
)
from streamrec.storage.faults import (
    RetryPolicy,
    Translated,
    changed_error,
    exists_error,
    too_many_files,
)
from streamrec.storage.identity import is_special
from streamrec.storage.options import ClientOptions
from streamrec.storage.tasks import call_in_thread, finish, run_to_completion
from streamrec.storage.urls import LOCAL_SCHEME, Glob, directory_advice, local_name, local_path


class ReadTurns:
    """Gives each caller an iteration of the event loop that no other one uses, in their order.

    An asyncio.Lock that is released in the next iteration would take two for each.
    """

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_taken = False

    async def take(self) -> None:
        """Waits for a turn. If the caller is cancelled, its turn is another one's, or is lost."""
        loop = asyncio.get_running_loop()
        if self._is_taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._is_taken = True
            loop.call_soon(self._end)

    def _end(self) -> None:
        """Ends a turn, in the iteration after it, and begins the next one.

        The next iteration runs the task of that turn, and after it the turn's end.
        """
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                turn.get_loop().call_soon(self._end)
                return
        self._is_taken = False


SHORT_BYTES: Final = 256 << 10
"""Ranges of up to this many bytes are read when the file is opened."""


ShortFile = tuple[bytes, os.stat_result]
"""All requested bytes of a file, and its status."""


def _read_if_short(file: int, start: int, end: int | None) -> ShortFile | None:
    """Reads an open file from `start` to `end`; None if that is long or empty, or the file is being
    written.
    """
    before = os.fstat(file)
    count = (before.st_size if end is None else min(end, before.st_size)) - start
    if not 0 < count <= SHORT_BYTES:
        return None
    data = os.pread(file, count, start)
    after = os.fstat(file)
    if len(data) < count or (before.st_mtime_ns, before.st_size) != (
        after.st_mtime_ns,
        after.st_size,
    ):
        return None
    return data, before


def _read_short(path: str) -> ShortObject | None:
    """Reads a file; None if it is not a short regular file, or cannot be read."""
    name = local_name(path)
    try:
        if not stat.S_ISREG(
            os.stat(name).st_mode
        ):  # a pipe's writer would notice that it is opened
            return None
        with open(name, "rb", buffering=0) as file:
            short = _read_if_short(file.fileno(), 0, None)
    except OSError:
        return None
    return None if short is None else ShortObject(_info(path, short[1]), short[0])


async def connect(source: ClientOptions, policy: RetryPolicy) -> LocalBackend:
    """Ignores the options: local files have none."""
    return LocalBackend()


class LocalBackend(Backend):
    """Files of this machine, or of what is mounted on it."""

    may_stall = False
    reads_short = True

    def __init__(self) -> None:
        self._turns = ReadTurns()

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None = None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        with _translate_errors(prefix):
            return await asyncio.to_thread(_list, prefix, glob), None

    async def stat(self, path: str) -> ObjectInfo:
        """Returns the size, and a version from inode, modification time and size."""
        with _translate_errors(path):
            return _info(path, await asyncio.to_thread(_stat_file, local_path(path)))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Opens the file, and keeps reading it even if its name moves to another file."""
        local = local_path(path)
        with _translate_errors(path, start, end):
            opened = await call_in_thread(partial(_open, local, start, end), undo=_close_opened)
            if opened is None:
                return await SpecialBody.open(path, local, start)
            if isinstance(opened, tuple):  # already read: later changes of the file do not matter
                data, status = opened
                info = _info(path, status)
                if version is not None and version != info.version:
                    raise changed_error(path, start, end)
                return BytesBody(info, data)
            opened.seek(start)
            file: Any = aiofiles.threadpool.wrap(opened, loop=asyncio.get_running_loop())
            # a run that is dropped while its loop ends does not close it
            weakref.finalize(file, opened.close).atexit = False
        status = os.fstat(file.fileno())
        info = _info(path, status)
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
        return _LocalBody(file, info, start, status=status, turns=self._turns)

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        return await finish(asyncio.to_thread(list, map(_read_short, paths)))

    async def identify(self, path: str) -> Held:
        """Returns the file's identity as its mark: names change, and a file that is written next to
        it has another one.
        """
        with _translate_errors(path):
            status = await asyncio.to_thread(_stat_file, local_path(path))
        return Held(_info(path, status), _mark(status))

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        """Makes the directories, and a temporary file in the directory of the final one.

        A symbolic link stays, and its target is replaced.
        """
        final = local_path(path)
        with _translate_errors(path):
            if await asyncio.to_thread(is_special, final):
                return DirectUpload(path, final)
            if await asyncio.to_thread(os.path.islink, final):
                final = Path(await asyncio.to_thread(os.path.realpath, final))
            if not terms.overwrite and await asyncio.to_thread(os.path.lexists, final):
                raise exists_error(path)
            return await finish(_begin(path, final, terms), undo=_LocalUpload.abort)

    async def follow(self, path: str) -> str | None:
        """Returns the target of a symbolic link, else the path; None if it is not a regular
        file.
        """

        def follow() -> str | None:
            local = local_path(path)
            if is_special(local):
                return None
            return os.path.realpath(local) if os.path.islink(local) else path

        return await asyncio.to_thread(follow)

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Creates a hard link; a copy if the filesystem has no hard links.

        The system cannot replace one version only: it is compared in the same thread, just before.
        """

        def copy() -> os.stat_result:
            final = _resolve(target)
            _check_version(target, final, replaces)

            def check(status: os.stat_result) -> None:
                if source_version not in (None, _info(source, status).version):
                    raise changed_error(target)

            return copy_file(_resolve(source), final, check, replaces is Precondition.ABSENT)

        with _translate_errors(target):
            try:
                return _mark(await finish(asyncio.to_thread(copy)))
            except FileExistsError as error:
                raise changed_error(target) from error

    async def remove(self, path: str, version: str | None = None) -> None:
        def remove() -> None:
            local = _resolve(path)
            if version is not None:
                _check_version(path, local, version)
            os.unlink(local)

        with _translate_errors(path):
            await finish(asyncio.to_thread(remove))

    async def try_lock(self, directory: str) -> Callable[[], None] | None:
        """Locks the directory itself (flock), which the kernel frees when the process ends."""
        with _translate_errors(directory):
            return await call_in_thread(
                partial(lock_directory, local_path(directory or ".")), undo=_unlock
            )


class _LocalBody:
    splits = False
    has_arrived = False

    def __init__(
        self,
        file: Any,
        info: ObjectInfo,
        position: int,
        *,
        status: os.stat_result,
        turns: ReadTurns,
    ) -> None:
        self.info = info
        self._content = _content(status)
        self._file = file
        self._number = file.fileno()
        self._position = position
        self._turns = turns

    async def readinto(self, buffer: memoryview) -> int:
        """Makes one read system call into the caller's buffer. A file that was modified is an
        ObjectChangedError.
        """
        await self._turns.take()
        file = self._number
        position = self._position
        with _translate_errors(self.info.path, position):
            count = _read_cached(file, buffer, position)
            if count is None:
                count = await finish(asyncio.to_thread(_read_at, file, buffer, position))
        if _content(os.fstat(file)) != self._content:
            raise changed_error(self.info.path, position)  # it was written to, or truncated
        self._position += count
        return count

    async def aclose(self) -> None:
        await finish(_close(self._file))


class _LocalUpload(PartSink):
    def __init__(
        self, path: str, final: Path, temporary: Path, file: Any, terms: UploadTerms
    ) -> None:
        self._path = path
        self._final = final
        self._temporary = temporary
        self._file = file
        self._terms = terms
        self._left = weakref.finalize(self, remove_own, temporary, os.getpid())

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
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
        """Puts the file in place; it stays open, and so locked, until it has its final name."""
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
                f"the file has {stat.st_size:,} bytes of the {sent.size:,} that were sent: write "
                "it again",
                self._path,
            )
        self.mark = _mark(stat)  # even if the next step fails when the file has its name
        if self._terms.overwrite:
            put_in_place(self._temporary, self._final)
        else:
            self._link()
        return stat

    def _link(self) -> None:
        """Adds the final name, which fails if it exists; then removes the temporary name."""
        try:
            os.link(self._temporary, self._final)
        except FileExistsError as error:
            raise exists_error(self._path) from error
        except OSError as error:
            if error.errno in _NO_LINKS and not self._terms.guaranteed:
                # Another writer may come between the look and the rename; the caller accepts that.
                if os.path.lexists(self._final):
                    raise exists_error(self._path) from error
                put_in_place(self._temporary, self._final)
                return
            if error.errno in _NO_LINKS:
                raise UnsupportedOperationError(
                    f"this filesystem has no hard links ({error}), so it cannot create a file only "
                    "where there is none:"
                    " pass overwrite=True",
                    self._path,
                ) from error
            raise
        self._temporary.unlink()
        sync_directory(self._final.parent)


def remove_own(temporary: Path, maker: int) -> None:
    """Removes the file of an upload that was neither completed nor aborted, but only in the process
    that made it.
    """
    if os.getpid() == maker:
        temporary.unlink(missing_ok=True)


_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


async def _begin(path: str, final: Path, terms: UploadTerms) -> _LocalUpload:
    await asyncio.to_thread(make_directories, final.parent)
    await asyncio.to_thread(remove_abandoned, final)
    temporary, handle = await asyncio.to_thread(create_temporary, final)
    file = await aiofiles.open(handle, "wb", buffering=0)
    return _LocalUpload(path, final, temporary, file, terms)


async def _close(file: Any) -> None:
    """Closes a file of aiofiles, even if the task is cancelled before the thread begins."""
    await run_to_completion(file._file.close)


def _unlock(unlock: Callable[[], None] | None) -> None:
    if unlock is not None:
        unlock()


def _mark(status: os.stat_result) -> str:
    """Identifies a file: hard links and renames keep all of this, and another writer's file has
    another identity, even with the same bytes.
    """
    return f"{status.st_dev:x}-{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}"


def _check_version(url: str, path: Path, replaces: Replaced) -> None:
    """Raises an ObjectChangedError if something else is there than what may be replaced."""
    if replaces is Precondition.ANY:  # then the file need not exist
        return
    try:
        found: Replaced | None = _info(url, os.stat(path)).version
    except FileNotFoundError:
        found = Precondition.ABSENT
    check_replaced(url, found, replaces)


def _resolve(url: str) -> Path:
    return Path(os.path.realpath(local_path(url)))


def _open(path: Path, start: int, end: int | None) -> io.FileIO | ShortFile | None:
    """Opens a regular file, or reads the range if it is short. None if it is not a regular file."""
    if is_special(path):
        return None
    file = open(path, "rb", buffering=0)  # noqa: SIM115 - its caller closes it
    try:
        short = _read_if_short(file.fileno(), start, end)
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


def _read_cached(file: int, buffer: memoryview, position: int) -> int | None:
    """Reads from the page cache, as `os.preadv`; None if reading would or might wait."""
    try:
        return os.preadv(file, [buffer], position, os.RWF_NOWAIT)
    except (
        AttributeError,
        OSError,
    ):  # not on this system, not on this filesystem, or not in the cache
        return None


def _read_at(file: int, buffer: memoryview, position: int) -> int:
    """Reads at a position; returns the number of bytes. Without preadv(2) they are copied once."""
    if hasattr(os, "preadv"):
        return os.preadv(file, [buffer], position)
    data = os.pread(file, len(buffer), position)
    buffer[: len(data)] = data
    return len(data)


def _write_all(file: int, offset: int, pieces: Sequence[memoryview]) -> None:
    for piece in pieces:
        while piece:
            count = os.pwrite(file, piece, offset)
            offset = offset + count
            piece = piece[count:]


def _stat_file(path: Path) -> os.stat_result:
    stat = os.stat(path)
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory")
    return stat


def _info(path: str, stat: os.stat_result | None) -> ObjectInfo:
    if stat is None:
        return ObjectInfo(path, None, None)
    number, modified, size = _content(stat)
    return ObjectInfo(path, size, f"{number:x}-{modified:x}-{size:x}")


def _content(status: os.stat_result) -> tuple[int, int, int]:
    """What changes when a file is written to or replaced; its version is made of it."""
    return status.st_ino, status.st_mtime_ns, status.st_size


def _list(prefix: str, glob: Glob | None) -> list[ObjectInfo]:
    name = LOCAL_SCHEME.sub("", prefix)
    start = (
        os.path.expanduser(name) if "/" in name else name
    )  # the "~" of "~*" is part of a file's name

    def url(path: str) -> str:
        return prefix + path[len(start) :]

    def enters(directory: str) -> bool:
        if directory.startswith(start):
            return glob is None or glob.enters(url(directory))
        return start.startswith(directory)

    def wants(path: str) -> bool:
        return path.startswith(start) and (glob is None or glob.wants(url(path)))

    files = _walk(start[: start.rfind("/") + 1], enters, wants)
    return [_info(url(path), status) for path, status in files]


def _walk(
    directory: str,
    enters: Callable[[str], bool],
    wants: Callable[[str], bool],
    above: frozenset[tuple[int, int]] = frozenset(),
) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yields the wanted files below a directory, with their status or None for a broken link.

    Links to directories are followed, unless they lead to a directory that is being walked.
    Directories have a trailing slash, or are "" for the working directory; a missing one has no
    files, and one that cannot be listed is an OSError. `above` has device and inode of the
    directories that are being walked.
    """
    try:
        status = os.stat(directory or ".")
        walked = above | {(status.st_dev, status.st_ino)}
        entries = [] if len(walked) == len(above) else list(os.scandir(directory or "."))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        path = directory + entry.name
        entered = enters(path + "/")
        wanted = wants(path)
        if (entered or wanted) and _is_directory(entry):
            if entered:
                yield from _walk(path + "/", enters, wants, walked)
        elif wanted:
            try:
                yield path, entry.stat()
            except OSError:  # a broken link, or no permission: opening the file reports it
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
    """Returns our error for an OSError; all are final, because a retry would not help."""
    if isinstance(error, FileNotFoundError):
        if os.path.islink(local_name(path)):
            return NotFoundError(
                "this symbolic link leads nowhere: restore its target, or remove it",
                path,
                start,
                end,
            )
        advice = "check the path"
        if "\\" in path:  # pasted from Windows
            advice = r"write it with / and no drive (in WSL, C:\ is /mnt/c/)"
        return NotFoundError(f"there is no such file: {advice}", path, start, end)
    if isinstance(error, PermissionError):
        return PermissionDeniedError(
            f"access refused ({error}): check its owner and mode", path, start, end
        )
    if error.errno == errno.ENAMETOOLONG:
        return StorageError(
            "this name is longer than its filesystem allows: shorten it", path, start, end
        )
    if error.errno == errno.EMFILE:
        return StorageError(too_many_files(), path, start, end)
    if isinstance(error, IsADirectoryError):
        return StorageError(directory_advice(path), path)
    return StorageError(f"{type(error).__name__}: {error}", path, start, end)


_translate_errors = partial(Translated, (OSError,), _translate)
