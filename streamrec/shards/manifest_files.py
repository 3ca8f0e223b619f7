"""Manifests in a store: written of shards that are there, read, and compared with the shards.

Rules of `verify`:
- Every shard is read once, whole, as a stream: its bytes go through CRC32C and through the framer, and are dropped. The
  framer counts the records and checks their lengths. It checks payloads only where the manifest has no CRC32C.
- What is wrong with the *data* is a row in the report. What keeps us from looking (no permission, a store that is
  down, a manifest that cannot be read) is an error: a report is only given when everything was looked at.
- A shard of another size is not read: what it holds cannot be right.
- Memory: a few blocks for each of `parallel` shards, however long their records are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Literal, Unpack

import anyio

from streamrec import bridge
from streamrec.display import display_name, display_repr, display_text
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards.index import MAGIC
from streamrec.shards.indexed_records import END_BYTES, open_index
from streamrec.shards.listing import find_shards
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.options import Expected, rewrite_advice
from streamrec.shards.patterns import Filenames, list_numbered, to_names
from streamrec.shards.places import location_of
from streamrec.shards.scan import Scan, scan
from streamrec.storage import ObjectInfo, Storage, Storages, StoreOptions, check_keywords, locate
from streamrec.storage.tasks import for_each, run_concurrently
from streamrec.tfrecord import CompressionType

__all__ = [
    "VerifyProblem",
    "VerifyReport",
    "find_in_manifest",
    "read_manifest",
    "verify",
    "verify_sync",
    "write_manifest",
    "write_manifest_sync",
]

Kind = Literal["missing", "extra", "bytes", "crc32c", "records"]


@display_repr
@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """One thing that is not as the manifest says.

    Attributes:
        path: The shard's URL.
        kind: "missing": it is not there. "extra": it is there, under a name that the pattern could have given, and
            the manifest does not name it; a glob would read it. "bytes", "crc32c", "records": this differs.
        expected: What the manifest says, in words.
        found: What the store has, in words.
    """

    path: str
    kind: Kind
    expected: str
    found: str

    def __str__(self) -> str:
        return display_text(
            f"{display_name(self.path)}: {self.kind}: {self.found} where the manifest says {self.expected}"
        )


@display_repr
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` found. True where all is as the manifest says.

    Attributes:
        manifest: The manifest's URL.
        shards: How many shards the manifest names.
        bytes: How many bytes were read and summed.
        problems: What is wrong, by path; empty where nothing is.
    """

    manifest: str
    shards: int
    bytes: int
    problems: tuple[VerifyProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether the data set is what the manifest says."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        rows = [f"  {problem}" for problem in self.problems]
        name = display_name(self.manifest)
        found = f"{len(rows):,} problem{'s' * (len(rows) > 1)}" if rows else "all as the manifest says"
        return "\n".join([f"{name}: {self.shards:,} shards, {self.bytes:,} bytes read: {found}", *rows])


async def read_manifest(storage: Storage, path: str) -> Manifest:
    """Reads a manifest, or what an index says of the same. Its names are not to be followed before `Manifest.follow`.

    Raises:
        NotFoundError: There is none.
        ManifestError: What is there is neither a manifest nor an index.
    """
    info = await storage.stat(path)
    size = info.size or 0
    end = await storage.read_range(path, max(0, size - END_BYTES), size, info.version)
    if end.endswith(MAGIC):
        return (await open_index(storage, path)).manifest
    if not end.rstrip().endswith(b"}"):
        raise ManifestError(
            f"{path}: this is neither a manifest nor an index: pass the URL of one; the command streamrec verify also "
            "takes shards"
        )
    start = await storage.read_range(path, 0, size - len(end), info.version) if size > len(end) else b""
    return Manifest.from_json(path, start + end)


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
        NotFoundError: The manifest does not exist.
        ManifestError: It is not a manifest, does not name a shard, or says another size or version.
    """
    found = await read_manifest(await storages.at(manifest), manifest)
    known = {location_of(shard.path): shard for shard in found.shards}
    found_shards = []
    for path in paths:
        shard = known.get(location_of(path))
        if shard is None:
            raise ManifestError(
                f"{manifest}: this manifest does not name {path}, so the number of its records is unknown: pass the "
                f"names that it has; or {rewrite_advice(manifest)}"
            )
        if path in listed:
            Expected(shard.bytes, shard.version, None, manifest).check(listed[path])
        found_shards.append(replace(shard, path=path))
    return found_shards


async def verify(
    manifest: str,
    *,
    shard_root: str | None = None,
    parallel: int = 8,
    **store: Unpack[StoreOptions],
) -> VerifyReport:
    """Reads a whole data set and compares it with the manifest or the index that `ShardWriter` or another one wrote.

    Finds shards that are missing, that the manifest does not name, or whose size, CRC32C or number of records differs.

    Examples:
        >>> async def check():
        ...     report = await verify("s3://bucket/train/manifest.json")
        ...     for problem in report.problems:
        ...         print(problem)

    Args:
        manifest: Its URL, or that of an index. An index that was made without reading the shards has no CRC32C of them.
        shard_root: The URL of the directory that the shards are in, where that is not the manifest's own. A manifest
            that names objects outside both is refused.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The report; it has no problems where all is well.

    Raises:
        NotFoundError: The manifest does not exist.
        ManifestError: It is not a manifest, or it names objects elsewhere.
        UnsupportedOperationError: The store cannot be listed (plain HTTP), and there may be more than one shard.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    manifest = locate(manifest, filesystem)
    check_keywords("verify", store)
    async with Storages(**store) as storages:
        found = (await read_manifest(await storages.at(manifest), manifest)).follow(
            None if shard_root is None else locate(shard_root, filesystem)
        )
        problems: list[VerifyProblem] = []
        sizes: list[int] = []

        async def compare(shard: ShardInfo) -> None:
            nbytes, differences = await compare_shard(storages, found, shard)
            sizes.append(nbytes)
            problems.extend(differences)

        async def look_for_extras() -> None:
            named = {shard.path for shard in found.shards}
            async for info in list_numbered(storages, found.pattern):
                if info.path not in named:
                    size = f"an object of {info.size:,} bytes"
                    problems.append(VerifyProblem(info.path, "extra", "nothing of it", size))

        await run_concurrently(look_for_extras, partial(for_each, compare, found.shards, parallel))
    problems.sort(key=attrgetter("path", "kind"))
    return VerifyReport(manifest, len(found.shards), sum(sizes), tuple(problems))


verify_sync = bridge.synchronous(verify)


async def compare_shard(storages: Storages, manifest: Manifest, shard: ShardInfo) -> tuple[int, list[VerifyProblem]]:
    """Reads a shard; returns how many bytes were read, and how it differs from what the manifest says of it."""
    storage = await storages.at(shard.path)
    try:
        stream = await storage.stream(shard.path)
    except NotFoundError:
        return 0, [VerifyProblem(shard.path, "missing", f"{shard.bytes:,} bytes", "nothing")]
    size = stream.info.size
    if size is not None and size != shard.bytes:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        return 0, [VerifyProblem(shard.path, "bytes", f"{shard.bytes:,}", f"{size:,}")]
    unsummed = shard.crc32c is None  # then each record's own CRC32C is checked
    found, _, damage = await scan(storage, stream, manifest.compression_type, verify=unsummed, to_end=True)
    problems = []
    if found.bytes != shard.bytes:
        problems.append(VerifyProblem(shard.path, "bytes", f"{shard.bytes:,}", f"{found.bytes:,}"))
    if shard.crc32c is not None and found.crc32c != shard.crc32c:
        problems.append(VerifyProblem(shard.path, "crc32c", f"{shard.crc32c:08x}", f"{found.crc32c:08x}"))
    if damage is not None or found.records != shard.records:
        counted = f"{found.records:,}" if damage is None else f"{found.records:,} before this: {damage}"
        problems.append(VerifyProblem(shard.path, "records", f"{shard.records:,}", counted))
    return found.bytes, problems


async def write_manifest(
    filenames: Filenames,
    manifest: str,
    *,
    overwrite: bool = True,
    parallel: int = 8,
    **store: Unpack[StoreOptions],
) -> tuple[ShardInfo, ...]:
    """Writes the manifest of a data set that has none: what `distribute(even=)` and `verify` ask for.

    Each shard is read once, whole. `ShardWriter(manifest=...)` writes one at no cost.

    Args:
        filenames: The shards: names, braces and globs, as for `TFRecordDataset`.
        manifest: The URL to write to.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        What the manifest says: path, records, bytes and CRC32C of each shard, in order.

    Raises:
        NotFoundError: A shard does not exist.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is named twice; or the shards are compressed in different ways: a manifest has one for
            all.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    manifest, filenames = locate(manifest, filesystem), [locate(name, filesystem) for name in to_names(filenames)]
    check_keywords("write_manifest", store)
    async with Storages(**store) as storages:
        paths = await find_shards(storages, filenames)
        await storages.check_not_input(manifest, paths)
        check_named_once(paths)
        counted: dict[str, Scan] = {}

        async def count(path: str) -> None:
            storage = await storages.at(path)
            counted[path] = await scan(storage, await storage.stream(path))

        await for_each(count, paths, parallel)
        found = Manifest(manifest, paths[0], compression_of(counted), tuple(counted[path].info for path in paths))
        async with await (await storages.at(manifest)).upload(manifest, overwrite=overwrite) as upload:
            await upload.write(found.to_json())
    return found.shards


write_manifest_sync = bridge.synchronous(write_manifest)


def check_named_once(paths: Sequence[str]) -> None:
    """Refuses a list that names a shard twice: such a manifest cannot be read."""
    seen = set[tuple[str, str]]()
    for path in paths:
        if (location := location_of(path)) in seen:
            raise ManifestError(f"{path}: this shard is named twice: name it once")
        seen.add(location)


def compression_of(counted: Mapping[str, Scan]) -> CompressionType:
    """How all shards are compressed."""
    kinds = {found.compression_type: path for path, found in sorted(counted.items())}
    if len(kinds) > 1:
        examples = ", ".join(f"{path} ({kind or 'not compressed'})" for kind, path in kinds.items())
        raise ManifestError(f"these shards are compressed in different ways: {examples}; give each kind its manifest")
    return next(iter(kinds))
