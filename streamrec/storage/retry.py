"""The one retry policy. What decides is pure; what awaits (`attempt`) only does what was decided.

Rules:

* Only `faults.TransientError` is tried again. Every other error is final and passes through untouched.
* What is limited is failure **without progress**: a body that delivers even one byte starts the count
  and the clock again, so a long shard on a bad line gets through, and a dead server fails in seconds.
* Waiting grows exponentially with full jitter (the wait is drawn from [0, ceiling]), so that many streams
  that failed together do not come back together. Source: Brooker, "Exponential Backoff And Jitter", AWS
  Architecture Blog, 2015. A Retry-After from the server is a lower bound.
* Every attempt has a time limit, so nothing hangs. Waiting for the limiter's leave is not part of it, nor of
  the budget.
* A store that throttles us while it answers others of our requests is alive: such refusals do not count as
  attempts, only the budget ends them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from streamrec.display import display_name
from streamrec.storage.faults import Cause, TransientError, give_up
from streamrec.storage.hedging import ALLOWANCE, FIRST_BYTE_FLOOR, STALL_FLOOR
from streamrec.storage.statistics import Tally
from streamrec.storage.traffic import Traffic

__all__ = ["Failures", "RetryPolicy", "attempt", "next_delay"]

T = TypeVar("T")

_logger = logging.getLogger("streamrec")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how fast and for how long a failing request is tried again.

    Attributes:
        attempts: Attempts in a row without progress before giving up, at least 1. With the other defaults
            a server that refuses connections is given up after 4 s on average, 8 s at most.
        backoff_base: Ceiling of the first wait in seconds; it doubles with each failure.
        backoff_cap: Ceiling of all waits in seconds.
        connect_timeout: Seconds for a connection to be made.
        first_byte_timeout: Seconds from the connection to the head of the response.
        stall_timeout: Seconds that a body may stand still; a socket that is silent for so long is given up
            before the head of the response too.
        complete_timeout: Seconds for the store to put the parts of an upload together.
        budget: Seconds from the first failure, without progress since, after which no further attempt
            begins. A wait that the server asks for and that does not fit in is not begun either.
        upload_rate: Bytes per second that an upload must reach; sets the time limit of a part.
        hedge_share: Second requests, sent where the first is late by this run's own measure, at most this share
            of all requests; 0 sends none. See `storage.hedging`.
        hedge_allowance: Second requests that may be sent before any share was earned, for what is late beside its
            siblings: a run of few requests earns none in time.
        first_byte_floor: Seconds within which no response is late enough for a second request.
        stall_floor: Seconds for which every body may give nothing without one.
    """

    attempts: int = 6
    backoff_base: float = 0.25
    backoff_cap: float = 4.0
    connect_timeout: float = 5.0
    first_byte_timeout: float = 15.0
    stall_timeout: float = 20.0
    complete_timeout: float = 120.0
    budget: float = 45.0
    upload_rate: float = 256 * 1024
    hedge_share: float = 0.1
    hedge_allowance: int = ALLOWANCE
    first_byte_floor: float = FIRST_BYTE_FLOOR
    stall_floor: float = STALL_FLOOR

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it counts the first one too, so pass 1 or more")
        if not 0.0 <= self.hedge_share <= 1.0:
            raise ValueError(f"hedge_share is {self.hedge_share}; it is a share of requests, from 0 to 1")
        if self.hedge_allowance < 0:
            raise ValueError(f"hedge_allowance is {self.hedge_allowance}; it counts requests, so pass 0 or more")
        for name in ("first_byte_floor", "stall_floor"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it is a time in seconds, above 0")

    def request_timeout(self, nbytes: int = 0) -> float:
        """Seconds that one request may take until its response begins, with `nbytes` to send before."""
        return self.connect_timeout + self.first_byte_timeout + nbytes / self.upload_rate


def next_delay(policy: RetryPolicy, failures: int, idle: float, fault: TransientError, jitter: float) -> float | None:
    """Decides what follows a fault.

    Args:
        policy: The limits.
        failures: Failed attempts in a row, this one included.
        idle: Seconds since the first of them.
        fault: What happened.
        jitter: A random number in [0, 1).

    Returns:
        Seconds to wait before the next attempt, or None: give up.

    >>> fault = TransientError(Cause.BROKEN, "reset")
    >>> next_delay(RetryPolicy(backoff_base=1.0), failures=3, idle=5.0, fault=fault, jitter=0.5)
    2.0
    >>> next_delay(RetryPolicy(attempts=3), failures=3, idle=5.0, fault=fault, jitter=0.5) is None
    True
    """
    if failures >= policy.attempts:
        return None
    ceiling = min(policy.backoff_cap, policy.backoff_base * 2.0 ** (failures - 1))
    delay = max(jitter * ceiling, fault.retry_after or 0.0)
    return delay if idle + delay < policy.budget else None


class Failures:
    """One operation's attempts: waits for its turn, counts what went wrong since the last progress, waits as the
    policy decides.

    Args:
        policy: The limits.
        path: The object's URL.
        traffic: What its requests share with others.
        tally: Where they are counted.

    Attributes:
        count: Failures in a row; the caller sets it to 0 when something arrived.
    """

    __slots__ = ("_answers", "_path", "_policy", "_sent_at", "_since", "_tally", "_traffic", "count", "limiter")

    def __init__(self, policy: RetryPolicy, path: str, traffic: Traffic, tally: Tally) -> None:
        self.limiter = traffic.limiter(path)
        self._policy = policy
        self._path = path
        self._traffic = traffic
        self._tally = tally
        self.count = 0
        self._since = 0.0
        self._sent_at = 0.0
        self._answers = 0

    async def turn(self) -> None:
        """Waits until a request may be sent, and counts it."""
        self._answers = self.limiter.answers
        waited = await self.limiter.turn()
        self._tally.request(waited)
        self._traffic.hedging.earn()
        self._sent_at = time.monotonic()
        self._since += waited

    async def wait(self, fault: TransientError, start: int | None = None, end: int | None = None) -> None:
        """Waits for the next attempt, or raises the final error `from` the fault."""
        now = time.monotonic()
        if self.count == 0:
            self._since = now
        if not self._throttled(fault, now) or self.count == 0:
            self.count += 1
        delay = next_delay(self._policy, self.count, now - self._since, fault, random.random())
        if delay is None:
            self._tally.count("failures")
            raise give_up(fault, self.count, self._path, start, end) from fault
        self._tally.count(fault.cause)
        _logger.info("%s: trying again in %.1f s after %s", display_name(self._path), delay, fault)
        await asyncio.sleep(delay)

    def _throttled(self, fault: TransientError, now: float) -> bool:
        """Tells the limiter of a refusal; whether the store answered others of our requests meanwhile."""
        if fault.cause is not Cause.THROTTLED:
            return False
        self._tally.count("throttled")
        self.limiter.throttled(now, self._sent_at, fault.retry_after)
        return self.limiter.answers != self._answers


async def attempt(
    policy: RetryPolicy,
    path: str,
    call: Callable[[], Awaitable[T]],
    doing: str,
    *,
    traffic: Traffic | None = None,
    limit: float | None = None,
    start: int | None = None,
    end: int | None = None,
) -> T:
    """Calls until it succeeds, fails permanently, or the policy gives up.

    Args:
        policy: The limits.
        path: The object's URL, for errors.
        call: Makes one attempt.
        doing: What it does, in a word or two, for errors.
        traffic: What its requests share with others; None: nothing.
        limit: Seconds for each attempt; None: the policy's limit for a request that sends nothing.
        start: First byte of the range, for errors.
        end: One past the last byte, for errors.

    Raises:
        StorageError: Final, or not passed within the policy.
    """
    traffic = traffic or Traffic()
    failures = Failures(policy, path, traffic, traffic.tally)
    seconds = policy.request_timeout() if limit is None else limit
    while True:
        await failures.turn()
        try:
            try:
                async with asyncio.timeout(seconds):
                    result = await call()
            except TimeoutError as error:
                raise TransientError(Cause.TIMED_OUT, f"{doing}: nothing for {seconds:g} s") from error
            failures.limiter.answered()
            return result
        except TransientError as fault:
            await failures.wait(fault, start, end)
