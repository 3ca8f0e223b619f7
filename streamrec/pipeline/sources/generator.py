"""Generators of the user's as a source: sync ones in a thread of the run, async ones in a task of their own.

Rules:
- One thread, or one task of the loop that runs the pipeline, makes a generator's elements from the first to the last,
  and closes it too; an exception of it comes once, after the elements before it.
- It runs ahead of its consumer, by `AHEAD`. An element that is made can be taken at once; what was made while the
  consumer was busy is taken together, so that short elements do not cost a change of threads each.
- A position is the number of the next element, and the generator's own state where it has one. Otherwise it is called
  again and the elements before that number are dropped.
- Bytes are records: they go on as Frames. A chunk is of bytes or of anything else, never of both, so that what a batch
  is made into does not depend on which elements were taken together.
- An element that does not fit the signature becomes a failure; the generator goes on.
- Closing cancels an async generator. A sync one cannot be stopped in the middle of an element: closing waits for that
  for a second, and then leaves the thread, with a warning; it ends with its element, or with the interpreter.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import count, groupby
from operator import itemgetter
from time import perf_counter
from typing import Any, Final, NamedTuple

import anyio

from streamrec.arguments import name_type
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk, weigh_one
from streamrec.pipeline.elements.codec import digest_of
from streamrec.pipeline.elements.positions import Position, Positions
from streamrec.pipeline.elements.specs import conform, record_spec
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Source, name_of
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.threads import Threads
from streamrec.tfrecord import Frames

__all__ = ["Generated"]

LOG = logging.getLogger("streamrec")

AHEAD: Final = Share(4, 4 << 20)
"""How much is made before it is asked for."""

Made = tuple[Any, int, str | None]
"""An element, its weight in bytes, and the JSON of its maker's state after it, if that has one."""


