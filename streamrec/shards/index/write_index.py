"""write_index: the index of shards that are there already; by one process, or by many that each take a part."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from fsspec import AbstractFileSystem

from streamrec import bridge
from streamrec.arguments import flag, integer
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards.index.assemble import Job, assemble, read_indexed_shard
from streamrec.shards.index.index import Index
from streamrec.shards.index.reader import open_index
from streamrec.shards.index.survey import Survey
from streamrec.shards.listing.listing import find_shards
from streamrec.shards.listing.patterns import Filenames, listed
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.shards.manifests.places import portable
from streamrec.storage import RetryPolicy, Storages, located

__all__ = ["join_index", "join_index_sync", "join_parts", "part_of", "write_index", "write_index_sync"]

PARALLEL: Final = 16


async def write_index(
    filenames: Filenames,
    index: str,
    *,
    idx_files: Filenames | None = None,
    part: tuple[int, int] | None = None,
    update: bool = False,
    overwrite: bool = True,
    on_shard: Callable[[ShardInfo], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
    parallel: int = PARALLEL,
) -> Index:
    """Writes the index of a data set: the length of each record, so that any of them can be read by itself.

    Shards in a store are read once, whole. Of shards on local disks only the headers are read. `ShardWriter(index=...)`
    writes an index at no cost.

    Examples:
        >>> async def build():
        ...     await write_index("s3://bucket/train-*.tfrecord", "s3://bucket/train.index")
        ...     return RecordSource("s3://bucket/train.index")[1_234_567]

    Args:
        filenames: The shards: names, braces and globs, as for `TFRecordDataset`. Their order is that of the records.
        index: The URL to write to. Names of shards below its directory are kept relative to it, so that a data set may
            be moved with its index.
        idx_files: The files of `tfrecord2idx` (DALI's or vahidk's) of these shards, in the same order; None for none.
            Then of each shard only its last record's header is read.
        part: `(i, n)`: this process takes the i-th of n parts of the shards, 0 to n - 1, and writes the index of them
            beside `index`, under the name that `part_of` gives; `join_index` makes one of all n.
        update: Whether what an index that is there says of shards that have not changed since is taken from it.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        on_shard: Called with each shard that is done, on the event loop's thread: it must not block.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.
        parallel: Shards that are read at the same time.

    Returns:
        The index: its shards, and how many records there are.

    Raises:
        NotFoundError: There is no such shard, or no such `.idx` file.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is compressed, or an `.idx` file is not that of its shard.
        StorageError: The store failed, and retrying did not help.
    """
    url = located(index, filesystem)
    names = [located(name, filesystem) for name in listed(filenames)]
    target = url if part is None else part_of(url, *part)
    flag("update", update)
    integer("parallel", parallel, 1)
    async with Storages(storage_options, filesystem=filesystem, retry=retry or RetryPolicy()) as storages:
        paths = await find_shards(storages, names)
        await storages.check_spared(target, paths)
        idx = [None] * len(paths) if idx_files is None else await idx_of(storages, paths, idx_files, filesystem)
        own = (
            slice(None)
            if part is None
            else slice(part[0] * len(paths) // part[1], (part[0] + 1) * len(paths) // part[1])
        )
        storage, old = await storages.at(target), None
        if update:
            with suppress(NotFoundError):
                old = await open_index(storage, target)
        survey = Survey(storages, old, filesystem is None, on_shard)
        jobs = [partial(survey.find_out, portable(url, path), name) for path, name in zip(paths, idx, strict=True)]
        return await assemble(storage, target, jobs[own], pattern=None, overwrite=overwrite, parallel=parallel)


write_index_sync = bridge.synchronous(write_index)


async def join_index(
    parts: Filenames,
    index: str,
    *,
    overwrite: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    filesystem: AbstractFileSystem | None = None,
    retry: RetryPolicy | None = None,
) -> Index:
    """Makes one index of several: of the parts that many processes wrote, or of data sets that are to be one.

    Args:
        parts: Their URLs, in the order that the shards are to have; "train.index.part-*" for those of
            `write_index(part=(i, n))`.
        index: The URL to write to.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        storage_options: Passed to the fsspec filesystem (credentials, endpoint).
        filesystem: Your own fsspec filesystem, instead of one made from `storage_options`.
        retry: What happens when the network fails; see RetryPolicy.

    Returns:
        The index. The parts stay where they are.

    Raises:
        NotFoundError: There is no such part.
        ManifestError: One is no index or damaged, or of n parts one is missing.
        StorageError: The store failed, and retrying did not help.
    """
    url = located(index, filesystem)
    names = [located(name, filesystem) for name in listed(parts)]
    async with Storages(storage_options, filesystem=filesystem, retry=retry or RetryPolicy()) as storages:
        paths = await find_shards(storages, names)
        check_parts(paths)
        return await join_parts(storages, url, paths, overwrite)


async def join_parts(storages: Storages, url: str, paths: Sequence[str], overwrite: bool = True) -> Index:
    """As `join_index`, of parts whose names are known."""
    jobs: list[Job] = []
    patterns = set()
    for path in paths:
        storage = await storages.at(path)
        found = await open_index(storage, path)
        patterns.add(found.pattern)
        jobs += [partial(read_indexed_shard, storage, found, number) for number in range(len(found.shards))]
    pattern = patterns.pop() if len(patterns) == 1 else None
    at = await storages.at(url)
    return await assemble(at, url, jobs, pattern=pattern, overwrite=overwrite, parallel=PARALLEL)


join_index_sync = bridge.synchronous(join_index)


def part_of(index: str, number: int, parts: int) -> str:
    """The URL of a part of an index.

    Raises:
        ValueError: There is no such part.

    Examples:
        >>> part_of("s3://bucket/train.index", 0, 16)
        's3://bucket/train.index.part-00000-of-00016'
    """
    if not 0 <= integer("part", number, 0) < integer("parts", parts, 1):
        raise ValueError(f"part {number} of {parts}: parts are 0 to {parts - 1}")
    return f"{index}.part-{number:05d}-of-{parts:05d}"


def check_parts(paths: Sequence[str]) -> None:
    """Refuses parts of which one is missing.

    Raises:
        ManifestError: Of n parts there are fewer, or parts of several such rows.
    """
    named = [re.search(r"\.part-(\d+)-of-(\d+)$", path) for path in paths]
    if not all(named):
        return
    found = [(int(match[1]), int(match[2])) for match in named if match]
    wanted = [(number, found[0][1]) for number in range(found[0][1])]
    if found != wanted:
        missing = ", ".join(str(number) for number, _ in wanted if (number, found[0][1]) not in found)
        raise ManifestError(
            f"{paths[0]} and {len(paths) - 1} more: of {found[0][1]} parts these are not all, each once and in order"
            + (f"; missing: {missing}" if missing else "")
            + ": write them with write_index(part=(i, n)), or streamrec index --part i/n"
        )


async def idx_of(
    storages: Storages, paths: Sequence[str], idx_files: Filenames, filesystem: AbstractFileSystem | None
) -> list[str | None]:
    """The `.idx` file of each shard."""
    found = await find_shards(storages, [located(name, filesystem) for name in listed(idx_files)])
    if len(found) != len(paths):
        raise ManifestError(
            f"{len(paths):,} shards and {len(found):,} .idx files, from {found[0]} on: each shard has one, in the same "
            "order"
        )
    return list(found)
