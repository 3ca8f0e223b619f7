"""Upload: writes one object into a store in parts, with bounded memory. All or nothing.

The contract:

* Nothing is visible under the path before `complete` returns; a killed process leaves nothing there
  either.
* `write` makes parts of `part_size`. It copies neither `bytes` nor buffers passed with
  `given=True`, but everything else. At most `parallel` parts are in progress (fewer if the store
  requires their order, or parts are large); beyond that `write` waits. So memory stays below
  `(parallel + 1) * part_size` for any amount of data, unless parts grow.
* If the store limits the number of parts (S3), later parts are larger: see `part_bytes`.
* Each part is retried by itself, under the one retry policy.
* The object is complete when the store has all of it: its size is compared with what was sent, and
  its CRC32C or etag if the store has one. A difference removes the object and is an IntegrityError.
  An object that is replaced stays until then: if the store can verify only visible objects (S3,
  GCS), the new one has a hidden name until it is verified, and is then copied to its name within
  the store (`StagedSink`).
* `async with` completes on a clean exit, and aborts on any exception, cancellation included. The
  abort is shielded: it runs to its end (or to its time limit) before the exception is raised.
* The next `write` or `complete` raises the first error of a part; after it only `abort` is allowed.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from streamrec import kernels
from streamrec.display import display_name, display_text
from streamrec.errors import (
    AlreadyExistsError,
    ClosedError,
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    StorageError,
    StreamrecError,
)
from streamrec.storage.backend import Backend, ContentDigest, Held, ObjectInfo, PartSink, Pieces
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.retry import attempt
from streamrec.storage.tasks import CLEANUP_PATIENCE, finish
from streamrec.storage.traffic import Traffic

if TYPE_CHECKING:
    from typing_extensions import Buffer

SHORT_BYTES: Final = 64 << 10
"""Shorter pieces are copied and joined."""


class UploadPart:
    """One part of an upload, of `size` bytes."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[memoryview] = []
        self._short = bytearray()

    def add(self, piece: memoryview) -> None:
        """Appends bytes; a long piece is not copied, and must not be modified any more."""
        self.size += len(piece)
        if len(piece) < SHORT_BYTES:
            self._short += piece
        else:
            self._gather()
            self._pieces.append(piece)

    @property
    def pieces(self) -> list[memoryview]:
        self._gather()
        return self._pieces

    def _gather(self) -> None:
        """Appends the joined short pieces as one piece."""
        if self._short:
            self._pieces.append(memoryview(self._short))
            self._short = bytearray()


def encode_crc32c(crc32c: int) -> str:
    """Encodes a CRC32C as in S3 and GCS: base64 of its four bytes, big-endian.

    >>> encode_crc32c(0xE3069283)
    '4waSgw=='
    """
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


class NewNameSink(PartSink):
    """A PartSink for a name that should be free; if it is taken by then, `refused` makes the
    error.
    """

    def __init__(self, sink: PartSink, path: str, refused: Callable[[str], StorageError]) -> None:
        self.parallel = sink.parallel
        self.grows = sink.grows
        self.mark = sink.mark
        self._sink = sink
        self._path = path
        self._refused = refused

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        with self._explain():
            await self._sink.put_part(index, offset, pieces, whole)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        try:
            with self._explain():
                return await self._sink.complete(sent)
        finally:
            self.mark = self._sink.mark  # even after an error the object may have its name

    async def abort(self) -> None:
        await self._sink.abort()

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except AlreadyExistsError as error:
            raise self._refused(self._path) from error


