"""What the formats have in common: an Example as a dict of features, and a feature as a list of values.

- A feature that is missing is not in the dict.
- A list holds ints, floats or bytes; `kind` says which, also where it is empty.
- A feature without a kind, which `parse_example` takes for missing, is the list `[None]`.
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Literal, NamedTuple, Protocol, TypeAlias

from google.protobuf.message import DecodeError

from streamrec.errors import CorruptRecordError, FeatureError, StreamrecError
from streamrec.example import SequenceExample, encode_example
from streamrec.interchange.columns import Changes, Column

__all__ = [
    "BATCH_BYTES",
    "BATCH_RECORDS",
    "BYTES",
    "FLOAT",
    "INT64",
    "KINDS",
    "Codec",
    "Encoder",
    "Kind",
    "Look",
    "Reading",
    "Values",
    "batched",
    "example_of",
    "features_of",
    "kind_of",
]

Kind: TypeAlias = Literal["example", "sequence_example", "bytes"]
"""What a record is."""

INT64: Final = "int64"
FLOAT: Final = "float32"
BYTES: Final = "bytes"

KINDS: Final = {"int64_list": INT64, "float_list": FLOAT, "bytes_list": BYTES}

CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")

BATCH_BYTES: Final = 8 << 20
BATCH_RECORDS: Final = 4096
"""How much is decoded at a time."""

DAMAGE: Final = (ValueError, EOFError, OSError, RecursionError, OverflowError, tarfile.TarError, zlib.error)
"""What the decoders raise where a file is not what its name says, or is damaged."""


class Values(NamedTuple):
    """The values of a feature.

    Attributes:
        kind: "int64", "float32" or "bytes"; None where the feature has no kind.
        values: The list; `[None]` without a kind.
    """

    kind: str | None
    values: list[Any]


NO_KIND: Final = Values(None, [None])


class Encoder(Protocol):
    """One file on its way.

    Attributes:
        waiting: Bytes of records that were taken, of which nothing was given yet.
    """

    @property
    def waiting(self) -> int: ...

    def write(self, records: Iterable[bytes]) -> bytes:
        """Takes records; returns the bytes of the file that can be written now."""

    def finish(self) -> bytes:
        """The rest of the file."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read of a file.

    Attributes:
        features: Only these; None for all.
        kinds: What some features must be ("int64", "float32", "bytes"), where the file leaves that open.
        changes: Takes note of what an Example does not hold as the file does.
    """

    features: frozenset[str] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    changes: Changes = field(default_factory=Changes)

    def wants(self, name: str) -> bool:
        """Whether to read a feature that the file holds; `changes` takes note of it."""
        self.changes.features.add(name)
        return self.features is None or name in self.features


@dataclass(frozen=True, slots=True)
class Look:
    """How columns are found out, which a file must know of all records before its first byte.

    Attributes:
        see: What some records say. Raises FeatureError with the record's number among them.
        join: What two parts of the data say together.
        columns: The columns; notes what they change.
        saved: Whether a schema file says as much.
    """

    see: Callable[[Iterable[bytes]], Any]
    join: Callable[[Any, Any], Any]
    columns: Callable[[Any, Changes], tuple[Column, ...]]
    saved: bool


@dataclass(frozen=True, slots=True)
class Codec:
    """A format.

    Attributes:
        encoder: Begins a file. Takes the columns, the number of its first record, and what takes note of changes.
        decode: The records of a file, serialized, in batches. Reads the file from its beginning; only Parquet seeks.
            Raises CorruptRecordError and FeatureError with the record's number.
        look: How the columns are found out; None where `encoder` does not look at them.
    """

    encoder: Callable[[Sequence[Column], int, Changes], Encoder]
    decode: Callable[[BinaryIO, Reading], Iterator[list[bytes]]]
    look: Look | None = None


def kind_of(record: bytes) -> Kind | None:
    r"""What a record is; None for an empty one, and for an Example without features, which may be either kind.

    Examples:
        >>> kind_of(b"hello"), kind_of(b"\n\x00"), kind_of(b"")
        ('bytes', None, None)
    """
    try:
        message: Any = SequenceExample.FromString(record)  # an Example is one without feature lists
    except DecodeError:
        return "bytes"
    if message.feature_lists.feature_list:
        return "sequence_example"
    if message.context.feature:
        return "example"
    return None if not record or message.HasField("context") or message.HasField("feature_lists") else "bytes"


def features_of(record: bytes, number: int) -> dict[str, Values]:
    """The features of a serialized Example, in the order of their names.

    Raises:
        FeatureError: The record is no Example. Says its number.
    """
    kind = kind_of(record)
    if kind == "bytes":
        raise FeatureError(f"{len(record):,} bytes that are no Example", None, number)
    if kind == "sequence_example":
        raise FeatureError(
            "a SequenceExample: only Examples can be converted; parse it with parse_sequence_example, and write "
            "Examples",
            None,
            number,
        )
    message: Any = SequenceExample.FromString(record)
    found = message.context.feature
    return {name: values_of(found[name]) for name in sorted(found)}


def values_of(feature: Any) -> Values:
    kind = feature.WhichOneof("kind")
    return NO_KIND if kind is None else Values(KINDS[kind], list(getattr(feature, kind).value))


def example_of(features: Mapping[str, Values]) -> bytes:
    """The serialized Example, the same bytes for the same features.

    Raises:
        FeatureError: A value is too large for its kind, or of another one.
    """
    kinds = {name: kind for name, (kind, _) in features.items() if kind is not None}
    lists = {name: values if name in kinds else [] for name, (_, values) in features.items()}
    return encode_example(lists, kinds=kinds, deterministic=True)


def batched(records: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Records in batches of a bounded size.

    Raises:
        CorruptRecordError, FeatureError: What is wrong with the next record, and its number. (A FeatureError of
            `records` counts from the next one.)
    """
    batch: list[bytes] = []
    done, size = 0, 0
    try:
        for record in records:
            batch.append(record)
            size += len(record)
            done += 1
            if size >= BATCH_BYTES or len(batch) == BATCH_RECORDS:
                yield batch
                batch, size = [], 0
    except FeatureError as error:
        raise FeatureError(error.reason, error.feature, done + (error.record or 0)) from error
    except StreamrecError:  # the store's
        raise
    except DAMAGE as error:
        what = f"{type(error).__name__}: {error}"
        reason = f"what follows cannot be decoded ({what}): the file is damaged, or of another format"
        raise CorruptRecordError(reason, None, None, done) from error
    if batch:
        yield batch
