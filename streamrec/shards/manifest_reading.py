"""Reads manifests, and the manifests in indexes, and finds shards in them.

A listing reads the manifests among its names, so this module must not import `listing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamrec.errors import ManifestError
from streamrec.shards.directories import stat_shard
from streamrec.shards.index import MAGIC
from streamrec.shards.indexed_records import END_BYTES, open_index
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.options import Expected, rewrite_advice
from streamrec.shards.places import location_of
from streamrec.storage import ObjectInfo, Storage, Storages
from streamrec.storage.arrivals import HEAD_BYTES, describe_page


async def read_manifest(storage: Storage, path: str) -> Manifest:
    """Reads a manifest, or the manifest in an index.

    Call `Manifest.follow` before its names are used.
    """
    manifest = await read_if_manifest(storage, path)
    if manifest is None:
        page = describe_page(await storage.read_range(path, 0, HEAD_BYTES))
        begins = "" if page is None else f", but {page}"
        raise ManifestError(
            f"{path}: this is neither a manifest nor an index{begins}: pass the URL of one"
        )
    return manifest


async def read_if_manifest(storage: Storage, path: str) -> Manifest | None:
    """The same; None if the object is neither.

    Of a long object that is neither, only the end is read.
    """
    info = await stat_shard(storage, path)
    size = info.size or 0
    end = await storage.read_range(path, max(0, size - END_BYTES), size, info.version)
    if end.endswith(MAGIC):
        return (await open_index(storage, path)).manifest
    if not end.rstrip().endswith(b"}"):
        return None
    start = (
        await storage.read_range(path, 0, size - len(end), info.version) if size > len(end) else b""
    )
    return Manifest.from_json(path, start + end)


async def find_in_manifest(
    storages: Storages, manifest: str, paths: Sequence[str], listed: Mapping[str, ObjectInfo]
) -> list[ShardInfo]:
    """Finds shards in a manifest, and compares it with the listed objects of these paths.

    Raises:
        ManifestError: It is not a manifest, does not name a shard, or has another size or version
            of it.
    """
    entries = (await read_manifest(await storages.at(manifest), manifest)).shards
    known = {location_of(shard.path): shard for shard in entries}
    shards = []
    for path in paths:
        shard = known.get(location_of(path))
        if shard is None:
            raise ManifestError(
                f"{manifest}: this manifest does not name {path}, so the number of its records is "
                f"unknown: pass the names that it has; or {rewrite_advice(manifest)}"
            )
        if path in listed:
            expected = Expected(size=shard.bytes, version=shard.version, manifest=manifest)
            await _check_listed(storages, expected, listed[path])
        shards.append(replace(shard, path=path))
    return shards


async def _check_listed(storages: Storages, expected: Expected, listed: ObjectInfo) -> None:
    """Compares a manifest's entry with the listed object.

    The version in an index comes from a GET. Where a gateway lists other versions, HEAD decides.
    """
    differs = None not in (expected.version, listed.version) and expected.version != listed.version
    if differs and expected.size == listed.size:
        listed = await (await storages.at(listed.path)).stat(listed.path)
    expected.check(listed)
