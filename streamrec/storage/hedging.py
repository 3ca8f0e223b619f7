"""Hedging: second requests for the same bytes, where the first is late. When they are worth their price, and the race.

A store answers most requests in the usual time and a few very late. A second request, sent when the first is
late by this run's own measure, is then the faster way. Source: Dean and Barroso, "The Tail at Scale", 2013.

Rules:

* The limits are learnt: twice what three quarters of the responses took to begin, four times what 99 of 100 blocks
  took to come. Old observations fade, so that the limits soon follow a network that becomes slow.
* A request's siblings are a measure from the first second: when three times as many requests were answered as still
  wait, those that wait for four times as long as the slowest answer are late. Where no more than that is known, limits
  are guesses: a tenth of the policy's time limits.
* Extra traffic is capped: each request, and each `EARNS` bytes of a body, earn `share` of a hedge, and at most
  `SAVED` are saved up. Beside these a run has an `allowance` of a few hedges before it has earned any, which pays only
  for what is late beside its siblings. So a network that is slow everywhere costs at most that share more.
* Nothing is late before a floor, which the policy sets.
* A request that fails leaves the others running; its error counts when it was the last one, or when it is final,
  because a final error would be the same for all. `settle` leaves nothing behind: requests under way are cancelled,
  and a response that came after the first is closed, with its connection.
* All waits of a store share one timer: a timer for each is a tenth of what a small object costs, and hardly any is due.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Coroutine
from typing import Any, Final

from streamrec.storage.backend import Body
from streamrec.storage.faults import TransientError
from streamrec.storage.statistics import BOUNDS

__all__ = [
    "ALLOWANCE",
    "EARNS",
    "FIRST_BYTE_FLOOR",
    "SAVED",
    "STALL_FLOOR",
    "HedgedRequests",
    "Hedging",
    "MovingDeadline",
    "Recent",
    "SharedTimer",
]


class SharedTimer:
    """One timer of the event loop for many deadlines: it is set for the first that is due.

    It outlives the wait that it was set for: waits that are short cost none.
    """

    __slots__ = ("_due", "_handle", "_waiting")

    def __init__(self) -> None:
        self._waiting: dict[MovingDeadline, None] = {}
        self._handle: asyncio.TimerHandle | None = None
        self._due = 0.0

    def add(self, deadline: MovingDeadline) -> None:
        """Looks at it when it is due."""
        self._waiting[deadline] = None
        if self._handle is None or deadline.due < self._due:
            self._set(deadline.due)

    def remove(self, deadline: MovingDeadline) -> None:
        """Looks at it no more."""
        self._waiting.pop(deadline, None)

    def _set(self, due: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        self._handle = asyncio.get_running_loop().call_at(due, self._look)

    def _look(self) -> None:
        self._handle, due = None, self._due
        for deadline in [deadline for deadline in self._waiting if deadline.due <= due]:
            if deadline in self._waiting:  # what an earlier one called may have ended its wait
                deadline.look()
        if self._waiting:
            self._set(min(deadline.due for deadline in self._waiting))


class MovingDeadline:
    """Calls when a wait takes longer than a limit that may still change: others teach it meanwhile.

    It looks after `floor` seconds and then at doubled times, so at twice the limit at the latest. Time in which
    the loop itself stood still does not count: what is awaited may have come long ago. One is for many waits, one after
    the other.

    Args:
        timer: What it is looked at by.
        limit: The limit in seconds, as it is known now.
        floor: The least that it can be.
        call: Called when it is passed; returns whether to begin anew, since what it did may take too long as well.

    Attributes:
        due: When to look at it next.
    """

    __slots__ = ("_began", "_call", "_floor", "_limit", "_loop", "_timer", "due")

    def __init__(self, timer: SharedTimer, limit: Callable[[], float], floor: float, call: Callable[[], bool]) -> None:
        self._loop = asyncio.get_running_loop()
        self._timer = timer
        self._limit = limit
        self._floor = floor
        self._call = call
        self._began = self.due = 0.0

    def begin(self) -> None:
        """A wait begins."""
        self._began = self._loop.time()
        self.due = self._began + self._floor
        self._timer.add(self)

    def end(self) -> None:
        """It is over."""
        self._timer.remove(self)

    def look(self) -> None:
        """It is due."""
        now = self._loop.time()
        self._began += now - self.due  # how late the loop is
        taken, limit = now - self._began, self._limit()
        if taken < limit - 0.001:
            self.due = now + min(limit - taken, taken)
        elif self._call():
            self._began, self.due = now, now + self._floor
        else:
            self.end()


FIRST_BYTE_FLOOR: Final = 0.1
"""Seconds that every response may take to begin, where the policy says nothing else."""

STALL_FLOOR: Final = 0.5
"""Seconds that every body may stand still, where the policy says nothing else."""

ALLOWANCE: Final = 4
"""Hedges before any was earned, where the policy says nothing else."""

FEW: Final = 32
"""Answers; while there are fewer, requests that wait for theirs are part of the measure."""

SIBLINGS: Final = 3
"""So many answers for each request that waits are a measure for it."""

FIRST_BLOCKS: Final = 8
"""Blocks from which on their gaps are a measure."""

EARNS: Final = 8 << 20
"""Bytes of a body that count like a request."""

SAVED: Final = 4.0
"""Hedges that may be saved up, and sent together."""


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

    __slots__ = ("_counts", "_memory", "_seen")

    def __init__(self, memory: int) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._memory = memory
        self._seen = 0

    def __len__(self) -> int:
        return self._seen

    def observe(self, seconds: float) -> None:
        """Counts one observation."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seen += 1
        if self._seen == self._memory:
            self._counts = [count >> 1 for count in self._counts]
            self._seen = sum(self._counts)

    def quantile(self, share: float) -> float:
        """About what this share of them does not exceed, in seconds; 0.0 where there are none.

        Within its bucket they are taken to lie evenly: a bucket's bound alone may be 1.4 times too high.
        """
        wanted, below = share * self._seen, 0
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
        stall_guess: Seconds that a body may stand still, until enough blocks were seen.
        allowance: Hedges before any was earned, for what is late beside its siblings.
        first_byte_floor: Seconds that every response may take to begin.
        stall_floor: Seconds that every body may stand still.

    Attributes:
        blocks: How many blocks came, on all connections.

    >>> hedging = Hedging(0.5, first_byte_guess=1.5, stall_guess=2.0)
    >>> for _ in range(100):
    ...     hedging.requested()
    ...     hedging.first_byte(0.040)
    >>> hedging.first_byte_limit() == FIRST_BYTE_FLOOR
    True
    >>> [hedging.spend() for _ in range(5)]
    [True, True, True, True, False]
    >>> [hedging.spend(beside_siblings=True) for _ in range(5)]
    [True, True, True, True, False]
    """

    __slots__ = (
        "_allowed",
        "_earned",
        "_first_bytes",
        "_gaps",
        "_guesses",
        "_share",
        "_since_limit",
        "_slowest",
        "_stall_limit",
        "_waiting",
        "blocks",
        "first_byte_floor",
        "stall_floor",
    )

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
        self._waiting = 0
        self._gaps = Recent(memory=4096)
        self._stall_limit = self._guesses[1]
        self._since_limit = 0

    @property
    def never(self) -> bool:
        """Whether no hedge is ever sent."""
        return not self._share

    def requested(self) -> None:
        """A request was sent, other than a hedge."""
        self._earn(self._share)

    def waits(self) -> None:
        """A response is waited for, a hedge's too."""
        self._waiting += 1

    def waited(self) -> None:
        """It is not any more, whatever came of it."""
        self._waiting -= 1

    def first_byte(self, seconds: float) -> None:
        """A response began."""
        self._first_bytes.observe(seconds)
        self._slowest = max(self._slowest, seconds)

    def block(self, seconds: float, nbytes: int) -> None:
        """A block of a body came, after so many seconds."""
        self._gaps.observe(seconds)
        self._earn(self._share * nbytes / EARNS)
        self.blocks += 1
        self._since_limit += 1
        if self._since_limit == 32 or self.blocks == FIRST_BLOCKS:
            self._since_limit = 0
            self._stall_limit = max(self.stall_floor, 4.0 * self._gaps.quantile(0.99))

    def measured(self) -> bool:
        """Whether enough responses began to say what late is: of all requests so far, those that wait included."""
        answered = len(self._first_bytes)
        return answered >= FEW or answered >= SIBLINGS * max(1, self._waiting)

    def first_byte_limit(self) -> float:
        """Seconds after which a response that has not begun is late."""
        if not self.measured():
            return self._guesses[0]
        usual = 2.0 * self._first_bytes.quantile(0.75) if len(self._first_bytes) >= 8 else 4.0 * self._slowest
        return max(self.first_byte_floor, usual)

    def stall_limit(self) -> float:
        """Seconds after which a body that stands still is stalled."""
        return self._stall_limit

    def flows_since(self, blocks: int) -> bool:
        """Whether other bodies flow: enough blocks came since there were so many."""
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

    def _earn(self, amount: float) -> None:
        self._earned = min(SAVED, self._earned + amount)


