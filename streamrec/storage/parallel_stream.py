"""ParallelStream: reads one object by several requests at a time, in order, with the interface of
one stream.

`RangePlan` chooses the ranges, `Connections` limits how many are in progress, and `RangeBuffer`
receives one; this file only puts them in order. Each range is a ResumingStream of its own, with its
own retries, pinned to the version of the first answer.

Rules:
- A stream has one request until its consumer has taken many bytes. Until then it is as fast as a
  plain stream: its bytes go directly to the caller's buffer, without a copy.
- That request ends where the ranges will begin, if this is known when it is sent
  (`Connections.first_bytes`). One that is cut short later has sent more than was read: what the
  sockets of both ends held, often several megabytes, which users pay for.
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
from streamrec.storage.connections import PROOF_ALONE, Connections, StreamShare
from streamrec.storage.range_buffer import BlockRoom, RangeBuffer, RangeState
from streamrec.storage.ranges import FIRST_RANGE, MIN_SPLIT, ByteRange, RangePlan
from streamrec.storage.stream import ResumingStream, stop_of
from streamrec.storage.tasks import finish

SLOW_REST: Final = 1 << 20
"""Bytes that a slow connection keeps: about what the kernel holds of it when the other request
starts to receive. A range with fewer bytes left is not cut."""

COMPARE_INTERVAL: Final = 0.01
"""Seconds between two comparisons of a stream's ranges with the other connections: a tenth of the
time in which none is slow."""

Request = Callable[[int, int | None, str | None], ResumingStream]
"""Makes an unopened stream from the first byte, one past the last byte, and the version to insist
on."""


async def open_parallel(
    request: Request,
    connections: Connections,
    start: int,
    end: int | None,
    version: str | None,
    *,
    size: int | None = None,
    splits: bool = False,
) -> ResumingStream | ParallelStream:
    """Opens an object; when this returns the first response has arrived.

    The stream adds requests as `connections` allow; a small object, or a store without ranges, has
    a plain one. `size` is what a listing, a manifest or an index says; `splits` is whether every
    object of this store has a version, and can be read by ranges.
    """
    if end is not None and end - start < MIN_SPLIT:
        alone = request(start, end, version)
        await alone.open()
        return alone
    share = connections.join()
    stop = size if end is None else end
    first = connections.first_bytes(start, stop, splits=splits)
    stream = request(start, end if first is None else start + first, version)
    asked = connections.clock()
    try:
        await stream.open()
    except BaseException:
        connections.leave(share)
        raise
    splits = stream.splits and stream.info.version is not None
    connections.record_size(stream.info.size if splits else 0)
    if first is not None and not splits:
        # Unlike the store's other answers, this one has all bytes, and the body goes on.
        stream.move_end(end)
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
        room = BlockRoom(connections, share)
        self._ranges = deque([RangeBuffer(first, connections, room, first.stop or 0)])
        splits = stop is not None and first.info.version is not None
        self._plan = RangePlan(self.position, stop or 0) if splits else RangePlan(0, 0)
        if splits and first.stop is not None:
            self._plan.next = first.stop
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
            # A range at its end gives 0 bytes, and the next one follows. A last range of less than
            # MIN_SPLIT is not worth cutting: nothing more is asked for.
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
        self._share.waiting = False
        self._share.last = self._connections.clock()
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
        share = self._share
        # Each block comes here, and most of them find all connections busy.
        if not self._feed() or share.busy >= (allowed := self._connections.allowed(share)):
            return
        terms = self._connections.terms(share, allowed)
        if self._ranges:
            cut = self._plan.cut(self._ranges[-1].stream.position, terms)
            if cut is not None:
                self._ranges[-1].cut(cut)
        while span := self._plan.offer(terms, share.busy):
            room = min(span.stop - span.start, terms.range_bytes)
            if self._ranges and not self._connections.promise(share, room):
                return
            self._plan.next = span.stop
            self._ranges.append(self._begin_range(span, room if self._ranges else 0))

    def _relieve_slow(self) -> None:
        """Cuts slow ranges short, and requests their rest again if it is large enough.

        It compares them a hundred times a second at most.
        """
        now = self._connections.clock()
        if now < self._share.compare_at:
            return
        self._share.compare_at = now + COMPARE_INTERVAL
        for slow in [part for part in self._ranges if part.is_slow(now)]:
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

    def _begin_range(self, span: ByteRange, promised: int, urgent: bool = False) -> RangeBuffer:
        """Adds a request; `promised` is 0 if it is the next range and needs no blocks."""
        stream = self._request(span.start, span.stop, self.info.version)
        room = BlockRoom(self._connections, self._share, promised=promised, urgent=urgent)
        part = RangeBuffer(stream, self._connections, room, span.stop)
        if room.promised:
            part.begin(self._on_arrival)
        return part

    def _feed(self) -> bool:
        """Gives room to the waiting ranges in order; returns whether none waits any more."""
        return not self._share.blocked or all(
            part.state is not RangeState.WAITING_FOR_ROOM or part.feed() for part in self._ranges
        )

    def _on_arrival(self) -> None:
        """Requests further ranges after one has received the promised bytes, or has failed."""
        if any(part.error for part in self._ranges):
            self._plan.end()
        if not self._closed:
            self._ask()
            self._relieve_slow()
