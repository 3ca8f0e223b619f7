"""Parquet: a row a record, and a column a feature. Needs pyarrow.

- The rows of a column are lists of int64, float, binary or text; or single values if every record
  has one.
- A missing feature is null, an empty list an empty list, a feature without a kind `[null]`.
- `arrow.py` describes how other Parquet files are read.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO, Final

import pyarrow as pa
from pyarrow import parquet

from streamrec import FeatureError, infer_features
from streamrec.cli.formats.codec import (
    BATCH_BYTES,
    BATCH_RECORDS,
    Codec,
    Field,
    FileEncoder,
    Look,
    Reading,
    columns_of,
)
from streamrec.cli.library import (
    BYTES,
    FLOAT,
    INT64,
    Changes,
    FeatureValues,
    examples_of,
    features_of,
    join_schemas,
    text_of,
)

ROW_GROUP_BYTES: Final = 32 << 20
"""The approximate size of a row group, which is in memory until it is complete."""

ADVICE: Final = "leave --schema out, and all records are looked at first"
TYPES: Final = {INT64: pa.int64(), FLOAT: pa.float32(), BYTES: pa.binary(), None: pa.null()}


class ParquetEncoder(FileEncoder):
    """Encodes a Parquet file, one row group of about ROW_GROUP_BYTES after the other.

    Args:
        columns: All columns of the file.
        first: The number of the first record, for errors.
        changes: Notes which columns of bytes are text.
    """

    def __init__(self, columns: Sequence[Field], first: int, changes: Changes) -> None:
        self._changes = changes
        self._number = first
        self._columns = columns
        self._names = {column.name for column in columns}
        self._schema = pa.schema([(column.name, type_of(column)) for column in columns])
        self._sink = Collected()
        self._writer = parquet.ParquetWriter(self._sink, self._schema)
        self._batches: list[Any] = []

    def write(self, records: Iterable[bytes]) -> bytes:
        """Takes records; returns a row group once there are enough for one."""
        rows = [
            (features_of(record, number), len(record))
            for number, record in enumerate(records, self._number)
        ]
        if rows and not self._columns:
            raise FeatureError(
                "no record has a feature, and Parquet files have no rows without columns"
            )
        # A schema file may lack a feature: a record that has it would lose it without a word.
        for number, (row, _) in enumerate(rows, self._number):
            if unknown := sorted(row.keys() - self._names):
                raise FeatureError(
                    f"the schema has no column for this feature: {ADVICE}", unknown[0], number
                )
        columns = [
            [
                self._value(column, row.get(column.name), number)
                for number, (row, _) in enumerate(rows, self._number)
            ]
            for column in self._columns
        ]
        arrays = [
            pa.array(values, field.type)
            for values, field in zip(columns, self._schema, strict=True)
        ]
        self._batches.append(pa.record_batch(arrays, schema=self._schema))
        self._number += len(rows)
        self.waiting += sum(size for _, size in rows)
        return self._row_group() if self.waiting >= ROW_GROUP_BYTES else b""

    def finish(self) -> bytes:
        """The last row group, and the footer."""
        rest = self._row_group() if self._batches else b""
        self._writer.close()
        return rest + self._sink.take()

    def _row_group(self) -> bytes:
        self._writer.write_table(
            pa.Table.from_batches(self._batches, self._schema), row_group_size=1 << 30
        )
        self._batches = []
        self.waiting = 0
        return self._sink.take()

    def _value(self, column: Field, feature: FeatureValues | None, number: int) -> Any:
        if feature is None:
            return None
        kind, values = feature
        if (kind != column.kind and (kind is not None or column.scalar)) or (
            column.scalar and len(values) != 1
        ):
            found = "no value" if kind is None else f"{len(values)} {kind}"
            wanted = f"{'one ' if column.scalar else ''}{column.kind or 'no value'}"
            raise FeatureError(
                f"the record has {found}, and its column takes {wanted}: {ADVICE}",
                column.name,
                number,
            )
        if kind == BYTES and column.text:
            try:
                values = [value.decode() for value in values]
            except UnicodeDecodeError as error:
                reason = (
                    f"bytes that are not UTF-8 ({error.reason} at byte {error.start}): leave it "
                    "out of --text"
                )
                raise FeatureError(reason, column.name, number) from error
        elif kind == BYTES and column.name not in self._changes.binary:
            # One value that is not text settles it: later records of the column are not looked at.
            for value in filter(None, values):
                changes = self._changes
                (changes.binary if text_of(value) is None else changes.text).add(column.name)
        return values[0] if column.scalar else values


def type_of(column: Field) -> Any:
    """Arrow's type of a column."""
    kind = pa.string() if column.text else TYPES[column.kind]
    return kind if column.scalar else pa.list_(kind)


class Collected(io.RawIOBase):
    """A file whose written bytes are taken out in between."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def writable(self) -> bool:
        """True: pyarrow asks before it writes."""
        return True

    def write(self, data: Any) -> int:
        """Keeps a copy of the data until `take`."""
        self._parts.append(bytes(data))
        self._size += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        """How many bytes were written in all, those that were taken out included."""
        return self._size

    def take(self) -> bytes:
        """Takes out the bytes written since the last call."""
        data = b"".join(self._parts)
        self._parts = []
        return data


def records_in(file: BinaryIO, reading: Reading) -> Iterator[bytes]:
    """Reads a Parquet file. A row group is decoded piece by piece."""
    try:
        table = parquet.ParquetFile(file, buffer_size=1 << 20, pre_buffer=False)
        metadata = table.metadata
        names = [name for name in table.schema_arrow.names if reading.wants(name)]
        nbytes = sum(
            metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)
        )
        rows = max(1, min(BATCH_RECORDS, BATCH_BYTES * max(1, metadata.num_rows) // max(1, nbytes)))
        for batch in table.iter_batches(rows, columns=names):
            yield from examples_of(batch, reading.kinds, reading.changes)
    except pa.ArrowException as error:  # some of them are not ValueErrors
        raise ValueError(str(error)) from error


LOOK: Final = Look(infer_features, join_schemas, columns_of, saved=True)
CODEC: Final = Codec(ParquetEncoder, records_in, LOOK)
