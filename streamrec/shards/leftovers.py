"""What an earlier run left under the names of a writer: shards that are replaced, shards that stay
among the new ones, and shards that only the old manifest describes.

None of this is an error, because a job that runs again replaces its own output. But a service that
is started again with the same pattern replaces the events of its earlier run, so the log says it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from streamrec.display import display_name, logger
from streamrec.errors import NotFoundError, StreamrecError
from streamrec.shards.manifest_reading import read_if_manifest
from streamrec.shards.patterns import is_numbered, is_shard_of, list_numbered, shard_path
from streamrec.shards.places import location_of
from streamrec.storage import Storages

LOOKED_AT: Final = 8
"""Shards of an old manifest for which the store is asked: more requests would tell no more."""


EARLIER: Final = "shards of an earlier run were"


@dataclass(frozen=True, slots=True)
class Leftovers:
    """The shards of earlier runs whose names are those of one pattern.

    Attributes:
        pattern: The writer's pattern.
        new: How many shards the writer has written.
        replaced: How many of them replace one of an earlier run.
        stay: The other shards of earlier runs; None if the store could not be listed.
    """

    pattern: str
    new: int
    replaced: int
    stay: Sequence[str] | None

    def __str__(self) -> str:
        parts = []
        one_replaced = self.replaced == 1
        if self.replaced:
            verb = (
                "shard of an earlier run was" if one_replaced else "shards of an earlier run were"
            )
            parts.append(f"{self.replaced:,} {verb} replaced")
        if self.stay is None:
            parts.append("whether others stay is unknown, since this client may not list")
        else:
            one = len(self.stay) == 1
            older = f"shard{'' if one else 's'} of an earlier run stay{'s' if one else ''}"
            parts.append(f"{len(self.stay):,} {older} among the {self.new:,} new")
        example = f", such as {display_name(self.stay[0])}" if self.stay else ""
        advice = "give each run names of its own, for example with its start time"
        if self.stay:
            advice += ", or remove the older ones: a pattern reads both"
        return f"{display_name(self.pattern)}: {' and '.join(parts)}{example}: {advice}"


async def find_leftovers(
    storages: Storages, pattern: str, new: Sequence[str], staged: Collection[str]
) -> Leftovers | None:
    """Finds the shards of earlier runs before those that are `staged` are put in place; None if
    there are none.

    A directory of a million objects takes a thousand requests to list. So it is listed only if
    something is replaced, or if the shard after the last new one exists: one request tells.
    """
    if not is_numbered(pattern):
        return None
    written = set(new)
    replacing = written.intersection(staged)
    try:
        if not replacing:
            after = shard_path(pattern, len(new))
            await (await storages.at(after)).stat(after)
        found = {info.path async for info in list_numbered(storages, pattern)}
    except StreamrecError:  # no such shard; or this client may not ask
        return Leftovers(pattern, len(new), len(replacing), None) if replacing else None
    stay = sorted(found - written)
    replaced = len(replacing & found)
    return Leftovers(pattern, len(new), replaced, stay) if replaced or stay else None


@dataclass(frozen=True, slots=True)
class Described:
    """Shards that stay, and that only the replaced manifest or index describes."""

    path: str
    shards: Sequence[str]

    def __str__(self) -> str:
        count = len(self.shards)
        plural = "s that stay" if count != 1 else " that stays"
        return (
            f"{display_name(self.path)}: the replaced one described {count:,} other "
            f"shard{plural}, such as {display_name(self.shards[0])}: give each data set a manifest "
            "or an index of its own name"
        )


async def find_described(
    storages: Storages, path: str, new: Sequence[str], pattern: str | None = None
) -> Described | None:
    """Finds the shards that the manifest or index at a path describes, and that are not among the
    new ones but still exist; None if there are none.

    Shards of the writer's own `pattern` are left out: `find_leftovers` tells of these.
    """
    storage = await storages.at(path)
    try:
        manifest = await read_if_manifest(storage, path)
        if manifest is None:
            return None
        manifest.follow()  # the names of a foreign manifest must not lead this client elsewhere
    except StreamrecError:
        return None
    written = {location_of(shard) for shard in new}
    others = [
        shard.path
        for shard in manifest.shards
        if location_of(shard.path) not in written
        and not (pattern is not None and is_shard_of(shard.path, pattern))
    ]
    for other in others[:LOOKED_AT]:
        try:
            await (await storages.at(other)).stat(other)
        except NotFoundError:
            continue
        except StreamrecError:  # this client may not ask, and the shard may be there
            pass
        return Described(path, others)
    return None


def warn_of_staging(pattern: str, path: str) -> None:
    """Logs a warning when a writer finds the first shard of an earlier run under one of its names.

    A service may run for weeks before it closes its writer and is told the rest.
    """
    if is_shard_of(path, pattern) and is_numbered(pattern):
        logger.warning(
            "%s is there, from an earlier run or another writer: from here on, the new shards stay "
            "hidden until the writer closes, and replace the older ones then; give each run names "
            "of its own, for example with its start time",
            display_name(path),
        )


def warn_of(*found: Leftovers | Described | None) -> None:
    """Logs a warning of each."""
    for each in found:
        if each is not None:
            logger.warning("%s", each)
