"""Storage: what the upper rooms see of a store. Bytes and paths; never a record.

A Storage is a backend (one attempt per verb) with the retry policy around it. Its verbs take and give full
URLs, retry what may pass, and raise only errors of `streamrec.errors`, with path and byte range.

Why `readinto` and not an iterator of buffers: the caller owns the memory that bytes land in. So it can
bound it, reuse it (glibc gives large freed buffers back to the kernel, and the page faults of fresh ones
cost more than the copy), and have local files land in it without any copy. A stream holds one response's
socket buffer and nothing more.

A Storage belongs to the event loop that it was made in.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Protocol, TypeVar

from streamrec.errors import ClosedError, NotFoundError, PermissionDeniedError, StreamrecError
from streamrec.storage.backend import Backend, ObjectInfo, ShortObject
from streamrec.storage.connections import Connections
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.parallel_stream import open_parallel
from streamrec.storage.retry import RetryPolicy, attempt
from streamrec.storage.statistics import Tally
from streamrec.storage.stream import ResumingStream
from streamrec.storage.traffic import Traffic
from streamrec.storage.upload import PARALLEL, PART_SIZE, StagedSink, Upload
from streamrec.storage.urls import Glob, hidden_name, is_temporary

__all__ = ["ByteStream", "ObjectInfo", "ShortObject", "Storage", "Upload"]

T = TypeVar("T")


class ByteStream(Protocol):
    """One object version's bytes, in order, from where they were asked for; resumes by itself.

    Attributes:
        info: The whole object's size and version, as the first response told them.
        position: Absolute offset of the next byte.
        tally: What happened to this stream, for `Tally.counts`; readers count what they lose here.
    """

    info: ObjectInfo
    position: int
    tally: Tally

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for at least one byte; 0 only at the end (or for an empty buffer). Never overfills."""

    async def aclose(self) -> None:
        """Frees the connection, also where bytes are left. May be called twice."""


