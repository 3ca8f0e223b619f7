"""From the names that were typed to objects in a store.

- A name that ends in `.json` is a manifest, one that ends in `.index` an index; both stand for
  their shards.
- A directory (a URL that ends in `/` or is a bucket, a local path that is one) stands for all
  objects below it. A command that reads records leaves out manifests, indexes and names that begin
  with `.` or `_` (such as `_SUCCESS`). It also leaves out text files (`TEXT`), unless the directory
  holds nothing else. A note lists what is left out.
- A `manifest.json` in a directory gives the number of records of each shard whose size and version
  still match it. A note names the first shard that does not match.
- The names of shards show which splits there are (`ints-train...`, `ints-test...`) and which shards
  are missing (`-00005-of-00008`). Notes say so; `--split` selects one split of a directory or
  pattern.
- A folder of TensorFlow Datasets says which shards and how many records there are, and `--split`
  takes its expressions, such as `train[:10%]` (`tfds_folders.py`).
- Any other name is what `TFRecordDataset` takes: a URL, a path, a glob, braces.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import click

from streamrec import NotFoundError, RetryPolicy, StorageError
from streamrec.cli.library import (
    Expected,
    Gap,
    Manifest,
    ManifestError,
    ObjectInfo,
    Portion,
    Storages,
    display_name,
    expand_name,
    find_gaps,
    find_splits,
    is_url,
    list_shards,
    read_manifest,
    sizes_of,
)
from streamrec.cli.options import Sources
from streamrec.cli.output import plural, print_note
from streamrec.cli.tfds_folders import class_names, open_folder, portions_of

BUCKET = re.compile(r"(?!file:|local:|memory:|https?:)[a-z0-9+.-]+://[^/*?\[]+")
MANIFESTS = (".json", ".index")
"""The endings of the names of manifests and indexes."""

LOOKED_AT: Final = 16
"""How many shards that were not named the store is asked for. Not tuned."""

NO_RECORDS = re.compile(r"(.*/)?([._][^/]*|[^/]*\.(json|idx|index|index\.part-[^/]*))", re.DOTALL)
SILENT = re.compile(
    r"(.*/)?([._][^/]*|[^/]*manifest\.json|[^/]*\.(idx|index|index\.part-[^/]*))", re.DOTALL
)
"""Names that are usual next to shards; no note lists them."""

TEXT = re.compile(
    r".*\.(csv|html?|json|labels|log|md|pbtxt|proto|py|rst|subwords|tsv|txt|vocab|xml|ya?ml)|(.*/)?(LICENSE|README)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of text files.

TensorFlow Datasets has such files next to shards: labels and descriptions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An object in a store.

    Attributes:
        path: Its URL.
        size: Its size in bytes as it is stored; None if the store does not say.
        records: The number of its records; None if no manifest says.
        expected: The size and version that the object must have when it is opened, as the listing
            or the manifest gives them.
        storage_options: The options of the store that it is opened with.
        first: The first record that is read; the others are those of a slice that is left out.
        last: One past the last record that is read; None for all.
        classes: The names of the classes of labels, by feature, as a folder of TensorFlow Datasets
            gives them.
    """

    path: str
    size: int | None
    records: int | None = None
    expected: Expected = field(default=Expected(size=None), compare=False)
    storage_options: Mapping[str, Any] = field(default_factory=dict, compare=False)
    first: int = 0
    last: int | None = None
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict, compare=False)

    @property
    def portion(self) -> Portion:
        """The records that are read."""
        return Portion(path=self.path, first=self.first, last=self.last, expected=self.expected)

    @classmethod
    def from_listing(cls, info: ObjectInfo) -> Item:
        """Makes an item of an object as the store describes it."""
        return cls(path=info.path, size=info.size, expected=Expected.of(info))


def storages_for(storage_options: Mapping[str, Any], retry: RetryPolicy | None = None) -> Storages:
    """The stores that these options open.

    Raises:
        click.UsageError: An option is wrong.
    """
    try:
        return Storages(storage_options, retry=retry)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


