"""The driver: runs a description. The only place, with the sources, that awaits.

What a consumer sees:
- Success: every chunk in order, then the end.
- A failing stage: every element that came before the failure, then the error, of its own type, with its own traceback,
  and a note that says where it came up: which stage, which element, and which record of which shard where that is
  known. An unfinished batch is delivered before it. The run goes on: the next element is the one behind that which
  failed, and so is the position. The error travels among the chunks (`Chunk.error`), through all steps.
- A failing source, or a step that raises: the same, but the run is over: who asks again gets a ClosedError. So it is
  where a source that runs chains does not go on behind an element that failed (`goes_on`).
- An end from below (`take` has enough): the source is closed at once; nothing more is fetched.
- Cancellation, an early exit or an error of the consumer, Ctrl-C, an iterator that is dropped, the interpreter's exit:
  the generators are closed from the outside in, by the task that runs them: tasks are cancelled, bodies closed,
  then the session with its storages. A call of a user's function that is under way is waited for; no other is made.
- When closing returns, no task, connection, file or thread of this run is left. Idle threads of the caller's own
  event loop (its executor's, which opens files) are the loop's, and used again by every run.

Every buffer is bounded in bytes, and all of them together by the run's budget (`budget.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import anyio.lowlevel

from streamrec.errors import DataError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position, shifted
from streamrec.pipeline.engine.description import Chain, ChainCounter, ChunkCounter, RunContext, SourceCounter
from streamrec.pipeline.engine.offload import Offloader
from streamrec.pipeline.engine.options import Options
from streamrec.pipeline.engine.session import session
from streamrec.pipeline.engine.stage import drain, push, strict

__all__ = ["Put", "produce", "started"]

Put = Callable[[Chunk, int], Awaitable[None]]


async def produce(
    chain: Chain,
    position: Position | None,
    options: Options,
    counter: SourceCounter,
    failures: list[Exception],
    put: Put,
) -> None:
    """Runs a chain from a position to its end, and hands every chunk to `put`, with its weight in bytes.

    Args:
        chain: What to run.
        position: Where to begin; None for the start.
        options: What it is told; the budget is what its source may hold.
        counter: Counts it.
        failures: Gets the error of the chain itself: one of closing it is none.
        put: Takes the chunks.
    """
    async with aclosing(started(chain, position, options, counter)) as chunks:
        while True:
            try:
                chunk = await anext(chunks, None)
            except Exception as error:
                task = asyncio.current_task()
                closing = task is not None and task.cancelling() > 0  # then it may be of somebody's cleanup
                if not closing or isinstance(error, DataError):
                    failures.append(error)
                raise
            if chunk is None:
                return
            await put(chunk, chunk.nbytes)


async def started(
    chain: Chain, position: Position | None, options: Options, counter: SourceCounter
) -> AsyncGenerator[Chunk]:
    """A run of its own: a chain's chunks, in a session that is closed behind them."""
    async with session() as kept:
        ordered = options.deterministic is not False
        within = RunContext(chunks_of, kept, counter, options.budget, ordered, options.epoch, rank=options.rank)
        async with aclosing(within.chunks(chain, position, goes_on=True)) as chunks:
            async for chunk in chunks:
                yield chunk


def chunks_of(chain: Chain, position: Position | None, within: RunContext) -> AsyncGenerator[Chunk]:
    """A chain's chunks, from a position on, counted."""
    position = position or {}
    counter = within.counter.chain(chain)
    inside = replace(within, counter=counter.source, seed=position.get("seed", within.seed))
    return watched(running(chain, position, inside, counter), counter)


async def running(chain: Chain, position: Position, within: RunContext, counter: ChainCounter) -> AsyncGenerator[Chunk]:
    """A chain's chunks: the source's, through all steps."""
    states: Mapping[str, Any] = position.get("stages", {})
    steps = counter.steps(stage.start(str(index), states.get(str(index))) for index, stage in enumerate(chain.stages))
    offloader = Offloader((stage.offload for stage in chain.stages), within.session.threads)
    failure: Exception | None = None
    if not position.get("ended") and not any(step.done for step in steps):
        skip = position.get("skip", 0)
        batch, begun = batching(chain, within)
        beside = offloader.wanted if chain.stages else within.beside
        ahead = replace(within, skip=skip, batch=batch, begun=begun, beside=beside)
        async with aclosing(watched(chain.source.chunks(position.get("source"), ahead), counter.source)) as source:
            try:
                async for chunk in skipping(source, skip):
                    if chunk.error is not None:
                        counter.source.blamed(chunk.error)
                        await anyio.lowlevel.checkpoint()  # thousands may follow each other, and none fills a queue
                    outputs = push(steps, chunk)
                    work = outputs if within.goes_on else strict(outputs)
                    chunks, failure = await offloader.through(work, chunk.nbytes)
                    for out in chunks:
                        yield out
                    if failure or any(step.done for step in steps):
                        break
            except Exception as error:
                failure = counter.source.blamed(error)
    chunks, last_failure = await offloader.through(drain(steps) if within.goes_on else strict(drain(steps)))
    for out in chunks:
        yield out
    if failure := failure or last_failure:
        raise failure


def batching(chain: Chain, within: RunContext) -> tuple[int, int]:
    """`batch` and `begun` for a chain's source: of its own batches, or of those behind a chain of no stages."""
    if not chain.stages:
        return within.batch, within.begun
    return chain.stages[0].windows_of, 0


async def skipping(source: AsyncGenerator[Chunk], skip: int) -> AsyncGenerator[Chunk]:
    """The source without its first `skip` elements: where a position lies within a chunk."""
    async for chunk in source:
        count = len(chunk.elements)
        if not skip:
            yield chunk
        elif skip >= count:
            skip -= count
        else:
            yield Chunk(window(chunk.elements, skip, count), shifted(chunk.positions, skip), chunk.nbytes)
            skip = 0


async def watched(chunks: AsyncGenerator[Chunk], meter: ChunkCounter) -> AsyncGenerator[Chunk]:
    """The same chunks; a meter is told when one is asked for, and when it comes."""
    meter.begins()
    asked = False
    try:
        async with aclosing(chunks):
            meter.asked()
            asked = True
            async for chunk in chunks:
                meter.gave(chunk)
                asked = False
                yield chunk
                meter.asked()
                asked = True
    finally:
        if asked:
            meter.gave(None)
        meter.ends()
