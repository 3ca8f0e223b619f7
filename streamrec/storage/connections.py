"""Connections: how many requests each stream of a run may have under way, and for which ranges. Pure but for its clock.

All streams of one run share them. Each stream always has its one request; what the wire takes beyond that is divided
evenly among the streams that move: many shards have one each, a single large one has them all, and when one ends the
others get its share with their next range.

Rules:
- A stream counts while it waits for bytes, or took some a moment ago. One that rests, because its consumer has
  enough, does not count, and its share goes to the others.
- A stream that rests keeps its connections: ranges ahead of their turn are in all at most twice what the wire takes.
  Each stream's next byte has a connection, whatever the others do: clients' pools have no limit.
- A stream proves first that it wants many bytes: reading the head of an object opens no second connection.
- Bytes that arrive ahead of their turn need reserved room. What all streams reserve stays within the budget. A
  stream whose next byte was not asked for needs no reservation: nothing can hold it up.
- Room is reserved a block at a time, while a range arrives; to ask for the range, half of its bytes must be free:
  of the ranges under way about half has arrived. Where that was wrong, a range waits for room, and TCP holds it back.
- What connections give is measured all the time: medians of the last latencies and rates, and what all of them
  give together in each window of time.
- How many connections fill the wire is not known before, and it changes, so it is searched for
  (`KneeSearch`): one gives 50 to 100 MB/s, however fast the machine. A few more are tried, and kept where all
  together give at least half of what the new ones would bring if nothing were full. Where they do not, they are taken
  back, and the search rests before it tries again, longer each time (Jain and Ramakrishnan's "knee", not TCP's
  "cliff": a store is never pushed until it refuses).
- A connection is slow by comparison with the others, not by the clock: where the event loop is blocked, none gets
  anything. Time does not count in which its bytes are not waited for, or have no room.

**Ranges.** An object is fetched by one open request at first, to its end. Where more connections are to be had, that
request is cut short, and the bytes after the cut are fetched by parallel ranges. Where there are none any more, one
request takes all that is left again.

Rules, each with a property test over any order of arrivals:
- The ranges are adjacent, in order: each byte is asked for exactly once.
- No more ranges are under way than the terms allow.
- A range is large enough for its first byte's latency not to count, and small enough for all to fit the budget.
- A range is the smaller the fewer are under way, and the last ones shrink: so those that begin together, after a cut
  and whenever a late one has held up all others, end one after the other and not all at once; the consumer gets an
  even flow, and at the end none works alone for long.
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

__all__ = [
    "BUFFER_BYTES",
    "FIRST_RANGE",
    "MAX_CONNECTIONS",
    "MAX_OPEN",
    "MAX_RANGE",
    "MIN_RANGE",
    "MIN_SPLIT",
    "PROOF_ALONE",
    "PROOF_BESIDE",
    "START",
    "ByteRange",
    "ConnectionSpeed",
    "Connections",
    "KneeSearch",
    "RangeLimits",
    "RangePlan",
    "StreamShare",
    "range_bytes",
]

START: Final = 16
"""Connections to begin with: at 60 MB/s each, a 10 Gbit/s wire is nearly full."""

MAX_CONNECTIONS: Final = 32
"""Never more than this many, unless the user says so. At 60 MB/s each they bring 1.9 GB/s, which is more than one
process takes over TLS, and as much as over plain HTTP; beyond, stores begin to refuse, and each costs buffers."""

MIN_RANGE: Final = 4 << 20
"""A smaller range costs more than it brings: a request to S3 takes 1.6 ms of processor time."""

MIN_SPLIT: Final = 2 * MIN_RANGE
"""What is shorter is one request."""

MAX_RANGE: Final = 16 << 20
FIRST_RANGE: Final = 2 << 20
"""Ranges that begin while few are under way may be as small as this: they are few. A cut is never nearer than this
either, so nothing that waits for fewer bytes reads beyond it."""


class KneeSearch:
    """A search for the number of parallel workers from which on more of them bring little.

    A step is kept where it brings half of its proportional gain. After one that was taken back it rests for 8
    measurements, and each time for twice as many, up to 256.

    Args:
        start: Workers to begin with.
        most: Never more, from the start.

    Attributes:
        target: How many there should be now.
        most: As given.
        failed: Whether a step was ever taken back.

    Examples:
        >>> search = KneeSearch(start=4, most=32)
        >>> for _ in range(20):  # the wire takes 10 connections of 60 MB/s
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
        """Takes the step that was tried last back, and returns False, unless it has paid or gives `enough`.

        Args:
            rate: What all workers give together.
            enough: Whether no more is wanted.
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
        """Whether no step is tried after this measurement, because one was taken back."""
        if not self._rest:
            return False
        self._rest -= 1
        return True

    def grow(self, rate: float, step: int) -> None:
        """Tries this many more workers; those that there are give `rate`."""
        self._before = (self.target, rate)
        self.target = min(self.target + step, self.most)

    def observe(self, rate: float, step: int = 0) -> None:
        """What the workers of `target` gave together; tries a quarter more where that may pay.

        Args:
            rate: Bytes per second.
            step: At least how many more to try (one for each open shard, or the step changes nothing).
        """
        if self.settle(rate) and not self.rests() and self.target < self.most:
            self.grow(rate, max(self.target // 4, step, 1))


@dataclass(frozen=True, slots=True)
class ConnectionSpeed:
    """What one connection gives.

    Attributes:
        rate: Bytes per second once it flows.
        latency: Seconds from the request to the first byte.
    """

    rate: float = 64e6
    latency: float = 0.04

    @property
    def lead(self) -> int:
        """Bytes that one connection gives while another waits for its first."""
        return int(self.rate * self.latency)


class RangeLimits(NamedTuple):
    """What one stream may use now: a number of connections, each for a range of `range_bytes`.

    The next range is asked for when no more than `lead` bytes are left of one.
    """

    connections: int
    range_bytes: int
    lead: int = 0


class ByteRange(NamedTuple):
    """Bytes from `start` to `stop`."""

    start: int
    stop: int


def range_bytes(pace: ConnectionSpeed, connections: int, budget: int) -> int:
    """How large ranges should be, in bytes: four first-byte latencies, so that waiting for one costs at most a fifth.

    Args:
        pace: What one connection gives.
        connections: How many ranges are under way at a time.
        budget: Bytes that may have landed ahead of their turn. Ranges under way have half landed, if they began one
            after the other; as much again is left for those after one that is late.

    >>> speed = ConnectionSpeed(60e6, 0.04)
    >>> range_bytes(speed, 16, 256 << 20) >> 20, range_bytes(speed, 16, 100 << 20) >> 20
    (9, 6)
    """
    wanted = min(max(4 * pace.lead, MIN_RANGE), MAX_RANGE)
    return max(MIN_RANGE, min(wanted, budget // connections) >> 20 << 20)


class RangePlan:
    """The plan for one object whose open request begins at `start`.

    Examples:
        >>> plan = RangePlan(0, 100 << 20)
        >>> plan.cut(1 << 20, RangeLimits(4, 8 << 20)) >> 20
        3
        >>> span = plan.offer(RangeLimits(4, 8 << 20), under_way=1)
        >>> span.start >> 20, span.stop >> 20
        (3, 7)
    """

    def __init__(self, start: int, stop: int) -> None:
        self._next = max(start, stop)
        self._stop = stop
        self._ends_open = True

    def cut(self, reached: int, terms: RangeLimits) -> int | None:
        """Where the request that takes all the rest should end instead; None where it should go on."""
        if not self._ends_open or terms.connections < 2 or self._stop - reached < MIN_SPLIT:
            return None
        self._next = reached + self._size(reached, terms, 0)
        self._ends_open = False
        return self._next

    def offer(self, terms: RangeLimits, under_way: int) -> ByteRange | None:
        """The next range, to be `accept`ed; None while there is none to be asked for.

        Args:
            under_way: Requests whose bytes have not all arrived.
        """
        if self._next == self._stop or under_way >= max(terms.connections, 1):
            return None
        if terms.connections < 2:
            return ByteRange(self._next, self._stop)
        return ByteRange(self._next, self._next + self._size(self._next, terms, under_way))

    def accept(self, span: ByteRange) -> None:
        """The range that was offered is being fetched."""
        assert span.start == self._next, "ranges are adjacent"
        self._next = span.stop
        self._ends_open = span.stop == self._stop

    def _size(self, start: int, terms: RangeLimits, under_way: int) -> int:
        """How large the range from `start` on is, while `under_way` others are read."""
        left = self._stop - start
        rising = max(terms.range_bytes * (under_way + 1) // terms.connections, FIRST_RANGE)
        falling = max(left // (2 * terms.connections), MIN_RANGE)
        size = min(terms.range_bytes, rising, falling)
        return left if left < size + MIN_RANGE // 2 else size


SLAB_BYTES: Final = 4 * BLOCK_BYTES
"""Blocks are allocated by fours: memory of this size comes in huge pages, with hardly a page fault."""


BUFFER_BYTES: Final = 96 << 20
"""Default bytes that ranges may hold ahead of their turn."""

MAX_OPEN: Final = 64
"""How many small objects may be open at a time: processors take no more. As many as connections, if these are more."""

PROOF_ALONE: Final = 1 << 20
PROOF_BESIDE: Final = 8 << 20
"""Bytes that a stream has taken before it gets a second connection: alone, and with others under way. With
others it may be one that is only opened ahead, until its queue is full."""

RECENT: Final = 1.0
"""Seconds for which a stream counts after it took bytes. One that rests for less is about to go on: where all of them
rest for a moment, as before a slow consumer, further connections cost a TLS handshake each, and gain nothing."""

ONE: Final = RangeLimits(1, MIN_RANGE)


@dataclass(slots=True, eq=False)
class StreamShare:
    """One stream's place among the others; made by `Connections.join`, given back by `leave`.

    Attributes:
        taken: Bytes that its consumer took.
        reserved: Bytes that it holds ahead of their turn, or has room for.
        promised: Bytes that it has asked for ahead of their turn, beyond those.
        waiting: Whether its consumer waits for bytes.
        last: When it got some.
    """

    last: float
    waiting: bool = True
    taken: int = 0
    reserved: int = 0
    promised: int = 0

    def took(self, nbytes: int, now: float) -> None:
        """Its consumer has got some, and goes away with them."""
        self.taken += nbytes
        self.waiting, self.last = False, now


class Connections:
    """What the streams of one run share.

    Args:
        limit: Bytes that all streams together may hold ahead of their turn.
        search: The search for the number of connections.
        clock: Seconds that only grow.

    Attributes:
        limit: As given, and widened since.
        held: Bytes that are held, or have room.
        promised: Bytes that were asked for, and have no room yet.
        ahead: How many requests ahead of their turn are under way.
        flowing: How many connections there are whose bytes are waited for.
        each: Bytes that came on each of these, on average, since the run began.
        pace: What one connection gives, as measured; an object store's usual figures until then.
        fits: Whether the run of these connections may hold this many bytes more.
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
        self._search = search or KneeSearch(START, MAX_CONNECTIONS)
        self._shares: set[StreamShare] = set()
        self.pace = ConnectionSpeed()
        self.fits: Callable[[int], bool] = lambda nbytes: True
        self._latencies: deque[float] = deque(maxlen=32)
        self._rates: deque[float] = deque(maxlen=32)
        # of the files that the process may have open, an eighth may be ahead of their turn
        self._most_files = max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)
        self._count = 1
        self._count_until = -math.inf
        self._begin_window(clock())

    @property
    def target(self) -> int:
        """How many connections should be at work in all."""
        return self._search.target

    def join(self) -> StreamShare:
        """A stream is being opened."""
        share = StreamShare(self.clock())
        self._shares.add(share)
        self._count_until = -math.inf
        return share

    def leave(self, share: StreamShare) -> None:
        """A stream is closed; what it had reserved is free. May be called twice."""
        self._shares.discard(share)
        self._count_until = -math.inf
        self.withdraw(share, share.promised)
        self.release(share, share.reserved)

    def terms(self, share: StreamShare) -> RangeLimits:
        """What a stream may use now."""
        moving = self._moving()
        budget = self.limit // moving
        connections = min(self._search.target // moving, budget * 8 // (MIN_RANGE * 5))
        if connections < 2 or share.taken < (PROOF_BESIDE if moving > 1 else PROOF_ALONE):
            return ONE
        pace = self.pace
        return RangeLimits(connections, range_bytes(pace, connections, budget), pace.lead)

    def promise(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """A range of `nbytes` may be asked for ahead of its turn; False without room for it now."""
        half, half_of_all = (share.promised + nbytes) // 2, (self.promised + nbytes) // 2
        if share.reserved + half > self._room(urgent) or self.held + half_of_all > self.limit:
            self._short = True
            return False
        share.promised += nbytes
        self.promised += nbytes
        return True

    def withdraw(self, share: StreamShare, nbytes: int) -> None:
        """Some of the bytes that were promised have their room, or come no more, or not ahead of their turn."""
        share.promised -= nbytes
        self.promised -= nbytes

    def reserve(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """Takes room for a block; False where it is not to be had now."""
        all_held = self.held + nbytes
        if share.reserved + nbytes > self._room(urgent) or all_held > self.limit or not self.fits(nbytes):
            self._short = True
            return False
        share.reserved += nbytes
        self.held = all_held
        return True

    def release(self, share: StreamShare, nbytes: int) -> None:
        """Gives reserved bytes back: their consumer has them, or they are not wanted."""
        share.reserved -= nbytes
        self.held -= nbytes
        if not self.held:
            self._free_blocks.clear()

    def widen(self, nbytes: int) -> None:
        """From now on more bytes, or fewer, may be held: what is held already stays."""
        self.limit += nbytes

    def take_block(self) -> memoryview:
        """Memory of BLOCK_BYTES, whose bytes are anything. It is used again: fresh memory costs more than a copy."""
        if not self._free_blocks:
            slab = memoryview(kernels.allocate(SLAB_BYTES))
            self._free_blocks += [slab[start : start + BLOCK_BYTES] for start in range(0, SLAB_BYTES, BLOCK_BYTES)]
        return self._free_blocks.pop()

    def free_block(self, share: StreamShare, block: memoryview) -> None:
        """A block whose bytes were copied, and its room."""
        self._free_blocks.append(block)
        self.release(share, BLOCK_BYTES)

    @property
    def spare(self) -> int:
        """How many more requests ahead of their turn may be made, for all streams together.

        In all there are at most twice as many as the wire takes: then a request that ends has a successor already,
        and the rest of a slow one can be requested while others wait for room.
        """
        return max(0, 2 * self._search.target - self.ahead)

    def answered(self, seconds: float) -> None:
        """A first byte took so long."""
        self._latencies.append(seconds)
        self.pace = replace(self.pace, latency=median(self._latencies))

    def flowed(self, nbytes: int, seconds: float) -> None:
        """One connection, which nothing held up, gave `nbytes` in that time."""
        if nbytes >= 1 << 20:
            self._rates.append(nbytes / max(seconds, 1e-6))
            self.pace = replace(self.pace, rate=median(self._rates))

    def arrived(self, nbytes: int) -> float:
        """Bytes came in on any connection; returns the time. Windows of time end here."""
        now = self.clock()
        if now >= self._since:
            self._bytes += nbytes
            if now - self._since >= self._window:
                self._measure(now)
        return now

    def streams_for(self, size: int) -> int:
        """How many objects of a size should be open at a time, for all connections to flow all the time.

        A small object is over before it flows: of the time that its request is open, only size / rate is of use.

        >>> calm = Connections()
        >>> calm.streams_for(1 << 30), calm.streams_for(10_000_000)
        (17, 21)
        """
        pace = self.pace
        useful = max(size, 1) / pace.rate
        wanted = math.ceil(self._search.target * (1 + pace.latency / useful))
        return min(wanted, max(MAX_OPEN, self._search.most), self._most_files)

    def _room(self, urgent: bool) -> int:
        """What one stream may hold ahead of its turn; an eighth of it is left to the rests of slow ranges."""
        part = self.limit // self._moving()
        return part if urgent else part - part // 8

    def _moving(self) -> int:
        """How many streams count; counted again every few milliseconds, since each block asks."""
        now = self.clock()
        if now >= self._count_until:
            self._count = max(1, sum(share.waiting or now - share.last < RECENT for share in self._shares))
            self._count_until = now + 0.01
        return self._count

    def _measure(self, now: float) -> None:
        """A window ends. It tells something only where more connections would have had work."""
        target = self._search.target
        if self.ahead and not self._short and now - self._since < 2 * self._window:
            self._search.observe(self._bytes / (now - self._since), step=len(self._shares))
        changed = self._search.target != target
        self._begin_window(now + 2 * self.pace.latency if changed else now)

    def _begin_window(self, since: float) -> None:
        self._since = since
        self._window = max(0.1, 3 * self.pace.latency)
        self._bytes = 0
        self._short = False
