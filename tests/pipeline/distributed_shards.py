"""Shards with a manifest, to be dealt to readers."""

from __future__ import annotations

import gzip
import uuid
from collections.abc import Sequence
from typing import Any

import fsspec

from streamrec import Dataset, TFRecordDataset, encode_records
from streamrec.shards.manifest import Manifest, ShardInfo


def record(shard: int, number: int, size: int = 20) -> bytes:
    return b"%d/%d." % (shard, number) + b"x" * (size * (1 + number % 3))


def folder_of(counts: Sequence[int], *, size: int = 20, compressed: Sequence[bool] = ()) -> str:
    """Shards with these numbers of records, and a manifest."""
    folder = f"memory://distribute-{uuid.uuid4().hex}"
    infos, kind = [], "GZIP" if any(compressed) else ""
    for shard, count in enumerate(counts):
        data = encode_records([record(shard, number, size) for number in range(count)])
        marks = [(at, len(encode_records([record(shard, n, size) for n in range(at)]))) for at in range(3, count, 3)]
        if shard < len(compressed) and compressed[shard]:
            data = gzip.compress(data)
        path = f"{folder}/train-{shard:03d}"
        with fsspec.open(path, "wb") as file:
            file.write(data)
        infos.append(ShardInfo(path, count, len(data), 0, () if kind else tuple(marks)))
    manifest = Manifest(f"{folder}/manifest.json", f"{folder}/train-{{shard:03d}}", kind, tuple(infos))  # type: ignore[arg-type]
    with fsspec.open(manifest.path, "wb") as file:
        file.write(manifest.to_json())
    return folder


def of(folder: str, rank: int, world: int, cycle: int = 1, **options: Any) -> Dataset[bytes]:
    dataset = TFRecordDataset(f"{folder}/train-*", num_parallel_reads=cycle)
    return dataset.distribute(rank, world, **options)


def all_records(counts: Sequence[int], size: int = 20) -> list[bytes]:
    return [record(shard, number, size) for shard, count in enumerate(counts) for number in range(count)]
