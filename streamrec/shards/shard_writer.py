"""Writes shards: records are framed and compressed in blocks, and go to the store in parts.

`ShardUpload` is one unfinished shard, `ShardOutput` all objects of one writer, `ShardWriter` the
part that tasks share.

Rules:
- A shard appears under its name when it is complete, and not before: an exception, a cancellation
  or a killed process leaves no partial object there, and (except the killed process) no unfinished
  upload either.
- Shards that were finished before an exception stay, because each is complete. If names are taken,
  the shards that replace others appear together, when all are complete (`storage/replacement.py`).
- Each complete shard is verified: the store has the bytes that were sent (see `storage/upload.py`).
- A writer that was killed can be run again with the same names: its unfinished uploads are removed.
- The manifest is written last, when all shards are complete, and also appears complete or not at
  all.
- Memory is bounded: one block of records, and the parts in flight of the upload.
- Tasks of one loop may share a writer. Calls that wait take turns, in their order; a record that
  only joins a block takes no turn, unless a call waits for one. A caller that is cancelled before
  its call has begun cancels the call. A call that has begun continues without its caller, so that
  it is never half done: the next call waits for it, and raises its error.
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
from streamrec.arguments import check_integer, check_overwrite, check_path, refuse_with
from streamrec.display import display_name, display_text
from streamrec.errors import ClosedError, StreamrecError
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.leftovers import (
    Described,
    Leftovers,
    find_described,
    find_leftovers,
    warn_of,
)
from streamrec.shards.manifest import FRAME_BYTES, Manifest, ShardInfo, add_mark
from streamrec.shards.patterns import fill_total, is_numbered, shard_path
from streamrec.shards.places import portable
from streamrec.storage import (
    Overwrite,
    Replacement,
    Storages,
    StoreOptions,
    Upload,
    check_keywords,
    locate,
)
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
from streamrec.tracebacks import border_methods

if TYPE_CHECKING:
    from typing_extensions import Buffer

logger = logging.getLogger("streamrec")

BLOCK_BYTES: Final = 1 << 20
"""Bytes of records that are framed and compressed at a time."""


class ShardUpload:
    """An unfinished shard: its upload, its compressor, and the current block of records."""

    def __init__(
        self, path: str, upload: Upload, deflater: Deflater, lengths: LengthPacker | None = None
    ) -> None:
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
        """Bytes sent, and those of the current block before compression; without bytes inside a
        compressor.
        """
        return self._sent + self._block_bytes

    def add(self, record: bytes) -> bool:
        """Adds a record; returns whether the block is full, so that `send_block` must come next."""
        self._block.append(record)
        self._block_bytes += len(record) + FRAME_BYTES
        self.records += 1
        return self._block_bytes >= BLOCK_BYTES

    async def add_batch(self, batch: RecordBatch) -> None:
        """Adds records in one buffer, without making an object of each."""
        await self.send_block()
        self.records += len(batch.spans)
        spans = np.ascontiguousarray(batch.spans)
        self._add_lengths(spans[:, 1] - spans[:, 0])
        await self._compress(kernels.encode_block(batch.buffer, spans))

    async def add_records(self, records: list[bytes]) -> None:
        await self.send_block()
        self._block, self.records = records, self.records + len(records)
        await self.send_block()

    async def add_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        await self.send_block()
        self.records += 1
        self._add_lengths([length])
        async for piece in frame:
            await self._compress(piece)

    async def send_block(self) -> None:
        """Frames the current block, compresses it if the shard is compressed, and sends it to the
        upload.
        """
        if self._block:
            block, self._block, self._block_bytes = self._block, [], 0
            self._add_lengths(list(map(len, block)))
            await self._compress(kernels.encode_objects(block))

    async def flush(self) -> None:
        await self.send_block()
        await self._send(self._deflater.flush())

    async def finish(self) -> ShardInfo:
        """Completes the upload: the shard appears under its name."""
        await self.send_block()
        await self._send(self._deflater.close())
        info = await self._upload.complete()
        version = (
            info.version if info.path == self.path else None
        )  # the copy of a staged shard has another version
        return ShardInfo(
            self.path,
            records=self.records,
            bytes=self._sent,
            crc32c=self._upload.sent.crc32c,
            marks=tuple(self._marks),
            version=version,
        )

    async def abort(self) -> None:
        await self._upload.abort()

    def _add_lengths(self, lengths: Any) -> None:
        """Adds the lengths of the records that are sent next to the marks and the index."""
        if not self._deflater.compresses:
            add_mark(self._marks, self._framed, self._sent)
            self._framed += len(lengths)
            if self.lengths is not None:
                self.lengths.add(np.asarray(lengths, np.int64))

    async def _compress(self, framed: Buffer) -> None:
        if self._deflater.compresses:
            framed = await anyio.to_thread.run_sync(self._deflater.write, framed)
        await self._send(framed)

    async def _send(self, data: Buffer) -> None:
        """Sends bytes to the upload; the caller must not change them any more."""
        size = memoryview(data).nbytes
        if size:
            self._sent += size
            await self._upload.write(data, given=True)


@dataclass(frozen=True, slots=True)
class ShardTarget:
    """The objects to write.

    Attributes:
        pattern: The shards' URL, with `{shard}` for the number; or that of the only one.
        manifest, index: The URLs of what describes them; None for none.
        num_shards: Record i goes into shard i modulo this; None for one shard after the other, up
            to the limits.
        max_shard_bytes, max_shard_records: The limits; None for none.
    """

    pattern: str
    options: TFRecordOptions
    overwrite: Overwrite = True
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
            raise ValueError(
                "num_shards and a limit of a shard's size exclude each other: leave one of them out"
            )
        if not self.numbered and (limited or self.num_shards is not None):
            pattern = display_name(self.pattern)
            raise ValueError(
                f"{pattern!r} gives all shards the same name: add '{{shard:05d}}' for their number"
            )
        if self.index is not None and self.compression_type:
            index = display_name(self.index)
            raise ValueError(
                f"{index}: compressed shards have no index: leave out the compression, or index="
            )

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards."""
        return is_numbered(self.pattern)

    @property
    def compression_type(self) -> CompressionType:
        return check_compression_type(self.options.compression_type) or ""


