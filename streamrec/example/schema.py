"""Proposes the feature description for `parse_example` from data.

Rules of this file:
- A summary states only facts: kinds, how many values a record has, how many records lack the
  feature.
- The proposal parses every record that was examined. A feature with the same length everywhere
  becomes a FixedLenFeature; one with different lengths, or that some records lack, a RaggedFeature.
  No proposal has a default, which would be a value that was never written, or a shape of several
  dimensions, because an Example has flat lists.
- A feature with two kinds is an error that names both.
- Only counts are kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from streamrec.arguments import check_integer, describe_value, name_type
from streamrec.errors import FeatureError
from streamrec.example.features import (
    FIELDS,
    Dtype,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
)
from streamrec.example.kinds import describe_other, kind_and_message
from streamrec.example.messages import SequenceExample


@dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """Statistics of one feature.

    Args:
        name: Its name.
        dtype: `np.int64`, `np.float32` or `bytes`; None if no record had it with a kind.
        records: How many records (steps, for a feature list) were examined.
        present: How many of them have the feature with a kind.
        shortest: The fewest values of a record that has the feature; 0 if none has it.
        longest: The most values.
        without_kind: How many records have the feature without a kind, which parses as missing.
        shortest_list: For a feature list, the fewest steps of a record; None for other features.
        longest_list: The most steps; None for other features.
        without_values: How many records lack the feature, or have it empty or without a kind.
    """

    name: str
    dtype: Dtype | None
    records: int
    present: int
    shortest: int
    longest: int
    without_kind: int = 0
    shortest_list: int | None = None
    longest_list: int | None = None
    without_values: int = 0

    @property
    def missing_rate(self) -> float:
        """The fraction of records without the feature, from 0 to 1."""
        return 1 - self.present / self.records if self.records else 0.0

    @property
    def has_fixed_length(self) -> bool:
        """Whether every record that has the feature has the same number of values."""
        return self.shortest == self.longest

    @property
    def proposal(self) -> FixedLenFeature | FixedLenSequenceFeature | RaggedFeature:
        """The configuration that parses the examined records; of bytes if no record had a kind."""
        dtype = self.dtype or bytes
        if self.present < self.records or not self.has_fixed_length or not self.longest:
            return RaggedFeature(dtype)
        shape = () if self.longest == 1 else (self.longest,)
        if self.longest_list is None:
            return FixedLenFeature(shape, dtype)
        return FixedLenSequenceFeature(shape, dtype, allow_missing=self.shortest_list == 0)

    @property
    def code(self) -> str:
        """The proposal as Python code."""
        feature = self.proposal
        shape = "" if isinstance(feature, RaggedFeature) else f"{list(feature.shape)}, "
        missing = ", allow_missing=True" if getattr(feature, "allow_missing", False) else ""
        dtype = "string" if feature.dtype is bytes else feature.dtype.__name__
        return f"{type(feature).__name__}({shape}{dtype!r}{missing})"


@dataclass(frozen=True)
class Schema:
    """Feature descriptions proposed from data. As a str: Python code to paste, with its imports.

    Args:
        records: How many records were examined.
        summaries: The statistics of each feature (of the context, for SequenceExamples), in the
            order of names.
        list_summaries: The statistics of the feature lists; empty for Examples.
    """

    records: int
    summaries: tuple[FeatureSummary, ...]
    list_summaries: tuple[FeatureSummary, ...] = ()

    @property
    def features(self) -> dict[str, Feature]:
        """The description for `parse_example`; for SequenceExamples the context features."""
        return {summary.name: summary.proposal for summary in self.summaries}

    @property
    def sequence_features(self) -> dict[str, Feature]:
        """The sequence features for `parse_sequence_example`; empty for Examples."""
        return {summary.name: summary.proposal for summary in self.list_summaries}

    def __str__(self) -> str:
        lists = _code("sequence_features", self.list_summaries) if self.list_summaries else ""
        features = _code("context_features" if lists else "features", self.summaries)
        names = sorted(
            {type(item.proposal).__name__ for item in self.summaries + self.list_summaries}
        )
        imports = f"from streamrec import {', '.join(names)}\n\n" if names else ""
        return f"{imports}{features}{lists}".rstrip("\n")


def _code(variable: str, summaries: tuple[FeatureSummary, ...]) -> str:
    lines = [f"    {item.name!r}: {item.code},  # {_remark(item)}\n" for item in summaries]
    return f"{variable} = {{\n{''.join(lines)}}}\n"


def _remark(item: FeatureSummary) -> str:
    if item.dtype is None:
        return "no record has it with a kind: declare its kind"
    span = (
        f"{item.longest:,}" if item.has_fixed_length else f"{item.shortest:,} to {item.longest:,}"
    )
    values = "value" if item.has_fixed_length and item.longest == 1 else "values"
    steps = (
        ""
        if item.longest_list is None
        else f" a step, {item.shortest_list:,} to {item.longest_list:,} steps"
    )
    missing = f", missing in {item.missing_rate:.1%}" if item.present < item.records else ""
    return f"{span} {values}{steps}{missing}"


@dataclass
class _Counter:
    name: str
    dtype: Dtype | None = None
    present: int = 0
    without_kind: int = 0
    with_values: int = 0
    lengths: tuple[int, int] | None = None
    lists: int = 0
    steps: int = 0
    list_lengths: tuple[int, int] | None = None

    def add(self, message: Any, record: int) -> None:
        self.with_values += bool(self.add_values(message, record))

    def add_values(self, message: Any, record: int) -> int:
        kind = message.WhichOneof("kind")
        if kind is None:
            self.without_kind += 1
            return 0
        dtype = FIELDS[kind]
        if self.dtype not in (None, dtype):
            assert self.dtype is not None
            raise FeatureError(
                f"{dtype.__name__}, but earlier records have {self.dtype.__name__}: one "
                "description cannot parse both; write the data again with one kind",
                self.name,
                record,
            )
        self.dtype = dtype
        self.present += 1
        length = len(getattr(message, kind).value)
        self.lengths = _widen(self.lengths, length)
        return length

    def add_list(self, message: Any, record: int) -> None:
        self.lists += 1
        self.steps += len(message.feature)
        self.list_lengths = _widen(self.list_lengths, len(message.feature))
        self.with_values += sum(self.add_values(step, record) for step in message.feature) > 0

    def summary(self, records: int) -> FeatureSummary:
        shortest_list, longest_list = self.list_lengths or (None, None)
        without_values = records - self.with_values
        if self.lists:
            shortest_list = 0 if self.lists < records else shortest_list
            records = self.steps
        shortest, longest = self.lengths or (0, 0)
        return FeatureSummary(
            name=self.name,
            dtype=self.dtype,
            records=records,
            present=self.present,
            shortest=shortest,
            longest=longest,
            without_kind=self.without_kind,
            shortest_list=shortest_list,
            longest_list=longest_list,
            without_values=without_values,
        )


def _widen(bounds: tuple[int, int] | None, length: int) -> tuple[int, int]:
    least, most = bounds or (length, length)
    return min(least, length), max(most, length)


def infer_features(
    records: Iterable[bytes],
    *,
    sample: int | None = None,
    kind: Literal["example", "sequence_example"] = "example",
) -> Schema:
    """Proposes feature descriptions from serialized records.

    Args:
        records: Serialized Examples, such as Frames or any iterable of bytes.
        sample: How many records to examine, from the first on; None for all. Later records may not
            fit the proposal.
        kind: The type of the messages.

    Returns:
        The proposal: `schema.features` for `parse_example`, `print(schema)` for code to paste.
            Features are
        in the order of their names. Without records it is empty.

    Raises:
        FeatureError: A record is not such a message, or a feature has two kinds.
        TypeError: `records` is a path, or contains something other than bytes.

    Example:
        >>> from streamrec.example.encode import encode_example
        >>> rows = [{"label": number, "words": ["a"] * number} for number in range(3)]
        >>> print(infer_features(map(encode_example, rows)))
        from streamrec import FixedLenFeature, RaggedFeature
        <BLANKLINE>
        features = {
            'label': FixedLenFeature([], 'int64'),  # 1 value
            'words': RaggedFeature('string'),  # 1 to 2 values, missing in 33.3%
        }
    """
    check_integer("sample", sample, 0, none=True)
    source: Any = records
    if isinstance(source, str | bytes) or hasattr(source, "__fspath__"):
        raise TypeError(
            f"records is {describe_value(source)}: give the records, such as "
            "TFRecordDataset(path).take(1000)"
        )
    features: dict[str, _Counter] = {}
    lists: dict[str, _Counter] = {}
    count = 0
    # Only the counts are kept, so any number of records may be examined.
    for record, data in enumerate(islice(records, sample)):
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                f"records holds {name_type(data)} where a serialized Example is expected, as bytes"
            )
        message = _message_in(bytes(data), kind, record)
        count += 1
        for name, feature in message.context.feature.items():
            features.setdefault(name, _Counter(name)).add(feature, record)
        for name, steps in message.feature_lists.feature_list.items():
            lists.setdefault(name, _Counter(name)).add_list(steps, record)
    return Schema(
        count,
        tuple(features[name].summary(count) for name in sorted(features)),
        tuple(lists[name].summary(count) for name in sorted(lists)),
    )


def _message_in(
    data: bytes, wanted: Literal["example", "sequence_example"], record: int
) -> SequenceExample:
    """The record as a SequenceExample, of which an Example is one without feature lists."""
    found, message = kind_and_message(data)
    if found == "example_list":
        raise FeatureError(
            "an ExampleListWithContext: infer those of its examples and its context", None, record
        )
    if found == "sequence_example" and wanted == "example":
        raise FeatureError('a SequenceExample: give kind="sequence_example"', None, record)
    if found == "bytes":
        raise FeatureError(describe_other(data), None, record)
    parsed: SequenceExample = message
    return parsed


def join_schemas(one: Schema, other: Schema) -> Schema:
    """The schema of two parts of the data; a feature that one part lacks is missing there.

    Raises:
        FeatureError: A feature has two kinds.
    """
    parts = [{item.name: item for item in schema.summaries} for schema in (one, other)]
    summaries = []
    for name in sorted(parts[0].keys() | parts[1].keys()):
        first, second = (
            part.get(name) or _summary_of_none(name, schema.records)
            for part, schema in zip(parts, (one, other), strict=True)
        )
        summaries.append(join_summaries(first, second))
    return Schema(one.records + other.records, tuple(summaries))


def _summary_of_none(name: str, records: int) -> FeatureSummary:
    """The summary of a feature that none of so many records has."""
    return FeatureSummary(
        name=name,
        dtype=None,
        records=records,
        present=0,
        shortest=0,
        longest=0,
        without_values=records,
    )


def join_summaries(one: FeatureSummary, other: FeatureSummary) -> FeatureSummary:
    """The summary of a feature over two parts of the data.

    Raises:
        FeatureError: The parts have the feature in two kinds.
    """
    seen = [item for item in (one, other) if item.present]
    if len({item.dtype for item in seen}) == 2:
        names = " and ".join(item.dtype.__name__ for item in seen if item.dtype is not None)
        raise FeatureError(f"{names} in different records; a column has one kind", one.name)
    return replace(
        seen[0] if seen else one,
        records=one.records + other.records,
        present=one.present + other.present,
        without_kind=one.without_kind + other.without_kind,
        shortest=min((item.shortest for item in seen), default=0),
        longest=max((item.longest for item in seen), default=0),
        without_values=one.without_values + other.without_values,
    )
