"""Cache: the elements of a chain, kept by the first whole pass and read from there by those after it.

Rules:
- In memory they are kept with the description: for all runs of a Dataset, and of those made of it, while one of them
  lives. In a file (`cache_file.py`) for all programs.
- All passes have the elements and the order of the first one. So the chain is always read as in epoch 0, also where it
  is read again: because the cache did not fit, or a run was resumed.
- Only a pass from the start to the end fills the cache, and only one in which no element failed. A position within the
  first pass is the chain's own, and what a resumed run has of that pass is not kept; the next whole pass is. Within
  later passes it is the element's number: a run that is resumed there and finds no cache fills it first, and drops the
  elements before its place.
- In memory the cache has `MEMORY` of the budget. Where that is too little it is given up, with a warning, and the
  chain is read again for each epoch.
- Elements are copied when they are kept, and when they are given: a caller's changes to them do not show in later
  passes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import anyio.lowlevel
import numpy as np

from streamrec.errors import NotFoundError
from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.elements.chunk import Batches, Chunk, weigh
from streamrec.pipeline.elements.columns import Columns, is_nest, map_nest, window
from streamrec.pipeline.elements.positions import (
    ElementLocation,
    Nested,
    NumberedPositions,
    Origin,
    Position,
    Positions,
)
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import ChainSource, Source
from streamrec.pipeline.engine.epochs import Memo
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.sources.cache.cache_file import CacheFile
from streamrec.pipeline.sources.shards.distribute import readers_lines
from streamrec.tfrecord import Frames

__all__ = ["Cache", "Saved", "Saving"]

LOG = logging.getLogger("streamrec")

MEMORY: Final = Share(2)
"""What may be kept in memory."""

UPLOAD: Final = Share(2, 40 << 20)
"""What a file on its way takes: five parts of an upload."""


class CacheState:
    """What is kept of one cache from pass to pass.

    Attributes:
        parts: All elements, when there was a whole pass; with the bytes of each part.
        over: A limit in bytes that they did not fit into; 0 while none is known.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Any, int]] | None = None
        self.over = 0
        self._held = 0
        self._lock = threading.Lock()

    def hold(self, nbytes: int) -> int:
        """Counts bytes that passes hold, or, below 0, hold no more; returns how many all of them hold."""
        with self._lock:
            self._held += nbytes
            return self._held


