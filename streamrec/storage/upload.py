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

import logging
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from streamrec.display import display_name, display_text
from streamrec.errors import (
    AlreadyExistsError,
    ClosedError,
    ObjectChangedError,
    StorageError,
    StreamrecError,
)
from streamrec.storage.backend import ContentDigest, ObjectInfo, PartSink
from streamrec.storage.part_cutter import PartCutter
from streamrec.storage.part_sender import PartSender
from streamrec.storage.retry import ObjectRequests
from streamrec.storage.tasks import CLEANUP_PATIENCE, finish

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("streamrec")


class Upload:
    """An upload in progress; made by `Storage.upload`.

    Attributes:
        path: The object's URL.
        may_be_there: Whether the object may have become visible: not if another writer has the
            name.
        version: The version of the complete object; None if the store has no versions.
    """

    def __init__(
        self, sink: PartSink, requests: ObjectRequests, *, part_size: int, parallel: int
    ) -> None:
        self.path = requests.path
        self.may_be_there = False
        self.version: str | None = None
        self._sink = sink
        self._requests = requests
        self._cutter = PartCutter(part_size, grows=sink.grows)
        self._sender = PartSender(sink, requests, parallel)
        self._closed = False

    @property
    def sent(self) -> ContentDigest:
        """Size and CRC32C of the parts sent so far; of the whole object after `complete`."""
        return self._cutter.cut_off

    async def write(self, data: Buffer, given: bool = False) -> None:
        """Appends bytes, any number of them; waits while too many parts are in progress, and raises
        their errors.

        With `given`, the caller will not modify `data` any more, so that it need not be copied.
        """
        self._check()
        kept = data if given or isinstance(data, bytes) else bytes(memoryview(data).cast("B"))
        view = memoryview(kept).cast("B")
        while view:
            if self._cutter.is_full:
                await self._send(last=False)
            view = self._cutter.add(view)

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
        await self._sender.wait()
        self._check()
        # From here on a request without an answer may have made the object visible.
        self.may_be_there = True
        try:
            info = await self._requests.attempt(
                partial(self._sink.complete, self.sent),
                "completing",
                limit=self._requests.policy.complete_timeout,
            )
        except Exception as error:
            self.may_be_there = not isinstance(error, AlreadyExistsError | ObjectChangedError)
            raise
        self._closed = True
        self.version = info.version
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
            await self._requests.attempt(self._sink.settle, "removing")
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
        if self._sender.error is not None:
            raise self._sender.error
        if self._closed:
            raise ClosedError(f"{self.path}: the upload is closed; start a new one")

    async def _send(self, last: bool) -> None:
        """Starts to send the current part when slots are free."""
        slots = await self._sender.reserve(self._cutter.part_size)
        try:
            self._check()  # meanwhile a part may have failed, or another task may have aborted
        except BaseException:
            self._sender.release(slots)
            raise
        self._sender.start(self._cutter.cut(last), slots)

    async def _abort(self) -> None:
        await self._sender.cancel()
        self._cutter.discard()
        await self._requests.attempt(self._sink.abort, "aborting an upload")
