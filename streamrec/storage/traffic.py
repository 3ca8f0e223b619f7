"""Traffic: the state that all requests to one store share: statistics, a timer, hedging, and a
limiter per bucket.

Waits for bytes share one timer: a timer each would add a tenth to the cost of a small object, and
hardly ever fires.

**Hedging** decides when to send a second request for the same bytes; `request.py` sends it. A store
answers most requests in the usual time and a few very late. A second request, sent when the first
is late compared with the other requests of this run, is then likely to be faster. Source: Dean and
Barroso, "The Tail at Scale", 2013. Rules:

* The limits are learnt: twice the 75th percentile of the time to the first byte, four times the
  99th percentile of the time between blocks. Old observations fade, so that the limits soon follow
  a network that becomes slow.
* Until enough answers are seen, concurrent requests serve as the measure: once three times as many
  requests were answered as are waiting, a request is late after four times the slowest answer.
  Before that, limits are guesses: a tenth of the policy's time limits.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge,
  and at most `SAVED` are saved up. In addition a run has an `allowance` of a few hedges before it
  has earned any, which pays only for requests that are later than their siblings. So in a network
  that is slow everywhere, extra traffic stays below that share.
* Nothing is late before a floor, which the policy sets.

**The limiter** slows down all requests to a bucket together, not each stream by itself. Rules:

* Nothing is limited until the store asks for fewer requests (503 SlowDown, 429). The limit starts
  from the current request rate and then follows TCP: multiplicative decrease, additive increase.
  Source: Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion
  Avoidance", 1989.
* The first decrease leaves 0.7 of the rate. Each second, if it is used, the rate grows by a fifth
  of what it was at the last decrease, and by at least one request a second.
* One decrease per round: an answer to a request sent before the last decrease is ignored, and an
  answer to a request sent less than `SETTLE` after it is only counted, because stores average over
  a second or so.
* The decrease is half of the share that was refused in the round, so that a store which refuses one
  request in ten at random is not treated as overloaded. Source: Alizadeh and others, "Data Center
  TCP", 2010.
* A Retry-After delays all requests, for at most `HOLD_CAP`: no server stops a run for an hour.
* First come, first served: the request that waits longest goes next, so no stream starves.
* The limit is dropped when the rate has grown to four times the rate that was too much.

Requests are limited and not connections, because stores throttle requests, and an open response is
not a request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from streamrec.storage.backend import FastPath
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.statistics import LatencyHistogram, Statistics, Tally

FEW: Final = 32
"""Below this number of answers, waiting requests count in the measure, too."""

FIRST_BLOCKS: Final = 8
"""Blocks after which the times between them are a measure."""

EARNS: Final = 8 << 20
"""Bytes of a body that earn as much as a request."""

SAVED: Final = 4.0
"""Hedges that may be saved up, and sent together."""

SETTLE: Final = 0.3
"""Seconds until a decrease shows its effect."""

MIN_RATE: Final = 5.0
"""Requests per second that are always allowed: one refusal must not delay a reader of few requests
by a second."""

HOLD_CAP: Final = 30.0
"""Seconds that a Retry-After may delay all requests."""


class Hedging:
    """The latencies of one store, and its budget of hedges.

    Attributes:
        never: Whether hedging is off.
        blocks: How many blocks arrived, on all connections.
        waiting: How many requests wait for their response, hedges included.
        stall_limit: Seconds until a body without new bytes is stalled.

    >>> hedging = Hedging(RetryPolicy(hedge_share=0.5))
    >>> for _ in range(100):
    ...     hedging.earn()
    ...     hedging.first_byte(0.040)
    >>> hedging.first_byte_limit() == hedging.first_byte_floor
    True
    >>> [hedging.spend() for _ in range(5)]
    [True, True, True, True, False]
    >>> [hedging.spend(others_on_time=True) for _ in range(5)]
    [True, True, True, True, False]
    """

    def __init__(self, policy: RetryPolicy) -> None:
        share = policy.hedge_share
        self.never = not share
        self.blocks = 0
        self.first_byte_floor = policy.first_byte_floor
        self.stall_floor = policy.stall_floor
        self._share = share
        self._earned = (
            1.0 if share else 0.0
        )  # the first slow request of a run is as bad as any other
        self._allowed = policy.hedge_allowance if share else 0
        self._first_bytes = LatencyHistogram(memory=256)
        self._first_byte_guess = max(policy.first_byte_floor, policy.first_byte_timeout / 10)
        self._slowest = 0.0
        self.waiting = 0
        self._gaps = LatencyHistogram(memory=4096)
        self.stall_limit = max(policy.stall_floor, policy.stall_timeout / 10)
        self._since_limit = 0

    def earn(self, requests: float = 1.0) -> None:
        """Adds to the budget for requests other than hedges, or for bytes that count as much."""
        self._earned = min(SAVED, self._earned + self._share * requests)

    def first_byte(self, seconds: float) -> None:
        """Records the seconds until a response began."""
        self._first_bytes.observe(seconds)
        self._slowest = max(self._slowest, seconds)

    def block(self, seconds: float, nbytes: int) -> None:
        """Records a block of a body, and the seconds since the one before."""
        self._gaps.observe(seconds)
        self.earn(nbytes / EARNS)
        self.blocks += 1
        self._since_limit += 1
        if self._since_limit == 32 or self.blocks == FIRST_BLOCKS:
            self._since_limit = 0
            self.stall_limit = max(self.stall_floor, 4.0 * self._gaps.estimate(0.99))

    def is_measured(self) -> bool:
        """Whether enough requests were answered, compared with those that wait, to know what is
        late.
        """
        answered = self._first_bytes.seen
        return answered >= FEW or answered >= 3 * max(1, self.waiting)

    def first_byte_limit(self) -> float:
        """Returns the seconds after which a response that has not begun is late."""
        if not self.is_measured():
            return self._first_byte_guess
        usual = (
            2.0 * self._first_bytes.estimate(0.75)
            if self._first_bytes.seen >= 8
            else 4.0 * self._slowest
        )
        return max(self.first_byte_floor, usual)

    def flows_since(self, blocks: int) -> bool:
        """Whether other bodies make progress: enough blocks arrived since the count was
        `blocks`.
        """
        return self.blocks - blocks >= FIRST_BLOCKS

    def spend(self, *, others_on_time: bool = False) -> bool:
        """Takes a hedge from the budget; False if it is used up. If others are on time, the
        allowance may pay, too.
        """
        if self._earned >= 1.0:
            self._earned -= 1.0
            return True
        if others_on_time and self._allowed:
            self._allowed -= 1
            return True
        return False


Look = Callable[[float, float], float | None]
"""Checks a wait, given the time and for how long the loop was blocked; returns when to check again,
None for never."""


class SharedTimer:
    """One timer of the event loop for many waits, set for the earliest one.

    It is not cancelled when that wait ends, so short waits need no timer of their own.
    """

    def __init__(self) -> None:
        self._waits: dict[Look, float] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, look: Look, due: float) -> None:
        """Has `look` called when it is due."""
        self._waits[look] = due
        if self._handle is None or due < self._due:
            self._set(due)

    def remove(self, look: Look) -> None:
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
    """The limit on the rate of requests to one bucket. All times are of one clock, in seconds.

    Its name is the server and the bucket; "" without a server. A `rate` is in requests per second;
    None: no limit. `answers` counts the requests that succeeded.

    >>> limiter = Limiter()
    >>> for step in range(100):
    ...     limiter.record_request(step / 50)
    >>> limiter.record_throttling(2.0, sent_at=1.98)
    >>> 20 < limiter.rate < 35
    True
    >>> limiter.record_request(2.0)
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
        self._level = 0.0  # requests in about the last second
        self._level_at = 0.0
        self._served = self._refused = 0  # in this round

    async def turn(self) -> float:
        if self.rate is None:
            self.record_request(time.monotonic())
            return 0.0
        began = time.monotonic()
        async with self._turn:
            while (delay := self.delay(time.monotonic())) > 0:  # noqa: ASYNC110  a Retry-After can come meanwhile
                await asyncio.sleep(delay)
            now = time.monotonic()
            self.record_request(now)
        return now - began

    def delay(self, now: float) -> float:
        """Returns the seconds until the next request may be sent."""
        return 0.0 if self.rate is None else max(0.0, self._next - now)

    def record_request(self, now: float) -> None:
        self._level = 1.0 + self._level * math.exp(min(0.0, self._level_at - now))
        self._level_at = now
        if self.rate is not None:
            self._next = max(self._next, now) + 1.0 / self.rate

    @property
    def is_reached(self) -> bool:
        """Whether this server has answered this process, for this bucket."""
        return self.name in _reached

    def record_contact(self) -> None:
        """Records that the server has answered, possibly with an error."""
        if self.name:
            _reached.add(self.name)

    def record_success(self) -> None:
        self.answers += 1
        if self.answers == 1 and self.name:
            _reached.add(self.name)
        if self.rate is not None:
            self._served += 1
            self.rate += max(1.0, 0.2 * self._too_much) / self.rate
            if self.rate > 4.0 * self._too_much:
                self.rate = None

    def record_throttling(
        self, now: float, sent_at: float, retry_after: float | None = None
    ) -> None:
        """Lowers the rate, because the store, whose answer arrived `now`, asked for fewer
        requests.
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
            self._too_much, left = (
                self.rate,
                1.0 - 0.5 * self._refused / (self._refused + self._served),
            )
        self._too_much = max(MIN_RATE, self._too_much)
        self.rate = max(MIN_RATE, left * self._too_much)
        self._lowered_at = now
        self._next = max(self._next, now)
        self._served = self._refused = 0


class Traffic:
    """The state that all requests of one Storage share.

    It never hedges without `hedging`. `endpoint` is the URL of the server; "" if the objects' URLs
    contain it; None without a server.
    """

    def __init__(
        self,
        statistics: Statistics | None = None,
        scheme: str = "",
        hedging: Hedging | None = None,
        endpoint: str | None = None,
        fast_paths: Iterable[FastPath] = (),
    ) -> None:
        self.statistics = statistics or Statistics()
        self.tally: Tally = self.statistics.backend(scheme, fast_paths)
        self.hedging = hedging or Hedging(RetryPolicy(hedge_share=0.0))
        self.timer = SharedTimer()
        self._endpoint = endpoint
        self._limiters: dict[str, Limiter] = {}

    def limiter(self, path: str) -> Limiter:
        """Returns the limiter of the bucket (or host) of a URL."""
        bucket = path.partition("://")[2].partition("/")[0]
        limiter = self._limiters.get(bucket)
        if limiter is None:
            limiter = self._limiters[bucket] = Limiter(
                "" if self._endpoint is None else f"{self._endpoint} {bucket}"
            )
        return limiter

    def hedge(
        self, limiter: Limiter, tally: Tally, *, others_on_time: bool = False, stalled: bool = False
    ) -> bool:
        """Takes a second request from the budget and counts it as a hedge; False if it may not be
        sent now.

        A store that throttles gets none, except for a `stalled` body when the limiter allows a
        request now.
        """
        if limiter.rate is not None and not (stalled and limiter.delay(time.monotonic()) == 0.0):
            return False
        if not self.hedging.spend(others_on_time=others_on_time):
            return False
        tally.count("hedges")
        return True
