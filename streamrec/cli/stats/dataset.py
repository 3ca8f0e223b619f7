"""What is counted of all features of a data set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec import Frames, RaggedFeature, Schema, parse_example, parse_sequence_example
from streamrec.cli.stats.feature import FeatureStats

__all__ = ["DatasetStats"]


class DatasetStats:
    """The figures of each feature, in the order of their names; and of the records' lengths.

    Args:
        schema: The features, as a sample of the records shows them; None where they are plain bytes.
        wanted: Whether a feature is looked at, by its name.

    Attributes:
        records: Of the records as a whole: their lengths in bytes.
        features: Of each feature; those of feature lists come behind the others.
    """

    def __init__(self, schema: Schema | None, wanted: Callable[[str], bool]) -> None:
        self.records = FeatureStats("", "bytes")
        context = schema.summaries if schema else ()
        lists = schema.list_summaries if schema else ()
        self._context = {item.name: RaggedFeature(item.dtype) for item in context if item.dtype and wanted(item.name)}
        self._lists = {item.name: RaggedFeature(item.dtype) for item in lists if item.dtype and wanted(item.name)}
        self.features = tuple(
            FeatureStats(name, feature.dtype.__name__, part is self._lists)
            for part in (self._context, self._lists)
            for name, feature in part.items()
        )

    def add(self, frames: Frames) -> None:
        """Takes more records.

        Raises:
            FeatureError: A record is no such message, or a feature has another kind than in the sample.
        """
        self.records.records += len(frames)
        self.records.numbers.add(frames.lengths)
        self.records.histogram.add(frames.lengths)
        for figures, column in zip(self.features, self._columns(frames), strict=True):
            figures.add(column.flat_values, values_per_record(column.nested_row_splits))

    def _columns(self, frames: Frames) -> list[Any]:
        if self._lists:
            context, lists, _ = parse_sequence_example(frames, self._context, self._lists, string_columns=True)
            return [*context.values(), *lists.values()]
        return list(parse_example(frames, self._context, string_columns=True).values()) if self._context else []


def values_per_record(splits: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """How many values each record has, over all its steps.

    Examples:
        >>> values_per_record([np.array([0, 2, 3]), np.array([0, 4, 4, 5])]).tolist()
        [4, 1]
    """
    ends = splits[0]
    for inner in splits[1:]:
        ends = inner[ends]
    return np.diff(ends).astype(np.int64)
