"""From a walk's raw values to the arrays that TensorFlow returns: whole columns at a time, in NumPy.

Nothing here looks at a message. The functions serve Examples and SequenceExamples, batches and single ones,
and values of every kind; byte strings that were asked for as spans become BytesColumns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.errors import FeatureError
from streamrec.example.columns import BytesColumn, Column, SparseTensor, Values
from streamrec.example.features import (
    Dtype,
    Feature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
)
from streamrec.example.parsing.plan import Plan, padding_of
from streamrec.example.parsing.ragged import Rows, partition_batch, partition_one
from streamrec.example.parsing.walk import Array, Found, Offsets, Raw, Records, Slot

__all__ = ["Part", "batch_columns", "combine", "pad_rows_of", "positions", "single_columns", "sparse_tensor", "wrapper"]

WASTE = 2
"""Strings of records in many buffers stay there, unless the records are this many times as long."""

Part: TypeAlias = "Values | SparseTensor | Rows"
"""A column before features are combined: ragged ones are still Rows."""
Wrap: TypeAlias = Callable[[Array, Dtype, Array | None], Values]
"""Turns a walk's values into what the caller asked for; the default is for spans of -1."""


def wrapper(spanned: Records | None) -> Wrap:
    """How values are returned: unchanged, or byte strings as BytesColumns over the records of `spanned`."""
    if spanned is None:
        return lambda values, dtype, default: values
    return lambda values, dtype, default: _column(spanned, values, default) if dtype is bytes else values


def _column(records: Records, spans: Array, default: Array | None) -> BytesColumn:
    """A column over the records' buffers; over a copy where strings that are not in them must be filled in."""
    missing = None if default is None else spans[..., 0] < 0
    if missing is None or not missing.any():
        return _worth(records, BytesColumn.parsed(records.buffer, spans))
    fill = np.broadcast_to(default, missing.shape)  # type: ignore[arg-type]
    column = BytesColumn.parsed(records.buffer, np.where(missing[..., None], 0, spans))
    if not any(fill[missing].tolist()):
        return _worth(records, column)
    strings = column.to_numpy()
    strings[missing] = fill[missing]
    joined: list[bytes] = strings.reshape(-1).tolist()
    ends = np.cumsum([0, *map(len, joined)])
    return BytesColumn(b"".join(joined), np.stack([ends[:-1], ends[1:]], axis=-1).reshape(*column.shape, 2))


def _worth(records: Records, column: BytesColumn) -> BytesColumn:
    """A column over many buffers only if its strings are half of the records or more: else they are copied out."""
    return column.compact() if records.scattered and WASTE * column.nbytes < records.nbytes else column


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


def batch_sparse(values: Values, splits: Offsets) -> SparseTensor:
    """A VarLenFeature of a batch: indices (example, place)."""
    rows, places, longest = positions(splits)
    return sparse_tensor(values, (rows, places), (len(splits) - 1, longest))


def single_sparse(values: Values) -> SparseTensor:
    """A VarLenFeature of one example: indices (place)."""
    return sparse_tensor(values, (np.arange(len(values)),), (len(values),))


