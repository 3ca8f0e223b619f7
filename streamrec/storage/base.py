"""Storage: the interface of a store to the packages above. It handles bytes and paths, never
records.

A Storage is a backend (one attempt per method) with the retry policy around it. Its methods take
and return full URLs, retry transient faults, and raise only errors of `streamrec.errors`, with path
and byte range.

Why `readinto` and not an iterator of buffers: the caller owns the memory that receives the bytes.
So the caller can bound it, reuse it (glibc returns large freed buffers to the kernel, and the page
faults of new ones cost more than the copy), and read local files into it without a copy. A stream
holds one response's socket buffer and nothing more.

A Storage belongs to the event loop in which it was made.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, Literal, Protocol, TypeVar

from streamrec.errors import (
    AlreadyExistsError,
    ClosedError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StreamrecError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import (
    Backend,
    Held,
    ObjectInfo,
    PartSink,
    Precondition,
    Replaced,
    ShortObject,
    UploadTerms,
)
from streamrec.storage.connections import Connections
from streamrec.storage.faults import Cause, RetryPolicy, TransientError, changed_error
from streamrec.storage.parallel_stream import open_parallel
from streamrec.storage.part_cutter import PART_SIZE
from streamrec.storage.part_sender import PARALLEL
from streamrec.storage.replacing_sinks import NewNameSink, StagedSink
from streamrec.storage.retry import ObjectRequests, attempt
from streamrec.storage.statistics import Tally
from streamrec.storage.stream import DirectStream, ResumingStream
from streamrec.storage.traffic import Traffic
from streamrec.storage.upload import Upload
from streamrec.storage.urls import Glob, hidden_name, is_temporary, temporary_name

__all__ = ["ByteStream", "ObjectInfo", "ShortObject", "Storage", "Upload", "read_full"]

T = TypeVar("T")


class ByteStream(Protocol):
    """The bytes of one version of an object, in order, from a start offset; it resumes after
    faults.
    """

    @property
    def info(self) -> ObjectInfo:
        """The whole object's size and version, from the first response."""

    @property
    def position(self) -> int:
        """Absolute offset of the next byte."""

    @property
    def tally(self) -> Tally:
        """The counters of this stream; readers count lost data here, too."""

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for at least one byte; 0 only at the end (or for an empty buffer). Never
        overfills.
        """

    async def aclose(self) -> None:
        """Frees the connection, even if bytes are left. May be called twice."""


async def read_full(stream: ByteStream, buffer: memoryview) -> int:
    """Reads until the buffer is full, or the stream ends; returns the number of bytes."""
    filled = 0
    while filled < len(buffer) and (count := await stream.readinto(buffer[filled:])):
        filled += count
    return filled


def receiver_of(stream: Any) -> Callable[[memoryview], Awaitable[int]]:
    """Returns a stream's `readinto` for memory in which received bytes stay as they are.

    A stream that keeps the bytes, as that of a cache, then needs no copy of them.
    """
    receive: Callable[[memoryview], Awaitable[int]]
    receive = getattr(stream, "readinto_lasting", None) or stream.readinto
    return receive


class Existing(Enum):
    """What an upload's name holds.

    UNKNOWN: the store does not say whether an object exists, but refuses to replace it on a
    condition. UNREADABLE: an object exists, or may exist, and this client may not read it.
    """

    ABSENT = "no object"
    PRESENT = "an object"
    UNKNOWN = "an object or none"
    UNREADABLE = "an object that may not be read"


Overwrite = bool | Literal["unsecured"]


def unreadable_error(path: str, said: str = "") -> PermissionDeniedError:
    """Returns the error for an object that is not replaced, because no copy of it can be kept."""
    return PermissionDeniedError(
        "an object of this name exists, or may exist, and this client may not read or copy it, so "
        "that it could not be put back if the run failed: allow reading (on S3 s3:GetObject, and "
        "s3:ListBucket so that missing names show; on Google Cloud storage.objects.get), choose "
        "another name, or pass overwrite='unsecured' (--overwrite-unsecured) to replace it all the "
        "same" + (f" ({said})" if said else ""),
        path,
    )


def allowed(path: str, found: Existing | None, overwrite: Overwrite, own: bool) -> Existing | None:
    """Returns what matters of what a name holds; raises an error if it must not be replaced."""
    unread = found in (Existing.UNREADABLE, Existing.UNKNOWN)
    if own or (unread and overwrite == "unsecured"):
        return None
    if found is Existing.UNREADABLE:
        raise unreadable_error(path)
    return found


def make_terms(
    found: Existing | None, overwrite: Overwrite, *, looked: bool, token: str
) -> UploadTerms:
    """Returns the terms of an upload to a name of which its caller has found this.

    A name that was free is created, and never replaced: another writer may come. An upload that has
    looked by itself is of one object: the last one to be complete wins.
    """
    free = found is Existing.UNKNOWN or (found is Existing.ABSENT and not looked)
    return UploadTerms(
        overwrite=bool(overwrite) and not free,
        guaranteed=not overwrite or found is Existing.UNKNOWN,
        token=token or new_token(),
    )


def rival_error(path: str) -> ObjectChangedError:
    """The error of a writer whose name another writer took meanwhile."""
    return ObjectChangedError(
        "another writer has written this name since this one began: run one of them, and then the "
        "other",
        path,
    )


def new_token() -> str:
    """A token that no other writer has."""
    return secrets.token_hex(16)


class Storage:
    """One store, for one event loop. Every method raises a StorageError if the store failed
    permanently.

    Without `release`, which returns a shared backend, `aclose` closes the backend.
    """

    def __init__(
        self,
        backend: Backend,
        retry: RetryPolicy | None = None,
        connections: Connections | None = None,
        traffic: Traffic | None = None,
        release: Callable[[], None] | None = None,
    ) -> None:
        self._backend = backend
        self._release = release
        self._retry = retry or RetryPolicy()
        self._connections = connections or Connections()
        self._traffic = traffic or Traffic()
        self._closed = False
        self._unreadable = UnreadableNames()

    @property
    def endpoint(self) -> str:
        """The URL of the server, as `Backend.endpoint`."""
        return self._backend.endpoint

    @property
    def reads_short(self) -> bool:
        """Whether `read_short` may read any objects."""
        return self._backend.reads_short

    @property
    def streams_short(self) -> bool:
        """Whether what `read_short` left out may still be short: not where the store did that."""
        return not self._backend.reads_short

    @property
    def may_stall(self) -> bool:
        """Whether a reader may wait long for a block; else the bytes of the next ones are there."""
        return self._backend.may_stall

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        """Reads many small objects in one step; None for one that must be read, or reported as
        missing, by `stream`.
        """
        self._check_open(paths[0])
        began = time.monotonic()
        objects = await self._backend.read_short(paths)
        seconds = (time.monotonic() - began) / len(paths)
        for short in objects:
            if short is not None:
                self._traffic.tally.request()
                self._traffic.tally.first_byte(seconds)
                self._traffic.tally.block(len(short.data), seconds, 0.0)
        return objects

    async def list(
        self, prefix: str, glob: Glob | None = None, hidden: bool = False, most: int | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Lists all objects whose URL begins with `prefix`, sorted by path.

        A prefix is a string, as object stores understand it: "s3://b/train-" matches
        "s3://b/train-1" and "s3://b/train-x/2". Directories are searched and not reported. An empty
        listing is not an error, but a missing bucket is. A listing is complete, or an error names
        what cannot be listed. All pages are fetched before the first object is yielded, because not
        every store sorts (SeaweedFS goes directory by directory, as do S3's directory buckets).

        Args:
            prefix: A URL prefix.
            glob: Selects objects; `prefix` is its prefix. Directories without possible matches are
                skipped. None: all.
            hidden: Whether to include the hidden names of uploads (`.NAME.streamrec-*`).
            most: If there are more objects than this, none is yielded; None: no limit.
        """
        objects: list[ObjectInfo] = []
        token: str | None = None
        seen: set[str] = set()
        while True:
            page, token = await self._attempt(
                prefix, partial(self._page, prefix, token, glob, seen), "listing"
            )
            visible = (info for info in page if hidden or not is_temporary(info.path))
            objects += (
                visible if glob is None else (info for info in visible if glob.wants(info.path))
            )
            if most is not None and len(objects) > most:
                return
            if token is None:
                break
        for info in sorted(objects, key=attrgetter("path")):
            yield info

    async def stat(self, path: str) -> ObjectInfo:
        """Returns size and version of one object; a missing one is a NotFoundError."""
        return await self._attempt(path, lambda: _read(self._backend.stat(path)), "stat")

    async def stream(
        self,
        path: str,
        start: int = 0,
        end: int | None = None,
        version: str | None = None,
        tally: Tally | None = None,
        *,
        size: int | None = None,
    ) -> ByteStream:
        """Opens one object; when this returns, the first response has arrived and the version is
        pinned.

        Several parallel requests read a large object when few streams are open (see `connections`).
        At or after the end of the object, the stream is empty; `end` may be past it, and is None
        for all the rest. With a version (from `ObjectInfo.version`), any other one is an
        ObjectChangedError. A `tally` is that of an earlier stream that this one continues. `size`
        is what a listing, a manifest or an index says: an answer without a length ends there,
        neither earlier nor later.
        """
        if start < 0 or (end is not None and end < start):
            raise ValueError(
                f"bytes {start} to {end}: a range begins at 0 or later and ends no earlier than it "
                "begins"
            )
        self._check_open(path)
        tally = tally or Tally(self._traffic.tally)
        # Memory and local files neither stall nor break off: their streams need no timer, no hedge
        # and no second connection.
        if not self.may_stall and start != end:
            direct = DirectStream(
                self._backend,
                path,
                start,
                end,
                version,
                statistics=self._traffic.statistics,
                tally=tally,
                size=size,
            )
            await attempt(
                self._retry,
                path,
                direct.open,
                "opening",
                traffic=self._traffic,
                tally=tally,
                start=start,
                end=end,
            )
            return direct
        request = partial(
            ResumingStream,
            self._backend,
            self._retry,
            path,
            traffic=self._traffic,
            tally=tally,
            size=size,
        )
        if not self._backend.remote:
            stream = request(start, end, version)
            await stream.open()
            return stream
        return await open_parallel(
            request,
            self._connections,
            start,
            end,
            version,
            size=size,
            splits=self._backend.splits,
        )

    async def read_range(
        self, path: str, start: int, end: int, version: str | None = None
    ) -> bytes:
        """Reads the bytes from `start` to `end`; fewer if the object ends before `end`, none if it
        ends at `start`.
        """
        stream = await self.stream(path, start, end, version)
        try:
            size = stream.info.size
            stop = end if size is None else min(end, size)
            buffer = memoryview(bytearray(max(0, stop - start)))
            return bytes(buffer[: await read_full(stream, buffer)])
        finally:
            await stream.aclose()

    async def identify(self, path: str) -> Held:
        """Returns size and version of one object, and what proves whose it is."""
        return await self._attempt(path, lambda: _read(self._backend.identify(path)), "stat")

    async def upload(
        self,
        path: str,
        *,
        part_size: int = PART_SIZE,
        parallel: int = PARALLEL,
        overwrite: Overwrite = True,
        existing: Existing | None = None,
        token: str = "",
    ) -> Upload:
        """Starts an upload; nothing is visible under `path` until `Upload.complete`.

        Use it as `async with await storage.upload(path) as upload: await upload.write(data)`.

        Args:
            path: The object's URL. An existing object stays until completion, which replaces it.
            part_size: Bytes of a part: a multiple of 256 KiB, and at least 5 MiB on S3.
            parallel: Parts that may be in progress at the same time.
            overwrite: Whether to replace an existing object; else it is an AlreadyExistsError, here
                or in `complete`. "unsecured" also replaces one that this client may not read.
            existing: What the caller has found under this name (`look_up`); None: look.
            token: The writer's token; by default a new one.

        Raises:
            PermissionDeniedError: An object of this name exists, or may exist, and may not be read.
                If only a condition shows whether it exists, `complete` raises it.
        """
        if part_size < 1 << 18 or part_size % (1 << 18):
            raise ValueError(
                f"part_size is {part_size:,}; stores want a multiple of 256 KiB (262,144)"
            )
        own = is_temporary(path)
        looks = overwrite and existing is None and not self._backend.verifies_first and not own
        found = (await self.look_up(path))[0] if looks else existing
        found = allowed(path, found, overwrite, own)
        # What is there stays until the upload is complete: the bytes go to a hidden name.
        taken = looks and found is Existing.PRESENT
        written = hidden_name(path) if taken else path
        terms = make_terms(found, overwrite, looked=looks, token=token)
        if overwrite and not terms.overwrite:
            sink = await self._begin_new(path, terms, found)
        else:
            sink = await self._begin(written, terms, path)
        if taken:
            sink = StagedSink(self._backend, path, written, sink)
        requests = ObjectRequests(path, self._retry, self._traffic)
        return Upload(sink, requests, part_size=part_size, parallel=parallel)

    async def _begin(self, written: str, terms: UploadTerms, path: str) -> PartSink:
        return await self._attempt(
            path, lambda: self._backend.begin_upload(written, terms), "starting an upload"
        )

    async def _begin_new(self, path: str, terms: UploadTerms, found: Existing | None) -> PartSink:
        """Starts an upload to a name that should be free; else its error says why it matters."""
        refused = unreadable_error if found is Existing.UNKNOWN else rival_error
        try:
            return NewNameSink(await self._begin(path, terms, path), path, refused)
        except AlreadyExistsError as error:
            raise refused(path) from error

    async def look_up(self, path: str) -> tuple[Existing, str]:
        """Returns what an upload to `path` would replace, and its URL with symbolic links resolved.

        Targets that are written directly (a pipe, /dev/stdout) are ABSENT.
        """
        try:
            await self.stat(path)
        except NotFoundError:
            return Existing.ABSENT, path
        except PermissionDeniedError:
            return await self._unreadable.look_closer(self, path), path
        final = await self._backend.follow(path)
        return (Existing.ABSENT, path) if final is None else (Existing.PRESENT, final)

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Copies an object within the store; UnsupportedOperationError if the store cannot.

        A target that is not what it `replaces` is an ObjectChangedError, and so is a source that
        has another version. Returns the copy's mark if that is not the mark of the source.
        """
        return await self._attempt(
            target,
            lambda: self._backend.copy(source, target, replaces, source_version),
            "copying",
        )

    async def remove(self, path: str, version: str | None = None) -> None:
        """Removes one object; a missing one is not an error. With a version, another one is an
        ObjectChangedError.
        """
        asked = False

        async def remove() -> None:
            nonlocal asked
            if asked and version is not None:
                # The first request may have removed it. Not every store compares the version, and
                # would now remove what another writer has written since.
                with suppress(PermissionDeniedError):
                    found = await _read(self._backend.stat(path))
                    if found.version != version:
                        raise changed_error(path)
            asked = True
            await self._backend.remove(path, version)

        with suppress(NotFoundError):
            await self._attempt(path, remove, "removing")

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        """Writes a short object in one request, and returns its version.

        A target that is not what it `replaces` is an ObjectChangedError. A store that cannot
        guarantee that raises UnsupportedOperationError.
        """
        try:
            return await self._attempt(
                path, lambda: self._backend.write_short(path, data, replaces), "writing"
            )
        except UnsupportedOperationError:
            if replaces is not Precondition.ANY:
                raise
        async with await self.upload(path) as upload:
            await upload.write(data)
        return upload.version

    async def try_lock(self, directory: str) -> Callable[[], None] | None:
        """Locks a directory; see `Backend.try_lock`."""
        return await self._attempt(
            directory, lambda: self._backend.try_lock(directory), "locking a directory"
        )

    async def aclose(self) -> None:
        """Closes or returns the client. Close streams and uploads first; later calls raise
        ClosedError.
        """
        self._closed = True
        if self._release is not None:
            self._release()
        else:
            await self._backend.aclose()

    def _check_open(self, path: str) -> None:
        """Raises ClosedError after `aclose`: a closed client would open connections that are never
        closed.
        """
        if self._closed:
            raise ClosedError(f"{path}: the storage is closed; open it again with a new Storages")

    async def _page(
        self, prefix: str, token: str | None, glob: Glob | None, seen: set[str]
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Fetches one page of a listing; a missing or repeated page is a transient fault, not the
        end.
        """
        try:
            page, next_token = await _read(self._backend.list_page(prefix, token, glob))
        except NotFoundError as error:
            if token is None:
                raise
            raise TransientError(
                Cause.WRONG_ANSWER, "a further page of the listing is not found"
            ) from error
        if next_token in seen:
            raise TransientError(Cause.WRONG_ANSWER, "the listing repeats an earlier page")
        if next_token is not None:
            seen.add(next_token)
        return page, next_token

    async def _attempt(self, path: str, call: Callable[[], Awaitable[T]], doing: str) -> T:
        self._check_open(path)
        return await attempt(self._retry, path, call, doing, traffic=self._traffic)


