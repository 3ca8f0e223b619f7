"""Manifests in a store: written for existing shards, and compared with shards; shards without one
are checked. `manifest_reading.py` reads them.

Rules of `verify`:
- Every shard is read once, whole, as a stream: its bytes go through CRC32C and through the framer,
  and are dropped. The framer counts the records and checks their lengths. It checks payloads only
  if no manifest has a CRC32C of the shard.
- A problem of the *data* is a row in the report. A problem that prevents a check (no permission, a
  store that is down, a manifest that cannot be read) is an error: a report covers everything.
- A shard whose size differs is not read: its records cannot be right.
- Memory: a few blocks for each of `parallel` shards, even if their records are long.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Literal, Self, Unpack

import anyio

from streamrec import bridge
from streamrec.display import display_name, display_repr, display_text
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards.leftovers import find_described, warn_of
from streamrec.shards.listing import Filenames, list_shards, to_names
from streamrec.shards.manifest import Manifest, ShardInfo
from streamrec.shards.manifest_reading import read_if_manifest, read_manifest
from streamrec.shards.matches import gaps_of
from streamrec.shards.numbered_names import Gap
from streamrec.shards.opening import open_bytes
from streamrec.shards.patterns import is_glob, is_manifest, is_pattern, list_numbered
from streamrec.shards.places import check_named_once
from streamrec.shards.scan import Scan, scan
from streamrec.storage import Overwrite, Storages, StoreOptions, check_keywords, locate
from streamrec.storage.tasks import for_each, run_concurrently
from streamrec.tfrecord import CompressionType
from streamrec.tracebacks import border

Kind = Literal["missing", "extra", "bytes", "crc32c", "records", "damage", "mixed"]


@display_repr
@dataclass(frozen=True, slots=True)
class VerifyProblem:
    """One difference from the manifest, or the first damage of a shard that was verified without
    one.

    Attributes:
        path: The shard's URL.
        kind: "missing": the shard does not exist; or the names of the others, as in
            `-00005-of-00008`, tell of a shard that the manifest does not name, or the pattern does
            not match. "mixed": these names tell different numbers of shards; the path is a pattern
            of them. "extra": the manifest does not name the shard,
            but its name matches the pattern, so a glob would read it. "bytes", "crc32c", "records":
            this value differs. "damage": the shard has no manifest, and is damaged.
        expected: The manifest's value, in words; "" without a manifest.
        found: The store's value, in words.
    """

    path: str
    kind: Kind
    expected: str
    found: str

    @classmethod
    def of_gap(cls, gap: Gap) -> list[Self]:
        """The shards that the names of others tell of and that are not there, each as a problem."""
        if len(gap.totals) > 1:
            return [cls(gap.pattern, "mixed", "", gap.told)]
        [(total, there)] = gap.totals.items()
        told = f"nothing, and the names of {there:,} others tell of {total:,} shards"
        return [cls(path, "missing", "", told) for path in gap.examples]

    def __str__(self) -> str:
        expected = self.expected and f" where the manifest says {self.expected}"
        return display_text(f"{display_name(self.path)}: {self.kind}: {self.found}{expected}")


@display_repr
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of `verify`. It is true if the data set matches the manifest, or has none and is
    not damaged.

    Attributes:
        manifest: The manifest's URL; None if shards were verified without one.
        shards: The number of shards.
        bytes: The number of bytes that were read and summed.
        problems: The differences or the damage, sorted by path; empty if there are none.
    """

    manifest: str | None
    shards: int
    bytes: int
    problems: tuple[VerifyProblem, ...]

    @property
    def ok(self) -> bool:
        """Whether `problems` is empty."""
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        rows = [f"  {problem}" for problem in self.problems]
        name = ""
        fine = "nothing is damaged"
        if self.manifest is not None:
            name = f"{display_name(self.manifest)}: "
            fine = "all as the manifest says"
        found = f"{len(rows):,} problem{'s' * (len(rows) > 1)}" if rows else fine
        return "\n".join(
            [f"{name}{self.shards:,} shards, {self.bytes:,} bytes read: {found}", *rows]
        )


