"""Connections: limits the concurrent requests of each stream of a run. Pure except its clock.

`ranges.py` plans the ranges of one object, `range_room.py` has the memory for those ahead of their
turn, `connection_speed.py` measures, and `knee_search.py` finds the number of connections.

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
- A connection is slow compared with the others, not by the clock: while the event loop is blocked,
  none receives anything. Time in which its bytes are not awaited, or have no room, does not count.
"""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from streamrec.storage.backend import BLOCK_BYTES
from streamrec.storage.connection_speed import ConnectionSpeed, RateWindow, SpeedMeter
from streamrec.storage.knee_search import KneeSearch
from streamrec.storage.ledger import Account
from streamrec.storage.range_room import BUFFER_BYTES, BlockPool, RangeRoom
from streamrec.storage.ranges import FIRST_RANGE, MIN_RANGE, MIN_SPLIT, RangeLimits, range_bytes

START: Final = 16
"""The initial number of connections: at 60 MB/s each, they nearly fill a link of 10 Gbit/s."""

MAX_CONNECTIONS: Final = 32
"""The default maximum. At 60 MB/s each, 32 give 1.9 GB/s, which is more than one process reads over
TLS, and as much as over plain HTTP; beyond, stores begin to refuse, and each connection costs
buffers."""

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


def proof_among(active: int) -> int:
    """The bytes that one of so many active streams must deliver to get a second connection."""
    return PROOF_BESIDE if active > 1 else PROOF_ALONE


@dataclass(slots=True, eq=False)
class StreamShare:
    """One stream's share of the connections; made by `Connections.join`, ended by `leave`.

    Attributes:
        last: When its consumer last got bytes.
        waiting: Whether its consumer waits for bytes.
        taken: Bytes that its consumer took.
        room: What it holds ahead of its position, in the account of all ranges.
        blocked: How many of its ranges wait for room.
        busy: How many of its ranges need their connection for more than the next one's latency.
        compare_at: When its ranges are compared with the other connections again.
    """

    last: float
    room: Account
    waiting: bool = True
    taken: int = 0
    blocked: int = 0
    busy: int = 0
    compare_at: float = -math.inf


class UsualSize:
    """What the last answers say of the next object: its size, if it can be read by ranges."""

    def __init__(self) -> None:
        self._last: int | None = None

    def record(self, size: int | None) -> None:
        """Records the size of an object; 0 if it cannot be read by parallel ranges."""
        self._last = size

    def guess(self, told: int | None, *, splits: bool) -> int:
        """Returns the size of the next object, of which a listing may have told; 0: one request.

        `splits` is whether every object of the store can be read by ranges. Of other stores an
        answer must show it: a second request for an object without a version could be answered
        with bytes of another one.

        >>> sizes = UsualSize()
        >>> sizes.guess(5, splits=True), sizes.guess(None, splits=True)
        (5, 0)
        >>> sizes.guess(5, splits=False)
        0
        >>> sizes.record(7)
        >>> sizes.guess(None, splits=False), sizes.guess(5, splits=False)
        (7, 5)
        >>> sizes.record(0)  # from a server without ranges
        >>> sizes.guess(5, splits=False)
        0
        """
        if self._last == 0 or (self._last is None and not splits):
            return 0
        return told if told is not None else self._last or 0


class ActiveStreams:
    """Counts the streams that are active; the count is kept for some milliseconds, because each
    block needs it.
    """

    def __init__(self) -> None:
        self.shares: set[StreamShare] = set()
        self.sizes = UsualSize()
        self._count = 1
        self._until = -math.inf

    def add(self, share: StreamShare) -> None:
        """Adds a stream."""
        self.shares.add(share)
        self._until = -math.inf

    def remove(self, share: StreamShare) -> None:
        """Removes a stream. May be called twice."""
        self.shares.discard(share)
        self._until = -math.inf

    def count(self, now: float) -> int:
        """Returns the number of active streams, at least one."""
        if now >= self._until:
            active = sum(share.waiting or now - share.last < RECENT for share in self.shares)
            self._count = max(1, active)
            self._until = now + 0.01
        return self._count


class AverageConnection:
    """The connection that others are compared with.

    Attributes:
        flowing: How many connections there are whose bytes are awaited.
        received: Bytes received by each of these, on average, since the run began.
    """

    def __init__(self) -> None:
        self.flowing = 0
        self.received = 0.0

    def record(self, nbytes: int) -> None:
        """Records bytes of any connection."""
        self.received += nbytes / max(self.flowing, 1)


