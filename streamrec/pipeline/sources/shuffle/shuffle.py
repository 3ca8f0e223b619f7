"""Shuffle: gives a chain's elements in random order.

`buffer.py` decides the order; this file runs and resumes it.

A position refers to the elements in the buffer in one of two ways, which depends on the chain
(`find_shards`):

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
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.display import warn_once
from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import select, window
from streamrec.pipeline.elements.positions import FixedPosition, RecordLocations, shift
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain, ChainSource, Source, in_order
from streamrec.pipeline.engine.queue import run_ahead
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.seeds import derive_seed
from streamrec.pipeline.engine.threads import Threads, through
from streamrec.pipeline.sources.parallel_map.source import ParallelMap
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.sources.shuffle.buffer import (
    NO_ROWS,
    UNORDERED,
    Entry,
    HeldElements,
    ShuffleBuffer,
    ShuffleRule,
)
from streamrec.pipeline.sources.shuffle.buffer_store import (
    END,
    REFERENCE,
    TAG,
    BufferStore,
    spans_of,
)
from streamrec.pipeline.sources.shuffle.refetch import Refetch

BUFFER: Final = Share(2)
"""The buffer's share.

Half is for live elements, half for dead ones until the live ones are copied together.
"""

MIN_HOP_BYTES: Final = 512 << 10
"""Chunks of at least these bytes are shuffled in a thread.

