"""Which shards a name stands for: by its braces, wildcards or `@8`, or as the name of a manifest.

- An object with exactly the given name wins over the names that its braces, wildcards and `@8`
  stand for, so that every listed name can be read. If names are patterns (`list_files`), the
  objects that a pattern matches win, as in TensorFlow.
- What the names of a glob's matches or of a manifest's shards tell (`numbered_names.py`) is
  compared with what was found: a missing shard, and splits that are mixed, are warned of, once.
- A name that ends in `.json` or `.index` is a manifest or an index, as for the commands: its shards
  take its place.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Final, NamedTuple

import anyio

from streamrec import shards
from streamrec.display import logger, warn_once
from streamrec.errors import NotFoundError, PermissionDeniedError, UnsupportedOperationError
from streamrec.shards.patterns import (
    expand_braces,
    expand_sharded,
    has_braces,
    is_glob,
    is_manifest,
    is_sharded,
    is_web,
    is_web_glob,
)
from streamrec.storage import Glob, ObjectInfo, Storages, split_chain

PARALLEL: Final = 8
"""Listings that run at the same time."""


class Answer(NamedTuple):
    """What a name stands for: shards, listed with their sizes or not, or other names."""

    paths: Sequence[str] = ()
    infos: Sequence[ObjectInfo] = ()
    names: Sequence[str] = ()


class NameSearch:
    """Asks stores which shards names stand for, a few names at the same time.

    Args:
        patterns: Whether all names are patterns; see `NameListing`.
        alone: Whether there is only one name, so that the caller may have meant a pattern.
    """

    def __init__(self, storages: Storages, *, patterns: bool, alone: bool) -> None:
        self._storages = storages
        self._patterns = patterns
        self._alone = alone
        self._limiter = anyio.CapacityLimiter(PARALLEL)

    async def find(self, name: str) -> Answer:
        """Returns what a name stands for. The names in an answer may stand for others, too."""
        async with self._limiter:
            if has_braces(name) or is_sharded(name):
                names = await expand_name(self._storages, name)
                return Answer(names) if names == [name] else Answer(names=names)
            if is_manifest(name) and not self._patterns:
                infos = await shards_in(self._storages, name)
            else:
                infos = await matches(self._storages, name, self._patterns, self._alone)
            paths = [info.path for info in infos]
            warn_of_names(name, paths)
            return Answer(paths, infos)


async def expand_name(storages: Storages, name: str) -> list[str]:
    """The names that the braces of a name, or its `@8`, stand for.

    It is the name itself, if an object has it.

    Web servers are not asked about braces, because these are never part of a URL; nor is a store if
    braces are in the bucket.
    """
    braces = has_braces(name)
    asks = not is_web(name) and "{" not in bucket_of(name) if braces else is_sharded(name)
    if asks:
        # A store may refuse this for missing objects.
        with suppress(NotFoundError, PermissionDeniedError):
            await (await storages.at(name)).stat(name)
            return [name]
    if braces:
        return list(expand_braces(name))
    return list(expand_sharded(name)) or [name]


def bucket_of(name: str) -> str:
    """The scheme and the bucket of a URL; "" for a path.

    >>> bucket_of("s3://b{1,2}/x"), bucket_of("/data/x://y")
    ('s3b{1,2}', '')
    """
    scheme, colon, rest = split_chain(name).url.partition("://")
    return scheme + rest.partition("/")[0] if colon and "/" not in scheme else ""


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