class Connections:
    """The connections and the buffer budget that the streams of one run share.

    Attributes:
        clock: Returns the time in seconds.
        search: Its target is how many connections all streams together should use.
        room: The memory for ranges ahead of their streams' positions.
        average: What all connections receive on average.
        ahead: How many requests ahead of their streams' positions are in progress.
    """

    def __init__(
        self,
        limit: int = BUFFER_BYTES,
        search: KneeSearch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.search = search or KneeSearch(START, MAX_CONNECTIONS)
        self.room = RangeRoom(limit)
        self.average = AverageConnection()
        self.ahead = 0
        self._streams = ActiveStreams()
        self._blocks = BlockPool()
        self._meter = SpeedMeter()
        self._window = RateWindow(clock(), self.pace.latency)
        # an eighth of the files that the process may have open
        self._most_files = max(8, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8)

    @property
    def pace(self) -> ConnectionSpeed:
        """Measured rate and latency of a connection."""
        return self._meter.speed

    def join(self) -> StreamShare:
        """Adds a stream, and returns its share."""
        share = StreamShare(self.clock(), self.room.open("range"))
        self._streams.add(share)
        return share

    def leave(self, share: StreamShare) -> None:
        """Removes a stream, and frees its reservations. May be called twice."""
        self._streams.remove(share)
        share.room.close()
        self._clear_blocks()

    def terms(self, share: StreamShare, connections: int | None = None) -> RangeLimits:
        """Returns how many connections a stream may use now, and of which size its ranges are.

        `connections` is what `allowed` has just returned, if that was asked.
        """
        connections = connections or self.allowed(share)
        if connections < 2:
            return ONE
        pace = self.pace
        budget = self.room.limit // self._count_active()
        return RangeLimits(connections, range_bytes(pace, connections, budget), pace.lead)

    def allowed(self, share: StreamShare) -> int:
        """Returns how many connections a stream may use now, one at least."""
        active = self._count_active()
        return 1 if share.taken < proof_among(active) else self._each_of(active)

    def first_bytes(self, start: int, stop: int | None, *, splits: bool) -> int | None:
        """Returns how many bytes the first request of a stream that has joined is for; None: all.

        They end where its ranges will begin, so that the request need not be cut short. `stop` is
        the end of the stream, if it is known, and `splits` as for `UsualSize.guess`.
        """
        active = self._count_active()
        proof = proof_among(active)
        size = self._streams.sizes.guess(stop, splits=splits)
        if self._each_of(active) < 2 or size - start - proof < MIN_SPLIT:
            return None
        return proof + FIRST_RANGE

    def _each_of(self, active: int) -> int:
        """Returns how many connections each of so many streams may use, one at least."""
        budget = self.room.limit // active
        return max(1, min(self.search.target // active, budget * 8 // (MIN_RANGE * 5)))

    def promise(self, share: StreamShare, nbytes: int, *, urgent: bool = False) -> bool:
        """Promises room for a range of `nbytes` ahead of the stream's position; False without room
        now.

        All streams together make at most twice as many requests ahead of their positions as fill
        the link: so each request that ends already has a successor, and the rest of a slow range
        can be requested while others wait for room.
        """
        if self.ahead >= 2 * self.search.target:
            return False
        promised = self.room.try_promise(
            share.room, nbytes, streams=self._count_active(), urgent=urgent
        )
        self._window.lacked_room |= not promised
        return promised

    def withdraw(self, share: StreamShare, nbytes: int) -> None:
        """Takes back a promise for bytes that will not arrive ahead of the position."""
        share.room.withdraw(nbytes)

    def reserve_block(self, share: StreamShare, *, urgent: bool = False) -> bool:
        """Reserves room for a block; False if there is none now."""
        reserved = self.room.try_reserve(
            share.room, BLOCK_BYTES, streams=self._count_active(), urgent=urgent
        )
        self._window.lacked_room |= not reserved
        return reserved

    def take_block(self) -> memoryview:
        """Returns the memory of a block for which room was reserved."""
        return self._blocks.take()

    def free_block(self, share: StreamShare, block: memoryview) -> None:
        """Frees a block and its room."""
        self._blocks.give_back(block)
        share.room.release(BLOCK_BYTES)
        self._clear_blocks()

    def _clear_blocks(self) -> None:
        if not self.room.held:
            self._blocks.clear()

    def record_size(self, size: int | None) -> None:
        """Records the size of an object that was opened; 0 if it cannot be read by ranges."""
        self._streams.sizes.record(size)

    def record_latency(self, seconds: float) -> None:
        """Records the seconds from a request to its response."""
        self._meter.record_latency(seconds)

    def record_rate(self, nbytes: int, seconds: float) -> None:
        """Records the rate of a connection that never waited for room."""
        self._meter.record_rate(nbytes, seconds)

    def record_bytes(self, nbytes: int) -> float:
        """Records bytes of any connection, and ends a window of time if it is over; returns the
        time.
        """
        self.average.record(nbytes)
        now = self.clock()
        if self._window.record(nbytes, now):
            self._end_window(now)
        return now

    def streams_for(self, size: int) -> int:
        """Returns how many objects of a size should be open at a time to keep all connections busy.

        For a small object, most of a request's time is latency; only size / rate is used to
        transfer bytes.

        >>> calm = Connections()
        >>> calm.streams_for(1 << 30), calm.streams_for(10_000_000)
        (17, 21)
        """
        useful = max(size, 1) / self.pace.rate
        wanted = math.ceil(self.search.target * (1 + self.pace.latency / useful))
        return min(wanted, max(MAX_OPEN, self.search.most), self._most_files)

    def _count_active(self) -> int:
        return self._streams.count(self.clock())

    def _end_window(self, now: float) -> None:
        """Ends a window; it is a measurement only if more connections would have had work."""
        target = self.search.target
        rate = self._window.rate(now)
        if self.ahead and rate is not None:
            self.search.observe(rate, step=len(self._streams.shares))
        changed = self.search.target != target
        # After a change, the answers to requests of before tell nothing.
        begin = now + 2 * self.pace.latency if changed else now
        self._window.begin(begin, self.pace.latency)
