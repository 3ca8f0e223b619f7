"""Ragged partitions: how TensorFlow splits an example's values by further features.

The functions follow tf.io.RaggedFeature of TensorFlow 2.21 step by step. Where `validate` is false a
partition that does not fit gives splits that do not fit, as in TensorFlow; nothing is read outside the
values for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.columns import RaggedTensor, Values
from streamrec.example.features import Partition, RaggedFeature

Splits: TypeAlias = npt.NDArray[Any]


class Rows(NamedTuple):
    """Values split into rows; the values may be rows themselves.

    Args:
        values: An array, a BytesColumn, or Rows.
        splits: Row i goes from split i to split i + 1 of the values.
    """

    values: Values | Rows
    splits: Splits

    @property
    def starts(self) -> Splits:
        """Where each row starts."""
        return self.splits[:-1]

    @property
    def lengths(self) -> Splits:
        """The length of each row."""
        return self.splits[1:] - self.splits[:-1]

    def tensor(self) -> RaggedTensor:
        """The rows as a RaggedTensor."""
        splits, values = [self.splits], self.values
        while isinstance(values, Rows):
            splits.append(values.splits)
            values = values.values
        return RaggedTensor(values, tuple(splits))


def _count(values: Values | Rows) -> int:
    return len(values.splits) - 1 if isinstance(values, Rows) else len(values)


def _refuse(condition: object, why: str) -> None:
    if condition:
        raise FeatureError(f"{why}; the partition does not fit the values")


def _rows(values: Values | Rows, splits: Splits) -> Rows:
    """Rows of values; rows of rows that have not even a first split are refused, as in TensorFlow."""
    _refuse(_count(values) < 0, "there are no row splits")
    return Rows(values, splits)


def _from_splits(values: Values | Rows, splits: Splits, validate: bool) -> Rows:
    if validate:
        _refuse(len(splits) == 0 or splits[0] != 0, "row splits must start with 0")
        _refuse(np.any(splits[1:] < splits[:-1]), "row splits must not descend")
        count = _count(values)
        _refuse(splits[-1] != count, f"the last split is not the number of values, {count:,}")
    return _rows(values, splits)


def _from_lengths(values: Values | Rows, lengths: Splits, validate: bool) -> Rows:
    _refuse(validate and np.any(lengths < 0), "row lengths must not be negative")
    return _from_splits(values, _cumulated(lengths), validate)


def _cumulated(lengths: Splits) -> Splits:
    return np.concatenate([np.zeros(1, lengths.dtype), np.cumsum(lengths, dtype=lengths.dtype)])


def _from_limits(values: Values | Rows, limits: Splits, validate: bool) -> Rows:
    return _from_splits(values, np.concatenate([np.zeros(1, limits.dtype), limits]), validate)


def _from_starts(values: Values | Rows, starts: Splits, validate: bool) -> Rows:
    end = np.array([_count(values)]).astype(starts.dtype)
    splits = np.concatenate([starts, end])  # no starts make no rows, whatever the values
    return _from_splits(values, splits, validate and len(starts) > 0)


def _from_rowids(values: Values | Rows, rowids: Splits, validate: bool) -> Rows:
    _refuse(np.any(rowids < 0), "row ids must not be negative")
    _refuse(len(rowids) != _count(values), f"{len(rowids):,} row ids for {_count(values):,} values")
    _refuse(validate and np.any(rowids[1:] < rowids[:-1]), "row ids must not descend")
    count = int(rowids[-1]) + 1 if len(rowids) else 0
    kept = rowids[rowids < count]  # what lies beyond the last row is in none, as in TensorFlow
    return _rows(values, _cumulated(np.bincount(kept, minlength=count).astype(rowids.dtype)))


def _from_uniform(values: Values | Rows, length: int, dtype: np.dtype[Any], validate: bool) -> Rows:
    count, rest = divmod(_count(values), length)
    _refuse(validate and rest, f"{_count(values):,} values make no rows of {length:,}")
    return _rows(values, (np.arange(count + 1) * length).astype(dtype))


def _reshaped(values: Values, length: int) -> Values:
    _refuse(len(values) % length, f"{len(values):,} values make no rows of {length:,}")
    return values.reshape(-1, length, *values.shape[1:])


_BY_KIND = {
    RaggedFeature.RowSplits: _from_splits,
    RaggedFeature.RowLengths: _from_lengths,
    RaggedFeature.RowStarts: _from_starts,
    RaggedFeature.RowLimits: _from_limits,
    RaggedFeature.ValueRowIds: _from_rowids,
}


def partition_one(values: Values | Rows, feature: RaggedFeature, partitions: dict[str, Splits]) -> Values | Rows:
    """Splits one example's values.

    Args:
        values: The example's values.
        feature: Its `partitions` are applied from the innermost to the outermost.
        partitions: The int64 values of each partition's feature, by key.

    Raises:
        FeatureError: A partition that does not fit the values.
    """
    dtype = np.dtype(feature.row_splits_dtype)
    for partition in reversed(feature.partitions):
        if not isinstance(partition, RaggedFeature.UniformRowLength):
            split = partitions[partition.key].astype(dtype)
            values = _BY_KIND[type(partition)](values, split, feature.validate)
        elif isinstance(values, Rows):
            values = _from_uniform(values, partition.length, dtype, feature.validate)
        else:
            values = _reshaped(values, partition.length)
    return values


def partition_batch(rows: Rows, feature: RaggedFeature, partitions: dict[str, Rows]) -> Rows:
    """Splits each row's values by the same row of the partitions.

    Args:
        rows: One row of values for each example of a batch; for feature lists, a row of steps for each
            example.
        feature: Its `partitions` are applied from the innermost to the outermost.
        partitions: The int64 rows of each partition's feature, by key, as deep as `rows`.

    Raises:
        FeatureError: A partition that does not fit the values.
    """
    outer = rows.splits if isinstance(rows.values, Rows) else None
    rows = rows.values if isinstance(rows.values, Rows) else rows
    for partition in reversed(feature.partitions):
        if isinstance(partition, RaggedFeature.UniformRowLength):
            rows = _uniform_batch(rows, partition.length, feature.validate)
            continue
        split = partitions[partition.key]
        if outer is not None:
            aligned = np.array_equal(outer, split.splits)
            _refuse(feature.validate and not aligned, f"{partition.key!r} has another number of steps")
            assert isinstance(split.values, Rows)
            split = split.values
        rows = _partition(rows, partition, split, feature.validate)
    return rows if outer is None else _from_splits(rows, outer, feature.validate)


def _uniform_batch(rows: Rows, length: int, validate: bool) -> Rows:
    inner: Values | Rows
    if isinstance(rows.values, Rows):
        inner = _from_uniform(rows.values, length, rows.splits.dtype, validate)
    else:
        inner = _reshaped(rows.values, length)
    return _from_splits(inner, rows.splits // np.array(length, rows.splits.dtype), validate)


def _partition(rows: Rows, partition: Partition, split: Rows, validate: bool) -> Rows:
    """One partition for each row of a batch; `split` holds one row of splits for each row."""
    if isinstance(partition, RaggedFeature.ValueRowIds):
        return _rowids_batch(rows, split, validate)
    if isinstance(partition, RaggedFeature.RowSplits):
        split = _without_first(split)
    numbers = np.asarray(split.values).astype(rows.splits.dtype)
    if isinstance(partition, RaggedFeature.RowLengths):
        return _rows(_from_lengths(rows.values, numbers, validate), split.splits)
    numbers = numbers + _offsets(rows, split, len(numbers))
    join = _from_starts if isinstance(partition, RaggedFeature.RowStarts) else _from_limits
    return _rows(join(rows.values, numbers, validate), split.splits)


def _offsets(rows: Rows, split: Rows, count: int) -> Splits:
    """Where the values start that each of `count` numbers of `split` counts from.

    Feature lists of different numbers of steps don't fit, but where `validate` is false TensorFlow takes
    them if there is a single row of numbers (tf.repeat) or a single value (broadcasting).
    """
    starts, lengths = rows.starts, split.lengths
    _refuse(len(lengths) not in (1, len(starts)), "values and partition have different numbers of rows")
    repeated = np.repeat(starts, lengths[0] if len(lengths) == 1 else lengths)
    _refuse(len(repeated) not in (1, count), "values and partition have different numbers of rows")
    return repeated


def _without_first(split: Rows) -> Rows:
    """The rows without their first numbers; empty rows stay."""
    assert isinstance(split.values, np.ndarray)
    full = split.lengths > 0
    keep = np.ones(len(split.values), dtype=bool)
    keep[split.starts[full]] = False
    return Rows(split.values[keep], _cumulated(split.lengths - full.astype(split.splits.dtype)))


def _rowids_batch(rows: Rows, split: Rows, validate: bool) -> Rows:
    numbers = np.asarray(split.values).astype(rows.splits.dtype)
    counts = np.zeros(len(split.lengths), dtype=rows.splits.dtype)
    full = split.lengths > 0
    if len(numbers):
        counts[full] = np.maximum(np.maximum.reduceat(numbers, split.starts[full]) + 1, 0)
    first = np.cumsum(counts, dtype=counts.dtype) - counts
    inner = _from_rowids(rows.values, numbers + np.repeat(first, split.lengths), validate)
    return _from_lengths(inner, counts, validate)
