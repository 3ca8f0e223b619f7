"""From a walk's raw values to the arrays that TensorFlow returns: whole columns at a time, in NumPy.

Nothing here looks at a message. The functions serve Examples and SequenceExamples, and values of every kind; byte
strings that were asked for as spans become BytesColumns. One message is a batch of one, without its first dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.errors import FeatureError
from streamrec.example.columns import BytesColumn, Column, RaggedTensor, SparseTensor, Values
from streamrec.example.features import Dtype, Feature, FixedLenSequenceFeature, RaggedFeature, SparseFeature
from streamrec.example.plan import ParsePlan, padding_of
from streamrec.example.ragged import Rows, partition_batch
from streamrec.example.walk import Array, FeatureSlot, Found, Offsets, Raw, Records

__all__ = ["to_columns"]

Part: TypeAlias = "Values | SparseTensor | Rows"
"""A column before features are combined: ragged ones are still Rows."""


def to_columns(
    plan: ParsePlan, found: Sequence[Found], count: int, spanned: Records | None, single: bool
) -> dict[str, Column]:
    """The columns of a batch of examples, or of their contexts or feature lists.

    Args:
        plan: What was looked for.
        found: What was found for each slot.
        count: The number of examples.
        spanned: The records that spans of byte strings refer to; None where strings are objects.
        single: Whether columns have no batch dimension; there is one example.

    Raises:
        FeatureError: Sparse positions or ragged partitions that don't fit their values.
    """
    parts: dict[str, Any] = {
        slot.name: each if as_found else _part(slot, form, each, count, spanned)
        for slot, form, as_found, each in zip(plan.slots, plan.forms, plan.as_found, found, strict=True)
    }
    columns = combine(plan, parts, single) if plan.composite else parts
    return {name: _only(column) for name, column in columns.items()} if single else columns


def _only(column: Any) -> Any:
    """The column of a batch of one without its first dimension; a scalar is `bytes`, or one of NumPy."""
    if isinstance(column, SparseTensor):
        indices = np.ascontiguousarray(column.indices[:, 1:])
        return SparseTensor(indices, column.values, column.dense_shape[1:])
    if isinstance(column, RaggedTensor):
        splits = column.nested_row_splits[1:]
        return RaggedTensor(column.flat_values, splits) if splits else column.flat_values
    return column[0]


def _part(slot: FeatureSlot, form: Feature, found: Found, count: int, spanned: Records | None) -> Part:
    if not isinstance(found, Raw):
        longest = [] if slot.pad is None else [len(found) // (count * slot.size or 1)]
        shaped = found.reshape(count, *longest, *slot.shape, *found.shape[1:])
        return _values(shaped, slot.dtype, spanned, slot.default)
    if isinstance(form, FixedLenSequenceFeature):
        return _padded(slot, form, found, spanned)
    values, splits, inner = _values(found.values, slot.dtype, spanned), found.splits, found.inner
    if isinstance(form, RaggedFeature):
        return Rows(values, splits) if inner is None else Rows(Rows(values, inner), splits)
    rows, places, most = positions(splits)
    if inner is None:
        return sparse_tensor(values, (rows, places), (count, most))
    steps, items, most_items = positions(inner)
    return sparse_tensor(values, (rows[steps], places[steps], items), (count, most, most_items))


def _values(values: Array, dtype: Dtype, spanned: Records | None, default: Array | None = None) -> Values:
    """Values as they are returned: unchanged, or byte strings as a column; the default is for spans of -1."""
    return values if spanned is None or dtype is not bytes else _column(spanned, values, default)


def _column(records: Records, spans: Array, default: Array | None) -> BytesColumn:
    """A column over the records' buffers; over a copy where strings that are not in them must be filled in."""
    missing = None if default is None else spans[..., 0] < 0
    if missing is None or not missing.any():
        return _worth(records, BytesColumn.over(records.buffer, spans))
    fill = np.broadcast_to(default, missing.shape)  # type: ignore[arg-type]
    column = BytesColumn.over(records.buffer, np.where(missing[..., None], 0, spans))
    if not any(fill[missing].tolist()):
        return _worth(records, column)
    strings = column.to_numpy()
    strings[missing] = fill[missing]
    return BytesColumn.of(strings.reshape(-1).tolist(), column.shape)


def _worth(records: Records, column: BytesColumn) -> BytesColumn:
    """A column over many buffers only if its strings are half of the records or more: else they are copied out."""
    return column.compact() if records.scattered and 2 * column.nbytes < records.nbytes else column


