"""What commands write: nothing is replaced unasked, and nothing stays of a command that did not end well.

A shard appears whole or not at all; that is the library's doing. A command writes several, so what it has finished is
removed again where it fails or is interrupted.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import anyio
import click
from fsspec.core import url_to_fs

from streamrec import NotFoundError, ShardWriter
from streamrec.cli.output import print_error
from streamrec.display import display_name
from streamrec.shards import Manifest
from streamrec.storage import Storages, Upload

logger = logging.getLogger("streamrec")

__all__ = ["COMPRESSIONS", "Rollback", "compression_of", "refuse_existing", "refuse_matching", "write_text"]

COMPRESSIONS = ("none", "gzip", "zlib", "zstd")
ENDINGS = {".gz": "GZIP", ".gzip": "GZIP", ".zz": "ZLIB", ".zlib": "ZLIB", ".zst": "ZSTD", ".zstd": "ZSTD"}


class Rollback:
    """The objects that a command has finished; removed where its block ends by an error or Ctrl-C.

    Args:
        storage_options: Where they lie.
    """

    def __init__(self, storage_options: Mapping[str, Any]) -> None:
        self._options = {key: value for key, value in storage_options.items() if key != "backend"}
        self._paths: list[str] = []

    def add(self, path: str) -> None:
        """There is one more."""
        self._paths.append(path)
        logger.info("%s is written", display_name(path))

    def add_all(self, writer: ShardWriter) -> None:
        """There is what a writer has finished, however the writing ended."""
        for shard in writer.shards:
            self.add(shard.path)
        if writer.in_doubt is not None:
            self.expect(writer.in_doubt)

    @asynccontextmanager
    async def writing(self, upload: Upload) -> AsyncIterator[Upload]:
        """There is one more when the block has ended well."""
        try:
            async with upload:
                yield upload
        except BaseException:
            if upload.in_doubt:
                self.expect(upload.path)
            raise
        self.add(upload.path)

    def expect(self, path: str) -> None:
        """There may be one more: it is about to be written."""
        self._paths.append(path)

    def forget(self, path: str) -> None:
        """It was not written."""
        self._paths.remove(path)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self.remove()

    async def remove(self) -> list[str]:
        """Removes them all, and returns them; says on standard error which one could not be removed."""
        paths, self._paths = self._paths, []
        if paths:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._remove, paths)
        return paths

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            filesystem, inner = url_to_fs(path, **self._options)
            try:
                with suppress(FileNotFoundError):  # it was expected, and not written
                    filesystem.rm_file(inner)
            except Exception as error:  # the first error is the one that counts
                print_error(f"{display_name(path)} was written and could not be removed ({error})")


def compression_of(name: str, wanted: str | None) -> str:
    """How an object of this name is compressed: as is wanted, or else as its ending says.

    Examples:
        >>> compression_of("a.tfrecord.gz", None), compression_of("a.gz", "none"), compression_of("a", "zstd")
        ('GZIP', '', 'ZSTD')
    """
    if wanted is not None:
        return "" if wanted == "none" else wanted.upper()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), "")


async def refuse_existing(storages: Storages, paths: Sequence[str]) -> None:
    """Lets nothing be replaced.

    Raises:
        UsageError: One of these objects is there.
    """
    for path in paths:
        storage = await storages.at(path)
        try:
            await storage.stat(path)
        except NotFoundError:
            continue
        raise click.UsageError(f"{path} is there already: choose another name, or add --overwrite")


async def refuse_matching(storages: Storages, pattern: str) -> None:
    """Lets no object be replaced, or left over, that a reader of `pattern`'s shards would take for one of them.

    Raises:
        UsageError: There is one.
    """
    names = Manifest("", pattern, "", ())
    if not names.numbered:
        await refuse_existing(storages, [pattern])
        return
    async for info in (await storages.at(pattern)).list(names.prefix, names.glob):
        if names.belongs(info.path):
            raise click.UsageError(f"{info.path} is there already: choose another name, or add --overwrite")


async def write_text(url: str, text: str, storage_options: Mapping[str, Any]) -> None:
    """Writes a page to any URL, as UTF-8; it replaces what is there."""
    async with Storages(storage_options) as storages, await (await storages.at(url)).upload(url) as upload:
        await upload.write(text.encode())
