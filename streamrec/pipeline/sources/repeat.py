"""Repeat: epoch after epoch of a chain.

Where an epoch is a few rows that are the same each time, as in `Dataset.range(4).repeat()`, many of them are one chunk:
to start a chain costs more than a thousand numbers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import anyio.lowlevel
import numpy as np

from streamrec.pipeline.elements.chunk import Chunk, weigh
from streamrec.pipeline.elements.columns import select
from streamrec.pipeline.elements.positions import FixedPosition, Nested
from streamrec.pipeline.engine.description import Chain, RunContext
from streamrec.pipeline.sources.in_memory import CHUNK_BYTES, CHUNK_ROWS, Range, Slices

__all__ = ["Repeat"]

LOG = logging.getLogger("streamrec")

MANY_BARREN = 100
"""After so many epochs without an element a warning says so."""

FEW_ROWS = 1 << 10
"""Epochs of more rows are run one by one: what it costs to start them is little beside them."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """A chain run `count` times over; -1 for ever, where its first epoch is not empty."""

    inner: Chain
    count: int = -1

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield f"Repeat(count={self.count})"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        source = self.inner.source
        if isinstance(source, Range | Slices) and not self.inner.stages and 0 < len(source) <= FEW_ROWS:
            inner = state["inner"] if state else {}
            first = state["epoch"] * len(source) + inner["source"]["next"] + inner.get("skip", 0) if state else 0
            async for chunk in cycled(source, first, None if self.count < 0 else self.count * len(source)):
                yield chunk
            return
        epoch, position = (state["epoch"], state["inner"]) if state else (0, None)
        begun, barren = within.begun, 0
        before = within.epoch * max(self.count, 1)
        while self.count < 0 or epoch < self.count:
            empty = position is None
            epochs = replace(within, epoch=before + epoch, begun=begun)
            async with aclosing(epochs.chunks(self.inner, position, in_step=True, goes_on=True)) as chunks:
                async for chunk in chunks:
                    empty = empty and chunk.error is not None
                    begun = (begun + len(chunk.elements)) % within.batch
                    yield replace(chunk, positions=Nested(chunk.positions, {"epoch": epoch}))
            if empty and self.count < 0 and epoch == 0:
                return
            barren = barren + 1 if empty else 0
            if barren == MANY_BARREN:
                LOG.warning("repeat(): %d epochs in a row had no element; is its source used up?", barren)
            if empty:
                await anyio.lowlevel.checkpoint()
            epoch, position = epoch + 1, None


async def cycled(source: Range | Slices, first: int, total: int | None) -> AsyncGenerator[Chunk]:
    """The rows of a short source again and again, from row `first` of all epochs on; None for no end."""
    size = len(source)
    rows = source.rows(0, size)
    count = max(1, min(CHUNK_ROWS, CHUNK_BYTES * size // max(weigh(rows), 1)))
    while total is None or first < total:
        last = first + count if total is None else min(first + count, total)
        elements = select(rows, np.arange(first, last) % size)
        await anyio.lowlevel.checkpoint()
        epoch, row = divmod(first, size)
        place = FixedPosition({"source": {"epoch": epoch, "inner": {"source": {"next": row}}}})
        yield Chunk.weighed(elements, place)
        first = last