class ShardOutput:
    """The objects of one writer: its shards, then the manifest and the index that describe them.

    Args:
        at_once: How many shards a batch is written to at the same time.
        upload_options: How each shard is uploaded; see `Storage.upload`.

    Attributes:
        current: The shard for the next record, if one shard follows the other; None if it has not
            been started.
        finished: The complete shards, by number.
        objects: The set that all objects join, and that its caller commits; None for the output's
            own set.
    """

    def __init__(
        self, target: ShardTarget, storages: Storages, at_once: int = 1, **upload_options: int
    ) -> None:
        self.current: ShardUpload | None = None
        self.finished: dict[int, ShardInfo] = {}
        self.objects: Replacement | None = None
        self._open: dict[int, ShardUpload] = {}
        self._target = target
        several = target.numbered or target.manifest is not None or target.index is not None
        self._own_objects = Replacement(storages, stages=bool(target.overwrite) and several)
        self._at_once = at_once
        self._upload_options = upload_options
        self._lengths: dict[int, PackedLengths] = {}
        self._records = 0

    @property
    def shards(self) -> list[ShardInfo]:
        return [self.finished[number] for number in sorted(self.finished)]

    async def shard_for(self, size: int, records: int) -> ShardUpload:
        """The shard for `records` more records of `size` bytes together: the current one, or the
        next.
        """
        if self.current is not None and self.is_full(self.current, size, records):
            await self._finish(len(self.finished))
            self.current = None
        if self.current is None:
            self.current = await self._start(len(self.finished))
        return self.current

    def is_full(self, shard: ShardUpload, size: int, records: int) -> bool:
        """Whether such records would exceed the shard's limits; an empty shard takes any."""
        if not shard.records:
            return False
        max_bytes, max_records = self._target.max_shard_bytes, self._target.max_shard_records
        if max_bytes is not None and shard.size + size > max_bytes:
            return True
        return max_records is not None and shard.records + records > max_records

    async def write(self, record: bytes) -> None:
        shard = await self.shard_for(len(record) + FRAME_BYTES, 1)
        if shard.add(record):
            await shard.send_block()

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects into the current shard; the caller must not change the
        list any more.
        """
        await (await self.shard_for(0, 0)).add_records(records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        await (await self.shard_for(length + FRAME_BYTES, 1)).add_frame(frame, length)

    async def flush(self) -> None:
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
                fitting = min(
                    fitting,
                    int(np.searchsorted(sizes, self._target.max_shard_bytes - shard.size, "right")),
                )
            if self._target.max_shard_records is not None:
                fitting = min(fitting, self._target.max_shard_records - shard.records)
            last = first + max(fitting, 1)
            await shard.add_batch(batch.window(first, last))
            first = last

    async def close(self) -> None:
        """Completes all shards, and writes the manifest and the index."""
        min_shards = self._target.num_shards or (0 if self._target.numbered else 1)
        missing = set(range(min_shards)) - {*self._open, *self.finished}
        await for_each(self._start, sorted(missing), self._at_once)
        await for_each(self._finish, sorted(self._open), self._at_once)
        target = self._target
        if target.manifest is not None:
            manifest = Manifest(
                target.manifest, target.pattern, target.compression_type, tuple(self.shards)
            )
            await self._write(manifest.path, manifest.to_json())
        if target.index is not None:
            shards = [
                IndexedShard(
                    replace(info, path=portable(target.index, info.path)), self._lengths[number]
                )
                for number, info in sorted(self.finished.items())
            ]
            await self._write(
                target.index,
                encode_index(target.index, shards, portable(target.index, target.pattern)),
            )
        told = await self._find_replaced() if self.objects is None else ()
        replaced = await self._own_objects.commit()
        warn_of(*told)
        for number, shard in self.finished.items():
            if shard.path in replaced:  # the object in place has a version of its own
                self.finished[number] = replace(shard, version=replaced[shard.path].version)

    async def _find_replaced(self) -> tuple[Leftovers | Described | None, ...]:
        """What is left of earlier runs, and what will be replaced, just before it is."""
        target, new = self._target, [shard.path for shard in self.shards]
        storages, staged = self._own_objects.storages, self._own_objects.staged
        described = [
            await find_described(storages, path, new, target.pattern)
            for path in (target.manifest, target.index)
            if path is not None and path in staged
        ]
        return (await find_leftovers(storages, target.pattern, new, staged), *described)

    async def abort(self, cause: BaseException | None = None) -> None:
        """Drops the unfinished shards; an error of that becomes a note on the cause, if there is
        one.
        """
        unfinished, self._open = list(self._open.values()), {}
        try:
            await run_concurrently(*(shard.abort for shard in unfinished))
        except StreamrecError as error:
            if cause is None:
                raise
            cause.add_note(
                display_text(f"An unfinished shard could not be dropped either: {error}")
            )
        finally:
            await self._own_objects.abort(cause)

    async def _start(self, number: int) -> ShardUpload:
        path, deflater = shard_path(self._target.pattern, number), Deflater(self._target.options)
        lengths = None if self._target.index is None else LengthPacker()
        upload = await self._upload(path, **self._upload_options)
        self._open[number] = shard = ShardUpload(path, upload, deflater, lengths)
        return shard

    async def _finish(self, number: int) -> None:
        shard = self._open[number]
        self.finished[number] = await shard.finish()
        if shard.lengths is not None:
            self._lengths[number] = shard.lengths.finish()
        del self._open[number]

    async def _write_every(self, batch: Frames, shards: int, number: int) -> None:
        """Writes one shard's records of a batch: every `shards`-th record of all batches."""
        records = batch.take(slice((number - self._records) % shards, None, shards))
        ends, first = np.cumsum(records.lengths), 0
        while first < len(records):
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, "right")))
            await (self._open.get(number) or await self._start(number)).add_batch(
                records.window(first, last)
            )
            first = last

    async def _upload(self, path: str, **options: Any) -> Upload:
        return await (self.objects or self._own_objects).upload(
            path, overwrite=self._target.overwrite, **options
        )

    async def _write(self, path: str, data: bytes) -> None:
        async with await self._upload(path, describes=True) as upload:
            await upload.write(data)


