"""A cache in a file: one TFRecord object that is written whole or not at all, on any filesystem.

Its first record is `H` and a JSON object, `{"format": "streamrec cache", "version": 1, "pipeline": lines}`. Then come
blocks of elements, `B` and what `codec.py` makes of them, and at the end `E` and `{"elements": count}`. So everything
has a CRC32C, and everything is in one object: two objects could disagree.

Rules:
- The object appears when it is complete (`ShardWriter`); a process that is killed leaves nothing under its name.
- Once it is there it is never replaced, so no reader is disturbed: of two that write it, the first to complete
  wins, and the other one's is dropped. (Where a store cannot promise that, the last one wins; on S3 the last to begin
  ends the other's upload. Neither fails for it.)
- A cache of another pipeline is refused. Pipelines are told apart by their lines, not by their data: after a change of
  the data, or of the body of a function, the user removes the file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar

import anyio
import anyio.to_thread
from fsspec import AbstractFileSystem

from streamrec.display import display_name, display_repr
from streamrec.errors import AlreadyExistsError, CacheError, NotFoundError, UnsupportedOperationError, UploadEndedError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import pack, unpack
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import SourceStores
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.rebatch import Unbatching
from streamrec.shards import ReadOptions, ShardReader, ShardWriter
from streamrec.shards.patterns import has_braces, is_numbered
from streamrec.storage import RetryPolicy, locate
from streamrec.tfrecord import Frames

__all__ = ["CacheFile"]

LOG = logging.getLogger("streamrec")

FORMAT = "streamrec cache"
VERSION = 1

HEAD, BLOCK, END = b"H", b"B", b"E"

BLOCK_BYTES = 1 << 20
"""About how many bytes of elements are one record."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """Where a cache is.

    Args:
        shards: How it is read: as a single shard.
    """

    shards: Shards

    @classmethod
    def at(
        cls,
        path: str,
        options: Mapping[str, Any] | None,
        filesystem: AbstractFileSystem | None,
        retry: RetryPolicy,
        verb: str = "cache()",
    ) -> CacheFile:
        """The cache at a URL, for this verb.

        Raises:
            ValueError: The URL is a pattern: it has `*`, or braces that stand for several names.
        """
        if "*" in path or has_braces(path) or is_numbered(path):
            raise ValueError(f"{verb} wants the name of one file, and {display_name(path)!r} is a pattern")
        path = locate(path, filesystem)
        stores = SourceStores(options, filesystem, retry)
        return cls(Shards((path,), Plan(), ReadOptions("", max_record_bytes=1 << 40), stores))

    @property
    def path(self) -> str:
        return self.shards.filenames[0]

    @property
    def chain(self) -> Chain:
        """The elements in it."""
        return Chain(self.shards, (Unpack(self.path),))

    async def find(self, lines: Sequence[str] | None, within: RunContext) -> str | None:
        """The cache, if it is there.

        Args:
            lines: Those of the pipeline that it should be of; None for any.
            within: The run.

        Returns:
            Its version, "" where the store has none; None where no cache is there.

        Raises:
            CacheError: It is something else, or of another pipeline.
        """
        storage = await (await self.shards.opened(within)).storages.at(self.path)
        try:
            reader = await ShardReader.open(storage, self.path, self.shards.options)
        except NotFoundError:
            return None
        try:
            frames = await reader.read_alone()
        finally:
            with anyio.CancelScope(shield=True):
                await reader.aclose()
        check_head(frames[0] if frames else b"", self.path, lines)
        return reader.info.version or ""

    async def write_through(
        self, chunks: AsyncGenerator[Chunk], lines: Sequence[str], *, alone: bool = False
    ) -> AsyncGenerator[Chunk]:
        """The chunks; when they have ended, they are in the file: these, or, unless `alone`, those of another writer.

        Raises:
            AlreadyExistsError: There is a file already, and `alone` is set.
            TypeError: An element cannot be stored.
            StorageError: The file cannot be written.
        """
        head = {"format": FORMAT, "version": VERSION, "pipeline": list(lines)}
        count = 0
        async with AsyncExitStack() as stack:
            writing = CacheWriter(self, alone)
            stack.push_async_exit(writing.leave)
            await writing.begin(HEAD + json.dumps(head).encode())
            await stack.enter_async_context(aclosing(chunks))
            async for chunk in chunks:
                if chunk.error is not None:
                    await writing.leave()  # this pass leaves no cache
                    yield chunk
                    continue
                count += len(chunk.elements)
                blocks, error = await anyio.to_thread.run_sync(pack_chunk, chunk) if writing.going else ([], None)
                yield chunk
                if error is not None:
                    raise error
                await writing.write(blocks)
            await writing.write([END + json.dumps({"elements": count}).encode()])
            await writing.close()


class CacheWriter:
    """A cache on its way into its file; it ends without an error where another writer's comes first, unless `alone`.

    Attributes:
        going: Whether it still goes on.
    """

    def __init__(self, file: CacheFile, alone: bool) -> None:
        self.going = True
        self._file = file
        self._alone = alone
        self._writer: ShardWriter | None = None

    async def begin(self, head: bytes) -> None:
        """Writes the first record: without replacing an object, where the store can promise that."""
        try:
            await self._try(self._begin(head, overwrite=False))
        except UnsupportedOperationError:
            await self._try(self._begin(head, overwrite=True))

    async def write(self, records: Sequence[bytes]) -> None:
        if self.going and records and self._writer is not None:
            await self._try(self._writer.write_batch(Frames.of(records)))

    async def close(self) -> None:
        if self.going and self._writer is not None:
            await self._try(self._writer.close())

    async def leave(self, *_: object) -> None:
        """Drops what is not complete: from now on nothing is written."""
        self.going = False
        if self._writer is not None:
            await self._writer.abort()

    async def _begin(self, head: bytes, *, overwrite: bool) -> None:
        if self._writer is not None:
            await self._writer.abort()
        stores = self._file.shards.stores
        self._writer = ShardWriter(
            self._file.path,
            overwrite=overwrite,
            storage_options=stores.storage_options,
            filesystem=stores.filesystem,
            retry=stores.retry,
        )
        self._writer.warns = False  # a run that is left keeps no cache, and needs no warning
        await self._writer.__aenter__()
        await self._writer.write(head)

    async def _try(self, doing: Awaitable[None]) -> None:
        try:
            await doing
        except (AlreadyExistsError, UploadEndedError) as error:
            await self.leave()
            if self._alone:
                raise
            LOG.info("%s: another process writes this cache: %s", display_name(self._file.path), error)


def pack_chunk(chunk: Chunk) -> tuple[list[bytes], Exception | None]:
    """The records for a chunk's elements; and the error, where one cannot be stored."""
    count = len(chunk.elements)
    step = max(1, count * BLOCK_BYTES // max(chunk.nbytes, BLOCK_BYTES))
    try:
        return [BLOCK + pack(window(chunk.elements, first, first + step)) for first in range(0, count, step)], None
    except (TypeError, ValueError) as error:
        return [], error


def check_head(head: bytes, path: str, lines: Sequence[str] | None) -> None:
    """Looks at the first record of a cache.

    Raises:
        CacheError: It is none, or that of a cache of another pipeline.
    """
    try:
        found = json.loads(head[1:]) if head[:1] == HEAD else {}
    except (ValueError, RecursionError):
        found = {}
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise CacheError("neither cache() nor save() of streamrec wrote this file: give another name", path)
    if found.get("version") != VERSION:
        raise CacheError(f"a cache of version {found.get('version')!r}, where {VERSION} was wanted: remove it", path)
    if lines is not None and found.get("pipeline") != list(lines):
        was, now = next(
            pair for pair in zip_longest(found["pipeline"], lines, fillvalue="nothing") if len(set(pair)) > 1
        )
        raise CacheError(
            f"this cache is of another pipeline: it had {was}, and now there is {now}; remove the file, or give cache()"
            " another name",
            path,
        )


@display_repr
@dataclass(frozen=True, slots=True)
class Unpack(Stage):
    """The elements of a cache, out of its records."""

    path: str
    offload: ClassVar[Offload] = Offload.ALWAYS

    def start(self, key: str, state: int | None) -> Step:
        return UnpackBlocks(self.path, key, state or 0)


class UnpackBlocks(Unbatching):
    def __init__(self, path: str, key: str, first: int) -> None:
        super().__init__(key, first)
        self._path = path
        self._ended = False

    def feed(self, chunk: Chunk) -> list[Chunk]:
        assert isinstance(chunk.elements, Frames)
        parts = []
        for index, record in enumerate(chunk.elements.views()):
            if record[:1] == BLOCK:
                parts.append(self._rows(chunk, index, self._unpack(record)))
            self._ended = record[:1] == END
        return parts

    def _unpack(self, record: memoryview) -> Any:
        try:
            return unpack(record[1:])
        except Exception as error:  # its CRC32C is right, and its content is not an element
            what = f"{type(error).__name__}: {error}"
            raise CacheError(
                f"a block of this cache holds no elements ({what}): remove the file", self._path
            ) from error

    def flush(self) -> list[Chunk]:
        if not self._ended:
            raise CacheError("this cache ends before its last record: remove the file", self._path)
        return []
