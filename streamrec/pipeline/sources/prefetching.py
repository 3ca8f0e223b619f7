"""Prefetch: a chain that runs ahead of its consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from streamrec.pipeline.background import background
from streamrec.pipeline.budget import Share
from streamrec.pipeline.chunk import Chunk, Nested
from streamrec.pipeline.description import Chain, Within
from streamrec.pipeline.options import AUTOTUNE
from streamrec.pipeline.parallel.tuning import Depth
from streamrec.pipeline.queue import fill

__all__ = ["Prefetch"]

TUNED = Share(4)
"""What a prefetch that sizes itself has at the most."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A chain run in a task of its own, ahead of its consumer by `buffer_bytes` at the most, or AUTOTUNE."""

    inner: Chain
    buffer_bytes: int = AUTOTUNE

    def __post_init__(self) -> None:
        if self.buffer_bytes < 1 and self.buffer_bytes != AUTOTUNE:
            raise ValueError(f"prefetch buffer of {self.buffer_bytes} bytes must be at least 1, or AUTOTUNE")

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield "Prefetch"  # how far it runs ahead does not change what comes

    async def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        tuned = self.buffer_bytes == AUTOTUNE
        most, feeding = within.take(TUNED if tuned else Share(2, self.buffer_bytes))
        depth = Depth(most) if tuned else None
        queue = within.queue(most if depth is None else depth.limit)
        refused = 0
        async with background() as tasks:
            tasks.start_soon(fill, queue, feeding.chunks(self.inner, state and state["inner"], in_step=True))
            while True:
                if depth is not None:
                    queue.resize(depth.found(queue.empty, queue.refused > refused))
                    refused = queue.refused
                if (chunk := await queue.get()) is None:
                    return
                yield Chunk(chunk.elements, Nested(chunk.positions, {}), chunk.nbytes)
