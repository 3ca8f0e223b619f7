"""One shard, read: storage gives bytes, tfrecord makes Frames of them, this file moves blocks between the two.

Rules:
- Bytes land in blocks of our own (`Framer.reserve`), are framed where they landed, and never copied again.
- Blocks grow from 64 KiB to their full size, so that the first record comes with the first bytes. A record that
  is longer than a block gets room step by step, as its bytes arrive: a length alone allocates nothing.
- Records that came before damage, or before the network failed for good, are returned first; the error comes
  from the next read.
- Inflating runs in a worker thread; framing and CRC release the GIL and take about 0.1 ms a block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self

import anyio
from fsspec import AbstractFileSystem

from streamrec.errors import ClosedError, StreamrecError
from streamrec.storage import ByteStream, Counts, ObjectInfo, RetryPolicy, Storage, Storages
from streamrec.tfrecord import (
    DETECT_BYTES,
    MAX_RECORD_BYTES,
    CompressionType,
    Framer,
    Frames,
    Inflater,
    check_compression_type,
    detect_compression,
)

__all__ = ["ReadOptions", "ShardPlace", "ShardReader", "open_shard"]

FIRST_BLOCK_BYTES = 64 << 10
GROWTH_BYTES = 16 << 20
INFLATE_INPUT_BYTES = 256 << 10


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How shards are read.

    Args:
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C; the lengths' are always checked.
        max_record_bytes: A longer record is taken for corruption.
        block_bytes: How much of a shard is framed at a time, and the unit of its buffers; None for what its
            storage does best.
    """

    compression_type: str | None = None
    verify: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    block_bytes: int | None = None

    def __post_init__(self) -> None:
        check_compression_type(self.compression_type)
        if self.block_bytes is not None and self.block_bytes < 1:
            raise ValueError(f"block_bytes={self.block_bytes} must be at least 1")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A record's place in a shard: reading that starts here returns this record first.

    Args:
        offset: Of the record's header in the (decompressed) shard, in bytes.
        record: Its index, counted from 0.
        version: The object's version that the place was taken from; None for whichever is there.
    """

    offset: int = 0
    record: int = 0
    version: str | None = None


class _Bytes(Protocol):
    async def readinto(self, buffer: memoryview) -> int: ...


class _InflatedStream:
    """A compressed stream's plain bytes, from where the caller wants them."""

    def __init__(self, stream: ByteStream, inflater: Inflater, head: bytes, skip: int) -> None:
        self._stream = stream
        self._inflater = inflater
        self._inflater.feed(head)
        self._skip = skip
        self._landing = memoryview(bytearray(INFLATE_INPUT_BYTES))
        self._ended = False

    async def readinto(self, buffer: memoryview) -> int:
        while True:
            filled = await anyio.to_thread.run_sync(self._inflate_into, buffer)
            if filled > self._skip:
                return self._drop_skipped(buffer, filled)
            self._skip -= filled
            if not filled and self._ended:
                self._inflater.close()
                return 0
            if not filled:
                await self._feed()

    def _drop_skipped(self, buffer: memoryview, filled: int) -> int:
        """What lies before the wanted place is inflated too, and dropped here."""
        if self._skip:
            buffer[: filled - self._skip] = bytes(buffer[self._skip : filled])
            filled, self._skip = filled - self._skip, 0
        return filled

    async def _feed(self) -> None:
        size = await self._stream.readinto(self._landing)
        if size:
            self._inflater.feed(bytes(self._landing[:size]))
        else:
            self._ended = True

    def _inflate_into(self, buffer: memoryview) -> int:
        filled = 0
        while filled < len(buffer):
            data = self._inflater.read(len(buffer) - filled)
            if not data:
                break
            buffer[filled : filled + len(data)] = data
            filled += len(data)
        return filled


