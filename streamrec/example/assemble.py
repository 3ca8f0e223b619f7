"""Turns a walk's raw values into the columns that TensorFlow returns.

It works in NumPy, a whole column at a time.

The functions serve Examples and SequenceExamples, and values of every kind, and never read a
message. Byte strings that are requested as spans become BytesColumns. A single message is a batch
of one without its first dimension.

The partitions of a RaggedFeature are data of the records, so they cannot be trusted. They are
checked in int64, record by record, before they become row splits, whatever `validate` is. A
FeatureError names the record where TensorFlow 2.21 raises, and also where it returns row splits
outside the values, or assigns values of one record to another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec import kernels
from streamrec.errors import FeatureError
from streamrec.example.columns import (
    MAX_EMPTY_ROWS,
    BytesColumn,
    Column,
    RaggedTensor,
    SparseTensor,
    Values,
)
from streamrec.example.features import (
    Dtype,
    FixedLenSequenceFeature,
    KeyedPartition,
    RaggedFeature,
    SparseFeature,
)
from streamrec.example.walk import (
    Array,
    FeatureSlot,
    Found,
    Offsets,
    ParsePlan,
    Records,
    Rows,
    padding_of,
)

RULES: Final[Mapping[type[KeyedPartition], str]] = {
    RaggedFeature.RowSplits: "row splits must ascend from 0 to that number",
    RaggedFeature.RowLengths: "row lengths must not be negative, and add up to that number",
    RaggedFeature.RowStarts: "row starts must ascend from 0 to that number at most",
    RaggedFeature.RowLimits: "row limits must ascend, the last one to that number",
    RaggedFeature.ValueRowIds: "there must be that many row ids, ascending and not negative",
}


Part: TypeAlias = "Values | SparseTensor | Rows"
"""A column before features are combined: a ragged one is still Rows."""


def to_columns(
    plan: ParsePlan, found: Sequence[Found], count: int, spanned: Records | None, single: bool
) -> dict[str, Column]:
    """Makes the columns of a batch of `count` examples, or of their contexts or feature lists.

    Spans of byte strings refer to the `spanned` records; None if strings are objects. A `single`
    message is a batch of one, whose first dimension is removed.
    """
    parts: dict[str, Any] = {
        slot.name: each if slot.as_found else _part(slot, each, count, spanned)
        for slot, each in zip(plan.slots, found, strict=True)
    }
    columns = combine(plan, parts, single) if plan.composite else parts
    return {name: _only(column) for name, column in columns.items()} if single else columns


def _only(column: Any) -> Any:
    """A column of one row without its first dimension; a scalar is `bytes` or a NumPy scalar."""
    if isinstance(column, SparseTensor):
        indices = np.ascontiguousarray(column.indices[:, 1:])
        return SparseTensor(indices, column.values, column.dense_shape[1:])
    return column[0]


def _part(slot: FeatureSlot, found: Found, count: int, spanned: Records | None) -> Part:
    if not isinstance(found, Rows):
        longest = [] if slot.pad is None else [len(found) // (count * slot.size or 1)]
        shaped = found.reshape(count, *longest, *slot.shape, *found.shape[1:])
        return _values(shaped, slot.dtype, spanned, slot.default)
    if isinstance(slot.form, FixedLenSequenceFeature):
        return _pad_rows(slot, slot.form, found, spanned)
    found = found.with_values(_values(found.flat_values, slot.dtype, spanned))
    if isinstance(slot.form, RaggedFeature):
        return found
    rows, places, most = positions(found.splits)
    if not isinstance(found.values, Rows):
        return sparse_tensor(found.values, (rows, places), (count, most))
    steps, items, most_items = positions(found.values.splits)
    return sparse_tensor(
        found.flat_values, (rows[steps], places[steps], items), (count, most, most_items)
    )


def _values(
    values: Array, dtype: Dtype, spanned: Records | None, default: Array | None = None
) -> Values:
    """Values as they are returned: spans of byte strings become a BytesColumn.

    The column has the default for spans of -1.
    """
    return values if spanned is None or dtype is not bytes else _column(spanned, values, default)


def _column(records: Records, spans: Array, default: Array | None) -> BytesColumn:
    """A column over the records' buffers.

    A copy if it has defaults, or is less than half of scattered records.
    """
    missing = None if default is None else spans[..., 0] < 0
    if missing is not None and missing.any():
        fill = np.broadcast_to(default, missing.shape)  # type: ignore[arg-type]
        spans = np.where(missing[..., None], 0, spans)
        if any(fill[missing].tolist()):
            strings = BytesColumn.over(records.buffer, spans).to_numpy()
            strings[missing] = fill[missing]
            return BytesColumn.of(strings.reshape(-1).tolist(), strings.shape)
    column = BytesColumn.over(records.buffer, spans)
    # Little data must not keep much memory alive.
    if records.is_scattered and 2 * column.nbytes < records.nbytes:
        return column.compact()
    return column


def positions(splits: Offsets) -> tuple[Offsets, Offsets, int]:
    """The row of each value, its index in the row, and the length of the longest row."""
    lengths = np.diff(splits)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    indices = np.arange(splits[-1]) - np.repeat(splits[:-1], lengths)
    return rows, indices, int(lengths.max(initial=0))


def sparse_tensor(values: Values, columns: Iterable[Array], shape: Iterable[int]) -> SparseTensor:
    """Makes a SparseTensor from an array of positions for each dimension."""
    indices = np.stack([np.asarray(column, dtype=np.int64) for column in columns], axis=1)
    return SparseTensor(indices, values, np.array(list(shape), dtype=np.int64))


def _pad_rows(
    slot: FeatureSlot, form: FixedLenSequenceFeature, found: Rows, spanned: Records | None
) -> Values:
    """Pads rows of byte strings, or of feature lists, to one array of `[rows, longest, *shape]`."""
    values = found.flat_values
    pad = padding_of(form)
    splits = found.splits * slot.size if isinstance(found.values, Rows) else found.splits
    lengths = np.diff(splits)
    longest = int(lengths.max(initial=0))
    if values.dtype == object:
        full = np.empty((len(lengths), longest), dtype=object)
        full.fill(pad)  # np.full would drop the trailing NULs of bytes
        full[np.arange(longest) < lengths[:, None]] = values
    else:
        fill = np.full(values.shape[1:], pad if values.ndim == 1 else -1, values.dtype)
        padded = kernels.pad_rows(values, splits, longest, fill)
        full = np.frombuffer(memoryview(padded), values.dtype)
    shaped = full.reshape(len(lengths), longest // slot.size, *form.shape, *values.shape[1:])
    return _values(shaped, slot.dtype, spanned, np.array(pad, dtype=object))


def combine(plan: ParsePlan, parts: dict[str, Part], single: bool) -> dict[str, Any]:
    """Combines sparse and ragged features from their keys, and leaves helper keys out.

    The order is TensorFlow's: a feature with the name of a key replaces the key; other features
    follow.
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


