"""Reads one shard for its users: `open_shard`, and a reader that tasks share.

Rules:
- Several tasks may read one shard: calls take turns, and a separate task drives the cursor
  (`cursor.py`). If its caller is cancelled, the task continues, and the next call gets its result.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from operator import length_hint
from typing import TYPE_CHECKING, Any, Self, Unpack

import anyio

from streamrec.arguments import check_flag, check_integer, check_path, refuse_with
from streamrec.errors import ClosedError
from streamrec.shards.cursor import NO_FRAMES, ShardCursor
from streamrec.shards.long_records import LongRecord
from streamrec.shards.options import Expected, ReadOptions, ShardPlace, ShardRange
from streamrec.storage import (
    BUFFER_BYTES,
    ByteStream,
    Counts,
    ObjectInfo,
    Storage,
    Storages,
    StoreOptions,
    check_keywords,
    locate,
)
from streamrec.tfrecord import (
    MAX_RECORD_BYTES,
    CompressionType,
    Frames,
    Loss,
)
from streamrec.tracebacks import border, shorten_traceback

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ShardReader:
    """The records of one shard, in order. `open_shard` makes it.

    Iterate it (`async for record in shard`) for `bytes`, or `shard.frames()` for Frames. Both take
    from one stream: each record is delivered once, and a new iteration continues where the last one
    stopped.

    Sharing: any number of tasks of one event loop may read from one reader. A cancelled call (a
    timeout) loses nothing: the next call gets its records.
    """

    def __init__(self, cursor: ShardCursor) -> None:
        self._cursor = cursor
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[Frames | None] | None = None
        self._current = NO_FRAMES
        self._records: Iterator[bytes] = iter(())

    @classmethod
    async def open(
        cls,
        storage: Storage,
        path: str,
        options: ReadOptions | None = None,
        *,
        place: ShardPlace | None = None,
        byte_range: ShardRange | None = None,
        stream: ByteStream | None = None,
        expected: Expected | None = None,
    ) -> Self:
        """Opens a shard, as `ShardCursor.open`."""
        cursor = await ShardCursor.open(
            storage,
            path,
            options,
            place=place,
            byte_range=byte_range,
            stream=stream,
            expected=expected,
        )
        return cls(cursor)

    @property
    def path(self) -> str:
        """The shard's URL."""
        return self._cursor.shard.path

    @property
    def info(self) -> ObjectInfo:
        """Size and version of the opened object."""
        return self._cursor.info

    @property
    def compression_type(self) -> CompressionType:
        """The shard's compression."""
        return self._cursor.compression_type

    @property
    def block_bytes(self) -> int:
        """How much is framed at a time."""
        return self._cursor.block_bytes

    @property
    def losses(self) -> list[Loss]:
        """The losses to damage so far, in order; the first thousand of them."""
        return self._cursor.losses.losses

    @property
    def skipped(self) -> int:
        """The number of losses."""
        return self._cursor.losses.count

    @property
    def place(self) -> ShardPlace:
        """The next unread record's place."""
        return self._cursor.place

    @property
    def statistics(self) -> Counts:
        """Counts of this shard's reading so far: requests, bytes, retries, waits."""
        return self._cursor.statistics

    @border
    async def read(self) -> Frames | None:
        """The next block's records, at least one; None at the end of the shard.

        Raises:
            CorruptRecordError, TruncatedShardError: The shard is damaged here.
            StorageError: The network or the store failed, and retrying did not help.
            ClosedError: The reader was closed.
        """
        async with self._turn:
            left = length_hint(self._records)  # the rest of the block that is being iterated
            if left:
                self._records = iter(())
                return self._current[-left:]
            return await self._read_next()

    def take_long_records(self) -> list[LongRecord]:
        """The good records above `long_bytes` since the last call; they precede the last block."""
        return self._cursor.take_long_records()

    def plain_bytes(self, start: int, end: int) -> AsyncIterator[Buffer]:
        """The bytes of the (decompressed) shard from `start` to `end`, read again, in pieces."""
        return self._cursor.plain_bytes(start, end)

    def frames(self) -> AsyncIterator[Frames]:
        """The records as Frames, a block at a time."""
        return _Blocks(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            for record in self._records:
                return record
            try:
                frames = await self._read_in_turn()
            except Exception as error:
                shorten_traceback(error)
                raise
            if frames is None:
                raise StopAsyncIteration

    async def _read_in_turn(self) -> Frames | None:
        """Makes the next block the current one, unless another task has done it meanwhile; None at
        the end.
        """
        async with self._turn:
            if length_hint(self._records):
                return self._current
            frames = await self._read_next()
            if frames is not None:
                self._current = frames
                self._records = iter(list(frames))
            return frames

    async def _read_next(self) -> Frames | None:
        """The next block, which a cancelled call may already be reading."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._cursor.next())
        task = self._reading
        await asyncio.wait([task])  # a cancellation leaves the task as it is
        self._reading = None
        if task.cancelled():
            raise ClosedError(self._cursor.closed_message)
        return task.result()

    async def aclose(self) -> None:
        """Closes the connection; later reads raise ClosedError. A second call has no effect."""
        self._cursor.stop()
        self._records = iter(())
        with anyio.CancelScope(shield=True):
            reading = self._reading
            self._reading = None
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
                # Retrieved, so that asyncio does not log the error of a call that was dropped.
                _ = reading.cancelled() or reading.exception()
            await self._cursor.aclose()


class _Blocks:
    """The blocks of a reader in an `async for`.

    Unlike a generator, it continues after a cancellation.
    """

    def __init__(self, reader: ShardReader) -> None:
        self._reader = reader

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frames:
        frames = await self._reader.read()
        if frames is None:
            raise StopAsyncIteration
        return frames


class OpeningShard(AbstractAsyncContextManager[ShardReader]):
    """The result of `open_shard`: `async with` opens the shard, and gives its reader."""

    def __init__(self, opening: AbstractAsyncContextManager[ShardReader]) -> None:
        self._opening = opening

    @border
    async def __aenter__(self) -> ShardReader:
        return await self._opening.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._opening.__aexit__(*raised)

    if not TYPE_CHECKING:  # so that type checkers refuse it
        __enter__ = __exit__ = __iter__ = __aiter__ = __await__ = refuse_with(
            "write `async with open_shard(...) as shard`; without asyncio, `for record in "
            "TFRecordDataset(...)`"
        )


@border
def open_shard(
    url: str | os.PathLike[str],
    compression_type: str | None = None,
    *,
    start: int | None = None,
    end: int | None = None,
    verify: bool = True,
    on_error: str = "raise",
    max_skipped: int | None = None,
    on_loss: Callable[[Loss], None] | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
    block_bytes: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    **store: Unpack[StoreOptions],
) -> AbstractAsyncContextManager[ShardReader]:
    """Opens one shard, to iterate over its records.

    Write `async with streamrec.open_shard(url) as shard: async for record in shard: ...`.

    With `start` or `end`, it returns exactly the records whose headers begin in [start, end). If
    you cut a shard anywhere and read all byte ranges, you get each record once. The shard must not
    be compressed. (`streamrec.shards.byte_ranges` explains what happens if payloads contain whole
    TFRecord files.)

    Args:
        url: Any fsspec URL, or a local path; with `filesystem`, a path in it.
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        start: First byte to read, at any offset; None or 0 for the beginning.
        end: One past its last byte; None for the end of the shard.
        verify: Check each record's CRC32C.
        on_error: How to handle damage. "raise" (default) raises an error, after the records before
            it. "skip_record" skips a record with a damaged payload and a good length. "resync" does
            the same, and searches for the next good record after a damaged length. "skip_shard"
            ends the shard at its first damage.
        max_skipped: How many losses to tolerate before the next one is an error; None for any
            number.
        on_loss: Called with each Loss, on the event loop's thread: it must not block. Losses are
            also logged (logger "streamrec", as warnings) and kept in `shard.losses`.
        max_record_bytes: A longer record counts as damage; by default without limit. A record takes
            as much memory as it has bytes.
        block_bytes: Bytes that are framed at a time; None for the storage's own size.
        buffer_bytes: Bytes to hold ahead of the reader when several requests fetch a large shard;
            by default 96 MiB. 0 sends one request and fetches nothing ahead, for a service that has
            many shards open.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Raises:
        NotFoundError, PermissionDeniedError, StorageError: The shard cannot be opened.
        MissingExtraError: The package for this kind of URL is not installed.
        ValueError: An argument is out of its range, or a byte range of a compressed shard was asked
            for.
    """
    options = ReadOptions(
        compression_type=compression_type,
        verify=check_flag("verify", verify),
        max_record_bytes=check_integer("max_record_bytes", max_record_bytes, 1),
        block_bytes=check_integer("block_bytes", block_bytes, 1, none=True),
        on_error=on_error,
        max_skipped=max_skipped,
        on_loss=on_loss,
    )
    # start=0 alone makes no range: it may be given for compressed shards, which refuse ranges.
    byte_range = ShardRange(start or 0, end) if start or end is not None else None
    url = locate(check_path("url", url), store.get("filesystem"))
    buffer_bytes = check_integer("buffer_bytes", buffer_bytes, 0)
    # Here, at the call: nothing of `_opened` runs before `async with`.
    check_keywords("open_shard", store)
    return OpeningShard(_opened(url, options, byte_range, buffer_bytes, store))


@asynccontextmanager
async def _opened(
    url: str,
    options: ReadOptions,
    byte_range: ShardRange | None,
    buffer_bytes: int,
    store: StoreOptions,
) -> AsyncIterator[ShardReader]:
    """Opens a shard with connections of its own."""
    async with Storages(**store, buffer_bytes=buffer_bytes, cached=True) as storages:
        reader = await ShardReader.open(await storages.at(url), url, options, byte_range=byte_range)
        try:
            yield reader
        finally:
            await reader.aclose()
