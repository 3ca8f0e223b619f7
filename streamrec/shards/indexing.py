"""Writes the index of existing shards, in one process or in many that each index a part of the
shards.

Each shard is indexed in the cheapest way:

- If an older index has the shard with the same size and version, nothing is read.
- If there is an `.idx` file, that is read, and the header of the shard's last record.
- If the shard is on a local disk, its headers are read.
- Otherwise the shard is read once, whole.

Many tasks finish shards in any order; the index keeps the shards' order.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Unpack

import anyio
from fsspec import AbstractFileSystem

from streamrec import bridge
from streamrec.arguments import check_flag, check_integer
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards.index import Index, IndexedShard, IndexEncoder
from streamrec.shards.indexed_records import open_index, read_blocks
from streamrec.shards.leftovers import find_described, warn_of
from streamrec.shards.listing import Filenames, find_shards, list_shards, to_names
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.places import check_named_once, portable
from streamrec.shards.scan import scan_file, scan_idx, scan_stream
from streamrec.storage import (
    Overwrite,
    Storage,
    Storages,
    StoreOptions,
    check_keywords,
    local_path,
    locate,
    protocol_of,
)
from streamrec.storage.tasks import for_each
from streamrec.store_kinds import kind_of_protocol
from streamrec.tfrecord import PackedLengths
from streamrec.tracebacks import border

Job = Callable[[], Awaitable[IndexedShard]]
"""Indexes one shard."""


async def assemble(
    storage: Storage,
    url: str,
    jobs: Sequence[Job],
    *,
    pattern: str | None,
    overwrite: Overwrite,
    parallel: int,
) -> Index:
    """Writes an index, which appears under its name when it is complete.

    The jobs are in the order of the index, and up to `parallel` run at the same time. `pattern` is
    the URL of the shards, with `{shard}` for their number; None for that of the first one.
    """
    encoder = IndexEncoder(url, pattern)
    done: dict[int, IndexedShard] = {}
    lock = anyio.Lock()
    async with await storage.upload(url, overwrite=overwrite) as upload:

        async def work(numbered: tuple[int, Job]) -> None:
            number, job = numbered
            done[number] = await job()
            async with lock:
                while encoder.count in done:
                    await upload.write(encoder.add(done.pop(encoder.count)))

        await for_each(work, list(enumerate(jobs)), parallel)
        index, end = encoder.finish()
        await upload.write(end)
    return index


async def read_indexed_shard(storage: Storage, index: Index, number: int) -> IndexedShard:
    """The shard of this number, with the lengths of its records, from an index."""
    first, last = index.first_blocks[number : number + 2].tolist()
    data = b"".join(await read_blocks(storage, index, first, last))
    info = index.shards[number]
    return IndexedShard(info, PackedLengths(data, index.blocks[first:last], info.records))


async def read_unchanged(storages: Storages, index: Index, number: int) -> IndexedShard | None:
    """As `read_indexed_shard`; None unless the store still has the shard with the same size and
    version.
    """
    shard = index.shards[number]
    info = await (await storages.at(shard.path)).stat(shard.path)
    if shard.version is None or (shard.bytes, shard.version) != (info.size, info.version):
        return None
    return await read_indexed_shard(await storages.at(index.path), index, number)


async def scan_shard(
    storages: Storages, path: str, idx: str | None, local: bool, size: int | None = None
) -> IndexedShard:
    """Indexes a shard in the cheapest way: from its `.idx` file, from its headers, or from all its
    bytes, of which a listing may know the number.
    """
    storage = await storages.at(path)
    if idx is not None:
        return await scan_idx(storage, path, await storages.at(idx), idx)
    if local and kind_of_protocol(protocol_of(path)).name == "file":
        return await scan_file(storage, path, local_path(path))
    return await scan_stream(storage, path, size)


PARALLEL: Final = 16


@border
async def write_index(
    filenames: Filenames,
    index: str | os.PathLike[str],
    *,
    idx_files: Filenames | None = None,
    part: tuple[int, int] | None = None,
    update: bool = False,
    overwrite: Overwrite = True,
    on_shard: Callable[[ShardInfo], None] | None = None,
    parallel: int = PARALLEL,
    **store: Unpack[StoreOptions],
) -> Index:
    """Writes the index of a data set: the length of each record, so that you can read any record by
    its number.

    Shards in a store are read once, whole. Of shards on local disks only the headers are read.
    `ShardWriter(index=...)` writes an index at no cost.

    Examples:
        >>> async def build():
        ...     await write_index("s3://bucket/train-*.tfrecord", "s3://bucket/train.index")
        ...     return RecordSource("s3://bucket/train.index")[1_234_567]

    Args:
        filenames: The shards: names, braces and globs, as for `TFRecordDataset`. Their order is
            that of the records.
        index: The URL to write to. Names of shards below its directory are relative to it, so that
            a data set may be moved with its index.
        idx_files: The files of `tfrecord2idx` (DALI's or vahidk's) for these shards, in the same
            order; None for none. With them only the header of each shard's last record is read.
        part: `(i, n)`: this process indexes the i-th of n parts of the shards, 0 to n - 1, and
            writes that index next to `index`, under the name that `part_of` returns; `join_index`
            joins all n parts.
        update: Whether an existing index is used for shards that have not changed since.
        overwrite: Whether an existing object is replaced; see `ShardWriter`.
        on_shard: Called with each finished shard, on the event loop's thread: it must not block.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The index: its shards; `len(index)` is the number of records.

    Raises:
        NotFoundError: A shard or an `.idx` file does not exist.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is compressed or named twice, or an `.idx` file is not that of its
            shard.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    url = locate(index, filesystem)
    names = [locate(name, filesystem) for name in to_names(filenames)]
    target = url if part is None else part_of(url, *part)
    check_flag("update", update)
    check_integer("parallel", parallel, 1)
    check_keywords("write_index", store)
    async with Storages(**store) as storages:
        listing = await list_shards(storages, names)
        paths = listing.paths
        await storages.check_not_input(target, paths)
        check_named_once(paths)
        idx_paths = (
            [None] * len(paths)
            if idx_files is None
            else await idx_of(storages, paths, idx_files, filesystem)
        )
        number, parts = part or (0, 1)
        first = number * len(paths) // parts
        last = (number + 1) * len(paths) // parts
        storage = await storages.at(target)
        known = dict[str, tuple[Index, int]]()
        if update:  # a shard that the store still has in this version need not be read
            with suppress(NotFoundError):
                old = await open_index(storage, target)
                known = {shard.path: (old, number) for number, shard in enumerate(old.shards)}

        async def index_shard(path: str, idx: str | None) -> IndexedShard:
            shard = await read_unchanged(storages, *known[path]) if path in known else None
            if shard is None:
                size = listing.size_of(path)
                shard = await scan_shard(storages, path, idx, filesystem is None, size)
            if on_shard is not None:
                on_shard(shard.info)
            return shard

        jobs = [
            partial(index_shard, portable(url, path), idx)
            for path, idx in zip(paths, idx_paths, strict=True)
        ]
        # Asked before the index is replaced: then the old one can still say what it describes.
        told = await find_described(storages, target, paths) if overwrite else None
        made = await assemble(
            storage, target, jobs[first:last], pattern=None, overwrite=overwrite, parallel=parallel
        )
    warn_of(told)
    return made


