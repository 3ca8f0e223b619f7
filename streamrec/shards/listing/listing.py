"""From names to shards: the listings that globs need, all at a time, taken in order.

Rules:
- Names come in the order in which they were given; a glob's matches in its place, sorted. Which listing answers
  first changes nothing.
- What stands before a glob that is not answered yet is known already: reading may begin with it.
- An object whose name is the pattern itself counts before all that the pattern matches.
- A glob that fails, or matches nothing, is an error in its place: what stands before it is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

import anyio

from streamrec.errors import NotFoundError
from streamrec.shards.listing.assignment import Portion
from streamrec.shards.listing.patterns import Filenames, glob_prefix, glob_regex, is_glob, listed
from streamrec.storage import ObjectInfo, Storages

__all__ = ["Listing", "find_shards"]

PARALLEL: Final = 8
"""Listings under way at the same time."""


async def find_shards(storages: Storages, filenames: Filenames) -> list[str]:
    """The shards' URLs: braces expanded, globs answered, each glob's matches sorted by name.

    Raises:
        NotFoundError: A glob matches nothing, or no name was given.
    """
    listing = Listing(storages, filenames)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listing.run)
        while not listing.complete:
            await listing.until(len(listing.paths) + 1)
    if listing.error is not None:
        raise listing.error
    return listing.paths


class Found(NamedTuple):
    """All shards that names mean, and the sizes of those that a glob found."""

    paths: tuple[str, ...]
    sizes: Mapping[str, int]


class Listing:
    """The shards that names mean, as far as they are known.

    Args:
        storages: Where globs are answered.
        filenames: Names, braces and globs.
        found: What an earlier listing of the same names found; None to look.
        keep: Called with what was found, when that is all.

    Attributes:
        paths: The shards' URLs so far; they only grow.
        complete: Whether there will be no more of them.
        error: What ended them, or None. It belongs behind them.
        sizes: The sizes of those that a glob found, in bytes, where the store told them.
    """

    def __init__(
        self,
        storages: Storages,
        filenames: Filenames,
        found: Found | None = None,
        keep: Callable[[Found], None] | None = None,
    ) -> None:
        self.paths: list[str] = []
        self.complete = False
        self.error: Exception | None = None
        self.sizes: dict[str, int] = {}
        self._storages = storages
        self._keep = keep
        self._parts = list(parts_of(listed(filenames))) if found is None else []
        self._joined = 0
        if found is not None:
            self.paths, self.sizes, self.complete = list(found.paths), dict(found.sizes), True

    @property
    def labels(self) -> Sequence[str]:
        """What errors call each: its URL."""
        return self.paths

    @property
    def part(self) -> tuple[int, int]:
        """Which reader's they are, and how many readers there are: one reads all."""
        return 0, 1

    async def run(self) -> None:
        """Answers the globs. Raises nothing: what goes wrong waits for its place."""
        limiter = anyio.CapacityLimiter(PARALLEL)
        async with anyio.create_task_group() as tasks:
            for part in self._parts:
                if part.glob is not None:
                    tasks.start_soon(self._answer, part, part.glob, limiter)

    async def until(self, count: int) -> None:
        """Waits until so many shards are known, or all of them are."""
        while len(self.paths) < count and not self.complete:
            if self._joined < len(self._parts):
                await self._join(self._joined)
            else:
                self.complete = True
                if self.paths and self._keep is not None:
                    self._keep(Found(tuple(self.paths), self.sizes))
                if not self.paths:
                    self.error = NotFoundError("no file name was given: pass at least one, or a pattern that matches")

    def portion(self, number: int) -> Portion:
        """What is read of a shard: all of it."""
        return Portion(self.paths[number])

    async def _join(self, number: int) -> None:
        part = self._parts[number]
        await part.answered.wait()
        if number < self._joined:
            return  # by another reader of this listing, meanwhile
        self._joined += 1
        self.paths += part.paths
        self.error = part.error
        self.complete = part.error is not None

    async def _answer(self, part: Part, glob: str, limiter: anyio.CapacityLimiter) -> None:
        try:
            async with limiter:
                found = await matches(self._storages, glob)
            part.paths = [info.path for info in found]
            self.sizes.update((info.path, info.size) for info in found if info.size is not None)
        except Exception as error:
            part.error = error
        part.answered.set()


@dataclass
class Part:
    """A glob, or a row of names that are none."""

    glob: str | None
    paths: list[str] = field(default_factory=list)
    error: Exception | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


def parts_of(names: list[str]) -> Iterator[Part]:
    """The parts of a list of names: each glob by itself, what lies between two globs together."""
    for globs, group in groupby(names, is_glob):
        if globs:
            yield from map(Part, group)
        else:
            part = Part(None, list(group))
            part.answered.set()
            yield part


async def matches(storages: Storages, pattern: str) -> list[ObjectInfo]:
    """What a glob matches, sorted by name; where an object has that very name, it alone."""
    storage = await storages.at(pattern)
    regex = glob_regex(pattern)
    listed = [info async for info in storage.list(glob_prefix(pattern))]
    found = [info for info in listed if info.path == pattern] or [info for info in listed if regex.fullmatch(info.path)]
    if not found:
        raise NotFoundError("no object matches this pattern: check the bucket, the name and the wildcards", pattern)
    return sorted(found, key=attrgetter("path"))
