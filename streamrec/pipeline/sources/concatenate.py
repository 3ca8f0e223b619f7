"""Concatenate: one chain after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Nested
from streamrec.pipeline.engine.description import Chain, RunContext

__all__ = ["Concatenate"]


@dataclass(frozen=True, slots=True)
class Concatenate:
    """Chains one after the other."""

    parts: tuple[Chain, ...]

    def lines(self) -> Iterator[str]:
        yield f"Concatenate({len(self.parts)})"
        yield from (f"  {line}" for part in self.parts for line in part.lines())

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        first, position = (state["part"], state["inner"]) if state else (0, None)
        for part, chain in enumerate(self.parts[first:], first):
            async with aclosing(within.apart(part).chunks(chain, position, goes_on=True)) as chunks:
                async for chunk in chunks:
                    yield replace(chunk, positions=Nested(chunk.positions, {"part": part}))
            position = None