The event loop makes the next one meanwhile.
"""


def find_shards(chain: Chain) -> Shards | Distribute | None:
    """The shards of a chain whose elements are each a record, or made of one.

    None for other chains.
    """
    source = chain.source
    shards: Shards | Distribute | None = None
    if isinstance(source, Shards | Distribute):
        shards = source
    elif isinstance(source, ChainSource) and source.one_to_one:
        shards = find_shards(source.inner)
    return shards if all(stage.picks or stage.one_to_one for stage in chain.stages) else None


def remake(chain: Chain, records: Source) -> Chain:
    """A chain that makes the same elements from records that were picked already."""
    source = chain.source
    if isinstance(source, ParallelMap):
        made = Chain(replace(source, inner=remake(source.inner, records), deterministic=True))
    elif isinstance(source, ChainSource):
        made = remake(source.inner, records)
    else:
        made = Chain(records)
    return replace(
        made, stages=(*made.stages, *(stage for stage in chain.stages if stage.one_to_one))
    )


@dataclass(frozen=True, slots=True)
class Shuffle(ChainSource):
    """Gives the elements of a chain in random order; see `Dataset.shuffle`."""

    buffer_size: int
    seed: int | None = None
    reshuffle: bool = True

    def line(self) -> str:
        return (
            f"Shuffle(buffer_size={self.buffer_size}, seed={self.seed}, "
            f"reshuffle_each_iteration={self.reshuffle})"
        )

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        share, before = context.fork_seed(0).take(BUFFER)
        # The order depends on the limit, so a resumed run keeps the saved one, in later epochs too.
        _, saved_limit = context.session.kept.setdefault(
            id(self), (self, state["limit"] if state else None)
        )
        epoch = context.epoch if self.reshuffle else 0
        key = derive_seed(context.seed if self.seed is None else self.seed, epoch)
        limit = share // 2 if saved_limit is None else saved_limit
        strict = saved_limit is None and context.follows_memory
        rule = ShuffleRule(self.buffer_size, limit, key, strict)
        shards = find_shards(self.inner)
        ordered = shards is not None or in_order(self.inner, context.deterministic)
        if not ordered:
            warn_once(f"state_dict() of this run will be an error: {UNORDERED}")
        buffer = ShuffleBuffer(rule, shards is not None, ordered, state and state["inner"])
        if state and shards is not None:
            await refetch(buffer, state, self.inner, shards, before)
        failure: Exception | None = None
        if shards is not None:
            # A full buffer gives as many as it takes, so batches end where those of the input do.
            offset = (context.batch_offset - context.skip - buffer.room) % context.batch
            before = replace(before, batch_offset=offset)
        before = replace(before, offloaded=False)  # it runs ahead already
        nbytes = 0
        given = context.batch_offset - context.skip
        threads = context.session.threads
        inner = before.chunks(
            self.inner,
            state and state["inner"],
            preserve_batches=shards is not None,
            continue_on_error=True,
        )
        async with aclosing(run_ahead(inner)) as chunks:
            try:
                source = rerun(buffer, state, chunks) if state and shards is None else chunks
                async for chunk in source:
                    if chunk.error is not None:
                        yield buffer.fail(chunk.error, chunk.positions)
                        continue
                    nbytes = max(nbytes, chunk.nbytes)
                    for out in await collect_outputs(threads, buffer.feed(chunk), chunk.nbytes):
                        given += len(out.elements)
                        yield out
            except MemoryError:
                raise
            except Exception as error:
                failure = error  # raised after all elements before it
        left = buffer.drain(context.batch, given % context.batch)
        while outputs := await collect_outputs(threads, islice(left, 1), nbytes):
            yield outputs[0]
        if failure is not None:
            raise failure


async def collect_outputs(threads: Threads, outputs: Iterator[Chunk], nbytes: int) -> list[Chunk]:
    """Computes all outputs, in a thread if that takes longer than the hop."""
    chunks, failure = await through(threads, outputs, nbytes >= MIN_HOP_BYTES)
    if failure is not None:
        raise failure
    return chunks


async def refetch(
    buffer: ShuffleBuffer,
    state: Mapping[str, Any],
    inner: Chain,
    shards: Shards | Distribute,
    context: RunContext,
) -> None:
    """Restores a buffer whose elements are held by reference."""
    held = HeldElements.from_json(state["held"])
    assert held.sizes is not None, "references have sizes"
    order = np.argsort(held.numbers, kind="stable")
    if isinstance(shards, Distribute):
        await shards.check(state["inner"], context)
    locations = RecordLocations(held.numbers[order], held.sizes[order], held.shards or {})
    buffer.paths = (await shards.opened(context)).listing.paths
    slots = RestoredSlots(held, buffer.rule.limit)
    async with aclosing(context.chunks(remake(inner, Refetch(shards, locations)), None)) as chunks:
        async for chunk in chunks:
            slots.fill(chunk.elements, order[slots.count : slots.count + len(chunk.elements)])
    slots.restore(buffer, state["step"], Entry(NO_ROWS, FixedPosition(state["inner"]), 0), 0)


async def rerun(
    buffer: ShuffleBuffer, state: Mapping[str, Any], chunks: AsyncGenerator[Chunk]
) -> AsyncGenerator[Chunk]:
    """Restores a buffer whose elements are held by number, from the first chunks.

    Gives the chunks after these.
    """
    held = HeldElements.from_json(state["held"])
    first = 0
    last = state["next"]
    # Elements arrive in the order of their numbers; `order` has the slot of each.
    order = np.argsort(held.numbers, kind="stable")
    numbers = held.numbers[order]
    slots = RestoredSlots(held, buffer.rule.limit)
    if not last:
        slots.restore(buffer, state["step"], Entry(NO_ROWS, FixedPosition(state["inner"]), 0), 0)
    async for chunk in chunks:
        count = len(chunk.elements)
        if first >= last:
            yield chunk
            continue
        if chunk.error is not None:  # it was given before
            first += 1
            if first == last:
                slots.restore(buffer, state["step"], Entry(NO_ROWS, chunk.positions, last), 0)
            continue
        low, high = np.searchsorted(numbers, [first, min(last, first + count)]).tolist()
        slots.fill(select(chunk.elements, numbers[low:high] - first), order[low:high])
        first += count
        if first >= last:
            used = count - (first - last)
            slots.restore(buffer, state["step"], Entry(NO_ROWS, chunk.positions, last - used), used)
            if used < count:
                rest = window(chunk.elements, used, count)
                yield Chunk(rest, shift(chunk.positions, used), chunk.nbytes)
    if first < last:
        raise PositionMismatchError(
            f"the input of a shuffle has {first:,} elements after the saved position, but had "
            f"{last:,}: the data was changed; resume with the data that the state was saved with, "
            "or start over without the state"
        )


class RestoredSlots:
    """The slots of a buffer while it is restored. `limit` is that of the `BufferStore`."""

    def __init__(self, held: HeldElements, limit: int) -> None:
        self._held = held
        self._rows = np.empty((len(held.numbers), 4), np.int64)
        self._rows[:, REFERENCE] = held.numbers
        self._store = BufferStore(limit)
        self.count = 0

    def fill(self, elements: Any, slots: npt.NDArray[np.int64]) -> None:
        """Puts elements into these slots."""
        if not len(slots):
            return
        spans = spans_of(elements)
        tags = self._store.add(elements, spans)
        sizes = 0 if self._held.sizes is None else self._held.sizes[slots]
        self._rows[slots, : END + 1] = spans
        self._rows[slots, TAG] = sizes + tags
        self.count += len(slots)

    def restore(self, buffer: ShuffleBuffer, step: int, entry: Entry, taken: int) -> None:
        """Restores the buffer, which gave `step` elements and took `taken` elements of an entry."""
        buffer.restore(self._rows, self._store, self._held, step=step, entry=entry, taken=taken)
