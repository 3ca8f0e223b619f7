"""The driver: `RunContext.chunks` runs a chain. The only place, with the sources, that awaits.

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
from dataclasses import dataclass, replace

import anyio.lowlevel

from streamrec.errors import DataError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position, shift
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain, derive_seed
from streamrec.pipeline.engine.meters import CountedStep, SourceMeter
from streamrec.pipeline.engine.offload import Offloader
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.session import Session
from streamrec.pipeline.engine.stage import drain, push, strict

__all__ = ["RunContext", "produce"]


async def produce(
    chunks: AsyncGenerator[Chunk], failures: list[Exception], put: Callable[[Chunk, int], Awaitable[None]]
) -> None:
    """Hands every chunk of a run to `put`, with its weight in bytes.

    Args:
        chunks: Those of a run.
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


@dataclass(frozen=True, slots=True)
class RunContext:
    """What a running source has, and what is known of the stages after it.

    Args:
        session: What the run keeps open from epoch to epoch.
        meter: What counts the source.
        budget: Bytes that the source may hold, with all that it runs.
        deterministic: Whether sources that were not told otherwise keep the order.
        epoch: The run's own, and how often an enclosing `repeat` has begun again.
        seed: What chance comes from where no seed was given: drawn once for a run, and kept in its positions.
        skip: How many of the first elements will be dropped: the position is within a chunk.
        rank: Which rank runs it; None to look for it in the environment.
        batch: How many elements make a batch after the source: chunks may end between two where that costs nothing.
        begun: How many elements of such a batch came before the source's first.
        beside: Whether stages after the source work in threads: what it does on the loop it can do meanwhile.
        follows_memory: Whether the budget is that of a machine with little memory: no order may depend on it.
    """

    session: Session
    meter: SourceMeter
    budget: int
    deterministic: bool = True
    epoch: int = 0
    seed: int = 0
    skip: int = 0
    rank: Rank | None = None
    batch: int = 1
    begun: int = 0
    beside: bool = False
    follows_memory: bool = False

    async def chunks(
        self, chain: Chain, position: Position | None, *, in_step: bool = False, goes_on: bool = False
    ) -> AsyncGenerator[Chunk]:
        """A chain's chunks from a position on: the source's, through all steps, counted.

        Args:
            chain: The chain.
            position: Where to begin; None for its start.
            in_step: Whether its elements go on as they come, one for one: `batch`, `begun`, `beside` hold for it too.
            goes_on: Whether the caller takes elements that failed (`Chunk.error`), and hands them on; else the first
                one ends the chain.
        """
        position, stages = position or {}, chain.stages
        states, skip = position.get("stages", {}), position.get("skip", 0)
        meter = self.meter.chain(chain)
        numbered = enumerate(zip(stages, meter.stages, strict=True))
        steps = [CountedStep(stage.start(str(i), states.get(str(i))), counter) for i, (stage, counter) in numbered]
        offloader = Offloader((stage.offload for stage in stages), self.session.threads)
        in_step = in_step and not stages
        ahead = replace(
            self,
            meter=meter.source,
            seed=position.get("seed", self.seed),
            skip=skip,
            batch=stages[0].windows_of if stages else self.batch if in_step else 1,
            begun=self.begun if in_step else 0,
            beside=self.beside if in_step else offloader.wanted,
        )
        source = chain.source.chunks(position.get("source"), ahead)
        is_reading = not position.get("ended") and not any(step.done for step in steps)
        failure: Exception | None = None
        meter.count(running=1, asked=1)
        is_over = False
        try:
            while not is_over:
                chunk: Chunk | None = None
                if is_reading:
                    meter.source.count(asked=1)
                    try:
                        chunk = await anext(source, None)
                    except Exception as error:
                        failure = meter.source.blame(error)
                    finally:
                        meter.source.count(asked=-1, chunk=chunk)
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
                        elements = window(chunk.elements, first, count)
                        chunk = Chunk(elements, shift(chunk.positions, first), chunk.nbytes)
                    if chunk.error is not None:
                        meter.source.blame(chunk.error)
                        await anyio.lowlevel.checkpoint()  # thousands may follow each other, and none fills a queue
                    outputs, nbytes = push(steps, chunk), chunk.nbytes
                chunks, error_of_step = await offloader.through(outputs if goes_on else strict(outputs), nbytes)
                failure = failure or error_of_step
                for out in chunks:
                    meter.count(asked=-1)
                    try:
                        yield out
                    finally:
                        meter.count(asked=1)
                is_reading = is_reading and failure is None and not any(step.done for step in steps)
        finally:
            meter.count(running=-1, asked=-1)
            await source.aclose()
        if failure is not None:
            raise failure

    def take(self, share: Share) -> tuple[int, RunContext]:
        """A share of the budget for a buffer, in bytes, and all this with what is left for the chains that fill it."""
        taken = share.of(self.budget)
        return taken, replace(self, budget=self.budget - taken)

    def part(self, count: int) -> RunContext:
        """All this with one of `count` equal parts of the budget, for chains that run at once."""
        return replace(self, budget=self.budget // count)

    def apart(self, number: int) -> RunContext:
        """All this for one of several chains, whose chance has nothing to do with that of the others."""
        return replace(self, seed=derive_seed(self.seed, number))