def pad_rows_of(values: Array, splits: Offsets, shape: tuple[int, ...], size: int, pad: Any) -> Array:
    """Rows of different lengths as one array.

    Args:
        values: All values; spans have one dimension more.
        splits: Where each row starts and ends, in values; multiples of `size`.
        shape: The shape of a step.
        size: The number of values of a step.
        pad: What fills up the shorter rows.

    Returns:
        An array of `[rows, longest, *shape]`.
    """
    lengths = np.diff(splits)
    longest = int(lengths.max(initial=0))
    if values.dtype == object:
        full = np.empty((len(lengths), longest), dtype=object)
        full.fill(pad)  # np.full would drop the trailing NULs of bytes
        full[np.arange(longest) < lengths[:, None]] = values
    else:
        fill = np.full(values.shape[1:], pad, values.dtype)
        full = np.frombuffer(memoryview(kernels.pad_rows(values, splits, longest, fill)), values.dtype)
    return full.reshape(len(lengths), longest // size, *shape, *values.shape[1:])


def _padded_strings(slot: Slot, form: FixedLenSequenceFeature, raw: Raw, wrap: Wrap) -> Part:
    pad, spans = padding_of(form), raw.values.ndim == 2
    full = pad_rows_of(raw.values, raw.splits, form.shape, slot.size, -1 if spans else pad)
    return wrap(full, slot.dtype, np.array(pad, dtype=object) if spans else None)


def _batch_part(slot: Slot, form: Feature, found: Found, count: int, wrap: Wrap) -> Part:
    if not isinstance(found, Raw):
        steps = () if slot.pad is None else (len(found) // (count * slot.size or 1),)
        shaped = found.reshape(count, *steps, *slot.shape, *found.shape[1:])
        return wrap(shaped, slot.dtype, slot.default)
    if isinstance(form, FixedLenSequenceFeature):
        return _padded_strings(slot, form, found, wrap)
    out = wrap(found.values, slot.dtype, None)
    if isinstance(form, RaggedFeature):
        return Rows(out, found.splits)
    return batch_sparse(out, found.splits)


def _single_part(slot: Slot, form: Feature, found: Found, wrap: Wrap) -> Part:
    if not isinstance(found, Raw):
        out = wrap(found.reshape((*slot.shape, *found.shape[1:])), slot.dtype, slot.default)
        return out if slot.shape else scalar(out)
    values = found.values
    if isinstance(form, FixedLenSequenceFeature):
        return wrap(values.reshape(-1, *form.shape, *values.shape[1:]), slot.dtype, None)
    out = wrap(values, slot.dtype, None)
    return out if isinstance(form, RaggedFeature) else single_sparse(out)


def scalar(value: Values) -> Any:
    """The one value of an array without dimensions: `bytes`, or a scalar of NumPy."""
    return (value.to_numpy() if isinstance(value, BytesColumn) else value)[()]


def batch_columns(plan: Plan, found: list[Found], count: int, spanned: Records | None) -> dict[str, Column]:
    """The columns of a batch of `count` examples, or of their contexts.

    Args:
        plan: What was looked for.
        found: What was found for each slot.
        count: The number of examples.
        spanned: The records that spans of byte strings refer to; None where strings are objects.

    Raises:
        FeatureError: Sparse positions or ragged partitions that don't fit their values.
    """
    wrap = wrapper(spanned)
    parts: dict[str, Part] = {
        slot.name: each if as_found and not isinstance(each, Raw) else _batch_part(slot, form, each, count, wrap)
        for slot, form, as_found, each in zip(plan.slots, plan.forms, plan.as_found, found, strict=True)
    }
    return combine(plan, parts)


def single_columns(plan: Plan, found: list[Found], spanned: Records | None) -> dict[str, Column]:
    """The columns of one example or context, without a batch dimension; see `batch_columns`."""
    wrap = wrapper(spanned)
    triples = zip(plan.slots, plan.forms, found, strict=True)
    return combine(plan, {slot.name: _single_part(slot, form, each, wrap) for slot, form, each in triples})


def combine(plan: Plan, parts: dict[str, Part]) -> dict[str, Column]:
    """The columns of the features: sparse and ragged ones put together, helper keys left out.

    The order is TensorFlow's: features with the name of a key take the place of the key, others follow.
    """
    if not plan.composite:
        return parts  # type: ignore[return-value]  # only RaggedFeatures give Rows
    updates: dict[str, Column] = {}
    for name, feature in plan.features.items():
        try:
            if isinstance(feature, SparseFeature):
                updates[name] = _merge_sparse(feature, parts)
            elif isinstance(feature, RaggedFeature):
                updates[name] = _partition(feature, parts[feature.value_key or name], parts)
        except FeatureError as error:
            raise FeatureError(error.reason, name, error.record) from None
    columns = {**parts, **updates}
    return {name: column for name, column in columns.items() if name in plan.features}  # type: ignore[misc]


def _partition(feature: RaggedFeature, part: Part, parts: dict[str, Part]) -> Column:
    if isinstance(part, Rows):
        rows = {name: other for name, other in parts.items() if isinstance(other, Rows)}
        return partition_batch(part, feature, rows).tensor(feature.row_splits_dtype)
    arrays = {name: other for name, other in parts.items() if isinstance(other, np.ndarray)}
    assert not isinstance(part, SparseTensor)
    column = partition_one(part, feature, arrays)
    return column.tensor(feature.row_splits_dtype) if isinstance(column, Rows) else column


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
                int(other[0]) if len(key.dense_shape) > 1 else None,
            )
        columns.append(key.values)
    shape = [*keys[0].dense_shape[:-1].tolist(), *feature.sizes]
    tensor = sparse_tensor(values.values, columns, shape)
    if feature.already_sorted:
        return tensor
    order = np.lexsort(tensor.indices.T[::-1])
    return SparseTensor(tensor.indices[order], tensor.values[order], tensor.dense_shape)


def counts(tensor: SparseTensor) -> Offsets:
    """How many values each example has; of a single one, in one number."""
    if len(tensor.dense_shape) == 1:
        return np.array([len(tensor.values)])
    return np.bincount(tensor.indices[:, 0], minlength=int(tensor.dense_shape[0]))
