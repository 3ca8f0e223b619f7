"""Shards with an index, for tests of the global shuffle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.shards.index.index import MAGIC, Index, encode_end
from streamrec.shards.manifests.manifest import ShardInfo
from streamrec.tfrecord import LengthPacker

__all__ = ["Indexed", "indexed", "numbered"]


class Indexed(NamedTuple):
    """A data set: the pattern of its shards, and the URL of its index."""

    pattern: str
    url: str

    def shuffled(self, seed: int = 7, **arguments: Any) -> Dataset[Any]:
        """Its global shuffle; blocks are small where nothing is said."""
        blocks = {"block_bytes": 500, "window_bytes": 4000}
        return TFRecordDataset(self.pattern).global_shuffle(seed, index=self.url, **{**blocks, **arguments})


def numbered(counts: Sequence[int], bytes_more: int = 30) -> list[list[bytes]]:
    """Records that say where they are, of several lengths."""
    return [[b"%d.%d." % (shard, i) + b"x" * (i * 7 % bytes_more) for i in range(n)] for shard, n in enumerate(counts)]


def indexed(folder: Path, shards: Sequence[Sequence[bytes]]) -> Indexed:
    """Writes shards and their index."""
    infos, data, blocks = [], [MAGIC], []
    for number, records in enumerate(shards):
        path, content = folder / f"{number:03d}.tfrecord", encode_records(records)
        path.write_bytes(content)
        packer = LengthPacker()
        packer.add(np.array([len(record) for record in records], np.int64))
        packed = packer.finish()
        infos.append(ShardInfo(str(path), len(records), len(content), None))
        data.append(packed.data)
        blocks.append(packed.blocks)
    index = Index(str(folder / "train.index"), infos[0].path, "", tuple(infos), np.concatenate(blocks))
    Path(index.path).write_bytes(b"".join([*data, encode_end(index)]))
    return Indexed(str(folder / "*.tfrecord"), index.path)
