"""The driver: runs a description. The only place, with the sources, that awaits.

What a consumer sees:
- Success: every chunk in order, then the end.
- A failing stage: every element that came before the failure, then the error, of its own type, with its own traceback,
  and a note that says where it came up: which stage, which element, and which record of which shard where that is
  known. An unfinished batch is delivered before it. The run goes on: the next element is the one after that which
  failed, and so is the position. The error travels among the chunks (`Chunk.error`), through all steps.
- A failing source, or a step that raises: the same, but the run is over: the next request gets a ClosedError. So it is
  where a source that runs chains does not go on after an element that failed (`goes_on`).
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
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace

import anyio.lowlevel

from streamrec.errors import DataError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position, shifted
from streamrec.pipeline.engine.description import Chain, RunContext, SourceCounter
from streamrec.pipeline.engine.offload import Offloader
from streamrec.pipeline.engine.options import Options
from streamrec.pipeline.engine.session import session
from streamrec.pipeline.engine.stage import drain, push, strict
from streamrec.storage import Statistics, collecting

__all__ = ["Put", "produce", "start"]

Put = Callable[[Chunk, int], Awaitable[None]]


async def produce(chunks: AsyncGenerator[Chunk], failures: list[Exception], put: Put) -> None:
    """Hands every chunk of a run to `put`, with its weight in bytes.

    Args:
        chunks: What `start` gave.
        failures: Gets the error of the chain itself, and not one of closing it.
        put: Takes the chunks.
    """
    async with aclosing(chunks):
        while True:
            try:
                chunk = await anext(chunks, None)
            except Exception as error:
                task = asyncio.current_task()
                closing = task is not None and task.cancelling() > 0  # then the error may come from cleaning up
                if not closing or isinstance(error, DataError):
                    failures.append(error)
                raise
            if chunk is None:
                return
            await put(chunk, chunk.nbytes)


async def start(
    chain: Chain, position: Position | None, options: Options, counter: SourceCounter, requests: Statistics
) -> AsyncGenerator[Chunk]:
    """A run of its own: a chain's chunks from a position on, in a session that is closed after them.

    Args:
        chain: What runs.
        position: Where to begin; None for the start.
        options: What it is told; the budget is what its source may hold.
        counter: Counts the chain.
        requests: Counts what its stores do.
    """
    with collecting(requests):
        async with session() as opened:
            ordered = options.deterministic is not False
            within = RunContext(run_chain, opened, counter, options.budget, ordered, options.epoch, rank=options.rank)
            within = replace(within, follows_memory=options.follows_memory)
            async with aclosing(within.chunks(chain, position, goes_on=True)) as chunks:
                async for chunk in chunks:
                    yield chunk


async def run_chain(chain: Chain, position: Position | None, within: RunContext) -> AsyncGenerator[Chunk]:
    """A chain's chunks from a position on: the source's, through all steps, counted."""
    position = position or {}
    states, skip = position.get("stages", {}), position.get("skip", 0)
    counter = within.counter.chain(chain)
    steps = counter.steps(stage.start(str(index), states.get(str(index))) for index, stage in enumerate(chain.stages))
    offloader = Offloader((stage.offload for stage in chain.stages), within.session.threads)
    ahead = replace(within, counter=counter.source, seed=position.get("seed", within.seed), skip=skip)
    if chain.stages:
        ahead = replace(ahead, batch=chain.stages[0].windows_of, begun=0, beside=offloader.wanted)
    source = chain.source.chunks(position.get("source"), ahead)
    is_reading = not position.get("ended") and not any(step.done for step in steps)
    failure: Exception | None = None
    counter.begins()
    counter.source.begins()
    counter.asked()
    is_asked, is_over = True, False
    try:
        while not is_over:
            chunk: Chunk | None = None
            if is_reading:
                counter.source.asked()
                try:
                    chunk = await anext(source, None)
                except Exception as error:
                    failure = counter.source.blamed(error)
                finally:
                    counter.source.gave(chunk)
            if chunk is None:
                is_over, is_reading = True, False
                await source.aclose()
                outputs, nbytes = drain(steps), 0
            else:
                if skip:  # the position is within a chunk
                    count = len(chunk.elements)
                    first, skip = skip, max(0, skip - count)
                    if first >= count:
                        continue
                    chunk = Chunk(window(chunk.elements, first, count), shifted(chunk.positions, first), chunk.nbytes)
                if chunk.error is not None:
                    counter.source.blamed(chunk.error)
                    await anyio.lowlevel.checkpoint()  # thousands may follow each other, and none fills a queue
                outputs, nbytes = push(steps, chunk), chunk.nbytes
            chunks, error_of_step = await offloader.through(outputs if within.goes_on else strict(outputs), nbytes)
            failure = failure or error_of_step
            for out in chunks:
                counter.gave(out)
                is_asked = False
                yield out
                counter.asked()
                is_asked = True
            is_reading = is_reading and failure is None and not any(step.done for step in steps)
    finally:
        if is_asked:
            counter.gave(None)
        counter.source.ends()
        counter.ends()
        await source.aclose()
    if failure is not None:
        raise failure
