"""From names to shards: the listings that globs need, all at a time, taken in order; and the shards' sizes.

Rules:
- Names come in the order in which they were given; a glob's matches in its place, sorted. Which listing answers
  first changes nothing.
- What precedes a glob that is not answered yet is known already: reading may begin with it.
- An object that has the very name wins over the names that its braces and wildcards stand for: every name that a
  listing gives can be read. Where names are patterns (`list_files`), the objects that a pattern matches win, as in
  TensorFlow.
- A name that ends in `.json` or `.index` is a manifest or an index, as for the commands: its shards are in its place.
- A glob that fails, or matches nothing, is an error in its place: what precedes it is read first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Unpack

import anyio
from anyio.abc import TaskGroup

from streamrec import bridge, shards
from streamrec.display import logger
from streamrec.errors import (
    NotFoundError,
    PermissionDeniedError,
    PositionMismatchError,
    UnsupportedOperationError,
)
from streamrec.shards.assignment import Portion, ShardSize, assign_bytes
from streamrec.shards.options import Expected
from streamrec.shards.patterns import (
    Filenames,
    expand_braces,
    has_braces,
    is_glob,
    is_web,
    is_web_glob,
    to_names,
)
from streamrec.storage import Glob, ObjectInfo, Storages, StoreOptions, check_keywords, locate, split_chain
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import DETECT_BYTES, check_compression_type, detect_compression

__all__ = [
    "Listing",
    "assign_shards",
    "expand_name",
    "find_shards",
    "list_shards",
    "matching_files",
    "sizes_of",
]

MANIFESTS: Final = (".json", ".index")
"""How the names of manifests and indexes end."""

PARALLEL: Final = 8
"""Listings under way at the same time."""

PARALLEL_REQUESTS: Final = 16
"""Other requests under way at the same time."""

FEW_SHARDS: Final = 64
"""Up to this number, the store is asked for each shard. Not tuned."""


async def find_shards(storages: Storages, filenames: Filenames, *, patterns: bool = False) -> list[str]:
    """The shards' URLs: braces expanded, globs answered, each glob's matches sorted by name."""
    return (await list_shards(storages, filenames, patterns=patterns)).paths


async def list_shards(storages: Storages, filenames: Filenames, *, patterns: bool = False) -> Listing:
    """The complete listing of what names mean.

    Args:
        storages: Where globs are answered.
        filenames: Names, braces and globs.
        patterns: Whether all names are patterns; see `Listing`.

    Raises:
        NotFoundError: A glob matches nothing, or no name was given.
        StorageError: A directory cannot be listed, or the store failed.
    """
    listing = Listing(storages, filenames, patterns=patterns)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        while not listing.complete:
            await listing.until(len(listing.paths) + 1)
    if listing.error is not None:
        raise listing.error
    return listing


class Found(NamedTuple):
    """All shards that names mean, and what the listing says of those that a glob found."""

    paths: tuple[str, ...]
    known: Mapping[str, ObjectInfo]


class Listing:
    """The shards that names mean, as far as they are known.

    Args:
        storages: Where globs are answered.
        filenames: Names, braces and globs.
        found: What an earlier listing of the same names found; None to look.
        keep: Called with what was found, when that is all.
        patterns: Whether all names are patterns: an object that has the very name is found where the pattern matches no
            other, and a pattern for a web server is an error.

    Attributes:
        paths: The shards' URLs so far; they only grow.
        complete: Whether there will be no more of them.
        error: What ended them, or None. It comes after them.
        known: What the store's listing says of those that a glob found.
        labels: What errors call each: its URL.
    """

    def __init__(
        self,
        storages: Storages,
        filenames: Filenames,
        found: Found | None = None,
        keep: Callable[[Found], None] | None = None,
        *,
        patterns: bool = False,
    ) -> None:
        self.paths: list[str] = [] if found is None else list(found.paths)
        self.labels: Sequence[str] = self.paths
        self.complete = found is not None
        self.error: Exception | None = None
        self.known: dict[str, ObjectInfo] = {} if found is None else dict(found.known)
        self._storages = storages
        self._keep = keep
        self._with: list[Any] = []
        self._patterns = patterns
        names = to_names(filenames)
        self._alone = len(names) == 1
        self._parts = list(parts_of(names, patterns)) if found is None else []

    async def run(self) -> None:
        """Answers the globs. Raises nothing: what goes wrong waits for its place."""
        limiter = anyio.CapacityLimiter(PARALLEL)
        async with anyio.create_task_group() as tasks:
            self._ask(self._parts, tasks, limiter)

    async def until(self, count: int) -> None:
        """Waits until that many shards are known, or all of them."""
        while len(self.paths) < count and not self.complete:
            if self._parts:
                part = self._parts[0]
                await part.answered.wait()
                if self._parts[:1] == [part]:  # no other task that waits has taken it
                    self._parts[:1] = part.expanded
                    self.paths += part.paths
                    self.error = part.error
                    self.complete = part.error is not None
            if not self._parts and not self.complete:
                self.complete = True
                if self.paths and self._keep is not None:
                    self._keep(Found(tuple(self.paths), self.known))
                if not self.paths:
                    self.error = NotFoundError("no file name was given: pass at least one, or a pattern that matches")

    def portion(self, number: int) -> Portion:
        """What is read of a shard: all of it, as it was listed."""
        path = self.paths[number]
        info = self.known.get(path)
        return Portion(path, expected=None if info is None else Expected(info.size, info.version))

    @property
    def whose(self) -> list[Any]:
        """What states hold of it: how many shards are known, whether that is all, and a digest of what is known."""
        count = len(self.paths)
        if self._with[:2] != [count, self.complete]:
            self._with = self._first(count)
        return self._with

    async def check_whose(self, whose: Sequence[Any]) -> None:
        """Refuses a state that was saved when other shards were listed."""
        count, complete, _ = whose
        await self.until(count + 1 if complete else count)
        if self._first(count) != whose:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other sizes or versions: "
                "resume with the same shards, or start over without the state"
            )

    def _first(self, count: int) -> list[Any]:
        """What states hold of the first shards: a digest of their names, sizes and versions."""
        told = [
            (path, info.size, info.version) if (info := self.known.get(path)) else path for path in self.paths[:count]
        ]
        complete = self.complete and count == len(self.paths)
        return [count, complete, blake2b(ascii(told).encode(), digest_size=8).hexdigest()]

    def _ask(self, parts: Iterable[Part], tasks: TaskGroup, limiter: anyio.CapacityLimiter) -> None:
        for part in parts:
            if part.pattern is not None:
                tasks.start_soon(self._answer, part, part.pattern, tasks, limiter)

    async def _answer(self, part: Part, pattern: str, tasks: TaskGroup, limiter: anyio.CapacityLimiter) -> None:
        try:
            async with limiter:
                if not has_braces(pattern):
                    if is_manifest(pattern) and not self._patterns:
                        found = await shards_in(self._storages, pattern)
                    else:
                        found = await matches(self._storages, pattern, self._patterns, self._alone)
                    part.paths = [info.path for info in found]
                    self.known.update((info.path, info) for info in found)
                elif (names := await expand_name(self._storages, pattern)) == [pattern]:
                    part.paths = names
                else:
                    part.expanded = list(parts_of(names, self._patterns))
                    self._ask(part.expanded, tasks, limiter)
        except Exception as error:
            part.error = error
        part.answered.set()


@dataclass(eq=False)
class Part:
    """A name with braces or wildcards, or a row of names without."""

    pattern: str | None
    paths: list[str] = field(default_factory=list)
    expanded: list[Part] = field(default_factory=list)
    error: Exception | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


def parts_of(names: Iterable[str], patterns: bool) -> Iterator[Part]:
    """The parts of a list of names: each pattern by itself, the names between two patterns together."""

    def is_pattern(name: str) -> bool:
        return has_braces(name) or is_glob(name) or is_web_glob(name) or (is_manifest(name) and not patterns)

    for asked, group in groupby(names, is_pattern):
        if asked:
            yield from map(Part, group)
        else:
            part = Part(None, list(group))
            part.answered.set()
            yield part


async def expand_name(storages: Storages, name: str) -> list[str]:
    """What the braces of a name stand for; or the name itself, where an object has it.

    Web servers are not asked, because a URL has no braces of its own; nor is a store where braces are in the bucket.

    Raises:
        StorageError: The store failed, and retrying did not help.
    """
    scheme, colon, rest = split_chain(name).url.partition("://")
    bucket = scheme + rest.partition("/")[0] if colon and "/" not in scheme else ""
    if has_braces(name) and not is_web(name) and "{" not in bucket:
        with suppress(NotFoundError, PermissionDeniedError):  # a store that refuses listing does not say what exists
            await (await storages.at(name)).stat(name)
            return [name]
    return list(expand_braces(name))


def is_manifest(name: str) -> bool:
    """Whether a name is that of a manifest or an index, and no pattern."""
    url = split_chain(name).url
    return (url.partition("?")[0] if is_web(name) else url).endswith(MANIFESTS) and not is_glob(name)


async def shards_in(storages: Storages, name: str) -> list[ObjectInfo]:
    """The shards that a manifest or an index names, with the sizes and versions that it says."""
    manifest = (await shards.read_manifest(await storages.at(name), name)).follow()
    return [ObjectInfo(shard.path, shard.bytes, shard.version) for shard in manifest.shards]


async def matches(storages: Storages, name: str, patterns: bool, alone: bool) -> list[ObjectInfo]:
    """What a glob matches, sorted by name; or the object of that very name.

    `alone` says that it is the only name that was given, so that it may have been meant as a pattern.
    """
    storage = await storages.at(name)
    if is_web_glob(name):
        with suppress(NotFoundError):
            if not patterns:  # a URL may have the character
                return [await storage.stat(name)]
        raise UnsupportedOperationError(
            "a web server cannot be asked which files a pattern matches: give the names, braces such as "
            "train-{00000..00127}.tfrecord, or the URL of a manifest",
            name,
        )
    glob = Glob(name)
    found = [info async for info in storage.list(glob.prefix, glob)]
    if not found:
        raise NotFoundError("no object matches this pattern: check the bucket, the name and the wildcards", name)
    exact = [info for info in found if info.path == name]
    others = [info for info in found if glob.matches(info.path)]
    left_out = sum(info.path != name for info in others)
    if exact and left_out and not patterns:
        words = "%s: an object has this very name, so it alone is read; as a pattern it would match %d more"
        logger.log(logging.WARNING if alone else logging.DEBUG, words, name, left_out)
    return sorted(others or exact if patterns else exact or others, key=attrgetter("path"))


def matching_files(
    pattern: Filenames,
    **store: Unpack[StoreOptions],
) -> list[str]:
    """The names that patterns match, in their order, each one's sorted; none where nothing matches.

    `tf.io.matching_files`, on any store, for files: directories are left out. `Dataset.list_files` gives the same names
    as a Dataset, and each of them is read as it is, whatever characters it has.

    Args:
        pattern: A URL or path with a glob or braces, or a list of them. A name that is not a glob is not looked up.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Raises:
        PermissionDeniedError: A directory that the pattern can match, or the bucket, must not be listed.
        UnsupportedOperationError: It is a pattern for a web server, which cannot be listed.
        StorageError: The store failed, and retrying did not help.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/names/a": b"", "/names/b": b""})
        >>> matching_files("memory://names/*"), matching_files("memory://names/c*")
        (['memory://names/a', 'memory://names/b'], [])
    """
    check_keywords("matching_files", store)
    find, filesystem = partial(_match, **store), store.get("filesystem")
    return [path for name in to_names(pattern) for path in bridge.run(find, locate(name, filesystem))]


async def _match(name: str, **store: Unpack[StoreOptions]) -> list[str]:
    async with Storages(**store) as storages:
        try:
            return await find_shards(storages, name, patterns=True)
        except NotFoundError:
            return []


async def sizes_of(
    storages: Storages, paths: Sequence[str], known: Mapping[str, ObjectInfo], readers: int | None = None
) -> list[ShardSize]:
    """The sizes of shards; the store is asked for those that are not known.

    The sizes of many shards come from listings of their directories. Where these cannot be listed, or hold much else,
    the store is asked for each; or, with many shards for each reader, all count as equally large.

    If the store gives no size before the end of an object, the shard has size 0 and cannot be cut.

    Args:
        storages: Where they are stored.
        paths: Their URLs.
        known: What is known of them, by their URLs.
        readers: How many readers they are assigned to; None where all sizes are wanted.

    Raises:
        StorageError: A size cannot be had.
    """
    found = dict(known)

    async def stat(path: str) -> None:
        found[path] = await (await storages.at(path)).stat(path)

    unknown = sorted({path for path in paths if path not in found or found[path].size is None})
    if len(unknown) > FEW_SHARDS:
        found |= await list_sizes(storages, unknown)
        unknown = [path for path in unknown if path not in found]
        if len(unknown) > FEW_SHARDS and readers is not None and len(paths) >= 16 * readers:
            listed = {path: Expected(info.size, info.version) for path, info in found.items()}
            return [ShardSize(path, 1, False, listed.get(path, Expected(None))) for path in paths]
    await for_each(stat, unknown, PARALLEL_REQUESTS)
    return [
        ShardSize(path, info.size or 0, info.size is not None, Expected(info.size, info.version))
        for path, info in ((path, found[path]) for path in paths)
    ]


async def list_sizes(storages: Storages, paths: Iterable[str]) -> dict[str, ObjectInfo]:
    """What listings of their directories say of shards; nothing of those whose directory cannot be listed cheaply."""
    found: dict[str, ObjectInfo] = {}
    directories: dict[str, list[str]] = {}
    for path in paths:
        if "::" not in path:  # a chain of filesystems
            directories.setdefault(path[: path.rfind("/") + 1], []).append(path)

    async def look(names: list[str]) -> None:
        prefix, wanted = os.path.commonprefix(names), set(names)  # noqa: RUF071  keys, not directories
        storage = await storages.at(prefix)
        with suppress(UnsupportedOperationError, PermissionDeniedError, NotFoundError):
            async for info in storage.list(prefix, most=3 * len(names)):
                if info.path in wanted and info.size is not None:
                    found[info.path] = info

    many = [names for names in directories.values() if len(names) > 8]  # else a listing costs more than it saves
    await for_each(look, many, PARALLEL_REQUESTS)
    return found


async def assign_shards(
    storages: Storages, shards: Sequence[ShardSize], readers: int, compression_type: str | None
) -> list[list[Portion]]:
    """`assign_bytes`, where it is not known yet which shards are compressed.

    Only shards that would be cut are looked at, and of many of them a sample. Where some are compressed, all shards are
    looked at; where all of a sample are, all shards count as compressed. So every reader comes to the same plan.

    Raises:
        StorageError: A shard cannot be read.
    """
    named = check_compression_type(compression_type)
    plan = assign_bytes([replace(shard, splittable=shard.splittable and not named) for shard in shards], readers)
    if named is not None:
        return plan
    cut = sorted({portion.path for own in plan for portion in own if portion.piece is not None})
    sample = set(cut[:: len(cut) // FEW_SHARDS + 1])
    found = await find_compressed(storages, sample)
    if not found:
        return plan
    if len(shards) > FEW_SHARDS and found == sample:
        return assign_bytes([replace(shard, splittable=False) for shard in shards], readers)
    found |= await find_compressed(storages, {shard.path for shard in shards} - sample)
    whole = [replace(shard, splittable=shard.splittable and shard.path not in found) for shard in shards]
    return assign_bytes(whole, readers)


async def find_compressed(storages: Storages, paths: Iterable[str]) -> set[str]:
    """Those shards that are compressed."""
    found = set()

    async def look(path: str) -> None:
        storage = await storages.at(path)
        if detect_compression(await storage.read_range(path, 0, DETECT_BYTES)):
            found.add(path)

    await for_each(look, sorted(paths), PARALLEL_REQUESTS)
    return found
