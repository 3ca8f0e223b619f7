"""ParallelMap: several calls of a function at once, ahead of the consumer.

`InFlight` knows what is under way, `CallCount` and `TaskSize` how much of it there should be; this file calls the
function, a plain one in threads, an async one in tasks of the loop.

Rules:
- In order, whatever precedes a failing element arrives, then its error, with its traceback, then what follows.
  Otherwise what had ended by then arrives before it.
- Results come as they finish only where the input has a fixed order: what was delivered is told by numbers of the
  input, and these must mean the same when the run is resumed. An input without one keeps the order that it has.
- When the run is left by any way, no further call begins; those under way are cancelled where they can be, and all are
  waited for.
- Input under way has half of the share of the budget, and results that wait the other half, as far as they are as large
  as those before them; one chunk and one run of elements are always under way, or nothing would move.
- What a call fails with comes among the results (`Ran`), and is not raised.
- A plain function has threads of the run's own; when its caller is cancelled, a thread ends with the call it is in, and
  is waited for. An async function is cancelled once, and waited for. A function that is not declared `async` and gives
  awaitables is found out at its first call.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from inspect import isawaitable
from itertools import islice
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio
from anyio.abc import TaskGroup

from streamrec.errors import ClosedError
from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import ChainSource, describe_stage, in_order
from streamrec.pipeline.engine.options import AUTOTUNE, check_calls
from streamrec.pipeline.engine.queue import Signal, background
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import Halt, Stage
from streamrec.pipeline.sources.parallel_map.autotune import CallCount, TaskSize
from streamrec.pipeline.sources.parallel_map.in_flight import ElementRun, InFlight
from streamrec.pipeline.stages.calling import call_each, call_function, extend, is_async

__all__ = ["ParallelMap"]

UNDER_WAY: Final = Share(4)
"""What elements under way, and results that wait, may hold."""

CUT_SECONDS: Final = 0.05
"""A thread that takes longer for a run of elements gives what it has after the call that it is in."""


@dataclass(frozen=True, slots=True)
class ParallelMap(ChainSource):
    """Calls a function for each element of a chain, `calls` at once, or AUTOTUNE."""

    function: Callable[..., Any]
    calls: int
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        check_calls(self.calls)

    def line(self) -> str:
        order = ", deterministic=False)" if self.deterministic is False else ")"
        return describe_stage(self).removesuffix(")") + order  # how many calls there are changes no element

    def element_spec(self) -> Any:
        spec = self.inner.element_spec()
        return self.function.element_spec(spec) if spec is not None and isinstance(self.function, Stage) else None

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        most_bytes, feeding = within.take(UNDER_WAY)
        position, done = (state["inner"], state["done"]) if state else (None, ())
        fixed = replace(feeding, deterministic=feeding.deterministic or bool(done))
        in_turn = fixed.deterministic if self.deterministic is None else self.deterministic
        in_flight = InFlight(in_turn or not in_order(self.inner, fixed.deterministic), done, position)
        async with background() as tasks:
            calling = ParallelCalls(self.function, self.calls, in_flight, most_bytes, tasks, within)
            tasks.start_soon(calling.take_in, fixed.chunks(self.inner, position, goes_on=True))
            try:
                while (chunk := await calling.next()) is not None:
                    yield chunk
            finally:
                calling.stop()


def call_count_for(calls: int, awaits: bool) -> CallCount:
    """How many calls at once: a number, or what helps."""
    if calls != AUTOTUNE:
        return CallCount(calls, calls, calls)
    if awaits:  # it waits for something else, so that the number of cores says nothing
        return CallCount(8, 128)
    return CallCount(min(2, cores()), cores())


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ParallelCalls:
    """The calls of one run; what is in flight may hold `most_bytes`."""

    def __init__(
        self,
        function: Callable[..., Any],
        calls: int,
        in_flight: InFlight,
        most_bytes: int,
        tasks: TaskGroup,
        within: RunContext,
    ) -> None:
        self._function = function
        self._calls = calls
        self._in_flight = in_flight
        self._half = most_bytes // 2
        self._tasks = tasks
        self._threads, self._meter = within.session.threads, within.meter
        self._awaits = is_async(function)
        self._stopped = False
        self._halts: set[Halt] = set()
        self._call_count = call_count_for(calls, self._awaits)
        self._task_size = TaskSize(self._half // max(calls, cores()))
        self._changed = Signal()
        self._since, self._ended, self._waited = perf_counter(), 0, 0.0
        self._waits_since: float | None = None

    async def take_in(self, chunks: AsyncGenerator[Chunk]) -> None:
        """Takes the input as calls ask for it; its error goes after the results of what came before."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._in_flight.feed(chunk)
                    self._start()
                    if chunk.error is not None:
                        self._changed.notify()
                    while self._full:
                        await self._changed.wait()
        except Exception as error:
            self._in_flight.end(error)
        else:
            self._in_flight.end(None)
        self._changed.notify()

    async def next(self) -> Chunk | None:
        """The next results; None at the end.

        Raises:
            Exception: What the input ended with.
        """
        while (chunk := self._in_flight.deliver()) is None:
            if self._in_flight.ended and self._in_flight.idle:
                return None
            if self._in_flight.at_work >= self._call_count.target:
                self._waits_since = perf_counter()
            await self._changed.wait()
            self._count_wait(perf_counter())
            self._waits_since = None
        self._start()
        self._changed.notify()
        return chunk

    def stop(self) -> None:
        """No result is wanted any more: no further call is made."""
        self._stopped = True
        for halt in self._halts:
            halt.ask()

    @property
    def _full(self) -> bool:
        """Whether there is input enough."""
        in_flight = self._in_flight
        enough = in_flight.pending >= self._call_count.target * self._size
        return enough or (in_flight.input_bytes >= self._half and not in_flight.idle)

    @property
    def _size(self) -> int:
        """How many elements make a run."""
        return 1 if self._awaits else self._task_size.size

    def _start(self) -> None:
        while (element_run := self._next_run()) is not None:
            self._tasks.start_soon(self._work, element_run)

    def _next_run(self) -> ElementRun | None:
        """The next run of elements, where one may start."""
        if self._stopped or not self._in_flight.pending:
            return None
        if not self._may_start:
            return None
        even = max(math.ceil(self._in_flight.pending / self._call_count.target), self._size // 8)  # all calls get some
        return self._in_flight.start(min(self._size, even))

    @property
    def _may_start(self) -> bool:
        in_flight, call_count = self._in_flight, self._call_count
        expected = (in_flight.at_work + 1) * self._size * self._task_size.bytes_each
        return not in_flight.undelivered or (
            in_flight.at_work < call_count.target
            and in_flight.undelivered < 4 * call_count.target  # while one takes long, others go on
            and in_flight.result_bytes + expected <= self._half
        )

    async def _work(self, first: ElementRun) -> None:
        """Runs of elements, one after the other, while there are any; raises nothing but its own cancellation."""
        element_run: ElementRun | None = first
        while element_run is not None:
            ran, held = await self._run(element_run.elements), element_run.held
            self._task_size.ran(len(ran.results), ran.seconds, ran.nbytes)
            self._ended += len(ran.results)
            for index, error in ran.errors:
                ordinal = element_run.first + index
                self._meter.name_element(error, ordinal, held.chunk, ordinal - held.ordinal)
            self._in_flight.add_results(element_run, ran.results, ran.nbytes, ran.errors)
            self._tune()
            if element_run.ended:
                element_run = self._next_run()
            self._start()
            self._changed.notify()

    async def _run(self, elements: Iterable[Any]) -> Ran:
        """Calls the function for elements, one after the other: at least for one."""
        try:
            if self._awaits:
                return await await_calls(self._function, elements)
            ran = await self._run_in_thread(elements)
            if any(map(isawaitable, ran.results[: len(ran.errors) + 1])):
                if not self._awaits:
                    self._awaits, self._call_count = True, call_count_for(self._calls, awaits=True)
                later = await await_calls(lambda awaitable: awaitable, ran.results)
                return later._replace(errors=sorted([*ran.errors, *later.errors], key=itemgetter(0)))
        except Exception as error:
            return Ran([None], 0, 0.0, [(0, error)])
        return ran

    async def _run_in_thread(self, elements: Iterable[Any]) -> Ran:
        halt = Halt()
        cut = asyncio.get_running_loop().call_later(CUT_SECONDS, halt.ask)
        self._halts.add(halt)
        try:
            return await self._threads.run(partial(results_until, halt, self._function, elements))
        finally:
            self._halts.discard(halt)
            cut.cancel()

    def _tune(self) -> None:
        """Says how many calls there should be, now and then, from what they gave."""
        now = perf_counter()
        self._count_wait(now)
        if self._call_count.due(now - self._since, self._ended):
            self._call_count.end_window(now - self._since, self._ended, self._waited)
            self._since, self._ended, self._waited = now, 0, 0.0

    def _count_wait(self, now: float) -> None:
        """Counts how long the consumer has waited for calls, up to now."""
        if self._waits_since is not None:
            self._waited += now - self._waits_since
            self._waits_since = now


class Ran(NamedTuple):
    """What came of a run of elements: the results of the first of them; None where a call failed, and the errors."""

    results: list[Any]
    nbytes: int
    seconds: float
    errors: list[tuple[int, Exception]]


def results_until(halt: Halt, function: Callable[..., Any], elements: Iterable[Any]) -> Ran:
    """What a function makes of the first element, and of those after it until it is to halt."""
    results: list[Any] = []
    errors: list[tuple[int, Exception]] = []
    began, end = perf_counter(), 0
    for piece in pieces(elements):
        end += len(piece)
        made = call_each(function, piece, iter(piece))
        while (count := len(results)) < end:
            if count:
                halt.ends(piece)
            error = extend(results, made if count else islice(made, 1))
            if error is None and len(results) == (end if count else 1):
                continue
            if error is None and count and halt.asked:
                break
            errors.append((len(results), error or RuntimeError("the function raised StopIteration")))
            results.append(None)
        if len(results) < end:
            break
    return Ran(results, weigh(results), perf_counter() - began, errors)


async def await_calls(function: Callable[..., Any], elements: Iterable[Any]) -> Ran:
    """Calls a function here for elements, one after the other, and awaits what it gives."""
    results: list[Any] = []
    errors: list[tuple[int, Exception]] = []
    began = perf_counter()
    for index, element in enumerate(elements):
        try:
            result = call_function(function, element)
            results.append(await outcome(result) if isawaitable(result) else result)
        except Exception as error:
            errors.append((index, error))
            results.append(None)
    return Ran(results, weigh(results), perf_counter() - began, errors)


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
