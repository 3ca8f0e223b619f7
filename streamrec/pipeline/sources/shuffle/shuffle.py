"""Shuffle: gives a chain's elements in random order.

`buffer.py` decides the order; this file runs it, and `restoring.py` resumes it.

A position refers to the elements in the buffer in one of two ways (`held.py`), which depends on the
chain (`find_shards`):

- By reference, if each element is a record of a shard, or `map` or `parse_example` made it of one
  record. The records may be interleaved, picked (filter, take, skip, shard, take_while), repeated,
  prefetched or shuffled before. Resuming fetches these records again by ranged reads, nearby ones
  by one request, and calls the functions for them again.
- By number for everything else (numbers, arrays, batches, zips, ...). Resuming runs the input again
  from the last known position before the oldest element held: for n elements held about ln(n) + 2
  times as many.

Both resume exactly if functions return the same for the same element. If the input has no fixed
order (`deterministic=False`), numbers mean nothing, and asking for a position is an error.

An element that failed before the shuffle is given at once; it has a number, but no slot in the
buffer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final

from streamrec.arguments import at_least_one, check_fields, check_flag, check_integer, check_named
from streamrec.display import warn_once
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Position
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import ChainSource, in_order
from streamrec.pipeline.engine.queue import run_ahead
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.seeds import derive_seed
from streamrec.pipeline.engine.threads import Threads, through
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.sources.shuffle.buffer import ShuffleBuffer
from streamrec.pipeline.sources.shuffle.held import UNORDERED, ByNumber, ByReference, Identities
from streamrec.pipeline.sources.shuffle.restoring import find_shards, refetch, rerun
from streamrec.pipeline.sources.shuffle.slots import ShuffleRule

BUFFER: Final = Share(2, name="shuffle")
"""The buffer's share.

Half is for live elements, half for dead ones until the live ones are copied together.
"""

MIN_HOP_BYTES: Final = 512 << 10
"""Chunks of at least these bytes are shuffled in a thread.

The event loop makes the next one meanwhile.
"""


@dataclass(frozen=True, slots=True)
class Shuffle(ChainSource):
    """Gives the elements of a chain in random order; see `Dataset.shuffle`."""

    buffer_size: int
    seed: int | None = None
    reshuffle: bool = True

    def __post_init__(self) -> None:
        check_fields(
            self,
            buffer_size=at_least_one,
            seed=partial(check_integer, none=True),
            reshuffle=check_named("reshuffle_each_iteration", check_flag),
        )

    def line(self) -> str:
        return (
            f"Shuffle(buffer_size={self.buffer_size}, seed={self.seed}, "
            f"reshuffle_each_iteration={self.reshuffle})"
        )

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        share, before = context.fork_seed(0).take(BUFFER)
        rule = self._rule(state, context, share.nbytes // 2)
        shards = find_shards(self.inner)
        start = None if state is None else state["inner"]
        buffer = ShuffleBuffer(rule, self._identities(shards, start, context), start)
        if shards is not None:
            if state is not None:
                await refetch(buffer, state, self.inner, shards, before)
            # A full buffer gives as many as it takes, so batches end where those of the input do.
            offset = (context.batch_offset - context.skip - buffer.room) % context.batch
            before = replace(before, batch_offset=offset)
        inner = replace(before, offloaded=False).chunks(  # it runs ahead already
            self.inner, start, preserve_batches=shards is not None, continue_on_error=True
        )
        exchange = Exchange(buffer, context.session.threads)
        given = context.batch_offset - context.skip
        failure: Exception | None = None
        async with aclosing(run_ahead(inner)) as chunks:
            reruns = state is not None and shards is None
            source = rerun(buffer, state, chunks) if reruns and state is not None else chunks
            try:
                async for chunk in source:
                    for out in await exchange.feed(chunk):
                        given += len(out.elements)
                        yield out
            except MemoryError:
                raise
            except Exception as error:
                failure = error  # raised after all elements before it
        left = buffer.drain(context.batch, given % context.batch)
        while (last := await exchange.next_of(left)) is not None:
            yield last
        if failure is not None:
            raise failure

    def _rule(
        self, state: Mapping[str, Any] | None, context: RunContext, limit: int
    ) -> ShuffleRule:
        """What the order of this run depends on; `limit` is that of its budget."""
        # The order depends on the limit, so a resumed run keeps the saved one, in later epochs too.
        _, saved_limit = context.session.kept.setdefault(
            id(self), (self, state["limit"] if state else None)
        )
        epoch = context.epoch if self.reshuffle else 0
        return ShuffleRule(
            self.buffer_size,
            limit if saved_limit is None else saved_limit,
            derive_seed(context.seed if self.seed is None else self.seed, epoch),
            strict=saved_limit is None and context.follows_memory,
        )

    def _identities(
        self, shards: Shards | Distribute | None, start: Position | None, context: RunContext
    ) -> Identities:
        """How positions refer to the elements in the buffer; warns where they cannot."""
        if shards is not None:
            return ByReference()
        ordered = in_order(self.inner, context.deterministic)
        if not ordered:
            warn_once(f"state_dict() of this run will be an error: {UNORDERED}")
        return ByNumber.of(start, ordered)


class Exchange:
    """Feeds a buffer, in a thread where that takes longer than the hop."""

    def __init__(self, buffer: ShuffleBuffer, threads: Threads) -> None:
        self._buffer = buffer
        self._threads = threads
        self._largest = 0

    async def feed(self, chunk: Chunk) -> list[Chunk]:
        """Takes a chunk; returns the chunks of the elements that it replaces."""
        if chunk.error is not None:
            return [self._buffer.fail(chunk.error, chunk.positions)]
        self._largest = max(self._largest, chunk.nbytes)
        return await self._collect(self._buffer.feed(chunk), chunk.nbytes)

    async def next_of(self, outputs: Iterator[Chunk]) -> Chunk | None:
        """The next of several outputs, each as large as a chunk of the input; None at the end."""
        for chunk in await self._collect(islice(outputs, 1), self._largest):
            return chunk
        return None

    async def _collect(self, outputs: Iterator[Chunk], nbytes: int) -> list[Chunk]:
        chunks, failure = await through(self._threads, outputs, nbytes >= MIN_HOP_BYTES)
        if failure is not None:
            raise failure
        return chunks