@border
async def verify(
    source: str,
    *,
    shard_root: str | None = None,
    parallel: int = 8,
    **store: Unpack[StoreOptions],
) -> VerifyReport:
    """Reads a whole data set and compares it with its manifest or index, or looks for damage if it
    has neither.

    With a manifest, it finds shards that are missing, shards that the manifest does not name, and
    shards whose size, CRC32C or number of records differs. Without one, it checks the CRC32C of
    each record, and reports the first damage of each shard; `streamrec verify` lists all of it.

    Examples:
        >>> async def check():
        ...     report = await verify("s3://bucket/train/manifest.json")
        ...     for problem in report.problems:
        ...         print(problem)

    Args:
        source: The URL of a manifest or an index; or of a shard, or a pattern of shards. An index
            that was made without reading the shards has no CRC32C of them.
        shard_root: The URL of the shards' directory, if that is not the manifest's own. A manifest
            that names objects outside both is refused.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The report; it has no problems if all shards match, or are whole.

    Raises:
        NotFoundError: `source` does not exist, or matches nothing.
        ManifestError: The manifest is invalid, or it names objects elsewhere.
        UnsupportedOperationError: The store cannot be listed (plain HTTP), and there may be more
            than one shard.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    path = locate(source, filesystem)
    check_keywords("verify", store)
    async with Storages(**store) as storages:
        root = None if shard_root is None else locate(shard_root, filesystem)
        manifest = None
        if is_manifest(path):
            manifest = await read_manifest(await storages.at(path), path)
        elif not is_pattern(path):  # a manifest may have any name
            manifest = await read_if_manifest(await storages.at(path), path)
        if manifest is None:
            found = await verify_shards(storages, path, parallel)
        else:
            found = await verify_manifest(storages, path, manifest.follow(root), parallel)
    problems = sorted(found.problems, key=attrgetter("path", "kind"))
    name = None if manifest is None else path
    return VerifyReport(name, found.shards, sum(found.sizes), tuple(problems))


@dataclass(slots=True)
class Verified:
    """What reading some shards has found so far."""

    shards: int
    sizes: list[int] = field(default_factory=list)
    problems: list[VerifyProblem] = field(default_factory=list)


async def verify_shards(storages: Storages, names: str, parallel: int) -> Verified:
    """Reads the shards that a name or pattern stands for, and checks each record."""
    listing = await list_shards(storages, names)
    verified = Verified(len(listing.paths))

    async def check(path: str) -> None:
        storage = await storages.at(path)
        stream = await open_bytes(storage, path, size=listing.size_of(path))
        found, _, damage = await scan(storage, stream, verify=True, to_end=True)
        verified.sizes.append(found.bytes)
        if damage is not None:
            text = f"{found.records:,} good records before this: {damage}"
            verified.problems.append(VerifyProblem(path, "damage", "", text))

    await for_each(check, listing.paths, parallel)
    # A name alone tells of no other shards; a glob should have matched all of them.
    for gap in gaps_of(names, listing.paths) if is_glob(names) else []:
        verified.problems += VerifyProblem.of_gap(gap)
    return verified


async def verify_manifest(
    storages: Storages, path: str, expected: Manifest, parallel: int
) -> Verified:
    """Compares the shards of a manifest with what it says, and looks for shards that it lacks."""
    paths = [shard.path for shard in expected.shards]
    verified = Verified(len(paths))

    async def compare(shard: ShardInfo) -> None:
        nbytes, differences = await compare_shard(storages, expected, shard)
        verified.sizes.append(nbytes)
        verified.problems.extend(differences)

    async def find_extra_shards() -> None:
        named = set(paths)
        async for info in list_numbered(storages, expected.pattern):
            if info.path not in named:
                size = f"an object of {info.size:,} bytes"
                verified.problems.append(VerifyProblem(info.path, "extra", "nothing of it", size))

    compare_all = partial(for_each, compare, expected.shards, parallel)
    await run_concurrently(find_extra_shards, compare_all)
    # A shard that the manifest names and the store lacks is reported once, not as a gap, too.
    reported = {problem.path for problem in verified.problems if problem.kind == "missing"}
    for gap in gaps_of(path, paths):
        told = VerifyProblem.of_gap(gap)
        verified.problems += [each for each in told if each.path not in reported]
    return verified


verify_sync = bridge.synchronous(verify)


async def compare_shard(
    storages: Storages, manifest: Manifest, shard: ShardInfo
) -> tuple[int, list[VerifyProblem]]:
    """Reads a shard; returns the number of bytes that were read, and the differences from the
    manifest.
    """
    storage = await storages.at(shard.path)
    try:
        stream = await storage.stream(shard.path, size=shard.bytes)
    except NotFoundError:
        return 0, [VerifyProblem(shard.path, "missing", f"{shard.bytes:,} bytes", "nothing")]
    size = stream.info.size
    if size is not None and size != shard.bytes:
        with anyio.CancelScope(shield=True):
            await stream.aclose()
        return 0, [VerifyProblem(shard.path, "bytes", f"{shard.bytes:,}", f"{size:,}")]
    # The CRC32C of all bytes proves those of the records, too, and costs less than checking both.
    verify_records = shard.crc32c is None
    found, _, damage = await scan(
        storage, stream, manifest.compression_type, verify=verify_records, to_end=True
    )
    problems = []
    if found.bytes != shard.bytes:
        problems.append(VerifyProblem(shard.path, "bytes", f"{shard.bytes:,}", f"{found.bytes:,}"))
    if shard.crc32c is not None and found.crc32c != shard.crc32c:
        problems.append(
            VerifyProblem(shard.path, "crc32c", f"{shard.crc32c:08x}", f"{found.crc32c:08x}")
        )
    if damage is not None or found.records != shard.records:
        counted = (
            f"{found.records:,}" if damage is None else f"{found.records:,} before this: {damage}"
        )
        problems.append(VerifyProblem(shard.path, "records", f"{shard.records:,}", counted))
    return found.bytes, problems


@border
async def write_manifest(
    filenames: Filenames,
    manifest: str | os.PathLike[str],
    *,
    overwrite: Overwrite = True,
    parallel: int = 8,
    **store: Unpack[StoreOptions],
) -> tuple[ShardInfo, ...]:
    """Writes the manifest of an existing data set, for `distribute(even=)` and `verify`.

    Each shard is read once, whole. `ShardWriter(manifest=...)` writes one at no cost.

    Args:
        filenames: The shards: names, braces and globs, as for `TFRecordDataset`.
        manifest: The URL to write to.
        overwrite: Whether an existing object is replaced; see `ShardWriter`.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The shards of the manifest, in order: path, records, bytes and CRC32C of each.

    Raises:
        NotFoundError: A shard does not exist.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is named twice; or the shards have different compressions, and a
            manifest has one compression for all.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    target = locate(manifest, filesystem)
    names = [locate(name, filesystem) for name in to_names(filenames)]
    check_keywords("write_manifest", store)
    async with Storages(**store) as storages:
        listing = await list_shards(storages, names)
        paths = listing.paths
        await storages.check_not_input(target, paths)
        check_named_once(paths)
        scans: dict[str, Scan] = {}

        async def count(path: str) -> None:
            storage = await storages.at(path)
            stream = await open_bytes(storage, path, size=listing.size_of(path))
            scans[path] = await scan(storage, stream)

        await for_each(count, paths, parallel)
        shards = tuple(scans[path].info for path in paths)
        data = Manifest(target, paths[0], compression_of(scans), shards).to_json()
        # Asked before the old manifest is replaced.
        told = await find_described(storages, target, paths) if overwrite else None
        async with await (await storages.at(target)).upload(target, overwrite=overwrite) as upload:
            await upload.write(data)
    warn_of(told)
    return shards


write_manifest_sync = bridge.synchronous(write_manifest)


def compression_of(scans: Mapping[str, Scan]) -> CompressionType:
    """The compression of all shards; refuses shards that differ in it."""
    kinds = {scan.compression_type: path for path, scan in sorted(scans.items())}
    if len(kinds) > 1:
        examples = ", ".join(f"{path} ({kind or 'not compressed'})" for kind, path in kinds.items())
        raise ManifestError(
            f"these shards have different compressions: {examples}; give each kind its manifest"
        )
    return next(iter(kinds))
