"""Writes new shards, manifests and pages.

A command replaces an object only with `--overwrite`, and never one that it reads. The library makes
a shard appear complete or not at all. A command writes all its shards as one `Replacement`: if the
run fails or is interrupted, its finished shards are removed, and old ones stay until all new ones
are complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import anyio
import click

from streamrec import Frames, NotFoundError, RetryPolicy, ShardWriter, StorageError
from streamrec.cli.library import (
    AlreadyExistsError,
    Identity,
    Manifest,
    ManifestError,
    PermissionDeniedError,
    Replacement,
    ShardInfo,
    Storages,
    display_name,
    fill_total,
    is_below,
    is_numbered,
    is_shard_of,
    is_url,
    list_numbered,
    location_of,
    read_manifest,
    shard_path,
)
from streamrec.cli.options import DRY_RUN, Overwrite
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
    """A list of URLs whose objects are removed when the block ends.

    Add each URL before its object is written, so that no object is left after Ctrl-C.
    """
    paths: list[str] = []
    try:
        yield paths
    finally:
        await remove_all(paths, storage_options)


async def remove_all(paths: list[str], storage_options: Mapping[str, Any]) -> None:
    """Removes objects and empties the list.

    An object that cannot be removed is named on standard error.
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
    """The compression of an object: `wanted` if it is given, else that of its name's ending.

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
    """Checks that no object exists at these paths.

    Raises:
        AlreadyExistsError: One does; the message proposes `otherwise`.
    """
    for path in paths:
        storage = await storages.at(path)
        try:
            await storage.stat(path)
        except NotFoundError:
            continue
        raise AlreadyExistsError(f"it already exists: choose another name, or {otherwise}", path)


async def refuse_sources(
    storages: Storages, sources: Iterable[str], target_storages: Storages, targets: Sequence[str]
) -> frozenset[Identity]:
    """Checks that no target is an object that is read, however the names are spelled.

    `{shard}` in a target stands for any number.

    Returns:
        The identities of the sources, which a Replacement must spare.

    Raises:
        click.UsageError: A source would be overwritten.
    """
    paths = list(sources)
    # A local file has two identities: its path without links, and its device and inode.
    read = {
        identity: path
        for path, identities in zip(paths, await storages.identities(paths), strict=True)
        for identity in identities
    }
    target_identities = await target_storages.identities(targets)
    for target, identities in zip(targets, target_identities, strict=True):
        overwritten = [read[identity] for identity in identities if identity in read]
        if is_numbered(target):
            overwritten += [
                path
                for identity, path in read.items()
                if any(is_one_of(identity, pattern) for pattern in identities)
            ]
        if overwritten:
            raise click.UsageError(
                f"{overwritten[0]} is read, and would be overwritten: choose another name for "
                f"{target}"
            )
    return frozenset(read)


def is_one_of(identity: Identity, pattern: Identity) -> bool:
    """Whether an object is the one of a pattern, or could be one of its shards."""
    *place, name = identity
    *pattern_place, pattern_name = pattern
    # A local file is also known by device and inode, which are numbers and have no pattern.
    if not isinstance(name, str) or not isinstance(pattern_name, str):
        return identity == pattern
    return place == pattern_place and is_shard_of(name, pattern_name)


def inputs(sources: Iterable[str], found: Iterable[Item]) -> list[str]:
    """The paths of all objects that are read: shards, and the manifests that were typed."""
    return [item.path for item in found] + [name for name in sources if name.endswith(MANIFESTS)]


def copy_paths(paths: Sequence[str], target: str, option: str) -> list[str]:
    """The URLs of the copies of shards.

    In a directory, the copies have the same paths relative to each other as the shards.

    Args:
        paths: The shards.
        target: A directory, or the URL of the only copy.
        option: The name of the option or argument that `target` comes from, for errors.

    Raises:
        click.UsageError: Two copies would have the same name, or a copy would be outside `target`.
    """
    if target.endswith("/") or directory_of(target):
        common = os.path.commonprefix([path[: path.rfind("/") + 1] for path in paths])  # noqa: RUF071 - URLs, cut below
        above = common[: common.rfind("/") + 1]
        names = [path.removeprefix(above) for path in paths]
        # Shards of different stores share no directory; a name with `..` could lead out of it.
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
    """With `--dry-run`, prints what the command would read and write, and ends the command.

    Call it after all checks: a dry run fails for the same reasons as the run itself.
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
    """Checks that no object exists that a reader would take for a shard of `pattern`.

    Raises:
        AlreadyExistsError: One exists.
    """
    if not is_numbered(pattern):
        await refuse_existing(storages, [pattern])
    async for info in list_numbered(storages, pattern):
        raise AlreadyExistsError(
            "it already exists: choose another name, or add --overwrite", info.path
        )


