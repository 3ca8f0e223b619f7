"""The limiter slows down all requests to a bucket together, not each stream by itself.

Rules:

* Nothing is limited until the store asks for fewer requests (503 SlowDown, 429). The limit starts
  from the current request rate and then follows TCP: multiplicative decrease, additive increase.
  Source: Chiu and Jain, "Analysis of the Increase and Decrease Algorithms for Congestion
  Avoidance", 1989.
* The first decrease leaves 0.7 of the rate. `too_much` is the rate that was too much when the store
  last served some requests and refused others. The rate grows with each success (`growth`): it
  doubles quickly up to half of `too_much`, then closes the gap, grows slowly around `too_much`, and
  faster again above it. Source of this shape: Ha, Rhee and Xu, "CUBIC: A New TCP-Friendly
  High-Speed TCP Variant", 2008.
* A store that refuses everything for a while says nothing about the rate that it allows. Such a
  round lowers the rate, but not `too_much`, so that the old rate is back soon. If the store never
  refused only some requests, this was an outage: the rate grows quickly up to `too_much`, where the
  limit is dropped. A store whose limit looks like that is found out by its next outage.
* One decrease per round: an answer to a request sent before the last decrease is ignored, and an
  answer to a request sent less than `SETTLE` after it is only counted, because stores average over
  a second or so.
* The decrease is half of the share that was refused in the round, so that a store which refuses few
  requests is not treated as one that refuses all. Source: Alizadeh and others, "Data Center TCP",
  2010.
* A Retry-After delays all requests, for at most `HOLD_CAP`: no server stops a run for an hour.
* First come, first served: the request that waits longest goes next, so no stream starves.
* The limit is dropped when the rate has grown to twice the rate that was too much.

Requests are limited and not connections, because stores throttle requests, and an open response is
not a request. All times are of one clock, in seconds.
"""

from __future__ import annotations

import asyncio
import math
import time
from enum import Enum, auto
from typing import Final

SETTLE: Final = 0.3
"""Seconds until a decrease shows its effect."""

MIN_RATE: Final = 5.0
"""Requests per second that are always allowed: one refusal must not delay a reader of few requests
by a second."""

START_GROWTH: Final = 2.0
"""How fast the rate grows up to half of what was too much: e**2, or sevenfold, in a second."""

GAP_GROWTH: Final = 1.0
"""Which part of the gap to what was too much a second closes."""

PROBE_GROWTH: Final = 0.025
"""How fast the rate grows around what was too much, as a part of that in a second.

A store that limits to a fixed rate refuses about 3 % of the requests for this; 0.06 makes it 5 %.
"""

OUTAGE_INTERVAL: Final = 60.0
"""Seconds after an outage in which another burst of refusals is taken for a limit. Not tuned."""

SMALL_SHARE: Final = 0.25
KEPT_GAP: Final = 0.5
"""A round in which less than SMALL_SHARE was refused closes only half of the gap between `too_much`
and the rate, so that a store that refuses a few requests at random is slowed down less: with 3 in
100 refused, 108 of 320 requests a second were served (68 without this; 296 with 0.8, which takes
ten seconds longer to find the rate of a store that really limits)."""

HOLD_CAP: Final = 30.0
"""Seconds that a Retry-After may delay all requests."""


class RecentRequests:
    """How many requests were sent in about the last second: a count that fades exponentially."""

    def __init__(self) -> None:
        self.count = 0.0
        self._at = 0.0

    def record(self, now: float) -> None:
        """Records a request that was sent now."""
        self.count = 1.0 + self.count * math.exp(min(0.0, self._at - now))
        self._at = now


class Reason(Enum):
    """Why the store refused requests, as far as its answers show it."""

    UNKNOWN = auto()
    LIMIT = auto()  # it served some and refused others
    OUTAGE = auto()  # it refused everything


