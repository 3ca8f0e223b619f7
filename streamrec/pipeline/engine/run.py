"""The driver: `RunContext.chunks` runs a chain. Only the driver and sources await.

What a consumer sees:
- Success: all chunks in order, then the end.
- A failing stage: all elements before the failure, including an unfinished batch, then the error
  with its own type and traceback, and a note that names the stage, the element, and the record and
  shard if they are known. The run continues with the next element, and so does the position. The
  error travels among the chunks (`Chunk.error`), through all steps.
- A failing source, or a step that raises: the same, but the run has ended: the next request gets a
  ClosedError. The same applies if a source that runs chains does not continue after a failed
  element (`continue_on_error`).
- A later stage that needs no more (`take`): the source is closed at once; nothing more is fetched.
- Cancellation, an early exit or an error of the consumer, Ctrl-C, a dropped iterator, the
  interpreter's exit: the generators are closed from the outside in, by the task that runs them:
  tasks are cancelled, bodies closed, then the session with its storages. A running call of a user's
  function is awaited; no other call begins.
- When closing returns, no task, connection, file or thread of this run is left. Idle threads of the
  event loop's executor, which opens files, belong to the loop and are used by all runs.

Each buffer is bounded in bytes, and all of them together by the run's budget (`budget.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import anyio.lowlevel

from streamrec.errors import DataError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position, shift
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.meters import SourceMeter, StageMeter
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.seeds import derive_seed
from streamrec.pipeline.engine.session import Session
from streamrec.pipeline.engine.stage import Offload, Step, collect
from streamrec.pipeline.engine.threads import Offloader


async def produce(
    chunks: AsyncGenerator[Chunk],
    failures: list[Exception],
    put: Callable[[Chunk, int], Awaitable[None]],
) -> None:
    """Passes all chunks of a run to `put`, with their weights in bytes.

    Adds an error of the chain, but not of closing it, to `failures`.
    """
    async with aclosing(chunks):
        while True:
            try:
                chunk = await anext(chunks, None)
            except Exception as error:
                task = asyncio.current_task()
                # A cancelled task closes the chain, so its error may come from cleaning up.
                closing = task is not None and task.cancelling() > 0
                if not closing or isinstance(error, DataError):
                    failures.append(error)
                raise
            if chunk is None:
                return
            await put(chunk, chunk.nbytes)


CountedSteps = Sequence[tuple[Step, StageMeter]]
"""The steps of a chain, each with the meter that runs and counts it."""


def push(steps: CountedSteps, chunk: Chunk) -> Iterator[Chunk]:
    """The output of the last step for a chunk that goes into the first.

    A step that is done takes no more.
    """
    if not steps:
        yield chunk
        return
    step, meter = steps[0]
    if not step.done:
        for out in meter.run(step, chunk):
            yield from push(steps[1:], out)


def drain(steps: CountedSteps) -> Iterator[Chunk]:
    """The output when the input has ended.

    An error of a step comes after the rest of later steps.
    """
    failure: Exception | None = None
    for index, (step, meter) in enumerate(steps):
        try:
            for out in meter.run(step, None):
                yield from push(steps[index + 1 :], out)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def strict(outputs: Iterator[Chunk]) -> Iterator[Chunk]:
    """The outputs up to a failure, whose error is raised."""
    for chunk in outputs:
        if chunk.error is not None:
            raise chunk.error
        yield chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The run that a source belongs to, and what the source must know of later stages.

    Args:
        session: The clients and listings that the run keeps open from epoch to epoch.
        meter: Counts the source.
        budget: How many bytes the source may hold, with all that it runs.
        deterministic: Whether sources without their own `deterministic` keep the order.
        epoch: The run's epoch, plus the repetitions of an enclosing `repeat`.
        seed: The seed of sources and stages without their own: drawn once for a run, and kept in
            its positions.
        skip: How many of the first elements will be dropped, since the position is within a chunk.
        rank: The rank that runs the source; None to look it up in the environment.
        batch: How many elements make a batch in a later stage: chunks may end between two batches
            if that is free.
        batch_offset: How many elements of a batch came before the source's first element.
        offloaded: Whether later stages work in threads, so that the source can work on the loop
            meanwhile.
        follows_memory: Whether the default budget is smaller because of the machine's memory, so
            that no order may depend on it.
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
    batch_offset: int = 0
    offloaded: bool = False
    follows_memory: bool = False

    async def chunks(
        self,
        chain: Chain,
        position: Position | None,
        *,
        preserve_batches: bool = False,
        continue_on_error: bool = False,
    ) -> AsyncGenerator[Chunk]:
        """Runs a chain from a position on, and counts its chunks.

        Args:
            chain: The chain.
            position: Where to begin; None for its start.
            preserve_batches: Whether the caller gives the elements one for one, so that `batch`,
                `batch_offset` and `offloaded` also apply to the chain.
            continue_on_error: Whether the caller handles failed elements (`Chunk.error`); otherwise
                the first one ends the chain.
        """
        position = position or {}
        stages = chain.stages
        states = position.get("stages", {})
        skip = position.get("skip", 0)
        meter = self.meter.chain(chain)
        running = [
            stage.start(str(number), states.get(str(number))) for number, stage in enumerate(stages)
        ]
        steps = list(zip(running, meter.stages, strict=True))
        offload = max((stage.offload for stage in stages), default=Offload.NEVER)
        offloader = Offloader(offload, self.session.threads) if offload else None
        preserve_batches = preserve_batches and not stages
        ahead = replace(
            self,
            meter=meter.source,
            seed=position.get("seed", self.seed),
            skip=skip,
            batch=stages[0].windows_of if stages else self.batch if preserve_batches else 1,
            batch_offset=self.batch_offset if preserve_batches else 0,
            offloaded=self.offloaded if preserve_batches else offloader is not None,
        )
        source = chain.source.chunks(position.get("source"), ahead)
        is_reading = not position.get("ended") and not any(step.done for step in running)
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
                    is_over = True
                    is_reading = False
                    # Closed before the steps give their rest, which the consumer may take slowly:
                    # no connection or thread of the source stays open meanwhile.
                    await source.aclose()
                    outputs = drain(steps)
                    nbytes = 0
                else:
                    if skip:  # the position is within a chunk
                        count = len(chunk.elements)
                        first = skip
                        skip = max(0, skip - count)
                        if first >= count:
                            continue
                        elements = window(chunk.elements, first, count)
                        chunk = Chunk(elements, shift(chunk.positions, first), chunk.nbytes)
                    if chunk.error is not None:
                        meter.source.blame(chunk.error)
                        # There may be thousands of failures, which fill no queue.
                        await anyio.lowlevel.checkpoint()
                    outputs = push(steps, chunk)
                    nbytes = chunk.nbytes
                wanted = outputs if continue_on_error else strict(outputs)
                chunks, error_of_step = (
                    await offloader.through(wanted, nbytes) if offloader else collect(wanted)
                )
                failure = failure or error_of_step
                for out in chunks:
                    meter.count(asked=-1)
                    try:
                        yield out
                    finally:
                        meter.count(asked=1)
                is_reading = (
                    is_reading and failure is None and not any(step.done for step in running)
                )
        finally:
            meter.count(running=-1, asked=-1)
            await source.aclose()
        if failure is not None:
            raise failure

    def take(self, share: Share) -> tuple[int, RunContext]:
        """A share of the budget in bytes, for a buffer, and this context with the rest.

        The rest is for the chains that fill the buffer.
        """
        taken = share.of(self.budget)
        return taken, replace(self, budget=self.budget - taken)

    def part(self, count: int) -> RunContext:
        """This context with one of `count` equal parts of the budget, for concurrent chains."""
        return replace(self, budget=self.budget // count)

    def fork_seed(self, number: int) -> RunContext:
        """This context with an independent seed, for one of several chains."""
        return replace(self, seed=derive_seed(self.seed, number))