class StagedSink(PartSink):
    """A PartSink that replaces an object: it uploads under a hidden name, and copies the verified
    object.
    """

    def __init__(self, backend: Backend, path: str, hidden: str, sink: PartSink) -> None:
        self.parallel = sink.parallel
        self.grows = sink.grows
        self.mark = sink.mark
        self.hidden = hidden
        self._backend = backend
        self._path = path
        self._hidden = hidden
        self._sink = sink
        self._version: str | None = None
        self._compared = False

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        with self._rename_errors():
            await self._sink.put_part(index, offset, pieces, whole)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Verifies and copies the hidden object."""
        if not self._compared:
            with self._rename_errors():
                self._version = (await self._sink.complete(sent)).version
            self._compared = True
        with self._rename_errors():
            if not await self._is_own():
                raise ObjectChangedError(
                    "another writer writes this object at the same time: run one of them, and then "
                    "the other"
                )
        await self._backend.copy(self._hidden, self._path)
        info = await self._backend.stat(self._path)
        if info.size != sent.size:
            raise IntegrityError(
                f"the store copied {info.size} bytes of {sent.size:,}: write it again", self._path
            )
        return info

    async def settle(self) -> None:
        """Removes the hidden object, if it is still this upload's."""
        with suppress(NotFoundError):
            if await self._is_own():
                await self._backend.remove(self._hidden, self._version)

    @contextmanager
    def _rename_errors(self) -> Iterator[None]:
        """Replaces the hidden name in errors by the object's name."""
        try:
            yield
        except StorageError as error:
            raise type(error)(error.reason, self._path, error.start, error.end) from error

    async def abort(self) -> None:
        await self._sink.abort()
        if self._compared:
            await self.settle()

    async def _is_own(self) -> bool:
        """Whether the hidden object is the one that was uploaded: another writer of the same name
        uses the same hidden name.
        """
        held = await self._backend.identify(self._hidden)
        return is_own(held, self.mark, self._version)


def is_own(held: Held, mark: str | None, version: str | None) -> bool:
    """Whether a hidden object is that of the upload with this mark, and of this version.

    In a store that keeps no marks the version decides: a hidden object that is removed by mistake
    costs another writer an error, and no data.
    """
    return held.mark == mark if held.mark is not None else held.info.version == version


logger = logging.getLogger("streamrec")


PART_SIZE = 8 << 20
"""Bytes of a part: large enough that the cost of a request is negligible, and a multiple of GCS's
256 KiB."""

PARALLEL = 4
"""Parts in progress at the same time."""

GROWTH_AFTER = 1000
"""The number of parts after which they grow, if the store limits it: S3 takes 10,000, and 5 TB in
all."""

GROWTH_EVERY = 64
"""The number of parts after which their size grows by the initial size again."""

LARGE_BYTES = 16 << 20
"""Fewer parts are in progress at the same time if they are larger than this."""


