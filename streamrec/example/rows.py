"""The columns that `encode_examples` takes, each brought to one form: flat values and where its rows end.

Rules of this file:
- A column has one row for each record. An array is split along its first dimension; a list has a row in each
  item; a ragged tensor of one ragged dimension has its rows, and so has a sparse one whose rows are lists; Frames (or
  any `buffer` with `spans`) have a byte string each.
- A list's kind is that of its rows; rows without a kind (empty lists) take it over.
- Nothing is copied that has its final form already: int64, float32, bytes, a buffer with spans.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.columns import RaggedTensor, check_splits, list_splits, with_nulls
from streamrec.example.values import (
    KIND_NAMES,
    Data,
    Kind,
    KindValues,
    declared_kind,
    natural_kind,
    to_values,
)

__all__ = ["PackedColumn", "to_column", "to_columns"]


class PackedColumn(NamedTuple):
    """One feature of many records.

    Args:
        name: The feature's name.
        kind: What its values are; a `Kind.NONE` feature has none and is written without a list.
        values: int64 or float32 of shape `[values]`, a tuple of bytes, or the buffer that `spans` cut up.
        spans: int64 of shape `[values, 2]`, the start and end of each byte string in the buffer; or None.
        splits: int64 of shape `[rows + 1]`: row i holds the values from split i to split i + 1. Or an int:
            every row is so wide.
        rows: The number of records.
    """

    name: str
    kind: Kind
    values: Any
    spans: npt.NDArray[np.int64] | None
    splits: npt.NDArray[np.int64] | int
    rows: int


def to_columns(columns: Mapping[str, Any], kinds: Mapping[str, Any] | None = None) -> list[PackedColumn]:
    """All columns of a batch."""
    declared = {name: declared_kind(dtype, name) for name, dtype in (kinds or {}).items() if name in columns}
    made = [to_column(name, value, declared.get(name)) for name, value in columns.items()]
    for column in made:
        if column.rows != made[0].rows:
            raise FeatureError(
                f"{column.rows:,} rows where {made[0].rows:,} are wanted, as in {made[0].name!r}; "
                "every column needs one row for each record",
                column.name,
            )
    return made


def to_column(name: str, value: Any, declared: Kind | None = None) -> PackedColumn:
    """One column from any of the forms that `encode_examples` takes."""
    if hasattr(value, "spans") and hasattr(value, "buffer"):
        return _of_spans(name, value, declared)
    if hasattr(value, "nested_row_splits"):
        return _of_ragged(name, value, declared)
    if hasattr(value, "dense_shape"):
        return _of_ragged(name, RaggedTensor(value.values, (list_splits(value, name),)), declared)
    if isinstance(value, list | tuple | range):
        return _of_list(name, value, declared)
    return _of_array(name, value, declared)


def _of_spans(name: str, value: Any, declared: Kind | None) -> PackedColumn:
    if declared not in (None, Kind.BYTES):
        raise FeatureError(f"byte strings where {KIND_NAMES[declared]} is wanted", name)
    spans = np.ascontiguousarray(value.spans, dtype="<i8")
    if spans.ndim < 2 or spans.shape[-1] != 2:
        raise FeatureError(f"spans of shape {list(spans.shape)} where [n, 2] is wanted", name)
    return PackedColumn(name, Kind.BYTES, value.buffer, spans.reshape(-1, 2), math.prod(spans.shape[1:-1]), len(spans))


def _array(name: str, value: Any) -> npt.NDArray[Any]:
    found = value
    if not hasattr(value, "__array__") and hasattr(value, "to_numpy"):  # as of Arrow, polars, BytesColumn
        found = value.to_numpy()
    if not hasattr(found, "__array__"):
        raise FeatureError(
            f"a {type(value).__name__} where a column is wanted: an array, a list with a row for each "
            "record, a ragged tensor, or Frames",
            name,
        )
    array = with_nulls(value, found if isinstance(found, np.ndarray) else np.asarray(found))
    if array.ndim == 0:
        raise FeatureError(f"one {array.dtype} where a column with a row for each record is wanted", name)
    return array


def _of_array(name: str, value: Any, declared: Kind | None) -> PackedColumn:
    array = _array(name, value)
    if array.dtype.kind == "O" and array.ndim == 1:
        return _of_list(name, array.tolist(), declared)
    kind, data = to_values(array, declared, name)
    width = 0 if kind is Kind.NONE else math.prod(array.shape[1:])
    return PackedColumn(name, kind, data, None, width, len(array))


def _of_ragged(name: str, value: Any, declared: Kind | None) -> PackedColumn:
    splits, *inner = check_splits(value, name)
    if inner:
        raise FeatureError(
            f"a ragged tensor of {1 + len(inner)} ragged dimensions, and a feature of an Example is one list: write "
            "the values as RaggedTensor(flat_values, (splits[1][splits[0]],)), and the lengths of the inner rows as "
            "RaggedTensor(np.diff(splits[1]), (splits[0],)), a feature that RaggedFeature.RowLengths names",
            name,
        )
    flat = value.flat_values
    array = flat if isinstance(flat, np.ndarray) else _array(name, flat)
    kind, data = to_values(array, declared, name)
    width = 0 if kind is Kind.NONE else math.prod(array.shape[1:])
    bounds = np.ascontiguousarray(splits.astype(np.int64) * width, dtype="<i8")
    return PackedColumn(name, kind, data, None, bounds, len(splits) - 1)


def _of_list(name: str, value: Sequence[Any], declared: Kind | None) -> PackedColumn:
    if all(natural_kind(of) is not None for of in set(map(type, value))):
        kind, data = to_values(value, declared, name)
        return PackedColumn(name, kind, data, None, 0 if kind is Kind.NONE else 1, len(value))
    rows = [_row(name, index, row, declared) for index, row in enumerate(value)]
    kind = _common_kind(name, rows)
    lengths = np.fromiter((len(row.data) for row in rows), dtype=np.int64, count=len(rows))
    splits = np.zeros(len(rows) + 1, dtype="<i8")
    np.cumsum(lengths, out=splits[1:])
    return PackedColumn(name, kind, _join(kind, rows), None, splits, len(rows))


def _row(name: str, index: int, value: Any, declared: Kind | None) -> KindValues:
    try:
        return to_values(value, declared, name)
    except FeatureError as error:
        raise FeatureError(error.reason, name, index) from error


def _common_kind(name: str, rows: list[KindValues]) -> Kind:
    kind = Kind.NONE
    for index, row in enumerate(rows):
        if kind is Kind.NONE:
            kind = row.kind
        elif row.kind not in (Kind.NONE, kind):
            found, wanted = KIND_NAMES[row.kind], KIND_NAMES[kind]
            advice = "convert the rows to one kind, or declare it"
            raise FeatureError(f"{found} where {wanted} is wanted, as in the rows before; {advice}", name, index)
    return kind


def _join(kind: Kind, rows: list[KindValues]) -> Data:
    if kind in (Kind.NONE, Kind.BYTES):
        return tuple(item for row in rows for item in row.data)
    return np.concatenate([np.asarray(row.data) for row in rows if row.kind is kind])
