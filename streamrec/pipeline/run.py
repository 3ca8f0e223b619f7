"""The driver: runs a description. The only place, with the source, that awaits.

What a consumer sees:
- Success: every chunk in order, then the end.
- A failing source or stage: every element that came before the failure, then the error once, with its own
  traceback. Steps are flushed before it: an unfinished batch is delivered too.
- An end from below (`take` has enough): the source is closed at once; nothing more is fetched.
- Cancellation, an early exit or an error of the consumer: the generators are closed from the outside in, by
  the task that runs them: tasks are cancelled, bodies closed, then the session with its storages. When closing
  returns, no task, connection or thread of this run is left.

Every buffer is bounded in bytes: the lanes of the source, each prefetch, and the queue to the consumer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import anyio
import anyio.lowlevel

from streamrec.pipeline.background import background
from streamrec.pipeline.batching import Batch
from streamrec.pipeline.chunk import Chunk, Position, Positions
from streamrec.pipeline.columns import window
from streamrec.pipeline.description import Chain, Concatenate, Prefetch, Repeat, Zip
from streamrec.pipeline.given import Range, Slices, chunks_from
from streamrec.pipeline.nests import leaves
from streamrec.pipeline.pushing import collect, drain, push
from streamrec.pipeline.queue import ByteQueue
from streamrec.pipeline.session import Session, session
from streamrec.pipeline.source import Shards, read_shards
from streamrec.pipeline.zipping import Zipper

__all__ = ["Put", "chunks_of", "produce"]

QUEUE_SHARE = 4
"""A chain that is zipped runs ahead by this part of its share of the budget."""

Put = Callable[[Chunk, int], Awaitable[None]]


async def produce(chain: Chain, position: Position | None, budget: int, put: Put, kept: Session | None = None) -> None:
    """Runs a chain from a position to its end, and hands every chunk to `put`, with its weight in bytes.

    Args:
        chain: What to run.
        position: Where to begin; None for the start.
        budget: Bytes that its source may hold.
        put: Takes the chunks.
        kept: The session of a run that this one is a part of; None: one of its own.
    """
    async with (
        session() if kept is None else nullcontext(kept) as within,
        aclosing(chunks_of(chain, position, budget, within)) as chunks,
    ):
        async for chunk in chunks:
            await put(chunk, chunk.nbytes)


async def chunks_of(chain: Chain, position: Position | None, budget: int, kept: Session) -> AsyncGenerator[Chunk]:
    """A chain's chunks, from a position on: the source's, through all steps."""
    position = position or {}
    states: Mapping[str, Any] = position.get("stages", {})
    steps = [stage.start(str(index), states.get(str(index))) for index, stage in enumerate(chain.stages)]
    offload = any(stage.offload for stage in chain.stages)
    failure: Exception | None = None
    if not position.get("ended") and not any(step.done for step in steps):
        skip = position.get("skip", 0)
        async with aclosing(source_of(chain, position.get("source"), budget, skip, kept)) as source:
            try:
                async for chunk in skipping(source, skip):
                    chunks, failure = await through(push(steps, chunk), offload)
                    for out in chunks:
                        yield out
                    if failure or any(step.done for step in steps):
                        break
            except Exception as error:
                failure = error
    chunks, last_failure = await through(drain(steps), offload)
    for out in chunks:
        yield out
    if failure := failure or last_failure:
        raise failure


def source_of(
    chain: Chain, state: Mapping[str, Any] | None, budget: int, skip: int, kept: Session
) -> AsyncGenerator[Chunk]:
    """The chunks of a chain's source; `skip` elements will be dropped of them."""
    match chain.source:
        case Shards() as shards:
            first = chain.stages[0] if chain.stages else None
            batch = first.batch_size if isinstance(first, Batch) else 1
            return read_shards(shards, state, budget, kept, batch, skip)
        case Repeat() as repeat:
            return repeated(repeat, state or {"epoch": 0}, budget, kept)
        case Prefetch() as prefetch:
            return prefetched(prefetch, state or {}, budget, kept)
        case Concatenate() as concatenate:
            return concatenated(concatenate, state or {}, budget, kept)
        case Zip() as together:
            return zipped(together, state or {}, budget, kept)
        case Range() | Slices() as given:
            return yielded(given, state)


