"""Connections: how many requests each stream of a run may have under way. Pure but for its clock.

All streams of one run share them. One stream has its one request always; what the wire takes beyond that
(`AdaptiveConcurrency`) is divided evenly among the streams that move: many shards have one each, a single large one has
them all, and when one ends the others get its share with their next range.

Rules:
- A stream counts while it waits for bytes, or took some a moment ago. One that rests, because its consumer has
  enough, does not count, and its share goes to the others.
- What a stream rests on still has its connections: of ranges ahead of their turn there are no more in all than twice
  what the wire takes. Each stream's next byte has a connection, whatever the others do: clients' pools have no limit.
- A stream proves first that it wants many bytes: reading the head of an object opens no second connection.
- Bytes that arrive ahead of their turn land in reserved room. What all streams reserve stays within the budget. A
  stream whose next byte was not asked for needs no reservation: nothing can hold it up.
- Room is reserved a block at a time, while a range lands; for asking for the range, half of its bytes need to be free:
  of the ranges under way about half has landed. Where that was wrong, a range waits for room, and TCP holds it back.
- What connections give is measured all the time: medians of the last latencies and rates, and what all of them
  give together in each window of time.
"""

from __future__ import annotations

import math
import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from streamrec.storage.reading.adaptive_concurrency import AdaptiveConcurrency
from streamrec.storage.reading.buffer_pool import BufferPool, ByteBudget
from streamrec.storage.reading.range_plan import LEAST_RANGE, ConnectionSpeed, RangeLimits, range_bytes
from streamrec.storage.reading.slow_connections import SlowConnections

__all__ = ["BUFFER_BYTES", "MOST_OPEN", "PROOF_ALONE", "Connections", "StreamShare"]

BUFFER_BYTES: Final = 96 << 20
"""Default bytes that ranges may hold ahead of their turn."""

MOST_OPEN: Final = 64
"""Small objects open at a time, at the most: processors take no more. Where more connections are allowed, as many."""

LEAST_OPEN: Final = 8
OF_LIMIT: Final = 8
"""Of the files that the process may have open, those ahead of their turn are no more than this part."""

PROOF_ALONE: Final = 1 << 20
PROOF_BESIDE: Final = 8 << 20
"""Bytes that a stream has taken before it gets a second connection: alone, and beside others. Beside others it
may be one that is only opened ahead, until its queue is full."""

RECENT: Final = 1.0
"""Seconds for which a stream counts after it took bytes. One that rests for less is about to go on: where all of them
rest for a moment, as behind a slow consumer, further connections cost a TLS handshake each, and gain nothing."""

SPARE: Final = 8
"""One part in so many of the room is left to ranges whose turn has come late: they are shared out."""

MOST_AHEAD: Final = 2
"""So many times as many requests are under way ahead of their turn as the wire takes, at the most: those that end soon
have successors already, and those that wait for room are waited for, while a late one is shared out."""

COUNT_SECONDS: Final = 0.01
"""For how long a count of those that move holds good."""

ONE: Final = RangeLimits(1, LEAST_RANGE)

LEAST_WINDOW: Final = 0.1
WINDOW_LATENCIES: Final = 3
REMEMBERED: Final = 32


class StreamShare:
    """One stream's place among the others; made by `Connections.join`, given back by `leave`.

    Attributes:
        taken: Bytes that its consumer took.
        reserved: Bytes that it holds ahead of their turn, or has room for.
        promised: Bytes that it has asked for ahead of their turn, beyond those.
    """

    __slots__ = ("_last", "_waiting", "promised", "reserved", "taken")

    def __init__(self, now: float) -> None:
        self._last = now
        self._waiting = True
        self.taken = 0
        self.reserved = 0
        self.promised = 0

    def waits(self) -> None:
        """Its consumer waits for bytes from now on."""
        self._waiting = True

    def took(self, nbytes: int, now: float) -> None:
        """Its consumer has got some, and goes away with them."""
        self.taken += nbytes
        self._waiting, self._last = False, now

    def moves(self, now: float) -> bool:
        """Whether it counts."""
        return self._waiting or now - self._last < RECENT


