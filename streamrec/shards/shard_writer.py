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
- Tasks of one loop may share a writer. What awaits goes through `Serial`, one call after the other; a record that only
  joins a block takes no turn, where no call waits for one.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio
import numpy as np

from streamrec.arguments import flag, integer
from streamrec.display import display_name
from streamrec.errors import ClosedError
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.patterns import is_numbered, shard_path
from streamrec.shards.places import portable
from streamrec.shards.serial_calls import Serial
from streamrec.shards.shard_upload import BLOCK_BYTES, FRAME_BYTES, ShardUpload
from streamrec.storage import Replacement, Storages, StoreOptions, Upload, check_keywords, located
from streamrec.tfrecord import (
    Deflater,
    Frames,
    LengthPacker,
    RecordBatch,
    TFRecordOptions,
    as_record,
    check_compression_type,
)

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
            braces are its own.
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
        shards: The finished shards, a ShardInfo each, in order.
        objects: The set that its objects join, and that its caller commits; None for a set of its own. Set before it
            is entered.
        in_doubt: The URL of a shard that a cancellation met while it was completed: it may be there, whole. Else None.
        warns: Whether the log says so if the writer is dropped without close; set before it is entered.

    Raises:
        ValueError: A limit is given and the pattern has no `{shard}`, or one with a format that is none of a number;
            or an index is wanted of compressed shards.
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
        pattern = located(os.fspath(pattern), filesystem)
        self._limit_bytes = integer("max_shard_bytes", max_shard_bytes, 1, none=True)
        self._limit_records = integer("max_shard_records", max_shard_records, 1, none=True)
        self._overwrite = flag("overwrite", overwrite)
        self._manifest = None if manifest is None else located(os.fspath(manifest), filesystem)
        self._pattern = pattern
        self._numbered = is_numbered(pattern)
        shard_path(pattern, 0)
        if not self._numbered and (max_shard_bytes is not None or max_shard_records is not None):
            shown = display_name(pattern)
            raise ValueError(f"{shown!r} names all shards alike: put '{{shard:05d}}' where their number goes")
        self._options = options if isinstance(options, TFRecordOptions) else TFRecordOptions(options)
        self._index = None if index is None else located(os.fspath(index), filesystem)
        if self._index is not None and check_compression_type(self._options.compression_type):
            shown = display_name(self._index)
            raise ValueError(f"{shown}: compressed shards have no index: leave out the compression, or index=")
        self._indexed: list[IndexedShard] = []
        check_keywords("ShardWriter", store)
        self._storages = Storages(**store)
        self._stack = AsyncExitStack()
        self._several = self._numbered or manifest is not None or index is not None
        self._own = Replacement(self._storages, stages=self._overwrite and self._several)
        self.objects: Replacement | None = None
        self._shard: ShardUpload | None = None
        self.warns = True
        self._dropped: weakref.finalize[..., Any] | None = None
        self._serial = Serial(f"{pattern}: this writer was closed; nothing more can be written")
        self._process: int | None = None  # the one that entered it
        self._closing = self._closed = False
        self.shards: list[ShardInfo] = []
        self.in_doubt: str | None = None

    async def __aenter__(self) -> Self:
        if self._closing:
            self._check_open()
        if self._process is not None:
            raise ClosedError(f"{self._pattern}: this writer is open already: enter it once")
        await self._stack.enter_async_context(self._storages)
        self._process = os.getpid()
        if self.warns:
            self._dropped = weakref.finalize(self, dropped, self._pattern, self._process)
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
        shard = self._shard
        if shard is None or not self._serial.idle or self._is_full(shard, len(kept) + FRAME_BYTES, 1):
            await self._serial.run(self._write, kept)
        elif shard.add(kept):
            await self._serial.run(shard.send_block)

    async def write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        """Writes many records; Frames and other RecordBatches go without an object per record.

        Raises:
            TypeError, StorageError, ClosedError: As `write`. The records before one that is not bytes-like are written.
        """
        self._check_open()
        await self._serial.run(self._write_batch, records)

    async def write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Writes one record of `length` bytes whose frame (header, payload, CRC) comes in pieces, as it is."""
        self._check_open()
        await self._serial.run(self._write_frame, frame, length)

    async def flush(self) -> None:
        """Sends what was written so far towards the store. It becomes visible with its whole shard only."""
        self._check_open()
        await self._serial.run(self._flush)

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
            await self._serial.run(self._close)
        except BaseException:
            await self.abort()
            raise

    async def abort(self) -> None:
        """Drops the shard under way and closes the connections; finished shards stay."""
        if self._process not in (None, os.getpid()):
            return  # the shard under way is another process's
        self._closing = self._closed = True
        with anyio.CancelScope(shield=True):
            await self._serial.last(self._abort)

    async def _write(self, record: bytes) -> None:
        shard = await self._shard_for(len(record) + FRAME_BYTES, 1)
        if shard.add(record):
            await shard.send_block()

    async def _write_batch(self, records: Iterable[Buffer] | RecordBatch) -> None:
        if not isinstance(records, RecordBatch):
            for record in records:
                await self._write(as_record(record))
            return
        first = 0
        while first < len(records.spans):
            last = await self._fitting(records.spans, first)
            await (await self._shard_for(0, 0)).add_batch(Frames(records.buffer, records.spans[first:last]))
            first = last

    async def write_block(self, records: list[bytes]) -> None:
        """Writes records that are objects, and given away, into the shard under way; for writers of one shard."""
        self._check_open()
        await self._serial.run(self._write_block, records)

    async def _write_block(self, records: list[bytes]) -> None:
        await (await self._shard_for(0, 0)).add_records(records)

    async def _write_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        await (await self._shard_for(length + FRAME_BYTES, 1)).add_frame(frame, length)

    async def _flush(self) -> None:
        if self._shard is not None:
            await self._shard.flush()

    async def _close(self) -> None:
        if self._closed:
            return
        if self._shard is None and not self._numbered:
            self._shard = await self._open()
        await self._roll()
        await self._write_tables()
        await self._commit()
        self._closed = True
        self._ended()
        await self._stack.aclose()

    async def _abort(self) -> None:
        self._ended()
        shard, self._shard = self._shard, None
        try:
            if shard is not None:
                self.in_doubt = shard.path if shard.in_doubt else None
                await shard.abort()
        finally:
            await self._own.abort()
            await self._stack.aclose()

    async def _commit(self) -> None:
        """Shards that were staged are in place when this returns; what replaces a shard has a version of its own."""
        found = await self._own.commit()
        self.shards = [
            replace(shard, version=found[shard.path].version) if shard.path in found else shard for shard in self.shards
        ]

    def _ended(self) -> None:
        if self._dropped is not None:
            self._dropped.detach()

    def _check_open(self) -> None:
        if self._closing:
            raise ClosedError(f"{self._pattern}: this writer was closed; nothing more can be written")
        if self._process != os.getpid():
            why = "is not open yet" if self._process is None else "belongs to the process that forked this one"
            raise ClosedError(f"{self._pattern}: this writer {why}: write within its own `async with` block")

    async def _fitting(self, spans: np.ndarray[Any, np.dtype[np.int64]], first: int) -> int:
        """Makes room for at least one record; returns how far the records from `first` on go into this shard."""
        sizes = np.cumsum(spans[first:, 1] - spans[first:, 0] + FRAME_BYTES)
        shard = await self._shard_for(int(sizes[0]), 1)
        fitting = int(np.searchsorted(sizes, BLOCK_BYTES, "right"))
        if self._limit_bytes is not None:
            fitting = min(fitting, int(np.searchsorted(sizes, self._limit_bytes - shard.size, "right")))
        if self._limit_records is not None:
            fitting = min(fitting, self._limit_records - shard.records)
        return first + max(fitting, 1)

    async def _shard_for(self, size: int, records: int) -> ShardUpload:
        """The shard that takes `records` more of `size` bytes together: the one under way, or the next."""
        if self._closed:  # aborted meanwhile
            self._check_open()
        shard = self._shard
        if shard is not None and self._is_full(shard, size, records):
            await self._roll()
        if self._shard is None:
            self._shard = await self._open()
        return self._shard

    def _is_full(self, shard: ShardUpload, size: int, records: int) -> bool:
        if not shard.records:
            return False
        over_bytes = self._limit_bytes is not None and shard.size + size > self._limit_bytes
        return over_bytes or (self._limit_records is not None and shard.records + records > self._limit_records)

    async def _open(self) -> ShardUpload:
        path = shard_path(self._pattern, len(self.shards))
        deflater = Deflater(self._options)
        lengths = None if self._index is None else LengthPacker()
        return ShardUpload(path, await self._upload(path), deflater, lengths)

    async def _upload(self, path: str, describes: bool = False) -> Upload:
        return await (self.objects or self._own).upload(path, describes=describes, overwrite=self._overwrite)

    async def _roll(self) -> None:
        if self._shard is not None:
            self.shards.append(await self._shard.finish())
            if self._shard.lengths is not None:
                self._indexed.append(IndexedShard(self.shards[-1], self._shard.lengths.finish()))
            self._shard = None

    async def _write_tables(self) -> None:
        """Writes the manifest and the index, where they are wanted."""
        if self._manifest is not None:
            compression = check_compression_type(self._options.compression_type) or ""
            manifest = Manifest(self._manifest, self._pattern, compression, tuple(self.shards))
            await self._write_object(manifest.path, manifest.to_json())
        if self._index is not None:
            shards = [
                IndexedShard(replace(info, path=portable(self._index, info.path)), lengths)
                for info, lengths in self._indexed
            ]
            await self._write_object(
                self._index, encode_index(self._index, shards, portable(self._index, self._pattern))
            )

    async def _write_object(self, path: str, data: bytes) -> None:
        async with await self._upload(path, describes=True) as upload:
            await upload.write(data)


def dropped(pattern: str, maker: int) -> None:
    """Warns of a writer that is gone, or of the interpreter's end, before `close`."""
    if os.getpid() == maker:
        logger.warning(
            "%s: its ShardWriter was dropped without close(), so the shard under way is not kept: use an `async with` "
            "block, or close it",
            display_name(pattern),
        )
