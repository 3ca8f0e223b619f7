"""ParallelMap: several calls of a function at once, ahead of the consumer.

Plain functions are called in threads, async ones in tasks of the loop. `Flight` knows what is under way, `Crew` and
`Grain` how much of it there should be; this file only calls.

Rules:
- In order, whatever precedes a failing element arrives, then its error once, with its traceback. Otherwise what had
  ended by then arrives before it.
- When the run is left by any way, no call begins any more; async calls are cancelled; both kinds are waited for.
- Input under way and results that wait stay within the share of the budget, as far as results are as large as those
  before them; one run of elements is always under way, or nothing would move.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from inspect import isawaitable, iscoroutinefunction
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from streamrec.errors import ClosedError
from streamrec.pipeline.background import background
from streamrec.pipeline.budget import Share
from streamrec.pipeline.chunk import Chunk, weigh
from streamrec.pipeline.description import Chain, Within, described
from streamrec.pipeline.inflight import Flight, Haul
from streamrec.pipeline.options import AUTOTUNE
from streamrec.pipeline.stages import called
from streamrec.pipeline.tuning import Crew, Grain

__all__ = ["ParallelMap", "is_async"]

UNDER_WAY: Final = Share(4)
"""What elements under way, and results that wait, may hold."""

OUTSTANDING: Final = 4
"""For each call that runs, so many runs of elements may have been started whose results were not delivered: while one
takes long, others go on."""

LEAST_RUN: Final = 8
"""Where little input is left, all calls get some of it, but none less than this part of a run that pays."""

CUT_SECONDS: Final = 0.05
"""A run of elements that takes longer gives what it has, and goes on."""

FIRST_AWAITED: Final = 8
MOST_AWAITED: Final = 128
"""AUTOTUNE of an async function: it waits for something else, so that the number of cores says nothing."""


@dataclass(frozen=True, slots=True)
class ParallelMap:
    """Calls a function for each element of a chain, `calls` at once, or AUTOTUNE."""

    inner: Chain
    function: Callable[..., Any]
    calls: int
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        if self.calls < 1 and self.calls != AUTOTUNE:
            raise ValueError(f"num_parallel_calls={self.calls} must be at least 1, AUTOTUNE, or None")

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield described(self)  # how many calls there are, and in which order results come, changes no element

    async def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        most_bytes, feeding = within.take(UNDER_WAY)
        position, done = (state["inner"], state["done"]) if state else (None, ())
        flight = Flight(within.deterministic if self.deterministic is None else self.deterministic, done)
        async with background() as tasks:
            calling = Calling(self.function, self.calls, flight, most_bytes, tasks)
            tasks.start_soon(calling.take_in, feeding.chunks(self.inner, position))
            try:
                while (chunk := await calling.next()) is not None:
                    yield chunk
            finally:
                calling.stopped = True


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called, is declared `async`."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


def crew_for(calls: int, awaits: bool) -> Crew:
    """How many calls at once: a number, or what helps."""
    if calls != AUTOTUNE:
        return Crew(calls, calls, calls)
    return Crew(FIRST_AWAITED, MOST_AWAITED) if awaits else Crew(min(2, cores()), cores())


def cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Ran(NamedTuple):
    """What a thread made of a run of elements: their results, and the error of the element behind them."""

    results: list[Any]
    nbytes: int
    seconds: float
    error: Exception | None


class Calling:
    """The calls of one run.

    Args:
        function: What is called.
        calls: How many at once, or AUTOTUNE.
        flight: What is under way.
        most_bytes: What that may hold.
        tasks: Where the calls live.

    Attributes:
        stopped: Whether nobody wants results any more.
    """

    def __init__(
        self, function: Callable[..., Any], calls: int, flight: Flight, most_bytes: int, tasks: TaskGroup
    ) -> None:
        self.stopped = False
        self._function = function
        self._calls = calls
        self._flight = flight
        self._most_bytes = most_bytes
        self._tasks = tasks
        self._awaits = is_async(function)
        self._crew = crew_for(calls, self._awaits)
        self._threads = anyio.CapacityLimiter(max(calls, cores()))
        self._grain = Grain(most_bytes // (2 * max(calls, cores())))
        self._changed = anyio.Event()
        self._asleep = False
        self._since, self._ended, self._waited = perf_counter(), 0, 0.0
        self._waits_since: float | None = None

    async def take_in(self, chunks: AsyncGenerator[Chunk]) -> None:
        """Takes the input as calls ask for it; its error goes behind the results of what came before."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._flight.feed(chunk)
                    self._start()
                    while self._full:
                        await self._news()
        except Exception as error:
            self._flight.end(error)
        else:
            self._flight.end(None)
        self._wake()

    async def next(self) -> Chunk | None:
        """The next results; None at the end.

        Raises:
            Exception: What a call, or the input, ended with.
        """
        while (chunk := self._flight.deliver()) is None:
            if self._flight.ended and self._flight.idle:
                return None
            if self._flight.at_work >= self._crew.target:
                self._waits_since = perf_counter()
            await self._news()
            self._count_wait(perf_counter())
            self._waits_since = None
        self._start()
        self._wake()
        return chunk

    @property
    def _full(self) -> bool:
        """Whether there is input enough."""
        flight = self._flight
        return flight.pending >= self._crew.target * self._size or (
            not flight.idle and flight.nbytes >= self._most_bytes
        )

    @property
    def _size(self) -> int:
        """How many elements make a run."""
        return 1 if self._awaits else self._grain.size

    def _start(self) -> None:
        """Starts as many runs as there may be."""
        while (haul := self._next_haul()) is not None:
            self._tasks.start_soon(self._work, haul)

    def _next_haul(self) -> Haul | None:
        """The next run of elements, where one may start."""
        if self.stopped or not self._flight.pending or not self._may_start:
            return None
        even = max(math.ceil(self._flight.pending / self._crew.target), self._size // LEAST_RUN)
        return self._flight.start(min(self._size, even))

    @property
    def _may_start(self) -> bool:
        flight, crew = self._flight, self._crew
        expected = (flight.at_work + 1) * self._size * self._grain.bytes_each
        return not flight.undelivered or (
            flight.at_work < crew.target
            and flight.undelivered < OUTSTANDING * crew.target
            and flight.nbytes + expected <= self._most_bytes
        )

    async def _work(self, first: Haul) -> None:
        """Runs of elements, one after the other, while there are any; raises nothing but its own cancellation."""
        haul: Haul | None = first
        while haul is not None:
            ran = await (self._await_one(haul.elements[0]) if self._awaits else self._run(haul.elements))
            if ran.results:
                self._grain.ran(len(ran.results), ran.seconds, ran.nbytes)
            self._ended += len(ran.results)
            self._flight.came(haul, ran.results, ran.nbytes, ran.error)
            self._tune()
            if haul.ended:
                haul = self._next_haul()
            self._start()
            self._wake()

    async def _run(self, elements: Any) -> Ran:
        """Calls a plain function for a run of elements, in a thread."""
        ran = await anyio.to_thread.run_sync(self._call, elements, limiter=self._threads)
        if not (ran.results and isawaitable(ran.results[0])):
            return ran
        if not self._awaits:
            self._awaits, self._crew = True, crew_for(self._calls, awaits=True)
        return await awaited(ran)

    def _call(self, elements: Any) -> Ran:
        """Calls the function for elements up to one at which it fails, for a while."""
        results: list[Any] = []
        error: Exception | None = None
        began = perf_counter()
        try:
            for element in elements:
                results.append(called(self._function, element))
                if self.stopped or perf_counter() - began > CUT_SECONDS:
                    break
        except Exception as failure:
            error = failure
        return Ran(results, weigh(results), perf_counter() - began, error)

    async def _await_one(self, element: Any) -> Ran:
        """Calls an async function for one element."""
        began = perf_counter()
        try:
            result = called(self._function, element)
        except Exception as error:
            return Ran([], 0, 0.0, error)
        ran = Ran([result], 0, perf_counter() - began, None)
        return await awaited(ran) if isawaitable(result) else ran._replace(nbytes=weigh(ran.results))

    def _tune(self) -> None:
        """Tells how many calls there should be, now and then, what they gave."""
        now = perf_counter()
        self._count_wait(now)
        if self._crew.due(now - self._since, self._ended):
            self._crew.measured(now - self._since, self._ended, self._waited)
            self._since, self._ended, self._waited = now, 0, 0.0

    def _count_wait(self, now: float) -> None:
        """Counts how long the consumer has waited for calls, up to now."""
        if self._waits_since is not None:
            self._waited += now - self._waits_since
            self._waits_since = now

    async def _news(self) -> None:
        """Waits until something came, went, or ended."""
        self._asleep = True
        await self._changed.wait()

    def _wake(self) -> None:
        if self._asleep:
            self._asleep = False
            changed, self._changed = self._changed, anyio.Event()
            changed.set()


async def awaited(ran: Ran) -> Ran:
    """The same with what awaitables give, up to the first that fails."""
    results: list[Any] = []
    error = ran.error
    try:
        for result in ran.results:
            results.append(await outcome(result) if isawaitable(result) else result)
    except Exception as failure:
        error = failure
    return Ran(results, weigh(results), ran.seconds, error)


async def outcome(awaitable: Awaitable[Any]) -> Any:
    """What an awaitable of the user's gives, in a task of its own, which is cancelled once and may clean up at leisure.

    (anyio cancels again whatever awaits in a scope that was cancelled: `async with` of other libraries would not end.)

    Raises:
        ClosedError: It was cancelled, and not by us.
        Exception: What it raises.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        _ = task.cancelled() or task.exception()  # looked at, so that nothing is logged
        raise
    if task.cancelled():
        raise ClosedError("what map's function awaited was cancelled from elsewhere: its result will never come")
    return task.result()
