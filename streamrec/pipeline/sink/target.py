"""What `Dataset.write` is told, checked."""

from __future__ import annotations

import os
from typing import Any, Final

from fsspec import AbstractFileSystem

from streamrec.arguments import flag, integer
from streamrec.shards import ShardTarget
from streamrec.shards.listing.patterns import is_numbered
from streamrec.storage import located
from streamrec.tfrecord import TFRecordOptions

__all__ = ["SHARD_BYTES", "target_of"]

SHARD_BYTES: Final = 200_000_000
"""How large shards become where nothing else is said."""


def target_of(
    pattern: str | os.PathLike[str],
    options: TFRecordOptions | str | None,
    num_shards: int | None,
    max_shard_bytes: int | None,
    max_shard_records: int | None,
    overwrite: bool,
    manifest: str | os.PathLike[str] | None,
    filesystem: AbstractFileSystem | None,
) -> ShardTarget:
    """Where shards go; see `Dataset.write`."""
    limits: list[Any] = [
        integer("num_shards", num_shards, 1, none=True),
        integer("max_shard_bytes", max_shard_bytes, 1, none=True),
        integer("max_shard_records", max_shard_records, 1, none=True),
    ]
    url = located(os.fspath(pattern), filesystem)
    if is_numbered(url) and limits == [None] * 3:
        limits[1] = SHARD_BYTES
    return ShardTarget(
        url,
        options if isinstance(options, TFRecordOptions) else TFRecordOptions(options),
        flag("overwrite", overwrite),
        None if manifest is None else located(os.fspath(manifest), filesystem),
        *limits,
    )
