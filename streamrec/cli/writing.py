"""What commands write.

They replace nothing unasked, and leave nothing of a run that did not end well.

A shard appears complete or not at all; that is the library's doing. A command writes several, as
one `Replacement`: if it fails or is interrupted, what it has finished is removed, and what it
replaces stays until all is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
import click

from streamrec import Frames, NotFoundError, RetryPolicy, ShardWriter
from streamrec.cli.options import DRY_RUN
from streamrec.cli.output import (
    format_bytes,
    plural,
    print_error,
    print_json,
    print_line,
    print_note,
)
from streamrec.cli.reading import total_bytes
from streamrec.cli.sources import MANIFESTS, Item, directory_of, is_absent
from streamrec.display import display_name
from streamrec.errors import AlreadyExistsError, ManifestError, StorageError
from streamrec.shards import (
    Manifest,
    ShardInfo,
    fill_total,
    is_below,
    is_numbered,
    is_shard_of,
    list_numbered,
    location_of,
    read_manifest,
    shard_path,
)
from streamrec.storage import Identity, Replacement, Storages, is_url

COMPRESSIONS = ("none", "gzip", "zlib", "zstd")
ENDINGS = {
    ".gz": "GZIP",
    ".gzip": "GZIP",
    ".zz": "ZLIB",
    ".zlib": "ZLIB",
    ".zst": "ZSTD",
    ".zstd": "ZSTD",
}


@asynccontextmanager
async def temporary_objects(storage_options: Mapping[str, Any]) -> AsyncIterator[list[str]]:
    """A list for the URLs of new objects, each added before it is written.

    They are removed when the block ends.
    """
    paths: list[str] = []
    try:
        yield paths
    finally:
        await remove_all(paths, storage_options)


async def remove_all(paths: list[str], storage_options: Mapping[str, Any]) -> None:
    """Removes objects and empties the list.

    Says on standard error which ones could not be removed.
    """
    with anyio.CancelScope(shield=True):
        async with Storages(storage_options, retry=RetryPolicy(patience=30)) as storages:
            while paths:
                path = paths.pop(0)
                try:
                    await (await storages.at(path)).remove(path)
                except Exception as error:  # an earlier error is the one that counts
                    print_error(
                        f"{display_name(path)} was written and could not be removed ({error})"
                    )


def compression_of(name: str, wanted: str | None) -> str:
    """How an object of this name is compressed: as `wanted` says, or else as its ending does.

    Examples:
        >>> compression_of("a.tfrecord.gz", None), compression_of("a.gz", "none")
        ('GZIP', '')
        >>> compression_of("a", "zstd")
        'ZSTD'
    """
    if wanted is not None:
        return "" if wanted == "none" else wanted.upper()
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), "")


async def refuse_existing(
    storages: Storages, paths: Sequence[str], otherwise: str = "add --overwrite"
) -> None:
    """Lets nothing be replaced."""
    for path in paths:
        storage = await storages.at(path)
        try:
            await storage.stat(path)
        except NotFoundError:
            continue
        raise AlreadyExistsError(f"it already exists: choose another name, or {otherwise}", path)


async def refuse_sources(
    storages: Storages, sources: Iterable[str], goal: Storages, targets: Sequence[str]
) -> frozenset[Identity]:
    """Lets nothing be written over that is read, however it is spelled.

    `{shard}` of a target is any number.

    Returns:
        The identities of the sources, which a Replacement spares.
    """
    paths = list(sources)
    found = zip(paths, await storages.identities(paths), strict=True)
    read = {identity: path for path, its in found for identity in its}
    for target, its in zip(targets, await goal.identities(targets), strict=True):
        over = [read[identity] for identity in its if identity in read]
        if is_numbered(target):
            over += [
                path
                for identity, path in read.items()
                if any(is_one_of(identity, each) for each in its)
            ]
        if over:
            raise click.UsageError(
                f"{over[0]} is read, and would be overwritten: choose another name for {target}"
            )
    return frozenset(read)


def is_one_of(identity: Identity, pattern: Identity) -> bool:
    """Whether an object is that of a pattern, or could be one of its shards.

    The identities of both decide.
    """
    *place, name = identity
    *its, names = pattern
    if not isinstance(name, str) or not isinstance(names, str):
        return identity == pattern
    return place == its and is_shard_of(name, names)


def inputs(sources: Iterable[str], found: Iterable[Item]) -> list[str]:
    """All objects that are read: shards, and the manifests among the names that were typed."""
    return [item.path for item in found] + [name for name in sources if name.endswith(MANIFESTS)]


def copy_paths(paths: Sequence[str], target: str, option: str) -> list[str]:
    """The URLs of the copies of shards; `option` is what `target` is called in errors.

    In a directory, the copies are placed to each other as the shards are.
    """
    if target.endswith("/") or directory_of(target):
        common = os.path.commonprefix([path[: path.rfind("/") + 1] for path in paths])  # noqa: RUF071 - URLs, cut below
        above = common[: common.rfind("/") + 1]
        names = [path.removeprefix(above) for path in paths]
        copies = [f"{target.rstrip('/')}/{name}" for name in names]
        outside = [
            name
            for name, copy in zip(names, copies, strict=True)
            if is_url(name) or not is_below(copy, target)
        ]
        if outside:
            raise click.UsageError(
                f"{option} would write {outside[0]} outside {target}: name fewer shards at a time"
            )
    elif len(paths) > 1:
        raise click.UsageError(
            f"{option} {target} is one name, and these are {len(paths):,} shards: write {target}/"
        )
    else:
        copies = [target]
    places = [location_of(copy) for copy in copies]
    if len(set(places)) < len(places):
        twice = next(
            copy for copy, place in zip(copies, places, strict=True) if places.count(place) > 1
        )
        raise click.UsageError(f"{option} would write {twice} twice: name fewer shards at a time")
    return copies


def end_dry_run(found: Sequence[Item], targets: Sequence[str]) -> None:
    """With `--dry-run`, prints what the command would read and write, and ends it.

    All checks come before.
    """
    context = click.get_current_context()
    if not context.meta.get(DRY_RUN):
        return
    size = total_bytes(found)
    if context.params.get("as_json"):
        reads = [{"path": item.path, "bytes": item.size} for item in found]
        print_json({"dry_run": True, "reads": reads, "writes": list(targets)})
    else:
        print_line(f"{plural(len(found), 'file')}, {format_bytes(size)}, would be read")
        print_line(*(f"would write {target}" for target in targets))
    context.exit(0)


async def refuse_matching(storages: Storages, pattern: str) -> None:
    """Lets nothing be replaced, or left over, that readers would take for a shard of `pattern`."""
    if not is_numbered(pattern):
        await refuse_existing(storages, [pattern])
    async for info in list_numbered(storages, pattern):
        raise AlreadyExistsError(
            "it already exists: choose another name, or add --overwrite", info.path
        )


async def write_text(
    url: str, text: str, read: Iterable[str], storage_options: Mapping[str, Any]
) -> None:
    """Writes a page to any URL, as UTF-8.

    It replaces what is there, but for the objects that were read.
    """
    async with Storages(storage_options) as storages:
        await refuse_sources(storages, read, storages, [url])
        async with await (await storages.at(url)).upload(url) as upload:
            await upload.write(text.encode())


LOOKED_AT: Final = 1000
"""How many targets are compared with the sources at the beginning: a link may lead to one."""

ASKED_FOR: Final = 8
"""For how many shards of an old manifest the store is asked."""

SHARD_BYTES: Final = 200_000_000
"""How large shards become where nothing else is said."""

FIELD: Final = re.compile(r"\{[A-Za-z_]\w*(:[^{}]*)?\}")
"""What looks like a misspelt `{shard}`. Other braces are the name's own."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where records go: a URL, and how they are compressed there.

    The URL has `{shard}` where the number of a shard goes.
    """

    pattern: str
    compression: str
    storage_options: Mapping[str, Any]

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards."""
        return is_numbered(self.pattern)

    @property
    def manifest(self) -> str:
        """Where the manifest goes by default."""
        if self.numbered:
            return self.pattern[: self.pattern.rfind("/") + 1] + "manifest.json"
        return f"{self.pattern}.manifest.json"