def part_bytes(index: int, first: int, grows: bool) -> int:
    """Returns the size of a part in bytes, from its index and the size of the first part.

    >>> sum(part_bytes(index, PART_SIZE, True) for index in range(10_000)) > 5e12
    True
    >>> part_bytes(999, PART_SIZE, True), part_bytes(9_999, PART_SIZE, True) < 5 << 30
    (8388608, True)
    """
    return first * (1 + max(0, index - GROWTH_AFTER) // GROWTH_EVERY) if grows else first


class Upload:
    """An upload in progress; made by `Storage.upload`.

    `may_be_there` says whether the object may have become visible: not if another writer has the
    name. `version` is that of the complete object; None if the store has no versions.
    """

    def __init__(
        self,
        sink: PartSink,
        policy: RetryPolicy,
        path: str,
        part_size: int,
        parallel: int,
        traffic: Traffic | None = None,
    ) -> None:
        self.path = path
        self._traffic = traffic or Traffic()
        self._sink = sink
        self._policy = policy
        self._first_size = self._part_size = part_size
        self._grows = sink.grows
        self._parallel = min(parallel, sink.parallel)
        self._slots = asyncio.Semaphore(self._parallel)
        self._tasks: set[asyncio.Task[None]] = set()
        self._part = UploadPart()
        self._index = 0
        self._sent = ContentDigest(0, 0)
        self._crc32c = 0  # of all bytes written, the current part included
        self._error: Exception | None = None
        self._closed = False
        self.may_be_there = False
        self.version: str | None = None

    @property
    def sent(self) -> ContentDigest:
        """Size and CRC32C of the parts sent so far; of the whole object after `complete`."""
        return self._sent

    async def write(self, data: Buffer, given: bool = False) -> None:
        """Appends bytes, any number of them; waits while too many parts are in progress, and raises
        their errors.

        With `given`, the caller will not modify `data` any more, so that it need not be copied.
        """
        self._check()
        kept = data if given or isinstance(data, bytes) else bytes(memoryview(data).cast("B"))
        view = memoryview(kept).cast("B")
        while view:
            if self._part.size == self._part_size:  # only now: a full part may be the last one
                await self._send(last=False)
            count = min(len(view), self._part_size - self._part.size)
            self._crc32c = kernels.crc32c(
                view[:count], self._crc32c
            )  # now, while the bytes are in the CPU cache
            self._part.add(view[:count])
            view = view[count:]

    async def complete(self) -> ObjectInfo:
        """Sends the rest and makes the object visible; returns its size, and its version if the
        store has versions.

        Raises:
            AlreadyExistsError: An object of this name exists and must not be replaced.
            IntegrityError: The store has other bytes than were sent; they were removed.
            StorageError: It could not be stored. Call `abort`.
        """
        self._check()
        await self._send(last=True)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._check()
        complete = partial(self._sink.complete, self._sent)
        limit = self._policy.complete_timeout
        self.may_be_there = True
        try:
            info = await attempt(
                self._policy, self.path, complete, "completing", traffic=self._traffic, limit=limit
            )
        except Exception as error:
            self.may_be_there = not isinstance(error, AlreadyExistsError | ObjectChangedError)
            raise
        self._closed, self.version = True, info.version
        await finish(self._settle(), patience=CLEANUP_PATIENCE)
        logger.info("%s is written", display_name(self.path))
        return info

    async def abort(self) -> None:
        """Discards the upload. May be called at any time, and twice; does nothing after `complete`.

        If the store cannot be reached, it keeps invisible parts until they are cleaned up.
        """
        if not self._closed:
            self._closed = True
            await finish(self._abort(), patience=CLEANUP_PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self._abort_after(error)
            return
        try:
            await self.complete()
        except BaseException as cause:
            await self._abort_after(cause)
            raise

    async def _abort_after(self, cause: BaseException) -> None:
        """Aborts; if that fails, too, adds a note to the first error."""
        try:
            await self.abort()
        except StreamrecError as error:
            cause.add_note(display_text(f"The upload could not be aborted either: {error}"))

    async def _settle(self) -> None:
        """Removes what the complete object no longer needs; an error of that is a warning: the
        object is in place.
        """
        if self._sink.hidden is None:
            return
        try:
            await attempt(
                self._policy, self.path, self._sink.settle, "removing", traffic=self._traffic
            )
        except StorageError as error:
            logger.warning(
                "%s is written, but %s could not be removed (%s): remove it yourself, or allow "
                "removing it",
                display_name(self.path),
                display_name(self._sink.hidden),
                error,
            )

    @property
    def mark(self) -> str | None:
        """What proves that the complete object is this upload's; see `Held.mark`."""
        return self._sink.mark

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise ClosedError(f"{self.path}: the upload is closed; start a new one")

    async def _send(self, last: bool) -> None:
        """Starts to send the current part when slots are free."""
        slots = min(self._parallel, -(-self._part_size // LARGE_BYTES))
        taken = 0
        try:
            while taken < slots:
                await self._slots.acquire()
                taken += 1
            self._check()
        except BaseException:
            self._free(taken)
            raise
        part, self._part = self._part, UploadPart()
        self._sent = ContentDigest(self._sent.size + part.size, self._crc32c)
        whole = self._sent if last else None
        put = self._put(self._index, self._sent.size - part.size, part, whole, slots)
        task = asyncio.get_running_loop().create_task(put)
        self._index += 1
        self._part_size = part_bytes(self._index, self._first_size, self._grows)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _free(self, slots: int) -> None:
        for _ in range(slots):
            self._slots.release()

    async def _put(
        self, index: int, start: int, part: UploadPart, whole: ContentDigest | None, slots: int
    ) -> None:
        end = start + part.size
        call = partial(self._sink.put_part, index, start, part.pieces, whole)
        limit = self._policy.request_timeout(part.size)
        try:
            await attempt(
                self._policy,
                self.path,
                call,
                "storing a part",
                traffic=self._traffic,
                limit=limit,
                start=start,
                end=end,
            )
        except Exception as error:
            self._error = self._error or error
        finally:
            self._free(slots)

    async def _abort(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._part = UploadPart()
        await attempt(
            self._policy, self.path, self._sink.abort, "aborting an upload", traffic=self._traffic
        )
