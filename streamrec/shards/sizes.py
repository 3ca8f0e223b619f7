"""Sizes: what must be known of all shards before they can be dealt to readers; asked for side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from streamrec.errors import ManifestError
from streamrec.shards.assignment import Portion, ShardSize, assign_bytes
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.manifest_files import read_manifest
from streamrec.shards.options import Expected, rewrite_advice
from streamrec.shards.places import location_of
from streamrec.storage import ObjectInfo, Storages
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import DETECT_BYTES, check_compression_type, detect_compression

__all__ = ["assign_shards", "find_in_manifest", "sizes_of"]

PARALLEL: Final = 16
"""Requests under way at the same time."""


async def find_in_manifest(
    storages: Storages, manifest: str, paths: Sequence[str], listed: Mapping[str, ObjectInfo]
) -> list[ShardInfo]:
    """What a manifest says of shards.

    Args:
        storages: Where it is stored.
        manifest: Its URL.
        paths: The shards.
        listed: What a listing says of them, as far as there was one; it is compared with the manifest.

    Raises:
        NotFoundError: There is no such manifest.
        ManifestError: What is there is none, it does not name one of the shards, or one has another size or version.
    """
    found = await read_manifest(await storages.at(manifest), manifest)
    known = {location_of(shard.path): shard for shard in found.shards}
    found_shards = []
    for path in paths:
        shard = known.get(location_of(path))
        if shard is None:
            raise ManifestError(
                f"{manifest}: this manifest does not name {path}, so nobody knows how many records it holds: pass the "
                f"names that it has; or {rewrite_advice(manifest)}"
            )
        if path in listed:
            Expected(shard.bytes, shard.version, None, manifest).check(listed[path])
        found_shards.append(replace(shard, path=path))
    return found_shards


async def sizes_of(storages: Storages, paths: Sequence[str], known: Mapping[str, ObjectInfo]) -> list[ShardSize]:
    """The sizes of shards; the store is asked for those that are not known.

    A store that tells no size before the end of an object makes a shard that cannot be cut, of size 0.

    Raises:
        StorageError: A size cannot be had.
    """
    found = dict(known)

    async def stat(path: str) -> None:
        found[path] = await (await storages.at(path)).stat(path)

    unknown = {path for path in paths if path not in found or found[path].size is None}
    await for_each(stat, sorted(unknown), PARALLEL)
    return [
        ShardSize(path, info.size or 0, info.size is not None, Expected(info.size, info.version))
        for path, info in ((path, found[path]) for path in paths)
    ]


async def assign_shards(
    storages: Storages, shards: Sequence[ShardSize], readers: int, compression_type: str | None
) -> list[list[Portion]]:
    """`assign_bytes`, where it is not known yet which shards are compressed.

    Only shards that would be cut are looked at; when one of them turns out to be compressed, all are. So every reader
    comes to the same plan.

    Raises:
        StorageError: A shard cannot be read.
    """
    named = check_compression_type(compression_type)
    plan = assign_bytes([replace(shard, splittable=shard.splittable and not named) for shard in shards], readers)
    if named is not None:
        return plan
    cut = {portion.path for own in plan for portion in own if portion.piece is not None}
    if not await compressed_among(storages, cut):
        return plan
    found = await compressed_among(storages, {shard.path for shard in shards})
    whole = [replace(shard, splittable=shard.splittable and shard.path not in found) for shard in shards]
    return assign_bytes(whole, readers)


async def compressed_among(storages: Storages, paths: Iterable[str]) -> set[str]:
    """Those shards that are compressed."""
    found = set()

    async def look(path: str) -> None:
        storage = await storages.at(path)
        if detect_compression(await storage.read_range(path, 0, DETECT_BYTES)):
            found.add(path)

    await for_each(look, sorted(paths), PARALLEL)
    return found
