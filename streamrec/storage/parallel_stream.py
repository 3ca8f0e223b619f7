"""ParallelStream: reads one object by several requests at a time, in order, with the interface of
one stream.

`RangePlan` chooses the ranges and `Connections` limits how many are in progress; this file only
moves bytes. Each range is a ResumingStream of its own, with its own retries, pinned to the version
of the first answer.

Rules:
- A stream has one request until its consumer has taken many bytes. Until then it is as fast as a
  plain stream: its bytes go directly to the caller's buffer, without a copy.
- Ranges ahead of the read position arrive in blocks that all streams of a run share, and are copied
  once. Without room for a block, a range waits and TCP slows down the sender; earlier ranges get
  room first, and no further range is requested. A range that becomes the next one is read directly
  into the caller's buffer from where it stopped.
- Errors come in order: the permanent failure of a range is raised after all bytes before it. No
  further range is requested meanwhile.
- A range that gets at most a third of the others' bytes is cut short, and the rest is requested
  again: connections to one store differ in speed, and one in fifty that is slow would delay all
  bytes after it.
- `aclose`, an error and a cancellation end all requests; when it returns, no task and no connection
  is left.
- Objects of unknown size or version, and stores without ranges, keep one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from streamrec.errors import ClosedError
from streamrec.kernels import copy_bytes
from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.connections import (
    FIRST_RANGE,
    MIN_SPLIT,
    PROOF_ALONE,
    ByteRange,
    Connections,
    RangePlan,
    StreamShare,
)
from streamrec.storage.stream import ResumingStream, stop_of
from streamrec.storage.tasks import finish


class RangeBuffer:
    """One range: its request, and the blocks that arrived ahead of the read position.

    Attributes:
        urgent: Whether it is the rest of a slow range.
        task: Receives the range ahead of the read position; None if it was the next range from the
            start.
        error: The error that ended it, raised after the bytes before it.
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
        self.stream = stream
        self._connections = connections
        self._share = share
        self._urgent = urgent
        self._blocks: deque[tuple[memoryview, int, int]] = (
            deque()
        )  # a block, and the range of its bytes
        self._receiving = False
        self._is_next = False
        self._answered = False
        self._received = 0
        # seconds awaited, and bytes on each other connection meanwhile; less those at its start
        # while the clock runs
        self._awaited = self._others = 0.0
        self._is_awaited = False
        self._promised = 0
        self._was_blocked = False
        self._has_room = asyncio.Event()
        self._stopped = asyncio.Event()

    def busy(self, lead: int) -> bool:
        """Whether it needs its connection for more than `lead` bytes."""
        left = 0 if self.error is not None else self.stop - self.stream.position
        return left > lead or (left > 0 and not self._answered)

    @property
    def slow(self) -> bool:
        """Whether it received over a block less than a third of the others' bytes, while its bytes
        were awaited.

        No connection is slow in its first tenth of a second.
        """
        if not self._is_awaited:
            return False
        awaited, others = (
            self._awaited + self._connections.clock(),
            self._others + self._connections.each,
        )
        return awaited > 0.1 and others / 3 > self._received + BLOCK_BYTES

    def cut(self, end: int) -> None:
        """Moves its end forward to `end`, beyond the bytes received so far."""
        self.stream.cut(end)
        self.stop = end
        surplus = max(0, self._promised - (end - self.stream.position))
        self._connections.withdraw(self._share, surplus)
        self._promised -= surplus

    async def readinto(self, buffer: memoryview) -> int:
        """Reads its next bytes, buffered ones first; 0 at its end."""
        if not self._blocks and self._receiving:
            self._is_next = True
            self._has_room.set()
            await self._stopped.wait()
        if self._blocks:
            return self._copy(buffer)
        if self.error is not None:
            raise self.error
        self._start_clock()
        try:
            count = await self.stream.readinto(buffer)
            self._received += count
            self._connections.record_bytes(count)
        finally:
            self._stop_clock()
        return count

    def begin(self, promised: int, on_end: Callable[[], None]) -> None:
        """Starts to receive `promised` bytes of it ahead of the read position.

        `on_end` is called when these have arrived, or when it is the next range.
        """
        self._receiving, self._promised = True, promised
        self._connections.ahead += 1
        self.task = asyncio.get_running_loop().create_task(
            self._receive(on_end), name="streamrec range"
        )

    def feed(self) -> bool:
        """Gives it room for a block; False if there is none."""
        if not self._connections.reserve(self._share, BLOCK_BYTES, self._urgent):
            return False
        fed = min(BLOCK_BYTES, self._promised)
        self._connections.withdraw(self._share, fed)
        self._promised -= fed
        self.hungry = False
        self._has_room.set()
        return True

    async def aclose(self) -> None:
        """Frees its connection; its task must have ended."""
        self._stop_clock()
        self._stop_receiving()
        self._blocks.clear()
        await self.stream.aclose()

    def _start_clock(self) -> None:
        """Starts the clock of the time in which its bytes are awaited."""
        if not self._is_awaited:
            self._is_awaited = True
            self._connections.flowing += 1
            self._awaited -= self._connections.clock()
            self._others -= self._connections.each

    def _stop_clock(self) -> None:
        """Stops that clock. May be called twice."""
        if self._is_awaited:
            self._is_awaited = False
            self._connections.flowing -= 1
            self._awaited += self._connections.clock()
            self._others += self._connections.each

    def _stop_receiving(self) -> None:
        """Ends receiving ahead of the read position. May be called twice."""
        if self._receiving:
            self._receiving = False
            self._connections.ahead -= 1

    def _copy(self, buffer: memoryview) -> int:
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
                self._connections.free_block(self._share, block)
        return filled

    async def _receive(self, on_end: Callable[[], None]) -> None:
        try:
            await self._fill_blocks()
        except Exception as error:
            self.error = error  # `readinto` raises it in order
        self._stop_clock()
        self._stop_receiving()
        self._connections.withdraw(self._share, self._promised)
        self._promised = 0
        self._stopped.set()
        on_end()

    async def _fill_blocks(self) -> None:
        """Fills blocks until all promised bytes have arrived, or it is the next range."""
        asked = self._connections.clock()
        await self.stream.open()
        self._answered = True
        began = now = self._connections.clock()
        self._start_clock()
        self._connections.record_latency(began - asked)
        arrived, count = 0, -1
        while count and not self._is_next and (room := await self._wait_for_room()):
            block = self._connections.take_block()
            filled = 0
            try:
                while filled < room and not self._is_next:
                    count = await self.stream.readinto(block[filled:room])
                    if not count:
                        break
                    filled += count
                    self._received += count
                    now = self._connections.record_bytes(count)
            finally:
                arrived += filled
                if filled:
                    self._blocks.append((block, 0, filled))
                else:
                    self._connections.free_block(self._share, block)
        if not self._is_next and not self._was_blocked:
            self._connections.record_rate(arrived, now - began)

    async def _wait_for_room(self) -> int:
        """Waits for room for a block; returns how many bytes to fill, 0 if it is the next range or
        complete.
        """
        room = min(BLOCK_BYTES, self._promised)
        if not room or self.feed():
            return room
        self.hungry = self._was_blocked = True
        self._has_room.clear()
        self._stop_clock()
        await self._has_room.wait()
        self._start_clock()
        was_fed, self.hungry = not self.hungry, False
        return room if was_fed else 0


