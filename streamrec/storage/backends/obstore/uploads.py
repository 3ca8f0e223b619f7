"""Uploads through obstore: one PUT, or its writer, which sends parts by itself and tries each again by itself.

The writer takes bytes and gives no parts, so what was handed to it cannot be handed to it again: after an
error the upload is over, and can only be aborted. It holds the part that fills and up to `PARALLEL` on their
way.

What it cannot do is to abort once it was asked to end: where the very last part, or the completion, is not
stored in all its tries, a part may stay behind, unseen, until the bucket's lifecycle rule takes it away. All
parts but the last are waited for before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import obstore
from obstore.store import GCSStore, S3Store

from streamrec.errors import IntegrityError, StorageError
from streamrec.storage.backend import ObjectInfo, Sent
from streamrec.storage.backends.obstore.errors import seam
from streamrec.storage.resilience.faults import TransientError, give_up
from streamrec.storage.resilience.shield import finish

if TYPE_CHECKING:
    from obstore import AsyncWritableFile

__all__ = ["ObstoreUpload"]

PARALLEL: Final = 3

MOST_PARTS: Final = 10_000


class ObstoreUpload:
    """One upload under way.

    Args:
        path: The object's URL.
        key: Its key.
        single: The client that tries nothing again, for an object of one part.
        tries: Gives the client that tries parts again.
        stat: Asks for the object's size and version.
    """

    parallel = 1

    def __init__(
        self,
        path: str,
        key: str,
        single: S3Store | GCSStore,
        tries: Callable[[], S3Store | GCSStore],
        stat: Callable[[], Awaitable[ObjectInfo]],
    ) -> None:
        self._path = path
        self._key = key
        self._single = single
        self._tries = tries
        self._stat = stat
        self._only: bytes | None = None
        self._writer: AsyncWritableFile | None = None
        self._ending = False
        self._broken = False

    async def put_part(self, index: int, offset: int, pieces: Sequence[memoryview], whole: Sent | None) -> None:
        """Hands a part to the writer; an only part waits for `complete`."""
        data = b"".join(pieces)
        if whole is not None and index == 0:
            self._only = data
            return
        if index == MOST_PARTS:
            raise StorageError(
                f"obstore's parts do not grow, and stores take {MOST_PARTS:,}: write smaller shards (max_shard_bytes), "
                "or leave out backend='obstore'",
                self._path,
                offset,
            )
        if self._writer is None:
            self._writer = obstore.open_writer_async(
                self._tries(), self._key, buffer_size=len(data), max_concurrency=PARALLEL
            )
        if data:
            writing = self._step(partial(self._writer.write, data), offset, offset + len(data))
            # One of the first two starts the upload: cut off half way, nobody would know what to abort.
            await (finish(writing) if index <= 1 else writing)

    async def complete(self, sent: Sent) -> ObjectInfo:
        """Makes the object visible, and looks whether it is all there."""
        if self._only is not None:
            with seam(self._path):
                await obstore.put_async(self._single, self._key, self._only, use_multipart=False)
        elif self._broken or not self._ending:
            assert self._writer is not None, "the last part comes before complete"
            await self._step(self._writer.flush)
            self._ending = True
            await self._step(self._writer.close)
        info = await self._stat()
        if info.size != sent.size:
            raise IntegrityError(
                f"the store has {info.size:,} bytes where {sent.size:,} were sent: write it again", self._path
            )
        return info

    async def abort(self) -> None:
        """Frees the parts."""
        self._only = None
        writer, self._writer = self._writer, None
        if writer is not None and not self._ending:
            stop = InterruptedError("the upload is aborted")
            with seam(self._path):
                await writer.__aexit__(type(stop), stop, None)

    async def _step(
        self, call: Callable[[], Awaitable[object]], start: int | None = None, end: int | None = None
    ) -> None:
        """One step of the writer, whose failure is final: it was tried again inside."""
        if self._broken:
            raise StorageError("a part could not be stored in time: abort this upload and write it again", self._path)
        self._broken = True
        try:
            with seam(self._path, start, end):
                await call()
        except TransientError as fault:
            raise give_up(fault, 1, self._path, start, end) from fault
        self._broken = False