class Connections:
    """What the streams of one run share.

    Args:
        budget: Bytes that all streams together may hold ahead of their turn.
        concurrency: The search for the number of connections.
        clock: Seconds that only grow.

    Attributes:
        budget: What all may hold ahead of its turn.
        blocks: Where it lands; free ones are kept while anything is held.
        slow_connections: What comes on each connection.
        pace: What one connection gives, as measured; an object store's usual figures until then.
    """

    def __init__(
        self,
        budget: int = BUFFER_BYTES,
        concurrency: AdaptiveConcurrency | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.budget = ByteBudget(budget)
        self.blocks = BufferPool()
        self.slow_connections = SlowConnections(clock)
        self._concurrency = concurrency or AdaptiveConcurrency()
        self._shares: set[StreamShare] = set()
        self._ahead = 0
        self.pace = ConnectionSpeed()
        self._latencies: deque[float] = deque(maxlen=REMEMBERED)
        self._rates: deque[float] = deque(maxlen=REMEMBERED)
        self._most_files = max(LEAST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OF_LIMIT)
        self._count = 1
        self._count_until = -math.inf
        self._begin_window(clock())

    @property
    def target(self) -> int:
        """How many connections should be at work in all."""
        return self._concurrency.target

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
        budget = self.budget.limit // moving
        connections = min(self._concurrency.target // moving, budget * 8 // (LEAST_RANGE * 5))
        if connections < 2 or share.taken < (PROOF_BESIDE if moving > 1 else PROOF_ALONE):
            return ONE
        pace = self.pace
        return RangeLimits(connections, range_bytes(pace, connections, budget), pace.lead)

    def promise(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """A range of so many bytes may be asked for ahead of its turn; False where there is no room for it now."""
        if share.reserved + (share.promised + nbytes) // 2 > self._room(urgent) or not self.budget.promise(nbytes):
            self._short = True
            return False
        share.promised += nbytes
        return True

    def withdraw(self, share: StreamShare, nbytes: int) -> None:
        """So many of the bytes that were promised have their room, or come no more, or not ahead of their turn."""
        share.promised -= nbytes
        self.budget.withdraw(nbytes)

    def reserve(self, share: StreamShare, nbytes: int, urgent: bool = False) -> bool:
        """Takes room for a block; False where it is not to be had now."""
        if share.reserved + nbytes > self._room(urgent) or not self.budget.take(nbytes):
            self._short = True
            return False
        share.reserved += nbytes
        return True

    def release(self, share: StreamShare, nbytes: int) -> None:
        """Gives reserved bytes back: their consumer has them, or nobody wants them."""
        share.reserved -= nbytes
        self.budget.give(nbytes)
        if not self.budget.held:
            self.blocks.clear()

    @property
    def spare(self) -> int:
        """How many requests ahead of their turn may be made beside those under way, of whatever stream."""
        return max(0, MOST_AHEAD * self._concurrency.target - self._ahead)

    def asked(self) -> None:
        """A request ahead of its turn begins."""
        self._ahead += 1

    def ended(self) -> None:
        """Such a request is over, or its turn has come."""
        self._ahead -= 1

    def answered(self, seconds: float) -> None:
        """A first byte took so long."""
        self._latencies.append(seconds)
        self.pace = replace(self.pace, latency=median(self._latencies))

    def flowed(self, nbytes: int, seconds: float) -> None:
        """One connection, which nothing held up, gave so many bytes in that time."""
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
        wanted = math.ceil(self._concurrency.target * (1 + pace.latency / useful))
        return min(wanted, max(MOST_OPEN, self._concurrency.most), self._most_files)

    def _room(self, urgent: bool) -> int:
        """What one stream may hold ahead of its turn."""
        part = self.budget.limit // self._moving()
        return part if urgent else part - part // SPARE

    def _moving(self) -> int:
        """How many streams count; counted anew every few milliseconds, since each block asks."""
        now = self.clock()
        if now >= self._count_until:
            self._count = max(1, sum(share.moves(now) for share in self._shares))
            self._count_until = now + COUNT_SECONDS
        return self._count

    def _measure(self, now: float) -> None:
        """A window ends. It tells something only where more connections would have had work."""
        target = self._concurrency.target
        if self._ahead and not self._short and now - self._since < 2 * self._window:
            self._concurrency.measured(self._bytes / (now - self._since), step=len(self._shares))
        changed = self._concurrency.target != target
        self._begin_window(now + 2 * self.pace.latency if changed else now)

    def _begin_window(self, since: float) -> None:
        self._since = since
        self._window = max(LEAST_WINDOW, WINDOW_LATENCIES * self.pace.latency)
        self._bytes = 0
        self._short = False
