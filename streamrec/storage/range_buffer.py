"""RangeBuffer: one of the ranges of a ParallelStream, and its blocks that arrived ahead of the read
position.

Rules:
- A range ahead of the read position receives into blocks, which are copied once. Without room for a
  block it waits, and TCP slows down the sender.
- A range that becomes the next one stops receiving, and is read directly into the caller's buffer
  from where it stopped.
- Its error is raised after all bytes before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from streamrec.kernels import copy_bytes
from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.connections import Connections, StreamShare
from streamrec.storage.stream import ResumingStream

NEVER_SLOW: Final = 0.1
"""Seconds of a connection in which it is never slow: it may not have reached its rate."""


class RangeState(Enum):
    """What a range does."""

    NEXT = auto()
    """It is at the read position, and read directly."""

    RECEIVING = auto()
    """It is ahead of the read position, and fills blocks."""

    WAITING_FOR_ROOM = auto()
    """It is ahead of the read position, and has no room for a block."""

    DONE = auto()
    """All of it that may arrive ahead of the read position has arrived, or it failed."""


AHEAD: Final = (RangeState.RECEIVING, RangeState.WAITING_FOR_ROOM)


class BlockRoom:
    """The room that one range was promised, and gets block by block.

    Attributes:
        promised: Bytes that have no room yet, and may still arrive ahead of the read position.
        was_blocked: Whether the range ever waited for room.
        connections: Those of the run.
        share: That of its stream.
    """

    def __init__(
        self,
        connections: Connections,
        share: StreamShare,
        *,
        promised: int = 0,
        urgent: bool = False,
    ) -> None:
        self.promised = promised
        self.was_blocked = False
        self.connections = connections
        self.share = share
        self._urgent = urgent
        self._changed = asyncio.Event()

    def next_bytes(self) -> int:
        """Returns how many bytes the next block may hold; 0 if nothing is promised any more."""
        return min(BLOCK_BYTES, self.promised)

    def reserve(self) -> bool:
        """Takes room for a block; False if there is none."""
        if not self.connections.reserve_block(self.share, urgent=self._urgent):
            return False
        self._withdraw(self.next_bytes())
        return True

    def keep(self, nbytes: int) -> None:
        """Keeps the promise for `nbytes` only, because the others will not arrive."""
        self._withdraw(max(0, self.promised - nbytes))

    async def wait(self) -> None:
        """Waits until `wake` is called."""
        self.was_blocked = True
        self._changed.clear()
        self.share.blocked += 1
        try:
            await self._changed.wait()
        finally:
            self.share.blocked -= 1

    def wake(self) -> None:
        """Ends the wait: there is room, or the range needs none any more."""
        self._changed.set()

    def take_block(self) -> memoryview:
        """Returns the memory of a block for which room was taken."""
        return self.connections.take_block()

    def free_block(self, block: memoryview) -> None:
        """Frees a block and its room."""
        self.connections.free_block(self.share, block)

    def _withdraw(self, nbytes: int) -> None:
        self.connections.withdraw(self.share, nbytes)
        self.promised -= nbytes


class RangeBlocks:
    """The blocks of a range that wait for the reader, in order."""

    def __init__(self, room: BlockRoom) -> None:
        self._room = room
        self._blocks: deque[tuple[memoryview, int, int]] = deque()  # and the range of its bytes

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def add(self, block: memoryview, filled: int) -> None:
        """Adds a block; one without bytes is freed."""
        if filled:
            self._blocks.append((block, 0, filled))
        else:
            self._room.free_block(block)

    def readinto(self, buffer: memoryview) -> int:
        """Copies bytes into the buffer, and frees the blocks that are read; returns their
        number.
        """
        filled = 0
        while self._blocks and filled < len(buffer):
            block, start, stop = self._blocks[0]
            count = min(stop - start, len(buffer) - filled)
            copy_bytes(buffer[filled : filled + count], block[start : start + count])
            filled += count
            if start + count < stop:
                self._blocks[0] = (block, start + count, stop)
            else:
                self._blocks.popleft()
                self._room.free_block(block)
        return filled

    def clear(self) -> None:
        """Drops all blocks; the stream that ends gives their room back."""
        self._blocks.clear()


class AwaitedClock:
    """Compares one connection with the others, while its bytes are awaited.

    The event loop may be blocked, the consumer may rest, and there may be no room: the other
    connections receive nothing either, or it is not the connection's fault.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._average = connections.average
        self._received = 0
        # seconds awaited, and bytes on an average connection meanwhile; less those at its start
        # while the clock runs
        self._seconds = 0.0
        self._others = 0.0
        self._runs = False

    def start(self) -> None:
        """Starts the clock. May be called twice."""
        if not self._runs:
            self._runs = True
            average = self._average
            average.flowing += 1
            self._seconds -= self._connections.clock()
            self._others -= average.received

    def stop(self) -> None:
        """Stops the clock. May be called twice."""
        if self._runs:
            self._runs = False
            average = self._average
            average.flowing -= 1
            self._seconds += self._connections.clock()
            self._others += average.received

    def record(self, nbytes: int) -> float:
        """Records bytes of this connection; returns the time."""
        self._received += nbytes
        return self._connections.record_bytes(nbytes)

    def is_slow(self, now: float) -> bool:
        """Whether the connection received over a block less than a third of the others' bytes."""
        if not self._runs:
            return False
        seconds = self._seconds + now
        others = self._others + self._average.received
        return seconds > NEVER_SLOW and others / 3 > self._received + BLOCK_BYTES


