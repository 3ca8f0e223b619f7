"""A compressed shard's plain bytes, as a stream: storage × Inflater. Inflating runs in a worker thread.

Compressed bytes are received in a buffer, or viewed where they lie in a local file: then each block of plain bytes
costs one call of the thread, whatever it holds.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from streamrec import kernels
from streamrec.errors import CorruptRecordError
from streamrec.storage import ByteStream, ResumingStream
from streamrec.storage.resilience.shield import finish
from streamrec.tfrecord import Inflater

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["InflatedStream", "Received", "Viewed"]

FIRST_INPUT_BYTES = 64 << 10
INPUT_BYTES = 1 << 20
"""Compressed bytes that are received at a time: few at first, so that the first record comes with the first bytes, then
as many as keep a thread at work for some milliseconds."""

VIEW_BYTES = 4 << 20
"""Compressed bytes that are viewed at a time: they need no memory of ours, and a block rarely needs two views."""

HERE_BYTES = 64 << 10
"""So few plain bytes are inflated sooner than a thread is asked to."""


class Compressed(Protocol):
    """Where compressed bytes come from."""

    async def next(self) -> Buffer:
        """The next ones, good until the next call; none at the end."""

    async def confirm(self) -> None:
        """Raises a StorageError where those that were given last are no longer the shard's."""


class Received:
    """What a stream sends, in a buffer that grows and is used again."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._room = memoryview(kernels.allocate(FIRST_INPUT_BYTES))
        self._filled = 0

    async def next(self) -> memoryview:
        """Reads over what was given before."""
        if self._filled == len(self._room) < INPUT_BYTES:
            self._room = memoryview(kernels.allocate(4 * self._filled))
        self._filled = await self._stream.readinto(self._room)
        return self._room[: self._filled]

    async def confirm(self) -> None:
        """The buffer is ours."""


class Viewed:
    """What lies in a local file, from a place on, without a copy."""

    def __init__(self, stream: ResumingStream, start: int) -> None:
        assert stream.info.size is not None
        self._stream = stream
        self._begin = self._end = start
        self._size = stream.info.size

    async def next(self) -> Buffer:
        """Looks at what follows."""
        self._begin, self._end = self._end, min(self._end + VIEW_BYTES, self._size)
        return await self._stream.view(self._begin, self._end, kept=False) if self._begin < self._end else b""

    async def confirm(self) -> None:
        """Whether the file is as it was."""
        await self._stream.confirm(self._begin)


class InflatedStream:
    """A compressed stream's plain bytes, from where the caller wants them.

    Args:
        compressed: The compressed bytes behind `head`.
        inflater: What makes plain ones of them.
        head: Compressed bytes that were read already.
        skip: How many plain bytes are dropped before the first that is given.
    """

    def __init__(self, compressed: Compressed, inflater: Inflater, head: bytes, skip: int) -> None:
        self._compressed = compressed
        self._inflater = inflater
        self._inflater.feed(head)
        self._skip = skip
        self._ended = False

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for plain bytes at the buffer's start; 0 at the end.

        Raises:
            CorruptRecordError, TruncatedShardError: The compressed stream is damaged here.
            StorageError: The network or the store failed for good.
        """
        while not self._ended:
            if self._inflater.needs_input:
                await self._feed()
                continue
            filled = await self._inflate(buffer)
            if filled > self._skip:
                return self._drop_skipped(buffer, filled)
            self._skip -= filled
        self._inflater.close()
        return 0

    async def _inflate(self, buffer: memoryview) -> int:
        """How many plain bytes came, of compressed ones that were the shard's."""
        try:
            if len(buffer) <= HERE_BYTES:
                filled = self._inflater.read_into(buffer)
            else:
                inflating = asyncio.get_running_loop().run_in_executor(None, self._inflater.read_into, buffer)
                filled = await finish(inflating)
        except CorruptRecordError:  # what is wrong with bytes that changed is no damage
            await self._compressed.confirm()
            raise
        await self._compressed.confirm()
        return filled

    def _drop_skipped(self, buffer: memoryview, filled: int) -> int:
        """What lies before the wanted place is inflated too, and dropped here."""
        if self._skip:
            buffer[: filled - self._skip] = bytes(buffer[self._skip : filled])
            filled, self._skip = filled - self._skip, 0
        return filled

    async def _feed(self) -> None:
        """Gives the inflater the next compressed bytes: it has used up those before."""
        data = await self._compressed.next()
        if data:
            self._inflater.feed(data)
        else:
            self._ended = True
