"""Manifests for data sets that were written without one: every shard is read once, and counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
from fsspec import AbstractFileSystem

from streamrec import bridge
from streamrec.errors import ManifestError
from streamrec.shards.listing.listing import find_shards
from streamrec.shards.listing.patterns import Filenames, listed
from streamrec.shards.manifests.manifest import Manifest, ShardInfo
from streamrec.shards.manifests.places import location_of
from streamrec.shards.manifests.verify import ShardTally
from streamrec.storage import RetryPolicy, Storage, Storages, located
from streamrec.storage.tasks import side_by_side
from streamrec.tfrecord import DETECT_BYTES, CompressionType, detect_compression

__all__ = ["write_manifest", "write_manifest_sync"]


async def write_manifest(
    filenames: Filenames,
    manifest: str,
    *,
    overwrite: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
    parallel: int = 8,
) -> tuple[ShardInfo, ...]:
    """Writes the manifest of a data set that has none: what `distribute(even=)` and `verify` ask for.

    Each shard is read once, whole. `ShardWriter(manifest=...)` writes one at no cost.

    Args:
        filenames: The shards: names, braces and globs, as for `TFRecordDataset`.
        manifest: The URL to write to.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.
        parallel: Shards that are read at the same time.

    Returns:
        What the manifest says: path, records, bytes and CRC32C of each shard, in order.

    Raises:
        NotFoundError: There is no such shard.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is named twice; or the shards are compressed in different ways: a manifest has one for
            all.
        StorageError: The store failed, and retrying did not help.
    """
    manifest, filenames = located(manifest, filesystem), [located(name, filesystem) for name in listed(filenames)]
    async with Storages(storage_options, filesystem=filesystem, retry=retry or RetryPolicy()) as storages:
        paths = await find_shards(storages, filenames)
        await storages.check_spared(manifest, paths)
        check_named_once(paths)
        counted: dict[str, tuple[ShardInfo, CompressionType]] = {}
        left = iter(dict.fromkeys(paths))

        async def work() -> None:
            for path in left:
                counted[path] = await count(await storages.at(path), path)

        await side_by_side(*[work] * min(parallel, len(paths)))
        found = Manifest(manifest, paths[0], compression_of(counted), tuple(counted[path][0] for path in paths))
        async with await (await storages.at(manifest)).upload(manifest, overwrite=overwrite) as upload:
            await upload.write(found.to_json())
    return found.shards


write_manifest_sync = bridge.synchronous(write_manifest)


def check_named_once(paths: Sequence[str]) -> None:
    """Refuses shards of which one comes twice: nobody could read such a manifest."""
    seen = set[tuple[str, str]]()
    for path in paths:
        if (location := location_of(path)) in seen:
            raise ManifestError(f"{path}: this shard is named twice: a manifest has each shard once")
        seen.add(location)


async def count(storage: Storage, path: str) -> tuple[ShardInfo, CompressionType]:
    """Reads one shard to its end."""
    head = await storage.read_range(path, 0, DETECT_BYTES)
    kind = detect_compression(head)
    stream = await storage.stream(path)
    tally = ShardTally(kind, path, size=stream.info.size)
    try:
        await tally.take_all(stream)
    finally:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
    return tally.info(), kind


def compression_of(counted: Mapping[str, tuple[ShardInfo, CompressionType]]) -> CompressionType:
    """How all shards are compressed."""
    kinds = {kind: path for path, (_, kind) in sorted(counted.items())}
    if len(kinds) > 1:
        examples = ", ".join(f"{path} ({kind or 'not compressed'})" for kind, path in kinds.items())
        raise ManifestError(f"these shards are compressed in different ways: {examples}; give each kind its manifest")
    return next(iter(kinds))
