"""A compressed shard's plain bytes, as a stream: storage × Inflater. Inflating runs in a worker thread."""

from __future__ import annotations

import asyncio

from streamrec import kernels
from streamrec.storage import ByteStream
from streamrec.storage.tasks import finish
from streamrec.tfrecord import Inflater

__all__ = ["InflatedStream"]

FIRST_INPUT_BYTES = 64 << 10
INPUT_BYTES = 1 << 20
"""Compressed bytes that are received at a time: few at first, so that the first record comes with the first bytes, then
as many as keep a thread at work for some milliseconds."""

HERE_BYTES = 64 << 10
"""So few plain bytes are inflated sooner than a thread is asked to."""


class InflatedStream:
    """A compressed stream's plain bytes, from where the caller wants them.

    Args:
        stream: The compressed bytes after `head`.
        inflater: What makes plain ones of them.
        head: Compressed bytes that were read already.
        skip: How many plain bytes are dropped before the first that is given.
    """

    def __init__(self, stream: ByteStream, inflater: Inflater, head: bytes, skip: int) -> None:
        self._stream = stream
        self._input = memoryview(kernels.allocate(FIRST_INPUT_BYTES))
        self._received = 0
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
        """Makes plain bytes of compressed ones; returns how many."""
        if len(buffer) <= HERE_BYTES:
            return self._inflater.read_into(buffer)
        return await finish(asyncio.get_running_loop().run_in_executor(None, self._inflater.read_into, buffer))

    def _drop_skipped(self, buffer: memoryview, filled: int) -> int:
        """What lies before the wanted place is inflated too, and dropped here."""
        if self._skip:
            buffer[: filled - self._skip] = bytes(buffer[self._skip : filled])
            filled, self._skip = filled - self._skip, 0
        return filled

    async def _feed(self) -> None:
        """Gives the inflater the next compressed bytes: it has used up those before."""
        if self._received == len(self._input) < INPUT_BYTES:
            self._input = memoryview(kernels.allocate(4 * self._received))
        self._received = await self._stream.readinto(self._input)
        if self._received:
            self._inflater.feed(self._input[: self._received])
        else:
            self._ended = True
