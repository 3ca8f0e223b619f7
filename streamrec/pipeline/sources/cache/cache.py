"""Cache: the first complete pass stores the elements of a chain; later passes read the stored
elements.

Rules:
- In memory, elements are stored with the description: for all runs of a Dataset, and of Datasets
  made from it. In a file (`cache_file.py`), for all programs.
- All passes have the elements and the order of the first one. So the chain is always read as in
  epoch 0, also when it is read again because the cache did not fit or a run was resumed.
- Only a pass from the start to the end without a failed element fills the cache. A position within
  the first pass is the chain's own; a run resumed there stores nothing, and the next complete pass
  does. A position within a later pass is the element's number; a run resumed there without a cache
  fills it first, and drops the elements before the number.
- In memory, the cache has the share `MEMORY` of the budget. If elements do not fit, it is dropped
  with a warning, and the chain is read again for each epoch.
- Elements are copied when they are stored and when they are given, so later passes do not see a
  caller's changes.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, NamedTuple

import anyio.lowlevel
import numpy as np

from streamrec.display import logger
from streamrec.errors import NotFoundError
from streamrec.example import BytesColumn
from streamrec.example.columns import CompositeTensor
from streamrec.pipeline.elements.chunk import Batches, Chunk, weigh
from streamrec.pipeline.elements.columns import Columns, Mixed, is_nest, map_nest, window
from streamrec.pipeline.elements.positions import (
    ElementLocation,
    NumberedPositions,
    Origin,
    Positions,
    nested,
    shift,
)
from streamrec.pipeline.elements.ragged_rows import RaggedRows, SparseRows
from streamrec.pipeline.engine.budget import Share
from streamrec.pipeline.engine.description import ChainSource, Source
from streamrec.pipeline.engine.ranks import Reader
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import Memo
from streamrec.pipeline.sources.cache.cache_file import CacheFile
from streamrec.pipeline.sources.shards.distribute import reader_of, readers_lines
from streamrec.tfrecord import Frames

MEMORY: Final = Share(2, name="cache")
"""The share of the budget for elements in memory."""

UPLOAD: Final = Share(2, 40 << 20, "uploads")
"""The share of the budget for writing a file: five parts of an upload."""


class CacheState:
    """One cache in memory, shared by all passes. After a complete pass, `parts` has all elements,
    each part with its bytes. `over` is the largest limit in bytes that they did not fit in.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[Any, int]] | None = None
        self.over = 0
        self._held = 0
        self._lock = threading.Lock()

    def hold(self, nbytes: int) -> int:
        """Adds to the bytes that all passes hold, and returns their sum."""
        with self._lock:
            self._held += nbytes
            return self._held


@dataclass(frozen=True, slots=True)
class Cache(ChainSource):
    """Stores the elements of a chain, in memory or in a file."""

    one_to_one: ClassVar[bool] = False
    file: CacheFile | None = None
    memo: Memo = field(default_factory=Memo, init=False, compare=False, repr=False)

    def line(self) -> str:
        return f"Cache({'memory' if self.file is None else 'file'})"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        context = replace(context, epoch=0)
        # The same budget whether the chain fills the cache or not, since orders may depend on it.
        share, feeding = context.take(MEMORY if self.file is None else UPLOAD)
        limit = share.nbytes
        async with aclosing(await self._source(state, context, feeding, limit)) as chunks:
            async for chunk in chunks:
                yield chunk

    def _file_of(self, reader: Reader) -> CacheFile | None:
        """The file of a reader; None if elements are stored in memory."""
        return None if self.file is None else self.file.of_reader(reader)

    async def _source(
        self,
        state: Mapping[str, Any] | None,
        context: RunContext,
        feeding: RunContext,
        limit: int,
    ) -> AsyncGenerator[Chunk]:
        """The chain, or its stored elements, from a position on.

        The chain runs within `feeding`; at most `limit` bytes are stored in memory.
        """
        reader = reader_of(self.inner, context)
        lines = readers_lines(self.inner, reader)
        file = self._file_of(reader)
        cached = self.memo.setdefault(lines, CacheState())
        if state is not None and "next" not in state:
            return nest(feeding.chunks(self.inner, state["inner"], continue_on_error=True))
        first: int = state["next"] if state else 0
        if cached.parts is not None:
            return number_chunks(read_parts(cached.parts), first)
        version = None if file is None else await file.find(lines, context)
        if file is not None and version is not None:
            return read_cached_file(file, version, state, context)
        chunks = feeding.chunks(self.inner, None, continue_on_error=True)
        if file is not None:
            chunks = file.write_through(chunks, lines)
        elif limit > cached.over:
            chunks = store(chunks, cached, limit)
        return nest(chunks) if state is None else number_chunks(chunks, first)


def read_cached_file(
    file: CacheFile, version: str, state: Mapping[str, Any] | None, context: RunContext
) -> AsyncGenerator[Chunk]:
    """The elements of a cache file from a position on.

    In the file of which the position was taken, it leads to the element. In any other file, and if
    the store has no versions (""), the elements before it are read and dropped.
    """
    found = FileVersion(file.path, version)
    if state is None:
        return number_chunks(context.chunks(file.chain, None), 0, 0, found)
    first: int = state["next"]
    if not version or state.get("version") != version:
        return number_chunks(context.chunks(file.chain, None), first, 0, found)
    return number_chunks(context.chunks(file.chain, state["inner"]), first, first, found)


