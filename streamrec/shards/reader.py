"""Reads one shard: storage gives bytes, tfrecord makes Frames of them, this file moves blocks
between the two.

Rules:
- Bytes are received into the framer's blocks (`Framer.reserve`), framed in place, and never copied
  again.
- Blocks grow from 64 KiB to their full size, so that the first record comes with the first bytes. A
  record that is longer than a block gets its memory at once if the shard is known to be that long;
  else step by step, as its bytes arrive: a length alone allocates nothing.
- Records before damage, or before the network failed despite retries, are returned first; the next
  read raises the error.
- Data that `on_error` skips is a Loss: kept, logged and given to `on_loss`. The framer skips damage
  within a shard. This file handles damage that ends a shard: "skip_shard", and with "resync" a
  broken compressed stream, after which no record can be found.
- Several tasks may read one shard: calls take turns, and a separate task reads each block. If its
  caller is cancelled, the task continues, and the next call gets its result.
- Inflating runs in a worker thread; framing and CRC release the GIL and take about 0.1 ms for each
  block.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

import anyio

from streamrec import kernels
from streamrec.arguments import check_integer, refuse_with
from streamrec.display import display_name
from streamrec.errors import ClosedError, CorruptRecordError, StreamrecError, TruncatedShardError
from streamrec.shards.byte_ranges import RangeStream
from streamrec.shards.opening import Opened, open_range, open_whole
from streamrec.shards.options import Expected, ReadOptions, ShardPlace, ShardRange, encoding_note
from streamrec.storage import (
    BLOCK_BYTES,
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
    FOOTER_BYTES,
    HEADER_BYTES,
    MAX_RECORD_BYTES,
    CompressionType,
    Framer,
    Frames,
    Loss,
)
from streamrec.tfrecord.frames import NO_SPANS, mask_crc32c

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOG = logging.getLogger("streamrec")

KEPT = 1000
"""Losses of a shard that are kept, so that a shard with damage everywhere does not fill the
memory."""

LOGGED = 10
"""Losses that are logged one by one; then one line says that there are more."""

GROUP_BLOCKS = 2
"""A block may be up to this many times `block_bytes` long, if it then holds one whole group of
records."""

NO_FRAMES = Frames(b"", NO_SPANS)


class LongRecord(NamedTuple):
    """A good record that was checked and not returned: the offset of its header, and the length of
    its payload.
    """

    offset: int
    length: int

    @property
    def nbytes(self) -> int:
        return HEADER_BYTES + self.length + FOOTER_BYTES


class ShardReader:
    """The records of one shard, in order. `open_shard` makes it.

    Iterate it (`async for record in shard`) for `bytes`, or `shard.frames()` for Frames. Both take
    from one stream: each record is delivered once, and a new iteration continues where the last one
    stopped.

    Sharing: any number of tasks of one event loop may read from one reader. A cancelled call (a
    timeout) loses nothing: the next call gets its records.

    Attributes:
        path: The shard's URL.
        info: Size and version of the opened object.
        compression_type: The shard's compression.
        block_bytes: How much is framed at a time.
        most_block_bytes: The largest size of a block that does not hold a longer single record.
        losses: The losses to damage so far, in order; the first thousand of them.
        skipped: The number of losses.
        reserve: Called before a record that is longer than a block, with its missing bytes; waits
            until they may be allocated. None: they always may.
    """

    path: str
    info: ObjectInfo
    compression_type: CompressionType

    def __init__(
        self, storage: Storage, path: str, options: ReadOptions, opened: Opened, block_bytes: int
    ) -> None:
        self.path = path
        self._storage = storage
        self.info = opened.source.info
        self.compression_type = opened.compression_type
        self.block_bytes = block_bytes
        self.most_block_bytes = block_bytes * (1 if options.block_records == 1 else GROUP_BLOCKS)
        self._options = options
        self._start = opened.place
        self._end = opened.end
        self._source = opened.source
        self._room_bytes = min(64 << 10, block_bytes)
        self.losses: list[Loss] = []
        self.skipped = 0
        self._error: StreamrecError | None = None
        self._exhausted = False
        self._ended = opened.head is None
        self._framer = Framer(
            verify=options.verify,
            max_record_bytes=options.max_record_bytes,
            path=path,
            position=opened.place.offset,
            record=opened.place.record,
            on_error=options.on_error,
            max_skipped=options.max_skipped,
            end=opened.end,
            size=None if opened.compression_type else self.info.size,
        )
        self._long_records: list[LongRecord] = []
        self._held_at = -1  # where a long record begins that is damaged
        self._ahead: bytes | bytearray | None = opened.head
        self._closed = f"{path}: this shard was closed; open it again to read it"
        self._turn = asyncio.Lock()
        self._reading: asyncio.Task[Frames | None] | None = None
        self._current = NO_FRAMES
        self._records: Iterator[bytes] = iter(())
        self.reserve: Callable[[int], Awaitable[None]] | None = None
        self._long_at = -1

    @classmethod
    async def open(
        cls,
        storage: Storage,
        path: str,
        options: ReadOptions | None = None,
        place: ShardPlace | None = None,
        byte_range: ShardRange | None = None,
        stream: ByteStream | None = None,
        expected: Expected | None = None,
    ) -> Self:
        """Opens a shard, or a byte range of it, at a place: waits for the first response, and pins
        the version.

        A whole shard continues from `stream`, if its bytes are open already. An object that differs
        from `expected` is an error.
        """
        options, place = options or ReadOptions(), place or ShardPlace()
        if byte_range is None:
            opened = await open_whole(storage, path, options, place, stream, expected)
        else:
            opened = await open_range(storage, path, options, byte_range, place, expected)
        return cls(storage, path, options, opened, options.block_bytes or BLOCK_BYTES)

    @property
    def place(self) -> ShardPlace:
        """The next unread record's place."""
        return ShardPlace(self._framer.position, self._framer.record, self.info.version)

    @property
    def statistics(self) -> Counts:
        """Counts of this shard's reading so far: requests, bytes, retries, waits."""
        return self._source.tally.counts()

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
        records, self._long_records = self._long_records, []
        return records

    async def plain_bytes(self, start: int, end: int) -> AsyncIterator[Buffer]:
        """The bytes of the (decompressed) shard from `start` to `end`, read again, in pieces."""
        opened = await self._open_at(start)
        try:
            while start < end:
                block = memoryview(kernels.allocate(min(self.block_bytes, end - start)))
                count = await opened.source.readinto(block)
                if not count:
                    raise TruncatedShardError(
                        "the shard became shorter while it was read", self.path, start
                    )
                yield block[:count]
                start += count
        finally:
            with anyio.CancelScope(shield=True):
                await opened.source.aclose()

    async def _open_at(self, offset: int) -> Opened:
        """Opens the same version of the shard, from a byte on."""
        kind, info, tally = self.compression_type, self.info, self._source.tally
        stream = await self._storage.stream(
            self.path, 0 if kind else offset, None, info.version, tally, size=info.size
        )
        options = replace(self._options, compression_type=kind)
        return await open_whole(self._storage, self.path, options, ShardPlace(offset), stream)

    async def _pass_long_record(self) -> None:
        """Checks a record while its bytes arrive, and drops them. The framer reads a damaged one
        again.
        """
        framer, offset, length = self._framer, self._framer.position, self._framer.length
        room, crc, footer = memoryview(kernels.allocate(self.block_bytes)), 0, b""
        data, left = memoryview(framer.take_held())[HEADER_BYTES:], length + FOOTER_BYTES
        while True:
            payload = data[: max(0, left - FOOTER_BYTES)]
            crc = kernels.crc32c(payload, crc) if self._options.verify else crc
            footer += data[len(payload) :]
            left -= len(data)
            if not left or not (count := await self._source.readinto(room[:left])):
                break
            data = room[:count]
        if not left and (
            footer == mask_crc32c(crc).to_bytes(4, "little") or not self._options.verify
        ):
            self._long_records.append(LongRecord(offset, length))
            framer.skip(self._long_records[-1].nbytes)
            return
        self._held_at = offset
        await self._source.aclose()
        opened = await self._open_at(offset)
        self._start, self._source = opened.place, opened.source

    def frames(self) -> AsyncIterator[Frames]:
        """The records as Frames, a block at a time."""
        return _Blocks(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        while True:
            for record in self._records:
                return record
            async with self._turn:
                if not length_hint(self._records):  # no other task has read a block meanwhile
                    frames = await self._read_next()
                    if frames is None:
                        raise StopAsyncIteration
                    self._current, self._records = frames, iter(list(frames))

    async def _read_next(self) -> Frames | None:
        """The next block, which a cancelled call may already be reading."""
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self.read_alone())
        task = self._reading
        await asyncio.wait([task])  # a cancellation leaves the task as it is
        self._reading = None
        if task.cancelled():
            raise ClosedError(self._closed)
        return task.result()

    async def read_alone(self) -> Frames | None:
        """As `read`, for a single task that does not iterate over records.

        A cancellation ends the reader: only `aclose` may follow.
        """
        longest = self._options.long_bytes
        while self._error is None:
            if self._ended:
                return None
            frames, failure = NO_FRAMES, None
            try:
                if self._ahead is not None:
                    head, self._ahead = self._ahead, None
                    frames = self._framer.feed(head)
                elif self._exhausted:
                    frames = self._framer.close()
                    self._ended = not len(frames)
                elif (
                    longest is not None
                    and self._framer.length > longest
                    and self._framer.position != self._held_at
                ):
                    await self._pass_long_record()
                else:
                    frames, failure = await self._read_block()
            except StreamrecError as error:
                failure = error
            if losses := self._framer.take_losses():
                self._lose(losses)
            if failure is not None:
                self._fail(failure)
            self._ended = self._ended or self._framer.done
            if len(frames):
                return frames
        raise self._error

    async def aclose(self) -> None:
        """Closes the connection; later reads raise ClosedError. A second call has no effect."""
        self._error = self._error or ClosedError(self._closed)
        self._records = iter(())
        with anyio.CancelScope(shield=True):
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.cancel()
                await asyncio.wait([reading])
                _ = (
                    reading.cancelled() or reading.exception()
                )  # marks it as retrieved, so that it is not logged
            await self._source.aclose()

    async def _read_block(self) -> tuple[Frames, StreamrecError | None]:
        """Fills a block, or less at the end, and frames it; returns its records, and the error that
        ended the bytes.
        """
        wanted = self._framer.wants
        if (
            self.reserve is not None
            and wanted > self.block_bytes
            and self._framer.position != self._long_at
        ):
            self._long_at = self._framer.position
            await self.reserve(wanted)
        room = self._framer.reserve(self._room())
        filled, failure = 0, None
        try:
            while filled < len(room) and (size := await self._source.readinto(room[filled:])):
                filled += size
        except StreamrecError as error:
            failure = error
        self._exhausted = filled < len(room)
        return self._framer.commit(
            filled, 1 if self._exhausted else self._options.block_records
        ), failure

    def _fail(self, error: StreamrecError) -> None:
        """Ends the shard, with this error, or with the loss of its rest."""
        if isinstance(error, CorruptRecordError | TruncatedShardError):
            error.reason += encoding_note(self.info)
        limit = self._options.max_skipped
        rest_is_lost = self._options.on_error == "skip_shard" or (
            self._options.on_error == "resync" and self.compression_type != ""
        )
        too_many = limit is not None and self.skipped >= limit
        if (
            not isinstance(error, CorruptRecordError | TruncatedShardError)
            or not rest_is_lost
            or too_many
        ):
            self._error = error
            return
        place, nbytes = self.place, None
        if not self.compression_type:
            ends = [end for end in (self.info.size, self._end) if end is not None]
            nbytes = min(ends) - place.offset if ends else None
        self._lose([Loss(self.path, place.offset, nbytes, error.reason, place.record)])
        self._ended = True

    def _lose(self, losses: list[Loss]) -> None:
        for loss in losses:
            self.skipped += 1
            self._source.tally.count("losses")
            self._source.tally.count("lost_bytes", loss.nbytes or 0)
            if self.skipped <= KEPT:
                self.losses.append(loss)
            if self.skipped <= LOGGED:
                LOG.warning("%s", loss, extra={"loss": loss})
            elif self.skipped == LOGGED + 1:
                where = display_name(loss.path or "")
                text = "%s: more than %d losses; further ones are counted and not logged"
                LOG.warning(text, where, LOGGED, extra={"loss": loss})
            if self._options.on_loss is not None:
                self._options.on_loss(loss)

    def _room(self) -> int:
        """The bytes to receive next: a block, or the rest of a longer record, in growing steps.

        Blocks grow, and end after groups of records.
        """
        block = self._room_bytes
        self._room_bytes = min(self._room_bytes * 4, self.block_bytes)
        records = self._framer.record - self._start.record
        if self._options.block_records > 1 and records:
            block = self._end_after_group(block, records)
        missing = self._framer.wants - self._framer.held
        is_there = (
            self.info.size is not None and not self.compression_type
        )  # the framer compared its length with that
        step = 1 << 30 if is_there else 16 << 20
        size = max(block, min(missing, max(self._framer.held, step)))
        return self._source.room(size, missing) if isinstance(self._source, RangeStream) else size

    def _end_after_group(self, block: int, records: int) -> int:
        """The bytes to about the end of a group of `block_records`, if all are as long as the
        `records` so far.

        That is up to a quarter more or less than a block, or one group of at most `GROUP_BLOCKS`
        blocks.
        """
        group = (
            (self._framer.position - self._start.offset) * self._options.block_records // records
        )
        groups = (block + block // 4) // group or int(group <= GROUP_BLOCKS * block)
        room = groups * group + group // 32 - self._framer.held  # a little more: lengths differ
        return (
            room if groups and room >= block // 4 else block
        )  # what is held may be longer than records were so far


class _Blocks:
    """The blocks of a reader in an `async for`. Unlike a generator, it continues after a
    cancellation.
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

    async def __aenter__(self) -> ShardReader:
        return await self._opening.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._opening.__aexit__(*raised)

    if not TYPE_CHECKING:  # so that type checkers refuse it
        __enter__ = __exit__ = __iter__ = __aiter__ = __await__ = refuse_with(
            "write `async with open_shard(...) as shard`; without asyncio, `for record in "
            "TFRecordDataset(...)`"
        )


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
    """Opens one shard:
    `async with streamrec.open_shard(url) as shard: async for record in shard: ...`.

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
        compression_type, verify, max_record_bytes, block_bytes, on_error, max_skipped, on_loss
    )
    byte_range = ShardRange(start or 0, end) if start or end is not None else None
    url = locate(os.fspath(url), store.get("filesystem"))
    buffer_bytes = check_integer("buffer_bytes", buffer_bytes, 0)
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
    async with Storages(**store, buffer_bytes=buffer_bytes) as storages:
        reader = await ShardReader.open(await storages.at(url), url, options, byte_range=byte_range)
        try:
            yield reader
        finally:
            await reader.aclose()
