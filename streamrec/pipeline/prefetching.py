"""Prefetch: a chain that runs ahead of its consumer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.background import background
from streamrec.pipeline.chunk import Chunk, Nested
from streamrec.pipeline.description import Chain, Within
from streamrec.pipeline.queue import fill

__all__ = ["Prefetch"]


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A chain run in a task of its own, ahead of its consumer by `buffer_bytes` at the most."""

    inner: Chain
    buffer_bytes: int

    def __post_init__(self) -> None:
        if self.buffer_bytes < 1:
            raise ValueError(f"prefetch buffer of {self.buffer_bytes} bytes must be at least 1")

    def lines(self) -> Iterator[str]:
        return self.inner.lines()  # how far it runs ahead does not change what comes

    async def chunks(self, state: Mapping[str, Any] | None, within: Within) -> AsyncGenerator[Chunk]:
        queue = within.queue(self.buffer_bytes)
        async with background() as tasks:
            tasks.start_soon(fill, queue, within.chunks(self.inner, state and state["inner"]))
            while (chunk := await queue.get()) is not None:
                yield replace(chunk, positions=Nested(chunk.positions, {}))
