"""Shards, written: records are framed and compressed in blocks, and go to the store in parts.

Rules:
- A shard appears under its name when it is whole, and not before: an exception, a cancellation or a killed
  process leaves no partial object there, and (but for the killed process) no unfinished upload either.
- Shards that were finished before the exception stay: each is whole in itself. Where names are taken, the shards that
  replace others appear together, when all is complete (`storage/replacement.py`).
- Each shard is verified when it is complete: the store has what was sent (see `storage/upload.py`).
- A writer that was killed can be run again with the same names: what it left unfinished is ended.
- The manifest is written last, when all shards are there, and appears whole or not at all, too.
- Memory is bounded: one block of records, and what the upload holds in flight.
- Tasks of one loop may share a writer. Calls that wait take turns, in the order in which they were made; a record that
  only joins a block takes no turn, unless a call waits for one. A caller that is cancelled before its call has begun
  takes the call with it. A call that has begun continues without its caller, so that no half of it is lost: the next
  call waits for it, and raises its error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio

from streamrec.arguments import flag, integer
from streamrec.display import display_name
from streamrec.errors import ClosedError
from streamrec.shards.manifest import FRAME_BYTES, ShardInfo
from streamrec.shards.shard_upload import ShardOutput, ShardTarget, ShardUpload
from streamrec.storage import Replacement, Storages, StoreOptions, check_keywords, located
from streamrec.tfrecord import Frames, RecordBatch, TFRecordOptions, as_record

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ShardWriter"]

logger = logging.getLogger("streamrec")


class ShardWriter:
    """Writes records into one shard, or into as many as their sizes ask for.

    Sharing: any number of tasks of one event loop may write to one writer. Each record is written once, in the order of
    the calls, and those of a batch stay together. A write that is cancelled is written whole or not at all. `close`
    comes after the writes before it, and refuses those after it (ClosedError). Threads share a TFRecordWriter.

    Examples:
        >>> async def write(images):
        ...     async with ShardWriter("s3://b/train-{shard:05d}.tfrecord", max_shard_bytes=200 << 20) as writer:
        ...         for image in images:
        ...             await writer.write(image)
        ...     return [shard.path for shard in writer.shards]

    On local disks a symbolic link is followed, and what is not a plain file (/dev/stdout, a named pipe) is written
    straight through: nothing of it can be taken back.

    Args:
        pattern: The shards' URL; `{shard}` or `{shard:05d}` in it stands for the shard's number, from 0. All other
            braces are its own, but for `{shards}`: the number of all shards is not known before they are written.
        options: Compression; None for none.
        max_shard_bytes: A shard is finished before a record would take it above this (a single longer record
            has a shard to itself; where shards are compressed, the block that is not compressed yet counts in full;
            what `compression_threads` hold, about 2 MiB each, does not count yet). None for one shard.
        max_shard_records: Likewise, a limit to the number of records.
        overwrite: Whether a shard replaces an object of its name. Of several shards, and of one with a manifest or an
            index, those that replace objects appear together when all is complete; on any failure the old ones are as
            they were, and nothing new stays. If not, and there is one, writing the shard is an AlreadyExistsError: at
            its beginning where the object is there by then, else at its end. S3, GCS, local files and memory keep this;
            for any other filesystem it is refused (UnsupportedOperationError).
        manifest: The URL to write a manifest to, on a clean close: records, bytes and CRC32C of each shard, as JSON;
            see `verify`. None for none. `overwrite` holds for it, too.
        index: The URL to write an index to, on a clean close: what a manifest says, and the length of each record, so
            that `RecordSource` finds any of them. Shards must not be compressed. About 2 bytes a record are held until
            then. None for none.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Attributes:
        warns: Whether the log says so if the writer is dropped without close; set before it is entered.

    Raises:
        ValueError: A limit is given and the pattern has no `{shard}`, or one with a format that is none of a number;
            or it has `{shards}`; or an index is wanted of compressed shards.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
        *,
        max_shard_bytes: int | None = None,
        max_shard_records: int | None = None,
        overwrite: bool = True,
        manifest: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        **store: Unpack[StoreOptions],
    ) -> None:
        filesystem = store.get("filesystem")
        self._target = ShardTarget(
            located(os.fspath(pattern), filesystem),
            TFRecordOptions.of(options),
            flag("overwrite", overwrite),
            None if manifest is None else located(os.fspath(manifest), filesystem),
            max_shard_bytes=integer("max_shard_bytes", max_shard_bytes, 1, none=True),
            max_shard_records=integer("max_shard_records", max_shard_records, 1, none=True),
            index=None if index is None else located(os.fspath(index), filesystem),
        )
        check_keywords("ShardWriter", store)
        self._storages = Storages(**store)
        self._stack = AsyncExitStack()
        self._output = ShardOutput(self._target, self._storages)
        self.warns = True
        self._dropped: weakref.finalize[..., Any] | None = None
        self._turn = asyncio.Lock()
        self._callers = 0
        self._running: asyncio.Task[None] | None = None
        self._process: int | None = None  # the one that entered it
        self._closing = self._closed = False

    @property
    def shards(self) -> list[ShardInfo]:
        """The finished shards, in order."""
        return self._output.shards

    def join(self, objects: Replacement) -> None:
        """Makes its objects part of a set that the caller commits; called before it is entered."""
        self._output.objects = objects

    async def __aenter__(self) -> Self:
        if self._closing:
            self._check_open()
        if self._process is not None:
            raise ClosedError(f"{self._target.pattern}: this writer is open already: enter it once")
        await self._stack.enter_async_context(self._storages)
        self._process = os.getpid()
        if self.warns:
            self._dropped = weakref.finalize(self, dropped, self._target.pattern, self._process)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.close() if error is None else self.abort())

    async def write(self, record: Buffer) -> None:
        """Writes one record.

        Raises:
            TypeError: It is not bytes-like; the message says what to write instead.
            StorageError: The store failed, and retrying did not help. The shard under way is lost.
            ClosedError: The writer was closed, or not entered (`async with`) in this process.
        """
        self._check_open()
        kept = as_record(record)
        shard, waits = self._output.current, self._callers or self._running is not None
        if shard is None or waits or self._output.is_full(shard, len(kept) + FRAME_BYTES, 1):
            await self._in_turn(self._write, kept)
        elif shard.add(kept):
            await self._in_turn(shard.send_block)

    async def write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        """Writes many records; Frames and other RecordBatches go without an object per record.

        Raises:
            TypeError, StorageError, ClosedError: As `write`. The records before one that is not bytes-like are written.
        """
        self._check_open()
        await self._in_turn(self._write_batch, records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame (header, payload, CRC) comes in pieces, as it is."""
        self._check_open()
        await self._in_turn(self._write_frame, frame, length)

    async def flush(self) -> None:
        """Sends what was written so far towards the store. It becomes visible with its whole shard only."""
        self._check_open()
        await self._in_turn(self._flush)

    async def close(self) -> None:
        """Finishes the last shard and closes the connections. Closing twice is fine.

        A writer whose URL has no `{shard}` and that was given no record leaves a shard without a record.

        Raises:
            ClosedError: It was never entered, or another process entered it.
        """
        if not self._closing:
            self._check_open()
        self._closing = True
        try:
            await self._in_turn(self._close)
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Drops the shard under way and closes the connections; finished shards stay."""
        if self._process not in (None, os.getpid()):
            return  # the shard under way is another process's
        self._closing = self._closed = True
        with anyio.CancelScope(shield=True):
            task, self._running = self._running, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
                _ = task.cancelled() or task.exception()  # looked at, so that nothing is logged
            self._stop_warning()
            try:
                await self._output.abort()
            finally:
                await self._stack.aclose()

    async def _in_turn(self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> None:
        """Awaits `function(*args)` when all calls before it are done."""
        self._callers += 1
        try:
            async with self._turn:
                await self._finish_call()  # one whose caller was cancelled
                self._running = asyncio.get_running_loop().create_task(function(*args))
                await self._finish_call()
        finally:
            self._callers -= 1

    async def _finish_call(self) -> None:
        task = self._running
        if task is None:
            return
        await asyncio.wait([task])  # a cancellation leaves the task as it is
        self._running = None
        if task.cancelled():
            raise ClosedError(f"{self._target.pattern}: this writer was closed; nothing more can be written")
        task.result()

    async def _write(self, record: bytes) -> None:
        shard = await self._shard_for(len(record) + FRAME_BYTES, 1)
        if shard.add(record):
            await shard.send_block()

    async def _write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        if not isinstance(records, RecordBatch):
            for record in records:
                await self._write(as_record(record))
            return
        self._check_not_aborted()
        await self._output.write_batch(records if isinstance(records, Frames) else Frames(records.buffer, records.spans))

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects, and given away, into the shard under way; for writers of one shard."""
        self._check_open()
        await self._in_turn(self._write_block, records)

    async def _write_block(self, records: list[bytes]) -> None:
        await (await self._shard_for(0, 0)).add_records(records)

    async def _write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        await (await self._shard_for(length + FRAME_BYTES, 1)).add_frame(frame, length)

    async def _flush(self) -> None:
        if self._output.current is not None:
            await self._output.current.flush()

    async def _close(self) -> None:
        if self._closed:
            return
        await self._output.close()
        self._closed = True
        self._stop_warning()
        await self._stack.aclose()

    def _stop_warning(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError(f"{self._target.pattern}: this writer was closed; nothing more can be written")
        if self._process != os.getpid():
            why = "is not open yet" if self._process is None else "belongs to the process that forked this one"
            raise ClosedError(f"{self._target.pattern}: this writer {why}: write within its own `async with` block")

    async def _shard_for(self, size: int, records: int) -> ShardUpload:
        self._check_not_aborted()
        return await self._output.shard_for(size, records)

    def _check_not_aborted(self) -> None:
        if self._closed:
            self._check_open()


def dropped(pattern: str, maker: int) -> None:
    """Warns of a writer that is gone, or of the interpreter's end, before `close`."""
    if os.getpid() == maker:
        logger.warning(
            "%s: its ShardWriter was dropped without close(), so the shard under way is not kept: use an `async with` "
            "block, or close it",
            display_name(pattern),
        )