async def nest(chunks: AsyncGenerator[Chunk]) -> AsyncGenerator[Chunk]:
    """Nests the positions of a chain's chunks in those of a source."""
    async with aclosing(chunks):
        async for chunk in chunks:
            yield chunk.at(nested(chunk.positions, {}))


async def number_chunks(
    chunks: AsyncGenerator[Chunk], first: int, number: int = 0, file: FileVersion | None = None
) -> AsyncGenerator[Chunk]:
    """Numbers the elements of chunks from `number` on in their positions, and drops those before
    `first`.

    If the chunks come from a file, positions also hold those in the file.
    """
    async with aclosing(chunks):
        async for chunk in chunks:
            count = len(chunk.elements)
            used = min(max(first - number, 0), count)
            if chunk.error is not None:
                count = 1  # a failed element has a number, too
                if number >= first:
                    yield chunk.at(positions_of_numbers(number + 1, chunk.positions))
            elif used < count:
                elements = window(chunk.elements, used, count) if used else chunk.elements
                inner = shift(chunk.positions, used)
                positions = positions_of_numbers(number + used, inner, file)
                yield Chunk(elements, positions, chunk.nbytes)
            number += count


class FileVersion(NamedTuple):
    """A cache file's URL and version."""

    path: str
    version: str


def positions_of_numbers(
    first: int, inner: Positions, file: FileVersion | None = None
) -> NumberedPositions:
    """Positions of elements by their numbers from `first` on, and by their positions in the cache
    file if there is one.

    `inner` has the elements' positions in the file, or in the chain that is cached.
    """
    if file is None:
        return NumberedPositions(
            first, origins_of=lambda number, row: (Origin(inner, number - first, row),)
        )

    def source(number: int) -> dict[str, Any]:
        place = dict(inner.at(number - first))
        return {"next": number, "version": file.version, "inner": place}

    def origins_of(number: int, row: int) -> Sequence[ElementLocation]:
        # A file does not store what elements were made of.
        return (ElementLocation(file.path, number),)

    return NumberedPositions(first, source, origins_of)


async def store(
    chunks: AsyncGenerator[Chunk], cached: CacheState, limit: int
) -> AsyncGenerator[Chunk]:
    """Gives a complete pass, and caches its elements if they fit and none failed."""
    parts: list[tuple[Any, int]] = []
    failed = False
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                failed = failed or chunk.error is not None
                if limit > cached.over and not failed:
                    part = copy_elements(chunk.elements)
                    parts.append((part, weigh(part)))
                    if cached.hold(parts[-1][1]) > limit:
                        give_up(cached, limit, parts)
                yield chunk
        if limit > cached.over and cached.parts is None and not failed:
            cached.parts, parts = parts, []
    finally:
        cached.hold(-sum(nbytes for _, nbytes in parts))


def give_up(cached: CacheState, limit: int, parts: list[tuple[Any, int]]) -> None:
    """Frees the stored parts, and warns."""
    logger.warning(
        "cache(): the elements do not fit into %d MB, half of the memory budget, and are read "
        "again for each epoch:"
        " raise with_options(memory_budget=), or give cache() the name of a file",
        limit >> 20,
    )
    cached.over = max(cached.over, limit)
    cached.hold(-sum(nbytes for _, nbytes in parts))
    parts.clear()


async def read_parts(parts: list[tuple[Any, int]]) -> AsyncGenerator[Chunk]:
    """Copies of stored elements; other tasks of the loop run in between."""
    for part, nbytes in parts:
        await anyio.lowlevel.checkpoint()
        yield Chunk(copy_elements(part), NumberedPositions(0), nbytes)


def copy_elements(value: Any) -> Any:
    """A copy of elements, a column or an element that keeps no larger buffer alive; immutable
    values are shared.

    Objects other than arrays, records, dicts, tuples and lists are shared, too.
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
    if isinstance(value, Mixed):
        return Mixed([copy_elements(part) for part in value.parts], value.order)
    if isinstance(value, list):
        return [copy_elements(element) for element in value]
    return value.copy() if isinstance(value, np.ndarray) else value


@dataclass(frozen=True, slots=True)
class Saved(Source):
    file: CacheFile

    def lines(self) -> Iterator[str]:
        yield "Saved"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        if await self.file.find(None, context) is None:
            raise NotFoundError("save() wrote no file of this name: check the path", self.file.path)
        async with aclosing(
            nest(context.chunks(self.file.chain, state and state["inner"]))
        ) as chunks:
            async for chunk in chunks:
                yield chunk


@dataclass(frozen=True, slots=True)
class Saving(ChainSource):
    """Gives the elements of a chain while writing them into a file."""

    file: CacheFile

    def line(self) -> str:
        return "Saving"

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        # The share has a name, or its account would end here.
        _share, feeding = context.take(UPLOAD)
        chunks = feeding.chunks(self.inner, None)
        lines = tuple(self.inner.lines())
        async with aclosing(nest(self.file.write_through(chunks, lines, alone=True))) as saved:
            async for chunk in saved:
                yield chunk
