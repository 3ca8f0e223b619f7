"""Writing an index: shard after shard, so that no more is held than the tables and what is on its way. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamrec.errors import ManifestError
from streamrec.shards.index.index import MAGIC, Index, encode_end, read_end, read_foot
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.shards.manifests.places import location_of
from streamrec.tfrecord import BLOCK, PackedLengths

__all__ = ["IndexEncoder", "IndexedShard", "decode_index", "encode_index"]


class IndexedShard(NamedTuple):
    """What an index holds of one shard."""

    info: ShardInfo
    lengths: PackedLengths


class IndexEncoder:
    """The bytes of an index, in order.

    Args:
        path: Its URL.
        pattern: The URL of the shards, with `{shard}` where their number goes; None for that of the first shard.
    """

    def __init__(self, path: str, pattern: str | None = None) -> None:
        self._path = path
        self._pattern = pattern
        self._shards: list[ShardInfo] = []
        self._blocks = [np.empty(0, BLOCK)]
        self._locations = set[tuple[str, str]]()

    def add(self, shard: IndexedShard) -> bytes:
        """The next shard; returns the bytes to write next.

        Raises:
            ManifestError: Its records do not fill it, or it was added before.
        """
        info, lengths = shard
        if (location := location_of(info.path)) in self._locations:
            raise ManifestError(f"{info.path}: this shard is named twice: an index has each shard once")
        self._locations.add(location)
        if (lengths.records, lengths.end) != (info.records, info.bytes):
            raise ManifestError(
                f"{info.path}: {lengths.records:,} records end at byte {lengths.end:,}, and the shard has "
                f"{info.records:,} records and {info.bytes:,} bytes: what was read is not what is there; write the "
                "index again"
            )
        head = b"" if self._shards else MAGIC
        self._shards.append(info)
        self._blocks.append(lengths.blocks)
        return head + lengths.data

    def finish(self) -> tuple[Index, bytes]:
        """The index, and the last bytes to write."""
        pattern = self._pattern or (self._shards[0].path if self._shards else self._path)
        index = Index(self._path, pattern, "", tuple(self._shards), np.concatenate(self._blocks))
        return index, (b"" if self._shards else MAGIC) + encode_end(index)


def encode_index(path: str, shards: list[IndexedShard], pattern: str | None = None) -> bytes:
    """A whole index."""
    encoder = IndexEncoder(path, pattern)
    data = b"".join(map(encoder.add, shards))
    return data + encoder.finish()[1]


def decode_index(path: str, data: bytes) -> list[IndexedShard]:
    """All of an index that lies in memory.

    Raises:
        ManifestError: It is no index, or it is damaged.
    """
    index = read_end(path, read_foot(path, data, len(data)), data)
    shards = []
    for number, info in enumerate(index.shards):
        first, last = index.first_blocks[number : number + 2].tolist()
        places = index.block_places[[first, last]].tolist()
        shards.append(IndexedShard(info, PackedLengths(data[slice(*places)], index.blocks[first:last], info.records)))
    return shards
