"""Prefetch: a chain that runs ahead of its consumer."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Nested
from streamrec.pipeline.engine.background_tasks import background
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import Chain, RunContext
from streamrec.pipeline.engine.options import AUTOTUNE
from streamrec.pipeline.engine.queue import fill
from streamrec.pipeline.sources.parallel_map.autotune import PrefetchDepth

__all__ = ["Prefetch"]

TUNED = Share(4)
"""What a prefetch that sizes itself has at the most."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A chain run in a task of its own, ahead of its consumer by so many elements, or AUTOTUNE, or by so many bytes."""

    inner: Chain
    buffer_size: int = AUTOTUNE
    buffer_bytes: int | None = None

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield "Prefetch"  # how far it runs ahead does not change what comes

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        tuned = self.buffer_size == AUTOTUNE and self.buffer_bytes is None
        share = TUNED if tuned else Share(2) if self.buffer_bytes is None else Share(2, self.buffer_bytes)
        most, feeding = within.take(share)
        depth = PrefetchDepth(most) if tuned else None
        queue = within.queue(most if depth is None else depth.limit)
        queue.most_elements = self.buffer_size if self.buffer_size != AUTOTUNE else sys.maxsize
        refused = 0
        async with background() as tasks:
            tasks.start_soon(
                fill, queue, feeding.chunks(self.inner, state and state["inner"], in_step=True, goes_on=True)
            )
            while True:
                if depth is not None:
                    queue.resize(depth.found(queue.empty, queue.refused > refused))
                    refused = queue.refused
                if (chunk := await queue.get()) is None:
                    return
                yield replace(chunk, positions=Nested(chunk.positions, {}))
