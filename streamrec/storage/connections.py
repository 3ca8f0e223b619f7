"""Connections: limits the concurrent requests of each stream of a run, and plans their ranges. Pure
except its clock.

All streams of one run share the connections. Each stream always has one request; further
connections, up to the number that fills the network link, are divided evenly among the active
streams: many shards have one each, a single large one has them all, and when one ends the others
get its share with their next range.

Rules:
- A stream is active while it waits for bytes, or if it delivered some a moment ago. A stream that
  rests, because its consumer has enough, is not active, and its share goes to the others.
- A stream that rests keeps its connections: there are at most twice as many ranges ahead of their
  streams' positions as fill the link. The range at each stream's position always gets a connection:
  clients' pools have no limit.
- A stream gets a second connection only after it has delivered many bytes: reading the head of an
  object opens one.
- Bytes that arrive ahead of a stream's position need reserved room. The reservations of all streams
  stay within the budget. The range at the position needs no reservation, so nothing can block it.
- Room is reserved block by block, while a range arrives; to request the range, room for half of its
  bytes must be free, because of the ranges in progress about half has arrived. Without room, a
  range waits, and TCP slows it down.
- Connections are measured all the time: medians of the last latencies and rates, and the total rate
  in each window of time.
- The number of connections that fills the link is unknown and changes, so `KneeSearch` searches for
  it: one connection gives 50 to 100 MB/s, however fast the machine. The search tries a few more,
  and keeps them if the total rate grows by at least half of what it would without a bottleneck.
  Otherwise it removes them, and waits before it tries again, longer each time (Jain and
  Ramakrishnan's "knee", not TCP's "cliff": a store is never pushed until it refuses).
- A connection is slow compared with the others, not by the clock: while the event loop is blocked,
  none receives anything. Time in which its bytes are not awaited, or have no room, does not count.

**Ranges.** At first one open request fetches an object to its end. When more connections are
available, that request is cut short, and parallel ranges fetch the bytes after the cut. When they
are not available any more, one request fetches the rest again.

Rules, each with a property test over any order of arrivals:
- The ranges are adjacent, in order: each byte is requested exactly once.
- No more ranges are in progress than the limits allow.
- A range is large enough to make its latency negligible, and small enough for all to fit the
  budget.
- The fewer ranges are in progress, the smaller the next one is, and the last ones shrink. So ranges
  that begin together, after a cut or after a late range has delayed all others, end one after the
  other; the consumer gets an even flow, and at the end no connection works alone for long.
"""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

from streamrec import kernels
from streamrec.storage.backend import BLOCK_BYTES

START: Final = 16
"""The initial number of connections: at 60 MB/s each, they nearly fill a link of 10 Gbit/s."""

MAX_CONNECTIONS: Final = 32
"""The default maximum. At 60 MB/s each, 32 give 1.9 GB/s, which is more than one process reads over
TLS, and as much as over plain HTTP; beyond, stores begin to refuse, and each connection costs
buffers."""

MIN_RANGE: Final = 4 << 20
"""Smaller ranges do not pay: a request to S3 takes 1.6 ms of processor time."""

MIN_SPLIT: Final = 2 * MIN_RANGE
"""Shorter reads use one request."""

MAX_RANGE: Final = 16 << 20
FIRST_RANGE: Final = 2 << 20
"""The minimum of the few ranges that begin while few are in progress. A cut is at least this far
ahead, too, so a caller that waits for fewer bytes does not read beyond it."""