async def write_text(
    url: str, text: str, read: Iterable[str], storage_options: Mapping[str, Any]
) -> None:
    """Writes text to any URL, as UTF-8, over what is there.

    Raises:
        click.UsageError: An object that was read, one of `read`, would be overwritten.
    """
    async with Storages(storage_options) as storages:
        await refuse_sources(storages, read, storages, [url])
        async with await (await storages.at(url)).upload(url) as upload:
            await upload.write(text.encode())


LOOKED_AT: Final = 1000
"""How many shards of a target are compared with the sources: a link may lead to a source."""

ASKED_FOR: Final = 8
"""For how many shards of an old manifest the store is asked whether they exist. Not tuned."""

SHARD_BYTES: Final = 200_000_000
"""The approximate size of shards if no option gives it."""

FIELD: Final = re.compile(r"\{[A-Za-z_]\w*(:[^{}]*)?\}")
"""Matches a misspelt `{shard}`. Other braces belong to the name."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where and how records are written.

    Attributes:
        pattern: A URL; with `{shard}` for the number of a shard if there may be several.
        compression: "", "GZIP", "ZLIB" or "ZSTD".
        storage_options: The options of the store.
    """

    pattern: str
    compression: str
    storage_options: Mapping[str, Any]

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards, which the pattern numbers."""
        return is_numbered(self.pattern)

    @property
    def manifest(self) -> str:
        """The URL of the manifest if no option gives it."""
        if self.numbered:
            return self.pattern[: self.pattern.rfind("/") + 1] + "manifest.json"
        return f"{self.pattern}.manifest.json"


def pattern_of(name: str, compression: str, shards: int | None) -> str:
    """The pattern of the shards for a TARGET.

    For a directory it has names of its own. `{shards}` is replaced by the number of shards.

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
    """Checks that a pattern has a number, so that it can name several shards."""
    if not is_numbered(pattern):
        raise click.UsageError(
            f"several shards need a number in their name: write {pattern}-{{shard:05d}}, or "
            f"{pattern}/"
        )


async def check_target(
    storages: Storages,
    sources: Iterable[str],
    found: Sequence[Item],
    target_storages: Storages,
    target: Target,
    *,
    manifest: str | None,
    overwrite: Overwrite,
) -> frozenset[Identity]:
    """Checks that a command may write to its target; with `--dry-run` it ends the command.

    Args:
        storages: The stores of the sources.
        sources: The names that were typed.
        found: All objects that are read, but for the manifests among `sources`.
        target_storages: The stores of the target.
        target: Where the shards go.
        manifest: Where the manifest goes; None if none is written.
        overwrite: Whether objects that exist may be replaced.

    Returns:
        The identities of the sources, which a Replacement must spare.

    Raises:
        click.UsageError: A source or a shard would be overwritten.
        AlreadyExistsError: An object exists, and `overwrite` is False.
    """
    manifests = [] if manifest is None else [manifest]
    # The pattern itself compares names. Single names find links, which only the store resolves.
    numbers = range(min(len(found) + 1, LOOKED_AT)) if target.numbered else ()
    names = (shard_path(target.pattern, number) for number in numbers)
    targets = [target.pattern, *manifests, *names]
    spared = await refuse_sources(storages, inputs(sources, found), target_storages, targets)
    if manifest is not None and await is_shard(target_storages, manifest, target.pattern):
        raise click.UsageError(
            f"{manifest} would overwrite a shard: choose another name for the manifest"
        )
    if not overwrite:
        await refuse_matching(target_storages, target.pattern)
        await refuse_existing(target_storages, manifests)
    elif manifest is not None:
        # What this client may not read is refused when its upload begins.
        with suppress(PermissionDeniedError):
            await check_described(target_storages, manifest, target)
    end_dry_run(found, [target.pattern, *manifests])
    return spared


