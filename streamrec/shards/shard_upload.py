"""One shard on its way into a store: records are framed and compressed in blocks, and go there in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import anyio
import numpy as np

from streamrec import kernels
from streamrec.shards.manifest import Marks, ShardInfo
from streamrec.storage import Upload
from streamrec.tfrecord import FOOTER_BYTES, HEADER_BYTES, Deflater, LengthPacker, RecordBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["BLOCK_BYTES", "FRAME_BYTES", "ShardUpload"]

BLOCK_BYTES: Final = 1 << 20
"""Bytes of records that are framed and compressed at a time."""

FRAME_BYTES: Final = HEADER_BYTES + FOOTER_BYTES
"""What a record takes in a shard in addition to its payload."""


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
        self._marks = Marks()

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
        return ShardInfo(self.path, self.records, self._sent, self._upload.sent.crc32c, self._marks.all(), version)

    @property
    def in_doubt(self) -> bool:
        """Whether `finish` was cut off where the shard may have appeared, whole."""
        return self._upload.in_doubt and self._upload.path == self.path  # what is staged is removed

    async def abort(self) -> None:
        """Drops the shard: nothing of it stays in the store."""
        await self._upload.abort()

    def _note(self, lengths: Any) -> None:
        """The records that are sent next have these lengths."""
        if not self._deflater.compresses:
            self._marks.pass_by(self._framed, self._sent)
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
