"""From names to shards: the listings that globs need, and the shards' sizes.

Listings run at the same time; the results are in order.

Rules:
- Names come in the caller's order, with a glob's matches, sorted, in its place. The order in which
  listings end does not matter.
- The names before an unfinished listing are known already: reading may begin with them.
- An object with exactly the given name wins over the names that its braces, wildcards and `@8`
  stand for, so that every listed name can be read. If names are patterns (`list_files`), the
  objects that a pattern matches win, as in TensorFlow.
- What the names of a glob's matches or of a manifest's shards tell (`numbered_names.py`) is
  compared with what was found: a missing shard, and splits that are mixed, are warned of, once.
- A name that ends in `.json` or `.index` is a manifest or an index, as for the commands: its shards
  take its place.
- A glob that fails, or matches nothing, is an error in its place: the shards before it are read
  first.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, Unpack

import anyio

from streamrec import bridge, shards
from streamrec.arguments import describe_value
from streamrec.display import logger, warn_once
from streamrec.errors import (
    NotFoundError,
    PermissionDeniedError,
    PositionMismatchError,
    UnsupportedOperationError,
)
from streamrec.shards.assignment import ShardSize, assign_bytes
from streamrec.shards.options import Expected, Portion
from streamrec.shards.patterns import (
    expand_braces,
    expand_sharded,
    has_braces,
    is_glob,
    is_sharded,
    is_web,
    is_web_glob,
)
from streamrec.storage import (
    Glob,
    ObjectInfo,
    Storages,
    StoreOptions,
    check_keywords,
    locate,
    split_chain,
)
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import DETECT_BYTES, check_compression_type, detect_compression
from streamrec.tracebacks import border

Name = str | bytes | os.PathLike[str]
Filenames = Name | Iterable[Name]

MANIFESTS: Final = (".json", ".index")
"""The endings of the names of manifests and indexes."""

SPECIAL: Final = re.compile(r"[*?\[{]|@[0-9]|\.json|\.index")
"""What every pattern holds, and every name of a manifest or an index."""

PARALLEL: Final = 8
"""Listings that run at the same time."""

PARALLEL_REQUESTS: Final = 16
"""Other requests that run at the same time."""

FEW_SHARDS: Final = 64
"""Up to this number, the store is asked for each shard. Not tuned."""


def to_names(filenames: Filenames) -> list[str]:
    """The caller's names as strings, in order, with their braces and globs.

    A name may be bytes, as the elements of `Dataset.list_files` are; another type is a TypeError.
    """
    names: list[Any] = [filenames]
    if isinstance(filenames, Iterable) and not isinstance(filenames, str | bytes):
        names = list(filenames)
    for name in names:
        if not isinstance(name, str | bytes | os.PathLike):
            raise TypeError(
                f"a file name is {describe_value(name)}: give a URL or path, a pattern, or a list "
                "of them"
            )
        if not name:
            raise ValueError("a file name is '': give a URL or path, a pattern, or a list of them")
    return [os.fsdecode(name) for name in names]


async def find_shards(
    storages: Storages, filenames: Filenames, *, patterns: bool = False
) -> list[str]:
    """The shards' URLs: braces expanded, globs answered, each glob's matches sorted by name."""
    return (await list_shards(storages, filenames, patterns=patterns)).paths


async def list_shards(
    storages: Storages, filenames: Filenames, *, patterns: bool = False
) -> Listing:
    """The complete listing of names; see `Listing`.

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
    """All shards of a listing, and the listed objects of those that a glob matched."""

    paths: tuple[str, ...]
    known: Mapping[str, ObjectInfo]


