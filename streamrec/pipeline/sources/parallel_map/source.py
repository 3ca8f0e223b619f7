"""ParallelMap: several calls of a function at once, ahead of the consumer.

`InFlight` tracks elements and results; `CallCount` and `TaskSize` tune how many calls run. This
file calls the function: a plain one in threads, an async one in tasks of the event loop.

Rules:
- In order, all results before a failing element arrive, then its error with its traceback, then
  what follows. Otherwise the results that were ready arrive before the error.
- Results come as they finish only if the input has a fixed order: positions name delivered results
  by their numbers in the input, which must mean the same in a resumed run. Without a fixed order,
  results keep the order of the input.
- When the run is left in any way, no further call begins. Running calls are cancelled if possible,
  and awaited.
- Chunks in flight have half of the share of the budget, and waiting results the other half,
  estimated from the sizes of earlier results. One chunk and one task are always in flight, or
  nothing would move.
- A failing call does not raise: its error is among the results (`TaskResults`).
- A plain function runs in the run's threads. If its caller is cancelled, a thread finishes the
  current call, and is awaited. An async function is cancelled once, and awaited. A function that is
  not declared `async` but returns awaitables is noticed at its first call.
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
from streamrec.pipeline.engine.description import AUTOTUNE, ChainSource, describe_stage, in_order
from streamrec.pipeline.engine.meters import describe_element
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Halt, Stage, keeps_rows
from streamrec.pipeline.sources.parallel_map.autotune import CallCount, TaskSize
from streamrec.pipeline.sources.parallel_map.in_flight import ElementTask, InFlight
from streamrec.pipeline.stages.calling import call_each, call_function, extend, is_async
from streamrec.storage.tasks import background

IN_FLIGHT: Final = Share(4, name="map")
"""The share of the budget for elements in flight and results that wait."""

CUT_SECONDS: Final = 0.05
"""A task that takes longer returns its results after the current call."""


@dataclass(frozen=True, slots=True)
class ParallelMap(ChainSource):
    """Calls a function for each element of a chain, `calls` at once, or AUTOTUNE."""

    function: Callable[..., Any]
    calls: int
    deterministic: bool | None = None

    def line(self) -> str:
        # Without the number of calls, which changes no element.
        order = ", deterministic=False)" if self.deterministic is False else ")"
        return describe_stage(self).removesuffix(")") + order

    def element_spec(self) -> Any:
        spec = self.inner.element_spec()
        function: Any = self.function
        if spec is None or not isinstance(function, Stage):
            return None
        return function.element_spec(spec)

    def row_count(self, rank: Rank | None) -> int:
        return (
            self.inner.cardinalities(rank)[1] if keeps_rows(self.function) else UNKNOWN_CARDINALITY
        )

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        share, feeding = context.take(IN_FLIGHT)
        position, done = (state["inner"], state["done"]) if state else (None, ())
        # Ordinals mean the same elements only if the input comes in the same order again.
        fixed = replace(feeding, deterministic=feeding.deterministic or bool(done))
        in_turn = fixed.deterministic if self.deterministic is None else self.deterministic
        in_flight = InFlight(
            in_turn or not in_order(self.inner, fixed.deterministic), done, position
        )
        async with background() as tasks:
            calling = ParallelCalls(
                self.function,
                self.calls,
                in_flight=in_flight,
                max_bytes=share.nbytes,
                tasks=tasks,
                context=context,
            )
            tasks.start_soon(
                calling.take_in, fixed.chunks(self.inner, position, continue_on_error=True)
            )
            try:
                while (chunk := await calling.next()) is not None:
                    yield chunk
            finally:
                calling.stop()


def call_count_for(calls: int, awaits: bool) -> CallCount:
    """A fixed number of calls, or a tuned one."""
    if calls != AUTOTUNE:
        return CallCount(calls, calls, calls)
    if awaits:  # async calls mostly wait, so the number of cores does not matter
        return CallCount(8, 128)
    return CallCount(min(2, cores()), cores())


def cores() -> int:
    """How many processor cores this process may use, where the system tells; else all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class ParallelCalls:
    """The calls of one run; chunks and results in flight may hold `max_bytes`."""

    def __init__(
        self,
        function: Callable[..., Any],
        calls: int,
        *,
        in_flight: InFlight,
        max_bytes: int,
        tasks: TaskGroup,
        context: RunContext,
    ) -> None:
        self._function = function
        self._calls = calls
        self._in_flight = in_flight
        self._half = max_bytes // 2
        self._tasks = tasks
        self._threads = context.session.threads
        self._meter = context.meter
        self._awaits = is_async(function)
        self._stopped = False
        self._halts: set[Halt] = set()
        self._call_count = call_count_for(calls, self._awaits)
        self._task_size = TaskSize(self._half // max(calls, cores()))
        self._changed = Signal()
        self._since = perf_counter()
        self._ended = 0
        self._waited = 0.0
        self._waits_since: float | None = None

    async def take_in(self, chunks: AsyncGenerator[Chunk]) -> None:
        """Feeds the input as calls need it; its error comes after all results."""
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
        """Waits for the next results; None at the end. Raises the error of the input."""
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
        """Makes no further call."""
        self._stopped = True
        for halt in self._halts:
            halt.ask()

    @property
    def _full(self) -> bool:
        """Whether enough input waits."""
        in_flight = self._in_flight
        enough = in_flight.pending >= self._call_count.target * self._size
        return enough or (in_flight.input_bytes >= self._half and not in_flight.idle)

    @property
    def _size(self) -> int:
        """How many elements make a task."""
        return 1 if self._awaits else self._task_size.size

    def _start(self) -> None:
        while (task := self._next_task()) is not None:
            self._tasks.start_soon(self._work, task)

    def _next_task(self) -> ElementTask | None:
        """Starts a task if one may start."""
        if self._stopped or not self._in_flight.pending or not self._may_start:
            return None
        # Divided evenly, so that all calls get some elements.
        even = max(math.ceil(self._in_flight.pending / self._call_count.target), self._size // 8)
        return self._in_flight.start(min(self._size, even))

    @property
    def _may_start(self) -> bool:
        in_flight = self._in_flight
        target = self._call_count.target
        if not in_flight.undelivered:
            return True
        # In order, results wait for one call that takes long: others continue meanwhile, but not
        # without end.
        if in_flight.at_work >= target or in_flight.undelivered >= 4 * target:
            return False
        expected = (in_flight.at_work + 1) * self._size * self._task_size.bytes_each
        return in_flight.result_bytes + expected <= self._half

    async def _work(self, first: ElementTask) -> None:
        """Works on tasks while there are any; raises only its own cancellation."""
        task: ElementTask | None = first
        while task is not None:
            done = await self._run(task.elements)
            held = task.held
            self._task_size.update(len(done.results), done.seconds, done.nbytes)
            self._ended += len(done.results)
            for index, error in done.errors:
                ordinal = task.first + index
                where = describe_element(error, ordinal, held.chunk, ordinal - held.ordinal)
                error.add_note(f"in {self._meter.title}{where}")
            self._in_flight.add_results(task, done.results, done.nbytes, done.errors)
            self._tune()
            if task.ended:
                task = self._next_task()
            self._start()
            self._changed.notify()

    async def _run(self, elements: Iterable[Any]) -> TaskResults:
        """Calls the function for elements in order: at least for the first one."""
        try:
            if self._awaits:
                return await await_calls(self._function, elements)
            done = await self._run_in_thread(elements)
            if any(map(isawaitable, done.results[: len(done.errors) + 1])):
                if not self._awaits:
                    self._awaits = True
                    self._call_count = call_count_for(self._calls, awaits=True)
                later = await await_calls(lambda awaitable: awaitable, done.results)
                errors = sorted([*done.errors, *later.errors], key=itemgetter(0))
                return later._replace(errors=errors)
        except Exception as error:
            return TaskResults([None], 0, 0.0, [(0, error)])
        return done

    async def _run_in_thread(self, elements: Iterable[Any]) -> TaskResults:
        halt = Halt()
        cut = asyncio.get_running_loop().call_later(CUT_SECONDS, halt.ask)
        self._halts.add(halt)
        try:
            return await self._threads.run(partial(results_until, halt, self._function, elements))
        finally:
            self._halts.discard(halt)
            cut.cancel()

    def _tune(self) -> None:
        """Adapts the number of calls after a window of time."""
        now = perf_counter()
        self._count_wait(now)
        if self._call_count.due(now - self._since, self._ended):
            self._call_count.end_window(now - self._since, self._ended, self._waited)
            self._since = now
            self._ended = 0
            self._waited = 0.0

    def _count_wait(self, now: float) -> None:
        """Counts how long the consumer has waited for calls until now."""
        if self._waits_since is not None:
            self._waited += now - self._waits_since
            self._waits_since = now


class TaskResults(NamedTuple):
    """The results of a task's first elements, and the errors with their indices.

    The result of a call that failed is None.
    """

    results: list[Any]
    nbytes: int
    seconds: float
    errors: list[tuple[int, Exception]]


def results_until(halt: Halt, function: Callable[..., Any], elements: Iterable[Any]) -> TaskResults:
    """Calls the function for the first element, and for more until `halt` is asked for."""
    results: list[Any] = []
    errors: list[tuple[int, Exception]] = []
    began = perf_counter()
    end = 0
    for piece in pieces(elements):
        end += len(piece)
        calls = call_each(function, piece, iter(piece))
        # The first call stands alone, since a halt empties the piece: a task must have one result,
        # or a slow function would be called for the same element again and again.
        while (count := len(results)) < end:
            if count:
                halt.ends(piece)
            error = extend(results, calls if count else islice(calls, 1))
            if error is None and len(results) == (end if count else 1):
                continue
            if error is None and count and halt.asked:
                break
            errors.append(
                (len(results), error or RuntimeError("the function raised StopIteration"))
            )
            results.append(None)
        if len(results) < end:
            break
    return TaskResults(results, weigh(results), perf_counter() - began, errors)


async def await_calls(function: Callable[..., Any], elements: Iterable[Any]) -> TaskResults:
    """Calls a function for elements in order, and awaits its results."""
    results: list[Any] = []
    errors: list[tuple[int, Exception]] = []
    began = perf_counter()
    for index, element in enumerate(elements):
        try:
            result = call_function(function, element)
            results.append(await await_result(result) if isawaitable(result) else result)
        except Exception as error:
            errors.append((index, error))
            results.append(None)
    return TaskResults(results, weigh(results), perf_counter() - began, errors)


async def await_result(awaitable: Awaitable[Any]) -> Any:
    """Awaits the user's awaitable in a task of its own.

    The task is cancelled only once, so that it can clean up.

    (anyio cancels repeatedly in a cancelled scope: `async with` of other libraries could not end.)
    If other code cancelled the task, that is a ClosedError.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([task])
        _ = task.cancelled() or task.exception()  # retrieved, so that asyncio logs nothing
        raise
    if task.cancelled():
        raise ClosedError(
            "other code cancelled what the function passed to map awaited: its result will never "
            "come"
        )
    return task.result()
