"""Iterators over a running pipeline: for `for`, for `async for` on asyncio, and for `async for` elsewhere.

All three hand out elements one at a time from chunks that cross once, so an element costs one `next()` on a
list or on Frames. All can say where they stand (`state_dict`), and end their run when they are closed, dropped
or interrupted.
"""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import length_hint
from secrets import randbits
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from streamrec import bridge
from streamrec.errors import ClosedError, PositionMismatchError
from streamrec.pipeline.budget import CONSUMER
from streamrec.pipeline.chunk import Chunk, Position
from streamrec.pipeline.description import Chain
from streamrec.pipeline.options import Options
from streamrec.pipeline.queue import ByteQueue, fill
from streamrec.pipeline.run import produce, started
from streamrec.pipeline.watching.stats import Stats
from streamrec.pipeline.watching.trace import Trace
from streamrec.pipeline.watching.watch import Watching
from streamrec.storage import collecting
from streamrec.tfrecord import Frames

__all__ = ["AsyncDatasetIterator", "DatasetIterator", "Run", "ThreadedAsyncIterator", "in_this_loop"]

T = TypeVar("T")

FORMAT = 1
SEED_BITS = 48


class Run:
    """What the iterators share: the description, the elements under way, and the position among them."""

    def __init__(
        self,
        chain: Chain,
        options: Options,
        state: Mapping[str, Any] | None,
        trace: str | os.PathLike[str] | None = None,
        progress: bool = False,
    ) -> None:
        self.chain = chain
        self.position = position_of(chain, state) if state is not None else {"seed": randbits(SEED_BITS)}
        self.memory_budget = options.budget
        self.queue_bytes = max(1, CONSUMER.of(self.memory_budget))
        epoch = options.epoch if state is None else state.get("epoch", 0)
        self.options = replace(options, memory_budget=max(1, self.memory_budget - self.queue_bytes), epoch=epoch)
        self.elements: Iterator[Any] = iter(())
        self._chunk: Chunk | None = None
        self.watching = Watching(chain, self.queue_bytes, None if trace is None else Trace(trace), progress)

    def enter(self, chunk: Chunk) -> None:
        """The next chunk's elements are handed out from now on."""
        self._chunk = chunk
        self.elements = iter(unpacked(chunk))
        self.watching.takes(chunk, self.elements)

    def leave(self) -> None:
        """The consumer takes nothing more."""
        self.elements = iter(())
        self.watching.ends()

    def state_dict(self) -> dict[str, Any]:
        """The position before the next element, as JSON."""
        position: Position = self.position
        if self._chunk is not None:
            position = self._chunk.positions.at(len(self._chunk.elements) - length_hint(self.elements))
        position = {**position, "seed": self.position["seed"]}
        lines = list(self.chain.lines())
        return {"format": FORMAT, "pipeline": lines, "epoch": self.options.epoch, "position": position}


def unpacked(chunk: Chunk) -> Iterable[Any]:
    """A chunk's elements as a sequence whose iterator knows how many are left."""
    return list(chunk.elements) if isinstance(chunk.elements, Frames) else chunk.elements


async def counted(watching: Watching, work: Callable[..., Awaitable[None]], *args: Any) -> None:
    """Does the work of a run; all its requests are counted, too."""
    with collecting(watching.storage):
        await work(*args)


def fill_of(chunks: bridge.SyncIterator[Chunk]) -> Callable[[], int]:
    """Tells how many bytes wait in it, and does not keep it alive."""
    reference = weakref.ref(chunks)

    def queued() -> int:
        chunks = reference()
        return 0 if chunks is None else chunks.queued

    return queued


def position_of(chain: Chain, state: Mapping[str, Any]) -> Position:
    """The position in a saved state.

    Raises:
        PositionMismatchError: The state was saved by another pipeline; the message says what differs.
    """
    if state.get("format") != FORMAT:
        raise PositionMismatchError(
            f"this state has format {state.get('format')!r}, not {FORMAT}: it is of another version"
        )
    saved: Sequence[str] = state["pipeline"]
    ours = list(chain.lines())
    if saved != ours:
        differing = [pair for pair in zip_longest_lines(saved, ours) if pair[0] != pair[1]]
        was, now = differing[0]
        raise PositionMismatchError(
            f"this state was saved by another pipeline: it had {was}, and now there is {now}; "
            "resume with the pipeline that saved it, or start anew without the state"
        )
    position: Position = state["position"]
    return position


