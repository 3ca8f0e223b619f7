"""Puts an index together: its shards come in any order from many tasks, and are written in theirs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from streamrec import kernels
from streamrec.shards.index.encoder import IndexedShard, IndexEncoder
from streamrec.shards.index.index import Index, damaged
from streamrec.storage import Storage, Upload
from streamrec.storage.tasks import side_by_side
from streamrec.tfrecord import PackedLengths

__all__ = ["Job", "assemble", "read_indexed_shard"]

Job = Callable[[], Awaitable[IndexedShard]]
"""Finds out what the index holds of one shard."""


async def assemble(
    storage: Storage, url: str, jobs: Sequence[Job], *, pattern: str | None, overwrite: bool, parallel: int
) -> Index:
    """Writes an index: nothing is visible under its name before all of it is there.

    Args:
        storage: Where it goes.
        url: Its URL.
        jobs: For each shard, in the order of the index, what finds it out. Up to `parallel` run at the same time.
        pattern: The URL of the shards, with `{shard}` where their number goes; None for that of the first one.
        overwrite: Whether what is there is replaced.
        parallel: Jobs that run at the same time.

    Raises:
        StreamrecError: What a job raises, or the store.
    """
    async with await storage.upload(url, overwrite=overwrite) as upload:
        writing = _InOrder(upload, IndexEncoder(url, pattern))
        left = iter(enumerate(jobs))

        async def work() -> None:
            for number, job in left:
                await writing.put(number, await job())

        await side_by_side(*[work] * min(parallel, len(jobs)))
        return await writing.finish()


class _InOrder:
    """Takes shards in any order, writes them in theirs."""

    def __init__(self, upload: Upload, encoder: IndexEncoder) -> None:
        self._upload = upload
        self._encoder = encoder
        self._waiting: dict[int, IndexedShard] = {}
        self._next = 0
        self._lock = anyio.Lock()

    async def put(self, number: int, shard: IndexedShard) -> None:
        self._waiting[number] = shard
        async with self._lock:
            while self._next in self._waiting:
                await self._upload.write(self._encoder.add(self._waiting.pop(self._next)))
                self._next += 1

    async def finish(self) -> Index:
        index, end = self._encoder.finish()
        await self._upload.write(end)
        return index


async def read_indexed_shard(storage: Storage, index: Index, number: int) -> IndexedShard:
    """What an index that is there already holds of one of its shards.

    Raises:
        ManifestError: The index is damaged.
        StorageError: The store failed, and retrying did not help.
    """
    first, last = index.first_blocks[number : number + 2].tolist()
    places = index.block_places[first : last + 1].tolist()
    data = await storage.read_range(index.path, places[0], places[-1], index.version)
    blocks, info = index.blocks[first:last], index.shards[number]
    for start, end, crc in zip(places, places[1:], blocks["crc"].tolist(), strict=False):
        if kernels.crc32c(data[start - places[0] : end - places[0]]) != crc:
            raise damaged(index.path, f"the CRC32C of the lengths at byte {start:,} is wrong")
    return IndexedShard(info, PackedLengths(data, blocks, info.records))