def pattern_of(name: str, compression: str, shards: int | None) -> str:
    """The pattern of the shards that a name stands for.

    A directory gets names; `{shards}` is how many there are.

    Examples:
        >>> pattern_of("out/", "GZIP", None)
        'out/shard-{shard:05d}.tfrecord.gz'
        >>> pattern_of("train-{shard:03d}-of-{shards:03d}", "", 8)
        'train-{shard:03d}-of-008'
    """
    directory = directory_of(name)
    if directory is not None:
        ending = next((ending for ending, kind in ENDINGS.items() if kind == compression), "")
        return f"{directory}shard-{{shard:05d}}.tfrecord{ending}"
    try:
        name = fill_total(name, shards)
        if other := FIELD.search(shard_path(name, 0)):
            raise ValueError(
                f"{name!r}: {other[0]} has no meaning here: write train-{{shard:05d}}.tfrecord"
            )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    return name


def check_numbered(pattern: str) -> None:
    """Refuses one name for several shards."""
    if not is_numbered(pattern):
        raise click.UsageError(
            f"several shards need a number in their name: write {pattern}-{{shard:05d}}, or "
            f"{pattern}/"
        )


async def check_target(
    storages: Storages,
    sources: Iterable[str],
    found: Sequence[Item],
    goal: Storages,
    target: Target,
    *,
    manifest: str | None,
    overwrite: bool,
) -> frozenset[Identity]:
    """Refuses to write over what is read, or, without `overwrite`, over what is there.

    With `--dry-run` it ends the command.

    `found` is all that is read but manifests, which are among `sources`. Returns what a Replacement
    must spare.
    """
    tables = [] if manifest is None else [manifest]
    numbers = range(min(len(found) + 1, LOOKED_AT)) if target.numbered else ()
    targets = [target.pattern, *tables, *(shard_path(target.pattern, number) for number in numbers)]
    spared = await refuse_sources(storages, inputs(sources, found), goal, targets)
    shards, *its = await goal.identities([target.pattern, *tables])
    if any(is_one_of(identity, each) for found in its for identity in found for each in shards):
        raise click.UsageError(
            f"{manifest} would overwrite a shard: choose another name for the manifest"
        )
    if not overwrite:
        await refuse_matching(goal, target.pattern)
        await refuse_existing(goal, tables)
    elif manifest is not None:
        await check_described(goal, manifest, target)
    end_dry_run(found, [target.pattern, *tables])
    return spared