class HedgedRequests:
    """Requests that run against each other.

    Attributes:
        answer: The first response, or the error that all came to.
        taken: Set by who took the answer: `settle` then leaves it open.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.taken = False
        self._running: set[asyncio.Task[Body]] = set()
        self._late: list[Body] = []

    def send(self, request: Coroutine[Any, Any, Body]) -> None:
        """Sends one more request."""
        task = asyncio.get_running_loop().create_task(request)
        self._running.add(task)
        task.add_done_callback(self._done)

    @property
    def failed(self) -> bool:
        """Whether all of them failed, in a way that another one may not; nothing is left to settle then."""
        answer = self.answer
        failed = answer.done() and not answer.cancelled() and isinstance(answer.exception(), TransientError)
        return failed and not self._running and not self._late

    async def settle(self) -> None:
        """Cancels and closes all but an answer that was taken."""
        answer = self.answer
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None and not self.taken:
            self._late.append(answer.result())
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # their callbacks come after
        while self._late:
            await self._late.pop().aclose()

    def _done(self, task: asyncio.Task[Body]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            return
        if self.answer.done():
            if error is None:
                self._late.append(task.result())
        elif error is None:
            self.answer.set_result(task.result())
        elif not self._running or not isinstance(error, TransientError):
            self.answer.set_exception(error)
