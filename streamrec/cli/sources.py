"""From the names that were typed to objects in a store.

- A name that ends in `.json` is a manifest, one that ends in `.index` an index; both stand for
  their shards.
- A directory (a URL that ends in `/` or is a bucket, a local path that is one) stands for all
  objects below it. Where records are read, manifests, indexes and names that begin with `.` or `_`
  (as `_SUCCESS`) are left out; and so is text (`TEXT`), unless all is: a line says what. A
  `manifest.json` tells how many records those shards hold that have the size and version which it
  says. Of the others a warning tells.
- The names of shards tell of splits (`ints-train...`, `ints-test...`) and of missing shards
  (`-00005-of-00008`). Notes say so; `--split` takes one split of a directory or pattern.
- All else is what `TFRecordDataset` takes: a URL, a path, a glob, braces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click

from streamrec.cli.options import Sources
from streamrec.cli.output import plural, print_note
from streamrec.display import display_name
from streamrec.errors import ManifestError, NotFoundError, StorageError
from streamrec.shards import (
    Expected,
    Gap,
    expand_name,
    find_gaps,
    find_splits,
    list_shards,
    read_manifest,
    sizes_of,
)
from streamrec.storage import ObjectInfo, RetryPolicy, Storages, is_url

BUCKET = re.compile(r"(?!file:|local:|memory:|https?:)[a-z0-9+.-]+://[^/*?\[]+")
MANIFESTS = (".json", ".index")
"""How the names of manifests and indexes end."""

LOOKED_AT: Final = 16
"""How many shards of a set that was not named whole the store is asked for."""

NO_RECORDS = re.compile(r"(.*/)?([._][^/]*|[^/]*\.(json|idx|index|index\.part-[^/]*))", re.DOTALL)
SILENT = re.compile(
    r"(.*/)?([._][^/]*|[^/]*manifest\.json|[^/]*\.(idx|index|index\.part-[^/]*))", re.DOTALL
)
"""Names that a directory of shards has besides them; no line lists these."""

TEXT = re.compile(
    r".*\.(csv|html?|json|labels|log|md|pbtxt|proto|py|rst|subwords|tsv|txt|vocab|xml|ya?ml)|(.*/)?(LICENSE|README)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of text files.

TensorFlow Datasets has such files next to shards: labels and descriptions.
"""