async def check_described(storages: Storages, manifest: str, target: Target) -> None:
    """Refuses to replace a manifest that describes other shards that stay.

    It refuses only if the manifest's name was not typed. If it was, a note tells of it.
    """
    try:
        old = (await read_manifest(await storages.at(manifest), manifest)).follow()
    except (NotFoundError, ManifestError):  # none is there; or it is not one of ours
        return
    others = [shard.path for shard in old.shards if not is_shard_of(shard.path, target.pattern)]
    there = [path for path in others[:ASKED_FOR] if not await is_absent(storages, path)]
    if not there:
        return
    told = (
        f"{display_name(manifest)} describes {plural(len(others), 'other shard')} that would stay, "
        f"such as {display_name(there[0])}"
    )
    if manifest == target.manifest:
        raise click.UsageError(
            f"{told}: write into another directory, or (reshard) give the new manifest a name with "
            "--manifest"
        )
    print_note(f"{told}, and is replaced")


async def tell_leftovers(
    storages: Storages, target: Target, written: Sequence[ShardInfo], objects: Replacement
) -> None:
    """Says how many shards of an earlier run are replaced, and which stay among the new ones.

    A pattern would read those, too. Call it before the new ones are put in place.
    """
    new = {shard.path for shard in written}
    found: set[str] = set()
    with suppress(StorageError):  # this client may not list
        found = {info.path async for info in list_numbered(storages, target.pattern)}
    print_leftovers(len(found & new & objects.staged), sorted(found - new))


def print_leftovers(replaced: int, left: Sequence[str]) -> None:
    """A note of how many files are replaced, and which stay next to the new ones."""
    if replaced:
        print_note(f"{plural(replaced, 'older file')} replaced")
    if left:
        print_note(
            f"{plural(len(left), 'older shard')} left next to the new ones: "
            f"{display_name(left[0])} ..."
        )


async def write_limited(
    records: AsyncIterator[Frames],
    target: Target,
    objects: Replacement,
    nbytes: int | None,
    count: int | None,
) -> list[ShardInfo]:
    """Writes shards up to a size in bytes, or in records, or both."""
    if target.numbered and nbytes is None and count is None:
        nbytes = SHARD_BYTES
    writer = ShardWriter(
        target.pattern,
        target.compression,
        max_shard_bytes=nbytes,
        max_shard_records=count,
        storage_options=target.storage_options,
    )
    writer.join(objects)
    async with writer:
        async for frames in records:
            await writer.write_batch(frames)
    return writer.shards


async def write_even(
    records: AsyncIterator[Frames], target: Target, objects: Replacement, shards: int, total: int
) -> list[ShardInfo]:
    """Writes this many shards, whose numbers of records differ by at most one."""
    feed = Feed(records)
    infos: list[ShardInfo] = []
    for number in range(shards):
        path = shard_path(target.pattern, number)
        writer = ShardWriter(path, target.compression, storage_options=target.storage_options)
        writer.join(objects)
        async with writer:
            async for frames in feed.take(total // shards + (number < total % shards)):
                await writer.write_batch(frames)
        infos += writer.shards
    if sum(shard.records for shard in infos) != total or not await feed.is_over():
        raise ManifestError(
            f"there are not {total:,} records, as the manifest of these shards says: write it again"
        )
    return infos


async def write_manifest(
    url: str, target: Target, shards: list[ShardInfo], objects: Replacement
) -> None:
    """Writes what `streamrec verify` compares the shards with."""
    manifest = Manifest(url, target.pattern, target.compression, tuple(shards))  # type: ignore[arg-type]
    async with await objects.upload(url, describes=True) as upload:
        await upload.write(manifest.to_json())


class Feed:
    """Records that come in blocks, taken by number."""

    def __init__(self, blocks: AsyncIterator[Frames]) -> None:
        self._blocks = blocks
        self._rest = Frames.of([])

    async def is_over(self) -> bool:
        """Whether no record is left."""
        while not len(self._rest):
            block = await anext(self._blocks, None)
            if block is None:
                return True
            self._rest = block
        return False

    async def block(self, most: int) -> Frames | None:
        """The next records, at most `most`; None where none is left."""
        if await self.is_over():
            return None
        frames = self._rest.window(0, min(most, len(self._rest)))
        self._rest = self._rest.window(len(frames), len(self._rest))
        return frames

    async def take(self, count: int) -> AsyncIterator[Frames]:
        """The next `count` records, or as many as there are."""
        while count > 0 and (frames := await self.block(count)) is not None:
            count -= len(frames)
            yield frames