def _partition(
    feature: RaggedFeature, part: Part, parts: dict[str, Part], single: bool
) -> RaggedTensor:
    assert isinstance(part, Rows)
    if feature.partitions:
        rows = {name: other for name, other in parts.items() if isinstance(other, Rows)}
        if single and not isinstance(part.values, Rows):
            for partition in feature.keyed_partitions:  # in a batch these are not rows
                if isinstance(partition, RaggedFeature.RowSplits) and not len(
                    rows[partition.key].values
                ):
                    raise FeatureError(
                        f"{partition.key!r} holds nothing, and row splits start with 0"
                    )
        part = partition_batch(part, feature, rows)
    splits = [part.splits]
    values = part.values
    while isinstance(values, Rows):
        splits.append(values.splits)
        values = values.values
    most = max(int(each[-1]) for each in splits)
    if feature.row_splits_dtype is np.int32 and most >= 2**31:
        raise FeatureError(f"{most:,} values exceed int32: give row_splits_dtype=np.int64")
    kind = feature.row_splits_dtype
    return RaggedTensor(values, tuple(each.astype(kind, copy=False) for each in splits))


def _merge_sparse(feature: SparseFeature, parts: dict[str, Part]) -> SparseTensor:
    """Combines the features of positions and of values in one SparseTensor.

    As in TensorFlow, positions outside `size` are kept. Each example needs as many positions as
    values; TensorFlow only compares the totals of the batch, and so may use positions of one
    example for values of another. Values at equal positions keep their order (TensorFlow's order is
    unspecified).
    """
    keys = [parts[key] for key in feature.index_keys]
    values = parts[feature.value_key]
    assert isinstance(values, SparseTensor)
    assert isinstance(keys[0], SparseTensor)
    columns: list[npt.NDArray[Any]] = list(keys[0].indices[:, :-1].T)
    for name, key in zip(feature.index_keys, keys, strict=True):
        assert isinstance(key, SparseTensor)
        assert isinstance(key.values, np.ndarray)
        found = counts(key)
        wanted = counts(values)
        other = np.flatnonzero(found != wanted)
        if len(other):
            raise FeatureError(
                f"{name!r} has {found[other[0]]:,} positions, but {feature.value_key!r} has "
                f"{wanted[other[0]]:,} values: each value needs one position",
                None,
                int(other[0]),
            )
        columns.append(key.values)
    shape = [*keys[0].dense_shape[:-1].tolist(), *feature.sizes]
    tensor = sparse_tensor(values.values, columns, shape)
    if feature.already_sorted:
        return tensor
    # `lexsort` takes the most significant key last; it is stable.
    order = np.lexsort(tensor.indices.T[::-1])
    return SparseTensor(tensor.indices[order], tensor.values[order], tensor.dense_shape)


