"""What a writer is to write: names, compression, limits. Checked when it is made; pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from streamrec.display import display_name
from streamrec.shards.patterns import (
    fill_run,
    fill_total,
    has_own_names,
    is_numbered,
    shard_path,
)
from streamrec.storage import Overwrite
from streamrec.tfrecord import CompressionType, TFRecordOptions, check_compression_type

BLOCK_BYTES: Final = 1 << 20
"""Bytes of records that are framed and compressed at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTarget:
    """The objects to write.

    Attributes:
        pattern: The shards' URL, with `{shard}` for the number; or that of the only one. `{time}`
            and `{uuid}` are filled.
        options: The shards' compression.
        overwrite: Whether they replace existing objects; see ShardWriter. None: not if the
            pattern had `{time}` or `{uuid}`.
        manifest, index: The URLs of what describes them; None for none.
        num_shards: Record i goes into shard i modulo this; None for one shard after the other, up
            to the limits.
        max_shard_bytes, max_shard_records, max_shard_seconds: The limits; None for none.
    """

    pattern: str
    options: TFRecordOptions
    overwrite: Overwrite | None = None
    manifest: str | None = None
    index: str | None = None
    num_shards: int | None = None
    max_shard_bytes: int | None = None
    max_shard_records: int | None = None
    max_shard_seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.pattern:
            raise ValueError("the name to write is '': give a URL or path")
        if self.overwrite is None:
            object.__setattr__(self, "overwrite", not has_own_names(self.pattern))
        pattern = fill_run(self.pattern, datetime.now(UTC), uuid4().hex)
        object.__setattr__(self, "pattern", fill_total(pattern, self.num_shards))
        shard_path(self.pattern, 0)  # refuses a format that is not that of a number
        limits = (self.max_shard_bytes, self.max_shard_records, self.max_shard_seconds)
        limited = any(limit is not None for limit in limits)
        if self.num_shards is not None and limited:
            raise ValueError(
                "num_shards and a limit of a shard's size exclude each other: leave one of them out"
            )
        if not self.numbered and (limited or self.num_shards is not None):
            pattern = display_name(self.pattern)
            raise ValueError(
                f"{pattern!r} gives all shards the same name: add '{{shard:05d}}' for their number"
            )
        if self.max_shard_seconds is not None:
            self.check_appears("max_shard_seconds")
        if self.index is not None and self.compression_type:
            index = display_name(self.index)
            raise ValueError(
                f"{index}: compressed shards have no index: leave out the compression, or index="
            )

    def check_appears(self, what: str) -> None:
        """Refuses what makes each shard visible at once, if shards may have to wait for others."""
        if self.overwrite:
            raise ValueError(
                f"{what} makes each shard visible at once, but shards that replace others appear "
                "together at the end: pass overwrite=False, which is the default for names with "
                "'{time}' or '{uuid}'"
            )

    @property
    def replaces(self) -> Overwrite:
        """What may be replaced: `overwrite`, or its default for these names."""
        return True if self.overwrite is None else self.overwrite

    @property
    def numbered(self) -> bool:
        """Whether there may be several shards."""
        return is_numbered(self.pattern)

    @property
    def has_several_objects(self) -> bool:
        """Whether there may be several objects, which must then appear together."""
        return self.numbered or self.manifest is not None or self.index is not None

    @property
    def compression_type(self) -> CompressionType:
        """The shards' compression: "", "GZIP", ..."""
        return check_compression_type(self.options.compression_type) or ""

    def exceeds(self, size: int, records: int) -> bool:
        """Whether a shard of so many bytes and records would be larger than the limits."""
        if self.max_shard_bytes is not None and size > self.max_shard_bytes:
            return True
        return self.max_shard_records is not None and records > self.max_shard_records

    def count_fitting(self, sizes: NDArray[np.int64], size: int, records: int) -> int:
        """How many records of a batch go into the current shard together: about a block.

        Args:
            sizes: The bytes of the first record in its frame, of the first two, and so on.
            size: Bytes of the shard so far.
            records: Its records so far.

        Returns:
            At least 1, because the caller has found that one more record belongs into this shard.
        """
        fitting = int(np.searchsorted(sizes, BLOCK_BYTES, "right"))
        if self.max_shard_bytes is not None:
            within = np.searchsorted(sizes, self.max_shard_bytes - size, "right")
            fitting = min(fitting, int(within))
        if self.max_shard_records is not None:
            fitting = min(fitting, self.max_shard_records - records)
        return max(fitting, 1)
