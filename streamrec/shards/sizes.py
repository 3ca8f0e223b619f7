"""The sizes of shards, and their assignment to readers by size: what stores are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from streamrec import shards
from streamrec.errors import NotFoundError, PermissionDeniedError, UnsupportedOperationError
from streamrec.shards.assignment import ShardSize, assign_bytes
from streamrec.shards.options import Expected, Portion
from streamrec.storage import ObjectInfo, Storages
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import DETECT_BYTES, check_compression_type, detect_compression

PARALLEL_REQUESTS: Final = 16
"""Other requests that run at the same time."""

FEW_SHARDS: Final = 64
"""Up to this number, the store is asked for each shard. Not tuned."""


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

    # For fewer, a listing costs more than it saves.
    many = [names for names in directories.values() if len(names) > 8]
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
