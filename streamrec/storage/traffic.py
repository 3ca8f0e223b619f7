"""Traffic: what all requests to one store share: statistics, a timer, what hedging learnt, and a limiter a bucket.

All waits share one timer: a timer for each would be a tenth of what a small object costs, and hardly any is ever due.

**Hedging**: when a second request for the same bytes is worth its price; `request.py` sends it. A store answers most
requests in the usual time and a few very late. A second request, sent when the first is late by this run's own
measure, is then the faster way. Source: Dean and Barroso, "The Tail at Scale", 2013. Rules:

* The limits are learnt: twice what three quarters of the responses took to begin, four times what 99 of 100 blocks
  took to come. Old observations fade, so that the limits soon follow a network that becomes slow.
* A request's siblings are a measure from the first second: when three times as many requests were answered as still
  wait, those that wait for four times as long as the slowest answer are late. Where no more than that is known, limits
  are guesses: a tenth of the policy's time limits.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge, and at most
  `SAVED` are saved up. In addition a run has an `allowance` of a few hedges before it has earned any, which pays only
  for requests that are later than their siblings. So a network that is slow everywhere costs at most that share more.
* Nothing is late before a floor, which the policy sets.

**The limiter** slows all requests to a bucket down together, not each stream by itself. Rules:

* Nothing is limited until the store asks for fewer requests (503 SlowDown, 429). What goes on from there is the
  rate that was sent, and the rule is that of TCP: multiplicative decrease, additive increase. Source: Chiu and
  Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance", 1989.
* The first decrease leaves 0.7 of the rate. Each second, if it is used, the rate grows by a fifth of what it was at the
  last decrease, and by at least one request a second.
* One decrease a round: an answer to a request that was sent before the last decrease says nothing new, and one
  to a request less than `SETTLE` after it only counts; stores count over a second or so.
* The decrease is half of the share that was refused in the round, so that a store which refuses one request in
  ten at random is not taken for one that can do no more. Source: Alizadeh and others, "Data Center TCP", 2010.
* A Retry-After holds all requests back, for at most `HOLD_CAP`: no server stops a run for an hour.
* First come, first served: the request that waits longest goes next, so no stream starves.
* When the rate has grown to four times what was too much, the limit is dropped.

Requests are limited and not connections: that is what stores throttle by, and a body that streams is not a request.
"""

from __future__ import annotations

import asyncio
import math
import time
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

from streamrec.storage.statistics import BOUNDS, Statistics, Tally

__all__ = [
    "ALLOWANCE",
    "EARNS",
    "FIRST_BYTE_FLOOR",
    "HOLD_CAP",
    "MIN_RATE",
    "SAVED",
    "STALL_FLOOR",
    "Hedging",
    "Limiter",
    "Recent",
    "SharedTimer",
    "Traffic",
]

FIRST_BYTE_FLOOR: Final = 0.1
"""Seconds that every response may take to begin, where the policy says nothing else."""

STALL_FLOOR: Final = 0.5
"""Seconds for which every body may give nothing, where the policy says nothing else."""

ALLOWANCE: Final = 4
"""Hedges before any was earned, where the policy says nothing else."""

FEW: Final = 32
"""Answers; while there are fewer, requests that wait for theirs are part of the measure."""

FIRST_BLOCKS: Final = 8
"""Blocks from which on their gaps are a measure."""

EARNS: Final = 8 << 20
"""Bytes of a body that count like a request."""

SAVED: Final = 4.0
"""Hedges that may be saved up, and sent together."""

SETTLE: Final = 0.3
"""Seconds that a decrease has to show its effect."""

MIN_RATE: Final = 5.0
"""Requests per second that are always allowed: one refusal must not make a reader of few requests wait for a second."""

HOLD_CAP: Final = 30.0
"""Seconds that a Retry-After may hold all requests back."""


