"""From names to shards: the listings that globs need. What one name stands for: `matches.py`.

Listings run at the same time; the results are in order.

Rules:
- Names come in the caller's order, with a glob's matches, sorted, in its place. The order in which
  listings end does not matter.
- The names before an unfinished listing are known already: reading may begin with them.
- A glob that fails, or matches nothing, is an error in its place: the shards before it are read
  first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple, Unpack

import anyio

from streamrec import bridge
from streamrec.arguments import describe_value
from streamrec.errors import NotFoundError, PositionMismatchError
from streamrec.shards.matches import NameSearch
from streamrec.shards.options import Expected, Portion
from streamrec.shards.patterns import SPECIAL, is_manifest, is_pattern
from streamrec.storage import ObjectInfo, Storages, StoreOptions, check_keywords, locate
from streamrec.tracebacks import border

Name = str | bytes | os.PathLike[str]
Filenames = Name | Iterable[Name]


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
    """The complete listing of names; see `NameListing`.

    Raises:
        NotFoundError: A glob matches nothing, or no name was given.
        StorageError: A directory cannot be listed, or the store failed.
    """
    listing = NameListing(storages, filenames, patterns=patterns)
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
    """Shards in order, all of them or as far as they are known.

    Attributes:
        paths: The shards' URLs so far; the list only grows.
        complete: Whether there will be no more of them.
        error: The error after these shards, or None.
        known: The listed objects of shards, by URL.
        labels: The name of each shard in errors: its URL.
    """

    def __init__(self, paths: list[str], known: dict[str, ObjectInfo], *, complete: bool) -> None:
        self.paths = paths
        self.labels: Sequence[str] = paths
        self.complete = complete
        self.error: Exception | None = None
        self.known = known

    async def until(self, count: int) -> None:
        """Waits until that many shards are known, or all of them."""

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
        """The listing's part of a state."""
        raise NotImplementedError

    async def check_fingerprint(self, saved: Sequence[Any]) -> None:
        """Refuses a state that was saved when other shards were listed."""
        raise NotImplementedError


class NameListing(Listing):
    """The shards of some names, which become known while listings run.

    Args:
        found: The result of an earlier listing of the same names; None to list.
        keep: Called with the complete result.
        patterns: Whether all names are patterns: an object with exactly the name counts only if the
            pattern matches no other, and a pattern for a web server is an error.
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
        if found is None:
            super().__init__([], {}, complete=False)
        else:
            super().__init__(list(found.paths), dict(found.known), complete=True)
        names = to_names(filenames)
        self._keep = keep
        self._fingerprint: list[Any] = []
        self._patterns = patterns
        self._parts = list(parts_of(names, patterns)) if found is None else []
        # A listing of plain names asks no store.
        self._search: NameSearch | None = None
        if any(part.pattern is not None for part in self._parts):
            self._search = NameSearch(storages, patterns=patterns, alone=len(names) == 1)

    @property
    def asks(self) -> bool:
        """Whether `run` has anything to list."""
        return self._search is not None

    async def run(self, parts: Iterable[Part] | None = None) -> None:
        """Runs the listings of some parts, by default of all.

        It raises nothing: an error waits for its place.
        """
        if self._search is None:
            return
        async with anyio.create_task_group() as tasks:
            for part in self._parts if parts is None else parts:
                if part.pattern is not None:
                    tasks.start_soon(self._answer, self._search, part, part.pattern)

    async def until(self, count: int) -> None:
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

    @property
    def fingerprint(self) -> list[Any]:
        """The listing's part of a state.

        It is the number of known shards, whether these are all, and their digest.
        """
        count = len(self.paths)
        if self._fingerprint[:2] != [count, self.complete]:
            self._fingerprint = fingerprint_of(self.paths, self.known, self.complete)
        return self._fingerprint

    async def check_fingerprint(self, saved: Sequence[Any]) -> None:
        count, complete, _ = saved
        await self.until(count + 1 if complete else count)
        found = fingerprint_of(
            self.paths[:count], self.known, self.complete and count == len(self.paths)
        )
        if found != saved:
            raise PositionMismatchError(
                "this state was saved when the names matched other shards, or shards of other "
                "sizes or versions: resume with the same shards, or start over without the state"
            )

    async def _answer(self, search: NameSearch, part: Part, pattern: str) -> None:
        try:
            answer = await search.find(pattern)
        except Exception as error:
            part.error = error
        else:
            part.paths = list(answer.paths)
            part.expanded = list(parts_of(answer.names, self._patterns))
            self.known.update((info.path, info) for info in answer.infos)
        part.answered.set()
        if part.expanded:
            await self.run(part.expanded)


def fingerprint_of(
    paths: Sequence[str], known: Mapping[str, ObjectInfo], complete: bool
) -> list[Any]:
    """The number of shards, whether these are all, and a digest of names, sizes and versions.

    >>> fingerprint_of(["a"], {}, False) == fingerprint_of(["a"], {"b": ObjectInfo("b", 1, None)}, False)
    True
    >>> fingerprint_of(["a"], {}, False)[2] == fingerprint_of(["a"], {"a": ObjectInfo("a", 1, "v")}, False)[2]
    False
    """  # noqa: E501
    described: list[Any] = []
    for path in paths:
        info = known.get(path)
        described.append(path if info is None else (path, info.size, info.version))
    digest = blake2b(ascii(described).encode(), digest_size=8).hexdigest()
    return [len(paths), complete, digest]


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


def stands_for_others(name: str, patterns: bool) -> bool:
    """Whether a store must be asked which shards a name stands for."""
    if not SPECIAL.search(name):
        return False
    return is_pattern(name) or (is_manifest(name) and not patterns)


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