@dataclass(frozen=True, slots=True)
class Item:
    """An object.

    Attributes:
        path: Its URL.
        size: Bytes as it is stored; None where the store does not say.
        records: How many records it holds, where a manifest says so.
        expected: What it is compared with when it is opened: what the listing or the manifest says
            of it.
        storage_options: With which it is opened.
    """

    path: str
    size: int | None
    records: int | None = None
    expected: Expected = field(default=Expected(size=None), compare=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @classmethod
    def from_listing(cls, info: ObjectInfo) -> Item:
        """An object as the store describes it."""
        return cls(info.path, info.size, expected=Expected.of(info))


def storages_for(storage_options: Mapping[str, Any], retry: RetryPolicy | None = None) -> Storages:
    """The stores that these options lead to."""
    try:
        return Storages(storage_options, retry=retry)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def find(storages: Storages, names: Sequence[str]) -> list[Item]:
    """All that the names stand for, in their order, with sizes.

    Manifests and hidden objects are objects here.
    """
    found: list[Item] = []
    for name in await expand_names(storages, names):
        directory = directory_of(name)
        found += (
            await find_below(storages, directory)
            if directory
            else (await find_matching(storages, name))[0]
        )
    return await add_sizes(storages, found)


async def find_records(
    storages: Storages,
    names: Sequence[str],
    shard_root: str | None = None,
    *,
    manifests: list[str] | None = None,
    gaps: list[Gap] | None = None,
    mixes: bool = True,
) -> list[Item]:
    """The shards that the names stand for.

    Manifests may name shards below `shard_root` besides their own directory; None: that of the
    `Sources`, which also say of which split the shards are taken.

    Args:
        manifests: Where it is a list, the manifests of directories are added to it; else a note
            tells of shards of which they say otherwise.
        gaps: Where it is a list, what is missing, as the names of the other shards tell, is added
            to it; else notes tell of it.
        mixes: Whether several splits of a directory may be taken together without `--split`. A note
            tells of them.
    """
    split = None
    if isinstance(names, Sources):
        shard_root, split = names.shard_root, names.split
    told: list[Gap] = []
    found: list[Item] = []
    typed: list[Item] = []
    for name in await expand_names(storages, names):
        directory = directory_of(name)
        if name.endswith(MANIFESTS):
            manifest = (await read_manifest(await storages.at(name), name)).follow(shard_root)
            its = [
                Item(
                    shard.path,
                    shard.bytes,
                    shard.records,
                    Expected(
                        size=shard.bytes,
                        version=shard.version,
                        records=shard.records,
                        manifest=name,
                    ),
                )
                for shard in manifest.shards
            ]
            if len(its) > 1:  # one may be the manifest of one of several writers
                told.extend(find_gaps(item.path for item in its))
        elif directory:
            its = await shards_below(storages, directory, manifests)
            its = take_split(its, name, split, mixes=mixes)
            told.extend(find_gaps(item.path for item in its))
        else:
            its, is_pattern = await find_matching(storages, name)
            if is_pattern:
                its = take_split(its, name, split, mixes=True)
                told.extend(find_gaps((item.path for item in its), name))
            else:
                typed += its
        found += its
    told.extend(await find_gaps_of_typed(storages, typed))
    if gaps is not None:
        gaps.extend(told)
    else:
        for gap in told:
            print_note(gap)
    return await add_sizes(storages, found)


def take_split(found: list[Item], name: str, split: str | None, *, mixes: bool) -> list[Item]:
    """The shards of one split of a directory or pattern.

    If no split was asked for, all shards, after a note that tells of several splits.

    A UsageError names the splits if the one that was asked for is not there; or, unless several
    may be mixed, if none was asked for.
    """
    splits = find_splits([item.path for item in found])
    if split is not None:
        selected = splits.select(split)
        if selected is None:
            raise click.UsageError(
                f"{name}: there is not one split {split!r} among these: {splits}: choose one of "
                "them with --split"
            )
        wanted = set(selected)
        return [item for item in found if item.path in wanted]
    if splits.several:
        advice = f"--split {splits.names[0]} takes one of them"
        if splits.certain and not mixes:
            raise click.UsageError(
                f"{name}: these shards are of several splits, {splits}: {advice}, and --split all "
                "all of them"
            )
        print_note(
            f"{display_name(name)}: these shards are of several splits, {splits}, and are taken "
            f"together: {advice}"
        )
    return found


async def find_gaps_of_typed(storages: Storages, typed: Sequence[Item]) -> list[Gap]:
    """The gaps in sets of which several shards were named one by one.

    A shell names them so for a pattern without quotes.

    Who names a part of a set on purpose misses nothing: so the store is asked for the other shards,
    if they are few.
    """
    gaps = []
    for gap in find_gaps(item.path for item in typed):
        there = sum(gap.totals.values())
        if len(gap.totals) > 1 or 1 < there > gap.missing:
            absent = [path for path in gap.examples[:LOOKED_AT] if await is_absent(storages, path)]
            if absent or len(gap.totals) > 1:
                gaps.append(replace(gap, missing=len(absent), examples=tuple(absent)))
    return gaps


async def is_absent(storages: Storages, path: str) -> bool:
    """Whether the store says that there is no such object."""
    try:
        await (await storages.at(path)).stat(path)
    except NotFoundError:
        return True
    except StorageError:
        return False
    return False


def directory_of(name: str) -> str | None:
    """The directory that a name stands for, with a slash at its end.

    None for an object or a pattern.

    Examples:
        >>> directory_of("s3://bucket"), directory_of("gs://bucket/a/"), directory_of("s3://bucket/a")
        ('s3://bucket/', 'gs://bucket/a/', None)
    """
    if BUCKET.fullmatch(name) or (not is_url(name) and os.path.isdir(name)):
        return name.rstrip("/") + "/"
    return name if name.endswith("/") else None


async def expand_names(storages: Storages, names: Sequence[str]) -> list[str]:
    return [name for pattern in names for name in await expand_name(storages, pattern)]


async def find_below(storages: Storages, directory: str) -> list[Item]:
    storage = await storages.at(directory)
    found = [Item.from_listing(info) async for info in storage.list(directory)]
    if not found:
        raise NotFoundError(
            "nothing is below this directory: check the bucket and the name", directory
        )
    return found


async def shards_below(
    storages: Storages, directory: str, manifests: list[str] | None
) -> list[Item]:
    """All shards below a directory, with the numbers of records that a manifest.json there has."""
    inside = await find_below(storages, directory)
    shards = {item.path: item for item in inside if not NO_RECORDS.fullmatch(item.path)}
    if not shards:
        raise NotFoundError(
            "this directory contains no shards: pass a file name or a pattern", directory
        )
    shards = {path: item for path, item in shards.items() if not TEXT.fullmatch(path)} or shards
    if others := [
        item.path for item in inside if item.path not in shards and not SILENT.fullmatch(item.path)
    ]:
        named = ", ".join(display_name(path.removeprefix(directory)) for path in others[:3])
        print_note(
            f"{display_name(directory)}: left out {plural(len(others), 'object')} whose names are "
            "not those of "
            f"shards: {named}{', ...' if len(others) > 3 else ''}"
        )
    for item in inside:
        if not item.path.endswith("/manifest.json"):
            continue
        try:
            manifest = (await read_manifest(await storages.at(item.path), item.path)).follow(None)
        except ManifestError:  # another program's, or it names shards elsewhere
            continue
        differing = []
        for shard in manifest.shards:
            known = shards.get(shard.path)
            versions = {shard.version, known and known.expected.version} - {
                None
            }  # stores and manifests need not say
            if known is None or known.size != shard.bytes or len(versions) > 1:
                differing.append(shard.path)
            else:
                shards[shard.path] = replace(known, records=shard.records)
        if manifests is not None:
            manifests.append(manifest.path)
        elif differing:
            name, first = display_name(manifest.path), display_name(differing[0])
            print_note(
                f"{name} says otherwise of {plural(len(differing), 'shard')}, the first of them "
                f"{first}: what the "
                f"directory holds is read; streamrec verify {name} tells more"
            )
    return list(shards.values())


async def find_matching(storages: Storages, name: str) -> tuple[list[Item], bool]:
    """What a pattern matches, and True; or the one object of this name, and False.

    The size and the existence of that object are not looked at.
    """
    listing = await list_shards(
        storages, [name], patterns=name.endswith(MANIFESTS)
    )  # not the shards of a manifest
    found = [
        Item.from_listing(listing.known.get(path, ObjectInfo(path, None, None)))
        for path in listing.paths
    ]
    return found, bool(listing.known)


async def add_sizes(storages: Storages, found: Sequence[Item]) -> list[Item]:
    """Asks for the sizes that are not known; an object that is not there is a NotFoundError."""
    known = {
        item.path: ObjectInfo(item.path, item.size, None) for item in found if item.size is not None
    }
    try:
        asked = await sizes_of(storages, [item.path for item in found], known)
    except NotFoundError as error:
        if error.path is None or not is_url(error.path):
            raise
        hint = f"{error.reason}; what lies in a directory is {error.path}/"
        raise NotFoundError(hint, error.path) from error
    options = storages.storage_options
    return [
        replace(item, storage_options=options)
        if item.size is not None
        else replace(
            item, size=shard.expected.size, expected=shard.expected, storage_options=options
        )
        for item, shard in zip(found, asked, strict=True)
    ]


async def check_present(storages: Storages, found: Sequence[Item]) -> None:
    """Asks the store for the shards whose number of records is taken from a manifest.

    This is a request for each.
    """
    known = [
        item for item in found if item.records is not None and item.expected.manifest is not None
    ]
    for item, shard in zip(
        known, await sizes_of(storages, [item.path for item in known], {}), strict=True
    ):
        item.expected.check(ObjectInfo(item.path, shard.expected.size, shard.expected.version))
