"""Saved: the elements of a dataset in a file that `save` wrote, and Saving, which writes it.

It is a cache's file (`cache_file.py`), which any pipeline reads.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from streamrec.errors import NotFoundError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Nested
from streamrec.pipeline.engine.description import Chain, RunContext
from streamrec.pipeline.sources.cache.cache import UPLOAD
from streamrec.pipeline.sources.cache.cache_file import CacheFile

__all__ = ["Saved", "Saving"]


@dataclass(frozen=True, slots=True)
class Saved:
    """The elements in a file."""

    file: CacheFile

    def lines(self) -> Iterator[str]:
        yield "Saved"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        if await self.file.find(None, within) is None:
            raise NotFoundError("there is no file that save() wrote", self.file.path)
        async with aclosing(within.chunks(self.file.chain, state and state["inner"])) as chunks:
            async for chunk in chunks:
                yield Chunk(chunk.elements, Nested(chunk.positions, {}), chunk.nbytes)


@dataclass(frozen=True, slots=True)
class Saving:
    """The elements of a chain, which go into a file as they pass."""

    inner: Chain
    file: CacheFile

    def lines(self) -> Iterator[str]:
        yield from self.inner.lines()
        yield "Saving"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        chunks = within.take(UPLOAD)[1].chunks(self.inner, None)
        async with aclosing(self.file.filled(chunks, tuple(self.inner.lines()), alone=True)) as filled:
            async for chunk in filled:
                yield Chunk(chunk.elements, Nested(chunk.positions, {}), chunk.nbytes)
