"""ParallelMap: several calls of a function at once, ahead of the consumer.

`InFlight` tracks elements and results, `CallPlan` says which elements are next, `CallPace` how many
calls run, and a `Caller` calls the function. This file moves chunks between them.

Rules:
- In order, all results before a failing element arrive, then its error with its traceback, then
  what follows. Otherwise the results that were ready arrive before the error.
- Results come as they finish only if the input has a fixed order: positions name delivered results
  by their numbers in the input, which must mean the same in a resumed run. Without a fixed order,
  results keep the order of the input.
- When the run is left in any way, no further call begins. Running calls are cancelled if possible,
  and awaited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, Final

from anyio.abc import TaskGroup

from streamrec.arguments import check_function
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import ChainSource, describe_stage, in_order
from streamrec.pipeline.engine.meters import describe_element
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import UNKNOWN_CARDINALITY, Stage, keeps_rows
from streamrec.pipeline.sources.parallel_map.calls import Caller, TaskResults
from streamrec.pipeline.sources.parallel_map.in_flight import ElementTask, InFlight
from streamrec.pipeline.sources.parallel_map.pace import CallPace, CallPlan
from streamrec.storage.tasks import background

IN_FLIGHT: Final = Share(4, name="map")
"""The share of the budget for elements in flight and results that wait."""


@dataclass(frozen=True, slots=True)
class ParallelMap(ChainSource):
    """Calls a function for each element of a chain, `calls` at once, or AUTOTUNE."""

    function: Callable[..., Any]
    calls: int
    deterministic: bool | None = None

    def __post_init__(self) -> None:
        check_function("function", self.function)

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
        half = max_bytes // 2
        self._in_flight = in_flight
        self._caller = Caller(function, context.session.threads)
        self._pace = CallPace(calls, awaits=self._caller.awaits, max_bytes=half, now=perf_counter())
        self._caller.on_async = self._pace.become_async
        self._caller.on_offer = self._call_helpers
        self._loop = asyncio.get_running_loop()
        self._plan = CallPlan(in_flight, self._pace, half)
        self._tasks = tasks
        self._meter = context.meter
        self._changed = Signal()

    async def take_in(self, chunks: AsyncGenerator[Chunk]) -> None:
        """Feeds the input as calls need it; its error comes after all results."""
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self._in_flight.feed(chunk)
                    self._start()
                    if chunk.error is not None:
                        self._changed.notify()
                    while self._plan.is_full:
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
            if self._plan.is_busy:
                self._pace.begin_wait(perf_counter())
            await self._changed.wait()
            self._pace.end_wait(perf_counter())
            self._start_helpers()
        self._start()
        self._changed.notify()
        return chunk

    def stop(self) -> None:
        """Makes no further call."""
        self._plan.stop()
        self._caller.stop()

    def _start(self) -> None:
        while (task := self._plan.next_task()) is not None:
            self._caller.recall()
            self._tasks.start_soon(self._work, task)

    def _call_helpers(self) -> None:
        """Wakes `next`, which starts helpers; called in the thread of a call that offers items."""
        # The calls are counted after the offer: one that ends from now on sees the offer itself.
        if self._plan.idle_calls > self._caller.helpers:
            self._loop.call_soon_threadsafe(self._changed.notify)

    def _start_helpers(self) -> None:
        if self._caller.wants_help:
            for _ in range(self._plan.idle_calls - self._caller.helpers):
                self._tasks.start_soon(self._work, None)

    async def _work(self, first: ElementTask | None) -> None:
        """Works on tasks while there are any, and else helps; raises only its own cancellation."""
        task = first
        while task is not None or (self._plan.idle_calls and self._caller.wants_help):
            if task is None:
                await self._caller.help()
                task = self._plan.next_task()
                continue
            done = await self._caller.call(task.elements)
            self._pace.record(
                len(done.results), seconds=done.seconds, nbytes=done.nbytes, now=perf_counter()
            )
            self._note_errors(task, done)
            self._in_flight.add_results(task, done.results, done.nbytes, done.errors)
            if task.ended:
                task = self._plan.next_task()
            self._start()
            self._changed.notify()

    def _note_errors(self, task: ElementTask, done: TaskResults) -> None:
        """Adds to errors where their elements come from."""
        held = task.held
        for index, error in done.errors:
            ordinal = task.first + index
            where = describe_element(error, ordinal, held.chunk, ordinal - held.ordinal)
            error.add_note(f"in {self._meter.title}{where}")
