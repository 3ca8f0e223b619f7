"""Iterators over a running pipeline: `for`, `async for` on asyncio, and `async for` on trio.

All three get whole chunks and give single elements, so an element costs one `next()` on a list or
on Frames. All have `state_dict`, and end their run when they are closed, dropped or interrupted.

Several threads may take from one DatasetIterator, and several tasks of one loop from the other two:
each element goes to one of them, and all see the end. One of them gets the error of a failed
element, and the run continues after it. One of them gets an error that ends the run; later calls
get a ClosedError. A cancelled call takes no element. To this end, one caller at a time waits for
the next chunk, and first checks whether another one has got a chunk meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from operator import length_hint
from typing import Any, Generic, Self, TypeVar

import anyio

from streamrec import bridge
from streamrec.errors import ClosedError
from streamrec.example import BytesColumn
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import as_array, map_nest
from streamrec.pipeline.elements.positions import Positions
from streamrec.pipeline.engine.budget import CONSUMER, DEFAULT, UNCOUNTED, default_budget
from streamrec.pipeline.engine.description import Chain, Options
from streamrec.pipeline.engine.queue import ByteQueue, fill
from streamrec.pipeline.engine.run import RunContext, produce
from streamrec.pipeline.engine.session import session
from streamrec.pipeline.engine.states import position_of, state_at, state_of
from streamrec.pipeline.engine.telemetry import Telemetry
from streamrec.pipeline.telemetry.stats import Stats
from streamrec.pipeline.telemetry.trace import Trace
from streamrec.storage import collecting
from streamrec.storage.ledger import Ledger
from streamrec.tfrecord import Frames
from streamrec.tracebacks import shorten_traceback

T = TypeVar("T")


class Run:
    """A run for its consumer.

    It has the description, the elements of the current chunk, and the position among them.

    Attributes:
        elements: The current chunk's elements that were not taken.
        held: Counts the bytes that the run holds ahead of its consumer.
    """

    def __init__(
        self,
        chain: Chain,
        options: Options,
        state: Mapping[str, Any] | None,
        trace: str | os.PathLike[str] | None = None,
        progress: bool = False,
        seed: int = 0,
    ) -> None:
        self.chain = chain
        self.position = position_of(chain, state) if state is not None else {"seed": seed}
        self.memory_budget = (
            default_budget() if options.memory_budget is None else options.memory_budget
        )
        self.queue_bytes = max(1, CONSUMER.of(self.memory_budget))
        self._options = options
        self.elements: Iterator[Any] = iter(())
        # One value, since other threads may ask for it.
        self._under_way: tuple[int, Positions, Iterator[Any]] | None = None
        self.ledger = Ledger(self.memory_budget)
        written = None if trace is None else Trace(trace)
        self.telemetry = Telemetry(chain, self.ledger, self.queue_bytes, written, progress)

    async def start(self) -> AsyncGenerator[Chunk]:
        """Reads chunks as they are taken, in a session that is closed after them."""
        options = self._options
        budget = max(1, self.memory_budget - self.queue_bytes - UNCOUNTED.of(self.memory_budget))
        with collecting(self.telemetry.storage):
            async with session(self.ledger) as opened:
                follows_memory = (
                    options.memory_budget is None and self.memory_budget != DEFAULT.most
                )
                context = RunContext(
                    session=opened,
                    meter=self.telemetry.root,
                    budget=budget,
                    deterministic=options.deterministic is not False,
                    epoch=options.epoch,
                    rank=options.rank,
                    follows_memory=follows_memory,
                )
                chain = context.chunks(self.chain, self.position, continue_on_error=True)
                async with aclosing(chain) as chunks:
                    async for chunk in chunks:
                        yield chunk

    def enter(self, chunk: Chunk) -> Exception | None:
        """Makes a chunk the current one; returns the error of a failed element."""
        elements = list(chunk.elements) if isinstance(chunk.elements, Frames) else chunk.elements
        self.elements = iter(elements)  # an iterator that knows how many are left
        # Without the chunk: its records were copied, and its buffers may go.
        self._under_way = (len(elements), chunk.positions, self.elements)
        self.telemetry.takes(chunk, self.elements)
        return chunk.error

    def leave(self) -> None:
        """Called when the consumer takes no more elements."""
        self.elements = iter(())
        self.telemetry.ends()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the state before the element that is the next one now."""
        position = self.position
        under_way = self._under_way
        if under_way is None:
            return partial(state_of, self.chain, self._options.epoch, position)
        count, positions, rest = under_way
        taken = count - length_hint(rest)
        return partial(
            state_at, self.chain, self._options.epoch, positions, taken, position["seed"]
        )


