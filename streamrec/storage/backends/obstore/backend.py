"""S3 and Google Cloud Storage through obstore, a client written in Rust: `{"backend": "obstore"}`.

It lists and uploads faster than s3fs and gcsfs, for less of the processor. Its hazards are contained here:

* **Fork.** Its threads do not survive a fork, and each call in a child would wait for ever. So it is imported
  when the first store is asked for, not before; and a process whose parent had it imported is refused with
  an error in place of the silence.
* **Exit.** Its threads call into Python to say that something is done. One that does so while the interpreter
  goes down aborts the process: Python 3.11 to 3.13 end such a thread in a way that Rust does not survive (15
  of 30 short programs died so). So closing waits until none of them is in Python, and so does the exit.
* **Retries.** They are off where a verb is one request. See `obstore_options` for where it is not.
* **Names.** It cannot name keys that hold an empty segment ("a//b"), a "." or a "..": these are an error. A
  directory's marker ("dir/") within what is listed passes for an empty object ("dir").
* **Listing.** Its prefixes are whole directories, so that "s3://b/dir/train-" lists "dir/", from shortly before the
  prefix to a page behind it, and leaves out the rest.
* **Writing.** What the store has in the end is compared by its size only; an object is never created exclusively; and
  the unfinished upload of a writer that was killed stays, unseen, until the bucket's lifecycle rule (or a writer
  without obstore) ends it.
* **Retry-After** is not told by it, so it is not kept.
* **Reading.** It joins what it hands out of a stream from many small pieces. So long objects are asked for in ranges,
  each of which is taken whole (`ranges.py`); where that is no good, in chunks of a stream (`chunk_sizes.py`).

Versions are etags on S3, pinned with If-Match, and generations on GCS.
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any, Final, cast

import obstore
from obstore.store import GCSStore, S3Store

from streamrec.errors import NotFoundError, StorageError, UnsupportedOperationError
from streamrec.kernels.copying import copy_bytes
from streamrec.storage.backend import BLOCK_BYTES, Body, EmptyBody, ObjectInfo, PartSink
from streamrec.storage.backends.fast_path import FastPath
from streamrec.storage.backends.obstore.chunk_sizes import MOST, ChunkSizes
from streamrec.storage.backends.obstore.errors import PastTheEndError, seam
from streamrec.storage.backends.obstore.options import Settings, settings, several_tries, single_try
from streamrec.storage.backends.obstore.ranges import Ranges
from streamrec.storage.backends.obstore.uploads import ObstoreUpload
from streamrec.storage.backends.options import Source
from streamrec.storage.backends.urls import split_object, split_prefix
from streamrec.storage.resilience.faults import Cause, TransientError, changed
from streamrec.storage.resilience.retry import RetryPolicy

if TYPE_CHECKING:
    from obstore import Bytes, BytesStream, GetOptions, GetResult, ListStream, ObjectMeta

__all__ = ["ObstoreBackend", "ObstoreBody", "connect"]

Store = S3Store | GCSStore

PAGE: Final = 1_000
"""Objects of a page of a listing: as many as one request brings."""

_IMPORTED_IN: Final = os.getpid()
_GRACE: Final = 0.002
_PATIENCE: Final = 1.0


async def connect(source: Source, policy: RetryPolicy) -> ObstoreBackend:
    """Reads the options; a client is made for each bucket that is asked for.

    Raises:
        StorageError: An option without a counterpart, or this process was forked from one that used obstore.
    """
    if os.getpid() != _IMPORTED_IN:
        raise StorageError(
            "obstore was used in this process's parent before the fork, so each call would wait for ever here: start "
            "workers by 'spawn' or 'forkserver', or leave out backend='obstore'"
        )
    return ObstoreBackend(source.protocol, settings(source.protocol, source.options, policy), policy)


class ObstoreBackend:
    """Clients of one kind of store.

    Args:
        protocol: "s3", "s3a", "gs" or "gcs".
        made_with: What the clients are configured with.
        policy: What they keep to where they do many requests for one call.
    """

    block_bytes = BLOCK_BYTES
    remote = True

    def __init__(self, protocol: str, made_with: Settings, policy: RetryPolicy) -> None:
        self._make: type[S3Store] | type[GCSStore] = S3Store if protocol.startswith("s3") else GCSStore
        self._settings = made_with
        self._policy = policy
        self._stores: dict[tuple[str, bool], Store] = {}
        self._listings: dict[str, ListStream[Sequence[ObjectMeta]]] = {}
        self._numbers = itertools.count()
        self._chunks = ChunkSizes()
        self._ranges = Ranges()
        self._asking = FastPath("asking for ranges (streamrec.storage.backends.obstore.ranges)")
        self.fast_paths = (self._asking,)

    async def list_page(self, prefix: str, token: str | None) -> tuple[Sequence[ObjectInfo], str | None]:
        """The next objects of a listing that goes on inside obstore; the token is its name here."""
        scheme, bucket, key = split_prefix(prefix)
        with seam(prefix):
            listing = self._listings.pop(token, None) if token else self._list(prefix, bucket, key)
            if listing is None:
                raise StorageError("the listing broke off and cannot be gone on with: list again", prefix)
            found = await anext(listing, None)
        if found is None:
            return (), None
        infos = [
            self._info(f"{scheme}://{bucket}/{meta['path']}", meta) for meta in found if meta["path"].startswith(key)
        ]
        if not infos and min(meta["path"] for meta in found) > key:  # what begins alike lies together in every order
            return (), None
        token = str(next(self._numbers))
        self._listings[token] = listing
        return infos, token

    def _list(self, prefix: str, bucket: str, key: str) -> ListStream[Sequence[ObjectMeta]]:
        if bucket.endswith("--x-s3"):
            raise StorageError("obstore cannot list a directory bucket: leave out backend='obstore'", prefix)
        directory = key.rpartition("/")[0]
        before = key[:-1] if len(key) > len(directory) + 2 else None  # all that begins with the key comes after it
        return obstore.list(self.store(bucket, tries=True), directory or None, offset=before, chunk_size=PAGE)

    async def stat(self, path: str) -> ObjectInfo:
        """A HEAD."""
        bucket, key = split_object(path)
        with seam(path):
            return self._info(path, await obstore.head_async(self.store(bucket), key))

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """A GET: of all that is wanted, or of a range at its beginning."""
        bucket, _ = split_object(path)
        stop = self._ranges.stop(start, end) if self._asking.is_open(bucket) else end
        try:
            return await self._get(path, start, stop, version)
        except TransientError as fault:
            if stop == end or start or fault.cause is not Cause.WRONG_RANGE:
                raise
            ignored = fault
        body = await self._get(path, start, end, version)
        if body.info.size:  # of an empty object there is no range
            self._asking.leave(bucket, ignored)
        return body

    async def _get(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        bucket, key = split_object(path)
        asked = time.monotonic()
        try:
            with seam(path, start, end):
                got = await obstore.get_async(self.store(bucket), key, options=self._get_options(start, end, version))
                info = self._info(path, got.meta)
        except NotFoundError as missing:
            await self._check_not_changed(path, start, version, missing)
            raise
        except PastTheEndError:
            return await self._past_the_end(path, start, version)
        self._ranges.answered(time.monotonic() - asked)
        size = got.meta["size"]
        stop = size if end is None else min(end, size)
        return ObstoreBody(got, info, start, stop, self._chunks, self._ranges)

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """Sends nothing yet: an object of one part needs no multipart upload."""
        bucket, key = split_object(path)
        if not overwrite:
            raise UnsupportedOperationError(
                "obstore cannot create objects of many parts only where there is none: pass overwrite=True, or "
                "leave out backend='obstore'",
                path,
            )
        return ObstoreUpload(
            path, key, self.store(bucket), lambda: self.store(bucket, tries=True), lambda: self.stat(path)
        )

    async def aclose(self) -> None:
        """Lets go of all clients, and waits until none of their threads is in Python."""
        self._listings.clear()
        self._stores.clear()
        for pause in _pauses():
            await asyncio.sleep(pause)

    def store(self, bucket: str, *, tries: bool = False) -> Store:
        """The client for a bucket.

        Args:
            bucket: Its name.
            tries: Whether it tries requests again by itself.
        """
        if (bucket, tries) not in self._stores:
            make = cast(Callable[..., Store], self._make)
            self._stores[bucket, tries] = make(
                bucket,
                config=dict(self._settings.config),
                client_options=dict(self._settings.client),
                retry_config=several_tries(self._policy) if tries else single_try(),
            )
        return self._stores[bucket, tries]

    def _info(self, path: str, meta: Mapping[str, Any]) -> ObjectInfo:
        return ObjectInfo(path, meta["size"], meta["e_tag"] if self._make is S3Store else meta["version"])

    def _get_options(self, start: int, end: int | None, version: str | None) -> GetOptions:
        options: GetOptions = {}
        if start or end is not None:
            options["range"] = {"offset": start} if end is None else (start, end)
        if version is not None:
            options["if_match" if self._make is S3Store else "version"] = version
        return options

    async def _past_the_end(self, path: str, start: int, version: str | None) -> Body:
        """A 416 tells no version, so ask for it; the end must really lie there.

        Some servers close the connection after a 416 without saying so: then the question is put again.
        """
        try:
            info = await self.stat(path)
        except TransientError:
            info = await self.stat(path)
        if version is not None and info.version != version:
            raise changed(path, start)
        if info.size is not None and start < info.size:
            raise TransientError(Cause.WRONG_RANGE, f"a 416 for byte {start:,} of {info.size:,}")
        return EmptyBody(info)

    async def _check_not_changed(self, path: str, start: int, version: str | None, missing: NotFoundError) -> None:
        """A generation that is gone is a 404; what is there instead tells whether the object was replaced."""
        if version is not None and (await self.stat(path)).version != version:
            raise changed(path, start) from missing


class ObstoreBody:
    """A Body over a response of obstore's; what did not fit is kept as a view of its memory.

    Args:
        got: The response.
        info: The object's size and version.
        start: First byte.
        stop: One past the last byte.
        chunks: Tells how much is gathered, and is told what becomes of it.
        ranges: Tells whether all of it is, and is told how fast it comes.
    """

    __slots__ = (
        "_chunk",
        "_chunks",
        "_given",
        "_got",
        "_held",
        "_left",
        "_ranges",
        "_start",
        "_stream",
        "info",
        "stop",
    )

    keeps_time = True  # its read_timeout is the policy's stall_timeout
    splits = True

    def __init__(
        self, got: GetResult, info: ObjectInfo, start: int, stop: int, chunks: ChunkSizes, ranges: Ranges
    ) -> None:
        self.info = info
        self.stop = stop
        self._got: GetResult | None = got
        self._stream: BytesStream | None = None
        self._start = start
        self._chunks = chunks
        self._chunk = chunks.size(info.path, start)
        self._ranges = ranges
        self._given = self._held = 0
        self._left = memoryview(b"")

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next chunk, where the one before is used up."""
        if not self._left and self._got is not None and self._start + self._given < self.stop:
            self._left = memoryview(await self._next_chunk(self._got))
        count = min(len(self._left), len(buffer))
        copy_bytes(buffer[:count], self._left[:count])
        self._left = self._left[count:]
        if not self._left:
            self._drop()
        return count

    async def _next_chunk(self, got: GetResult) -> bytes | Bytes:
        """Its bytes; none at the end."""
        path, position = self.info.path, self._start + self._given
        began = time.monotonic()
        self._chunks.waits(path, position)
        try:
            with seam(path, self._start, self.stop):
                chunk = await self._receive(got)
        except BaseException:
            self._chunks.broke(path, self._given)
            raise
        finally:
            self._chunks.came(path, position)
        self._given += len(chunk)
        self._ranges.flowed(len(chunk), time.monotonic() - began)
        if not chunk or position + len(chunk) >= self.stop:  # at its last byte nobody asks any more
            self._chunks.ended(path)
        return chunk

    async def _receive(self, got: GetResult) -> bytes | Bytes:
        """All of it, or the next chunk of a stream."""
        if self._stream is None:
            nbytes = self.stop - self._start
            if self._chunk == MOST and self._ranges.take(nbytes):
                self._held = nbytes
                return await got.bytes_async()
            self._stream = got.stream(self._chunk)
        return await anext(self._stream, b"")

    def _drop(self) -> None:
        """Lets go of memory: a view of no bytes would keep it."""
        self._left = memoryview(b"")
        self._ranges.drop(self._held)
        self._held = 0

    async def aclose(self) -> None:
        """Drops the response, and with it the connection, unless all of it was received."""
        self._got = self._stream = None
        self._drop()


