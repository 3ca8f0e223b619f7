"""Cache files: one TFRecord object that is written completely or not at all, on any filesystem.

The first record is `H` and a JSON object,
`{"format": "streamrec cache", "version": 1, "pipeline": lines}`. Then come blocks of elements, `B`
and the bytes of `codec.py`, and finally `E` and `{"elements": count}`. So everything has a CRC32C,
and is in one object, since two objects could disagree.

Rules:
- The object appears when it is complete (`ShardWriter`); a process that is killed leaves nothing
  under its name.
- It is never replaced, so readers are not disturbed. If two writers compete, the first to complete
  wins, and the other one's file is dropped. (If a store cannot guarantee that, the last one wins;
  on S3 the last to begin aborts the other upload. Neither writer fails.)
- Readers of different records (`distribute`, `global_shuffle`) each have a file of their own:
  `NAME-00001-of-00004` is that of reader 1 of 4. All others share one.
- A cache of another pipeline is refused. Pipelines are compared by their lines, not by their data:
  after a change of the data, or of the body of a function, the user removes the file.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, ClassVar

import anyio
import anyio.to_thread
from fsspec import AbstractFileSystem

from streamrec.display import display_name, display_repr, logger
from streamrec.errors import (
    AlreadyExistsError,
    CacheError,
    NotFoundError,
    UnsupportedOperationError,
    UploadEndedError,
)
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.codec import pack, unpack
from streamrec.pipeline.elements.columns import window
from streamrec.pipeline.engine.description import Chain
from streamrec.pipeline.engine.ranks import Reader
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.session import SourceStores
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.sources.interleave import Plan
from streamrec.pipeline.sources.shards.source import Shards
from streamrec.pipeline.stages.rebatch import Unbatching
from streamrec.shards import ReadOptions, ShardCursor, ShardWriter
from streamrec.shards.patterns import has_braces, is_numbered
from streamrec.storage import RetryPolicy, locate
from streamrec.tfrecord import Frames

FORMAT = "streamrec cache"
VERSION = 1

# The first byte of each record says what it is.
HEAD = b"H"
BLOCK = b"B"
END = b"E"

BLOCK_BYTES = 1 << 20
"""About how many bytes of elements make a record."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """The file of a cache, and the source that reads it, as a single shard."""

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
        """The cache file at a URL; errors use `verb`."""
        if "*" in path or has_braces(path) or is_numbered(path):
            raise ValueError(
                f"{verb} takes the name of one file, but {display_name(path)!r} is a pattern"
            )
        path = locate(path, filesystem)
        stores = SourceStores(options, filesystem, retry)
        reading = ReadOptions(compression_type="", max_record_bytes=1 << 40)
        return cls(Shards(filenames=(path,), plan=Plan(), options=reading, stores=stores))

    def of_reader(self, reader: Reader) -> CacheFile:
        """The file of one of several readers of different records: its number follows the name."""
        if reader.readers == 1:
            return self
        path = f"{self.path}-{reader.number:05d}-of-{reader.readers:05d}"
        return CacheFile(replace(self.shards, filenames=(path,)))

    @property
    def path(self) -> str:
        return self.shards.filenames[0]

    @property
    def chain(self) -> Chain:
        """A chain that gives the elements."""
        return Chain(self.shards, (Unpack(self.path),))

    async def find(self, lines: Sequence[str] | None, context: RunContext) -> str | None:
        """The version of the file, "" if the store has none; None without a file.

        A CacheError says that it is not a cache, or not of the pipeline with these lines; None for
        any.
        """
        storage = await (await self.shards.opened(context)).storages.at(self.path)
        try:
            cursor = await ShardCursor.open(storage, self.path, self.shards.options)
        except NotFoundError:
            return None
        try:
            frames = await cursor.next()
        finally:
            with anyio.CancelScope(shield=True):
                await cursor.aclose()
        check_head(frames[0] if frames else b"", self.path, lines)
        return cursor.info.version or ""

    async def write_through(
        self, chunks: AsyncGenerator[Chunk], lines: Sequence[str], *, alone: bool = False
    ) -> AsyncGenerator[Chunk]:
        """Gives the chunks while writing them; unless `alone`, another writer may complete the file
        first.
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
                blocks, error = (
                    await anyio.to_thread.run_sync(pack_chunk, chunk)
                    if writing.is_open
                    else ([], None)
                )
                yield chunk
                if error is not None:
                    raise error
                await writing.write(blocks)
            await writing.write([END + json.dumps({"elements": count}).encode()])
            await writing.close()


