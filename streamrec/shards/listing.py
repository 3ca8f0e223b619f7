"""From names to shards: the one listing that globs need."""

from __future__ import annotations

from streamrec.errors import NotFoundError
from streamrec.shards.patterns import Filenames, glob_prefix, glob_regex, is_glob, listed
from streamrec.storage import Storages

__all__ = ["find_shards"]


async def find_shards(storages: Storages, filenames: Filenames) -> list[str]:
    """The shards' URLs: braces expanded, globs answered, each glob's matches sorted by name.

    Raises:
        NotFoundError: A glob matches nothing, or no name was given.
    """
    shards: list[str] = []
    for name in listed(filenames):
        shards += await matches(storages, name) if is_glob(name) else [name]
    if not shards:
        raise NotFoundError("no file name was given: pass at least one shard, or a pattern that matches some")
    return shards


async def matches(storages: Storages, pattern: str) -> list[str]:
    """What a glob matches, sorted by name."""
    storage = await storages.at(pattern)
    regex = glob_regex(pattern)
    found = [info.path async for info in storage.list(glob_prefix(pattern)) if regex.fullmatch(info.path)]
    if not found:
        raise NotFoundError("no object matches this pattern: check the bucket, the name and the wildcards", pattern)
    return sorted(found)