def counts(tensor: SparseTensor) -> Offsets:
    """The number of values in each row, int64 [rows]."""
    return np.bincount(tensor.indices[:, 0], minlength=int(tensor.dense_shape[0]))


def partition_batch(rows: Rows, feature: RaggedFeature, partitions: dict[str, Rows]) -> Rows:
    """Splits each row's values by the same row of the partitions.

    It begins with the innermost partition.

    A batch has one row of values for each example; for feature lists, a row of steps. The
    partitions' int64 rows are as deep.
    """
    if not isinstance(rows.values, Rows):
        return split_rows(rows, feature, partitions)
    steps: dict[str, Rows] = {}
    for key in [partition.key for partition in feature.keyed_partitions]:
        split = partitions[key]
        other = np.flatnonzero(rows.lengths != split.lengths)
        if len(other):
            found = split.lengths[other[0]]
            wanted = rows.lengths[other[0]]
            reason = f"{key!r} has another number of steps, {found:,}, than the values, {wanted:,}"
            raise FeatureError(reason, None, int(other[0]))
        assert isinstance(split.values, Rows)
        steps[key] = split.values
    try:
        return Rows(split_rows(rows.values, feature, steps), rows.splits)
    except FeatureError as error:
        record = int(np.searchsorted(rows.splits, error.record or 0, "right")) - 1
        raise FeatureError(error.reason, None, record) from None


def split_rows(rows: Rows, feature: RaggedFeature, partitions: dict[str, Rows]) -> Rows:
    """Applies all partitions of a feature to each row, the innermost first."""
    for partition in reversed(feature.partitions):
        if isinstance(partition, RaggedFeature.UniformRowLength):
            rows = split_evenly(rows, partition.length)
            continue
        found = len(partitions[partition.key].lengths)
        wanted = len(rows.lengths)
        if found != wanted:  # steps of one example
            raise FeatureError(
                f"{partition.key!r} has another number of steps, {found:,}, than the values, "
                f"{wanted:,}"
            )
        rows = split_by(rows, partition, partitions[partition.key])
    return rows


def split_evenly(rows: Rows, length: int) -> Rows:
    """Splits each row into rows of `length` values; a FeatureError for a row with a rest.

    Uniform rows of plain values are a dimension of the array.
    """
    odd = np.flatnonzero(rows.lengths % length)
    if len(odd):
        raise FeatureError(
            f"{rows.lengths[odd[0]]:,} values make no rows of {length:,}", None, int(odd[0])
        )
    splits = rows.splits // length
    if isinstance(rows.values, Rows):
        return Rows(Rows(rows.values, np.arange(int(splits[-1]) + 1) * length), splits)
    return Rows(rows.values.reshape(-1, length, *rows.values.shape[1:]), splits)