class Iteration:
    """The methods of all iterators about their run."""

    _run: Run

    def state_dict(self) -> dict[str, Any]:
        """The state before the next element, as JSON.

        `dataset.iterate(state)` or `aiterate(state)` resumes there.
        """
        return self._run.bookmark()()

    def bookmark(self) -> Callable[[], dict[str, Any]]:
        """A function that returns the state of now when it is called.

        Making it costs almost nothing.
        """
        return self._run.bookmark()

    @property
    def memory_budget(self) -> int:
        """How many bytes this run may hold.

        It is `memory_budget` of `with_options`, or a share of the machine's memory.
        """
        return self._run.memory_budget

    @property
    def waited(self) -> float:
        """For how many seconds this iterator's consumer has waited for data."""
        return self._run.telemetry.waited

    def stats(self) -> Stats:
        """The run's statistics: stages, waits, bottleneck, stores; at any time, from any thread."""
        return self._run.telemetry.stats()

    def count(self, samples: int, tokens: int = 0) -> None:
        """Adds to `samples` and `tokens` of `stats()`, which the progress display shows per second.

        Loaders call it for each element that they give.
        """
        self._run.telemetry.counts(samples, tokens)


class DatasetIterator(Iteration, Generic[T]):
    """A running pipeline in a `for` loop; a background thread fetches meanwhile.

    `with iter(dataset) as elements:` or `close()` ends it at once; so do leaving the loop and
    Ctrl-C.

    Sharing: several threads may take from one iterator; each element goes to one of them, and all
    see the end.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._telemetry = telemetry = run.telemetry
        self._failures: list[Exception] = []
        fetch = partial(produce, run.start(), self._failures)
        self._chunks: bridge.SyncIterator[Chunk] = bridge.SyncIterator(
            fetch, run.queue_bytes, self._failures
        )
        # Of the channel, which does not keep this iterator alive.
        run.ledger.account.queued = partial(getattr, self._chunks.channel, "queued")
        self._refilling = threading.RLock()  # re-entrant: a signal handler may call `next`
        self._over: str | None = None
        weakref.finalize(self, telemetry.ends)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            # At most one, and not by `next`: an error below must not chain to a StopIteration.
            for element in self._run.elements:
                return element  # type: ignore[no-any-return]
            try:
                self.refill()
            except Exception as error:
                shorten_traceback(error)
                raise

    def refill(self) -> None:
        """Waits until there are elements, and takes none.

        Raises:
            StopIteration: There are no more elements.
            ClosedError: An earlier error ended the run.
            Exception: The next element failed, and the run continues after it; or an error ended
                the run.
        """
        with self._refilling:
            if length_hint(self._run.elements):
                return
            if self._over is not None:
                raise ClosedError(self._over)
            self._telemetry.waits()
            try:
                chunk = next(self._chunks)
            except BaseException as error:
                self._telemetry.ends()
                if not isinstance(error, StopIteration):
                    self._over = over(error)
                raise
            failed = self._run.enter(chunk)
            if failed is not None:
                try:
                    raise failed
                finally:
                    # No cycle of this frame and the traceback: a dropped iterator ends at once.
                    del failed
                    del chunk

    @property
    def ready(self) -> bool:
        """Whether the next element has arrived, so that `next` does not wait."""
        return length_hint(self._run.elements) > 0 or self._chunks.channel.queued > 0

    def close(self) -> None:
        """Ends the run: when this returns, no task or connection of it is left.

        Closing twice is allowed.

        Errors of elements that were not taken are not raised.

        Raises:
            Exception: An error while the run was closed.
        """
        self._run.leave()
        self._over = None
        try:
            self._chunks.close()
        except Exception as error:
            if error not in self._failures:
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class NumpyIterator(DatasetIterator[Any]):
    """A DatasetIterator whose elements are NumPy's: see `Dataset.as_numpy_iterator`."""

    def __next__(self) -> Any:
        try:
            return map_nest(as_numpy, super().__next__())
        except Exception as error:
            shorten_traceback(error)
            raise