class ShardReader:
    """The records of one shard, in order. Made by `open_shard`, or over a Storage that is open already.

    Iterate it (`async for record in shard`) for `bytes`, or `shard.frames()` for Frames; one of the two, once.

    Attributes:
        path: The shard's URL.
        info: Size and version, as the store told them when the shard was opened.
        compression_type: How the shard turned out to be compressed.
        block_bytes: How much is framed at a time.
    """

    path: str
    info: ObjectInfo
    compression_type: CompressionType

    def __init__(
        self, path: str, options: ReadOptions, place: ShardPlace, stream: ByteStream, block_bytes: int
    ) -> None:
        self.path = path
        self.info = stream.info
        self._options = options
        self._place = place
        self._stream = stream
        self.block_bytes = block_bytes
        self._room_bytes = min(FIRST_BLOCK_BYTES, block_bytes)
        self._error: StreamrecError | None = None
        self._ended = False
        self._framer = Framer(
            verify=options.verify,
            max_record_bytes=options.max_record_bytes,
            path=path,
            position=place.offset,
            record=place.record,
        )

    @classmethod
    async def open(
        cls, storage: Storage, path: str, options: ReadOptions | None = None, place: ShardPlace | None = None
    ) -> Self:
        """Opens a shard at a place: its first response has arrived, its version is pinned."""
        options, place = options or ReadOptions(), place or ShardPlace()
        plain = options.compression_type == ""
        start = place.offset if plain else 0
        stream = await storage.stream(path, start, None, place.version)
        try:
            reader = cls(path, options, place, stream, options.block_bytes or storage.block_bytes)
            await reader._begin(plain)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await stream.aclose()
            raise
        return reader

    @property
    def place(self) -> ShardPlace:
        """The next unread record's place."""
        return ShardPlace(self._framer.position, self._framer.record, self.info.version)

    @property
    def statistics(self) -> Counts:
        """What happened so far while this shard was read: requests, bytes, retries, waits."""
        return self._stream.tally.counts()

    async def read(self) -> Frames | None:
        """The next block's records, at least one; None at the end of the shard.

        Raises:
            CorruptRecordError, TruncatedShardError: The shard is damaged here.
            StorageError: The network or the store failed, and retrying did not help.
            ClosedError: The reader was closed.
        """
        while True:
            if self._error is not None:
                raise self._error
            if self._ended:
                return None
            frames = await self._read_block()
            if len(frames):
                return frames

    async def frames(self) -> AsyncIterator[Frames]:
        """The records as Frames, a block at a time."""
        while (frames := await self.read()) is not None:
            yield frames

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (frames := await self.read()) is not None:
            for record in frames:
                yield record

    async def aclose(self) -> None:
        """Closes the connection; reading afterwards raises ClosedError. Closing twice is fine."""
        self._error = self._error or ClosedError(f"{self.path}: this shard was closed; open it again to read it")
        await self._stream.aclose()

    async def _begin(self, plain: bool) -> None:
        """Looks at the first bytes where the compression is not known, and sets the stream up."""
        self._bytes: _Bytes = self._stream
        self.compression_type = check_compression_type(self._options.compression_type) or ""
        if plain:
            return
        head = b""
        if self._options.compression_type is None:
            head = await self._head()
            self.compression_type = detect_compression(head)
        if self.compression_type:
            inflater = Inflater(self.compression_type, self.path)
            self._bytes = _InflatedStream(self._stream, inflater, head, self._place.offset)
        elif self._place.offset:
            raise ValueError(f"{self.path}: a place within a shard needs its compression_type, '' for none")
        else:
            self._framer.feed(head)

    async def _head(self) -> bytes:
        landing = bytearray(DETECT_BYTES)
        filled = 0
        while filled < DETECT_BYTES:
            size = await self._stream.readinto(memoryview(landing)[filled:])
            if not size:
                break
            filled += size
        return bytes(landing[:filled])

    async def _read_block(self) -> Frames:
        """Fills one block, or as much of it as there is, and frames it; an error waits in `_error`."""
        try:
            room = self._framer.reserve(self._room())
        except StreamrecError as error:
            self._error = error
            raise
        filled = await self._fill(room)
        frames = self._framer.commit(filled)
        if filled < len(room) and self._error is None:
            self._finish()
        return frames

    async def _fill(self, room: memoryview) -> int:
        filled = 0
        try:
            while filled < len(room):
                size = await self._bytes.readinto(room[filled:])
                if not size:
                    break
                filled += size
        except StreamrecError as error:
            self._error = error
        return filled

    def _finish(self) -> None:
        """The stream ended: well, or within a record, which is an error that waits for the records before it."""
        try:
            self._framer.close()
            self._ended = True
        except StreamrecError as error:
            self._error = error

    def _room(self) -> int:
        """Bytes to make room for: a block, or what the next record is known to want, in growing steps."""
        block = self._room_bytes
        self._room_bytes = min(block * 4, self.block_bytes)
        missing = self._framer.wants - self._framer.held
        return max(block, min(missing, max(self._framer.held, GROWTH_BYTES)))


@asynccontextmanager
async def open_shard(
    url: str,
    compression_type: str | None = None,
    *,
    verify: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    block_bytes: int | None = None,
) -> AsyncIterator[ShardReader]:
    """Opens one shard: `async with streamrec.open_shard(url) as shard: async for record in shard: ...`.

    Args:
        url: Any fsspec URL, or a local path.
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.
        max_record_bytes: A longer record is taken for corruption; default 1 GiB.
        block_bytes: How much is framed at a time; None for what the storage does best.

    Raises:
        NotFoundError, PermissionDeniedError, StorageError: It cannot be opened.
        MissingExtraError: The package for this kind of URL is not installed.
    """
    options = ReadOptions(compression_type, verify, max_record_bytes, block_bytes)
    async with Storages(storage_options, filesystem=filesystem, retry=retry or RetryPolicy()) as storages:
        reader = await ShardReader.open(await storages.at(url), url, options)
        try:
            yield reader
        finally:
            with anyio.CancelScope(shield=True):
                await reader.aclose()