@dataclass(frozen=True, slots=True)
class Generated(Source):
    """The elements of what a callable returns: an iterator, an iterable, or an async one; made to fit a signature."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    signature: Any = None

    def lines(self) -> Iterator[str]:
        given = f", args of digest {digest_of(self.args)}" if self.args else ""
        wanted = "" if self.signature is None else f", signature={self.signature!r}"
        yield f"Generated({name_of(self.function)}{given}{wanted})"

    def element_spec(self) -> Any:
        return self.signature

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        ahead = ElementBuffer(AHEAD.of(within.budget))
        place = Place(state["next"], state.get("state")) if state else Place(0, None)
        task = asyncio.get_running_loop().create_task(
            self._make(place, ahead, within.session.threads), name="streamrec generator"
        )
        first, saved = place.number, None if place.state is None else json.dumps(place.state)
        try:
            while (made := await ahead.take()) is not None:
                for part in split_kinds(made):
                    yield chunk_of(part, first, saved)
                    first, saved = first + len(part), part[-1][2]
        finally:
            ahead.close()
            with anyio.CancelScope(shield=True):
                await self._end(task, ahead)
            ahead.check()

    async def _make(self, place: Place, ahead: ElementBuffer, threads: Threads) -> None:
        """Makes elements until there are no more, or none are wanted. Raises nothing."""
        try:
            if inspect.isasyncgenfunction(self.function):
                made = self.function(*self.args)
            else:
                made = await threads.run(partial(self._in_thread, place, ahead))
            if made is not None and not ahead.closed:
                await run_async(made, place, ahead, self.signature)
            ahead.end(None)
        except BaseException as error:
            unwanted = ahead.closed and (isinstance(error, asyncio.CancelledError) or error is ahead.failed)
            ahead.end(None if unwanted else error)

    async def _end(self, task: asyncio.Task[None], ahead: ElementBuffer) -> None:
        """Waits until nothing of it runs any more; but not for long where that is a thread."""
        await asyncio.wait([task], timeout=1.0)
        if not task.done() and ahead.maker is None:
            LOG.warning("%s: the generator is still at an element; its thread is left", name_of(self.function))
            for _ in range(2):  # a call in a thread is waited for when it is cancelled once
                task.cancel()
                await asyncio.wait([task], timeout=0)
        await asyncio.wait([task])

    def _in_thread(self, place: Place, ahead: ElementBuffer) -> Any:
        """Calls the callable; makes its elements here, or returns it where it is async."""
        made = self.function(*self.args)
        if isinstance(made, AsyncIterable):
            return made
        if inspect.iscoroutine(made):
            made.close()
            raise TypeError(
                f"{name_of(self.function)} gave a coroutine, where an iterator or an async iterator is wanted: an"
                " `async def` becomes an async generator by a `yield` in it"
            )
        run(made, place, ahead, self.signature)
        return None


class ElementBuffer:
    """Elements that were made and not taken yet: the maker waits where they are too many, the taker where none is.

    Neither side takes a lock for an element. Each first writes its own step (an element; what was taken; "I wait") and
    then reads the other's, and the interpreter's lock orders the writes; so neither can miss the other. A wake-up too
    many is harmless: both look again. The loop is woken only where it waits, so what is made meanwhile costs none.

    Args:
        limit: Bytes at which the maker waits; one element always fits.

    Attributes:
        closed: Whether the taker wants no more.
        failed: The error of an element that was made in a thread; None for none.
        maker: The maker, where it is a task of the loop that can be cancelled.
    """

    def __init__(self, limit: int) -> None:
        self.closed = False
        self.failed: Exception | None = None
        self._limit = max(1, limit)
        self._loop = asyncio.get_running_loop()
        self._made: deque[Made] = deque()
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

    def add(self, made: Made) -> bool:
        """Adds an element from a thread, and waits where there are too many; tells whether more are wanted."""
        self._append(made)
        if self._bytes_in - self._bytes_out >= self._limit:
            with self._room:
                while self._full and not self.closed:
                    self._room.wait()
        return not self.closed

    async def add_async(self, made: Made) -> None:
        """The same from a task of the loop; where no more are wanted it is cancelled."""
        self._append(made)
        while self._full:
            self._room_async.clear()
            await self._room_async.wait()

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Within this block, closing cancels the task that it runs in; the cancellation ends here."""
        self.maker = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self.closed:
                raise
        finally:
            self.maker = None

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes, because of an error or not. Called on the loop."""
        self._ended, self._error = True, error
        self._arrived.set()

    def _append(self, made: Made) -> None:
        self._made.append(made)
        self._bytes_in += made[1]
        if self._taker_waits:
            self._taker_waits = False
            self._loop.call_soon_threadsafe(self._arrived.set)

    @property
    def _full(self) -> bool:
        return self._bytes_in - self._bytes_out >= self._limit

    # The taker's side, on the loop.

    async def take(self) -> list[Made] | None:
        """All elements that were made, at least one; None at the end.

        Raises:
            BaseException: What ended them, once, after all that came before.
        """
        while not self._made and not self._ended:
            self._arrived.clear()
            self._taker_waits = True
            if not self._made:  # again, now that the maker can see that it waits
                await self._arrived.wait()
            self._taker_waits = False
        if not self._made:
            self.check()
            return None
        taken = [self._made.popleft() for _ in range(len(self._made))]
        self._bytes_out += sum(nbytes for _, nbytes, _ in taken)
        self._wake()
        return taken

    def close(self) -> None:
        """No more are wanted: the maker ends as soon as it can. An error that was not taken is of no element taken."""
        self.closed, self._error = True, None
        self._made.clear()
        self._wake()
        if self.maker is not None:
            self.maker.cancel()

    def check(self) -> None:
        """Raises the error that ended the elements, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wake(self) -> None:
        self._room_async.set()
        with self._room:
            self._room.notify()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a generator goes on: before element `number`; with its own state there, if it has one."""

    number: int
    state: Any

    def enter(self, made: Any) -> int:
        """Lets a generator go on here, if it can by itself; returns how many elements are to be dropped otherwise."""
        if self.state is None:
            return self.number
        if not hasattr(made, "load_state_dict"):
            raise PositionMismatchError(
                f"this state holds a generator's own, and {name_type(made)} has no load_state_dict: resume with"
                " the generator that saved it, or start over without the state"
            )
        made.load_state_dict(self.state)
        return 0

    def check(self, dropped: int, wanted: int) -> None:
        """Raises where the generator ended before this place."""
        if dropped < wanted:
            raise PositionMismatchError(
                f"this state is before element {wanted:,}, and the generator ended after {dropped:,}: it must give"
                " the same elements each time it is called, or have state_dict() and load_state_dict()"
            )


def run(made: Iterable[Any], place: Place, ahead: ElementBuffer, signature: Any) -> None:
    """Takes elements of an iterable in this thread, from a place to its end, or until no more are wanted."""
    dropping = place.enter(made)
    finish = finisher(made, place.number, signature)
    dropped = 0
    iterator = iter(made)
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
    place.check(dropped, dropping)


async def run_async(made: AsyncIterable[Any], place: Place, ahead: ElementBuffer, signature: Any) -> None:
    """The same on the loop, for an async iterable; it is cancelled where no more are wanted."""
    dropping = place.enter(made)
    finish = finisher(made, place.number, signature)
    dropped, turn = 0, perf_counter()
    iterator = aiter(made)
    with ahead.cancelling():
        async with aclosing(iterator) if isinstance(iterator, AsyncGenerator) else nullcontext():
            async for element in iterator:
                if dropped < dropping:
                    dropped += 1
                else:
                    await ahead.add_async(finish(element))
                if perf_counter() - turn > 0.005:  # others on the loop have their turns
                    await asyncio.sleep(0)
                    turn = perf_counter()
    place.check(dropped, dropping)


class Unfit(NamedTuple):
    """In the place of an element that does not fit the signature: the error."""

    error: Exception


def finisher(made: Any, first: int, signature: Any) -> Callable[[Any], Made]:
    """What makes each element, of which the first has this number, fit a signature, and adds weight and state to it."""
    has_state = hasattr(made, "state_dict") and hasattr(made, "load_state_dict")
    is_record, number = signature == record_spec(), count(first)

    def finish(element: Any) -> Made:
        here = next(number)
        if signature is not None and not (is_record and type(element) is bytes):
            try:
                element = conform(signature, element)
            except (TypeError, ValueError) as error:
                reason = f"element {here:,} of the generator is not as output_signature says: {error}"
                element = Unfit(type(error)(reason))
                element.error.__cause__ = error
        return element, weigh_one(element), json.dumps(made.state_dict()) if has_state else None

    return finish


def split_kinds(made: Sequence[Made]) -> Iterator[Sequence[Made]]:
    """The elements in runs of records alone and of others alone; one that does not fit by itself."""
    kinds = [type(element) if type(element) in (bytes, Unfit) else object for element, _, _ in made]
    if len(set(kinds)) == 1 and kinds[0] is not Unfit:
        yield made
        return
    for kind, run in groupby(zip(kinds, made, strict=True), itemgetter(0)):
        parts = [one for _, one in run]
        yield from ([part] for part in parts) if kind is Unfit else (parts,)


def chunk_of(made: Sequence[Made], first: int, saved: str | None) -> Chunk:
    """Elements as a chunk: `first` of them came before, and `saved` was the generator's state then."""
    elements, sizes, states = zip(*made, strict=True)
    positions = GeneratedPositions(first, (saved, *states))
    if isinstance(elements[0], Unfit):
        return Chunk.failure(elements[0].error, positions, 1)
    return Chunk(Frames.of(elements) if type(elements[0]) is bytes else list(elements), positions, sum(sizes))


@dataclass(frozen=True, slots=True)
class GeneratedPositions(Positions):
    """Positions of elements that have numbers, and a state each where their generator tells one."""

    first: int
    states: Sequence[str | None]

    def at(self, index: int) -> Position:
        state = self.states[index]
        own = {} if state is None else {"state": json.loads(state)}
        return {"source": {"next": self.first + index, **own}}