def positions(splits: Offsets) -> tuple[Offsets, Offsets, int]:
    """Row and place in the row of each value, and the longest row."""
    lengths = np.diff(splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
    return rows, places, int(lengths.max(initial=0))


def sparse_tensor(values: Values, columns: Iterable[Array], shape: Iterable[int]) -> SparseTensor:
    """A SparseTensor from one array of positions for each dimension."""
    indices = np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    return SparseTensor(indices, values, np.array(list(shape), dtype=np.int64))


def _padded(slot: FeatureSlot, form: FixedLenSequenceFeature, found: Raw, spanned: Records | None) -> Values:
    """Rows of different lengths as one array of `[rows, longest, *shape]`: of byte strings, or of feature lists."""
    values, pad = found.values, padding_of(form)
    splits = found.splits if found.inner is None else found.splits * slot.size
    lengths = np.diff(splits)
    longest = int(lengths.max(initial=0))
    if values.dtype == object:
        full = np.empty((len(lengths), longest), dtype=object)
        full.fill(pad)  # np.full would drop the trailing NULs of bytes
        full[np.arange(longest) < lengths[:, None]] = values
    else:
        fill = np.full(values.shape[1:], pad if values.ndim == 1 else -1, values.dtype)
        full = np.frombuffer(memoryview(kernels.pad_rows(values, splits, longest, fill)), values.dtype)
    shaped = full.reshape(len(lengths), longest // slot.size, *form.shape, *values.shape[1:])
    return _values(shaped, slot.dtype, spanned, np.array(pad, dtype=object))


def combine(plan: ParsePlan, parts: dict[str, Part], single: bool) -> dict[str, Any]:
    """The columns of the features: sparse and ragged ones put together, helper keys left out.

    The order is TensorFlow's: features with the name of a key take the place of the key, others follow.
    """
    updates: dict[str, Any] = {}
    for name, feature in plan.features.items():
        try:
            if isinstance(feature, SparseFeature):
                updates[name] = _merge_sparse(feature, parts)
            elif isinstance(feature, RaggedFeature):
                updates[name] = _partition(feature, parts[feature.value_key or name], parts, single)
        except FeatureError as error:
            raise FeatureError(error.reason, name, error.record) from None
    return {name: column for name, column in {**parts, **updates}.items() if name in plan.features}


def _partition(feature: RaggedFeature, part: Part, parts: dict[str, Part], single: bool) -> RaggedTensor:
    assert isinstance(part, Rows)
    if not feature.partitions:
        return part.tensor(feature.row_splits_dtype)
    rows = {name: other for name, other in parts.items() if isinstance(other, Rows)}
    if single and not isinstance(part.values, Rows):
        for partition in feature.keyed_partitions:  # in a batch these are not rows
            if isinstance(partition, RaggedFeature.RowSplits) and not len(rows[partition.key].values):
                raise FeatureError(f"{partition.key!r} holds nothing, and row splits start with 0")
    return partition_batch(part, feature, rows).tensor(feature.row_splits_dtype)


def _merge_sparse(feature: SparseFeature, parts: dict[str, Part]) -> SparseTensor:
    """One SparseTensor of positions and values.

    As in TensorFlow, positions outside `size` stay as they are. Each example needs as many positions as values;
    TensorFlow compares the totals of the batch, and takes positions of one example for values of another. Values at
    equal positions keep their order (TensorFlow's order is unspecified).
    """
    keys = [parts[key] for key in feature.index_keys]
    values = parts[feature.value_key]
    assert isinstance(values, SparseTensor)
    assert isinstance(keys[0], SparseTensor)
    columns: list[npt.NDArray[Any]] = list(keys[0].indices[:, :-1].T)
    for name, key in zip(feature.index_keys, keys, strict=True):
        assert isinstance(key, SparseTensor)
        assert isinstance(key.values, np.ndarray)
        found, wanted = counts(key), counts(values)
        other = np.flatnonzero(found != wanted)
        if len(other):
            raise FeatureError(
                f"found {found[other[0]]:,} positions in {name!r} where {wanted[other[0]]:,} values "
                f"in {feature.value_key!r} want one each",
                None,
                int(other[0]),
            )
        columns.append(key.values)
    shape = [*keys[0].dense_shape[:-1].tolist(), *feature.sizes]
    tensor = sparse_tensor(values.values, columns, shape)
    if feature.already_sorted:
        return tensor
    order = np.lexsort(tensor.indices.T[::-1])
    return SparseTensor(tensor.indices[order], tensor.values[order], tensor.dense_shape)


def counts(tensor: SparseTensor) -> Offsets:
    """How many values each example has."""
    return np.bincount(tensor.indices[:, 0], minlength=int(tensor.dense_shape[0]))