SLOW_REST: Final = 1 << 20
"""Bytes that a slow connection keeps: about what the kernel holds of it when the other request
starts to receive. A range with fewer bytes left is not cut."""

Request = Callable[[int, int | None, str | None], ResumingStream]
"""Makes an unopened stream from the first byte, one past the last byte, and the version to insist
on."""


async def open_parallel(
    request: Request, connections: Connections, start: int, end: int | None, version: str | None
) -> ResumingStream | ParallelStream:
    """Opens an object; when this returns the first response has arrived.

    The stream adds requests as `connections` allow; a small object, or a store without ranges, has
    a plain one.
    """
    if end is not None and end - start < MIN_SPLIT:
        alone = request(start, end, version)
        await alone.open()
        return alone
    share = connections.join()
    stream = request(start, end, version)
    asked = connections.clock()
    try:
        await stream.open()
    except BaseException:
        connections.leave(share)
        raise
    if not stream.splits:
        connections.leave(share)
        return stream
    connections.record_latency(connections.clock() - asked)
    stop = stop_of(stream.info, end)
    if stop is not None and stop - start < PROOF_ALONE:
        connections.leave(share)
        return stream
    return ParallelStream(request, connections, share, stream, end)


class ParallelStream:
    """A ByteStream over one or several requests; made by `open_parallel`."""

    def __init__(
        self,
        request: Request,
        connections: Connections,
        share: StreamShare,
        first: ResumingStream,
        end: int | None,
    ) -> None:
        self.info = first.info
        self.position = first.position
        self.tally = first.tally
        self._request = request
        self._connections = connections
        self._share = share
        stop = stop_of(first.info, end)
        self._ranges = deque([RangeBuffer(first, connections, share, stop or 0)])
        splits = stop is not None and first.info.version is not None
        self._plan = RangePlan(self.position, stop or 0) if splits else RangePlan(0, 0)
        self._last_cut = (stop or 0) - MIN_SPLIT
        self._closed = False

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes as `ResumingStream.readinto`, but for at most FIRST_RANGE bytes
        at a time.

        While it waits, a request may be cut that many bytes ahead of its position.
        """
        if self._closed:
            raise ClosedError(f"{self.info.path}: the stream is closed; open a new one")
        if not buffer:
            return 0
        self._share.waiting = True
        count = 0
        try:
            while not count:
                if not self._ranges or self.position < self._last_cut or len(self._ranges) > 1:
                    self._ask()
                if not self._ranges:
                    break
                self._relieve_slow()
                count = await self._ranges[0].readinto(buffer[:FIRST_RANGE])
                if not count:
                    await self._ranges.popleft().aclose()
            self._feed()
        except BaseException:
            await self.aclose()
            raise
        self.position += count
        self._share.taken += count
        self._share.waiting, self._share.last = False, self._connections.clock()
        return count

    async def aclose(self) -> None:
        """Ends all requests, even if bytes are left. May be called twice."""
        self._closed = True
        ranges, self._ranges = self._ranges, deque()
        ahead = [part.task for part in ranges if part.task is not None and not part.task.done()]
        for task in ahead:
            task.cancel()
        if ahead:
            await finish(asyncio.wait(ahead))
        for part in ranges:
            await part.aclose()
        self._connections.leave(self._share)

    def _ask(self) -> None:
        """Starts the requests that the plan offers and the limits allow."""
        if any(part.error for part in self._ranges) or not self._feed():
            return
        terms = self._connections.terms(self._share)
        if self._ranges:
            cut = self._plan.cut(self._ranges[-1].stream.position, terms)
            if cut is not None:
                self._ranges[-1].cut(cut)
        while span := self._plan.offer(terms, sum(part.busy(terms.lead) for part in self._ranges)):
            room = min(span.stop - span.start, terms.range_bytes)
            if self._ranges and not self._connections.promise(self._share, room):
                return
            self._plan.next = span.stop
            self._ranges.append(self._begin_range(span, room if self._ranges else 0))

    def _relieve_slow(self) -> None:
        """Cuts slow ranges short, and requests their rest again if it is large enough."""
        for slow in [part for part in self._ranges if part.slow]:
            rest = ByteRange(slow.stream.position + SLOW_REST, slow.stop)
            size = rest.stop - rest.start
            if size < max(self._connections.pace.lead, SLOW_REST):
                continue
            if not self._connections.promise(self._share, size, urgent=True):
                continue
            if not slow.stream.hedge():
                self._connections.withdraw(self._share, size)
                continue
            slow.cut(rest.start)
            self._ranges.insert(
                self._ranges.index(slow) + 1, self._begin_range(rest, size, urgent=True)
            )

    def _begin_range(self, span: ByteRange, room: int, urgent: bool = False) -> RangeBuffer:
        """Adds a request; `room` is 0 if it is the next range and needs no blocks."""
        stream = self._request(span.start, span.stop, self.info.version)
        part = RangeBuffer(stream, self._connections, self._share, span.stop, urgent)
        if room:
            part.begin(room, self._on_arrival)
        return part

    def _feed(self) -> bool:
        """Gives room to the waiting ranges in order; returns whether none waits any more."""
        return all(not part.hungry or part.feed() for part in self._ranges)

    def _on_arrival(self) -> None:
        """Requests further ranges after one has received the promised bytes."""
        if not self._closed:
            self._ask()
            self._relieve_slow()
