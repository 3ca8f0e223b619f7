"""The user's generators as a source: a sync one runs in a thread, an async one in a task.

Rules:
- One thread, or one task of the pipeline's event loop, runs a generator from its first element to
  its end, and closes it. An exception is raised once, after the elements before it.
- A generator runs ahead of its consumer, by `AHEAD`, through an `ElementBuffer`. An element can be
  taken at once; elements that were made while the consumer was busy are taken together, so that
  short elements do not each cost a change of threads.
- A position is the number of the next element, and the generator's state if it has `state_dict`.
  Without a state, a resumed run calls the generator again and drops the elements before that
  number.
- Bytes are records, and become Frames. A chunk has only bytes or no bytes, so that batches do not
  depend on which elements were taken together.
- An element that does not fit the signature becomes a failure; the generator continues.
- Closing cancels an async generator. A sync one cannot be interrupted within an element: closing
  waits a second, and then abandons the thread with a warning; the thread ends after its element, or
  with the interpreter.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from streamrec.arguments import check_function, name_type
from streamrec.display import logger
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk, weigh_one
from streamrec.pipeline.elements.codec import digest_values
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.elements.specs import conform, record_spec
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Source, name_of
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.threads import Threads
from streamrec.pipeline.sources.element_buffer import ElementBuffer, Item
from streamrec.tfrecord import Frames

AHEAD: Final = Share(4, 4 << 20, "from_generator")
"""The share of the budget for elements that wait for the consumer."""


@dataclass(frozen=True, slots=True)
class Generated(Source):
    """Gives the elements of the iterable or async iterable that a function returns.

    They are converted to fit a signature.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    signature: Any = None

    def __post_init__(self) -> None:
        check_function("generator", self.function)

    def lines(self) -> Iterator[str]:
        args = f", args of digest {digest_values(self.args)}" if self.args else ""
        signature = "" if self.signature is None else f", signature={self.signature!r}"
        yield f"Generated({name_of(self.function)}{args}{signature})"

    def element_spec(self) -> Any:
        return self.signature

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        share, _ = context.take(AHEAD)
        ahead = ElementBuffer(share.nbytes)
        start = StartPoint(state["next"], state.get("state")) if state else StartPoint(0, None)
        task = asyncio.get_running_loop().create_task(
            self._run(start, ahead, context.session.threads), name="streamrec generator"
        )
        first = start.number
        saved = None if start.state is None else json.dumps(start.state)
        try:
            while (items := await ahead.take()) is not None:
                for part in split_kinds(items):
                    yield chunk_of(part, first, saved)
                    first += len(part)
                    _, _, saved = part[-1]
        finally:
            ahead.close()
            with anyio.CancelScope(shield=True):
                await self._end(task, ahead)
            ahead.check()

    async def _run(self, start: StartPoint, ahead: ElementBuffer, threads: Threads) -> None:
        """Runs the generator to its end, or until the buffer is closed. Raises nothing."""
        try:
            if inspect.isasyncgenfunction(self.function):
                generator = self.function(*self.args)
            else:
                generator = await threads.run(partial(self._run_in_thread, start, ahead))
            if generator is not None and not ahead.closed:
                await run_async(generator, start, ahead, self.signature)
            ahead.end(None)
        except BaseException as error:
            unwanted = ahead.closed and (
                isinstance(error, asyncio.CancelledError) or error is ahead.failed
            )
            ahead.end(None if unwanted else error)

    async def _end(self, task: asyncio.Task[None], ahead: ElementBuffer) -> None:
        """Waits for the task; for a thread at most a second."""
        await asyncio.wait([task], timeout=1.0)
        if not task.done() and ahead.maker is None:
            name = name_of(self.function)
            logger.warning(
                "%s: the generator still works on an element; its thread is abandoned", name
            )
            for _ in range(2):  # the first cancellation waits for a call in a thread
                task.cancel()
                await asyncio.wait([task], timeout=0)
        await asyncio.wait([task])

    def _run_in_thread(self, start: StartPoint, ahead: ElementBuffer) -> Any:
        """Calls the function; runs what it returns, or returns that if it is async."""
        generator = self.function(*self.args)
        if isinstance(generator, AsyncIterable):
            return generator
        if inspect.iscoroutine(generator):
            generator.close()
            raise TypeError(
                f"{name_of(self.function)} returned a coroutine where an iterator or an async "
                "iterator is expected: a `yield` makes an `async def` an async generator"
            )
        run(generator, start, ahead, self.signature)
        return None


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where a generator begins: before element `number`.

    `state` is the generator's own state there; None if it has none.
    """

    number: int
    state: Any

    def load(self, generator: Any) -> int:
        """Loads the state, if there is one; returns how many elements must be dropped."""
        if self.state is None:
            return self.number
        if not hasattr(generator, "load_state_dict"):
            raise PositionMismatchError(
                f"this state holds a generator's state, but {name_type(generator)} has no "
                "load_state_dict: resume with the generator that saved it, or start over without "
                "the state"
            )
        generator.load_state_dict(self.state)
        return 0

    def check(self, dropped: int, expected: int) -> None:
        """Raises an error if the generator ended before this point."""
        if dropped < expected:
            raise PositionMismatchError(
                f"this state is before element {expected:,}, but the generator ended after "
                f"{dropped:,}: it must give the same elements each time it is called, or have "
                "state_dict() and load_state_dict()"
            )


def run(generator: Iterable[Any], start: StartPoint, ahead: ElementBuffer, signature: Any) -> None:
    """Runs an iterable in this thread to its end, or until the buffer is closed."""
    dropping = start.load(generator)
    finish = make_finish(generator, start.number, signature)
    dropped = 0
    iterator = iter(generator)
    with closing(iterator) if isinstance(iterator, Generator) else nullcontext():
        try:
            for element in iterator:
                if ahead.closed:
                    return
                if dropped < dropping:
                    dropped += 1
                elif not ahead.add(finish(element)):
                    return
        except Exception as error:
            ahead.failed = error
            raise
    start.check(dropped, dropping)


async def run_async(
    generator: AsyncIterable[Any], start: StartPoint, ahead: ElementBuffer, signature: Any
) -> None:
    """Runs an async iterable on the loop to its end; closing the buffer cancels it."""
    dropping = start.load(generator)
    finish = make_finish(generator, start.number, signature)
    dropped = 0
    turn = perf_counter()
    iterator = aiter(generator)
    ahead.maker = asyncio.current_task()
    async with aclosing(iterator) if isinstance(iterator, AsyncGenerator) else nullcontext():
        async for element in iterator:
            if dropped < dropping:
                dropped += 1
            else:
                await ahead.add_async(finish(element))
            if perf_counter() - turn > 0.005:  # seconds; lets other tasks run
                await asyncio.sleep(0)
                turn = perf_counter()
    start.check(dropped, dropping)


class Unfit(NamedTuple):
    """Replaces an element that does not fit the signature."""

    error: Exception


def make_finish(generator: Any, first: int, signature: Any) -> Callable[[Any], Item]:
    """A function that converts elements to fit a signature, and adds weight and state.

    Elements are numbered from `first` on.
    """
    has_state = hasattr(generator, "state_dict") and hasattr(generator, "load_state_dict")
    is_record = signature == record_spec()
    number = count(first)

    def finish(element: Any) -> Item:
        here = next(number)
        if signature is not None and not (is_record and type(element) is bytes):
            try:
                element = conform(signature, element)
            except (TypeError, ValueError) as error:
                reason = f"element {here:,} of the generator does not fit output_signature: {error}"
                element = Unfit(type(error)(reason))
                element.error.__cause__ = error
        state = json.dumps(generator.state_dict()) if has_state else None
        return element, weigh_one(element), state

    return finish


def split_kinds(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Splits elements into groups of only records, only others, or a single Unfit."""
    kinds = [
        type(element) if type(element) in (bytes, Unfit) else object for element, _, _ in items
    ]
    if len(set(kinds)) == 1 and kinds[0] is not Unfit:
        yield items
        return
    for kind, group in groupby(zip(kinds, items, strict=True), itemgetter(0)):
        part = [item for _, item in group]
        yield from ([item] for item in part) if kind is Unfit else (part,)


def chunk_of(items: Sequence[Item], first: int, saved: str | None) -> Chunk:
    """A chunk of elements that come after `first` others.

    After these, the generator's state was `saved`.
    """
    elements, sizes, states = zip(*items, strict=True)
    positions = NumberedPositions(first, partial(describe_state, first, (saved, *states)))
    if isinstance(elements[0], Unfit):
        return Chunk.failure(elements[0].error, positions, 1)
    is_records = type(elements[0]) is bytes
    return Chunk(Frames.of(elements) if is_records else list(elements), positions, sum(sizes))


def describe_state(first: int, states: Sequence[str | None], number: int) -> dict[str, Any]:
    """The state of the source: the element's number, and the generator's state if it has one.

    The first of the `states` is the one before element number `first`.
    """
    state = states[number - first]
    return {"next": number} | ({} if state is None else {"state": json.loads(state)})