async def find(storages: Storages, names: Sequence[str]) -> list[Item]:
    """Finds all objects that the names stand for, with sizes, in the order of the names.

    Manifests and hidden objects count as objects here.
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
    slices: bool = False,
) -> list[Item]:
    """Finds the shards that the names stand for, with sizes.

    Manifests may name shards below `shard_root` besides their own directory. If `names` are
    `Sources`, these say which directory that is, and which split is read.

    Args:
        storages: The stores.
        names: What was typed.
        shard_root: See above; None for no other directory.
        manifests: A list that receives the manifests that are in directories. Without it, a note
            names a shard that differs from its manifest.
        gaps: A list that receives the missing shards, as the names of the others show them. Without
            it, notes name them.
        mixes: Whether several splits of a directory may be read together without `--split`. A note
            says so.
        slices: Whether an item may be a part of a shard, as `--split train[:10%]` makes it.
    """
    split = None
    if isinstance(names, Sources):
        shard_root = names.shard_root
        split = names.split
    missing: list[Gap] = []
    found: list[Item] = []
    typed: list[Item] = []
    for name in await expand_names(storages, names):
        directory = directory_of(name)
        if name.endswith(MANIFESTS):
            shards = await shards_of_manifest(storages, name, shard_root)
            # A manifest of one shard may be that of one of several writers.
            if len(shards) > 1:
                missing.extend(find_gaps(item.path for item in shards))
        elif directory:
            parts = await shards_of_folder(storages, directory, split, mixes=mixes)
            shards = parts or []
            if parts is None:
                shards = await shards_below(storages, directory, manifests)
                shards = take_split(shards, name, split, mixes=mixes)
                missing.extend(find_gaps(item.path for item in shards))
        else:
            shards, is_pattern = await find_matching(storages, name)
            if is_pattern:
                shards = take_split(shards, name, split, mixes=True)
                missing.extend(find_gaps((item.path for item in shards), name))
            else:
                typed += shards
        found += shards
    if not slices and any(not item.portion.is_all for item in found):
        raise click.UsageError(
            f"--split {split}: this command takes whole shards, and the slice ends within one: "
            "take a whole split, or shards, as in train[:2shard]"
        )
    missing.extend(await find_gaps_of_typed(storages, typed))
    if gaps is not None:
        gaps.extend(missing)
    else:
        for gap in missing:
            print_note(gap)
    return await add_sizes(storages, found)


async def shards_of_folder(
    storages: Storages, directory: str, split: str | None, *, mixes: bool
) -> list[Item] | None:
    """The shards of a folder of TensorFlow Datasets, or the parts of a slice.

    None if the directory is no such folder, or shards are missing and no split was asked for.
    """
    folder = await open_folder(storages, directory)
    portions = None if folder is None else portions_of(folder, split)
    if folder is None or portions is None:
        return None
    classes = class_names(folder)
    items = [
        Item(
            path=portion.path,
            size=portion.expected.size,
            records=(portion.last or portion.expected.records) - portion.first,
            expected=portion.expected,
            first=portion.first,
            last=portion.last,
            classes=classes,
        )
        for portion in portions
        if portion.expected is not None and portion.expected.records is not None
    ]
    return items if split is not None else take_split(items, directory, None, mixes=mixes)


async def shards_of_manifest(storages: Storages, name: str, shard_root: str | None) -> list[Item]:
    """The shards that a manifest or an index lists, each with its number of records."""
    manifest = (await read_manifest(await storages.at(name), name)).follow(shard_root)
    return [
        Item(
            path=shard.path,
            size=shard.bytes,
            records=shard.records,
            expected=Expected(
                size=shard.bytes, version=shard.version, records=shard.records, manifest=name
            ),
        )
        for shard in manifest.shards
    ]


def take_split(found: list[Item], name: str, split: str | None, *, mixes: bool) -> list[Item]:
    """Selects the shards of one split of a directory or pattern.

    Without `split` it returns all shards, and a note lists the splits if there are several.

    Raises:
        click.UsageError: `split` is not one of the splits; or there are several, none was asked
            for, and they must not be mixed. The message lists the splits.
    """
    splits = find_splits([item.path for item in found])
    if split is not None:
        selected = splits.select(split)
        if selected is None:
            raise click.UsageError(
                f"{name}: {split!r} does not name exactly one of its splits, which are {splits}: "
                "choose one of them with --split"
            )
        wanted = set(selected)
        return [item for item in found if item.path in wanted]
    if splits.several:
        advice = f"--split {splits.names[0]} reads one of them"
        # A command that writes would mix test data into training data for good.
        if splits.certain and not mixes:
            raise click.UsageError(
                f"{name}: these shards are of several splits, {splits}: {advice}, and --split all "
                "reads all of them"
            )
        print_note(
            f"{display_name(name)}: these shards are of several splits, {splits}, and are read "
            f"together: {advice}"
        )
    return found


async def find_gaps_of_typed(storages: Storages, typed: Sequence[Item]) -> list[Gap]:
    """Finds gaps in sets of which several shards were named one by one.

    The shell names them so for a pattern without quotes. A user who names some shards on purpose
    misses none: so the store is asked whether the other shards exist, if they are few.
    """
    gaps = []
    for gap in find_gaps(item.path for item in typed):
        named = sum(gap.totals.values())
        if len(gap.totals) > 1 or 1 < named > gap.missing:
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
    """The names without braces: `a-{0..2}` becomes three names. Globs stay as they are."""
    return [name for pattern in names for name in await expand_name(storages, pattern)]


async def find_below(storages: Storages, directory: str) -> list[Item]:
    """Lists all objects below a directory.

    Raises:
        NotFoundError: There are none.
    """
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
    """All shards below a directory, with the numbers of records that its manifests give.

    Raises:
        NotFoundError: There are no shards.
    """
    inside = await find_below(storages, directory)
    shards = {item.path: item for item in inside if not NO_RECORDS.fullmatch(item.path)}
    if not shards:
        raise NotFoundError(
            "this directory contains no shards: pass a file name or a pattern", directory
        )
    # A directory of nothing but such names may hold shards with unusual names.
    shards = {path: item for path, item in shards.items() if not TEXT.fullmatch(path)} or shards
    note_left_out(directory, [item.path for item in inside if item.path not in shards])
    for item in inside:
        if not item.path.endswith("/manifest.json"):
            continue
        try:
            manifest = (await read_manifest(await storages.at(item.path), item.path)).follow(None)
        except ManifestError:  # another program's, or it names shards elsewhere
            continue
        differing = add_counts(shards, manifest)
        if manifests is not None:
            manifests.append(manifest.path)
        elif differing:
            name = display_name(manifest.path)
            print_note(
                f"{plural(len(differing), 'shard')} differ{'s' if len(differing) == 1 else ''} "
                f"from {name}, the first of them {display_name(differing[0])}: the shards are read "
                f"as they are; streamrec verify {name} shows how they differ"
            )
    return list(shards.values())


def note_left_out(directory: str, paths: Sequence[str]) -> None:
    """Prints a note that lists objects of a directory which are not read as shards."""
    others = [path for path in paths if not SILENT.fullmatch(path)]
    if not others:
        return
    named = ", ".join(display_name(path.removeprefix(directory)) for path in others[:3])
    print_note(
        f"{display_name(directory)}: left out {plural(len(others), 'object')} whose names are not "
        f"those of shards: {named}{', ...' if len(others) > 3 else ''}"
    )


def add_counts(shards: dict[str, Item], manifest: Manifest) -> list[str]:
    """Adds the numbers of records that a manifest gives to the shards that match it.

    Returns:
        The paths of the manifest's shards that are missing, or have another size or version.
    """
    differing = []
    for shard in manifest.shards:
        known = shards.get(shard.path)
        # Neither a store nor a manifest must give a version: two that are given must agree.
        versions = {shard.version, known and known.expected.version} - {None}
        if known is None or known.size != shard.bytes or len(versions) > 1:
            differing.append(shard.path)
        else:
            shards[shard.path] = replace(known, records=shard.records)
    return differing


async def find_matching(storages: Storages, name: str) -> tuple[list[Item], bool]:
    """The objects that match a pattern, and True; or the one object of this name, and False.

    It does not ask whether that one object exists.
    """
    # A name of a manifest is a pattern here, too: else the listing would have its shards.
    listing = await list_shards(storages, [name], patterns=name.endswith(MANIFESTS))
    found = [
        Item.from_listing(listing.known.get(path, ObjectInfo(path, None, None)))
        for path in listing.paths
    ]
    return found, bool(listing.known)


async def add_sizes(storages: Storages, found: Sequence[Item]) -> list[Item]:
    """Asks the stores for the sizes that are not known.

    Raises:
        NotFoundError: An object does not exist.
    """
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
    """Checks that the shards whose counts come from a manifest exist and still match it.

    This is one request for each of them.
    """
    known = [
        item for item in found if item.records is not None and item.expected.manifest is not None
    ]
    for item, shard in zip(
        known, await sizes_of(storages, [item.path for item in known], {}), strict=True
    ):
        item.expected.check(ObjectInfo(item.path, shard.expected.size, shard.expected.version))
