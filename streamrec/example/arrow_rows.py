"""Converts Arrow record batches to Examples, and Examples to record batches. Needs pyarrow.

Batches without null are converted column by column, others row by row. Integers and bool become
int64, floats float32, strings and binary bytes, alone or in lists or fixed-size lists. Dictionaries
are decoded; a tensor of Ray Data becomes the list of its values. null is a missing feature, and
`[null]` one without a kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from streamrec.errors import FeatureError
from streamrec.example import (
    ArrowBatch,
    BytesColumn,
    FeatureSummary,
    RaggedFeature,
    RaggedTensor,
    encode_examples,
)
from streamrec.example.changes import Changes
from streamrec.example.feature_values import (
    BYTES,
    FLOAT,
    INT64,
    NO_KIND,
    FeatureValues,
    example_of,
    features_of,
)
from streamrec.example.parse import parse_batch
from streamrec.example.walk import make_plan

Kinds = Mapping[str, str]
"""The required kinds of some columns: "int64", "float32" or "bytes"."""


TEXTS: Final = ("string", "large_string", "string_view")
BINARIES: Final = ("binary", "large_binary", "binary_view")
"""Types of Arrow by name, since older versions of pyarrow lack some."""


def examples_of(batch: Any, wanted: Kinds, changes: Changes) -> BytesColumn | list[bytes]:
    """Converts the rows of a `pyarrow.RecordBatch` to serialized Examples."""
    kinds = {field.name: kind_of(field, wanted) for field in batch.schema}
    if len(kinds) < batch.num_columns:
        name = next(name for name in batch.schema.names if batch.schema.names.count(name) > 1)
        raise FeatureError("several columns have this name: rename them first", name)
    arrays = {name: decode_dictionary(batch.column(name)) for name in kinds}
    for name, array in arrays.items():
        note_changes(name, array, kinds[name], changes)
    if batch.num_columns and not any(has_null(array) for array in arrays.values()):
        columns = {name: column_of(array) for name, array in arrays.items()}
        with suppress(FeatureError):  # the error of `row_by_row` has the number of the row
            return encode_examples(columns, kinds=kinds, deterministic=True)
    return list(row_by_row(batch, kinds, changes))


def note_changes(name: str, array: Any, kind: str | None, changes: Changes) -> None:
    """Notes which values of a column an Example stores in another form."""
    values = array.storage if is_tensor(array.type) else array
    values = values.flatten() if is_list(values.type) else values
    values = decode_dictionary(values)
    if pa.types.is_boolean(values.type):
        changes.add(name, "bool -> int64")
    elif kind == FLOAT and values.type != pa.float32():
        changes.add_rounded(name, values.drop_null().to_numpy(zero_copy_only=False))


def kind_of(field: Any, wanted: Kinds) -> str | None:
    """The kind of a column's values; None if the type is null."""
    types = pa.types
    inner = field.type
    if is_tensor(inner):
        inner = inner.storage_type
    for nests in (types.is_dictionary, is_list, types.is_dictionary):
        inner = inner.value_type if nests(inner) else inner
    if types.is_floating(inner) or (types.is_integer(inner) and wanted.get(field.name) == FLOAT):
        return FLOAT
    if types.is_integer(inner) or types.is_boolean(inner):
        return INT64
    if str(inner) in (*TEXTS, *BINARIES):
        return BYTES
    if types.is_null(inner):
        return None
    reason = (
        f"a column of {field.type}, which an Example cannot store: cast it, or name the others in "
        "--features"
    )
    raise FeatureError(reason, field.name)


def is_tensor(kind: Any) -> bool:
    """Whether a type is Ray Data's for arrays of one shape."""
    return (
        isinstance(kind, pa.BaseExtensionType)
        and "tensor" in getattr(kind, "extension_name", "").lower()
    )