class Storage:
    """One store, for one event loop.

    Args:
        connections: What its streams share with those of other stores; None: a budget of their own.
        traffic: What its requests share; None: their own.
        release: Ends the use of a backend that others share; None: it is closed with the Storage.

    Attributes:
        reads_short: Whether `read_short` can give anything.
        endpoint: The URL of its server; "" where the URLs of objects say it, or it is the usual one.
    """

    def __init__(
        self,
        backend: Backend,
        retry: RetryPolicy | None = None,
        connections: Connections | None = None,
        traffic: Traffic | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self.reads_short = backend.reads_short
        self.endpoint = backend.endpoint
        self._backend = backend
        self._release = release
        self._retry = retry or RetryPolicy()
        self._connections = connections or Connections()
        self._traffic = traffic or Traffic()
        self._closed = False

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        """Many small objects, whole, in one step.

        Args:
            paths: Their URLs.

        Returns:
            Each one; None for each that only `stream` can read, or say what is wrong with.
        """
        self._check_open(paths[0])
        began = time.monotonic()
        found = await self._backend.read_short(paths)
        seconds = (time.monotonic() - began) / len(paths)
        for short in found:
            if short is not None:
                self._traffic.tally.request()
                self._traffic.tally.first_byte(seconds)
                self._traffic.tally.block(len(short.data), seconds, 0.0)
        return found

    async def list(
        self, prefix: str, glob: Glob | None = None, hidden: bool = False, most: int | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """All objects whose URL begins with `prefix`, in the order of their paths.

        A prefix is a string, as object stores understand it: "s3://b/train-" finds "s3://b/train-1" and
        "s3://b/train-x/2". Directories are descended into and not reported. An empty listing is not
        an error, but a missing bucket is. All pages are fetched before the first object is given, because not every
        store sorts (SeaweedFS goes directory by directory, as do S3's directory buckets).

        What cannot be listed is an error that names it: a listing is whole, or there is none.

        Args:
            prefix: A URL prefix.
            glob: Which of these objects are wanted: what this prefix is of. Directories that can hold none of them
                are not listed, where the store has directories. None: all.
            hidden: Whether hidden names of uploads (`.NAME.streamrec-*`) are among them.
            most: Where there are more objects, none is given; None: all are.

        Raises:
            PermissionDeniedError: A directory, or the bucket, must not be listed.
            StorageError: The store failed permanently, or cannot list (plain HTTP).
        """
        found: list[ObjectInfo] = []
        token: str | None = None
        seen: set[str] = set()
        while True:
            page, token = await self._attempt(prefix, partial(self._page, prefix, token, glob, seen), "listing")
            shown = (info for info in page if hidden or not is_temporary(info.path))
            found += shown if glob is None else (info for info in shown if glob.wants(info.path))
            if most is not None and len(found) > most:
                return
            if token is None:
                break
        for info in sorted(found, key=attrgetter("path")):
            yield info

    async def stat(self, path: str) -> ObjectInfo:
        """Size and version of one object.

        Raises:
            NotFoundError: There is none.
            StorageError: The store failed permanently.
        """
        return await self._attempt(path, lambda: _read(self._backend.stat(path)), "stat")

    async def stream(
        self,
        path: str,
        start: int = 0,
        end: int | None = None,
        version: str | None = None,
        tally: Tally | None = None,
    ) -> ByteStream:
        """Opens one object; when this returns the first response has arrived and the version is pinned.

        A large object is read by several requests at a time where few streams are open (see `connections`).

        Args:
            path: The object's URL.
            start: First byte. At or after the end of the object, the stream is empty.
            end: One past the last byte; None: to the end. May be past the end.
            version: If given (from `ObjectInfo.version`), any other version is an ObjectChangedError.
            tally: Where it is counted: that of another stream which it goes on from; None: in one of its own.

        Raises:
            ObjectChangedError: The object has another version than the one given.
            StorageError: The store failed permanently.
        """
        if start < 0 or (end is not None and end < start):
            raise ValueError(f"bytes {start} to {end}: a range begins at 0 or later and ends no earlier than it begins")
        self._check_open(path)
        tally = tally or Tally(self._traffic.tally)
        request = partial(ResumingStream, self._backend, self._retry, path, traffic=self._traffic, tally=tally)
        return await open_parallel(request, self._connections, start, end, version)

    async def read_range(self, path: str, start: int, end: int, version: str | None = None) -> bytes:
        """The bytes from `start` to `end`; fewer where the object ends before, none where it ends at start.

        Args:
            path: The object's URL.
            start: First byte.
            end: One past the last byte.
            version: As for `stream`.

        Raises:
            StorageError: As for `stream`.
        """
        stream = await self.stream(path, start, end, version)
        try:
            size = stream.info.size
            stop = end if size is None else min(end, size)
            buffer = bytearray(max(0, stop - start))
            filled = 0
            with memoryview(buffer) as view:
                while filled < len(buffer):
                    count = await stream.readinto(view[filled:])
                    if count == 0:
                        break
                    filled += count
            return bytes(memoryview(buffer)[:filled])
        finally:
            await stream.aclose()

    async def upload(
        self,
        path: str,
        *,
        part_size: int = PART_SIZE,
        parallel: int = PARALLEL,
        overwrite: bool = True,
        free: bool = False,
    ) -> Upload:
        """Starts an upload; nothing is visible under `path` until `Upload.complete`.

        Use it as `async with await storage.upload(path) as upload: await upload.write(data)`.

        Args:
            path: The object's URL. What is there stays until completion, and is replaced by it.
            part_size: Bytes of a part: a multiple of 256 KiB, and at least 5 MiB on S3.
            parallel: Parts that may be under way at the same time.
            overwrite: Whether an object that is there already is replaced.
            free: Whether the caller knows that none is there.

        Raises:
            AlreadyExistsError: `overwrite` is False, and there is one. It may also come from `complete`.
            UnsupportedOperationError: This kind of storage cannot be written, or not without `overwrite`.
            StorageError: The store failed permanently.
        """
        if part_size < 1 << 18 or part_size % (1 << 18):
            raise ValueError(f"part_size is {part_size:,}; stores want a multiple of 256 KiB (262,144)")
        looks = overwrite and not free and not self._backend.compares_first and not is_temporary(path)
        taken = looks and await self.find_replaced(path) is not None
        written = hidden_name(path) if taken else path
        sink = await self._attempt(path, lambda: self._backend.begin_upload(written, overwrite), "starting an upload")
        if taken:
            sink = StagedSink(self._backend, path, written, sink)
        return Upload(sink, self._retry, path, part_size, parallel, self._traffic)

    async def find_replaced(self, path: str) -> str | None:
        """The URL of the object that an upload to `path` would replace: that which a symbolic link leads to.

        Returns:
            None where there is none for certain, and where an upload writes straight through (a pipe, /dev/stdout).

        Raises:
            StorageError: The store failed permanently.
        """
        try:
            await self.stat(path)
        except NotFoundError:
            return None
        except PermissionDeniedError:  # S3 says so to clients that may not list, where there is none
            return path
        return await self._backend.follow(path)

    async def copy(self, source: str, target: str) -> None:
        """Puts an object under another name, too, within the store; what is there is replaced.

        Raises:
            UnsupportedOperationError: This store cannot.
            StorageError: The store failed permanently.
        """
        await self._attempt(target, lambda: self._backend.copy(source, target), "copying")

    async def remove(self, path: str) -> None:
        """Removes one object; that there is none is fine.

        Raises:
            StorageError: The store failed permanently.
        """
        with suppress(NotFoundError):
            await self._attempt(path, lambda: self._backend.remove(path), "removing")

    async def aclose(self) -> None:
        """Closes the client, or ends its use. Streams and uploads must be closed before; later calls: ClosedError."""
        self._closed = True
        if self._release is not None:
            self._release()
        else:
            await self._backend.aclose()

    def _check_open(self, path: str) -> None:
        """A client that is used after its end would quietly open connections that are never closed."""
        if self._closed:
            raise ClosedError(f"{path}: the storage is closed; ask new Storages for it")

    async def _page(
        self, prefix: str, token: str | None, glob: Glob | None, seen: set[str]
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of a listing. One that is gone, or that was given before, does not end it."""
        try:
            page, after = await _read(self._backend.list_page(prefix, token, glob))
        except NotFoundError as error:
            if token is None:
                raise
            raise TransientError(Cause.WRONG_ANSWER, "a further page of the listing is not found") from error
        if after in seen:
            raise TransientError(Cause.WRONG_ANSWER, "the listing comes back to a page that it gave")
        if after is not None:
            seen.add(after)
        return page, after

    async def _attempt(self, path: str, call: Callable[[], Awaitable[T]], doing: str) -> T:
        self._check_open(path)
        return await attempt(self._retry, path, call, doing, traffic=self._traffic)


async def _read(answer: Awaitable[T]) -> T:
    """An answer; a TransientError where the backend cannot make sense of it."""
    try:
        return await answer
    except StreamrecError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TransientError(
            Cause.WRONG_ANSWER, f"its answer makes no sense: {type(error).__name__}: {error}"
        ) from error
