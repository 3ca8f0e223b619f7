"""Sources that run chains: repeatedly (`Repeat`), one after the other (`Concatenate`), or ahead.

If an epoch is a few constant rows, as in `Dataset.range(4).repeat()`, many epochs are one chunk,
since starting a chain costs more than a thousand numbers.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio.lowlevel
import numpy as np

from streamrec.arguments import check_fields, whole_or_all
from streamrec.display import logger
from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import select
from streamrec.pipeline.elements.positions import FixedPosition, nested
from streamrec.pipeline.elements.specs import common_spec
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import AUTOTUNE, Chain, ChainSource, Source
from streamrec.pipeline.engine.passes import Passes
from streamrec.pipeline.engine.queue import fill
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.in_memory import CHUNK_BYTES, CHUNK_ROWS, InMemory
from streamrec.pipeline.sources.parallel_map.autotune import PrefetchDepth
from streamrec.storage.tasks import background

SHORT_ROWS: Final = 1 << 10
"""A source of up to this many rows is repeated in columns."""


@dataclass(frozen=True, slots=True)
class Repeat(ChainSource):
    """Runs a chain `count` times; with -1 forever, unless its first epoch is empty."""

    count: int = -1

    def __post_init__(self) -> None:
        check_fields(self, count=whole_or_all)

    def line(self) -> str:
        return f"Repeat(count={self.count})"

    def cardinality(self, rank: Rank | None) -> int:
        count = self.inner.cardinality(rank)
        if 0 in (self.count, count):  # as in tf.data, an epoch of unknown cardinality is not empty
            return 0
        if self.count < 0:
            return INFINITE_CARDINALITY
        return count if count < 0 else count * self.count

    @property
    def is_endless(self) -> bool:
        if self.count < 0:
            return not isinstance(self.inner.source, InMemory) or self.inner.cardinality() != 0
        return self.count > 0 and self.inner.is_endless

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        rows = self._short_rows()
        if rows is not None:
            total = None if self.count < 0 else self.count * len(rows)
            async for chunk in cycle_rows(rows, first_row(state, len(rows)), total):
                yield chunk
            return
        # Each epoch of the inner chain is a run of its own, and its position is within one epoch.
        epoch, position = (state["epoch"], state["inner"]) if state else (0, None)
        batch_offset = context.batch_offset
        empty_epochs = 0
        before = context.epoch * max(self.count, 1)
        passes = passes_of(context)
        while self.count < 0 or epoch < self.count:
            is_empty = position is None
            missed = passes.missed
            epochs = replace(
                context, epoch=before + epoch, batch_offset=batch_offset, passes=passes
            )
            async with aclosing(
                epochs.chunks(self.inner, position, preserve_batches=True, continue_on_error=True)
            ) as chunks:
                async for chunk in chunks:
                    is_empty = is_empty and chunk.error is not None
                    batch_offset = (batch_offset + len(chunk.elements)) % context.batch
                    yield chunk.at(nested(chunk.positions, {"epoch": epoch}))
            # Where readers take turns, an epoch may be empty for one of them, and not the next.
            is_empty = is_empty and passes.missed == missed
            # An endless repeat of nothing would never give an element and never end.
            if is_empty and self.count < 0 and epoch == 0:
                return
            empty_epochs = await count_empty(empty_epochs, is_empty)
            epoch += 1
            position = None

    def _short_rows(self) -> Any:
        """The rows of a short source in memory, without stages; None for all others.

        Starting a chain costs about 0.3 ms, more than a few rows: these are repeated in columns.
        """
        source = self.inner.source
        if not isinstance(source, InMemory) or self.inner.stages:
            return None
        size = source.count or 0
        return source.rows(0, size) if 0 < size <= SHORT_ROWS else None


def passes_of(context: RunContext) -> Passes:
    """What the passes over a source have in common, also those of an enclosing `repeat`."""
    return context.passes or Passes()


async def count_empty(in_a_row: int, is_empty: bool) -> int:
    """How many epochs in a row had no element after one more.

    An endless repetition of nothing must not block the event loop, nor go unnoticed.
    """
    if not is_empty:
        return 0
    in_a_row += 1
    if in_a_row == 100:
        logger.warning(
            "repeat(): %d epochs in a row had no elements: can its source be read only once?",
            in_a_row,
        )
    await anyio.lowlevel.checkpoint()
    return in_a_row


def first_row(state: Mapping[str, Any] | None, size: int) -> int:
    """The row of all epochs at which `cycle_rows` goes on, for a source of `size` rows.

    >>> first_row({"epoch": 2, "inner": {"source": {"next": 1}, "skip": 3}}, 10)
    24
    """
    if not state:
        return 0
    inner = state["inner"]
    return int(state["epoch"] * size + inner["source"]["next"] + inner.get("skip", 0))


async def cycle_rows(rows: Any, first: int, total: int | None) -> AsyncGenerator[Chunk]:
    """Repeats the rows of a short source, from row `first` of all epochs to row `total`.

    `total=None` repeats without end.
    """
    size = len(rows)
    count = max(1, min(CHUNK_ROWS, CHUNK_BYTES * size // max(weigh(rows), 1)))
    while total is None or first < total:
        last = first + count if total is None else min(first + count, total)
        elements = select(rows, np.arange(first, last) % size)
        await anyio.lowlevel.checkpoint()
        epoch, row = divmod(first, size)
        position = FixedPosition({"source": {"epoch": epoch, "inner": {"source": {"next": row}}}})
        yield Chunk.weigh(elements, position)
        first = last


TUNED = Share(4, name="prefetch")
"""The largest share of the budget of a prefetch that is tuned automatically."""


@dataclass(frozen=True, slots=True)
class Prefetch(ChainSource):
    """Runs a chain in a task of its own, ahead of the consumer.

    It is ahead by a number of elements or bytes, or by AUTOTUNE.
    """

    buffer_size: int = AUTOTUNE
    buffer_bytes: int | None = None

    def line(self) -> str:
        return "Prefetch"  # the depth changes no element

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        tuned = self.buffer_size == AUTOTUNE and self.buffer_bytes is None
        share, feeding = context.take(TUNED if tuned else Share(2, self.buffer_bytes, "prefetch"))
        depth = PrefetchDepth(share.nbytes) if tuned else None
        queue = context.meter.queue(
            share.nbytes if depth is None else depth.limit,
            sys.maxsize if self.buffer_size == AUTOTUNE else self.buffer_size,
        )
        refused = 0
        async with background() as tasks:
            chunks = feeding.chunks(
                self.inner,
                state and state["inner"],
                preserve_batches=True,
                continue_on_error=True,
            )
            tasks.start_soon(fill, queue, chunks)
            while True:
                # The depth grows if the consumer finds the queue empty although it was full before:
                # then the chain is fast enough, and only the queue was too short.
                if depth is not None:
                    queue.resize(depth.observe(queue.empty, queue.refused > refused))
                    refused = queue.refused
                if (chunk := await queue.get()) is None:
                    return
                yield chunk.at(nested(chunk.positions, {}))


@dataclass(frozen=True, slots=True)
class Concatenate(Source):
    """Runs chains back to back."""

    parts: tuple[Chain, ...]

    def lines(self) -> Iterator[str]:
        yield f"Concatenate({len(self.parts)})"
        yield from (f"  {line}" for part in self.parts for line in part.lines())

    def element_spec(self) -> Any:
        return common_spec(part.element_spec() for part in self.parts)

    def cardinality(self, rank: Rank | None) -> int:
        counts = [part.cardinality(rank) for part in self.parts]
        if INFINITE_CARDINALITY in counts:
            return INFINITE_CARDINALITY
        return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in counts else sum(counts)

    @property
    def is_endless(self) -> bool:
        return any(part.is_endless for part in self.parts)

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        first, position = (state["part"], state["inner"]) if state else (0, None)
        passes = passes_of(context)
        for part, chain in enumerate(self.parts[first:], first):
            alone = replace(context.fork_seed(part), passes=passes)
            async with aclosing(alone.chunks(chain, position, continue_on_error=True)) as chunks:
                async for chunk in chunks:
                    yield chunk.at(nested(chunk.positions, {"part": part}))
            position = None
