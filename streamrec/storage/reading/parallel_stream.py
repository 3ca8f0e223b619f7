"""ParallelStream: one object by several requests at a time, given in order, behind the face of one stream.

`RangePlan` says what is asked for, `Connections` how much of it at a time; this file only moves bytes. Each range
is a ResumingStream of its own, with its own retries, pinned to the version that the first answer told.

Rules:
- The first request is the only one until its stream has shown that it wants many bytes. It is never slower than a
  plain stream, and while there is no second one its bytes land where the caller wants them, without any copy.
- Ranges ahead of their turn land in blocks of ours and are copied once, as far as there is room for them: where there
  is none, they wait, the first ones get it first, and nothing further is asked for. A range whose turn has come is
  read straight into the caller's buffer from where it stopped.
- A range whose first byte is late is asked for again in parts, side by side: together they make up for the time. One
  that is late when its turn has come, while the others have filled their room, is shared out among their connections.
- Errors come in order: a range that failed for good is reported when all bytes before it were given. Nothing
  further is asked for meanwhile.
- A range that gives a third of what the others give, or less, is cut short, and the rest asked for anew: connections to
  one store differ in speed, and one in fifty that is slow would hold up all bytes behind it.
- `aclose`, an error and a cancellation end all requests; when it returns, no task and no connection is left.
- Objects whose size or version nobody knows, and stores that cannot give ranges, stay with the one request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from streamrec.errors import ClosedError
from streamrec.storage.reading.connections import PROOF_ALONE, Connections, StreamShare
from streamrec.storage.reading.range_buffer import RangeBuffer
from streamrec.storage.reading.range_plan import FIRST_RANGE, LEAST_SPLIT, ByteRange, RangePlan, parts
from streamrec.storage.reading.stream import ResumingStream, stop_of
from streamrec.storage.resilience.shield import finish

__all__ = ["ParallelStream", "Request", "open_parallel"]

LATE_PARTS: Final = 3
"""So many, where a first byte is late: it is not taken for late before two latencies are over."""

LEAST_REST: Final = 1 << 20
"""For fewer bytes nobody else is asked."""

SLOW_REST: Final = 1 << 20
"""So much is left to a connection that is slow: about what the kernel has of it by the time that others flow."""

Request = Callable[[int, int | None, str | None], ResumingStream]
"""Makes a stream, not opened yet, from a first byte, one past the last byte, and the version to insist on."""


async def open_parallel(
    request: Request, connections: Connections, start: int, end: int | None, version: str | None
) -> ResumingStream | ParallelStream:
    """Opens an object; when this returns the first response has arrived.

    Args:
        request: Makes the requests.
        connections: What this stream shares with the others.
        start: First byte.
        end: One past the last byte, or None: to the end.
        version: The version to insist on, or None: the first one seen.

    Returns:
        A stream that adds requests as `connections` allow; a plain one where the store gives no ranges, or the bytes
        are too few, as they are of a small object.
    """
    if end is not None and end - start < LEAST_SPLIT:
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
    """A ByteStream over one or several requests; made by `open_parallel`.

    Args:
        request: Makes the further requests.
        connections: What this stream shares with the others.
        share: This stream's place there.
        first: The first request, which was answered.
        end: One past the last byte, or None: to the end.
    """

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
        self._last_cut = (stop or 0) - LEAST_SPLIT
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
        self._share.waits()
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
            await finish(_gone(ahead))
        for piece in pieces:
            await piece.aclose()
        self._connections.leave(self._share)

    async def _read(self, buffer: memoryview) -> int:
        while True:
            if not self._pieces or self.position < self._last_cut or len(self._pieces) > 1:
                self._ask()
            if not self._pieces:
                return 0
            self._hurry()
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
            cut = self._plan.cut(self._pieces[-1].reached, terms)
            if cut is not None:
                self._pieces[-1].cut(cut)
        while span := self._plan.offer(terms, sum(piece.busy(terms.lead) for piece in self._pieces)):
            room = min(span.stop - span.start, terms.range_bytes)
            if self._pieces and not (self._connections.spare and self._connections.promise(self._share, room)):
                return
            self._plan.accept(span)
            self._pieces.append(self._begun(span, room if self._pieces else 0))

    def _hurry(self) -> None:
        """Ranges that flow slowly are shared out; and the first one, of which nothing is there, if most others rest."""
        if len(self._pieces) < 2:
            return
        for slow in [piece for piece in self._pieces if piece.slow]:
            self._relieve(slow)
        head = self._pieces[0]
        if head.ready:
            return
        connections = self._connections.terms(self._share).connections
        resting = connections - sum(piece.left > 0 and not piece.hungry for piece in self._pieces)
        if 2 * resting >= connections:
            self._share_out(head, resting + 1)

    def _share_out(self, late: RangeBuffer, connections: int) -> None:
        """A range is read by so many requests instead of one, as far as it is worth it and there is room."""
        if self._closed:
            return
        connections = min(connections, 1 + self._connections.spare)
        _, *others = parts(ByteRange(late.reached, late.stop), connections, self._connections.pace)
        self._hand_on(late, others)

    def _relieve(self, slow: RangeBuffer) -> None:
        """A range that flows slowly ends soon; others read the rest, where waiting for it takes longer than asking."""
        rest, pace = ByteRange(slow.reached + SLOW_REST, slow.stop), self._connections.pace
        spare = self._connections.spare
        if spare and rest.stop - rest.start >= max(pace.lead, LEAST_REST):
            self._hand_on(slow, parts(rest, min(LATE_PARTS, spare), pace), paid=False)

    def _hand_on(self, late: RangeBuffer, spans: Sequence[ByteRange], paid: bool = True) -> None:
        """The end of a range is read by other requests, where there is room; they may have to be paid for."""
        more = late.stop - spans[0].start if spans else 0
        if not more or not self._connections.promise(self._share, more, urgent=True):
            return
        if not paid and not late.affords():
            self._connections.withdraw(self._share, more)
            return
        late.cut(spans[0].start)
        for place, span in enumerate(spans, self._pieces.index(late) + 1):
            self._pieces.insert(place, self._begun(span, span.stop - span.start, urgent=True))

    def _begun(self, span: ByteRange, room: int, urgent: bool = False) -> RangeBuffer:
        """One more request: ahead of its turn, or with no room where its turn is now."""
        stream = self._request(span.start, span.stop, self.info.version)
        piece = RangeBuffer(stream, self._connections, self._share, span.stop, urgent)
        if room:
            stream.late = partial(self._share_out, piece, LATE_PARTS)
            piece.begin(room, self._arrived)
        return piece

    def _feed(self) -> bool:
        """Gives room to the ranges that wait for it, in their order; whether none waits any more."""
        return all(not piece.hungry or piece.feed() for piece in self._pieces)

    def _arrived(self) -> None:
        """A range has arrived, or as much of it as there is room for: the next may be asked for."""
        if not self._closed:
            self._ask()
            self._hurry()


async def _gone(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)
