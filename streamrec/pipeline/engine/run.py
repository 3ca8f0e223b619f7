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
from typing import TYPE_CHECKING

import anyio.lowlevel

from streamrec.errors import DataError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.elements.positions import Position, shift
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.meters import ChainMeter, SourceMeter, StageMeter
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.seeds import derive_seed
from streamrec.pipeline.engine.session import Session
from streamrec.pipeline.engine.stage import Offload, Step, collect
from streamrec.pipeline.engine.threads import Offloader
from streamrec.storage.ledger import SetAside

if TYPE_CHECKING:
    from streamrec.pipeline.engine.passes import Passes


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


class ChainRun:
    """A chain that runs: takes chunks from its source, and passes them through its steps.

    Attributes:
        source: The source's chunks; the caller closes them.
        meter: Counts the chain.
        failure: The error that ended the chain, raised after all that came before it.
        is_over: Whether the chain gives no more.
    """

    def __init__(
        self,
        *,
        source: AsyncGenerator[Chunk],
        steps: CountedSteps,
        meter: ChainMeter,
        skip: int,
        offloader: Offloader | None,
        continue_on_error: bool,
        has_ended: bool,
    ) -> None:
        self.source = source
        self.meter = meter
        self.failure: Exception | None = None
        self.is_over = False
        self._steps = steps
        self._skip = skip  # elements of the next chunks, since the position is within a chunk
        self._offloader = offloader
        self._continue_on_error = continue_on_error
        self._is_reading = not has_ended
        self._update_reading()

    async def advance(self) -> list[Chunk]:
        """Takes one chunk from the source, or its end, and returns what the steps make of it."""
        chunk = await self._pull() if self._is_reading else None
        if chunk is None:
            self.is_over = True
            self._is_reading = False
            # Closed before the steps give their rest, which the consumer may take slowly: no
            # connection or thread of the source stays open meanwhile.
            await self.source.aclose()
            return await self._run(drain(self._steps), nbytes=0)
        if self._skip:
            chunk = self._cut(chunk)
            if chunk is None:
                return []
        if chunk.error is not None:
            self.meter.source.blame(chunk.error)
            await anyio.lowlevel.checkpoint()  # there may be thousands, which fill no queue
        return await self._run(push(self._steps, chunk), chunk.nbytes)

    async def _pull(self) -> Chunk | None:
        """The source's next chunk; None at its end, and after its `failure`."""
        with self.meter.source.request() as request:
            try:
                request.chunk = await anext(self.source, None)
            except Exception as error:
                self.failure = self.meter.source.blame(error)
        return request.chunk

    def _cut(self, chunk: Chunk) -> Chunk | None:
        """What is left of a chunk after the elements to skip; None if that is nothing."""
        count = len(chunk.elements)
        first = self._skip
        self._skip = max(0, first - count)
        if first >= count:
            return None
        elements = window(chunk.elements, first, count)
        return Chunk(elements, shift(chunk.positions, first), chunk.nbytes)

    async def _run(self, outputs: Iterator[Chunk], nbytes: int) -> list[Chunk]:
        """Collects the outputs, in a thread if that pays for an input of `nbytes`."""
        wanted = outputs if self._continue_on_error else strict(outputs)
        if self._offloader is None:
            chunks, failure = collect(wanted)
        else:
            chunks, failure = await self._offloader.through(wanted, nbytes)
        self.failure = self.failure or failure
        self._update_reading()
        return chunks

    def _update_reading(self) -> None:
        """The source is read until there is a failure, or a step needs no more."""
        if self.failure is not None or any(step.done for step, _ in self._steps):
            self._is_reading = False


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
        passes: What the passes over a source have in common that is read several times, one after
            the other; None for a source that is read once, or together with others.
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
    passes: Passes | None = None

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
        run = self._start(chain, position or {}, preserve_batches, continue_on_error)
        try:
            with run.meter.running():
                while not run.is_over:
                    for chunk in await run.advance():
                        with run.meter.giving():
                            yield chunk
        finally:
            await run.source.aclose()
        if run.failure is not None:
            raise run.failure

    def _start(
        self, chain: Chain, position: Position, preserve_batches: bool, continue_on_error: bool
    ) -> ChainRun:
        """Starts the source and the steps of a chain; see `chunks`."""
        # Starting and resuming share this path: a start is a position without anything. Stages have
        # their numbers as keys, so a chain that gained or lost a stage is refused before
        # (`states.py`).
        states = position.get("stages", {})
        skip = position.get("skip", 0)
        meter = self.meter.chain(chain)
        steps = [
            stage.start(str(number), states.get(str(number)))
            for number, stage in enumerate(chain.stages)
        ]
        offload = max((stage.offload for stage in chain.stages), default=Offload.NEVER)
        offloader = Offloader(offload, self.session.threads) if offload else None
        context = self._context_of_source(
            chain,
            meter=meter.source,
            seed=position.get("seed", self.seed),
            skip=skip,
            passes_on=preserve_batches and not chain.stages,
            offloads=offloader is not None,
        )
        return ChainRun(
            source=chain.source.chunks(position.get("source"), context),
            steps=list(zip(steps, meter.stages, strict=True)),
            meter=meter,
            skip=skip,
            offloader=offloader,
            continue_on_error=continue_on_error,
            has_ended=bool(position.get("ended")),
        )

    def _context_of_source(
        self,
        chain: Chain,
        *,
        meter: SourceMeter,
        seed: int,
        skip: int,
        passes_on: bool,
        offloads: bool,
    ) -> RunContext:
        """The context of a chain's source, which learns what later stages need.

        If the chain has no stages and its caller gives the elements one for one (`passes_on`), the
        stages after the caller are the next ones.
        """
        batch = chain.stages[0].windows_of if chain.stages else 1
        return replace(
            self,
            meter=meter,
            seed=seed,
            skip=skip,
            batch=self.batch if passes_on else batch,
            batch_offset=self.batch_offset if passes_on else 0,
            offloaded=self.offloaded if passes_on else offloads,
        )

    def take(self, share: Share) -> tuple[SetAside, RunContext]:
        """A share of the budget for a buffer, and this context with the rest.

        The buffer's owner keeps the share as long as the buffer. The rest is for the chains that
        fill it.
        """
        taken = share.of(self.budget)
        own = self.session.ledger.set_aside(share.name, taken)
        return own, replace(self, budget=self.budget - taken)

    def part(self, count: int) -> RunContext:
        """This context with one of `count` equal parts of the budget, for concurrent chains."""
        return replace(self, budget=self.budget // count)

    def fork_seed(self, number: int) -> RunContext:
        """This context with an independent seed, for one of several chains.

        The chains may run concurrently, so they have no passes in common.
        """
        return replace(self, seed=derive_seed(self.seed, number), passes=None)
