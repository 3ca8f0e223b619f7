"""Shards, written: records are framed and compressed in blocks, and go to the store in parts.

`ShardUpload` is one shard under way, `ShardOutput` all objects that one writer makes, `ShardWriter` what tasks share.

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
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

import anyio
import numpy as np

from streamrec import kernels
from streamrec.arguments import flag, integer, refusal
from streamrec.display import display_name, display_text
from streamrec.errors import ClosedError, StreamrecError
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.manifest import FRAME_BYTES, Manifest, ShardInfo, add_mark
from streamrec.shards.patterns import fill_total, is_numbered, shard_path
from streamrec.shards.places import portable
from streamrec.storage import Replacement, Storages, StoreOptions, Upload, check_keywords, locate
from streamrec.storage.tasks import for_each, run_concurrently
from streamrec.tfrecord import (
    CompressionType,
    Deflater,
    Frames,
    LengthPacker,
    PackedLengths,
    RecordBatch,
    TFRecordOptions,
    as_record,
    check_compression_type,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["ShardOutput", "ShardTarget", "ShardWriter"]

logger = logging.getLogger("streamrec")

BLOCK_BYTES: Final = 1 << 20
"""Bytes of records that are framed and compressed at a time."""


class ShardUpload:
    """One shard under way: its upload, its compressor, and the block of records that comes next."""

    def __init__(self, path: str, upload: Upload, deflater: Deflater, lengths: LengthPacker | None = None) -> None:
        self.path = path
        self.records = 0
        self.lengths = lengths
        self._upload = upload
        self._deflater = deflater
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._sent = 0
        self._framed = 0
        self._marks: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Bytes sent, and those of the block under way before compression; without what a compressor still holds."""
        return self._sent + self._block_bytes

    def add(self, record: bytes) -> bool:
        """Takes a record; returns whether the block is full, so that `send_block` must come next."""
        self._block.append(record)
        self._block_bytes += len(record) + FRAME_BYTES
        self.records += 1
        return self._block_bytes >= BLOCK_BYTES

    async def add_batch(self, batch: RecordBatch) -> None:
        """Takes records in one buffer, without making an object of each."""
        await self.send_block()
        self.records += len(batch.spans)
        spans = np.ascontiguousarray(batch.spans)
        self._note(spans[:, 1] - spans[:, 0])
        await self._compress(kernels.encode_block(batch.buffer, spans))

    async def add_records(self, records: list[bytes]) -> None:
        """Takes a block of records that are objects."""
        await self.send_block()
        self._block, self.records = records, self.records + len(records)
        await self.send_block()

    async def add_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Takes one record of `length` bytes whose frame comes in pieces."""
        await self.send_block()
        self.records += 1
        self._note([length])
        async for piece in frame:
            await self._compress(piece)

    async def send_block(self) -> None:
        """Frames the block under way, compresses it where asked to, and hands it to the upload."""
        if self._block:
            block, self._block, self._block_bytes = self._block, [], 0
            self._note(list(map(len, block)))
            await self._compress(kernels.encode_objects(block))

    async def flush(self) -> None:
        """Sends all that was written so far towards the store."""
        await self.send_block()
        await self._pass_on(self._deflater.flush())

    async def finish(self) -> ShardInfo:
        """Completes the upload: the shard appears under its name."""
        await self.send_block()
        await self._pass_on(self._deflater.close())
        info = await self._upload.complete()
        version = info.version if info.path == self.path else None  # a copy of what is staged has another
        return ShardInfo(self.path, self.records, self._sent, self._upload.sent.crc32c, tuple(self._marks), version)

    async def abort(self) -> None:
        """Drops the shard: nothing of it stays in the store."""
        await self._upload.abort()

    def _note(self, lengths: Any) -> None:
        """The records that are sent next have these lengths."""
        if not self._deflater.compresses:
            add_mark(self._marks, self._framed, self._sent)
            self._framed += len(lengths)
            if self.lengths is not None:
                self.lengths.add(np.asarray(lengths, np.int64))

    async def _compress(self, framed: Buffer) -> None:
        if self._deflater.compresses:
            framed = await anyio.to_thread.run_sync(self._deflater.write, framed)
        await self._pass_on(framed)

    async def _pass_on(self, data: Buffer) -> None:
        """Hands bytes to the upload: they must not be written to any more."""
        size = memoryview(data).nbytes
        if size:
            self._sent += size
            await self._upload.write(data, given=True)


@dataclass(frozen=True, slots=True)
class ShardTarget:
    """Where shards go.

    Attributes:
        pattern: Their URL, with `{shard}` where the number goes; or that of the only one.
        options: How they are compressed.
        overwrite: Whether objects of these names are replaced.
        manifest: The manifest's URL; None for none.
        num_shards: Record i goes into shard i modulo this; None for one shard after the other, up to the limits.
        max_shard_bytes, max_shard_records: The limits; None for none.
        index: The URL of an index; None for none.
    """

    pattern: str
    options: TFRecordOptions
    overwrite: bool = True
    manifest: str | None = None
    num_shards: int | None = None
    max_shard_bytes: int | None = None
    max_shard_records: int | None = None
    index: str | None = None

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ValueError("the name to write is '': give a URL or path")
        object.__setattr__(self, "pattern", fill_total(self.pattern, self.num_shards))
        shard_path(self.pattern, 0)
        limited = self.max_shard_bytes is not None or self.max_shard_records is not None
        if self.num_shards is not None and limited:
            raise ValueError("num_shards and a limit of a shard's size exclude each other: leave one of them out")
        if not self.numbered and (limited or self.num_shards is not None):
            pattern = display_name(self.pattern)
            raise ValueError(f"{pattern!r} names all shards alike: put '{{shard:05d}}' where their number goes")
        if self.index is not None and self.compression_type:
            index = display_name(self.index)
            raise ValueError(f"{index}: compressed shards have no index: leave out the compression, or index=")

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards."""
        return is_numbered(self.pattern)

    @property
    def compression_type(self) -> CompressionType:
        return check_compression_type(self.options.compression_type) or ""