class Listing:
    """The shards of some names, which become known while listings run.

    Args:
        found: The result of an earlier listing of the same names; None to list.
        keep: Called with the complete result.
        patterns: Whether all names are patterns: an object with exactly the name counts only if the
            pattern matches no other, and a pattern for a web server is an error.

    Attributes:
        paths: The shards' URLs so far; the list only grows.
        complete: Whether there will be no more of them.
        error: The error after these shards, or None.
        known: The listed objects that a glob matched, by URL.
        labels: The name of each shard in errors: its URL.
        asks: Whether `run` has anything to list.
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
        self._fingerprint: list[Any] = []
        self._patterns = patterns
        self._limiter = anyio.CapacityLimiter(PARALLEL)
        names = to_names(filenames)
        self._alone = len(names) == 1
        self._parts = list(parts_of(names, patterns)) if found is None else []
        self.asks = any(part.pattern is not None for part in self._parts)

    async def run(self, parts: Iterable[Part] | None = None) -> None:
        """Runs the listings of some parts, by default of all.

        It raises nothing: an error waits for its place.
        """
        async with anyio.create_task_group() as tasks:
            for part in self._parts if parts is None else parts:
                if part.pattern is not None:
                    tasks.start_soon(self._answer, part, part.pattern)

    async def until(self, count: int) -> None:
        """Waits until that many shards are known, or all of them."""
        while len(self.paths) < count and not self.complete:
            if self._parts:
                part = self._parts[0]
                await part.answered.wait()
                if self._parts[:1] == [part]:  # no other waiting task has taken it
                    self._parts[:1] = part.expanded
                    self.paths += part.paths
                    self.error = part.error
                    self.complete = part.error is not None
            if not self._parts and not self.complete:
                self.complete = True
                if self.paths and self._keep is not None:
                    self._keep(Found(tuple(self.paths), self.known))
                if not self.paths:
                    self.error = NotFoundError(
                        "no file name was given: pass at least one, or a pattern that matches"
                    )

    def portion(self, number: int) -> Portion:
        """The whole shard, which must be as it was listed."""
        path = self.paths[number]
        info = self.known.get(path)
        return Portion(path=path, expected=None if info is None else Expected.of(info))

    def size_of(self, path: str) -> int | None:
        """The listed size of a shard in bytes; None if it was not listed."""
        info = self.known.get(path)
        return None if info is None else info.size

    @property
    def fingerprint(self) -> list[Any]:
        """The listing's part of a state.

        It is the number of known shards, whether these are all, and their digest.
        """
        count = len(self.paths)
        if self._fingerprint[:2] != [count, self.complete]:
            self._fingerprint = self._fingerprint_of(count)
        return self._fingerprint

    async def check_fingerprint(self, saved: Sequence[Any]) -> None:
        """Refuses a state that was saved when other shards were listed."""
        count, complete, _ = saved
        await self.until(count + 1 if complete else count)
        if self._fingerprint_of(count) != saved:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other "
                "sizes or versions: resume with the same shards, or start over without the state"
            )

    def _fingerprint_of(self, count: int) -> list[Any]:
        """The same for the first shards: the digest is of their names, sizes and versions."""
        described = [
            (path, info.size, info.version) if (info := self.known.get(path)) else path
            for path in self.paths[:count]
        ]
        complete = self.complete and count == len(self.paths)
        return [count, complete, blake2b(ascii(described).encode(), digest_size=8).hexdigest()]

    async def _answer(self, part: Part, pattern: str) -> None:
        try:
            async with self._limiter:
                if not has_braces(pattern) and not is_sharded(pattern):
                    if is_manifest(pattern) and not self._patterns:
                        found = await shards_in(self._storages, pattern)
                    else:
                        found = await matches(self._storages, pattern, self._patterns, self._alone)
                    part.paths = [info.path for info in found]
                    warn_of_names(pattern, part.paths)
                    self.known.update((info.path, info) for info in found)
                elif (names := await expand_name(self._storages, pattern)) == [pattern]:
                    part.paths = names
                else:
                    part.expanded = list(parts_of(names, self._patterns))
        except Exception as error:
            part.error = error
        part.answered.set()
        if part.expanded:
            await self.run(part.expanded)


@dataclass(eq=False)
class Part:
    """A name with braces or wildcards, or several names without."""

    pattern: str | None
    paths: list[str] = field(default_factory=list)
    expanded: list[Part] = field(default_factory=list)
    error: Exception | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


def parts_of(names: Iterable[str], patterns: bool) -> Iterator[Part]:
    """The parts of a list of names: each pattern alone, the names between two patterns together."""
    for asked, group in groupby(names, partial(stands_for_others, patterns=patterns)):
        if asked:
            yield from map(Part, group)
        else:
            part = Part(None, list(group))
            part.answered.set()
            yield part


async def expand_name(storages: Storages, name: str) -> list[str]:
    """The names that the braces of a name, or its `@8`, stand for.

    It is the name itself, if an object has it.

    Web servers are not asked about braces, because these are never part of a URL; nor is a store if
    braces are in the bucket.
    """
    braces = has_braces(name)
    scheme, colon, rest = split_chain(name).url.partition("://")
    bucket = scheme + rest.partition("/")[0] if colon and "/" not in scheme else ""
    asks = not is_web(name) and "{" not in bucket if braces else is_sharded(name)
    if asks:
        # A store may refuse this for missing objects.
        with suppress(NotFoundError, PermissionDeniedError):
            await (await storages.at(name)).stat(name)
            return [name]
    if braces:
        return list(expand_braces(name))
    return list(expand_sharded(name)) or [name]


def stands_for_others(name: str, patterns: bool) -> bool:
    """Whether a store must be asked which shards a name stands for."""
    if not SPECIAL.search(name):
        return False
    return is_pattern(name) or (is_manifest(name) and not patterns)


def is_pattern(name: str) -> bool:
    """Whether a name stands for several: by braces, wildcards, or a number of shards, `@8`."""
    return has_braces(name) or is_glob(name) or is_web_glob(name) or is_sharded(name)


def is_manifest(name: str) -> bool:
    """Whether a name is that of a manifest or an index, and not a pattern."""
    url = split_chain(name).url
    if is_web(name):
        url = url.partition("?")[0]
    return url.endswith(MANIFESTS) and not is_glob(name)


async def shards_in(storages: Storages, name: str) -> list[ObjectInfo]:
    """The shards of a manifest or an index, with their sizes and versions in it."""
    manifest = (await shards.read_manifest(await storages.at(name), name)).follow()
    return [ObjectInfo(shard.path, shard.bytes, shard.version) for shard in manifest.shards]


async def matches(storages: Storages, name: str, patterns: bool, alone: bool) -> list[ObjectInfo]:
    """The objects that a glob matches, sorted by name; or the object with exactly this name.

    `alone`: it is the only name of the call, so that the caller may have meant a pattern.
    """
    storage = await storages.at(name)
    if is_web_glob(name):
        with suppress(NotFoundError):
            if not patterns:  # a URL may have the character
                return [await storage.stat(name)]
        raise UnsupportedOperationError(
            "a web server cannot be asked which files a pattern matches: give the names, braces "
            "such as train-{00000..00127}.tfrecord, or the URL of a manifest",
            name,
        )
    glob = Glob(name)
    found = [info async for info in storage.list(glob.prefix, glob)]
    if not found:
        raise NotFoundError(
            "no object matches this pattern: check the bucket, the name and the wildcards", name
        )
    exact = [info for info in found if info.path == name]
    others = [info for info in found if glob.matches(info.path)]
    left_out = sum(info.path != name for info in others)
    if exact and left_out and not patterns:
        text = (
            "%s: an object has exactly this name, so only that is read; as a pattern it would "
            "match %d more"
        )
        logger.log(logging.WARNING if alone else logging.DEBUG, text, name, left_out)
    return sorted(others or exact if patterns else exact or others, key=attrgetter("path"))


def warn_of_names(asked: str, paths: Sequence[str]) -> None:
    """Warns of what the names of the shards of a glob or a manifest tell and is not so.

    Names that tell nothing cost a search for a few letters each.
    """
    if not any("-of-" in path for path in paths):
        return
    for gap in gaps_of(asked, paths):
        warn_once(str(gap), told_by_names=True)
    splits = shards.find_splits(paths)
    if splits.certain and splits.mixes_test_data:
        warn_once(
            f"{asked}: these shards are of several splits, {splits}, and are read together: give "
            "the name of one in the pattern",
            told_by_names=True,
        )


def gaps_of(asked: str, paths: Sequence[str]) -> list[shards.Gap]:
    """The gaps in the shards of one glob, directory, manifest or index.

    A manifest of a single shard may be that of one of many writers, so it misses nothing.
    """
    if is_glob(asked):
        return shards.find_gaps(paths, asked)
    return shards.find_gaps(paths) if len(paths) > 1 or not is_manifest(asked) else []


@border
def matching_files(
    pattern: Filenames,
    **store: Unpack[StoreOptions],
) -> list[str]:
    """Returns the names that patterns match.

    They are in the order of the patterns and sorted for each; [] without a match.

    It is `tf.io.matching_files` for any store, without directories. `Dataset.list_files` returns
    the same names as a Dataset, which takes each name literally, whatever characters it contains.

    Args:
        pattern: A URL or path with a glob or braces, or a list of them. A name that is not a glob
            is not looked up.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Raises:
        PermissionDeniedError: You lack permission to list the bucket, or a directory that the
            pattern can match.
        UnsupportedOperationError: The pattern is for a web server, which cannot be listed.
        StorageError: The store failed, and retrying did not help.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("memory").pipe({"/names/a": b"", "/names/b": b""})
        >>> matching_files("memory://names/*"), matching_files("memory://names/c*")
        (['memory://names/a', 'memory://names/b'], [])
    """
    check_keywords("matching_files", store)
    find = partial(_match, **store)
    filesystem = store.get("filesystem")
    return [
        path for name in to_names(pattern) for path in bridge.run(find, locate(name, filesystem))
    ]


async def _match(name: str, **store: Unpack[StoreOptions]) -> list[str]:
    async with Storages(**store) as storages:
        try:
            return await find_shards(storages, name, patterns=True)
        except NotFoundError:
            return []


async def sizes_of(
    storages: Storages,
    paths: Sequence[str],
    known: Mapping[str, ObjectInfo],
    readers: int | None = None,
) -> list[ShardSize]:
    """The sizes of shards; the store is asked for unknown ones.

    `readers` is None if all sizes are needed.

    The sizes of many shards come from listings of their directories. If a directory cannot be
    listed, or holds many other objects, the store is asked for each shard; or, with many shards for
    each reader, all count as equally large.

    If the store does not give the size before the end of an object, the shard has size 0 and cannot
    be cut.
    """
    infos = dict(known)

    async def stat(path: str) -> None:
        infos[path] = await shards.stat_shard(await storages.at(path), path)

    unknown = sorted({path for path in paths if path not in infos or infos[path].size is None})
    if len(unknown) > FEW_SHARDS:
        infos |= await list_sizes(storages, unknown)
        unknown = [path for path in unknown if path not in infos]
        if len(unknown) > FEW_SHARDS and readers is not None and len(paths) >= 16 * readers:
            expected = {path: Expected.of(info) for path, info in infos.items()}
            return [
                ShardSize(path, 1, False, expected.get(path, Expected(size=None))) for path in paths
            ]
    await for_each(stat, unknown, PARALLEL_REQUESTS)
    return [
        ShardSize(path, info.size or 0, info.size is not None, Expected.of(info))
        for path, info in ((path, infos[path]) for path in paths)
    ]


async def list_sizes(storages: Storages, paths: Iterable[str]) -> dict[str, ObjectInfo]:
    """The shards in listings of their directories.

    Those in directories that cannot be listed cheaply are left out.
    """
    found: dict[str, ObjectInfo] = {}
    directories: dict[str, list[str]] = {}
    for path in paths:
        if "::" not in path:  # a chain of filesystems
            directories.setdefault(path[: path.rfind("/") + 1], []).append(path)

    async def list_directory(names: list[str]) -> None:
        prefix = os.path.commonprefix(names)  # noqa: RUF071  keys, not directories
        wanted = set(names)
        storage = await storages.at(prefix)
        with suppress(UnsupportedOperationError, PermissionDeniedError, NotFoundError):
            async for info in storage.list(prefix, most=3 * len(names)):
                if info.path in wanted and info.size is not None:
                    found[info.path] = info

    many = [
        names for names in directories.values() if len(names) > 8
    ]  # for fewer, a listing costs more than it saves
    await for_each(list_directory, many, PARALLEL_REQUESTS)
    return found


async def assign_shards(
    storages: Storages, shards: Sequence[ShardSize], readers: int, compression_type: str | None
) -> list[list[Portion]]:
    """`assign_bytes`, for shards that may be compressed.

    Only shards that would be cut are checked, and a sample if there are many. If some are
    compressed, all shards are checked; if all of a sample are, all shards count as compressed. So
    every reader makes the same plan.
    """
    named = check_compression_type(compression_type)
    plan = assign_bytes(
        [replace(shard, splittable=shard.splittable and not named) for shard in shards], readers
    )
    if named is not None:
        return plan
    parts = (portion for portions in plan for portion in portions)
    cut = sorted({portion.path for portion in parts if portion.byte_range is not None})
    # Each check is a request. The sample is of sorted names, so that all readers take the same one:
    # plans that differ would lose records.
    sample = set(cut[:: len(cut) // FEW_SHARDS + 1])
    compressed = await find_compressed(storages, sample)
    if not compressed:
        return plan
    if len(shards) > FEW_SHARDS and compressed == sample:
        return assign_bytes([replace(shard, splittable=False) for shard in shards], readers)
    compressed |= await find_compressed(storages, {shard.path for shard in shards} - sample)
    shards = [
        replace(shard, splittable=shard.splittable and shard.path not in compressed)
        for shard in shards
    ]
    return assign_bytes(shards, readers)


async def find_compressed(storages: Storages, paths: Iterable[str]) -> set[str]:
    """Those of the shards that begin as compressed ones do: a request for each."""
    compressed = set()

    async def check(path: str) -> None:
        storage = await storages.at(path)
        if detect_compression(await storage.read_range(path, 0, DETECT_BYTES)):
            compressed.add(path)

    await for_each(check, sorted(paths), PARALLEL_REQUESTS)
    return compressed
