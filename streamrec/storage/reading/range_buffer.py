"""Range buffer: one range of an object, and the bytes of it that have arrived before the stream has come to them.

It lands in blocks that all streams of a run share, a block at a time as there is room for it; where there is none it
waits, and TCP holds the sender back. Once its turn has come it lands no further: what is there is copied out, and the
rest is read straight into the caller's buffer.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from streamrec.kernels.copying import copy_bytes
from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.reading.connections import Connections, StreamShare
from streamrec.storage.reading.slow_connections import ConnectionProgress
from streamrec.storage.reading.stream import ResumingStream

__all__ = ["RangeBuffer"]


class RangeBuffer:
    """One request, and what has arrived of it ahead of its turn.

    Args:
        stream: The request.
        connections: What its stream shares with the others.
        share: Its stream's place there.
        stop: One past its last byte.
        urgent: Whether it is a part of a late range.

    Attributes:
        task: What receives it, or did; None where its turn had come from the beginning.
        error: What ended it; it waits for the bytes before it.
        stop: One past its last byte.
        hungry: Whether it waits for room.
    """

    def __init__(
        self,
        stream: ResumingStream,
        connections: Connections,
        share: StreamShare,
        stop: int,
        urgent: bool = False,
    ) -> None:
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.stop = stop
        self.hungry = False
        self._stream = stream
        self._connections = connections
        self._share = share
        self._urgent = urgent
        self._blocks: deque[ReceivedBytes] = deque()
        self._receiving = False
        self._turn = False
        self._answered = False
        self._progress = ConnectionProgress(connections.slow_connections)
        self._promised = 0
        self._held_up = False
        self._fed = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def reached(self) -> int:
        """The first byte of it that has not arrived."""
        return self._stream.position

    @property
    def left(self) -> int:
        """How many bytes of it are still to come; 0 where it has failed."""
        return 0 if self.error is not None else self.stop - self._stream.position

    def busy(self, lead: int) -> bool:
        """Whether its connection is needed for longer than `lead` bytes take."""
        left = self.left
        return left > lead or (left > 0 and not self._answered)

    @property
    def ready(self) -> bool:
        """Whether something of it can be taken at once."""
        return bool(self._blocks) or self.error is not None

    def affords(self) -> bool:
        """Whether a request more may be made because it is slow; if so, it is paid for."""
        return self._stream.affords()

    @property
    def slow(self) -> bool:
        """Whether it flows at a small part of what others give."""
        return self._progress.lags(slack=BLOCK_BYTES)

    def cut(self, end: int) -> None:
        """It ends there, further on than it has come."""
        self._stream.cut(end)
        self.stop = end
        surplus = max(0, self._promised - self.left)
        self._connections.withdraw(self._share, surplus)
        self._promised -= surplus

    async def readinto(self, buffer: memoryview) -> int:
        """Its next bytes, those that have arrived first; 0 at its end."""
        if not self._blocks and self._receiving:
            self._turn = True
            self._fed.set()
            await self._stopped.wait()
        if self._blocks:
            return self._copy(buffer)
        if self.error is not None:
            raise self.error
        self._progress.begins()
        try:
            count = await self._stream.readinto(buffer)
            self._progress.came(count)
        finally:
            self._progress.ends()
        self._connections.arrived(count)
        return count

    def begin(self, promised: int, then: Callable[[], None]) -> None:
        """Lands it ahead of its turn.

        Args:
            promised: How many bytes of it, at the most.
            then: Called when these have arrived, or its turn has come.
        """
        self._receiving, self._promised = True, promised
        self._connections.asked()
        self.task = asyncio.get_running_loop().create_task(self._land(then), name="streamrec range")

    def feed(self) -> bool:
        """Gives it room for a block; False where there is none."""
        if not self._connections.reserve(self._share, BLOCK_BYTES, self._urgent):
            return False
        fed = min(BLOCK_BYTES, self._promised)
        self._connections.withdraw(self._share, fed)
        self._promised -= fed
        self.hungry = False
        self._fed.set()
        return True

    async def aclose(self) -> None:
        """Frees its connection; its task is over by now."""
        self._progress.ends()
        self._ended()
        self._blocks.clear()
        await self._stream.aclose()

    def _ended(self) -> None:
        """It lands no more ahead of its turn. May be called twice."""
        if self._receiving:
            self._receiving = False
            self._connections.ended()

    def _copy(self, buffer: memoryview) -> int:
        filled = 0
        while self._blocks and filled < len(buffer):
            block, start, stop = self._blocks[0]
            count = min(stop - start, len(buffer) - filled)
            copy_bytes(buffer[filled : filled + count], block[start : start + count])
            filled += count
            if start + count < stop:
                self._blocks[0] = ReceivedBytes(block, start + count, stop)
            else:
                self._blocks.popleft()
                self._free(block)
        return filled

    async def _land(self, then: Callable[[], None]) -> None:
        try:
            await self._fill()
        except Exception as error:
            self.error = error  # whatever it is, it waits for its turn
        self._progress.ends()
        self._ended()
        self._connections.withdraw(self._share, self._promised)
        self._promised = 0
        self._stopped.set()
        then()

    async def _fill(self) -> None:
        """Fills blocks until all is there that was promised, or its turn has come."""
        asked = self._connections.clock()
        await self._stream.open()
        self._answered = True
        began = now = self._connections.clock()
        self._progress.begins()
        self._connections.answered(began - asked)
        arrived, count = 0, -1
        while count and not self._turn and (room := await self._room()):
            block = self._connections.blocks.get()
            filled = 0
            try:
                while filled < room and not self._turn:
                    count = await self._stream.readinto(block[filled:room])
                    if not count:
                        break
                    filled += count
                    now = self._connections.arrived(count)
                    self._progress.came(count)
            finally:
                arrived += filled
                if filled:
                    self._blocks.append(ReceivedBytes(block, 0, filled))
                else:
                    self._free(block)
        if not self._turn and not self._held_up:
            self._connections.flowed(arrived, now - began)

    async def _room(self) -> int:
        """Waits for room for a block; returns how much of it to fill, 0 where its turn has come or all is there."""
        room = min(BLOCK_BYTES, self._promised)
        if not room or self.feed():
            return room
        self.hungry = self._held_up = True
        self._fed.clear()
        self._progress.ends()
        await self._fed.wait()
        self._progress.begins()
        was_fed, self.hungry = not self.hungry, False
        return room if was_fed else 0

    def _free(self, block: memoryview) -> None:
        self._connections.blocks.put(block)
        self._connections.release(self._share, BLOCK_BYTES)


class ReceivedBytes(NamedTuple):
    """Bytes of a block that have arrived and were not taken."""

    block: memoryview
    start: int
    stop: int