class RateLimit:
    """The rate that a store allows, learnt from its answers. Pure.

    A `rate` is in requests per second; None: no limit.

    Examples:
        >>> limit = RateLimit()
        >>> for step in range(100):
        ...     limit.record_request(step / 50)
        >>> limit.record_refusal(2.0, sent_at=1.98)
        True
        >>> 20 < limit.rate < 35
        True
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        self._recent = RecentRequests()
        self._too_much = 0.0
        self._reason = Reason.UNKNOWN
        self._outage_ended = -math.inf
        self._lowered_at = -math.inf
        self._served = 0  # in this round
        self._refused = 0

    def record_request(self, now: float) -> None:
        """Records a request that was sent now."""
        self._recent.record(now)

    def record_success(self, sent_at: float) -> None:
        """Records an answer other than a refusal: the rate grows, and the limit may be dropped.

        An answer to a request from before the last decrease says nothing about the lower rate.
        """
        if self.rate is None:
            return
        if sent_at >= self._lowered_at:
            self._served += 1
        self.rate += self.growth(self.rate) / self.rate  # there are `rate` successes in a second
        if self._reason is Reason.OUTAGE:
            if self.rate > self._too_much:
                self.rate = None
                self._outage_ended = sent_at
        elif self.rate > 2.0 * self._too_much:
            self.rate = None

    def growth(self, rate: float) -> float:
        """Returns by how much this rate grows in a second, if it is used."""
        if rate < 0.5 * self._too_much or self._reason is Reason.OUTAGE:
            return START_GROWTH * rate
        probe = max(1.0, PROBE_GROWTH * self._too_much)
        return probe + abs(self._too_much - rate) * GAP_GROWTH

    def record_refusal(self, now: float, sent_at: float) -> bool:
        """Records that the store asked for fewer requests; whether the rate was lowered."""
        if sent_at >= self._lowered_at:
            self._refused += 1
        if sent_at < self._lowered_at + SETTLE:
            return False
        if self.rate is None:
            rate = self._recent.count
            left = 0.7
            self._too_much = max(MIN_RATE, rate)
            is_repeated = now < self._outage_ended + OUTAGE_INTERVAL
            self._reason = Reason.LIMIT if is_repeated else Reason.UNKNOWN
        else:
            rate = self.rate
            share = self._refused / (self._refused + self._served)
            left = 1.0 - 0.5 * share
            if self._served:
                kept = KEPT_GAP if share < SMALL_SHARE else 0.0
                self._too_much = max(MIN_RATE, rate + kept * (self._too_much - rate))
                self._reason = Reason.LIMIT
            elif self._reason is Reason.UNKNOWN:
                self._reason = Reason.OUTAGE
        self.rate = max(MIN_RATE, left * rate)
        self._lowered_at = now
        self._served = 0
        self._refused = 0
        return True


_reached: set[str] = set()
"""Servers and buckets that have answered this process."""


class Limiter:
    """Lets the requests to one bucket pass, one after another if their rate is limited.

    Attributes:
        name: The server and the bucket; "" without a server.
        limit: The rate that the store allows.
        answers: How many requests succeeded.
        warned_at: When the log last warned of a wait for this bucket.

    Examples:
        >>> limiter = Limiter()
        >>> for step in range(100):
        ...     limiter.record_request(step / 50)
        >>> limiter.record_throttling(2.0, sent_at=1.98)
        >>> limiter.record_request(2.0)
        >>> 1 / 35 < limiter.delay(2.0) < 1 / 20
        True
    """

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.warned_at = -math.inf
        self.answers = 0
        self.limit = RateLimit()
        self._turn = asyncio.Lock()  # serves in the order of arrival
        self._next = 0.0
        self._served = asyncio.Event()  # since the last refusal

    @property
    def rate(self) -> float | None:
        """Requests per second; None: no limit."""
        return self.limit.rate

    async def turn(self) -> float:
        """Waits until the next request may be sent, and records it; returns the seconds waited."""
        began = time.monotonic()
        if self.rate is None:
            self.record_request(began)
            return 0.0
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
        """Records a request that is sent now, and when the next one may be."""
        self.limit.record_request(now)
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

    def record_success(self, sent_at: float) -> None:
        """Records that a request succeeded that was sent then."""
        self.answers += 1
        if self.answers == 1:
            self.record_contact()
        if self.rate is not None:
            self._served.set()
            self.limit.record_success(sent_at)

    async def is_served_within(self, seconds: float) -> bool:
        """Waits until the store has served a request since its last refusal, for this long; whether
        it did.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._served.wait()
        except TimeoutError:
            return False
        return True

    def record_throttling(
        self, now: float, sent_at: float, retry_after: float | None = None
    ) -> None:
        """Lowers the rate, because the store, whose answer arrived `now`, asked for fewer
        requests.
        """
        self._served.clear()
        if self.limit.record_refusal(now, sent_at):
            self._next = max(self._next, now)
        if retry_after:
            self._next = max(self._next, now + min(retry_after, HOLD_CAP))
