"""ParallelStream: one object by several requests at a time, given in order, with the interface of one stream.

`RangePlan` says what is asked for, `Connections` how much of it at a time; this file only moves bytes. Each range
is a ResumingStream of its own, with its own retries, pinned to the version of the first answer.

Rules:
- The first request is the only one until its stream has shown that it wants many bytes. It is never slower than a
  plain stream, and until the second request its bytes go straight to the caller's buffer, without a copy.
- Ranges ahead of their turn arrive in blocks that all streams of a run share, and are copied once. Where there is no
  room for a block, a range waits and TCP holds the sender back; the first ranges get room first, and nothing further
  is asked for. A range whose turn has come is read straight into the caller's buffer from where it stopped.
- Errors come in order: a range that failed permanently is reported when all bytes before it were given. Nothing
  further is asked for meanwhile.
- A range that gives a third of what the others give, or less, is cut short, and the rest requested again: connections
  to one store differ in speed, and one in fifty that is slow would hold up all bytes after it.
- `aclose`, an error and a cancellation end all requests; when it returns, no task and no connection is left.
- Objects of unknown size or version, and stores that cannot give ranges, stay with the one request.
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

__all__ = ["ParallelStream", "RangeBuffer", "Request", "open_parallel"]


class RangeBuffer:
    """One request, and what has arrived of it ahead of its turn.

    Args:
        urgent: Whether it is the rest of a slow range.

    Attributes:
        stream: The request.
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
        self.stream = stream
        self._connections = connections
        self._share = share
        self._urgent = urgent
        self._blocks: deque[tuple[memoryview, int, int]] = deque()  # a block, and where its bytes begin and end
        self._receiving = False
        self._turn = False
        self._answered = False
        self._came = 0
        self._awaited = self._others = 0.0  # for how many seconds, and what came on each of the others meanwhile
        self._since: tuple[float, float] | None = None
        self._promised = 0
        self._held_up = False
        self._fed = asyncio.Event()
        self._stopped = asyncio.Event()

    @property
    def left(self) -> int:
        """How many bytes of it are still to come; 0 where it has failed."""
        return 0 if self.error is not None else self.stop - self.stream.position

    def busy(self, lead: int) -> bool:
        """Whether its connection is needed for longer than `lead` bytes take."""
        left = self.left
        return left > lead or (left > 0 and not self._answered)

    @property
    def ready(self) -> bool:
        """Whether something of it can be taken at once."""
        return bool(self._blocks) or self.error is not None

    @property
    def slow(self) -> bool:
        """Whether it is waited for, and has given a block less than a third of what each of the others has.

        Within a tenth of a second no connection is slow.
        """
        if self._since is None:
            return False
        awaited, others = self._so_far(*self._since)
        return awaited > 0.1 and others / 3 > self._came + BLOCK_BYTES

    def cut(self, end: int) -> None:
        """It ends there, further on than it has come."""
        self.stream.cut(end)
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
        self._await_bytes()
        try:
            count = await self.stream.readinto(buffer)
            self._note(count)
        finally:
            self._rest()
        return count

    def begin(self, promised: int, then: Callable[[], None]) -> None:
        """Lands it ahead of its turn.

        Args:
            promised: How many bytes of it may arrive so.
            then: Called when these have arrived, or its turn has come.
        """
        self._receiving, self._promised = True, promised
        self._connections.ahead += 1
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
        self._rest()
        self._ended()
        self._blocks.clear()
        await self.stream.aclose()

    def _await_bytes(self) -> None:
        """Its bytes are waited for from now on."""
        if self._since is None:
            self._connections.flowing += 1
            self._since = self._connections.clock(), self._connections.each

    def _rest(self) -> None:
        """They are not waited for any more. May be called twice."""
        if self._since is not None:
            self._awaited, self._others = self._so_far(*self._since)
            self._since = None
            self._connections.flowing -= 1

    def _note(self, nbytes: int) -> float:
        """Some of them came; returns the time."""
        self._came += nbytes
        self._connections.each += nbytes / max(self._connections.flowing, 1)
        return self._connections.arrived(nbytes)

    def _so_far(self, since: float, before: float) -> tuple[float, float]:
        return self._awaited + self._connections.clock() - since, self._others + self._connections.each - before

    def _ended(self) -> None:
        """It lands no more ahead of its turn. May be called twice."""
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

    async def _land(self, then: Callable[[], None]) -> None:
        try:
            await self._fill()
        except Exception as error:
            self.error = error  # whatever it is, it waits for its turn
        self._rest()
        self._ended()
        self._connections.withdraw(self._share, self._promised)
        self._promised = 0
        self._stopped.set()
        then()

    async def _fill(self) -> None:
        """Fills blocks until all is there that was promised, or its turn has come."""
        asked = self._connections.clock()
        await self.stream.open()
        self._answered = True
        began = now = self._connections.clock()
        self._await_bytes()
        self._connections.answered(began - asked)
        arrived, count = 0, -1
        while count and not self._turn and (room := await self._room()):
            block = self._connections.take_block()
            filled = 0
            try:
                while filled < room and not self._turn:
                    count = await self.stream.readinto(block[filled:room])
                    if not count:
                        break
                    filled += count
                    now = self._note(count)
            finally:
                arrived += filled
                if filled:
                    self._blocks.append((block, 0, filled))
                else:
                    self._connections.free_block(self._share, block)
        if not self._turn and not self._held_up:
            self._connections.flowed(arrived, now - began)

    async def _room(self) -> int:
        """Waits for room for a block; returns how much of it to fill, 0 where its turn has come or all is there."""
        room = min(BLOCK_BYTES, self._promised)
        if not room or self.feed():
            return room
        self.hungry = self._held_up = True
        self._fed.clear()
        self._rest()
        await self._fed.wait()
        self._await_bytes()
        was_fed, self.hungry = not self.hungry, False
        return room if was_fed else 0


