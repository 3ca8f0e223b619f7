"""ShardCursor: pulls one shard's bytes through its framer; one task drives it.

Storage gives bytes, tfrecord makes Frames of them, this file moves blocks between the two.

Rules:
- Bytes are received into the framer's blocks (`Framer.reserve`), framed in place, and never copied
  again. `block_sizes.py` says how many at a time.
- Records before damage, or before the network failed despite retries, are returned first; the next
  call raises the error.
- Data that `on_error` skips is a Loss (`loss_log.py`). The framer skips damage within a shard. This
  file handles damage that ends a shard.
- Inflating runs in a worker thread; framing and CRC release the GIL and take about 0.1 ms for each
  block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, Self

import anyio

from streamrec import kernels
from streamrec.errors import ClosedError, CorruptRecordError, StreamrecError, TruncatedShardError
from streamrec.shards.block_sizes import BlockSizes
from streamrec.shards.byte_ranges import RangeStream
from streamrec.shards.long_records import LongRecord, LongRecords
from streamrec.shards.loss_log import LossLog
from streamrec.shards.opening import Opened, open_range, open_whole
from streamrec.shards.options import Expected, ReadOptions, ShardPlace, ShardRange, encoding_note
from streamrec.storage import (
    BLOCK_BYTES,
    ByteStream,
    Counts,
    ObjectInfo,
    Storage,
    Tally,
    receiver_of,
)
from streamrec.tfrecord import CompressionType, Framer, Frames, Loss
from streamrec.tfrecord.frames import NO_SPANS

if TYPE_CHECKING:
    from typing_extensions import Buffer

NO_FRAMES = Frames(b"", NO_SPANS)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenShard:
    """What does not change while a shard is read.

    Args:
        storage: Where it is.
        path: Its URL.
        options: How it is read.
        info: Size and version of the opened object.
        compression_type: Its compression.
        end: The end of a byte range.
    """

    storage: Storage
    path: str
    options: ReadOptions
    info: ObjectInfo
    compression_type: CompressionType
    end: int | None

    @property
    def block_bytes(self) -> int:
        """How much is framed at a time."""
        return self.options.block_bytes or BLOCK_BYTES

    def framer(self, place: ShardPlace) -> Framer:
        """A framer for its bytes from a place on."""
        options = self.options
        return Framer(
            verify=options.verify,
            max_record_bytes=options.max_record_bytes,
            path=self.path,
            position=place.offset,
            record=place.record,
            on_error=options.on_error,
            max_skipped=options.max_skipped,
            end=self.end,
            size=None if self.compression_type else self.info.size,
        )

    async def open_at(self, offset: int, tally: Tally) -> Opened:
        """Opens the same version of the shard, from a byte on."""
        kind = self.compression_type
        stream = await self.storage.stream(
            self.path,
            0 if kind else offset,
            None,
            self.info.version,
            tally,
            size=self.info.size,
        )
        options = replace(self.options, compression_type=kind)
        return await open_whole(self.storage, self.path, options, ShardPlace(offset), stream)


class CursorState(Enum):
    """Where a cursor is in its shard."""

    READING = auto()
    """More bytes come."""

    EXHAUSTED = auto()
    """All bytes are there; the framer may have records."""

    ENDED = auto()
    """There are no more records."""


class RecordMemory:
    """Asks whether a record that is longer than a block may be allocated, once for each record.

    Attributes:
        reserve: Called with the record's missing bytes; waits until they may be allocated. None:
            they always may.
    """

    def __init__(self) -> None:
        self.reserve: Callable[[int], Awaitable[None]] | None = None
        self._asked_at = -1

    async def wait(self, framer: Framer) -> None:
        """Waits until the framer's next record, which is longer than a block, may be allocated."""
        if self.reserve is not None and framer.position != self._asked_at:
            self._asked_at = framer.position
            await self.reserve(framer.wants)