class Recent:
    """A histogram that forgets: each time it has seen `memory` observations, all counts are halved.

    >>> recent = Recent(memory=100)
    >>> for _ in range(1_000):
    ...     recent.observe(0.1)
    >>> for _ in range(300):
    ...     recent.observe(2.0)
    >>> 1.4 < recent.quantile(0.25) < 2.1
    True
    """

    def __init__(self, memory: int) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._memory = memory
        self.seen = 0

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self.seen += 1
        if self.seen == self._memory:
            self._counts = [count >> 1 for count in self._counts]
            self.seen = sum(self._counts)

    def quantile(self, share: float) -> float:
        """About what this share of them does not exceed, in seconds; 0.0 where there are none.

        Within its bucket they are taken to be spread evenly: a bucket's bound alone may be 1.4 times too high.
        """
        wanted, below = share * self.seen, 0
        for index, count in enumerate(self._counts):
            if count and below + count >= wanted:
                low = BOUNDS[index - 1] if index else 0.0
                high = BOUNDS[min(index, len(BOUNDS) - 1)]
                return low + (high - low) * (wanted - below) / count
            below += count
        return 0.0


class Hedging:
    """What one store's answers taught, and what hedges they have paid for.

    Args:
        share: Hedges that each request earns, from 0 (never hedge) to 1.
        first_byte_guess: Seconds that a response may take to begin, until enough were seen.
        stall_guess: Seconds for which a body may give nothing, until enough blocks were seen.
        allowance: Hedges before any was earned, for requests that are later than their siblings.
        first_byte_floor: Seconds that every response may take to begin.
        stall_floor: Seconds for which every body may give nothing.

    Attributes:
        blocks: How many blocks came, on all connections.
        waiting: How many requests wait for their response, hedges included.
        stall_limit: Seconds after which a body that gives nothing is stalled.

    >>> hedging = Hedging(0.5, first_byte_guess=1.5, stall_guess=2.0)
    >>> for _ in range(100):
    ...     hedging.earn()
    ...     hedging.first_byte(0.040)
    >>> hedging.first_byte_limit() == FIRST_BYTE_FLOOR
    True
    >>> [hedging.spend() for _ in range(5)]
    [True, True, True, True, False]
    >>> [hedging.spend(beside_siblings=True) for _ in range(5)]
    [True, True, True, True, False]
    """

    def __init__(
        self,
        share: float,
        first_byte_guess: float,
        stall_guess: float,
        allowance: int = ALLOWANCE,
        first_byte_floor: float = FIRST_BYTE_FLOOR,
        stall_floor: float = STALL_FLOOR,
    ) -> None:
        self.blocks = 0
        self.first_byte_floor = first_byte_floor
        self.stall_floor = stall_floor
        self._share = share
        self._earned = 1.0 if share else 0.0  # the first slow request of a run is as bad as any other
        self._allowed = allowance if share else 0
        self._guesses = (max(first_byte_floor, first_byte_guess), max(stall_floor, stall_guess))
        self._first_bytes = Recent(memory=256)
        self._slowest = 0.0
        self.waiting = 0
        self._gaps = Recent(memory=4096)
        self.stall_limit = self._guesses[1]
        self._since_limit = 0

    @property
    def never(self) -> bool:
        """Whether no hedge is ever sent."""
        return not self._share

    def earn(self, requests: float = 1.0) -> None:
        """Requests were sent, other than hedges; or bytes came that count like as many."""
        self._earned = min(SAVED, self._earned + self._share * requests)

    def first_byte(self, seconds: float) -> None:
        """A response began."""
        self._first_bytes.observe(seconds)
        self._slowest = max(self._slowest, seconds)

    def block(self, seconds: float, nbytes: int) -> None:
        """A block of a body came, after `seconds`."""
        self._gaps.observe(seconds)
        self.earn(nbytes / EARNS)
        self.blocks += 1
        self._since_limit += 1
        if self._since_limit == 32 or self.blocks == FIRST_BLOCKS:
            self._since_limit = 0
            self.stall_limit = max(self.stall_floor, 4.0 * self._gaps.quantile(0.99))

    def is_measured(self) -> bool:
        """Whether enough responses began to say what late is: of all requests so far, those that wait included."""
        answered = self._first_bytes.seen
        return answered >= FEW or answered >= 3 * max(1, self.waiting)

    def first_byte_limit(self) -> float:
        """Seconds after which a response that has not begun is late."""
        if not self.is_measured():
            return self._guesses[0]
        usual = 2.0 * self._first_bytes.quantile(0.75) if self._first_bytes.seen >= 8 else 4.0 * self._slowest
        return max(self.first_byte_floor, usual)

    def flows_since(self, blocks: int) -> bool:
        """Whether other bodies flow: enough blocks came since the count was `blocks`."""
        return self.blocks - blocks >= FIRST_BLOCKS

    def spend(self, *, beside_siblings: bool = False) -> bool:
        """Whether a hedge may be sent now; if so, it is paid for.

        Args:
            beside_siblings: It is for what is late while others are not: then the allowance may pay for it.
        """
        if self._earned >= 1.0:
            self._earned -= 1.0
            return True
        if beside_siblings and self._allowed:
            self._allowed -= 1
            return True
        return False