write_index_sync = bridge.synchronous(write_index)


@border
async def join_index(
    parts: Filenames,
    index: str,
    *,
    overwrite: Overwrite = True,
    **store: Unpack[StoreOptions],
) -> Index:
    """Joins several indexes: the parts that many processes wrote, or the indexes of several data
    sets.

    Args:
        parts: Their URLs, in the order of the new index's shards; "train.index.part-*" for those of
            `write_index(part=(i, n))`.
        index: The URL to write to.
        overwrite: Whether an existing object is replaced; see `ShardWriter`.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The index. The parts stay where they are.

    Raises:
        NotFoundError: A part does not exist.
        ManifestError: A part is missing, damaged or not an index, or two parts have the same shard.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    url = locate(index, filesystem)
    names = [locate(name, filesystem) for name in to_names(parts)]
    check_keywords("join_index", store)
    async with Storages(**store) as storages:
        paths = await find_shards(storages, names)
        check_parts(paths)
        jobs: list[Job] = []
        indexes = []
        for path in paths:
            storage = await storages.at(path)
            indexes.append(await open_index(storage, path))
            numbers = range(len(indexes[-1].shards))
            jobs += [
                partial(read_indexed_shard, storage, indexes[-1], number) for number in numbers
            ]
        check_named_once(shard.path for found in indexes for shard in found.shards)
        # The parts of one data set have one pattern; of several sets, none describes all.
        patterns = {found.pattern for found in indexes}
        pattern = patterns.pop() if len(patterns) == 1 else None
        target = await storages.at(url)
        joined = [shard.path for found in indexes for shard in found.shards]
        told = await find_described(storages, url, joined) if overwrite else None
        made = await assemble(
            target, url, jobs, pattern=pattern, overwrite=overwrite, parallel=PARALLEL
        )
    warn_of(told)
    return made


join_index_sync = bridge.synchronous(join_index)


def part_of(index: str, number: int, parts: int) -> str:
    """The URL of a part of an index.

    Examples:
        >>> part_of("s3://bucket/train.index", 0, 16)
        's3://bucket/train.index.part-00000-of-00016'
    """
    if not 0 <= check_integer("part", number, 0) < check_integer("parts", parts, 1):
        raise ValueError(f"part {number} of {parts}: parts are 0 to {parts - 1}")
    return f"{index}.part-{number:05d}-of-{parts:05d}"


def check_parts(paths: Sequence[str]) -> None:
    """Refuses a list of `part_of` names that is not complete and in order."""
    matches = [re.search(r"\.part-(\d+)-of-(\d+)$", path) for path in paths]
    if not all(matches):
        return
    parts = [(int(match[1]), int(match[2])) for match in matches if match]
    expected = [(number, parts[0][1]) for number in range(parts[0][1])]
    if parts != expected:
        missing = ", ".join(
            str(number) for number, total in expected if (number, total) not in parts
        )
        raise ManifestError(
            f"{paths[0]} and {len(paths) - 1} more: these are not all {len(expected)} parts, each "
            "once and in order"
            + (f"; missing: {missing}" if missing else "")
            + ": write them with write_index(part=(i, n)), or streamrec index --part i/n"
        )


async def idx_of(
    storages: Storages,
    paths: Sequence[str],
    idx_files: Filenames,
    filesystem: AbstractFileSystem | None,
) -> list[str | None]:
    """The `.idx` file of each shard, in the order of the shards; refuses another number of them."""
    found = await find_shards(storages, [locate(name, filesystem) for name in to_names(idx_files)])
    if len(found) != len(paths):
        raise ManifestError(
            f"{len(paths):,} shards and {len(found):,} .idx files, from {found[0]} on: pass one "
            "for each shard, in the "
            "same order"
        )
    return list(found)
