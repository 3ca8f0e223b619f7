"""Restores a shuffle buffer from a position: its elements are fetched or made again.

Where the elements are records of shards, they are held by reference, and `refetch` reads them by
range requests. All others are held by number, and `rerun` takes them out of the input, which runs
again from a position before the oldest of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.errors import PositionMismatchError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import select, window
from streamrec.pipeline.elements.positions import FixedPosition, RecordLocations, shift
from streamrec.pipeline.engine.description import Chain, ChainSource, Source
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.sources.parallel_map.source import ParallelMap
from streamrec.pipeline.sources.shards.distribute import Distribute
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.sources.shuffle.buffer import ShuffleBuffer
from streamrec.pipeline.sources.shuffle.buffer_store import (
    END,
    REFERENCE,
    TAG,
    BufferStore,
    spans_of,
)
from streamrec.pipeline.sources.shuffle.held import ByReference, HeldElements
from streamrec.pipeline.sources.shuffle.refetch import Refetch
from streamrec.pipeline.sources.shuffle.slots import NO_ROWS, Entry


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
    paths = (await shards.opened(context)).listing.paths
    slots = RestoredSlots(held, buffer.rule.limit)
    async with aclosing(context.chunks(remake(inner, Refetch(shards, locations)), None)) as chunks:
        async for chunk in chunks:
            slots.fill(chunk.elements, order[slots.count : slots.count + len(chunk.elements)])
    buffer.identities = ByReference(dict(held.shards or {}), paths)
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
        buffer.restore(self._rows, self._store, step=step, entry=entry, taken=taken)