class UnreadableNames:
    """What names hold that this client may not look at; asked once for each directory."""

    def __init__(self) -> None:
        self._found: dict[str, Existing] = {}
        self._looking = asyncio.Lock()

    async def look_closer(self, storage: Storage, path: str) -> Existing:
        """Returns whether a name that may not be looked at is taken.

        S3 answers 403 for missing names, too, if the client may not list. If it does not do that
        for a name that no object has, the object exists. Else only a conditional write can tell, if
        the store honours the condition: that is tried with an object of our own, once per
        directory.
        """
        directory = path[: path.rfind("/") + 1]
        async with self._looking:
            if directory not in self._found:
                try:
                    await storage.stat(temporary_name(path))
                    known = True
                except NotFoundError:
                    known = True
                except PermissionDeniedError:
                    known = not await honours_conditions(storage, hidden_name(path))
                self._found[directory] = Existing.UNREADABLE if known else Existing.UNKNOWN
        return self._found[directory]


async def honours_conditions(storage: Storage, path: str) -> bool:
    """Whether the store refuses to replace an object with `If-None-Match: *`."""
    try:
        for _ in range(2):  # the first one may create it
            await storage.write_short(path, b"", Precondition.ABSENT)
    except ObjectChangedError:
        return True
    except (UnsupportedOperationError, PermissionDeniedError):
        return False
    finally:
        with suppress(StreamrecError):  # perhaps this client may not remove
            await storage.remove(path)
    return False


async def _read(answer: Awaitable[T]) -> T:
    """Awaits an answer of the backend; an answer that it cannot parse is a TransientError."""
    try:
        return await answer
    except StreamrecError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise TransientError(
            Cause.WRONG_ANSWER, f"its answer makes no sense: {type(error).__name__}: {error}"
        ) from error