@dataclass(frozen=True, slots=True)
class Cache(ChainSource):
    """A chain whose elements are kept, in memory or in a file."""

    one_to_one: ClassVar[bool] = False
    file: CacheFile | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def line(self) -> str:
        return f"Cache({'memory' if self.file is None else 'file'})"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        async with aclosing(await self._source(state, replace(within, epoch=0))) as chunks:
            async for chunk in chunks:
                yield chunk

    async def _source(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        """The chain, or what was kept of it, from a position on."""
        lines = readers_lines(self.inner, within)
        kept = self.memo.of(lines, CacheState)
        # The same whether the chain fills the cache or not, since orders may depend on the budget.
        _, feeding = within.take(MEMORY if self.file is None else UPLOAD)
        if state is not None and "next" not in state:
            return nest(feeding.chunks(self.inner, state["inner"], goes_on=True))
        wanted: int = state["next"] if state else 0
        if kept.parts is not None:
            return number_chunks(recall(kept.parts), wanted)
        if self.file is not None:
            version = await self.file.find(lines, within)
            if version is not None:
                same = bool(version) and state is not None and state.get("version") == version
                chunks = within.chunks(self.file.chain, state["inner"] if state and same else None)
                return number_chunks(chunks, wanted, wanted if same else 0, InFile(self.file.path, version))
        chunks = feeding.chunks(self.inner, None, goes_on=True)
        if self.file is not None:
            chunks = self.file.write_through(chunks, lines)
        elif (limit := MEMORY.of(within.budget)) > kept.over:
            chunks = remember(chunks, kept, limit)
        return nest(chunks) if state is None else number_chunks(chunks, wanted)


async def nest(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """A chain's chunks at the chain's own positions, within a source."""
    async with aclosing(chunks):
        async for chunk in chunks:
            yield replace(chunk, positions=Nested(chunk.positions, {}))


async def number_chunks(
    chunks: AsyncGenerator[Chunk], wanted: int, number: int = 0, file: InFile | None = None
) -> AsyncGenerator[Chunk]:
    """Chunks, the first of which begins with element `number`, at positions that are their elements' numbers.

    Elements before `wanted` are dropped. Positions hold the places in the file that the chunks come from, if they do.
    """
    async with aclosing(chunks):
        async for chunk in chunks:
            count = len(chunk.elements)
            used = min(max(wanted - number, 0), count)
            if chunk.error is not None:
                count = 1  # one that failed has a number, too
                if number >= wanted:
                    yield replace(chunk, positions=CachedPositions(number + 1, None, chunk.positions, 0))
            elif used < count:
                elements = window(chunk.elements, used, count) if used else chunk.elements
                positions = CachedPositions(number + used, file, chunk.positions, used)
                yield Chunk(elements, positions, chunk.nbytes)
            number += count


class InFile(NamedTuple):
    """The file that elements come from: its URL and its version."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class CachedPositions(Positions):
    """Positions of elements by their numbers; and by their places in the file that they come from."""

    first: int
    file: InFile | None
    inner: Positions
    used: int

    def at(self, index: int) -> Position:
        number = {"next": self.first + index}
        if self.file is None:
            return {"source": number}
        return {"source": {**number, "version": self.file.version, "inner": dict(self.inner.at(self.used + index))}}

    def origins(self, index: int, row: int) -> Sequence[Origin | ElementLocation]:
        """A file keeps elements and not what they were made of: which of them it is."""
        if self.file is not None:
            return (ElementLocation(self.file.path, self.first + index),)
        return (Origin(self.inner, self.used + index, row),)


async def remember(chunks: AsyncGenerator[Chunk], kept: CacheState, limit: int) -> AsyncGenerator[Chunk]:
    """A whole pass, whose elements are kept where they fit and none of them failed."""
    parts: list[tuple[Any, int]] = []
    failed = False
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                failed = failed or chunk.error is not None
                if limit > kept.over and not failed:
                    part = copy_elements(chunk.elements)
                    parts.append((part, weigh(part)))
                    if kept.hold(parts[-1][1]) > limit:
                        give_up(kept, limit, parts)
                yield chunk
        if limit > kept.over and kept.parts is None and not failed:
            kept.parts, parts = parts, []
    finally:
        kept.hold(-sum(nbytes for _, nbytes in parts))


def give_up(kept: CacheState, limit: int, parts: list[tuple[Any, int]]) -> None:
    """Frees what was kept, and says so."""
    LOG.warning(
        "cache(): the elements do not fit into %d MB, half of the memory budget; they are read again for each epoch:"
        " raise with_options(memory_budget=), or give cache() the name of a file",
        limit >> 20,
    )
    kept.over = max(kept.over, limit)
    kept.hold(-sum(nbytes for _, nbytes in parts))
    parts.clear()


async def recall(parts: list[tuple[Any, int]]) -> AsyncGenerator[Chunk]:
    """Copies of what was kept; others on the loop have their turns in between."""
    for part, nbytes in parts:
        await anyio.lowlevel.checkpoint()
        yield Chunk(copy_elements(part), NumberedPositions(0), nbytes)


def copy_elements(value: Any) -> Any:
    """A copy of elements, of a column or of one element, that pins no larger buffer; immutable ones as they are.

    Objects other than arrays, records, dicts, tuples and lists are given as they are.
    """
    if isinstance(value, RaggedRows | SparseRows):
        return value.compact()
    if isinstance(value, Frames | BytesColumn):
        return value.compact() if value.pinned > value.nbytes + value.nbytes // 4 else value
    if isinstance(value, Batches):
        return Batches(copy_elements(value.frames), value.size)
    if isinstance(value, Columns):
        return Columns(map_nest(copy_elements, value.nest))
    if isinstance(value, CompositeTensor):
        return value.map_parts(copy_elements)
    if is_nest(value):
        return map_nest(copy_elements, value)
    if isinstance(value, list):
        return [copy_elements(element) for element in value]
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True)
class Saved(Source):
    file: CacheFile

    def lines(self) -> Iterator[str]:
        yield "Saved"

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        if await self.file.find(None, within) is None:
            raise NotFoundError("save() wrote no file of this name: check the path", self.file.path)
        async with aclosing(nest(within.chunks(self.file.chain, state and state["inner"]))) as chunks:
            async for chunk in chunks:
                yield chunk


@dataclass(frozen=True, slots=True)
class Saving(ChainSource):
    """The elements of a chain, which go into a file as they pass."""

    file: CacheFile

    def line(self) -> str:
        return "Saving"

    def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        chunks = within.take(UPLOAD)[1].chunks(self.inner, None)
        return nest(self.file.write_through(chunks, tuple(self.inner.lines()), alone=True))