class ShardCursor:
    """The records of one shard, in order, a block at a time.

    A cancellation of `next` ends the cursor: only `aclose` may follow.

    Attributes:
        shard: What is read.
        losses: What was lost to damage so far.
        memory: Is asked before a record that is longer than a block is allocated.
    """

    def __init__(self, shard: OpenShard, opened: Opened) -> None:
        self.shard = shard
        self.losses = LossLog(shard.options, opened.source.tally)
        self.memory = RecordMemory()
        self._opened = opened
        self._framer = shard.framer(opened.place)
        self._sizes = BlockSizes(
            block_bytes=shard.block_bytes,
            block_records=shard.options.block_records,
            start=opened.place,
        )
        longest = shard.options.long_bytes
        self._long = None if longest is None else LongRecords(longest)
        self._head = opened.head
        self._state = CursorState.ENDED if opened.head is None else CursorState.READING
        self._error: StreamrecError | None = None

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
        """Opens a shard, or a byte range of it, at a place.

        Waits for the first response, and pins the version.

        A whole shard continues from `stream`, if its bytes are open already. An object that differs
        from `expected` is an error.
        """
        options = options or ReadOptions()
        place = place or ShardPlace()
        if byte_range is None:
            opened = await open_whole(
                storage, path, options, place, stream=stream, expected=expected
            )
        else:
            opened = await open_range(
                storage, path, options, byte_range, place=place, expected=expected
            )
        shard = OpenShard(
            storage=storage,
            path=path,
            options=options,
            info=opened.source.info,
            compression_type=opened.compression_type,
            end=opened.end,
        )
        return cls(shard, opened)

    @property
    def info(self) -> ObjectInfo:
        """Size and version of the opened object."""
        return self.shard.info

    @property
    def compression_type(self) -> CompressionType:
        """The shard's compression."""
        return self.shard.compression_type

    @property
    def place(self) -> ShardPlace:
        """The next unread record's place."""
        return ShardPlace(self._framer.position, self._framer.record, self.info.version)

    @property
    def record(self) -> int:
        """The next unread record's number."""
        return self._framer.record

    @property
    def block_bytes(self) -> int:
        """How much is framed at a time."""
        return self.shard.block_bytes

    @property
    def most_block_bytes(self) -> int:
        """The largest size of a block that does not hold a longer single record."""
        return self._sizes.most_bytes

    @property
    def statistics(self) -> Counts:
        """Counts of this shard's reading so far: requests, bytes, retries, waits."""
        return self._opened.source.tally.counts()

    async def next(self) -> Frames | None:
        """The next block's records, at least one; None at the end of the shard.

        Raises:
            CorruptRecordError, TruncatedShardError: The shard is damaged here.
            StorageError: The network or the store failed, and retrying did not help.
            ClosedError: The cursor was closed.
        """
        while self._error is None:
            if self._state is CursorState.ENDED:
                return None
            frames, failure = await self._step()
            if losses := self._framer.take_losses():
                self.losses.add(losses)
            if failure is not None:
                self._end_with(failure)
            if self._framer.done:
                self._state = CursorState.ENDED
            if len(frames):
                return frames
        raise self._error

    def take_long_records(self) -> list[LongRecord]:
        """The good records above `long_bytes` since the last call; they precede the last block."""
        return [] if self._long is None else self._long.take()

    async def plain_bytes(self, start: int, end: int) -> AsyncIterator[Buffer]:
        """The bytes of the (decompressed) shard from `start` to `end`, read again, in pieces."""
        opened = await self._reopen(start)
        try:
            while start < end:
                block = memoryview(kernels.allocate(min(self.block_bytes, end - start)))
                count = await opened.source.readinto(block)
                if not count:
                    reason = "the shard became shorter while it was read"
                    raise TruncatedShardError(reason, self.shard.path, start)
                yield block[:count]
                start += count
        finally:
            with anyio.CancelScope(shield=True):
                await opened.source.aclose()

    @property
    def closed_message(self) -> str:
        """What a call says after the cursor was closed."""
        return f"{self.shard.path}: this shard was closed; open it again to read it"

    def stop(self) -> None:
        """Reads no more: later calls raise ClosedError, or the error that ended the shard."""
        self._error = self._error or ClosedError(self.closed_message)

    async def aclose(self) -> None:
        """Closes the connection, and stops. A second call has no effect."""
        self.stop()
        await self._opened.source.aclose()

    async def _step(self) -> tuple[Frames, StreamrecError | None]:
        """Takes the next bytes.

        Returns their records, and the error that ended the bytes or the records.
        """
        try:
            if self._head is not None:
                head = self._head
                self._head = None
                return self._framer.feed(head), None
            if self._state is CursorState.EXHAUSTED:
                return self._close_framer(), None
            if self._long is not None and self._long.is_next(self._framer):
                await self._pass_long_record(self._long)
                return NO_FRAMES, None
            return await self._read_block()
        except StreamrecError as error:
            return NO_FRAMES, error

    def _close_framer(self) -> Frames:
        """The records of the last bytes; damage may have to be passed more than once."""
        frames = self._framer.close()
        if not len(frames):
            self._state = CursorState.ENDED
        return frames

    async def _pass_long_record(self, long: LongRecords) -> None:
        """Checks a record without keeping it; one that is damaged is read again, into memory."""
        offset = self._framer.position
        verify = self.shard.options.verify
        if await long.check(self._framer, self._opened, self.block_bytes, verify):
            return
        await self._opened.source.aclose()
        self._opened = await self._reopen(offset)
        self._sizes.restart(self._opened.place)

    async def _reopen(self, offset: int) -> Opened:
        """Opens the shard again at an offset; its requests count in the same tally."""
        return await self.shard.open_at(offset, self._opened.source.tally)

    async def _read_block(self) -> tuple[Frames, StreamrecError | None]:
        """Fills a block, or less at the end, and frames it.

        Returns its records, and the error that ended the bytes.
        """
        framer = self._framer
        if framer.wants > self.shard.block_bytes:
            await self.memory.wait(framer)
        room = framer.reserve(self._next_size())
        receive = receiver_of(self._opened.source)  # the framer writes to no block twice
        filled = 0
        failure = None
        try:
            while filled < len(room) and (size := await receive(room[filled:])):
                filled += size
        except StreamrecError as error:
            failure = error  # the records before it come first
        group = self.shard.options.block_records
        if filled < len(room):
            self._state = CursorState.EXHAUSTED
            group = 1  # no more records come, which would complete a group
        return framer.commit(filled, group), failure

    def _next_size(self) -> int:
        """How many bytes to receive next."""
        framer = self._framer
        size = self._sizes.next(
            self.place,
            held=framer.held,
            wants=framer.wants,
            # The framer has compared the record's length with the shard's.
            is_there=self.info.size is not None and not self.compression_type,
        )
        source = self._opened.source
        if isinstance(source, RangeStream):
            return source.room(size, framer.wants - framer.held)
        return size

    def _end_with(self, error: StreamrecError) -> None:
        """Ends the shard, with this error, or with the loss of its rest."""
        if not isinstance(error, CorruptRecordError | TruncatedShardError):
            self._error = error
            return
        error.reason += encoding_note(self.info)
        if self.losses.covers_rest(is_compressed=self.compression_type != ""):
            self.losses.add([self._rest(error.reason)])
            self._state = CursorState.ENDED
        else:
            self._error = error

    def _rest(self, reason: str) -> Loss:
        """The loss of all bytes from the next record on."""
        place = self.place
        nbytes = None
        ends = [end for end in (self.info.size, self.shard.end) if end is not None]
        if ends and not self.compression_type:
            nbytes = min(ends) - place.offset
        return Loss(self.shard.path, place.offset, nbytes, reason, place.record)
