"""Shards that tests of pipelines read: five small ones, some with a manifest for ranks, some with
an index.
"""

import gzip
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fsspec

from streamrec import Dataset, TFRecordDataset, encode_records, write_index_sync
from streamrec.shards.manifest import Manifest, ShardInfo
from tests.runs import write_shards


def record(shard: int, number: int, size: int = 20) -> bytes:
    return b"%d/%d." % (shard, number) + b"x" * (size * (1 + number % 3))


def folder_of(counts: Sequence[int], *, size: int = 20, compressed: Sequence[bool] = ()) -> str:
    """Shards with these numbers of records, and a manifest."""
    folder = f"memory://distribute-{uuid.uuid4().hex}"
    infos, kind = [], "GZIP" if any(compressed) else ""
    for shard, count in enumerate(counts):
        data = encode_records([record(shard, number, size) for number in range(count)])
        marks = [
            (at, len(encode_records([record(shard, n, size) for n in range(at)])))
            for at in range(3, count, 3)
        ]
        if shard < len(compressed) and compressed[shard]:
            data = gzip.compress(data)
        path = f"{folder}/train-{shard:03d}"
        with fsspec.open(path, "wb") as file:
            file.write(data)
        infos.append(ShardInfo(path, count, len(data), 0, () if kind else tuple(marks)))
    manifest = Manifest(
        f"{folder}/manifest.json", f"{folder}/train-{{shard:03d}}", kind, tuple(infos)
    )  # type: ignore[arg-type]
    with fsspec.open(manifest.path, "wb") as file:
        file.write(manifest.to_json())
    return folder


def shares_of_rank(
    folder: str, rank: int, world: int, cycle: int = 1, **options: Any
) -> Dataset[bytes]:
    dataset = TFRecordDataset(f"{folder}/train-*", num_parallel_reads=cycle)
    return dataset.distribute(rank, world, **options)


def all_records(counts: Sequence[int], size: int = 20) -> list[bytes]:
    return [
        record(shard, number, size) for shard, count in enumerate(counts) for number in range(count)
    ]


class Indexed(NamedTuple):
    """A data set: the pattern of its shards, and the URL of its index."""

    pattern: str
    url: str

    def shuffled(self, seed: int = 7, **arguments: Any) -> Dataset[Any]:
        """Its global shuffle; blocks are small where nothing is said."""
        blocks = {"block_bytes": 500}
        return TFRecordDataset(self.pattern).global_shuffle(
            seed, index=self.url, **{**blocks, **arguments}
        )


def numbered(counts: Sequence[int], bytes_more: int = 30) -> list[list[bytes]]:
    """Records that say where they are, of several lengths."""
    return [
        [b"%d.%d." % (shard, i) + b"x" * (i * 7 % bytes_more) for i in range(n)]
        for shard, n in enumerate(counts)
    ]


def indexed(folder: Path, shards: Sequence[Sequence[bytes]]) -> Indexed:
    """Writes shards and their index."""
    write_shards(folder, shards, "{:03d}.tfrecord")
    data = Indexed(str(folder / "*.tfrecord"), str(folder / "train.index"))
    write_index_sync(data.pattern, data.url)
    return data


SHARDS = [7, 0, 12, 1, 30]
"""Records in each of the small shards."""


def records_of(shard: int) -> list[bytes]:
    return [
        b"%d.%d." % (shard, index) + b"x" * (index * 37 % 100) for index in range(SHARDS[shard])
    ]


ALL = [record for shard in range(len(SHARDS)) for record in records_of(shard)]


def write_small_shards(folder: Path) -> list[str]:
    """Writes the small shards to a folder; returns their paths."""
    return write_shards(folder, map(records_of, range(len(SHARDS))), "s-{}.tfrecord")
