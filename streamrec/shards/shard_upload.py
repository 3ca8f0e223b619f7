"""The core of all writers of shards: one shard under way, and the objects that one writer makes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

from streamrec import kernels
from streamrec.display import display_name, display_text
from streamrec.errors import StreamrecError
from streamrec.shards.index import IndexedShard, encode_index
from streamrec.shards.manifest import FRAME_BYTES, Manifest, ShardInfo, add_mark
from streamrec.shards.patterns import fill_total, is_numbered, shard_path
from streamrec.shards.places import portable
from streamrec.storage import Replacement, Storages, Upload
from streamrec.storage.tasks import for_each, side_by_side
from streamrec.tfrecord import (
    CompressionType,
    Deflater,
    Frames,
    LengthPacker,
    PackedLengths,
    RecordBatch,
    TFRecordOptions,
    check_compression_type,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BLOCK_BYTES", "ShardOutput", "ShardTarget", "ShardUpload"]

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
            await side_by_side(*(shard.abort for shard in left))
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
        own = batch.picked(slice((number - self._records) % shards, None, shards))
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
