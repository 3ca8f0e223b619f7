"""Writes shards, and reads them in parallel, in parts, and from a state, with a user's options."""

import asyncio
from collections.abc import Mapping
from typing import Any

import streamrec
from streamrec import ShardWriter, TFRecordDataset
from tests.storage.contract import QUICK

SHARDS, RECORDS = 6, 200


def shards_of(name: str) -> list[list[bytes]]:
    return [[b"%d.%d" % (shard, number) + bytes(number * 7) for number in range(RECORDS)] for shard in range(SHARDS)]


async def written(url: str, options: Mapping[str, Any]) -> None:
    """Writes the shards; the last records are long enough for several parts."""
    async with ShardWriter(
        f"{url}/x-{{shard}}.tfrecord", max_shard_records=RECORDS, storage_options=options, retry=QUICK
    ) as writer:
        for shard in shards_of(url):
            for record in shard:
                await writer.write(record)


def check(url: str, options: Mapping[str, Any], writing: Mapping[str, Any] | None = None) -> int:
    """Writes, and reads in order, in parts and from a state; returns how often a fast path was disabled."""
    asyncio.run(written(url, writing or options))
    shards = shards_of(url)
    dataset = TFRecordDataset(
        f"{url}/x-*.tfrecord", num_parallel_reads=SHARDS, block_length=RECORDS, storage_options=options, retry=QUICK
    )
    with dataset.iterate() as records:
        found = list(records)
        [counts] = records.stats().storage.backends.values()
    assert found == [record for shard in shards for record in shard]
    assert counts.failures == 0
    assert sum(counts.retries.values()) == 0
    iterator = dataset.iterate()
    head = [next(iterator) for _ in range(333)]
    state = iterator.state_dict()
    iterator.close()
    assert head + list(dataset.iterate(state)) == found

    async def pieces() -> list[bytes]:
        records: list[bytes] = []
        for start, end in ((0, 50_000), (50_000, 90_001), (90_001, None)):
            place = f"{url}/x-3.tfrecord"
            async with streamrec.open_shard(place, start=start, end=end, storage_options=options, retry=QUICK) as shard:
                records += [record async for record in shard]
        return records

    assert asyncio.run(pieces()) == shards[3]
    return counts.fallbacks