def zip_longest_lines(saved: Sequence[str], ours: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The lines of two pipelines side by side."""
    for index in range(max(len(saved), len(ours))):
        yield (
            saved[index] if index < len(saved) else "nothing",
            ours[index] if index < len(ours) else "nothing",
        )


class DatasetIterator(Generic[T]):
    """A running pipeline in a `for` loop; the fetching goes on beside it, on the bridge's thread.

    `with iter(dataset) as elements:` or `close()` ends it at once; so do leaving the loop and Ctrl-C.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._watching = watching = run.watching
        fetch = partial(counted, watching, produce, run.chain, run.position, run.options, watching.root)
        self._chunks: bridge.SyncIterator[Chunk] = bridge.iterate(fetch, run.queue_bytes)
        watching.queued = fill_of(self._chunks)
        weakref.finalize(self, watching.ends)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        while True:
            for element in self._run.elements:  # at most one: an error below must not chain to a StopIteration
                return element  # type: ignore[no-any-return]
            self._watching.waits()
            try:
                self._run.enter(next(self._chunks))
            except BaseException:
                self._watching.ends()
                raise

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from, as JSON: `dataset.iterate(state)` goes on exactly there."""
        return self._run.state_dict()

    @property
    def memory_budget(self) -> int:
        """Bytes that this run may hold: what `with_options` said, or a share of the machine's memory."""
        return self._run.memory_budget

    @property
    def waited(self) -> float:
        """Seconds that this iterator's consumer has waited for data so far."""
        return self._watching.waited

    def stats(self) -> Stats:
        """How the run stands: its stages, its waits, its bottleneck, its stores; at any time, from any thread."""
        return self._watching.stats()

    def close(self) -> None:
        """Ends the run: when this returns, no task or connection of it is left. Closing twice is fine."""
        self._run.leave()
        self._chunks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncDatasetIterator(Generic[T]):
    """A running pipeline in an `async for` loop, on the caller's own asyncio loop: one task beside the caller's.

    `async with dataset.aiterate() as elements:` or `await aclose()` ends it and waits for its cleanup; leaving
    the loop ends it too, soon after.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._queue = ByteQueue(run.queue_bytes)
        loop = asyncio.get_running_loop()
        self._watching = watching = run.watching
        watching.queued = partial(getattr, self._queue, "held")
        chunks = started(run.chain, run.position, run.options, watching.root)
        filling = counted(watching, fill, self._queue, chunks)
        self._task = loop.create_task(filling, name="streamrec")
        weakref.finalize(self, cancel_soon, loop, self._task)
        weakref.finalize(self, watching.ends)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while True:
            for element in self._run.elements:
                return element  # type: ignore[no-any-return]
            self._watching.waits()
            try:
                chunk = await self._queue.get()
            except asyncio.CancelledError:  # it may ask again
                self._watching.works()
                raise
            except BaseException:
                self._watching.ends()
                raise
            if chunk is None:
                self._watching.ends()
                raise StopAsyncIteration
            self._run.enter(chunk)

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from, as JSON: `dataset.aiterate(state)` goes on exactly there."""
        return self._run.state_dict()

    @property
    def memory_budget(self) -> int:
        """Bytes that this run may hold: what `with_options` said, or a share of the machine's memory."""
        return self._run.memory_budget

    @property
    def waited(self) -> float:
        """Seconds that this iterator's consumer has waited for data so far."""
        return self._watching.waited

    def stats(self) -> Stats:
        """How the run stands: its stages, its waits, its bottleneck, its stores; at any time, from any thread."""
        return self._watching.stats()

    async def aclose(self) -> None:
        """Ends the run: when this returns, no task or connection of it is left. Closing twice is fine."""
        self._run.leave()
        self._queue.close(ClosedError("this iterator was closed; make a new one"))
        self._task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._task])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def cancel_soon(loop: asyncio.AbstractEventLoop, task: asyncio.Task[None]) -> None:
    """Cancels the task of an iterator that was dropped, from whichever thread dropped it."""
    if not task.done() and not loop.is_closed():
        loop.call_soon_threadsafe(task.cancel)


class ThreadedAsyncIterator(Generic[T]):
    """`async for` where the caller's loop is not asyncio's (trio): the bridge runs the pipeline, threads wait."""

    def __init__(self, inner: DatasetIterator[T]) -> None:
        self._inner = inner

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        for element in self._inner._run.elements:
            return element  # type: ignore[no-any-return]
        element, found = await anyio.to_thread.run_sync(advance, self._inner, abandon_on_cancel=True)
        if not found:
            raise StopAsyncIteration
        return element  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Where the next element comes from, as JSON."""
        return self._inner.state_dict()

    @property
    def memory_budget(self) -> int:
        """Bytes that this run may hold: what `with_options` said, or a share of the machine's memory."""
        return self._inner.memory_budget

    @property
    def waited(self) -> float:
        """Seconds that this iterator's consumer has waited for data so far."""
        return self._inner.waited

    def stats(self) -> Stats:
        """How the run stands: its stages, its waits, its bottleneck, its stores; at any time, from any thread."""
        return self._inner.stats()

    async def aclose(self) -> None:
        """Ends the run and waits for its cleanup."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._inner.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def in_this_loop(run: Run) -> AsyncDatasetIterator[Any] | ThreadedAsyncIterator[Any]:
    """An iterator for `async for` on the loop that runs here: asyncio's, or another one (trio)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return ThreadedAsyncIterator(DatasetIterator(run))
    return AsyncDatasetIterator(run)


def advance(iterator: DatasetIterator[Any]) -> tuple[Any, bool]:
    """The next element and True, or None and False at the end: StopIteration does not cross threads."""
    try:
        return next(iterator), True
    except StopIteration:
        return None, False
