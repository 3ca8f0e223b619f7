"""Calling a function for the elements of a task: in a thread, or in a task of the event loop.

Rules:
- A failing call does not raise: its error is among the results (`TaskResults`).
- A plain function runs in the run's threads. If its caller is cancelled, a thread finishes the
  current call, and is awaited. An async function is cancelled once, and awaited. A function that is
  not declared `async` but returns awaitables is noticed at its first call.
- A thread without a task helps a call that has items to share (`engine/shared_items.py`), until
  there is a task again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable
from itertools import islice
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from streamrec.errors import ClosedError
from streamrec.pipeline.elements.chunk import weigh
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.engine.shared_items import Offers, offers
from streamrec.pipeline.engine.stage import Halt
from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.stages.calling import call_each, call_function, extend, is_async

CUT_SECONDS: Final = 0.05
"""A task that takes longer returns its results after the current call."""


class Caller:
    """Calls a function for the elements of tasks.

    Args:
        function: The user's.
        threads: Those of the run.

    Attributes:
        awaits: Whether the function is async.
        on_async: Called when a plain function turns out to return awaitables.
        on_offer: Called in a thread whose call has items that other threads may take.
    """

    def __init__(self, function: Callable[..., Any], threads: Threads) -> None:
        self.awaits = is_async(function)
        self.on_async: Callable[[], None] = lambda: None
        self.on_offer: Callable[[], None] = lambda: None
        self._function = function
        self._threads = threads
        self._halts: set[Halt] = set()
        self._offers = Offers(lambda: self.on_offer())
        self._helpers: set[Halt] = set()

    def stop(self) -> None:
        """Ends tasks in threads after their current calls, and helpers after their items."""
        for halt in self._halts:
            halt.ask()
        self.recall()

    def recall(self) -> None:
        """Ends helpers after their current items: there is a task for them."""
        for halt in self._helpers:
            halt.ask()

    @property
    def helpers(self) -> int:
        """How many threads help."""
        return len(self._helpers)

    @property
    def wants_help(self) -> bool:
        """Whether a running call has items that another thread may take."""
        return not self._offers.are_taken

    async def help(self) -> None:
        """Works on items of running calls, oldest first, until none are left or a task comes."""
        halt = Halt()
        self._helpers.add(halt)
        try:
            await self._threads.run(partial(self._offers.help, halt), halt.ask)
        finally:
            self._helpers.discard(halt)

    async def call(self, elements: Iterable[Any]) -> TaskResults:
        """Calls the function for elements in order: at least for the first one."""
        try:
            if self.awaits:
                return await await_calls(self._function, elements)
            done = await self._call_in_thread(elements)
            if any(map(isawaitable, done.results[: len(done.errors) + 1])):
                self._become_async()
                later = await await_calls(lambda awaitable: awaitable, done.results)
                errors = sorted([*done.errors, *later.errors], key=itemgetter(0))
                return later._replace(errors=errors)
        except Exception as error:
            return TaskResults([None], 0, 0.0, [(0, error)])
        return done

    def _become_async(self) -> None:
        if not self.awaits:
            self.awaits = True
            self.on_async()

    async def _call_in_thread(self, elements: Iterable[Any]) -> TaskResults:
        halt = Halt()
        cut = asyncio.get_running_loop().call_later(CUT_SECONDS, halt.ask)
        self._halts.add(halt)
        try:
            work = partial(results_until, halt, self._function, elements)
            return await self._threads.run(partial(offering, self._offers, work))
        finally:
            self._halts.discard(halt)
            cut.cancel()


def offering(offered: Offers, work: Callable[[], TaskResults]) -> TaskResults:
    """Does the work of a task, whose calls may offer items to other threads."""
    offers.set(offered)  # in the thread's own copy of the context
    return work()


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
