"""A few records of a data set: what its features are is worked out from these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

import streamrec
from streamrec.cli.reading import map_concurrently, open_found
from streamrec.cli.records import kind_of_all
from streamrec.cli.sources import Found
from streamrec.interchange import Kind

__all__ = ["SHARDS", "Sample", "take_sample"]

SHARDS: Final = 8
RECORDS: Final = 125
"""Of each shard; fewer where they are long."""

SHARD_BYTES: Final = 4 << 20


@dataclass(frozen=True)
class Sample:
    """Records from the beginnings of some shards, which lie evenly in the list.

    Attributes:
        records: Some records.
        compressions: How the shards that were looked at are compressed: "", "GZIP", "ZLIB", "ZSTD".
    """

    records: tuple[bytes, ...]
    compressions: tuple[str, ...]

    @cached_property
    def kind(self) -> Kind:
        """What the records are."""
        return kind_of_all(self.records) or ("example" if self.records else "bytes")

    @cached_property
    def schema(self) -> streamrec.Schema | None:
        """Their features; None where they are plain bytes.

        Raises:
            FeatureError: A feature has two kinds.
        """
        return None if self.kind == "bytes" else streamrec.infer_features(self.records, kind=self.kind)

    @property
    def record_bytes(self) -> float:
        """How long a record is, on average; 0.0 without one."""
        return sum(map(len, self.records)) / len(self.records) if self.records else 0.0


async def take_sample(shards: Sequence[Found], storage_options: Mapping[str, Any]) -> Sample:
    """Reads the beginnings of some shards.

    Raises:
        StreamrecError: A shard cannot be read, or is damaged within its first records.
    """
    step = max(1, len(shards) // SHARDS)
    samples = await map_concurrently(partial(first_records, storage_options=storage_options), shards[::step][:SHARDS])
    records = tuple(record for taken, _ in samples for record in taken)
    return Sample(records, tuple(dict.fromkeys(compression for _, compression in samples)))


async def first_records(shard: Found, storage_options: Mapping[str, Any]) -> tuple[list[bytes], str]:
    """The first records of a shard, and how it is compressed."""
    taken: list[bytes] = []
    nbytes = 0
    async with open_found(shard, storage_options=storage_options, block_bytes=1 << 16) as reader:
        async for frames in reader.frames():
            for record in islice(frames, RECORDS - len(taken)):
                taken.append(record)
                nbytes += len(record)
                if nbytes >= SHARD_BYTES:
                    return taken, reader.compression_type
            if len(taken) == RECORDS:
                break
        return taken, reader.compression_type
