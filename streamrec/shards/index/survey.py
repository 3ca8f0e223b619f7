"""Finds out what an index holds of each shard.

Of each shard, what costs least is done:

- it is known already, from an index that is brought up to date, and the store says that it has the same size and
  version: nothing is read;
- there is an `.idx` file: that is read, and the header of the shard's last record;
- it lies on a disk of this machine: its headers are read;
- else it is read once, whole.
"""

from __future__ import annotations

from collections.abc import Callable

from streamrec.shards.index.assemble import read_indexed_shard
from streamrec.shards.index.encoder import IndexedShard
from streamrec.shards.index.index import Index
from streamrec.shards.index.scan import scan_file, scan_idx, scan_stream
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.storage import Storages, local_path, protocol_of

__all__ = ["Survey"]


class Survey:
    """Finds out about shards, each in the way that costs least.

    Args:
        storages: Where they are.
        old: What an index that is brought up to date says; None for none.
        plain: Whether local files may be read without a filesystem.
        on_shard: Called with each shard that is done.
    """

    def __init__(
        self, storages: Storages, old: Index | None, plain: bool, on_shard: Callable[[ShardInfo], None] | None
    ) -> None:
        self._storages = storages
        self._old = old
        self._numbers = {} if old is None else {shard.path: number for number, shard in enumerate(old.shards)}
        self._plain = plain
        self._on_shard = on_shard

    async def find_out(self, path: str, idx: str | None) -> IndexedShard:
        """What the index holds of a shard."""
        shard = await self._known(path) or await self._scan(path, idx)
        if self._on_shard is not None:
            self._on_shard(shard.info)
        return shard

    async def _known(self, path: str) -> IndexedShard | None:
        """What the old index says, if the shard has the same size and version still."""
        number = self._numbers.get(path)
        if self._old is None or number is None:
            return None
        about = await (await self._storages.at(path)).stat(path)
        if not is_same(self._old.shards[number], about.size, about.version):
            return None
        return await read_indexed_shard(await self._storages.at(self._old.path), self._old, number)

    async def _scan(self, path: str, idx: str | None) -> IndexedShard:
        storage = await self._storages.at(path)
        if idx is not None:
            return await scan_idx(storage, path, await self._storages.at(idx), idx)
        if self._plain and protocol_of(path) in ("file", "local"):
            return await scan_file(storage, path, local_path(path))
        return await scan_stream(storage, path)


def is_same(shard: ShardInfo, size: int | None, version: str | None) -> bool:
    """Whether a shard is what it was; without a version nobody can say."""
    return version is not None and (shard.bytes, shard.version) == (size, version)