Look = Callable[[float, float], float | None]
"""Looks at a wait, given the time and for how long the loop was blocked; returns when to look again, None for never."""


class SharedTimer:
    """One timer of the event loop for many waits: it is set for the first that is due.

    It outlives the wait that it was set for: waits that are short cost none.
    """

    def __init__(self) -> None:
        self._waits: dict[Look, float] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, look: Look, due: float) -> None:
        """Looks at a wait when it is due."""
        self._waits[look] = due
        if self._handle is None or due < self._due:
            self._set(due)

    def remove(self, look: Look) -> None:
        """The wait is over."""
        self._waits.pop(look, None)

    def _set(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = asyncio.get_running_loop().call_at(due, self._fire)

    def _fire(self) -> None:
        self._handle, now = None, asyncio.get_running_loop().time()
        for look, due in [(look, due) for look, due in self._waits.items() if due <= self._due]:
            if look in self._waits:  # an earlier one may have ended this wait
                again = look(now, now - due)
                if again is None:
                    self.remove(look)
                else:
                    self._waits[look] = again
        if self._waits:
            self._set(min(self._waits.values()))


_reached: set[str] = set()
"""Servers and buckets that have answered this process."""


class Limiter:
    """The requests to one bucket: how fast they may go. All times are of one clock, in seconds.

    Args:
        name: The server and the bucket; "" where no server is asked.

    Attributes:
        name: As above.
        warned_at: When the log last said that the server is waited for.
        rate: Requests per second; None: no limit.
        answers: How many requests were answered well.

    >>> limiter = Limiter()
    >>> for step in range(100):
    ...     limiter.sent(step / 50)
    >>> limiter.throttled(2.0, sent_at=1.98)
    >>> 20 < limiter.rate < 35
    True
    >>> limiter.sent(2.0)
    >>> 1 / 35 < limiter.delay(2.0) < 1 / 20
    True
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.warned_at = -math.inf
        self.rate: float | None = None
        self.answers = 0
        self._turn = asyncio.Lock()  # serves in the order of arrival
        self._next = 0.0
        self._lowered_at = -math.inf
        self._too_much = 0.0
        self._level = 0.0  # requests of about the last second
        self._level_at = 0.0
        self._served = self._refused = 0  # in this round

    async def turn(self) -> float:
        """Waits until a request may go. Returns the seconds it waited."""
        if self.rate is None:
            self.sent(time.monotonic())
            return 0.0
        began = time.monotonic()
        async with self._turn:
            while (delay := self.delay(time.monotonic())) > 0:  # noqa: ASYNC110  a Retry-After can come meanwhile
                await asyncio.sleep(delay)
            now = time.monotonic()
            self.sent(now)
        return now - began

    def delay(self, now: float) -> float:
        """Seconds until the next request may go; 0.0 for now."""
        return 0.0 if self.rate is None else max(0.0, self._next - now)

    def sent(self, now: float) -> None:
        """A request goes."""
        self._level = 1.0 + self._level * math.exp(min(0.0, self._level_at - now))
        self._level_at = now
        if self.rate is not None:
            self._next = max(self._next, now) + 1.0 / self.rate

    @property
    def is_reached(self) -> bool:
        """Whether this server has answered this process, for this bucket."""
        return self.name in _reached

    def reached(self) -> None:
        """It has, if only with an error."""
        if self.name:
            _reached.add(self.name)

    def answered(self) -> None:
        """A request was answered well."""
        self.answers += 1
        if self.answers == 1:
            self.reached()
        if self.rate is not None:
            self._served += 1
            self.rate += max(1.0, 0.2 * self._too_much) / self.rate
            if self.rate > 4.0 * self._too_much:
                self.rate = None

    def throttled(self, now: float, sent_at: float, retry_after: float | None = None) -> None:
        """The store asked for fewer requests.

        Args:
            now: When its answer came.
            sent_at: When the request was sent.
            retry_after: Seconds that it asked to wait, or None.
        """
        if sent_at >= self._lowered_at:
            self._refused += 1
        if sent_at >= self._lowered_at + SETTLE:
            self._lower(now)
        if retry_after:
            self._next = max(self._next, now + min(retry_after, HOLD_CAP))

    def _lower(self, now: float) -> None:
        if self.rate is None:
            self._too_much, left = self._level, 0.7
        else:
            self._too_much, left = self.rate, 1.0 - 0.5 * self._refused / (self._refused + self._served)
        self._too_much = max(MIN_RATE, self._too_much)
        self.rate = max(MIN_RATE, left * self._too_much)
        self._lowered_at = now
        self._next = max(self._next, now)
        self._served = self._refused = 0


class Traffic:
    """The requests of one Storage.

    Args:
        scheme: Under which name the store is counted.
        hedging: When second requests are sent; None: never.
        endpoint: The URL of the server; "" where the URLs of objects say it; None where no server is asked.
    """

    def __init__(
        self,
        statistics: Statistics | None = None,
        scheme: str = "",
        hedging: Hedging | None = None,
        endpoint: str | None = None,
    ) -> None:
        self.statistics = statistics or Statistics()
        self.tally: Tally = self.statistics.backend(scheme)
        self.hedging = hedging or Hedging(0.0, 0.0, 0.0)
        self.timer = SharedTimer()
        self._endpoint = endpoint
        self._limiters: dict[str, Limiter] = {}

    def limiter(self, path: str) -> Limiter:
        """The limiter of the bucket (or host) of a URL."""
        bucket = path.partition("://")[2].partition("/")[0]
        limiter = self._limiters.get(bucket)
        if limiter is None:
            limiter = self._limiters[bucket] = Limiter("" if self._endpoint is None else f"{self._endpoint} {bucket}")
        return limiter

    def affords(self, limiter: Limiter, *, beside_siblings: bool = False, stalled: bool = False) -> bool:
        """Whether a request more than are needed may be made now; if so, it is paid for.

        A store that throttles gets none, but for a body that is stalled, and in its turn.
        """
        if limiter.rate is not None and not (stalled and limiter.delay(time.monotonic()) == 0.0):
            return False
        return self.hedging.spend(beside_siblings=beside_siblings)

    def hedge(self, limiter: Limiter, tally: Tally, *, beside_siblings: bool = False, stalled: bool = False) -> bool:
        """Whether a second request may be sent now; if so, it is counted and paid for.

        Args:
            beside_siblings: Others are not late.
            stalled: It is for a body that is stalled, and not for a response that has not begun.
        """
        if not self.affords(limiter, beside_siblings=beside_siblings, stalled=stalled):
            return False
        limiter.sent(time.monotonic())
        tally.request()
        tally.count("hedges")
        return True
