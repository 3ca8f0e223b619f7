"""Repeat: epoch after epoch of a chain."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.chunk import Chunk, Nested
from streamrec.pipeline.description import Chain, Within

__all__ = ["Repeat"]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A chain run `count` times over; -1 for ever. Where it is empty from its start, even an endless repeat ends."""

    inner: Chain
    count: int = -1

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield f"Repeat(count={self.count})"

    async def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        epoch, position = (state["epoch"], state["inner"]) if state else (0, None)
        begun = within.begun
        while self.count < 0 or epoch < self.count:
            empty = position is None
            epochs = replace(within, epoch=within.epoch + epoch, begun=begun)
            async with aclosing(epochs.chunks(self.inner, position, in_step=True)) as chunks:
                async for chunk in chunks:
                    empty = False
                    begun = (begun + len(chunk.elements)) % within.batch
                    yield replace(chunk, positions=Nested(chunk.positions, {"epoch": epoch}))
            if empty:
                return
            epoch, position = epoch + 1, None