class KneeSearch:
    """A search for the number of parallel workers beyond which more of them gain little.

    It keeps a step that brings half of its proportional gain. After it takes a step back it rests
    for 8 measurements, and each time for twice as many, up to 256. `failed` is True once a step was
    taken back.

    Examples:
        >>> search = KneeSearch(start=4, most=32)
        >>> for _ in range(20):  # the link takes 10 connections of 60 MB/s
        ...     search.observe(min(search.target * 60e6, 600e6))
        >>> search.target
        10
    """

    def __init__(self, start: int, most: int) -> None:
        self.target = min(start, most)
        self.most = most
        self.failed = False
        self._before: tuple[int, float] | None = None
        self._rest = 0
        self._next_rest = 8

    def settle(self, rate: float, enough: bool = False) -> bool:
        """Takes the last step back and returns False, unless it has raised the total rate, or the
        rate is `enough`.
        """
        if self._before is None:
            return True
        (count, before), self._before = self._before, None
        if enough or rate - before >= 0.5 * before * (self.target / count - 1):
            return True
        self.target = count
        self.failed = True
        self._rest, self._next_rest = self._next_rest, min(2 * self._next_rest, 256)
        return False

    def rests(self) -> bool:
        """Whether to try no step after this measurement, because one was taken back."""
        if not self._rest:
            return False
        self._rest -= 1
        return True

    def grow(self, rate: float, step: int) -> None:
        """Tries `step` more workers; the current ones give `rate`."""
        self._before = (self.target, rate)
        self.target = min(self.target + step, self.most)

    def observe(self, rate: float, step: int = 0) -> None:
        """Takes the total rate of the current workers, and tries a quarter more, at least `step`,
        if that may pay.

        With fewer than one more for each open shard, a step changes nothing.
        """
        if self.settle(rate) and not self.rests() and self.target < self.most:
            self.grow(rate, max(self.target // 4, step, 1))


@dataclass(frozen=True, slots=True)
class ConnectionSpeed:
    """Rate of one connection after its first byte, in bytes per second, and seconds from the
    request to that byte.
    """

    rate: float = 64e6
    latency: float = 0.04

    @property
    def lead(self) -> int:
        """The bytes that one connection delivers while another waits for its first byte."""
        return int(self.rate * self.latency)


class RangeLimits(NamedTuple):
    """The current limits of one stream: a number of connections, each for a range of `range_bytes`.

    The stream requests the next range when at most `lead` bytes are left of one.
    """

    connections: int
    range_bytes: int
    lead: int = 0


class ByteRange(NamedTuple):
    start: int
    stop: int


def range_bytes(pace: ConnectionSpeed, connections: int, budget: int) -> int:
    """Returns the best size of ranges in bytes: four latencies long, so that latency costs at most
    a fifth.

    On average half of each range in progress is buffered ahead of the stream's position; the other
    half of the `budget` is for ranges after a late one.

    >>> speed = ConnectionSpeed(60e6, 0.04)
    >>> range_bytes(speed, 16, 256 << 20) >> 20, range_bytes(speed, 16, 100 << 20) >> 20
    (9, 6)
    """
    wanted = min(max(4 * pace.lead, MIN_RANGE), MAX_RANGE)
    return max(MIN_RANGE, min(wanted, budget // connections) >> 20 << 20)


class RangePlan:
    """The plan for one object whose open request begins at `start`.

    Attributes:
        next: Where the next range begins: the end of the last one that was requested.

    Examples:
        >>> plan = RangePlan(0, 100 << 20)
        >>> plan.cut(1 << 20, RangeLimits(4, 8 << 20)) >> 20
        3
        >>> span = plan.offer(RangeLimits(4, 8 << 20), under_way=1)
        >>> span.start >> 20, span.stop >> 20
        (3, 7)
    """

    def __init__(self, start: int, stop: int) -> None:
        self.next = max(start, stop)
        self._stop = stop

    def cut(self, reached: int, terms: RangeLimits) -> int | None:
        """Returns where to cut the request for all the rest; None if it should continue."""
        if self.next < self._stop or terms.connections < 2 or self._stop - reached < MIN_SPLIT:
            return None
        self.next = reached + self._size(reached, terms, 0)
        return self.next

    def offer(self, terms: RangeLimits, under_way: int) -> ByteRange | None:
        """Returns the next range, while `under_way` requests are incomplete; None: request none
        now.

        When it is requested, `next` becomes its end.
        """
        if self.next == self._stop or under_way >= max(terms.connections, 1):
            return None
        if terms.connections < 2:
            return ByteRange(self.next, self._stop)
        return ByteRange(self.next, self.next + self._size(self.next, terms, under_way))

    def _size(self, start: int, terms: RangeLimits, under_way: int) -> int:
        """Returns the size of the range from `start` on, while `under_way` others are in
        progress.
        """
        left = self._stop - start
        rising = max(terms.range_bytes * (under_way + 1) // terms.connections, FIRST_RANGE)
        falling = max(left // (2 * terms.connections), MIN_RANGE)
        size = min(terms.range_bytes, rising, falling)
        return left if left < size + MIN_RANGE // 2 else size


SLAB_BYTES: Final = 4 * BLOCK_BYTES
"""Four blocks are allocated together: the kernel gives huge pages for this size, with hardly a page
fault."""


BUFFER_BYTES: Final = 96 << 20
"""The default of the bytes that ranges may buffer ahead of their streams' positions."""

MAX_OPEN: Final = 64
"""How many small objects may be open at a time, because processors cannot use more; or more if
there are more connections."""

PROOF_ALONE: Final = 1 << 20
PROOF_BESIDE: Final = 8 << 20
"""Bytes that a stream must deliver before it gets a second connection: alone, and with other active
streams. One of several may be opened only in advance, until its queue is full."""

RECENT: Final = 1.0
"""Seconds for which a stream stays active after it delivered bytes. A shorter rest does not count:
if all streams rest for a moment, as before a slow consumer, further connections cost a TLS
handshake each, and gain nothing."""

ONE: Final = RangeLimits(1, MIN_RANGE)


@dataclass(slots=True, eq=False)
class StreamShare:
    """One stream's share of the connections; made by `Connections.join`, ended by `leave`.

    Attributes:
        taken: Bytes that its consumer took.
        reserved: Bytes ahead of its position that it buffers, or has room for.
        promised: Further bytes ahead of its position that it has requested.
        last: When its consumer last got bytes.
    """

    last: float
    waiting: bool = True
    taken: int = 0
    reserved: int = 0
    promised: int = 0


class Connections:
    """The connections and the buffer budget that the streams of one run share.

    Attributes:
        limit: Bytes that all streams together may buffer ahead of their positions.
        held: Bytes that are buffered, or have room.
        promised: Bytes that were requested, and have no room yet.
        ahead: How many requests ahead of their streams' positions are in progress.
        flowing: How many connections there are whose bytes are awaited.
        each: Bytes received by each of these, on average, since the run began.
        search: Its target is how many connections all streams together should use.
        pace: Measured rate and latency of a connection; until then, the usual figures of an object
            store.
        fits: Whether the run of these connections may hold this many more bytes.
    """

    def __init__(
        self,
        limit: int = BUFFER_BYTES,
        search: KneeSearch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.limit = limit
        self.held = self.promised = 0
        self.ahead = 0
        self.flowing = 0
        self.each = 0.0
        self._free_blocks: list[memoryview] = []
        self.search = search or KneeSearch(START, MAX_CONNECTIONS)
        self._shares: set[StreamShare] = set()
        self.pace = ConnectionSpeed()
        self.fits: Callable[[int], bool] = lambda nbytes: True
        self._latencies: deque[float] = deque(maxlen=32)
        self._rates: deque[float] = deque(maxlen=32)
        # an eighth of the files that the process may have open
        self._most_files = max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._count = 1
        self._count_until = -math.inf
        self._begin_window(clock())

    def join(self) -> StreamShare:
        share = StreamShare(self.clock())
        self._shares.add(share)
        self._count_until = -math.inf
        return share

    def leave(self, share: StreamShare) -> None:
        """Removes a stream, and frees its reservations. May be called twice."""
        self._shares.discard(share)
        self._count_until = -math.inf
        self.withdraw(share, share.promised)
        self.release(share, share.reserved)

    def terms(self, share: StreamShare) -> RangeLimits:
        active = self._count_active()
        budget = self.limit // active
        connections = min(self.search.target // active, budget * 8 // (MIN_RANGE * 5))
        if connections < 2 or share.taken < (PROOF_BESIDE if active > 1 else PROOF_ALONE):
            return ONE
        pace = self.pace
        return RangeLimits(connections, range_bytes(pace, connections, budget), pace.lead)

    def promise(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """Promises room for a range of `nbytes` ahead of the stream's position; False without room
        now.

        All streams together make at most twice as many requests ahead of their positions as fill
        the link: so each request that ends already has a successor, and the rest of a slow range
        can be requested while others wait for room.
        """
        if self.ahead >= 2 * self.search.target:
            return False
        half, half_of_all = (share.promised + nbytes) // 2, (self.promised + nbytes) // 2
        if share.reserved + half > self._room(urgent) or self.held + half_of_all > self.limit:
            self._lacked_room = True
            return False
        share.promised += nbytes
        self.promised += nbytes
        return True

    def withdraw(self, share: StreamShare, nbytes: int) -> None:
        """Takes back a promise for bytes that got room, or will not arrive ahead of the
        position.
        """
        share.promised -= nbytes
        self.promised -= nbytes

    def reserve(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """Reserves room for a block; False if there is none now."""
        all_held = self.held + nbytes
        if (
            share.reserved + nbytes > self._room(urgent)
            or all_held > self.limit
            or not self.fits(nbytes)
        ):
            self._lacked_room = True
            return False
        share.reserved += nbytes
        self.held = all_held
        return True

    def release(self, share: StreamShare, nbytes: int) -> None:
        share.reserved -= nbytes
        self.held -= nbytes
        if not self.held:
            self._free_blocks.clear()

    def widen(self, nbytes: int) -> None:
        """Changes the limit by `nbytes`; buffered bytes stay."""
        self.limit += nbytes

    def take_block(self) -> memoryview:
        """Returns uninitialized memory of BLOCK_BYTES; reused, because new memory costs more than a
        copy.
        """
        if not self._free_blocks:
            slab = memoryview(kernels.allocate(SLAB_BYTES))
            self._free_blocks += [
                slab[start : start + BLOCK_BYTES] for start in range(0, SLAB_BYTES, BLOCK_BYTES)
            ]
        return self._free_blocks.pop()

    def free_block(self, share: StreamShare, block: memoryview) -> None:
        """Frees a block and its room."""
        self._free_blocks.append(block)
        self.release(share, BLOCK_BYTES)

    def record_latency(self, seconds: float) -> None:
        self._latencies.append(seconds)
        self.pace = replace(self.pace, latency=median(self._latencies))

    def record_rate(self, nbytes: int, seconds: float) -> None:
        """Records the rate of a connection that never waited for room."""
        if nbytes >= 1 << 20:
            self._rates.append(nbytes / max(seconds, 1e-6))
            self.pace = replace(self.pace, rate=median(self._rates))

    def record_bytes(self, nbytes: int) -> float:
        """Records bytes of any connection, and ends a window of time if it is over; returns the
        time.
        """
        self.each += nbytes / max(self.flowing, 1)
        now = self.clock()
        if now >= self._since:
            self._bytes += nbytes
            if now - self._since >= self._window:
                self._measure(now)
        return now

    def streams_for(self, size: int) -> int:
        """Returns how many objects of a size should be open at a time to keep all connections busy.

        For a small object, most of a request's time is latency; only size / rate is used to
        transfer bytes.

        >>> calm = Connections()
        >>> calm.streams_for(1 << 30), calm.streams_for(10_000_000)
        (17, 21)
        """
        pace = self.pace
        useful = max(size, 1) / pace.rate
        wanted = math.ceil(self.search.target * (1 + pace.latency / useful))
        return min(wanted, max(MAX_OPEN, self.search.most), self._most_files)

    def _room(self, urgent: bool) -> int:
        """Returns how much one stream may buffer ahead; an eighth of it is kept for the rests of
        slow ranges.
        """
        part = self.limit // self._count_active()
        return part if urgent else part - part // 8

    def _count_active(self) -> int:
        """Returns the number of active streams; it is cached for some milliseconds, because each
        block needs it.
        """
        now = self.clock()
        if now >= self._count_until:
            self._count = max(
                1, sum(share.waiting or now - share.last < RECENT for share in self._shares)
            )
            self._count_until = now + 0.01
        return self._count

    def _measure(self, now: float) -> None:
        """Ends a window; it is a measurement only if more connections would have had work."""
        target = self.search.target
        if self.ahead and not self._lacked_room and now - self._since < 2 * self._window:
            self.search.observe(self._bytes / (now - self._since), step=len(self._shares))
        changed = self.search.target != target
        self._begin_window(now + 2 * self.pace.latency if changed else now)

    def _begin_window(self, since: float) -> None:
        self._since = since
        self._window = max(0.1, 3 * self.pace.latency)
        self._bytes = 0
        self._lacked_room = False
