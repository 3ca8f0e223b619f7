"""The error tree: everything that streamrec raises on purpose is a StreamrecError.

Each error carries what a person needs to act (`path`, `offset`, `record`, `feature`) as attributes, and its
message ends in what to do next. Arguments are positional, so that errors pickle across processes. An error
never hides good data that came before it: readers deliver every record that precedes the damage first.
"""

from __future__ import annotations

from streamrec.display import display_name, display_text, mask_values, secrets_in, shorten

__all__ = [
    "AlreadyExistsError",
    "CacheError",
    "ClosedError",
    "CorruptRecordError",
    "FeatureError",
    "IntegrityError",
    "LoopThreadError",
    "ManifestError",
    "MissingExtraError",
    "NotFoundError",
    "ObjectChangedError",
    "PermissionDeniedError",
    "PositionMismatchError",
    "StorageError",
    "StorageTimeoutError",
    "StreamrecError",
    "ThrottledError",
    "TruncatedShardError",
    "UnsupportedOperationError",
    "UploadEndedError",
]


def _message(where: list[str], reason: str, path: str | None = None) -> str:
    """What failed, after where it did."""
    if path:
        reason = mask_values(reason.replace(path, display_name(path)), secrets_in(path))
        where = [display_name(path), *where]
    said = shorten(display_text(reason), 1000)
    return f"{', '.join(where)}: {said}" if where else said


class StreamrecError(Exception):
    """The root: catch this to catch all that streamrec raises on purpose.

    Messages hide the secrets of URLs, and escape what a terminal would obey. The attribute `path`, where there is one,
    is the URL as it was given.
    """

    def __str__(self) -> str:
        return _message([], super().__str__())

    def __repr__(self) -> str:
        return display_text(mask_values(super().__repr__(), secrets_in(getattr(self, "path", None))))


class DataError(StreamrecError):
    """Bytes that are not what the format says.

    Args:
        reason: What was found where what was wanted, and what to do.
        path: The shard's URL, or None where only bytes are known (the sans-I/O rooms).
        offset: Byte offset of the damaged record's header in the (decompressed) stream.
        record: Index of the damaged record in its shard, counted from 0.
    """

    def __init__(
        self, reason: str, path: str | None = None, offset: int | None = None, record: int | None = None
    ) -> None:
        super().__init__(reason, path, offset, record)
        self.reason = reason
        self.path = path
        self.offset = offset
        self.record = record

    def __str__(self) -> str:
        where = [] if self.record is None else [f"record {self.record:,}"]
        if self.offset is not None:
            where.append(f"byte {self.offset:,}")
        return _message(where, self.reason, self.path)


class CorruptRecordError(DataError):
    """A record whose CRC32C is wrong, a length beyond all measure, or a compressed stream that is broken."""


class TruncatedShardError(DataError):
    """The bytes end in the middle of a record."""


class FeatureError(StreamrecError, ValueError):
    """A feature that does not fit its description.

    Args:
        reason: What was found where what was wanted, and what to do.
        feature: The feature's name, or None.
        record: Index of the example in its batch, or None.
        example: The example's name where the caller gave `example_names`, or None.
    """

    def __init__(
        self, reason: str, feature: str | None = None, record: int | None = None, example: str | None = None
    ) -> None:
        super().__init__(reason, feature, record, example)
        self.reason = reason
        self.feature = feature
        self.record = record
        self.example = example

    def __str__(self) -> str:
        where = [f"example {shorten(repr(self.example))}"] if self.example is not None else []
        if self.record is not None:
            where.append(f"record {self.record:,}")
        if self.feature is not None:
            where.append(f"feature {shorten(repr(self.feature))}")
        return _message(where, self.reason)


class StorageError(StreamrecError, OSError):
    """The store or the network failed, and retrying did not help.

    Args:
        reason: What happened, and what to do.
        path: The object's URL, or None.
        start: First byte of the range that was asked for, or None.
        end: One past its last byte; None means to the end.
    """

    def __init__(self, reason: str, path: str | None = None, start: int | None = None, end: int | None = None) -> None:
        super().__init__(reason, path, start, end)
        self.args = (reason, path, start, end)  # OSError keeps only two of four; pickle needs them all
        self.reason = reason
        self.path = path
        self.start = start
        self.end = end

    @property
    def offset(self) -> int | None:
        """First byte of the range that failed: the name that all errors with a place share."""
        return self.start

    def __str__(self) -> str:
        end = "the end" if self.end is None else f"{self.end:,}"
        return _message([] if self.start is None else [f"bytes {self.start:,} to {end}"], self.reason, self.path)


class NotFoundError(StorageError, FileNotFoundError):
    """The object, bucket or directory does not exist. Final: never retried."""


class AlreadyExistsError(StorageError, FileExistsError):
    """There is an object of this name, and the writer was told not to replace one (`overwrite=False`). Final."""


class IntegrityError(StorageError):
    """What the store has is not what was sent to it: another size, or another checksum. Write it again."""


class PermissionDeniedError(StorageError, PermissionError):
    """The credentials are missing, wrong, or not allowed to do this. Final: never retried."""


class ThrottledError(StorageError):
    """The store kept asking for fewer requests (429, 503 SlowDown)."""


class StorageTimeoutError(StorageError, TimeoutError):
    """No connection, no first byte or no further byte within the time limit, again and again."""


class ObjectChangedError(StorageError):
    """The object was replaced while it was being read, or since it was listed. Final: list it or read it again."""


class UnsupportedOperationError(StorageError):
    """This kind of storage cannot do this (writing over plain HTTP, listing a web server)."""


class UploadEndedError(StorageError):
    """An upload was ended: another writer began on the same name, or the store tidied it up."""


class CacheError(StorageError, ValueError):
    """A file that was given to `cache()` is not a cache, belongs to another pipeline, or is incomplete."""


class MissingExtraError(StreamrecError, ImportError):
    """An optional package is not installed; the message holds the `pip install` to type."""


class ManifestError(StreamrecError, ValueError):
    """A manifest or an index that is damaged, is of a newer version, leads elsewhere, or is not that of the shards."""


class PositionMismatchError(StreamrecError, ValueError):
    """A saved position does not belong to this pipeline or to these shards."""


class ClosedError(StreamrecError, RuntimeError):
    """The reader, writer or iterator was closed before this call."""


class LoopThreadError(StreamrecError, RuntimeError):
    """A call that blocks was made on the event loop's own thread, where it would wait for itself for ever."""
