"""Ragged partitions: how an example's values are split by further features, with the meaning of tf.io.RaggedFeature.

The numbers come from a record, so anyone may have written them. They are checked in int64, record by record, before
they become row splits, whatever `validate` says: where TensorFlow 2.21 raises, and where it returns row splits that
lead outside of the values, or gives values of one record to another, a FeatureError names the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from streamrec.errors import FeatureError
from streamrec.example.columns import MAX_EMPTY_ROWS, RaggedTensor, Values
from streamrec.example.features import KeyedPartition, RaggedFeature

__all__ = ["Rows", "partition_batch"]

Numbers = npt.NDArray[np.int64]

RULES: Final[Mapping[type[KeyedPartition], str]] = {
    RaggedFeature.RowSplits: "row splits must ascend from 0 to that number",
    RaggedFeature.RowLengths: "row lengths must not be negative, and add up to that number",
    RaggedFeature.RowStarts: "row starts must ascend from 0 to that number at most",
    RaggedFeature.RowLimits: "row limits must ascend, the last one to that number",
    RaggedFeature.ValueRowIds: "there must be that many row ids, ascending and not negative",
}


class Rows(NamedTuple):
    """Values split into rows; the values may be rows themselves.

    Args:
        values: An array, a BytesColumn, or Rows.
        splits: Row i goes from split i to split i + 1 of the values.
    """

    values: Values | Rows
    splits: Numbers

    @property
    def lengths(self) -> Numbers:
        """The length of each row."""
        return np.diff(self.splits)

    def tensor(self, dtype: type[np.int32] | type[np.int64]) -> RaggedTensor:
        """The rows as a RaggedTensor."""
        splits, values = [self.splits], self.values
        while isinstance(values, Rows):
            splits.append(values.splits)
            values = values.values
        most = max(int(each[-1]) for each in splits)
        if dtype is np.int32 and most >= 2**31:
            raise FeatureError(f"{most:,} values, which int32 does not count: give row_splits_dtype=np.int64")
        return RaggedTensor(values, tuple(each.astype(dtype, copy=False) for each in splits))


def partition_batch(rows: Rows, feature: RaggedFeature, partitions: dict[str, Rows]) -> Rows:
    """Splits each row's values by the same row of the partitions.

    Args:
        rows: One row of values for each example of a batch; for feature lists, a row of steps for each
            example.
        feature: Its `partitions` are applied from the innermost to the outermost.
        partitions: The int64 rows of each partition's feature, by key, as deep as `rows`.

    Raises:
        FeatureError: A partition does not fit the values. It names the example.
    """
    if not isinstance(rows.values, Rows):
        return split_rows(rows, feature, partitions)
    steps: dict[str, Rows] = {}
    for key in [partition.key for partition in feature.keyed_partitions]:
        split = partitions[key]
        other = np.flatnonzero(rows.lengths != split.lengths)
        if len(other):
            found, wanted = split.lengths[other[0]], rows.lengths[other[0]]
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
    for partition in reversed(feature.partitions):
        if isinstance(partition, RaggedFeature.UniformRowLength):
            rows = split_evenly(rows, partition.length)
            continue
        found, wanted = len(partitions[partition.key].lengths), len(rows.lengths)
        if found != wanted:  # steps of one example
            raise FeatureError(f"{partition.key!r} has another number of steps, {found:,}, than the values, {wanted:,}")
        rows = split_by(rows, partition, partitions[partition.key])
    return rows


def split_evenly(rows: Rows, length: int) -> Rows:
    odd = np.flatnonzero(rows.lengths % length)
    if len(odd):
        raise FeatureError(f"{rows.lengths[odd[0]]:,} values make no rows of {length:,}", None, int(odd[0]))
    splits = rows.splits // length
    if isinstance(rows.values, Rows):
        return Rows(Rows(rows.values, np.arange(int(splits[-1]) + 1) * length), splits)
    return Rows(rows.values.reshape(-1, length, *rows.values.shape[1:]), splits)


def split_by(rows: Rows, partition: KeyedPartition, split: Rows) -> Rows:
    """One partition for each row of a batch; `split` holds one row of numbers for each row."""
    if isinstance(partition, RaggedFeature.ValueRowIds):
        ends, counts = ends_by_row_ids(rows, partition, split)
    else:
        ends, counts = ends_by_bounds(rows, partition, split)
    splits, outer = np.append(0, ends), np.append(0, np.cumsum(counts))
    descents = np.repeat(np.arange(len(counts)), counts)[splits[1:] < splits[:-1]]
    # Sums of hostile numbers may wrap around: splits that ascend from 0 to the number of values show that none did.
    refuse(np.append(descents, np.flatnonzero(splits[outer[1:]] != rows.splits[1:])), rows, partition, split)
    return Rows(Rows(rows.values, splits), outer)


def ends_by_bounds(rows: Rows, partition: KeyedPartition, split: Rows) -> tuple[Numbers, Numbers]:
    """Where each new row ends, among all values, and how many of them each row of the batch has."""
    numbers, counts = np.asarray(split.values), split.lengths
    if isinstance(partition, RaggedFeature.RowLengths):
        return np.cumsum(numbers), counts
    full = counts > 0
    firsts, owners = split.splits[:-1][full], np.repeat(np.arange(len(counts)), counts)
    ends = numbers + rows.splits[owners]
    if isinstance(partition, RaggedFeature.RowLimits):
        return ends, counts
    refuse(np.flatnonzero(full)[numbers[firsts] != 0], rows, partition, split)
    if isinstance(partition, RaggedFeature.RowSplits):
        return np.delete(ends, firsts), counts - full
    ends = np.roll(ends, -1)
    ends[split.splits[1:][full] - 1] = rows.splits[1:][full]
    return ends, counts


def ends_by_row_ids(rows: Rows, partition: KeyedPartition, split: Rows) -> tuple[Numbers, Numbers]:
    """The same by the row of each value."""
    numbers, counts = np.asarray(split.values), split.lengths
    owners = np.repeat(np.arange(len(counts)), counts)
    descend = (numbers[1:] < numbers[:-1]) & (owners[1:] == owners[:-1])
    wrong = [owners[numbers < 0], owners[1:][descend], np.flatnonzero(counts != rows.lengths)]
    refuse(np.concatenate(wrong), rows, partition, split)
    full = counts > 0
    made = np.zeros_like(counts)
    made[full] = numbers[split.splits[1:][full] - 1]
    if int(made.max(initial=0)) > MAX_EMPTY_ROWS or int(made.sum()) > MAX_EMPTY_ROWS + len(numbers):
        record = int(made.argmax())
        reason = f"{made[record]:,} rows, of which most are empty: a batch may have {MAX_EMPTY_ROWS:,} of them"
        raise FeatureError(reason, None, record)
    made[full] += 1
    before = np.cumsum(made) - made
    return np.cumsum(np.bincount(numbers + before[owners], minlength=int(made.sum()))), made


def refuse(wrong: Numbers, rows: Rows, partition: KeyedPartition, split: Rows) -> None:
    """Raises a FeatureError that names the first of the rows of the batch that are wrong, if there is one."""
    if len(wrong):
        record = int(wrong.min())
        found = np.asarray(split.values)[split.splits[record] : split.splits[record + 1]]
        shown = ", ".join(map(str, found[:8].tolist())) + (", ..." if len(found) > 8 else "")
        key, rule, count = partition.key, RULES[type(partition)], rows.lengths[record]
        raise FeatureError(f"{key!r} is [{shown}], which does not split {count:,} values: {rule}", None, record)
