"""How shards are read, and from where: frozen descriptions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from streamrec.arguments import function
from streamrec.errors import ManifestError, ObjectChangedError
from streamrec.storage import ObjectInfo
from streamrec.tfrecord import MAX_RECORD_BYTES, Loss, check_compression_type, check_on_error

__all__ = ["LONG_BYTES", "Expected", "Piece", "ReadOptions", "ShardPlace"]

LONG_BYTES: Final = 64 << 20
"""Records up to this length are held whole where records are only counted or checked."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How shards are read.

    Args:
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C; the lengths' are always checked.
        max_record_bytes: A longer record is taken for corruption; by default none that a store can hold.
        block_bytes: How much of a shard is framed at a time, and the unit of its buffers; None for what its
            storage does best.
        on_error: What is done about damage in a shard: "raise", "skip_record", "resync" or "skip_shard"; see
            `streamrec.open_shard`. What the network does is never damage.
        max_skipped: How many losses of one shard are tolerated before the next one is an error; None for any number.
        on_loss: Called with each Loss, on the event loop's thread: it must not block.
        block_records: Blocks end where that many records, or a multiple of it, have come since the shard's start, if
            their size allows it: then a batch, or a turn, is in one block and need not be copied.
        long_bytes: Longer records are checked and counted, and not returned: see `ShardReader.take_long_records`. One
            that is damaged is read again, and held. None: records of all lengths are returned. Not for pieces of a
            shard.
    """

    compression_type: str | None = None
    verify: bool = True
    max_record_bytes: int = MAX_RECORD_BYTES
    block_bytes: int | None = None
    on_error: str = "raise"
    max_skipped: int | None = None
    on_loss: Callable[[Loss], None] | None = None
    block_records: int = 1
    long_bytes: int | None = None

    def __post_init__(self) -> None:
        check_compression_type(self.compression_type)
        check_on_error(self.on_error, self.max_skipped)
        if self.on_loss is not None:
            function("on_loss", self.on_loss)
        if self.block_bytes is not None and self.block_bytes < 1:
            raise ValueError(f"block_bytes={self.block_bytes} must be at least 1")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A record's place in a shard: reading that starts here returns this record first.

    Args:
        offset: Of the record's header in the (decompressed) shard, in bytes.
        record: How many records were read before it: its index, counted from 0, where nothing was lost.
        version: The object's version that the place was taken from; None for whichever is there.
    """

    offset: int = 0
    record: int = 0
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """What a listing, a manifest or an index says of a shard: the shard is compared with it when it is opened.

    Args:
        size: Bytes as they are stored; None where it is not known.
        version: The object's version; None where it is not known.
        records: How many records the shard holds; None where it is not known.
        manifest: The URL of the manifest or the index that says so; None for a listing.
    """

    size: int | None
    version: str | None = None
    records: int | None = None
    manifest: str | None = None

    def check(self, found: ObjectInfo) -> None:
        """Compares the object that was opened; what one of the two does not know is not compared.

        Raises:
            ObjectChangedError: It has another size or version than the listing says.
            ManifestError: It has another size or version than the manifest says.
        """
        if None not in (self.size, found.size) and self.size != found.size:
            self._differs(found.path, f"{self.size:,} bytes", f"{found.size:,}")
        if None not in (self.version, found.version) and self.version != found.version:
            self._differs(found.path, f"version {self.version}", f"version {found.version}")

    def check_records(self, path: str, records: int) -> None:
        """Compares how many records were read, where the shard was read through to its end.

        Raises:
            ManifestError: The manifest says another number.
            ObjectChangedError: It was counted before, and had another number then.
        """
        if self.records is not None and self.records != records:
            self._differs(path, f"{self.records:,} records", f"{records:,}")

    def _differs(self, path: str, said: str, found: str) -> NoReturn:
        if self.manifest is not None:
            raise ManifestError(
                f"{path}: {self.manifest} says that this shard has {said}, and it has {found}: the shard was written "
                f"since, or the manifest is wrong; {rewrite_advice(self.manifest)}"
            )
        raise ObjectChangedError(
            f"this shard had {said} when it was listed, and it has {found}: it was written since; to read it as it is "
            "now, make the Dataset again, or run the command again",
            path,
        )


def rewrite_advice(manifest: str) -> str:
    """How a manifest or an index is made again."""
    if manifest.endswith(".json"):
        return f"to accept the shards as they are, write it again: streamrec.write_manifest_sync(SHARDS, {manifest!r})"
    return f"to accept the shards as they are, write it again: streamrec index --update SHARDS {manifest}"


@dataclass(frozen=True, slots=True)
class Piece:
    """A byte range of an uncompressed shard: the records whose headers begin in it.

    Args:
        start: Any byte; 0 is a record's header, from others on the first one is searched for.
        end: One past the last byte; None for the end of the shard.
    """

    start: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(f"bytes {self.start} to {self.end}: a piece begins at 0 or later and ends no earlier")
