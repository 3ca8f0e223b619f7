"""Retries: `attempt` and `Failures` carry out what the policy (`faults.RetryPolicy`) decides.

Rules:

* Only a `faults.TransientError` is retried. Every other error is final and passes through
  unchanged.
* The limit is on the time **without progress**: a body that delivers even one byte resets the
  clock, so a long shard gets through a bad connection, and a store may be unreachable for minutes.
* A server that has not answered this process yet gets less time, because its address is usually
  wrong. So does a server that sends other bytes than were requested.
* Refused credentials are an error at once, unless they have worked before: newer ones may be on
  their way.
* The wait grows exponentially with full jitter (it is drawn from [0, ceiling]), so that streams
  that failed together do not retry together. Source: Brooker, "Exponential Backoff And Jitter", AWS
  Architecture Blog, 2015. A Retry-After from the server is a lower bound, within the patience.
* Every attempt has a time limit, so nothing hangs. Delays by the limiter count neither for it nor
  for the patience.
* A store that throttles us while it answers other requests of ours is alive: such refusals do not
  increase the wait, and the first answer after a burst of refusals shortens all waits to that after
  one failure. The limiter holds the rate.
* Cleaning up after an error or a cancellation has `tasks.CLEANUP_PATIENCE`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from streamrec.display import display_name
from streamrec.storage.faults import Cause, RetryPolicy, TransientError, give_up, next_delay
from streamrec.storage.statistics import Tally
from streamrec.storage.tasks import patience_limit
from streamrec.storage.traffic import Traffic

T = TypeVar("T")

_logger = logging.getLogger("streamrec")


MIN_WARNING_SECONDS: Final = 10.0
"""Seconds without progress after which the log warns. Not tuned."""

WARNING_INTERVAL: Final = 60.0
"""Seconds between two warnings about one server. Not tuned."""


class Failures:
    """The failures of one operation since its last progress, and the waits before its attempts.

    `limiter` is that of the object's bucket, `count` the failures in a row. It is `waiting` if a
    request failed, or gave nothing for ten seconds, since the last progress.
    """

    def __init__(self, policy: RetryPolicy, path: str, traffic: Traffic, tally: Tally) -> None:
        self.limiter = traffic.limiter(path)
        self.policy = policy
        self._path = path
        self.traffic = traffic
        self.tally = tally
        self.count = 0
        self.waiting = False
        self._since = 0.0
        self._sent_at = 0.0
        self._answers = 0

    async def turn(self) -> None:
        """Waits until a request may be sent, and counts it."""
        self._answers = self.limiter.answers
        waited = await self.limiter.turn()
        self.tally.request(waited)
        self.traffic.hedging.budget.earn()
        self._sent_at = time.monotonic()
        self._since += waited

    def record_success(self) -> None:
        """Records that the last request was answered."""
        self.limiter.record_success(self._sent_at)

    def progress(self) -> None:
        """Resets the failures, because bytes arrived, or the operation ended."""
        self.count = 0
        self.waiting = False
        self.traffic.statistics.waits.pop(self, None)

    def report_stall(self, seconds: float, reason: str) -> None:
        """Reports in `stats()` and the log that an open request has given nothing for this long."""
        if not self.waiting:
            self.waiting = True
            self._since = time.monotonic() - seconds
        self._report(seconds, self._patience(TransientError(Cause.TIMED_OUT, reason)), reason)

    async def wait(
        self, fault: TransientError, start: int | None = None, end: int | None = None
    ) -> None:
        """Waits for the next attempt, or raises the final error `from` the fault."""
        now = time.monotonic()
        if fault.cause in (Cause.THROTTLED, Cause.SERVER):
            self.limiter.record_contact()
        if not self.waiting:
            self.waiting = True
            self._since = now
        if not self._is_throttled_alive(fault, now) or self.count == 0:
            self.count += 1
        patience = self._patience(fault)
        delay = next_delay(
            self.policy,
            self.count,
            now - self._since,
            fault=fault,
            jitter=random.random(),
            patience=patience,
        )
        if delay is None:
            self.tally.count("failures")
            reached = self.limiter.is_reached
            raise give_up(
                fault,
                self.count,
                now - self._since,
                self._path,
                start=start,
                end=end,
                reached=reached,
            ) from fault
        self.tally.count(fault.cause)
        _logger.info("%s: trying again in %.1f s after %s", display_name(self._path), delay, fault)
        self._report(now + delay - self._since, patience, str(fault))
        await self._sleep_until(now + delay, fault)

    async def _sleep_until(self, until: float, fault: TransientError) -> None:
        """Sleeps, but not beyond the patience, and only briefly once a store that refused us serves
        others.
        """
        # Shards are read in turn, so the one that sleeps longest stops all that the store serves.
        may_be_shorter = (
            self.count > 1 and fault.cause is Cause.THROTTLED and fault.retry_after is None
        )
        while (left := min(until, self._since + self._patience(fault)) - time.monotonic()) > 0:
            step = min(left, 1.0)  # the patience may become shorter
            if not may_be_shorter:
                await asyncio.sleep(step)
            elif await self.limiter.is_served_within(step):
                may_be_shorter = False
                until = min(until, time.monotonic() + random.random() * self.policy.backoff_base)

    def _patience(self, fault: TransientError) -> float:
        return min(self.policy.patience_for(fault, self.limiter.is_reached), patience_limit())

    def _report(self, idle: float, patience: float, reason: str) -> None:
        """Reports a wait in the statistics and, if it is long, in the log.

        The log has one a minute per server.

        `idle` is the time without progress in seconds, until the next attempt.
        """
        # `stats()` shows each wait; the log only long ones: many streams wait for one server.
        now = time.monotonic()
        self.traffic.statistics.waits[self] = (
            self._path,
            reason,
            self._since,
            self._since + patience,
        )
        if idle < MIN_WARNING_SECONDS or now < self.limiter.warned_at + WARNING_INTERVAL:
            return
        self.limiter.warned_at = now
        others = len(self.traffic.statistics.waits) - 1
        _logger.warning(
            "%s: %s; no progress for %.0f s. Retrying for %.0f s more (RetryPolicy(%s=%g))%s",
            display_name(self._path),
            reason,
            now - self._since,
            max(0.0, self._since + patience - now),
            "patience" if patience == self.policy.patience else "first_contact",
            patience,
            f"; {others} more are waiting" if others else "",
        )

    def _is_throttled_alive(self, fault: TransientError, now: float) -> bool:
        """Reports a throttled request to the limiter.

        Returns whether the store answered other requests of ours meanwhile.
        """
        if fault.cause is not Cause.THROTTLED:
            return False
        self.tally.count("throttled")
        self.limiter.record_throttling(now, self._sent_at, fault.retry_after)
        return self.limiter.answers != self._answers


async def attempt(
    policy: RetryPolicy,
    path: str,
    call: Callable[[], Awaitable[T]],
    doing: str,
    *,
    traffic: Traffic | None = None,
    tally: Tally | None = None,
    limit: float | None = None,
    start: int | None = None,
    end: int | None = None,
) -> T:
    """Calls until it succeeds, fails permanently, or the policy gives up.

    `doing` describes the call in errors. Each attempt may take `limit` seconds; by default as long
    as a request without a body. Requests count in `tally`, by default that of the `traffic`; a call
    without traffic is not a request.
    """
    is_short = traffic is not None and limit is None  # a request with a short body
    traffic = traffic or Traffic()
    failures = Failures(policy, path, traffic, tally or traffic.tally)
    seconds = policy.request_timeout() if limit is None else limit
    warn = partial(failures.report_stall, MIN_WARNING_SECONDS, f"{doing}: no answer yet")
    try:
        while True:
            await failures.turn()
            warning = (
                asyncio.get_running_loop().call_later(MIN_WARNING_SECONDS, warn)
                if is_short
                else None
            )
            try:
                try:
                    async with asyncio.timeout(seconds):
                        result = await call()
                except TimeoutError as error:
                    raise TransientError(
                        Cause.TIMED_OUT, f"{doing}: nothing for {seconds:g} s"
                    ) from error
                finally:
                    if warning is not None:
                        warning.cancel()
                failures.record_success()
                return result
            except TransientError as fault:
                await failures.wait(fault, start, end)
    finally:
        if failures.waiting:
            failures.progress()


@dataclass(frozen=True, slots=True)
class ObjectRequests:
    """The requests for one object: repeated by one policy, counted in one store's traffic."""

    path: str
    policy: RetryPolicy
    traffic: Traffic

    async def attempt(
        self,
        call: Callable[[], Awaitable[T]],
        doing: str,
        *,
        limit: float | None = None,
        start: int | None = None,
        end: int | None = None,
    ) -> T:
        """Calls until it succeeds, as the function `attempt` does; the bytes are for errors."""
        return await attempt(
            self.policy,
            self.path,
            call,
            doing,
            traffic=self.traffic,
            limit=limit,
            start=start,
            end=end,
        )