SLOW_REST: Final = 1 << 20
"""Bytes that are left to a slow connection: about what the kernel has of it by the time that others flow. Where fewer
would be left for another request, there is none."""

Request = Callable[[int, int | None, str | None], ResumingStream]
"""Makes a stream, not opened yet, from a first byte, one past the last byte, and the version to insist on."""


async def open_parallel(
    request: Request, connections: Connections, start: int, end: int | None, version: str | None
) -> ResumingStream | ParallelStream:
    """Opens an object; when this returns the first response has arrived.

    Args:
        end: One past the last byte, or None: to the end.
        version: The version to insist on, or None: the first one seen.

    Returns:
        A stream that adds requests as `connections` allow; a plain one where the store gives no ranges, or the bytes
        are too few, as they are of a small object.
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
    connections.answered(connections.clock() - asked)
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
        self._pieces = deque([RangeBuffer(first, connections, share, stop or 0)])
        splits = stop is not None and first.info.version is not None
        self._plan = RangePlan(self.position, stop or 0) if splits else RangePlan(0, 0)
        self._last_cut = (stop or 0) - MIN_SPLIT
        self._closed = False

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for the next bytes; as `ResumingStream.readinto`, but never for more than a block at a time.

        A request may be cut that far ahead of where it has come, while this waits.
        """
        if self._closed:
            raise ClosedError(f"{self.info.path}: the stream is closed; open a new one")
        if not buffer:
            return 0
        buffer = buffer[:FIRST_RANGE]
        self._share.waiting = True
        try:
            count = await self._read(buffer)
        except BaseException:
            await self.aclose()
            raise
        self.position += count
        self._share.took(count, self._connections.clock())
        return count

    async def aclose(self) -> None:
        """Ends all requests. May be called twice, and with bytes left."""
        self._closed = True
        pieces, self._pieces = self._pieces, deque()
        ahead = [piece.task for piece in pieces if piece.task is not None and not piece.task.done()]
        for task in ahead:
            task.cancel()
        if ahead:
            await finish(asyncio.wait(ahead))
        for piece in pieces:
            await piece.aclose()
        self._connections.leave(self._share)

    async def _read(self, buffer: memoryview) -> int:
        while True:
            if not self._pieces or self.position < self._last_cut or len(self._pieces) > 1:
                self._ask()
            if not self._pieces:
                return 0
            self._relieve_slow()
            count = await self._pieces[0].readinto(buffer)
            if count:
                self._feed()
                return count
            await self._pieces.popleft().aclose()

    def _ask(self) -> None:
        """Begins whatever requests the plan wants now and the terms allow."""
        if any(piece.error for piece in self._pieces) or not self._feed():
            return
        terms = self._connections.terms(self._share)
        if self._pieces:
            cut = self._plan.cut(self._pieces[-1].stream.position, terms)
            if cut is not None:
                self._pieces[-1].cut(cut)
        while span := self._plan.offer(terms, sum(piece.busy(terms.lead) for piece in self._pieces)):
            room = min(span.stop - span.start, terms.range_bytes)
            if self._pieces and not (self._connections.spare and self._connections.promise(self._share, room)):
                return
            self._plan.accept(span)
            self._pieces.append(self._begin_range(span, room if self._pieces else 0))

    def _relieve_slow(self) -> None:
        """A range that flows slowly ends soon; another request reads the rest, where that takes longer than asking."""
        for slow in [piece for piece in self._pieces if piece.slow]:
            rest = ByteRange(slow.stream.position + SLOW_REST, slow.stop)
            size = rest.stop - rest.start
            if size < max(self._connections.pace.lead, SLOW_REST) or not self._connections.spare:
                continue
            if not self._connections.promise(self._share, size, urgent=True):
                continue
            if not slow.stream.affords():
                self._connections.withdraw(self._share, size)
                continue
            slow.cut(rest.start)
            self._pieces.insert(self._pieces.index(slow) + 1, self._begin_range(rest, size, urgent=True))

    def _begin_range(self, span: ByteRange, room: int, urgent: bool = False) -> RangeBuffer:
        """One more request: ahead of its turn, or with no room where its turn is now."""
        stream = self._request(span.start, span.stop, self.info.version)
        piece = RangeBuffer(stream, self._connections, self._share, span.stop, urgent)
        if room:
            piece.begin(room, self._on_arrival)
        return piece

    def _feed(self) -> bool:
        """Gives room to the ranges that wait for it, in their order; whether none waits any more."""
        return all(not piece.hungry or piece.feed() for piece in self._pieces)

    def _on_arrival(self) -> None:
        """A range has arrived, or as much of it as there is room for: the next may be asked for."""
        if not self._closed:
            self._ask()
            self._relieve_slow()
