"""The user's generators as a source: a sync one runs in a thread, an async one in a task.

Rules:
- One thread, or one task of the pipeline's event loop, runs a generator from its first element to
  its end, and closes it. An exception is raised once, after the elements before it.
- A generator runs ahead of its consumer, by `AHEAD`. An element can be taken at once; elements that
  were made while the consumer was busy are taken together, so that short elements do not each cost
  a change of threads.
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
import threading
from collections import deque
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

from streamrec.arguments import name_type
from streamrec.display import logger
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk, weigh_one
from streamrec.pipeline.elements.codec import digest_values
from streamrec.pipeline.elements.positions import Position, Positions
from streamrec.pipeline.elements.specs import conform, record_spec
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Source, name_of
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.threads import Threads
from streamrec.tfrecord import Frames

AHEAD: Final = Share(4, 4 << 20)
"""The share of the budget for elements that wait for the consumer."""

Item = tuple[Any, int, str | None]
"""An element, its weight in bytes, and the JSON of the generator's state after it, or None."""


@dataclass(frozen=True, slots=True)
class Generated(Source):
    """Gives the elements of the iterable or async iterable that a function returns.

    They are converted to fit a signature.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    signature: Any = None

    def lines(self) -> Iterator[str]:
        args = f", args of digest {digest_values(self.args)}" if self.args else ""
        signature = "" if self.signature is None else f", signature={self.signature!r}"
        yield f"Generated({name_of(self.function)}{args}{signature})"

    def element_spec(self) -> Any:
        return self.signature

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        ahead = ElementBuffer(AHEAD.of(context.budget))
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


class ElementBuffer:
    """Elements between a generator (the maker) and its consumer (the taker).

    Neither side takes a lock for an element. Each first writes its own step (an element, what was
    taken, "I wait") and then reads the other's, and the GIL orders the writes, so neither can miss
    the other. A spurious wake-up is harmless: both look again. The loop is woken only if it waits.

    Args:
        limit: Bytes at which the maker waits; one element always fits.

    Attributes:
        closed: Whether the taker has left.
        failed: The error of a generator in a thread, or None.
        maker: The maker's task if it is async and can be cancelled.
    """

    def __init__(self, limit: int) -> None:
        self.closed = False
        self.failed: Exception | None = None
        self._limit = max(1, limit)
        self._loop = asyncio.get_running_loop()
        self._items: deque[Item] = deque()
        self._bytes_in = 0  # written by the maker only
        self._bytes_out = 0  # written by the taker only
        self._taker_waits = False
        self._arrived = asyncio.Event()
        self._room = threading.Condition()
        self._room_async = asyncio.Event()
        self.maker: asyncio.Task[Any] | None = None
        self._ended = False
        self._error: BaseException | None = None

    # The maker's side.

    def add(self, item: Item) -> bool:
        """Adds an element from a thread, and waits for room; False if the taker has left."""
        self._append(item)
        if self._bytes_in - self._bytes_out >= self._limit:
            with self._room:
                while self._full and not self.closed:
                    self._room.wait()
        return not self.closed

    async def add_async(self, item: Item) -> None:
        """Adds an element from a task of the loop, and waits for room."""
        self._append(item)
        while self._full:
            self._room_async.clear()
            await self._room_async.wait()

    def end(self, error: BaseException | None) -> None:
        """Ends the elements, possibly with an error. Called on the loop."""
        self._ended = True
        self._error = error
        self._arrived.set()

    def _append(self, item: Item) -> None:
        self._items.append(item)
        self._bytes_in += item[1]
        if self._taker_waits:
            self._taker_waits = False
            self._loop.call_soon_threadsafe(self._arrived.set)

    @property
    def _full(self) -> bool:
        return self._bytes_in - self._bytes_out >= self._limit

    # The taker's side, on the loop.

    async def take(self) -> list[Item] | None:
        """Waits for elements, and takes all; None at the end.

        Raises the error that ended them, once.
        """
        while not self._items and not self._ended:
            self._arrived.clear()
            self._taker_waits = True
            if not self._items:  # checked again after the maker can see the flag
                await self._arrived.wait()
            self._taker_waits = False
        if not self._items:
            self.check()
            return None
        taken = [self._items.popleft() for _ in range(len(self._items))]
        self._bytes_out += sum(nbytes for _, nbytes, _ in taken)
        self._wake()
        return taken

    def close(self) -> None:
        """The taker leaves.

        This drops all elements and a later error, and ends the maker as soon as possible.
        """
        self.closed = True
        self._error = None
        self._items.clear()
        self._wake()
        if self.maker is not None:
            self.maker.cancel()

    def check(self) -> None:
        """Raises the error that ended the elements, once."""
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def _wake(self) -> None:
        self._room_async.set()
        with self._room:
            self._room.notify()


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
    positions = GeneratedPositions(first, (saved, *states))
    if isinstance(elements[0], Unfit):
        return Chunk.failure(elements[0].error, positions, 1)
    is_records = type(elements[0]) is bytes
    return Chunk(Frames.of(elements) if is_records else list(elements), positions, sum(sizes))


@dataclass(frozen=True, slots=True)
class GeneratedPositions(Positions):
    """Positions of numbered elements, each with the generator's state if it has one."""

    first: int
    states: Sequence[str | None]

    def at(self, index: int) -> Position:
        source: dict[str, Any] = {"next": self.first + index}
        state = self.states[index]
        if state is not None:
            source["state"] = json.loads(state)
        return {"source": source}