def decode_dictionary(array: Any) -> Any:
    """The values of a dictionary-encoded array; any other array as it is."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def is_list(kind: Any) -> bool:
    """Whether a type is one of Arrow's lists whose values are flattened alike."""
    return bool(
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def has_null(array: Any) -> bool:
    """Whether an array, or a list in it, has nulls or is a dictionary."""
    if array.null_count or pa.types.is_null(array.type) or pa.types.is_dictionary(array.type):
        return True
    return is_list(array.type) and has_null(array.flatten())


def column_of(array: Any) -> Any:
    """Converts an array without null to a column for `encode_examples`."""
    if is_tensor(array.type):
        return array.to_numpy(zero_copy_only=False)
    if not is_list(array.type):
        return flat(array)
    if pa.types.is_fixed_size_list(array.type):
        splits = np.arange(len(array) + 1, dtype=np.int64) * array.type.list_size
    else:
        offsets = array.offsets.to_numpy().astype(np.int64)
        splits = offsets - offsets[0]
    return RaggedTensor(flat(array.flatten()), (splits,))


def flat(array: Any) -> Any:
    """Converts numbers to an array, strings to spans over their buffer."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return array.cast(pa.int8()).to_numpy()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return array.to_numpy()
    array = array.cast(pa.large_string() if str(kind) in TEXTS else pa.large_binary())
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return BytesColumn(b"" if data is None else data, np.stack([bounds[:-1], bounds[1:]], axis=-1))


def row_by_row(batch: Any, kinds: Mapping[str, str | None], changes: Changes) -> Iterator[bytes]:
    """Converts a batch with nulls, or one that the conversion by columns refused.

    Raises:
        FeatureError: A row cannot be stored; `record` is its number.
    """
    for number, row in enumerate(batch.to_pylist()):
        try:
            features = {
                name: feature_of(name, kinds[name], each, changes)
                for name, each in row.items()
                if each is not None
            }
            yield example_of(features)
        except FeatureError as error:
            raise FeatureError(error.reason, error.feature, number) from error


def feature_of(name: str, kind: str | None, value: Any, changes: Changes) -> FeatureValues:
    """Converts a value that is not null to a feature."""
    values = value.ravel().tolist() if isinstance(value, np.ndarray) else value
    values = values if isinstance(values, list) else [values]
    if values == [None]:
        changes.add(name, "[null] -> no kind")
        return NO_KIND
    if None in values:
        raise FeatureError(
            "a null within a list, which an Example cannot store: fill it first", name
        )
    if kind == BYTES:
        values = [item.encode() if isinstance(item, str) else item for item in values]
    if kind == INT64:
        values = [int(item) for item in values]  # protobuf does not accept a bool
    return FeatureValues(kind, values)


@dataclass(frozen=True)
class NullableParser:
    """Parses serialized Examples into a `pyarrow.RecordBatch`.

    Its types are the same for all batches.

    A feature of which no record had more than one value is a scalar; one that always had k, a
    fixed-size list; any other a list. A missing feature is null. So is one without a kind and,
    among scalars and fixed-size lists, an empty list. A record with a feature that `summaries` lack
    is an error. `text` names those that are text.
    """

    summaries: tuple[FeatureSummary, ...]
    text: tuple[str, ...] = ()

    def __call__(self, records: Any) -> Any:
        if not self.summaries:
            raise FeatureError("no sampled record has a feature: pass features=")
        try:  # an array is parsed faster, where no record lacks the feature
            plan = make_plan("examples", {item.name: item.proposal for item in self.summaries})
            columns, others = parse_batch(plan, records, string_columns=True)
        except FeatureError:
            lists = {item.name: RaggedFeature(item.dtype or bytes) for item in self.summaries}
            plan = make_plan("examples", lists)
            columns, others = parse_batch(plan, records, string_columns=True)
        for number, record in enumerate(records if others else ()):
            # The column of another feature would begin too late.
            for name in features_of(record, number).keys() - plan.features.keys():
                raise FeatureError(
                    "no sampled record has this feature: pass features=", name, number
                )
        batch = pa.record_batch(ArrowBatch(columns, text=self.text))
        features_in = cache(lambda row: features_of(records[row], row))
        # A record of another message has no feature: it would become a row of nulls.
        lengths = [lengths_of(batch.column(item.name)) for item in self.summaries]
        ragged = [each for each in lengths if each is not None]
        if len(ragged) == len(lengths):
            for row in np.flatnonzero(sum(ragged) == 0).tolist():
                features_in(row)
        arrays = [nullable(batch.column(item.name), item, features_in) for item in self.summaries]
        return pa.record_batch(arrays, [item.name for item in self.summaries])


def lengths_of(array: Any) -> npt.NDArray[Any] | None:
    """How many values each row of a column has; None if all have the same number."""
    return np.diff(array.offsets.to_numpy()) if isinstance(array, pa.ListArray) else None


def nullable(
    array: Any, item: FeatureSummary, features_in: Callable[[int], Mapping[str, FeatureValues]]
) -> Any:
    """An array of lists, or of one value or k a record, as the type known of it.

    Null where the feature is missing.

    `features_in` tells of a record without values whether its list is empty.
    """
    width = item.longest
    if not isinstance(array, pa.ListArray):
        return array if width == 1 else pa.FixedSizeListArray.from_arrays(array.flatten(), width)
    splits = array.offsets.to_numpy()
    lengths = np.diff(splits)
    missing = lengths == 0
    if not item.has_fixed_length or not item.longest:
        # Arrow's columns do not tell a missing feature from an empty list: the record does.
        empty = [
            row
            for row in np.flatnonzero(missing).tolist()
            if features_in(row).get(item.name, NO_KIND).kind
        ]
        missing[empty] = False
        offsets = pa.array(splits, mask=np.append(missing, False))
        return type(array).from_arrays(offsets, array.flatten())
    if (others := np.flatnonzero(~missing & (lengths != width))).size:
        row = int(others[0])
        raise FeatureError(
            f"found {lengths[row]:,} values where {width:,} {'is' if width == 1 else 'are'} "
            "expected, as in all sampled records: give features, with a RaggedFeature for this one",
            item.name,
            row,
        )
    values = array.flatten()
    values = values if width == 1 else pa.FixedSizeListArray.from_arrays(values, width)
    return values.take(pa.array(np.cumsum(~missing) - 1, mask=missing)) if missing.any() else values