def split_by(rows: Rows, partition: KeyedPartition, split: Rows) -> Rows:
    """Applies one partition to each row of a batch.

    `split` has a row of numbers for each of them.
    """
    if isinstance(partition, RaggedFeature.ValueRowIds):
        ends, counts = ends_by_row_ids(rows, partition, split)
    else:
        ends, counts = ends_by_bounds(rows, partition, split)
    splits = np.append(0, ends)
    outer = np.append(0, np.cumsum(counts))
    descents = np.repeat(np.arange(len(counts)), counts)[splits[1:] < splits[:-1]]
    # Sums of forged numbers may wrap around: splits that ascend from 0 to the number of values
    # prove that none did.
    elsewhere = np.flatnonzero(splits[outer[1:]] != rows.splits[1:])
    refuse(np.append(descents, elsewhere), rows, partition, split)
    return Rows(Rows(rows.values, splits), outer)


def ends_by_bounds(rows: Rows, partition: KeyedPartition, split: Rows) -> tuple[Offsets, Offsets]:
    """The ends of the new rows, and how many of them each row of the batch has.

    Ends are offsets among all values.
    """
    numbers = np.asarray(split.values)
    counts = split.lengths
    if isinstance(partition, RaggedFeature.RowLengths):
        return np.cumsum(numbers), counts
    full = counts > 0
    firsts = split.splits[:-1][full]
    owners = np.repeat(np.arange(len(counts)), counts)
    ends = numbers + rows.splits[owners]
    if isinstance(partition, RaggedFeature.RowLimits):
        return ends, counts
    refuse(np.flatnonzero(full)[numbers[firsts] != 0], rows, partition, split)
    if isinstance(partition, RaggedFeature.RowSplits):
        return np.delete(ends, firsts), counts - full
    ends = np.roll(ends, -1)
    ends[split.splits[1:][full] - 1] = rows.splits[1:][full]
    return ends, counts


def ends_by_row_ids(rows: Rows, partition: KeyedPartition, split: Rows) -> tuple[Offsets, Offsets]:
    """The same as `ends_by_bounds`, from the row of each value."""
    numbers = np.asarray(split.values)
    counts = split.lengths
    owners = np.repeat(np.arange(len(counts)), counts)
    descend = (numbers[1:] < numbers[:-1]) & (owners[1:] == owners[:-1])
    wrong = [owners[numbers < 0], owners[1:][descend], np.flatnonzero(counts != rows.lengths)]
    refuse(np.concatenate(wrong), rows, partition, split)
    full = counts > 0
    new_counts = np.zeros_like(counts)
    new_counts[full] = numbers[split.splits[1:][full] - 1]
    # The last row id of a record is its number of rows: a forged one of a few bytes must not fill
    # the memory. Each is looked at first, since the sum of forged ones may wrap around.
    most = int(new_counts.max(initial=0))
    if most > MAX_EMPTY_ROWS or int(new_counts.sum()) > MAX_EMPTY_ROWS + len(numbers):
        record = int(new_counts.argmax())
        reason = (
            f"{new_counts[record]:,} rows, of which most are empty: a batch may have "
            f"{MAX_EMPTY_ROWS:,} of them"
        )
        raise FeatureError(reason, None, record)
    new_counts[full] += 1
    before = np.cumsum(new_counts) - new_counts
    lengths = np.bincount(numbers + before[owners], minlength=int(new_counts.sum()))
    return np.cumsum(lengths), new_counts


def refuse(wrong: Offsets, rows: Rows, partition: KeyedPartition, split: Rows) -> None:
    """Raises a FeatureError for the first of the `wrong` rows of the batch, if there are any."""
    if len(wrong):
        record = int(wrong.min())
        found = np.asarray(split.values)[split.splits[record] : split.splits[record + 1]]
        shown = ", ".join(map(str, found[:8].tolist())) + (", ..." if len(found) > 8 else "")
        count = rows.lengths[record]
        rule = RULES[type(partition)]
        raise FeatureError(
            f"{partition.key!r} is [{shown}], which does not split {count:,} values: {rule}",
            None,
            record,
        )