async def yielded(given: Range | Slices, state: Mapping[str, Any] | None) -> AsyncGenerator[Chunk]:
    """Elements that are there already; others on the loop have their turns in between."""
    for chunk in chunks_from(given, state):
        await anyio.lowlevel.checkpoint()
        yield chunk


async def repeated(repeat: Repeat, state: Mapping[str, Any], budget: int, kept: Session) -> AsyncGenerator[Chunk]:
    """Epoch after epoch, in one session. A chain that is empty from its start ends even an endless repeat."""
    epoch, position = state["epoch"], state.get("inner")
    while repeat.count < 0 or epoch < repeat.count:
        empty = position is None
        async with aclosing(chunks_of(repeat.inner, position, budget, kept)) as chunks:
            async for chunk in chunks:
                empty = False
                yield replace(chunk, positions=Nested(chunk.positions, {"epoch": epoch}))
        if empty:
            return
        epoch, position = epoch + 1, None


async def prefetched(prefetch: Prefetch, state: Mapping[str, Any], budget: int, kept: Session) -> AsyncGenerator[Chunk]:
    """Runs the inner chain in a task of its own, ahead of the consumer."""
    queue = ByteQueue(prefetch.buffer_bytes)
    async with background() as tasks:
        tasks.start_soon(fill, queue, prefetch.inner, state.get("inner"), budget, kept)
        while (chunk := await queue.get()) is not None:
            yield replace(chunk, positions=Nested(chunk.positions, {}))


async def concatenated(
    concatenate: Concatenate, state: Mapping[str, Any], budget: int, kept: Session
) -> AsyncGenerator[Chunk]:
    """One chain after the other."""
    first, position = state.get("part", 0), state.get("inner")
    for part, chain in enumerate(concatenate.parts[first:], first):
        async with aclosing(chunks_of(chain, position, budget, kept)) as chunks:
            async for chunk in chunks:
                yield replace(chunk, positions=Nested(chunk.positions, {"part": part}))
        position = None


async def zipped(together: Zip, state: Mapping[str, Any], budget: int, kept: Session) -> AsyncGenerator[Chunk]:
    """Chains side by side, each in a task of its own with an equal share of the budget, up to the first one's end."""
    chains = list(leaves(together.nest))
    positions = state.get("parts", [None] * len(chains))
    share = budget // len(chains)
    queues = [ByteQueue(share // QUEUE_SHARE) for _ in chains]
    zipper = Zipper(together.nest)
    async with background() as tasks:
        for queue, chain, position in zip(queues, chains, positions, strict=True):
            tasks.start_soon(fill, queue, chain, position, share - share // QUEUE_SHARE, kept)
        while True:
            while (part := zipper.wanted) is not None:
                chunk = await queues[part].get()
                if chunk is None:
                    return
                zipper.feed(part, chunk)
            yield zipper.pair()


async def fill(
    queue: ByteQueue, chain: Chain, position: Position | None, budget: int, kept: Session | None = None
) -> None:
    """Fills a prefetch queue; an error goes through it, behind the chunks that came before."""
    try:
        await produce(chain, position, budget, queue.put, kept)
    except Exception as error:
        queue.end(error)
    else:
        queue.end(None)


async def skipping(source: AsyncGenerator[Chunk], skip: int) -> AsyncGenerator[Chunk]:
    """The source without its first `skip` elements: where a position lies within a chunk."""
    async for chunk in source:
        count = len(chunk.elements)
        if skip >= count:
            skip -= count
        elif skip:
            yield Chunk(window(chunk.elements, skip, count), Shifted(chunk.positions, skip), chunk.nbytes)
            skip = 0
        else:
            yield chunk


async def through(outputs: Iterator[Chunk], offload: bool) -> tuple[list[Chunk], Exception | None]:
    """All outputs and the error that ended them, worked out in a thread where they call the user's code."""
    return await anyio.to_thread.run_sync(collect, outputs) if offload else collect(outputs)


@dataclass(frozen=True, slots=True)
class Nested:
    """Positions of a chain within a repeat, a prefetch or a concatenation, which adds a state of its own."""

    inner: Positions
    state: Mapping[str, Any]

    def at(self, index: int) -> Position:
        return {"source": {**self.state, "inner": dict(self.inner.at(index))}}


@dataclass(frozen=True, slots=True)
class Shifted:
    """Positions of a chunk whose first elements were skipped."""

    inner: Positions
    first: int

    def at(self, index: int) -> Position:
        return self.inner.at(self.first + index)