class CacheWriter:
    """Writes a cache file; unless `alone`, it stops without an error if another writer is first."""

    def __init__(self, file: CacheFile, alone: bool) -> None:
        self.is_open = True
        self._file = file
        self._alone = alone
        self._writer: ShardWriter | None = None

    async def begin(self, head: bytes) -> None:
        """Writes the first record; never replaces an object if the store can guarantee that."""
        try:
            await self._try(self._begin(head, overwrite=False))
        except UnsupportedOperationError:
            await self._try(self._begin(head, overwrite=True))

    async def write(self, records: Sequence[bytes]) -> None:
        if self.is_open and records and self._writer is not None:
            await self._try(self._writer.write_batch(Frames.of(records)))

    async def close(self) -> None:
        if self.is_open and self._writer is not None:
            await self._try(self._writer.close())

    async def leave(self, *_: object) -> None:
        """Stops writing, and drops the incomplete file."""
        self.is_open = False
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

    async def _try(self, operation: Awaitable[None]) -> None:
        try:
            await operation
        except (AlreadyExistsError, UploadEndedError) as error:
            await self.leave()
            if self._alone:
                raise
            logger.info(
                "%s: another process writes this cache: %s", display_name(self._file.path), error
            )


def pack_chunk(chunk: Chunk) -> tuple[list[bytes], Exception | None]:
    """The records for a chunk's elements, or the error of one that cannot be stored."""
    count = len(chunk.elements)
    step = max(1, count * BLOCK_BYTES // max(chunk.nbytes, BLOCK_BYTES))
    try:
        return [
            BLOCK + pack(window(chunk.elements, first, first + step))
            for first in range(0, count, step)
        ], None
    except (TypeError, ValueError) as error:
        return [], error


def check_head(head: bytes, path: str, lines: Sequence[str] | None) -> None:
    """Checks the first record of a cache: a CacheError if it is not one, or belongs to another
    pipeline.
    """
    # The file may be of any program: all that it may hold leads to one of the errors below.
    try:
        content = json.loads(head[1:]) if head[:1] == HEAD else {}
    except (ValueError, RecursionError):
        content = {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CacheError(
            "neither cache() nor save() of streamrec wrote this file: use another name", path
        )
    if content.get("version") != VERSION:
        raise CacheError(
            f"this cache has version {content.get('version')!r}, not {VERSION}: remove the file",
            path,
        )
    written = content.get("pipeline")
    if not isinstance(written, list) or not all(isinstance(line, str) for line in written):
        raise CacheError(
            "this file does not name the pipeline that it caches: remove the file", path
        )
    # load() has no pipeline to compare: it reads what any pipeline saved.
    if lines is not None and written != list(lines):
        was, now = next(
            pair for pair in zip_longest(written, lines, fillvalue="nothing") if pair[0] != pair[1]
        )
        raise CacheError(
            f"this cache belongs to another pipeline, with {was} where this one has {now}: remove "
            "the file, or give cache() another name",
            path,
        )


@display_repr
@dataclass(frozen=True, slots=True)
class Unpack(Stage):
    """Unpacks the elements of a cache file from its records."""

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
                parts.append(self._unpack_rows(chunk, index, record))
            self._ended = record[:1] == END
        return parts

    def _unpack_rows(self, chunk: Chunk, index: int, record: memoryview) -> Chunk:
        try:
            return self._rows(chunk, index, unpack(record[1:]))
        except Exception as error:  # the CRC32C is right, but the content is invalid
            cause = f"{type(error).__name__}: {error}"
            raise CacheError(
                f"a block of this cache is invalid ({cause}): remove the file", self._path
            ) from error

    def flush(self) -> list[Chunk]:
        if not self._ended:
            raise CacheError("this cache ends before its last record: remove the file", self._path)
        return []
