"""The error tree: every error that streamrec raises on purpose is a StreamrecError.

Errors have the location of the failure as attributes (`path`, `offset`, `record`, `feature`), and
their messages end with what to do next. Arguments are positional, so that errors can be pickled. An
error never hides good data: readers deliver all records before the damage first.
"""

from __future__ import annotations

from streamrec.display import (
    display_name,
    display_text,
    escape,
    mask_values,
    secrets_in,
    shorten,
)
from streamrec.lazy import lazy_pattern

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
    "install_command",
]


def __dir__() -> list[str]:
    """Only what is public, so that completion shows no helper."""
    return __all__


INSTALL = "pip install {options}'.{extra}' in a checkout of streamrec"
"""How messages and docs/hooks.py say that this package, or one of its extras, is installed. A
release to PyPI changes this line alone: "pip install {options}'streamrec{extra}'"."""

MESSAGE_CHARS = 3000
"""The length of a reason.

In the traceback that a DataLoader's worker sends, its end (a third) is the whole error.
"""

_OF_WORKER = lazy_pattern(r"Caught \w+ in DataLoader worker process \d+\.\nOriginal Traceback ")
"""The start of a reason when PyTorch raises the error of a DataLoader's worker again: it makes a
new error of the same type, whose reason is the worker's traceback. Its lines stay lines."""


def _message(where: list[str], reason: str, path: str | None = None) -> str:
    """Joins the location and the reason, without secrets and control characters."""
    if path:
        reason = mask_values(reason.replace(path, display_name(path)), secrets_in(path))
        where = [display_name(path), *where]
    lines = _OF_WORKER.match(reason) is not None
    text = shorten(display_text(reason, lines=lines), MESSAGE_CHARS)
    where = list(map(escape, where))
    return f"{', '.join(where)}: {text}" if where else text


class StreamrecError(Exception):
    """The base of all errors that streamrec raises on purpose.

    Messages mask the secrets in URLs and escape control characters. The attribute `path` is the URL
    as it was given, secrets included.
    """

    def __str__(self) -> str:
        return _message([], super().__str__())

    def __repr__(self) -> str:
        return display_text(
            mask_values(super().__repr__(), secrets_in(getattr(self, "path", None)))
        )


class DataError(StreamrecError, ValueError):
    """The bytes do not follow the format.

    It is a ValueError, too, which is what other libraries raise for damaged records.

    Args:
        reason: What is wrong, and what to do.
        path: The shard's URL, or None if the bytes come from no file.
        offset: Byte offset of the damaged record's header in the (decompressed) stream.
        record: Index of the damaged record in its shard, counted from 0.
    """

    def __init__(
        self,
        reason: str,
        path: str | None = None,
        offset: int | None = None,
        record: int | None = None,
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
    """The CRC32C or length of a record is wrong, or the compressed stream is damaged.

    A length is wrong if it is above the limit.
    """


class TruncatedShardError(DataError):
    """The bytes end in the middle of a record."""


class FeatureError(StreamrecError, ValueError):
    """A feature does not match its description.

    Args:
        reason: What is wrong, and what to do.
        feature: The feature's name, or None.
        record: Index of the example in its batch, or None.
        example: The example's name if the caller gave `example_names`, or None.
    """

    def __init__(
        self,
        reason: str,
        feature: str | None = None,
        record: int | None = None,
        example: str | None = None,
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
        start: First byte of the requested range, or None.
        end: One past its last byte; None means to the end.
    """

    def __init__(
        self, reason: str, path: str | None = None, start: int | None = None, end: int | None = None
    ) -> None:
        super().__init__(reason, path, start, end)
        self.args = (
            reason,
            path,
            start,
            end,
        )  # OSError keeps only two of four; pickle needs them all
        self.reason = reason
        self.path = path
        self.start = start
        self.end = end

    @property
    def offset(self) -> int | None:
        """First byte of the range that failed: `start`, under the name that `DataError` uses."""
        return self.start

    def __str__(self) -> str:
        if self.start is None or (self.start == 0 and self.end is None):
            where = []  # all bytes: the path says as much
        else:
            end = "the end" if self.end is None else f"{self.end:,}"
            where = [f"bytes {self.start:,} to {end}"]
        return _message(where, self.reason, self.path)


class NotFoundError(StorageError, FileNotFoundError):
    """The object, bucket or directory does not exist. Final: never retried."""


class AlreadyExistsError(StorageError, FileExistsError):
    """An object of this name exists, and the writer must not replace it (`overwrite=False`).

    Final: never retried.
    """


class IntegrityError(StorageError):
    """The stored object has another size or checksum than the data that was sent.

    Write it again.
    """


class PermissionDeniedError(StorageError, PermissionError):
    """The credentials are missing, wrong, or not allowed to do this. Final: never retried."""


class ThrottledError(StorageError):
    """The store kept asking for fewer requests (429, 503 SlowDown)."""


class StorageTimeoutError(StorageError, TimeoutError):
    """No connection, no first byte or no further byte within the time limit, again and again."""


class ObjectChangedError(StorageError):
    """The object was replaced while it was being read, or since it was listed.

    Final: list it or read it again.
    """


class UnsupportedOperationError(StorageError):
    """This kind of storage cannot do this (writing over plain HTTP, listing a web server)."""


class UploadEndedError(StorageError):
    """The store no longer has this upload.

    Another writer started on the same name, or the store removed it.
    """


class CacheError(StorageError, ValueError):
    """The file of a `cache()` is not a cache, belongs to another pipeline, or is incomplete."""


class MissingExtraError(StreamrecError, ImportError):
    """An optional package is not installed; the message holds the `pip install` to type."""


def install_command(extra: str = "", options: str = "") -> str:
    """The command that installs streamrec with an extra.

    >>> install_command("s3")
    "pip install '.[s3]' in a checkout of streamrec"
    """
    return INSTALL.format(extra=extra and f"[{extra}]", options=options and f"{options} ")


class ManifestError(StreamrecError, ValueError):
    """A manifest or index is damaged, has a newer version, or does not match the shards."""


class PositionMismatchError(StreamrecError, ValueError):
    """A saved position does not belong to this pipeline or to these shards."""


class ClosedError(StreamrecError, RuntimeError):
    """The reader, writer or iterator was closed before this call."""


class LoopThreadError(StreamrecError, RuntimeError):
    """A blocking call on the event loop's own thread, where it would wait for itself forever."""