def _strangers() -> set[tuple[int, CodeType]]:
    """Threads in Python that `threading` does not know, each with the function that it began with there."""
    known = {thread.ident for thread in threading.enumerate()}
    return {(ident, _first(frame).f_code) for ident, frame in sys._current_frames().items() if ident not in known}


def _first(frame: FrameType) -> FrameType:
    while frame.f_back is not None:
        frame = frame.f_back
    return frame


_OTHERS: Final = _strangers()
"""Those of other libraries, which may stay for ever (a debugger's, a test runner's): they were there before ours."""


def _in_python() -> bool:
    """Whether a thread of obstore's runs Python code."""
    return not _strangers() <= _OTHERS


def _pauses() -> Iterator[float]:
    """How long to wait, again and again, until no thread of obstore's is in Python; a second at the most.

    What such a thread does there is to wake an event loop, by a write during which it lets go of the
    interpreter: it must come back from there before the interpreter ends. One that was told of a cancellation
    is about to look in and has no frame yet: the first pause is for it.
    """
    deadline = time.monotonic() + _PATIENCE
    yield _GRACE
    while _in_python() and time.monotonic() < deadline:
        yield _GRACE


def _at_exit() -> None:
    for pause in _pauses():
        time.sleep(pause)


atexit.register(_at_exit)
