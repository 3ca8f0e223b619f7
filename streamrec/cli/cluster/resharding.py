"""Re-sharding on a cluster: a task for each new shard, which reads the records that fall to it.

How many records each old shard holds is known before: a manifest says it, or tasks count them. So every task works out
for itself which records are its own, and the order of all records stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final

from streamrec import ShardInfo, ShardWriter
from streamrec.cli.cluster.tasks import map_on
from streamrec.cli.commands.count import count_one
from streamrec.cli.progress import Meter
from streamrec.cli.reading import run, total_bytes
from streamrec.cli.resharding import SHARD_BYTES, Target
from streamrec.cli.sources import Found
from streamrec.pipeline import read_portions
from streamrec.shards import Expected, assign_records, shard_path
from streamrec.storage import Replacement

__all__ = ["write_on"]

BATCH: Final = 256
"""Records that are handed on at a time."""

Limits = tuple[int | None, int | None, int | None]
"""How many shards; or how many bytes, or records, one has about."""


async def write_on(
    found: Sequence[Found],
    target: Target,
    objects: Replacement,
    limits: Limits,
    storage_options: Mapping[str, Any],
) -> list[ShardInfo]:
    """Writes new shards, whose numbers of records differ by one at the most."""
    unknown = [item for item in found if item.records is None]
    counts = iter(await map_on(partial(count_alone, storage_options=storage_options), unknown))
    known = [replace(item, records=next(counts)) if item.records is None else item for item in found]
    shards = [ShardInfo(item.path, item.records or 0, item.size or 0, None) for item in known]
    expected = {item.path: replace(item.expected, records=item.records) for item in known}
    count = how_many(limits, sum(shard.records for shard in shards), total_bytes(found) or 0, target)
    paths = [shard_path(target.pattern, number) for number in range(count)]
    places = [await objects.name(path) for path in paths]
    work = partial(write_one, shards, expected, target, count, storage_options)
    written = await map_on(work, list(enumerate(places)))
    return [replace(shard, path=path) for shard, path in zip(written, paths, strict=True)]


def how_many(limits: Limits, records: int, nbytes: int, target: Target) -> int:
    """How many shards there will be."""
    shards, shard_bytes, shard_records = limits
    if not target.numbered:
        return 1
    if shards is None and shard_bytes is None and shard_records is None:
        shard_bytes = SHARD_BYTES
    wanted = [shards or 1]
    wanted += [-(-nbytes // shard_bytes)] if shard_bytes else []
    wanted += [-(-records // shard_records)] if shard_records else []
    return max(wanted)


def count_alone(item: Found, storage_options: Mapping[str, Any]) -> int:
    """How many records a shard holds; runs on a worker."""
    return run(count_one(item, Meter(), storage_options))


def write_one(
    shards: Sequence[ShardInfo],
    expected: Mapping[str, Expected],
    target: Target,
    count: int,
    storage_options: Mapping[str, Any],
    numbered: tuple[int, str],
) -> ShardInfo:
    """Writes one of the new shards; runs on a worker."""

    async def write() -> ShardInfo:
        number, path = numbered
        async with ShardWriter(path, target.compression, storage_options=target.storage_options) as writer:
            portions = [replace(own, expected=expected[own.path]) for own in assign_records(shards, count, number)]
            records = read_portions(portions, storage_options=storage_options)
            async with aclosing(records.batch(BATCH).aiterate()) as taken:
                async for frames in taken:
                    await writer.write_batch(frames)
        return writer.shards[0]

    return run(write())