class RangeBuffer:
    """One range: its request, and the blocks that arrived ahead of the read position.

    Attributes:
        stream: Its request.
        stop: One past its last byte.
        state: What it does.
        task: Receives the range ahead of the read position; None if it was the next range from the
            start.
        error: The error that ended it, raised after the bytes before it.
        is_busy: Whether it needs its connection for more bytes than come while another one waits
            for its response. The stream's share counts such ranges.
    """

    def __init__(
        self, stream: ResumingStream, connections: Connections, room: BlockRoom, stop: int
    ) -> None:
        self.stream = stream
        self.stop = stop
        self.state = RangeState.NEXT
        self.task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        self.is_busy = True
        room.share.busy += 1
        self._room = room
        self._blocks = RangeBlocks(room)
        self._clock = AwaitedClock(connections)
        self._answered = False

    def is_slow(self, now: float) -> bool:
        """Whether its connection is much slower than the others."""
        return self._clock.is_slow(now)

    def cut(self, end: int) -> None:
        """Moves its end forward to `end`, beyond the bytes received so far."""
        self.stream.move_end(end)
        self.stop = end
        self._room.keep(end - self.stream.position)
        self._look_whether_busy()

    async def readinto(self, buffer: memoryview) -> int:
        """Reads its next bytes, buffered ones first; 0 at its end."""
        if not self._blocks and self.task is not None and self.state is not RangeState.DONE:
            self._enter(RangeState.NEXT)
            self._room.wake()
            await asyncio.wait([self.task])
        if self._blocks:
            return self._blocks.readinto(buffer)
        if self.error is not None:
            raise self.error
        self._clock.start()
        try:
            count = await self.stream.readinto(buffer)
            self._clock.record(count)
            self._look_whether_busy()
        finally:
            self._clock.stop()
        return count

    def begin(self, on_end: Callable[[], None]) -> None:
        """Starts to receive the promised bytes ahead of the read position.

        `on_end` is called when these have arrived, or when it is the next range.
        """
        self._enter(RangeState.RECEIVING)
        self.task = asyncio.get_running_loop().create_task(
            self._receive(on_end), name="streamrec range"
        )

    def feed(self) -> bool:
        """Gives it room for a block, for which it waits; False if there is none."""
        if not self._room.reserve():
            return False
        self._enter(RangeState.RECEIVING)
        self._room.wake()
        return True

    async def aclose(self) -> None:
        """Frees its connection; its task must have ended."""
        self._clock.stop()
        self._rest()
        self._enter(RangeState.DONE)
        self._blocks.clear()
        await self.stream.aclose()

    def _enter(self, state: RangeState) -> None:
        """Changes the state, and the count of requests ahead of the read position."""
        self._room.connections.ahead += (state in AHEAD) - (self.state in AHEAD)
        self.state = state

    def _look_whether_busy(self) -> None:
        """Looks whether it still is, after bytes have arrived or its end has moved."""
        if self.is_busy:
            left = self.stop - self.stream.position
            if left <= (self._room.connections.pace.lead if self._answered else 0):
                self._rest()

    def _rest(self) -> None:
        """It is not busy any more. May be called twice."""
        self._room.share.busy -= self.is_busy
        self.is_busy = False

    async def _receive(self, on_end: Callable[[], None]) -> None:
        try:
            await self._fill_blocks()
        except Exception as error:
            self.error = error  # `readinto` raises it in order
            self._rest()
        self._clock.stop()
        self._enter(RangeState.DONE)
        self._room.keep(0)
        on_end()

    async def _fill_blocks(self) -> None:
        """Fills blocks until all promised bytes have arrived, or it is the next range."""
        connections = self._room.connections
        asked = connections.clock()
        await self.stream.open()
        self._answered = True
        began = connections.clock()
        now = began
        self._clock.start()
        connections.record_latency(began - asked)
        arrived = 0
        count = -1
        while count and not self._is_next() and (room := await self._wait_for_room()):
            block = self._room.take_block()
            filled = 0
            try:
                while filled < room and not self._is_next():
                    count = await self.stream.readinto(block[filled:room])
                    if not count:
                        break
                    filled += count
                    now = self._clock.record(count)
                    self._look_whether_busy()
            finally:
                arrived += filled
                self._blocks.add(block, filled)
        # A connection that had to wait for room, or stopped early, does not show its rate.
        if not self._is_next() and not self._room.was_blocked:
            connections.record_rate(arrived, now - began)

    def _is_next(self) -> bool:
        return self.state is RangeState.NEXT

    async def _wait_for_room(self) -> int:
        """Waits for room for a block; returns how many bytes to fill, 0 if it is the next range or
        complete.
        """
        room = self._room.next_bytes()
        if not room or self._room.reserve():
            return room
        self._enter(RangeState.WAITING_FOR_ROOM)
        self._clock.stop()
        await self._room.wait()
        self._clock.start()
        return 0 if self._is_next() else room
