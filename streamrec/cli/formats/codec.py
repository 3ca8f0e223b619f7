"""What all formats have in common: codecs, columns, and names.

The columns of a Parquet file or a tar depend on all records, and must be known before the first
byte is written.
"""

from __future__ import annotations

import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, BinaryIO, Final

from streamrec import CorruptRecordError, FeatureError, StreamrecError
from streamrec.cli.library import Changes, MissingExtraError, Schema, install_command

BATCH_BYTES: Final = 8 << 20
BATCH_RECORDS: Final = 4096
"""How many bytes and records are decoded at a time."""

DAMAGE: Final = (
    ValueError,
    EOFError,
    OSError,
    RecursionError,
    OverflowError,
    tarfile.TarError,
    zlib.error,
)
"""Errors that the decoders raise for a damaged file, or one of another format."""

FORMATS: Final = {
    "tfrecord": (".tfrecord", ".tfrecords"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson"),
    "webdataset": (".tar",),
}
"""The name endings of each format's files; files are written with the first."""

GZIP: Final = ".gz"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """The column of a feature.

    Attributes:
        kind: "int64", "float32" or "bytes"; None if no record has the feature with a kind.
        scalar: Whether each row is one value, or null if the feature is missing; else rows are
            lists.
        text: Whether its bytes are text.
        ending: The ending of its files in a tar: "npy", "jpg", "png", "txt", "bin" or "json".
    """

    name: str
    kind: str | None = None
    scalar: bool = False
    text: bool = False
    ending: str = "json"


class FileEncoder(ABC):
    """Encodes one file.

    `waiting` counts the bytes of records in memory that `write` has not returned yet.
    """

    waiting = 0

    @abstractmethod
    def write(self, records: Iterable[bytes]) -> bytes:
        """Takes records; returns the bytes of the file that can be written now."""

    def finish(self) -> bytes:
        """Returns the rest of the file, after the last record."""
        return b""


@dataclass(frozen=True, slots=True)
class Reading:
    """Options for reading a file.

    They are its features, None for all, and the kinds that the file does not determine.

    `changes` collects the changes that the conversion makes.
    """

    features: tuple[str, ...] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)

    def wants(self, name: str) -> bool:
        """Whether to read a feature of the file, which is noted in `changes`."""
        self.changes.features.add(name)
        return self.features is None or name in self.features


@dataclass(frozen=True, slots=True)
class Look:
    """The pass over all records that determines the columns of a file before it is written.

    Attributes:
        see: Summarizes some records. Raises FeatureError with the record's number among them.
        join: Joins the summaries of two parts of the data.
        columns: Makes the columns of a summary, and notes the changes that they make.
        saved: Whether a schema file can replace the pass.
    """

    see: Callable[[Iterable[bytes]], Any]
    join: Callable[[Any, Any], Any]
    columns: Callable[[Any, Changes], tuple[Field, ...]]
    saved: bool


@dataclass(frozen=True, slots=True)
class Codec:
    """The encoder and decoder of a format.

    Attributes:
        encoder: Begins a file with these columns. Its first record has this number; the changes are
            noted.
        records: Reads the serialized records of a file from its beginning; only Parquet seeks.
        look: The pass that determines the columns; None if `encoder` does not need them.
    """

    encoder: Callable[[Sequence[Field], int, Changes], FileEncoder]
    records: Callable[[BinaryIO, Reading], Iterator[bytes]]
    look: Look | None = None

    def decode(
        self, file: BinaryIO, reading: Reading, began: Callable[[], None] | None = None
    ) -> Iterator[list[bytes]]:
        """The records of a file in batches of a bounded size; calls `began` after each record.

        Raises:
            CorruptRecordError, FeatureError: The next record is damaged or cannot be converted;
                `record` is its number. (In a FeatureError of `records` it is relative to the next
                record.)
        """
        batch: list[bytes] = []
        done = 0
        size = 0
        try:
            for record in self.records(file, reading):
                batch.append(record)
                size += len(record)
                done += 1
                if began is not None:
                    began()
                if size >= BATCH_BYTES or len(batch) == BATCH_RECORDS:
                    yield batch
                    batch = []  # the consumer may keep the other one
                    size = 0
        except FeatureError as error:
            raise FeatureError(error.reason, error.feature, done + (error.record or 0)) from error
        except StreamrecError:  # from the store
            raise
        except DAMAGE as error:
            what = f"{type(error).__name__}: {error}"
            reason = (
                f"what follows cannot be decoded ({what}): the file is damaged, or of another "
                "format"
            )
            raise CorruptRecordError(reason, None, None, done) from error
        if batch:
            yield batch


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a file; with `gzip`, it is compressed, and its name ends with ".gz"."""

    name: str
    gzip: bool


def format_of(path: str, wanted: str | None = None) -> Format:
    """The format of a file: `wanted`, or that of the name's ending, or else TFRecord.

    Examples:
        >>> format_of("s3://b/train.parquet")
        Format(name='parquet', gzip=False)
        >>> format_of("a.jsonl.gz"), format_of("a", "webdataset").name
        (Format(name='jsonl', gzip=True), 'webdataset')
    """
    if path.endswith(".tgz"):
        path = path.removesuffix(".tgz") + ".tar" + GZIP
    gzip = path.endswith(GZIP)
    plain = path.removesuffix(GZIP)
    named = next((name for name, endings in FORMATS.items() if plain.endswith(endings)), "tfrecord")
    return Format(wanted or named, gzip)


def codec_of(name: str) -> Codec:
    """The codec of a format other than TFRecord; Parquet needs pyarrow."""
    try:
        codec: Codec = import_module(f"streamrec.cli.formats.{name}").CODEC
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtraError(
            f"Parquet needs another package: {install_command('arrow')}"
        ) from error
    return codec


def columns_of(schema: Schema, changes: Changes) -> tuple[Field, ...]:
    """The columns for a schema: a feature with at most one value in each record is a scalar.

    A feature that some records hold without a value or a kind is a list, since null would be a
    missing feature.
    """
    columns = []
    for item in schema.summaries:
        scalar = item.longest == item.shortest == 1 and not item.without_kind
        if item.longest == 1 and not scalar:
            changes.add(
                item.name, "0 or 1 values -> list (some records hold it empty, which is not null)"
            )
        kind = None if item.dtype is None else item.dtype.__name__
        columns.append(Field(name=item.name, kind=kind, scalar=scalar))
    return tuple(columns)
