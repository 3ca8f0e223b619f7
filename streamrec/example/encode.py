"""Encodes Examples, one from a mapping or many from columns, and SequenceExamples.

Rules of this file:
- TensorFlow parses the values that were encoded; values.py describes how values become the three
  kinds.
- One record is a batch of one: `encode_example` and `encode_examples` run the same kernel in C.
- Features are written in the mapping's order, or sorted by key (in UTF-8) on request: then the
  bytes are those of protobuf's deterministic serialization in C++ and in Python. (The upb that
  protobuf's wheels carry puts a longer name before its own prefix; nothing else differs.)
- A record is at most 2 GiB long, the limit of protobuf's readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np

from streamrec.arguments import check_mapping
from streamrec.errors import FeatureError
from streamrec.example.columns import BytesColumn
from streamrec.example.features import NUMBERS, Dtype, encode_name
from streamrec.example.messages import (
    BytesList,
    Feature,
    FeatureList,
    FeatureLists,
    FloatList,
    Int64List,
)
from streamrec.example.values import PackedColumn, resolve_kinds, to_column, to_columns, to_values
from streamrec.kernels._native import encode_examples as _encode
from streamrec.tracebacks import border, shorten_traceback

_FEATURE_LISTS_TAG = b"\x12"
_Packed: TypeAlias = tuple[bytes, int, Any, Any, Any]
_FAILURES = {
    1: (
        "row splits that descend or exceed the values: they must ascend from 0 to the number of "
        "values"
    ),
    2: "spans that leave their buffer or end before they start",
    3: (
        "the record would exceed 2 GiB, the limit of protobuf's readers: split it or compress its "
        "values"
    ),
    4: (
        "a column changed while it was being encoded: do not write to its array from another "
        "thread meanwhile"
    ),
}


def feature_of(kind: Dtype | None, values: Any) -> Feature:
    """Makes a Feature message of an array of numbers or a sequence of bytes."""
    if kind is bytes:
        return Feature(bytes_list=BytesList(value=values))
    if kind is np.float32:
        return Feature(float_list=FloatList(value=values.tolist()))
    return Feature() if kind is None else Feature(int64_list=Int64List(value=values.tolist()))


@border
def bytes_feature(value: Any) -> Feature:
    """Makes a Feature of byte strings.

    Args:
        value: bytes or str (encoded as UTF-8), or any list or array of them, which may be empty.

    Raises:
        FeatureError: The value is something else.
    """
    return feature_of(*to_values(value, bytes))


@border
def float_feature(value: Any) -> Feature:
    """Makes a Feature of floats, rounded to float32.

    Args:
        value: A float or an integer, or any list or array of them, which may be empty.

    Raises:
        FeatureError: The value is something else.
    """
    return feature_of(*to_values(value, np.float32))


@border
def int64_feature(value: Any) -> Feature:
    """Makes a Feature of integers.

    Args:
        value: A bool, an enum, an integer in the range of int64, or any list or array of them.

    Raises:
        FeatureError: The value is something else, such as a float.
    """
    return feature_of(*to_values(value, np.int64))


def encode_example(
    features: Mapping[str, Any],
    *,
    kinds: Mapping[str, Any] | None = None,
    deterministic: bool = False,
) -> bytes:
    r"""Serializes one tf.train.Example.

    Args:
        features: The value of each feature: a scalar, a list, a NumPy array (flattened in row-major
            order), a tensor, a `SparseTensor` of one dimension without gaps, or a Feature message.
            bytes and str become a bytes_list; bool, enums and every integer an int64_list; floats a
            float_list, rounded to float32. An empty list has no kind unless `kinds` declares it,
            and is then written as a Feature without kind, which parses as missing.
        kinds: The kinds of some features: `np.int64`, `np.float32`, `bytes`, or feature
            configurations such as `infer_features` proposes. A declared float accepts integers; a
            declared int64 does not accept floats. Names that are not in `features` are ignored.
        deterministic: Whether to sort the features by name. Otherwise they have the mapping's
            order.

    Returns:
        The bytes of one record.

    Raises:
        FeatureError: A value has no kind, or not the declared one: None, a ragged list, mixed
            types, a float for an int64, an int beyond int64. The error names the feature and both
            types.

    Example:
        >>> encode_example({"label": 3, "name": "a"})
        b'\n\x1f\n\x0e\n\x05label\x12\x05\x1a\x03\n\x01\x03\n\r\n\x04name\x12\x05\n\x03\n\x01a'
    """
    try:
        check_mapping("features", features, "values by the names of features")
        declared = resolve_kinds(kinds, features)
        packed: list[_Packed] = []
        for name, value in features.items():
            kind, data = to_values(value, declared.get(name), name)
            packed.append((encode_name(name), NUMBERS[kind], data, None, len(data)))
        record: bytes = _run(packed, 1, deterministic)[0]
        return record
    except Exception as error:
        shorten_traceback(error)
        raise


@border
def encode_examples(
    columns: Mapping[str, Any],
    *,
    kinds: Mapping[str, Any] | None = None,
    deterministic: bool = False,
) -> BytesColumn:
    """Serializes many tf.train.Examples from columns, at native speed.

    Args:
        columns: A column with a row per record for each feature, all of the same length: an array
            of shape `[records, ...]`; a list of scalars, lists or arrays; a `RaggedTensor` of one
            ragged dimension; a `SparseTensor` of two dimensions without gaps, as a `VarLenFeature`
            returns it; `Frames` or a `BytesColumn` for byte strings in one buffer.
        kinds: As in `encode_example`.
        deterministic: As in `encode_example`.

    Returns:
        The records, in order, of shape `[rows]`. Writers accept the column as a batch of records.

    Raises:
        FeatureError: As in `encode_example`, with the record if it is known; or columns have
            different lengths.

    Example:
        >>> records = encode_examples({"label": np.arange(3), "words": [["a"], [], ["b", "c"]]})
        >>> second = encode_example({"label": 1, "words": []}, kinds={"words": bytes})
        >>> len(records), records[1] == second
        (3, True)
    """
    packed_columns = to_columns(columns, kinds)
    packed: list[_Packed] = [
        (encode_name(column.name), NUMBERS[column.kind], *column[2:5]) for column in packed_columns
    ]
    rows = packed_columns[0].rows if packed_columns else 0
    buffer, spans = _run(packed, rows, deterministic)
    places = np.frombuffer(spans, dtype="<i8").reshape(-1, 2)
    return BytesColumn.over(memoryview(buffer).toreadonly(), places)


@border
def encode_sequence_example(
    context: Mapping[str, Any],
    feature_lists: Mapping[str, Any],
    *,
    context_kinds: Mapping[str, Any] | None = None,
    sequence_kinds: Mapping[str, Any] | None = None,
    deterministic: bool = False,
) -> bytes:
    """Serializes one tf.train.SequenceExample.

    Args:
        context: As `features` in `encode_example`.
        feature_lists: The steps of each feature list, in any form of a column in `encode_examples`:
            a list with the value of each step, an array of shape `[steps, ...]`, a ragged tensor.
        context_kinds: As `kinds` in `encode_example`, for the context.
        sequence_kinds: The same for the feature lists.
        deterministic: As in `encode_example`, for the context and the feature lists.

    Returns:
        The bytes of one record.

    Raises:
        FeatureError: As in `encode_examples`, with the step's number instead of the record's.
    """
    check_mapping("context", context, "values by the names of features")
    check_mapping("feature_lists", feature_lists, "steps by the names of feature lists")
    declared = resolve_kinds(sequence_kinds, feature_lists)
    columns = [to_column(name, value, declared.get(name)) for name, value in feature_lists.items()]
    if deterministic:
        columns.sort(key=lambda column: encode_name(column.name))
    # Concatenated messages are merged, so a map's entries can be written one by one, in the order
    # wanted.
    lists = []
    for column in columns:
        name = encode_name(column.name).decode()
        lists.append(FeatureLists(feature_list={name: FeatureList(feature=_steps(column))}))
    body = b"".join(item.SerializeToString() for item in lists)
    # An Example is a SequenceExample without lists; a BytesList has the length's bytes, under
    # another tag.
    context_bytes = encode_example(context, kinds=context_kinds, deterministic=deterministic)
    return context_bytes + _FEATURE_LISTS_TAG + BytesList(value=[body]).SerializeToString()[1:]


def _steps(column: PackedColumn) -> Iterator[Feature]:
    values = column.values
    splits = column.splits
    if column.spans is not None:
        values = tuple(BytesColumn(values, column.spans))
    bounds = np.arange(column.rows + 1) * splits if isinstance(splits, int) else splits
    for step in range(column.rows):
        first = int(bounds[step])
        last = int(bounds[step + 1])
        if not 0 <= first <= last <= len(values):
            raise FeatureError(_FAILURES[1], column.name, step)
        yield feature_of(column.kind, values[first:last])


def _run(packed: list[_Packed], rows: int, deterministic: bool) -> tuple[Any, bytes]:
    """Runs the kernel; returns the records' bytes and spans."""
    if deterministic:
        packed.sort(key=lambda column: column[0])
    code, record, column, buffer, spans = _encode(tuple(packed), rows)
    if buffer is None or spans is None:
        raise FeatureError(_FAILURES[code], packed[column][0].decode(), record)
    return buffer, spans
