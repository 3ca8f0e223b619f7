"""One unfinished shard: framed and compressed in blocks, and sent to the store in parts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio
import numpy as np

from streamrec import kernels
from streamrec.shards.manifest import FRAME_BYTES, ShardInfo, add_mark
from streamrec.shards.shard_target import BLOCK_BYTES
from streamrec.storage import Upload
from streamrec.tfrecord import Deflater, LengthPacker, RecordBatch

if TYPE_CHECKING:
    from typing_extensions import Buffer


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
        """Adds a list of records, which the caller must not change any more."""
        await self.send_block()
        self._block = records
        self.records += len(records)
        await self.send_block()

    async def add_frame(self, frame: AsyncIterator[Buffer], length: int) -> None:
        """Adds a record of `length` bytes whose frame comes in pieces."""
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
            block = self._block
            self._block = []
            self._block_bytes = 0
            self._add_lengths(list(map(len, block)))
            await self._compress(kernels.encode_objects(block))

    async def flush(self) -> None:
        """Sends the current block, and what the compressor holds, to the upload."""
        await self.send_block()
        await self._send(self._deflater.flush())

    async def finish(self) -> ShardInfo:
        """Completes the upload: the shard appears under its name."""
        await self.send_block()
        await self._send(self._deflater.close())
        info = await self._upload.complete()
        # The copy of a staged shard will have another version.
        version = info.version if info.path == self.path else None
        return ShardInfo(
            self.path,
            records=self.records,
            bytes=self._sent,
            crc32c=self._upload.sent.crc32c,
            marks=tuple(self._marks),
            version=version,
        )

    async def abort(self) -> None:
        """Drops the shard."""
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
