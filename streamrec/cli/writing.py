"""What commands write: nothing is replaced unasked, and nothing stays of a command that did not end well.

A shard appears whole or not at all; that is the library's doing. A command writes several, as one `Replacement`: what
it has finished is removed again where it fails or is interrupted, and what it replaces stays until all is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import anyio
import click

from streamrec import NotFoundError
from streamrec.cli.output import print_error
from streamrec.display import display_name
from streamrec.shards import Manifest, is_numbered
from streamrec.storage import Identity, Storages

__all__ = [
    "COMPRESSIONS",
    "Rollback",
    "compression_of",
    "is_one_of",
    "refuse_existing",
    "refuse_matching",
    "refuse_read",
    "write_text",
]

COMPRESSIONS = ("none", "gzip", "zlib", "zstd")
ENDINGS = {".gz": "GZIP", ".gzip": "GZIP", ".zz": "ZLIB", ".zlib": "ZLIB", ".zst": "ZSTD", ".zstd": "ZSTD"}


class Rollback:
    """Objects that a command writes for a while; removed where its block ends by an error or Ctrl-C.

    Args:
        storage_options: Where they lie.
    """

    def __init__(self, storage_options: Mapping[str, Any]) -> None:
        self._options = storage_options
        self._paths: list[str] = []

    def expect(self, path: str) -> None:
        """There may be one more: it is about to be written, and nothing has this name."""
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
                async with Storages(self._options) as storages:
                    for path in paths:
                        try:
                            await (await storages.at(path)).remove(path)
                        except Exception as error:  # the first error is the one that counts
                            print_error(f"{display_name(path)} was written and could not be removed ({error})")
        return paths


def compression_of(name: str, wanted: str | None) -> str:
    """How an object of this name is compressed: as is wanted, or else as its ending says.

    Examples:
        >>> compression_of("a.tfrecord.gz", None), compression_of("a.gz", "none"), compression_of("a", "zstd")
        ('GZIP', '', 'ZSTD')
    """
    if wanted is not None:
        return "" if wanted == "none" else wanted.upper()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), "")


async def refuse_existing(
    storages: Storages, paths: Sequence[str], advice: str = "choose another name, or add --overwrite"
) -> None:
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
        raise click.UsageError(f"{path} is there already: {advice}")


async def refuse_read(
    storages: Storages, sources: Iterable[str], goal: Storages, targets: Sequence[str]
) -> frozenset[Identity]:
    """Lets nothing be written over that is read, however it is spelled.

    Args:
        storages: Where the sources lie.
        sources: URLs of all objects that are read.
        goal: Where the targets lie.
        targets: URLs of what will be written; in a pattern `{shard}` stands for any number.

    Returns:
        The identities of the sources, which a Replacement spares.

    Raises:
        UsageError: A target is a source.
    """
    paths = list(sources)
    found = zip(paths, await storages.identities(paths), strict=True)
    read = {identity: path for path, its in found for identity in its}
    for target, its in zip(targets, await goal.identities(targets), strict=True):
        over = [read[identity] for identity in its if identity in read]
        if is_numbered(target):
            over += [path for identity, path in read.items() if any(is_one_of(identity, each) for each in its)]
        if over:
            raise click.UsageError(f"{over[0]} is read, and would be written over: choose another name for {target}")
    return frozenset(read)


def is_one_of(identity: Identity, pattern: Identity) -> bool:
    """Whether an object is that of a pattern, or could be one of its shards, by the identities of both."""
    *place, name = identity
    *its, names = pattern
    if not isinstance(name, str) or not isinstance(names, str):
        return identity == pattern
    return place == its and Manifest("", names, "", ()).belongs(name)


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


async def write_text(url: str, text: str, read: Iterable[str], storage_options: Mapping[str, Any]) -> None:
    """Writes a page to any URL, as UTF-8; it replaces what is there, but for the objects that were read.

    Raises:
        UsageError: It is one of these.
    """
    async with Storages(storage_options) as storages:
        await refuse_read(storages, read, storages, [url])
        async with await (await storages.at(url)).upload(url) as upload:
            await upload.write(text.encode())
