"""Shards with an index, for tests of the global shuffle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamrec import Dataset, TFRecordDataset, encode_records, write_index_sync

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
    for number, records in enumerate(shards):
        (folder / f"{number:03d}.tfrecord").write_bytes(encode_records(records))
    data = Indexed(str(folder / "*.tfrecord"), str(folder / "train.index"))
    write_index_sync(data.pattern, data.url)
    return data
