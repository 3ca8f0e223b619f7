"""Shuffle: a chain's elements in random order. `shuffle_buffer` decides; this file runs it, and resumes it.

How a position says what the buffer holds is chosen here, once for each chain (`records_of`):

- Records of shards, interleaved, picked (filter, take, skip, shard, take_while), repeated, prefetched or shuffled
  before, and what `map` (of one call
  at a time or several) and `parse_example` make of each: by reference. Resuming fetches just these records again, by
  ranged reads, and calls the functions for them again. Records near each other are read by one request.
- Everything else (numbers, arrays, batches, zips, ...): by number. Resuming runs what is before the shuffle again, from
  the last place known before the oldest element held: for n elements held about ln(n) + 2 times as many.

An element that failed before the shuffle is given at once; it has a number, and no place in the buffer.

Both go on exactly, if functions give the same for the same element. Where what is before the shuffle comes in no fixed
order (`deterministic=False`), numbers mean nothing, and asking for a position is an error.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import select, window
from streamrec.pipeline.elements.positions import FixedPosition, RecordLocations, shift
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain, ChainSource, Source, derive_seed, in_order
from streamrec.pipeline.engine.offload import through
from streamrec.pipeline.engine.queue import run_ahead
from streamrec.pipeline.engine.ranks import warn_once
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.threads import Threads
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
from streamrec.pipeline.sources.shuffle.buffer_store import END, REFERENCE, TAG, BufferStore, spans_of
from streamrec.pipeline.sources.shuffle.refetch import Refetch

__all__ = ["Shuffle"]

BUFFER: Final = Share(2)
"""What the buffer may hold: half of that is alive, half may be dead until what is alive is copied together."""

MIN_HOP_BYTES: Final = 512 << 10
"""Chunks of this many bytes are let in by a thread, while the loop makes the next one."""


def records_of(chain: Chain) -> Shards | Distribute | None:
    """The shards of which each element of a chain is one record, or was made of one; None for all other chains."""
    source = chain.source
    shards: Shards | Distribute | None = None
    if isinstance(source, Shards | Distribute):
        shards = source
    elif isinstance(source, ChainSource) and source.one_to_one:
        shards = records_of(source.inner)
    return shards if all(stage.picks or stage.one_to_one for stage in chain.stages) else None


def remake(chain: Chain, records: Source) -> Chain:
    """What makes the elements of such a chain of records that were picked already."""
    source = chain.source
    if isinstance(source, ParallelMap):
        made = Chain(replace(source, inner=remake(source.inner, records), deterministic=True))
    elif isinstance(source, ChainSource):
        made = remake(source.inner, records)
    else:
        made = Chain(records)
    return replace(made, stages=(*made.stages, *(stage for stage in chain.stages if stage.one_to_one)))


@dataclass(frozen=True, slots=True)
class Shuffle(ChainSource):
    """A chain in random order: each element comes at most `buffer_size` places before its own.

    Args:
        inner: The chain.
        buffer_size: How many elements the buffer holds, as far as its share of the memory budget allows.
        seed: What its random numbers come from; None: drawn once for each run.
        reshuffle: Whether the order differs from epoch to epoch.
    """

    buffer_size: int
    seed: int | None = None
    reshuffle: bool = True

    def __post_init__(self) -> None:
        if self.buffer_size < 1:
            raise ValueError(f"buffer_size={self.buffer_size} must be at least 1")

    def line(self) -> str:
        return f"Shuffle(buffer_size={self.buffer_size}, seed={self.seed}, reshuffle_each_iteration={self.reshuffle})"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        share, before = within.apart(0).take(BUFFER)
        said = within.session.remember(self, lambda: state["limit"] if state else None)
        epoch = within.epoch if self.reshuffle else 0
        key = derive_seed(within.seed if self.seed is None else self.seed, epoch)
        limit = share // 2 if said is None else said
        rule = ShuffleRule(self.buffer_size, limit, key, said is None and within.follows_memory)
        shards = records_of(self.inner)
        ordered = shards is not None or in_order(self.inner, within.deterministic)
        if not ordered:
            warn_once(f"state_dict() of this run will be an error: {UNORDERED}")
        buffer = ShuffleBuffer(rule, shards is not None, ordered, state and state["inner"])
        if state and shards is not None:
            await refetch(buffer, state, self.inner, shards, before)
        failure: Exception | None = None
        if shards is not None:  # a full buffer gives as many as it takes: its batches end where those of its input do
            before = replace(before, begun=(within.begun - within.skip - buffer.room) % within.batch)
        before = replace(before, beside=False)  # it runs ahead already
        nbytes, given, threads = 0, within.begun - within.skip, within.session.threads
        inner = before.chunks(self.inner, state and state["inner"], in_step=shards is not None, goes_on=True)
        async with aclosing(run_ahead(inner)) as chunks:
            try:
                source = run_again(buffer, state, chunks) if state and shards is None else chunks
                async for chunk in source:
                    if chunk.error is not None:
                        yield buffer.fail(chunk.error, chunk.positions)
                        continue
                    nbytes = max(nbytes, chunk.nbytes)
                    for out in await work_out(threads, buffer.feed(chunk), chunk.nbytes):
                        given += len(out.elements)
                        yield out
            except MemoryError:
                raise
            except Exception as error:
                failure = error  # what came before it comes first
        left = buffer.drain(within.batch, given % within.batch)
        while outputs := await work_out(threads, islice(left, 1), nbytes):
            yield outputs[0]
        if failure is not None:
            raise failure


async def work_out(threads: Threads, outputs: Iterator[Chunk], nbytes: int) -> list[Chunk]:
    """All outputs, worked out in a thread where that takes longer than a hop there."""
    chunks, failure = await through(threads, outputs, nbytes >= MIN_HOP_BYTES)
    if failure is not None:
        raise failure
    return chunks


async def refetch(
    buffer: ShuffleBuffer, state: Mapping[str, Any], inner: Chain, shards: Shards | Distribute, within: RunContext
) -> None:
    """Gives a buffer what it held by reference."""
    held = HeldElements.from_json(state["held"])
    assert held.sizes is not None, "references have sizes"
    order = np.argsort(held.numbers, kind="stable")
    if isinstance(shards, Distribute):
        await shards.check(state["inner"], within)
    wanted = RecordLocations(held.numbers[order], held.sizes[order], held.shards or {})
    buffer.name_shards((await shards.opened(within)).listing.paths)
    filling = Filling(held, buffer.rule.limit)
    async with aclosing(within.chunks(remake(inner, Refetch(shards, wanted)), None)) as chunks:
        async for chunk in chunks:
            filling.put(chunk.elements, order[filling.count : filling.count + len(chunk.elements)])
    filling.into(buffer, state["step"], Entry(NO_ROWS, FixedPosition(state["inner"]), 0), 0)


async def run_again(
    buffer: ShuffleBuffer, state: Mapping[str, Any], chunks: AsyncGenerator[Chunk]
) -> AsyncGenerator[Chunk]:
    """Gives a buffer what it held by number, from the chunks since then; then the chunks that follow."""
    held, first, last = HeldElements.from_json(state["held"]), 0, state["next"]
    order = np.argsort(held.numbers, kind="stable")
    numbers, filling = held.numbers[order], Filling(held, buffer.rule.limit)
    if not last:
        filling.into(buffer, state["step"], Entry(NO_ROWS, FixedPosition(state["inner"]), 0), 0)
    async for chunk in chunks:
        count = len(chunk.elements)
        if first >= last:
            yield chunk
            continue
        if chunk.error is not None:  # it was given before
            first += 1
            if first == last:
                filling.into(buffer, state["step"], Entry(NO_ROWS, chunk.positions, last), 0)
            continue
        low, high = np.searchsorted(numbers, [first, min(last, first + count)]).tolist()
        filling.put(select(chunk.elements, numbers[low:high] - first), order[low:high])
        first += count
        if first >= last:
            used = count - (first - last)
            filling.into(buffer, state["step"], Entry(NO_ROWS, chunk.positions, last - used), used)
            if used < count:
                yield Chunk(window(chunk.elements, used, count), shift(chunk.positions, used), chunk.nbytes)
    if first < last:
        raise PositionMismatchError(
            f"the input of a shuffle has {first:,} elements after the saved position, and had {last:,}: "
            "the data was changed; resume with the data that the state was saved with, or start over without the state"
        )


class Filling:
    """A buffer's elements as they come back.

    Args:
        held: What they are.
        limit: See `BufferStore`.
    """

    def __init__(self, held: HeldElements, limit: int) -> None:
        self._held = held
        self._rows = np.empty((len(held.numbers), 4), np.int64)
        self._rows[:, REFERENCE] = held.numbers
        self._store = BufferStore(limit)
        self.count = 0

    def put(self, elements: Any, slots: npt.NDArray[np.int64]) -> None:
        """Some elements, and the slots that they were in."""
        if not len(slots):
            return
        spans = spans_of(elements)
        tags = self._store.add(elements, spans)
        sizes = 0 if self._held.sizes is None else self._held.sizes[slots]
        self._rows[slots, : END + 1] = spans
        self._rows[slots, TAG] = sizes + tags
        self.count += len(slots)

    def into(self, buffer: ShuffleBuffer, step: int, entry: Entry, taken: int) -> None:
        """All of them into the buffer, which gave `step` elements and has `taken` of an entry of its input."""
        buffer.restore(self._rows, self._store, self._held, step, entry, taken)
