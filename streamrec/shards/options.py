"""Frozen descriptions of how shards are read, and from which byte on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NoReturn

from streamrec.arguments import check_function
from streamrec.display import display_repr
from streamrec.errors import ManifestError, ObjectChangedError
from streamrec.storage import ObjectInfo
from streamrec.storage.faults import is_same_time
from streamrec.tfrecord import MAX_RECORD_BYTES, Loss, check_compression_type, check_on_error

LONG_BYTES: Final = 64 << 20
"""Records up to this length are held in memory even if they are only counted or checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How shards are read.

    Args:
        compression_type: None to detect; "", "GZIP", "ZLIB" or "ZSTD".
        verify: Check each record's CRC32C; the lengths' are always checked.
        max_record_bytes: A longer record counts as corruption; by default longer than a store can
            hold.
        block_bytes: How much of a shard is framed at a time, and the size of its buffers; None for
            the storage's own.
        on_error: How damage in a shard is handled: "raise", "skip_record", "resync" or
            "skip_shard"; see `streamrec.open_shard`. Network faults are never damage.
        max_skipped: How many losses of one shard are tolerated before the next one is an error;
            None for any number.
        on_loss: Called with each Loss, on the event loop's thread: it must not block.
        block_records: Blocks end after a multiple of this number of records since the shard's
            start, if their size allows it: then a batch, or a turn of the interleave, is in one
            block and need not be copied.
        long_bytes: Longer records are checked and counted, and not returned: see
            `ShardReader.take_long_records`. A damaged one is read again, into memory. None: records
            of all lengths are returned. Not for byte ranges of a shard.
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
            check_function("on_loss", self.on_loss)
        if self.block_bytes is not None and self.block_bytes < 1:
            raise ValueError(f"block_bytes={self.block_bytes} must be at least 1")


@dataclass(frozen=True, slots=True)
class ShardPlace:
    """A record's place in a shard: reading that starts here returns this record first.

    Args:
        offset: Of the record's header in the (decompressed) shard, in bytes.
        record: The number of records read before it: its index, counted from 0, if nothing was
            lost.
        version: The object's version that has this place; None for any version.
    """

    offset: int = 0
    record: int = 0
    version: str | None = None

    @property
    def is_beginning(self) -> bool:
        """Whether it is the place of the first record, in any version."""
        return not self.offset and not self.record and self.version is None


BEGINNING: Final = ShardPlace()
"""The place of a shard's first record, in any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A shard as a listing, a manifest or an index describes it.

    An opened shard is compared with it.

    What is None is unknown; without a `manifest` (its URL, or that of an index) a listing described
    it, which may have the time of its last modification.
    """

    size: int | None
    version: str | None = None
    records: int | None = None
    manifest: str | None = None
    modified: datetime | float | str | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, info: ObjectInfo) -> Expected:
        """A shard as a listing has it."""
        return cls(size=info.size, version=info.version, modified=info.modified)

    def differs_in_version_only(self, found: ObjectInfo) -> bool:
        """Whether only the versions of the listing and of the opened object differ.

        Everything else agrees.
        """
        return (
            self.manifest is None
            and None not in (self.version, found.version)
            and self.version != found.version
            and self.size is not None
            and self.size == found.size
            and is_same_time(self.modified, found.modified)
        )

    def check(self, found: ObjectInfo) -> None:
        """Compares the opened object; a value that is None on one side is not compared.

        A difference is a ManifestError if a manifest described the shard, else an
        ObjectChangedError.
        """
        note = encoding_note(found)
        if None not in (self.size, found.size) and self.size != found.size:
            self._differs(found.path, f"{self.size:,} bytes", f"{found.size:,}{note}")
        if None not in (self.version, found.version) and self.version != found.version:
            self._differs(found.path, f"version {self.version}", f"version {found.version}{note}")

    def check_records(self, path: str, records: int) -> None:
        """Compares the number of records of a shard that was read to its end. Errors as `check`."""
        if self.records is not None and self.records != records:
            self._differs(path, f"{self.records:,} records", f"{records:,}")

    def _differs(self, path: str, expected: str, found: str) -> NoReturn:
        """Raises the error of whoever expected something else: the manifest or the listing."""
        if self.manifest is not None:
            raise ManifestError(
                f"{path}: {self.manifest} says that this shard has {expected}, and it has "
                f"{found}: the shard was written since, or the manifest is wrong; "
                f"{rewrite_advice(self.manifest)}"
            )
        raise ObjectChangedError(
            f"this shard had {expected} when it was listed, and it has {found}: it was written "
            "since; to read it as it is now, make the Dataset again, or run the command again",
            path,
        )


def size_in(expected: Expected | None) -> int | None:
    """The size of a shard in bytes, as its description has it; None if it is unknown."""
    return None if expected is None else expected.size


def encoding_note(info: ObjectInfo) -> str:
    """What to say in an error about a shard whose answer has a Content-Encoding.

    It follows a space; "" without one.

    >>> encoding_note(ObjectInfo("x", 1, None))
    ''
    """
    if info.encoding is None:
        return ""
    return (
        f" (its answer has Content-Encoding: {info.encoding}, although the bytes were requested as "
        "they are stored: a proxy may have encoded them on their way, or the object has that in "
        "its metadata)"
    )


def rewrite_advice(manifest: str) -> str:
    """The advice to write a manifest or an index again, with the command."""
    if manifest.endswith("dataset_info.json"):  # of TensorFlow Datasets: never written here
        return "copy the folder again from where it is whole, or generate the data set again"
    if manifest.endswith(".json"):
        return (
            "to accept the shards as they are, write it again: "
            f"streamrec.write_manifest_sync(SHARDS, {manifest!r})"
        )
    return (
        "to accept the shards as they are, write it again: streamrec index --update SHARDS "
        f"{manifest}"
    )


@dataclass(frozen=True, slots=True)
class ShardRange:
    """A byte range of an uncompressed shard: the records whose headers begin in it.

    At 0 a record's header begins; from any other `start` the reader searches for the first one.
    `end` is None for the end of the shard.
    """

    start: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.end is not None and self.end < self.start):
            raise ValueError(
                f"bytes {self.start} to {self.end}: a byte range begins at 0 or later and ends no "
                "earlier"
            )


@display_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Portion:
    """The part of one shard that one reader reads.

    Args:
        path: The shard's URL.
        byte_range: A byte range of it; None for all of it.
        first: Number of the first record to give, counted from the start of the shard.
        last: One past the number of the last record; None for all records.
        place: The record where reading begins, without a byte range: the first one, or one before
            it.
        expected: The description that the opened shard is compared with, and its number of records
            at its end.
    """

    path: str
    byte_range: ShardRange | None = None
    first: int = 0
    last: int | None = None
    place: ShardPlace = ShardPlace()
    expected: Expected | None = field(default=None, compare=False, repr=False)

    @property
    def is_all(self) -> bool:
        """Whether it is the whole shard."""
        return (
            self.byte_range is None
            and self.first == 0
            and self.last is None
            and not self.place.offset
        )

    def within(self, number: int, count: int) -> tuple[int, int]:
        """The records of the portion among `count` records from this number on.

        Returns their first index, and one past the last.
        """
        known = self.last
        if known is None and self.expected is not None:
            known = self.expected.records
        last = count if known is None else min(max(known - number, 0), count)
        return min(max(self.first - number, 0), last), last