async def is_shard(storages: Storages, path: str, pattern: str) -> bool:
    """Whether a path, however it is spelled, names one of the shards of a pattern."""
    shards, identities = await storages.identities([pattern, path])
    return any(is_one_of(identity, shard) for identity in identities for shard in shards)


def open_set(
    storages: Storages, overwrite: Overwrite, spared: Collection[Identity] = ()
) -> Replacement:
    """Returns the set of objects that a command writes: all of them, or none."""
    return Replacement(
        storages,
        stages=bool(overwrite),
        creates=not overwrite,
        keeps=False,
        unsecured=overwrite == "unsecured",
        spared=spared,
    )


async def check_described(storages: Storages, manifest: str, target: Target) -> None:
    """Checks whether a manifest that is replaced describes other shards, which stay.

    If the manifest's name was typed, a note says so.

    Raises:
        click.UsageError: The manifest's name was not typed.
    """
    try:
        old = (await read_manifest(await storages.at(manifest), manifest)).follow()
    except (NotFoundError, ManifestError):  # none is there; or it is not one of ours
        return
    others = [shard.path for shard in old.shards if not is_shard_of(shard.path, target.pattern)]
    present = [path for path in others[:ASKED_FOR] if not await is_absent(storages, path)]
    if not present:
        return
    described = (
        f"{display_name(manifest)} describes {plural(len(others), 'other shard')} that would stay, "
        f"such as {display_name(present[0])}"
    )
    if manifest == target.manifest:
        raise click.UsageError(
            f"{described}: write into another directory, or (reshard) give the new manifest a "
            "name with --manifest"
        )
    print_note(f"{described}, and is replaced")


async def tell_leftovers(
    storages: Storages, target: Target, written: Sequence[ShardInfo], objects: Replacement
) -> None:
    """Prints how many shards of an earlier run are replaced, and which stay next to the new ones.

    A reader of the pattern would read those, too. Call it before the new shards are put in place.
    """
    new = {shard.path for shard in written}
    found: set[str] = set()
    with suppress(StorageError):  # this client may not list
        found = {info.path async for info in list_numbered(storages, target.pattern)}
    print_leftovers(len(found & new & objects.staged), sorted(found - new))


def print_leftovers(replaced: int, left: Sequence[str]) -> None:
    """Prints notes: how many files are replaced, and which stay next to the new ones."""
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
    """Writes shards of at most about `nbytes` bytes and `count` records; None for no limit.

    Without a limit, a numbered target gets shards of about 200 MB, and another one a single shard.
    """
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
    """Writes `shards` shards whose numbers of records differ by at most one.

    Raises:
        ManifestError: There are not `total` records.
    """
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
    """Writes the manifest of new shards, with which `streamrec verify` compares them."""
    manifest = Manifest(url, target.pattern, target.compression, tuple(shards))  # type: ignore[arg-type]
    async with await objects.upload(url, describes=True) as upload:
        await upload.write(manifest.to_json())


class Feed:
    """Gives out records by number that arrive in blocks of any size."""

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