class ShardOutput:
    """The objects that one writer makes: its shards, then the tables that describe them.

    Args:
        target: Where they go.
        storages: Their stores.
        at_once: How many shards a batch is written to at the same time.
        how: How each shard is uploaded; see `Storage.upload`.

    Attributes:
        current: The shard that takes the next record, where one shard follows the other; None: it is not begun.
        finished: Those that are complete, by number.
        objects: The set that all objects join, and that its caller commits; None for a set of its own.
    """

    def __init__(self, target: ShardTarget, storages: Storages, at_once: int = 1, **how: int) -> None:
        self.current: ShardUpload | None = None
        self.finished: dict[int, ShardInfo] = {}
        self.objects: Replacement | None = None
        self._open: dict[int, ShardUpload] = {}
        self._target = target
        several = target.numbered or target.manifest is not None or target.index is not None
        self._own = Replacement(storages, stages=target.overwrite and several)
        self._at_once = at_once
        self._how = how
        self._lengths: dict[int, PackedLengths] = {}
        self._records = 0

    @property
    def shards(self) -> list[ShardInfo]:
        """The finished shards, in order."""
        return [self.finished[number] for number in sorted(self.finished)]

    async def shard_for(self, size: int, records: int) -> ShardUpload:
        """The shard that takes `records` more of `size` bytes together: the one under way, or the next."""
        if self.current is not None and self.is_full(self.current, size, records):
            await self._finish(len(self.finished))
            self.current = None
        if self.current is None:
            self.current = await self._start(len(self.finished))
        return self.current

    def is_full(self, shard: ShardUpload, size: int, records: int) -> bool:
        """Whether a shard takes no more of them; one that is empty takes any."""
        if not shard.records:
            return False
        max_bytes, max_records = self._target.max_shard_bytes, self._target.max_shard_records
        if max_bytes is not None and shard.size + size > max_bytes:
            return True
        return max_records is not None and shard.records + records > max_records

    async def write(self, record: bytes) -> None:
        """Writes one record into the shard under way."""
        shard = await self.shard_for(len(record) + FRAME_BYTES, 1)
        if shard.add(record):
            await shard.send_block()

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects, and given away, into the shard under way."""
        await (await self.shard_for(0, 0)).add_records(records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame comes in pieces."""
        await (await self.shard_for(length + FRAME_BYTES, 1)).add_frame(frame, length)

    async def flush(self) -> None:
        """Sends what the shard under way got so far towards the store."""
        if self.current is not None:
            await self.current.flush()

    async def write_batch(self, batch: Frames) -> None:
        """Writes records, each to its shard, about BLOCK_BYTES at a time."""
        shards, first = self._target.num_shards, 0
        if shards is not None:
            await for_each(partial(self._write_every, batch, shards), range(shards), self._at_once)
            self._records += len(batch)
            return
        while first < len(batch):
            sizes = np.cumsum(batch.lengths[first:] + FRAME_BYTES)
            shard = await self.shard_for(int(sizes[0]), 1)
            fitting = int(np.searchsorted(sizes, BLOCK_BYTES, "right"))
            if self._target.max_shard_bytes is not None:
                fitting = min(fitting, int(np.searchsorted(sizes, self._target.max_shard_bytes - shard.size, "right")))
            if self._target.max_shard_records is not None:
                fitting = min(fitting, self._target.max_shard_records - shard.records)
            last = first + max(fitting, 1)
            await shard.add_batch(batch.window(first, last))
            first = last

    async def close(self) -> None:
        """Completes all shards, and writes the tables. What replaces a shard has a version of its own."""
        always_there = self._target.num_shards or (0 if self._target.numbered else 1)
        missing = set(range(always_there)) - {*self._open, *self.finished}
        await for_each(self._start, sorted(missing), self._at_once)
        await for_each(self._finish, sorted(self._open), self._at_once)
        target = self._target
        if target.manifest is not None:
            manifest = Manifest(target.manifest, target.pattern, target.compression_type, tuple(self.shards))
            await self._write(manifest.path, manifest.to_json())
        if target.index is not None:
            shards = [
                IndexedShard(replace(info, path=portable(target.index, info.path)), self._lengths[number])
                for number, info in sorted(self.finished.items())
            ]
            await self._write(target.index, encode_index(target.index, shards, portable(target.index, target.pattern)))
        found = await self._own.commit()
        for number, shard in self.finished.items():
            if shard.path in found:
                self.finished[number] = replace(shard, version=found[shard.path].version)

    async def abort(self, cause: BaseException | None = None) -> None:
        """Drops the shards under way; what goes wrong with that is a note on the cause, where there is one."""
        left, self._open = list(self._open.values()), {}
        try:
            await run_concurrently(*(shard.abort for shard in left))
        except StreamrecError as error:
            if cause is None:
                raise
            cause.add_note(display_text(f"A shard under way could not be ended either: {error}"))
        finally:
            await self._own.abort(cause)

    async def _start(self, number: int) -> ShardUpload:
        path, deflater = shard_path(self._target.pattern, number), Deflater(self._target.options)
        lengths = None if self._target.index is None else LengthPacker()
        upload = await self._upload(path, **self._how)
        self._open[number] = shard = ShardUpload(path, upload, deflater, lengths)
        return shard

    async def _finish(self, number: int) -> None:
        shard = self._open[number]
        self.finished[number] = await shard.finish()
        if shard.lengths is not None:
            self._lengths[number] = shard.lengths.finish()
        del self._open[number]

    async def _write_every(self, batch: Frames, shards: int, number: int) -> None:
        """Writes one shard's records of a batch: of all that come in turn, every `shards`-th."""
        own = batch.take(slice((number - self._records) % shards, None, shards))
        ends, first = np.cumsum(own.lengths), 0
        while first < len(own):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
            await (self._open.get(number) or await self._start(number)).add_batch(own.window(first, last))
            first = last

    async def _upload(self, path: str, **how: Any) -> Upload:
        return await (self.objects or self._own).upload(path, overwrite=self._target.overwrite, **how)

    async def _write(self, path: str, data: bytes) -> None:
        async with await self._upload(path, describes=True) as upload:
            await upload.write(data)


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
            locate(os.fspath(pattern), filesystem),
            TFRecordOptions.of(options),
            flag("overwrite", overwrite),
            None if manifest is None else locate(os.fspath(manifest), filesystem),
            max_shard_bytes=integer("max_shard_bytes", max_shard_bytes, 1, none=True),
            max_shard_records=integer("max_shard_records", max_shard_records, 1, none=True),
            index=None if index is None else locate(os.fspath(index), filesystem),
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
            self._dropped = weakref.finalize(self, warn_dropped, self._target.pattern, self._process)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await (self.close() if error is None else self.abort())

    if not TYPE_CHECKING:  # so that type checkers refuse it
        __enter__ = __exit__ = refusal(
            "write `async with ShardWriter(...)`; without asyncio, `with TFRecordWriter(...)`"
        )

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
            await self._in_turn(self._output.write, kept)
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
        await self._in_turn(self._output.write_frame, frame, length)

    async def flush(self) -> None:
        """Sends what was written so far towards the store. It becomes visible with its whole shard only."""
        self._check_open()
        await self._in_turn(self._output.flush)

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
                if self._closed and function != self._close:
                    self._check_open()  # it was aborted meanwhile
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
            raise ClosedError(f"{self._target.pattern}: this writer was closed: make a new one to write more")
        task.result()

    async def _write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        if not isinstance(records, RecordBatch):
            for record in records:
                await self._output.write(as_record(record))
            return
        await self._output.write_batch(
            records if isinstance(records, Frames) else Frames(records.buffer, records.spans)
        )

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects, and given away, into the shard under way; for writers of one shard."""
        self._check_open()
        await self._in_turn(self._output.write_block, records)

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
            raise ClosedError(f"{self._target.pattern}: this writer was closed: make a new one to write more")
        if self._process != os.getpid():
            why = "is not open yet" if self._process is None else "belongs to the process that forked this one"
            raise ClosedError(f"{self._target.pattern}: this writer {why}: write within its own `async with` block")


def warn_dropped(pattern: str, maker: int) -> None:
    """Warns of a writer that is gone, or of the interpreter's end, before `close`."""
    if os.getpid() == maker:
        logger.warning(
            "%s: its ShardWriter was dropped without close(), so the shard under way is not kept: use an `async with` "
            "block, or close it",
            display_name(pattern),
        )