@border_methods
class ShardWriter:
    """Writes records into one shard, or into a new one whenever a limit is reached.

    Sharing: any number of tasks of one event loop may write to one writer. Each record is written
    once, in the order of the calls; the records of a batch stay together. A cancelled write is
    written whole or not at all. `close` waits for the writes before it, and refuses those after it
    (ClosedError). Threads share a TFRecordWriter.

    Examples:
        >>> async def write(images):
        ...     async with ShardWriter("s3://b/train-{shard:05d}.tfrecord", max_shard_bytes=200 << 20) as writer:
        ...         for image in images:
        ...             await writer.write(image)
        ...     return [shard.path for shard in writer.shards]

    On local disks a symbolic link is followed. A target that is not a plain file (/dev/stdout, a
    named pipe) is written directly, and keeps the bytes that were written before an error.

    Args:
        pattern: The shards' URL; `{shard}` or `{shard:05d}` in it stands for the shard's number,
            from 0. Other braces stay as they are. `{shards}` is refused: the number of all shards
            is not known before they are written.
        options: Compression; None for none.
        max_shard_bytes: A record that would exceed this begins the next shard; a single longer
            record gets its own shard. In compressed shards the current block counts before
            compression, and bytes inside `compression_threads`, about 2 MiB each, do not count yet.
            None for one shard.
        max_shard_records: The largest number of records in a shard.
        overwrite: Whether a shard replaces an existing object of its name. With several shards, a
            manifest or an index, the replacing objects appear together when all are complete; after
            any failure the old ones are unchanged, and nothing new stays. An existing object that
            this client may not read cannot be put back after a failure, and is not replaced
            (PermissionDeniedError), but with "unsecured". If False, an existing object raises
            AlreadyExistsError: when the shard begins if the object exists by then, otherwise when
            it ends. S3, GCS, local files and memory support False; any other filesystem refuses it
            (UnsupportedOperationError).
        manifest: The URL for a manifest, which a successful close writes: records, bytes and CRC32C
            of each shard, as JSON; see `verify`. None for none. `overwrite` applies to it, too.
        index: The URL for an index, which a successful close writes: a manifest and the length of
            each record, for `RecordSource`. Shards must not be compressed. Until then it takes
            about 2 bytes of memory for each record. None for none.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Attributes:
        warns: Whether a writer that is dropped without `close` is logged; set it before entering
            the writer.

    Raises:
        ValueError: A limit is given and the pattern has no `{shard}`, or one whose format is not
            that of a number; or the pattern has `{shards}`; or `index` is given for compressed
            shards.
    """  # noqa: E501

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        options: TFRecordOptions | str | None = None,
        *,
        max_shard_bytes: int | None = None,
        max_shard_records: int | None = None,
        overwrite: Overwrite = True,
        manifest: str | os.PathLike[str] | None = None,
        index: str | os.PathLike[str] | None = None,
        **store: Unpack[StoreOptions],
    ) -> None:
        filesystem = store.get("filesystem")
        self._target = ShardTarget(
            locate(check_path("pattern", pattern), filesystem),
            TFRecordOptions.of(options),
            check_overwrite(overwrite),
            None if manifest is None else locate(check_path("manifest", manifest), filesystem),
            max_shard_bytes=check_integer("max_shard_bytes", max_shard_bytes, 1, none=True),
            max_shard_records=check_integer("max_shard_records", max_shard_records, 1, none=True),
            index=None if index is None else locate(check_path("index", index), filesystem),
        )
        check_keywords("ShardWriter", store, {"compression_type": "write compression='GZIP'"})
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
        """Makes the writer's objects part of a set that the caller commits; call it before entering
        the writer.
        """
        self._output.objects = objects

    async def __aenter__(self) -> Self:
        if self._closing:
            self._check_open()
        if self._process is not None:
            raise ClosedError(f"{self._target.pattern}: this writer is open already: enter it once")
        await self._stack.enter_async_context(self._storages)
        self._process = os.getpid()
        if self.warns:
            self._dropped = weakref.finalize(
                self, warn_dropped, self._target.pattern, self._process
            )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await (self.close() if error is None else self._abort(error))

    if not TYPE_CHECKING:  # so that type checkers refuse it
        __enter__ = __exit__ = refuse_with(
            "write `async with ShardWriter(...)`; without asyncio, `with TFRecordWriter(...)`"
        )

    async def write(self, record: Buffer) -> None:
        """Writes one record.

        Raises:
            TypeError: The record is not bytes-like; the message says what to write instead.
            StorageError: The store failed, and retrying did not help. The unfinished shard is lost.
            ClosedError: The writer was closed, or not entered (`async with`) in this process.
        """
        self._check_open()
        data = as_record(record)
        shard, waits = self._output.current, self._callers or self._running is not None
        if shard is None or waits or self._output.is_full(shard, len(data) + FRAME_BYTES, 1):
            await self._in_turn(self._output.write, data)
        elif shard.add(data):
            await self._in_turn(shard.send_block)

    async def write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        """Writes many records; Frames and other RecordBatches are written without an object for
        each record.

        Raises:
            TypeError, StorageError, ClosedError: As `write`. The records before one that is not
                bytes-like are written.
        """
        self._check_open()
        await self._in_turn(self._write_batch, records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame (header, payload, CRC) comes in pieces,
        as it is.
        """
        self._check_open()
        await self._in_turn(self._output.write_frame, frame, length)

    async def flush(self) -> None:
        """Sends the records so far to the store. They become visible when their shard is
        complete.
        """
        self._check_open()
        await self._in_turn(self._output.flush)

    async def close(self) -> None:
        """Finishes the last shard and closes the connections. A second call has no effect.

        Without records, it writes an empty shard if the URL has no `{shard}`, otherwise none.

        Raises:
            ClosedError: The writer was never entered, or another process entered it.
        """
        if not self._closing:
            self._check_open()
        self._closing = True
        try:
            await self._in_turn(self._close)
        except BaseException as cause:
            await self._abort(cause)
            raise

    async def abort(self) -> None:
        """Drops the unfinished shard and closes the connections; finished shards stay."""
        await self._abort(None)

    async def _abort(self, cause: BaseException | None) -> None:
        if self._process not in (None, os.getpid()):
            return  # the unfinished shard belongs to another process
        self._closing = self._closed = True
        with anyio.CancelScope(shield=True):
            task, self._running = self._running, None
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
                _ = (
                    task.cancelled() or task.exception()
                )  # marks the exception as retrieved, so that it is not logged
            self._stop_warning()
            try:
                await self._output.abort(cause)
            finally:
                await self._stack.aclose()

    async def _in_turn(
        self, function: Callable[..., Coroutine[Any, Any, None]], *args: Any
    ) -> None:
        """Awaits `function(*args)` when all calls before it are done."""
        self._callers += 1
        try:
            async with self._turn:
                await self._finish_call()  # an earlier call whose caller was cancelled
                if self._closed and function != self._close:
                    self._check_open()  # another task aborted the writer
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
            raise ClosedError(
                f"{self._target.pattern}: this writer was closed: make a new one to write more"
            )
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
        """Writes a list of records, which the caller must not change any more; for writers of one
        shard.
        """
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
            raise ClosedError(
                f"{self._target.pattern}: this writer was closed: make a new one to write more"
            )
        if self._process != os.getpid():
            why = (
                "is not open yet"
                if self._process is None
                else "belongs to the process that forked this one"
            )
            raise ClosedError(
                f"{self._target.pattern}: this writer {why}: write within its own `async with` "
                "block"
            )


def warn_dropped(pattern: str, maker: int) -> None:
    """Warns when the writer is collected, or the interpreter ends, before `close`."""
    if os.getpid() == maker:
        logger.warning(
            "%s: its ShardWriter was dropped without close(), so the unfinished shard is not kept: "
            "use an `async with` "
            "block, or close it",
            display_name(pattern),
        )
