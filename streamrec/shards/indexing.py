"""The index of shards that are there already; by one process, or by many that each take a part of the shards.

What the index holds of a shard is found in the way that costs least:

- it is known from an index that is brought up to date, and the store says that the shard has the same size and version:
  nothing is read;
- there is an `.idx` file: that is read, and the header of the shard's last record;
- it is on a disk of this machine: its headers are read;
- else it is read once, whole.

Shards come in any order from many tasks and are written in theirs.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Unpack

import anyio
from fsspec import AbstractFileSystem

from streamrec import bridge
from streamrec.arguments import flag, integer
from streamrec.errors import ManifestError, NotFoundError
from streamrec.shards.index import Index, IndexedShard, IndexEncoder
from streamrec.shards.indexed_records import open_index, read_blocks
from streamrec.shards.listing import find_shards
from streamrec.shards.manifest import ShardInfo
from streamrec.shards.patterns import Filenames, to_names
from streamrec.shards.places import portable
from streamrec.shards.scan import scan_file, scan_idx, scan_stream
from streamrec.storage import Storage, Storages, StoreOptions, check_keywords, local_path, locate, protocol_of
from streamrec.storage.tasks import for_each
from streamrec.tfrecord import PackedLengths

__all__ = ["join_index", "join_index_sync", "part_of", "write_index", "write_index_sync"]

Job = Callable[[], Awaitable[IndexedShard]]
"""Finds out what the index holds of one shard."""


async def assemble(
    storage: Storage, url: str, jobs: Sequence[Job], *, pattern: str | None, overwrite: bool, parallel: int
) -> Index:
    """Writes an index: nothing is visible under its name before all of it is there.

    The jobs are in the order of the index, and up to `parallel` run at the same time. `pattern` is the URL of the
    shards, with `{shard}` where their number goes; None for that of the first one.
    """
    encoder = IndexEncoder(url, pattern)
    found: dict[int, IndexedShard] = {}
    lock = anyio.Lock()
    async with await storage.upload(url, overwrite=overwrite) as upload:

        async def work(numbered: tuple[int, Job]) -> None:
            number, job = numbered
            found[number] = await job()
            async with lock:
                while encoder.count in found:
                    await upload.write(encoder.add(found.pop(encoder.count)))

        await for_each(work, list(enumerate(jobs)), parallel)
        index, end = encoder.finish()
        await upload.write(end)
    return index


async def read_indexed_shard(storage: Storage, index: Index, number: int) -> IndexedShard:
    """What an index that is there already holds of one of its shards.

    Raises:
        ManifestError: The index is damaged.
        StorageError: The store failed, and retrying did not help.
    """
    first, last = index.first_blocks[number : number + 2].tolist()
    data = b"".join(await read_blocks(storage, index, first, last))
    info = index.shards[number]
    return IndexedShard(info, PackedLengths(data, index.blocks[first:last], info.records))


async def read_unchanged(storages: Storages, index: Index, number: int) -> IndexedShard | None:
    """As `read_indexed_shard`; None unless the store says that the shard has the same size and version still."""
    shard = index.shards[number]
    found = await (await storages.at(shard.path)).stat(shard.path)
    if shard.version is None or (shard.bytes, shard.version) != (found.size, found.version):
        return None
    return await read_indexed_shard(await storages.at(index.path), index, number)


async def scan_shard(storages: Storages, path: str, idx: str | None, local: bool) -> IndexedShard:
    """What the index holds of a shard, in the way that costs least: from its `.idx` file, its headers, or all bytes."""
    storage = await storages.at(path)
    if idx is not None:
        return await scan_idx(storage, path, await storages.at(idx), idx)
    if local and protocol_of(path) in ("file", "local"):
        return await scan_file(storage, path, local_path(path))
    return await scan_stream(storage, path)


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
    parallel: int = PARALLEL,
    **store: Unpack[StoreOptions],
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
            next to `index`, under the name that `part_of` gives; `join_index` makes one of all n.
        update: Whether what an index that is there says of shards that have not changed since is taken from it.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        on_shard: Called with each shard that is done, on the event loop's thread: it must not block.
        parallel: Shards that are read at the same time.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The index: its shards, and how many records there are.

    Raises:
        NotFoundError: A shard or an `.idx` file does not exist.
        CorruptRecordError, TruncatedShardError: A shard is damaged.
        ManifestError: A shard is compressed, or an `.idx` file is not that of its shard.
        StorageError: The store failed, and retrying did not help.
    """
    filesystem = store.get("filesystem")
    url = locate(index, filesystem)
    names = [locate(name, filesystem) for name in to_names(filenames)]
    target = url if part is None else part_of(url, *part)
    flag("update", update)
    integer("parallel", parallel, 1)
    check_keywords("write_index", store)
    async with Storages(**store) as storages:
        paths = await find_shards(storages, names)
        await storages.check_not_input(target, paths)
        idx = [None] * len(paths) if idx_files is None else await idx_of(storages, paths, idx_files, filesystem)
        first, last = 0, len(paths)
        if part is not None:
            first, last = part[0] * len(paths) // part[1], (part[0] + 1) * len(paths) // part[1]
        storage, old = await storages.at(target), None
        if update:
            with suppress(NotFoundError):
                old = await open_index(storage, target)
        known = {} if old is None else {shard.path: number for number, shard in enumerate(old.shards)}

        async def find_out(path: str, idx: str | None) -> IndexedShard:
            shard = None
            if old is not None and path in known:
                shard = await read_unchanged(storages, old, known[path])
            if shard is None:
                shard = await scan_shard(storages, path, idx, filesystem is None)
            if on_shard is not None:
                on_shard(shard.info)
            return shard

        jobs = [partial(find_out, portable(url, path), name) for path, name in zip(paths, idx, strict=True)]
        return await assemble(storage, target, jobs[first:last], pattern=None, overwrite=overwrite, parallel=parallel)


write_index_sync = bridge.synchronous(write_index)


async def join_index(
    parts: Filenames,
    index: str,
    *,
    overwrite: bool = True,
    **store: Unpack[StoreOptions],
) -> Index:
    """Makes one index of several: of the parts that many processes wrote, or of data sets that are to be one.

    Args:
        parts: Their URLs, in the order that the shards are to have; "train.index.part-*" for those of
            `write_index(part=(i, n))`.
        index: The URL to write to.
        overwrite: Whether what is there is replaced; see `ShardWriter`.
        store: `storage_options`, `filesystem` and `retry`; see `streamrec.storage.StoreOptions`.

    Returns:
        The index. The parts stay where they are.

    Raises:
        NotFoundError: A part does not exist.
        ManifestError: One is not an index or is damaged, or of n parts one is missing.
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
        ValueError: `part` is out of range.

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
    found = await find_shards(storages, [locate(name, filesystem) for name in to_names(idx_files)])
    if len(found) != len(paths):
        raise ManifestError(
            f"{len(paths):,} shards and {len(found):,} .idx files, from {found[0]} on: each shard has one, in the same "
            "order"
        )
    return list(found)
