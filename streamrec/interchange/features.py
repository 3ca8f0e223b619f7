"""The common model of all formats.

An Example is a dict of features, a feature a list of values; files have columns.

- A missing feature is not in the dict.
- A list contains ints, floats or bytes; `kind` says which, even if the list is empty.
- A feature without a kind, which parses as missing, is the list `[None]`.
- The columns of a Parquet file or a tar depend on all records, and must be known before the first
  byte is written.
"""

from __future__ import annotations

import math
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.errors import (
    CorruptRecordError,
    FeatureError,
    MissingExtraError,
    StreamrecError,
    install_command,
)
from streamrec.example import (
    CAN_COPY,
    FeatureSummary,
    Schema,
    describe_other,
    encode_example,
    kind_and_message,
)

INT64: Final = "int64"
FLOAT: Final = "float32"
BYTES: Final = "bytes"

KINDS: Final = {"int64_list": INT64, "float_list": FLOAT, "bytes_list": BYTES}

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


@dataclass(slots=True)
class Changes:
    """The changes that a conversion makes, which users of the result must know.

    Attributes:
        values: The largest change of a value, by the column's name and a description; 0 if only the
            type changes.
        text: Columns of text that are written as binary.
        binary: Columns of bytes that are not text.
        features: All features of the records, including those that are not read.
    """

    values: dict[tuple[str, str], float] = field(default_factory=dict)
    text: set[str] = field(default_factory=set)
    binary: set[str] = field(default_factory=set)
    features: set[str] = field(default_factory=set)

    def add(self, name: str, what: str, largest: float = 0.0) -> None:
        """Notes a change of a column; of several of the same kind the largest is kept."""
        self.values[name, what] = max(largest, self.values.get((name, what), 0.0))

    def add_rounded(self, name: str, numbers: npt.NDArray[Any]) -> None:
        """Notes the floats or integers of a column that float32 rounds."""
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = numbers.astype(np.float32)
            changed = (rounded.astype(numbers.dtype) != numbers) & (numbers == numbers)
            change = np.abs(numbers - rounded.astype(np.float64))[changed]
        if len(change):
            least = 0.0 if numbers.dtype.kind == "f" else 1.0  # a change of 1 may be 0 in float64
            self.add(name, f"{numbers.dtype.name} -> float32", max(least, float(change.max())))

    def update(self, other: Changes) -> None:
        """Adds the changes of another part of the data."""
        for (name, what), largest in other.values.items():
            self.add(name, what, largest)
        self.text |= other.text
        self.binary |= other.binary
        self.features |= other.features

    def __str__(self) -> str:
        """The changes in one line; empty without changes."""
        parts = [
            f"{name}: {what}{describe_change(largest)}"
            for (name, what), largest in self.values.items()
        ]
        if text := sorted(self.text - self.binary):
            parts.append(f"{', '.join(text)}: text -> binary (--text {','.join(text)} keeps text)")
        return "; ".join(parts)


def describe_change(largest: float) -> str:
    """The largest change of a value, in brackets; empty if no value changes."""
    if not math.isfinite(largest):
        return " (values beyond its range become infinite)"
    return f" (largest change {largest:.2g})" if largest else ""


class FeatureValues(NamedTuple):
    """The values of a feature, all of kind "int64", "float32" or "bytes".

    `[None]` without a kind.
    """

    kind: str | None
    values: list[Any]


NO_KIND: Final = FeatureValues(None, [None])


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
        codec: Codec = import_module(f"streamrec.interchange.{name}").CODEC
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise MissingExtraError(
            f"Parquet needs another package: {install_command('arrow')}"
        ) from error
    return codec


def features_of(record: bytes, number: int) -> dict[str, FeatureValues]:
    """The features of a serialized Example, in the order of their names.

    Raises:
        FeatureError: The record is something else; the message says what.
    """
    kind, message = kind_and_message(record)
    if kind == "bytes":
        raise FeatureError(f"{describe_other(record)}: {CAN_COPY}", None, number)
    if kind in ("sequence_example", "example_list"):
        name = "a SequenceExample" if kind == "sequence_example" else "an ExampleListWithContext"
        raise FeatureError(
            f"{name}: only Examples can be converted; parse it, and write Examples", None, number
        )
    features = message.context.feature
    return {name: values_of(features[name]) for name in sorted(features)}


def values_of(feature: Any) -> FeatureValues:
    """The values of a `Feature` message of protobuf."""
    kind = feature.WhichOneof("kind")
    if kind is None:
        return NO_KIND
    return FeatureValues(KINDS[kind], list(getattr(feature, kind).value))


def example_of(features: Mapping[str, FeatureValues]) -> bytes:
    """Serializes an Example; the same features give the same bytes."""
    kinds = {name: kind for name, (kind, _) in features.items() if kind is not None}
    lists = {name: values if name in kinds else [] for name, (_, values) in features.items()}
    return encode_example(lists, kinds=kinds, deterministic=True)


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


def join_schemas(one: Schema, other: Schema) -> Schema:
    """The schema of two parts of the data; a feature that one part lacks is missing there.

    Raises:
        FeatureError: A feature has two kinds.
    """
    records = one.records + other.records
    known = {item.name: item for item in one.summaries}
    for item in other.summaries:
        known[item.name] = join_summaries(known[item.name], item) if item.name in known else item
    return Schema(records, tuple(replace(known[name], records=records) for name in sorted(known)))


def join_summaries(one: FeatureSummary, other: FeatureSummary) -> FeatureSummary:
    """The summary of a feature over two parts of the data.

    Raises:
        FeatureError: The parts have the feature in two kinds.
    """
    seen = [item for item in (one, other) if item.present]
    if len({item.dtype for item in seen}) == 2:
        names = " and ".join(item.dtype.__name__ for item in seen if item.dtype is not None)
        raise FeatureError(f"{names} in different records; a column has one kind", one.name)
    return replace(
        seen[0] if seen else one,
        present=one.present + other.present,
        without_kind=one.without_kind + other.without_kind,
        shortest=min((item.shortest for item in seen), default=0),
        longest=max((item.longest for item in seen), default=0),
        without_values=one.records - one.without_values,
    )
