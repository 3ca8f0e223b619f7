"""How functions of the user's are called: plain ones in threads, async ones in tasks of the loop.

Rules:
- What a call fails with is told, never raised, with the results before it.
- A plain function has threads of the run's own; when its caller is cancelled, a thread ends with the call it is in, and
  is waited for.
- An async function is cancelled once, and waited for. A function that is not declared `async` and gives awaitables is
  found out at its first call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from itertools import islice
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from streamrec.arguments import integer
from streamrec.errors import ClosedError
from streamrec.pipeline.elements.chunk import weigh
from streamrec.pipeline.elements.columns import pieces
from streamrec.pipeline.engine.options import AUTOTUNE
from streamrec.pipeline.engine.stage import Halt
from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.stages.calling import called, extended, results_of

__all__ = ["Caller", "Ran", "check_calls", "is_async"]

CUT_SECONDS: Final = 0.05
"""A thread that takes longer for a run of elements gives what it has, behind the call it is in."""


class Ran(NamedTuple):
    """What came of a run of elements: the results of the first of them, and the error of the one behind these."""

    results: list[Any]
    nbytes: int
    seconds: float
    error: Exception | None


class Caller:
    """Calls a function.

    Args:
        function: What is called; a tuple's parts are its arguments.
        threads: The run's, where it is called if it is a plain function.

    Attributes:
        awaits: Whether it is called on the loop.
        stopped: Whether nobody wants results any more.
    """

    def __init__(self, function: Callable[..., Any], threads: Threads) -> None:
        self.awaits = is_async(function)
        self.stopped = False
        self._function = function
        self._threads = threads
        self._halts: set[Halt] = set()

    async def run(self, elements: Iterable[Any]) -> Ran:
        """Calls it for elements, one after the other: at least for one, or up to one at which it fails."""
        try:
            if self.awaits:
                return await awaited(self._function, elements)
            ran = await self._in_thread(elements)
            if ran.results and isawaitable(ran.results[0]):
                self.awaits = True
                later = await awaited(lambda awaitable: awaitable, ran.results)
                return later if later.error else later._replace(error=ran.error)
        except Exception as error:
            return Ran([], 0, 0.0, error)
        return ran

    def stop(self) -> None:
        """Nobody wants results any more: no further call is made."""
        self.stopped = True
        for halt in self._halts:
            halt.ask()

    async def _in_thread(self, elements: Iterable[Any]) -> Ran:
        halt = Halt()
        cut = asyncio.get_running_loop().call_later(CUT_SECONDS, halt.ask)
        self._halts.add(halt)
        try:
            return await self._threads.run(partial(results_until, halt, self._function, elements))
        finally:
            self._halts.discard(halt)
            cut.cancel()


def results_until(halt: Halt, function: Callable[..., Any], elements: Iterable[Any]) -> Ran:
    """What a function makes of the first element, and of those behind it until it fails or is to halt."""
    results: list[Any] = []
    error: Exception | None = None
    began, end = perf_counter(), 0
    for piece in pieces(elements):
        end += len(piece)
        made = results_of(function, piece, iter(piece))
        if not results:
            error = extended(results, islice(made, 1))
        if results and error is None:
            halt.ends(piece)
            error = extended(results, made)
        if error is not None or len(results) < end:
            break
    if error is None and len(results) < end and not halt.asked:
        error = RuntimeError("the function raised StopIteration")
    return Ran(results, weigh(results), perf_counter() - began, error)


def check_calls(calls: int | None) -> None:
    """Refuses a `num_parallel_calls` that is no number of calls, AUTOTUNE, or None."""
    if integer("num_parallel_calls", calls, none=True) not in (None, AUTOTUNE) and calls < 1:  # type: ignore[operator]
        raise ValueError(f"num_parallel_calls={calls} must be at least 1, AUTOTUNE, or None")


def is_async(function: Callable[..., Any]) -> bool:
    """Whether a function, or an object that is called, is declared `async`."""
    return iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)


async def awaited(function: Callable[..., Any], elements: Iterable[Any]) -> Ran:
    """Calls a function here for elements, one after the other, and awaits what it gives."""
    results: list[Any] = []
    error: Exception | None = None
    began = perf_counter()
    try:
        for element in elements:
            result = called(function, element)
            results.append(await outcome(result) if isawaitable(result) else result)
    except Exception as failure:
        error = failure
    return Ran(results, weigh(results), perf_counter() - began, error)


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
