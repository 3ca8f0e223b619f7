"""The one retry policy. What decides is pure; what awaits (`attempt`) only does what was decided.

Rules:

* Only `faults.TransientError` is tried again. Every other error is final and passes through untouched.
* What is limited is failure **without progress**: a body that delivers even one byte starts the count
  and the clock anew, so a long shard on a bad line gets through, and a dead server fails in seconds.
* Waiting grows exponentially with full jitter (the wait is drawn from [0, ceiling]), so that many streams
  that failed together do not come back together. Source: Brooker, "Exponential Backoff And Jitter", AWS
  Architecture Blog, 2015. A Retry-After from the server is a lower bound.
* Every attempt has a time limit, so nothing hangs.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from streamrec.storage.faults import Cause, TransientError, give_up
from streamrec.storage.statistics import Tally

__all__ = ["Failures", "RetryPolicy", "attempt", "next_delay", "within"]

T = TypeVar("T")


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
        upload_rate: Bytes per second that an upload must reach at the least; sets the time limit of a part.
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

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it counts the first one too, so pass 1 or more")

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
    """Counts what went wrong since the last progress, and waits as the policy decides.

    Args:
        policy: The limits.
        path: The object's URL, for the error.
        tally: Where they are counted.
    """

    __slots__ = ("_count", "_path", "_policy", "_since", "_tally")

    def __init__(self, policy: RetryPolicy, path: str, tally: Tally) -> None:
        self._policy = policy
        self._path = path
        self._tally = tally
        self._count = 0
        self._since = 0.0

    def progress(self) -> None:
        """Something arrived: the count and the clock start anew with the next failure."""
        self._count = 0

    async def wait(self, fault: TransientError, start: int | None = None, end: int | None = None) -> None:
        """Waits for the next attempt, or raises the final error `from` the fault."""
        now = time.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        delay = next_delay(self._policy, self._count, now - self._since, fault, random.random())
        if delay is None:
            self._tally.failure()
            raise give_up(fault, self._count, self._path, start, end) from fault
        self._tally.retry(fault.cause)
        await asyncio.sleep(delay)


async def within(seconds: float, awaitable: Awaitable[T], doing: str) -> T:
    """Awaits with a time limit; past it a TransientError, Cause.TIMED_OUT.

    Args:
        seconds: The limit.
        awaitable: What to await; cancelled at the limit.
        doing: What was awaited, for the message.
    """
    try:
        async with asyncio.timeout(seconds):
            return await awaitable
    except TimeoutError as error:
        raise TransientError(Cause.TIMED_OUT, f"{doing}: nothing for {seconds:g} s") from error


async def attempt(
    policy: RetryPolicy,
    path: str,
    call: Callable[[], Awaitable[T]],
    doing: str,
    *,
    tally: Tally | None = None,
    limit: float | None = None,
    start: int | None = None,
    end: int | None = None,
) -> T:
    """Calls until it succeeds, fails for good, or the policy gives up.

    Args:
        policy: The limits.
        path: The object's URL, for errors.
        call: Makes one attempt.
        doing: What it does, in a word or two, for errors.
        tally: Where its requests are counted; None: nowhere.
        limit: Seconds for each attempt; None: the policy's limit for a request that sends nothing.
        start: First byte of the range, for errors.
        end: One past the last byte, for errors.

    Raises:
        StorageError: Final, or not passed within the policy.
    """
    tally = tally or Tally()
    failures = Failures(policy, path, tally)
    seconds = policy.request_timeout() if limit is None else limit
    while True:
        tally.request()
        try:
            return await within(seconds, call(), doing)
        except TransientError as fault:
            await failures.wait(fault, start, end)