def as_numpy(value: Any) -> Any:
    """Converts a part of an element to NumPy's types.

    Strings become `bytes`, ragged and sparse tensors stay.
    """
    if isinstance(value, Frames | BytesColumn | list | int | float):
        array = as_array(value)
        return array if array.ndim else array[()]
    return value.encode() if isinstance(value, str) else value


class AsyncDatasetIterator(Iteration, Generic[T]):
    """A running pipeline in an `async for` loop, in a task of the caller's asyncio loop.

    `async with dataset.aiterate() as elements:` or `await aclose()` ends it and waits for its
    cleanup; leaving the loop ends it soon after.

    Sharing: several tasks of its loop may take from one iterator; each element goes to one of them,
    and all see the end. A cancelled call takes no element.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._queue = ByteQueue(run.queue_bytes)
        self._refilling = asyncio.Lock()
        self._windows: Iterator[Chunk] = iter(())
        self._over: str | None = None
        loop = asyncio.get_running_loop()
        self._telemetry = telemetry = run.telemetry
        run.ledger.account.queued = partial(getattr, self._queue, "held")
        self._task = loop.create_task(fill(self._queue, run.start()), name="streamrec")
        weakref.finalize(self, cancel_soon, loop, self._task)
        weakref.finalize(self, telemetry.ends)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            for element in self._run.elements:
                return element  # type: ignore[no-any-return]
            try:
                await self._refill()
            except Exception as error:
                shorten_traceback(error)
                raise

    async def _refill(self) -> None:
        """Waits until there are elements, and takes none; as `DatasetIterator.refill`."""
        async with self._refilling:
            if length_hint(self._run.elements):
                return
            if self._over is not None:
                raise ClosedError(self._over)
            self._telemetry.waits()
            try:
                await asyncio.sleep(0)  # a cancellation here loses no element
                chunk = next(self._windows, None) or await self._next_window()
            except asyncio.CancelledError:  # it may ask again
                self._telemetry.works()
                raise
            except BaseException as error:
                self._telemetry.ends()
                self._over = over(error)
                raise
            if chunk is None:
                self._telemetry.ends()
                raise StopAsyncIteration
            failed = self._run.enter(chunk)
            if failed is not None:
                try:
                    raise failed
                finally:
                    del failed, chunk  # as above

    async def _next_window(self) -> Chunk | None:
        """The next chunk, or at most 4,096 elements of it.

        Other tasks run before the rest is given.
        """
        chunk = await self._queue.get()
        if chunk is None or len(chunk.elements) <= 4096:
            return chunk
        self._windows = chunk.windows(4096)
        return next(self._windows)

    async def aclose(self) -> None:
        """Ends the run: when this returns, no task or connection of it is left.

        Closing twice is allowed.
        """
        self._run.leave()
        self._over = None
        self._windows = iter(())
        self._queue.close(ClosedError("this iterator was closed: make a new one"))
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancels the task of a dropped iterator, from any thread."""
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


class ThreadedAsyncIterator(AsyncDatasetIterator[T]):
    """A running pipeline in an `async for` loop of trio.

    A background thread runs it; other threads wait for elements.

    Sharing: as for AsyncDatasetIterator. A thread only waits for elements; the task takes its
    element itself.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._inner: DatasetIterator[T] = DatasetIterator(run)

    async def _refill(self) -> None:
        if not await anyio.to_thread.run_sync(refilled, self._inner, abandon_on_cancel=True):
            raise StopAsyncIteration

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._inner.close)


def over(error: BaseException) -> str | None:
    """The message for calls after an error that ended a run."""
    if isinstance(error, ClosedError) or not isinstance(error, Exception):
        return None
    return (
        f"this run ended with an error ({type(error).__name__}: {error}): fix its cause and make a "
        "new iterator; with this one's `state_dict()` it continues here"
    )


def in_this_loop(run: Run) -> AsyncDatasetIterator[Any]:
    """An iterator for `async for` on the running loop: asyncio's or trio's."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ThreadedAsyncIterator(run)
    return AsyncDatasetIterator(run)


def refilled(iterator: DatasetIterator[Any]) -> bool:
    """Waits until there are elements.

    Returns False at the end, since StopIteration cannot cross threads.
    """
    try:
        iterator.refill()
    except StopIteration:
        return False
    return True
