"""TensorFlow as the oracle: equal results where it gives one, an error where it raises; both walks
agree.

TensorFlow also gives results where partitions lead outside of their values, or where values of one
record become values of another. There an error is expected: `fits` says which records these are, in
plain Python.

Descriptions of every kind, and messages that fit them or nearly fit them, well formed and damaged:
5,200 of them in a run, each as a batch and alone. Every test counts what it compared, and fails if
a kind of feature or of partition, or an outcome, hardly came up: no change of the generators can
make it empty.

Some damaged inputs are not shown to TensorFlow, because it breaks on them instead of raising
(2.21):
  - lengths of many bytes: it allocates gigabytes for them, and crashes on lengths of 2 GiB;
  - more unpacked floats than a FixedLenFeature holds: it writes past the end of its array;
  - in SequenceExamples, byte strings whose length runs past their list: it counts an endless list.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example import (
    parse_example,
    parse_sequence_example,
    parse_single_example,
    parse_single_sequence_example,
)
from streamrec.example.features import Feature, FixedLenFeature, RaggedFeature, SparseFeature
from streamrec.example.walk import make_plan
from tests.effort import THOROUGH
from tests.example.compare import assert_same_columns
from tests.example.conftest import WALKS, walking
from tests.example.strategies import (
    ALL_PARTITIONS,
    context_descriptions,
    damaged,
    example_descriptions,
    examples,
    list_descriptions,
    makes_sense,
    partitioned,
    rarely,
    sequences,
)

pytest.importorskip("tensorflow")

from tests.example.tf_twin import outcome, tf, twins

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
many_examples = settings(
    max_examples=1000 if THOROUGH else 400,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
)
LONG_VARINT = re.compile(rb"[\x80-\xff]{3}")
OUTCOMES = {"parsed": 40, "refused": 40}
EXAMPLES = {
    "FixedLenFeature": 12,
    "FixedLenSequenceFeature": 12,
    "VarLenFeature": 12,
    "RaggedFeature": 12,
}
SPARSE = {"no list of index keys": 1, "1 index keys": 1, "2 index keys": 1, "already sorted": 1}
CONTEXT = {"FixedLenFeature": 12, "VarLenFeature": 12, "RaggedFeature": 12}
LISTS = {"FixedLenSequenceFeature": 12, "VarLenFeature": 12, "RaggedFeature": 12}


class Compared:
    """What a test compared: outcomes, and the kinds of features in what TensorFlow parsed."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, features: Mapping[str, Feature], wanted: Any) -> None:
        self.counts.update(["refused" if wanted is None else "parsed"])
        if wanted is not None:
            self.counts.update(
                label for feature in features.values() for label in labels_of(feature)
            )

    def require(self, *least: Mapping[str, int]) -> None:
        """Fails where one kind came up less often than it must."""
        rare = {
            name: self.counts[name]
            for wanted in least
            for name, n in wanted.items()
            if self.counts[name] < n
        }
        assert not rare, f"too few of these were compared: {rare}"


def labels_of(feature: Feature) -> Iterator[str]:
    yield type(feature).__name__
    if isinstance(feature, SparseFeature):
        listed = not isinstance(feature.index_key, str)
        yield f"{len(feature.index_keys) if listed else 'no list of'} index keys"
        if feature.already_sorted:
            yield "already sorted"
    if isinstance(feature, RaggedFeature):
        yield from (type(partition).__name__ for partition in feature.partitions)
        if len(feature.partitions) > 1:
            yield "nested"
        if feature.partitions and feature.validate:
            yield "validated"


def split_by_partition(
    values: Sequence[Any], partition: Any, numbers: list[int], *, single: bool
) -> list[Any] | None:
    """The rows of one record's values, or None where the partition does not fit them."""
    if isinstance(partition, RaggedFeature.ValueRowIds):
        if len(numbers) != len(values) or numbers != sorted(numbers) or min(numbers, default=0) < 0:
            return None
        found: list[Any] = [[] for _ in range(max(numbers, default=-1) + 1)]
        for value, row in zip(values, numbers, strict=True):
            found[row].append(value)
        return found
    if isinstance(partition, RaggedFeature.UniformRowLength):
        bounds = list(range(0, len(values) + 1, partition.length))
    elif isinstance(partition, RaggedFeature.RowLengths):
        bounds = [0, *accumulate(numbers)]
    elif isinstance(partition, RaggedFeature.RowLimits):
        bounds = [0, *numbers]
    elif isinstance(partition, RaggedFeature.RowStarts):
        bounds = [*numbers, len(values)] if numbers else [0]
    else:
        bounds = numbers or ([] if single else [0])
    fits = bounds and bounds == sorted(bounds) and bounds[0] == 0 and bounds[-1] == len(values)
    return [values[first:last] for first, last in pairwise(bounds)] if fits else None


def lists_of(record: bytes, key: str, dtype: Any, part: str, single: bool) -> list[list[Any]]:
    """The values under a key: of an Example or a context in one list, of a feature list in one for
    each step; as in a batch, or of a `single` Example, which differ where a name occurs twice.
    """
    feature = {key: RaggedFeature(dtype)}
    if part == "example":
        values: Any = (
            parse_single_example(record, feature)[key]
            if single
            else parse_example([record], feature)[key]
        )
        return [(values if single else values.flat_values).tolist()]
    context, lists = ({}, feature) if part == "lists" else (feature, {})
    found: Any = parse_single_sequence_example(record, context, lists)
    if part == "context":
        return [found[0][key].tolist()]
    rows = found[1][key]
    return [
        rows.flat_values[first:last].tolist() for first, last in pairwise(rows.nested_row_splits[0])
    ]


def fits(record: bytes, features: Mapping[str, Feature], part: str, *, single: bool) -> bool:
    """Whether all positions and partitions of a record fit its values."""
    for name, feature in features.items():
        if isinstance(feature, SparseFeature):
            keys = [lists_of(record, key, np.int64, part, single) for key in feature.index_keys]
            values = lists_of(record, feature.value_key, feature.dtype, part, single)
            if any(len(key[0]) != len(values[0]) for key in keys):
                return False
        elif isinstance(feature, RaggedFeature):
            rows: list[Any] = lists_of(
                record, feature.value_key or name, feature.dtype, part, single
            )
            for partition in reversed(feature.partitions):
                uniform = isinstance(partition, RaggedFeature.UniformRowLength)
                numbers = (
                    [[]] * len(rows)
                    if uniform
                    else lists_of(record, partition.key, np.int64, part, single)
                )
                if len(numbers) != len(rows):
                    return False
                alone = single and part != "lists"
                rows = [
                    split_by_partition(row, partition, each, single=alone)
                    for row, each in zip(rows, numbers, strict=True)
                ]
                if None in rows:
                    return False
    return True


def check_walks(
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    seen: Compared,
    features: Mapping[str, Feature],
    sound: Callable[[], bool],
) -> None:
    """Both walks give what TensorFlow gives, or the same error where it raises or gives what is not
    sound.
    """
    wanted, messages = outcome(theirs), []
    with walking("reference"):
        if wanted is not None and not sound():
            seen.counts.update(["not sound"])
            wanted = None
    for walk in WALKS:
        with walking(walk):
            if wanted is None:
                with pytest.raises(FeatureError) as raised:
                    ours()
                messages.append(str(raised.value))
            elif isinstance(wanted, dict):
                assert_same_columns(ours(), wanted)
            else:
                for part, other in zip(ours(), wanted, strict=True):
                    assert_same_columns(part, other)
    seen.add(features, wanted)
    assert len(set(messages)) <= 1, "the walks give different reasons"


def check_examples(records: list[bytes], features: dict[str, Feature], seen: Compared) -> None:
    theirs = twins(features)
    batch = tf.constant(records, tf.string)
    check_walks(
        lambda: parse_example(records, features),
        lambda: tf.io.parse_example(batch, theirs),
        seen,
        features,
        lambda: all(fits(record, features, "example", single=False) for record in records),
    )
    if records:
        check_walks(
            lambda: parse_single_example(records[0], features),
            lambda: tf.io.parse_single_example(records[0], theirs),
            seen,
            features,
            lambda: fits(records[0], features, "example", single=True),
        )


def check_sequences(
    records: list[bytes], context: dict[str, Feature], lists: dict[str, Feature], seen: Compared
) -> None:
    theirs, features = (twins(context), twins(lists)), labelled(context, lists)
    batch = tf.constant(records, tf.string)

    def sound(record: bytes, single: bool) -> bool:
        parts = ((context, "context"), (lists, "lists"))
        return all(fits(record, part, name, single=single) for part, name in parts)

    check_walks(
        lambda: parse_sequence_example(records, context, lists),
        lambda: tf.io.parse_sequence_example(batch, *theirs),
        seen,
        features,
        lambda: all(sound(record, False) for record in records),
    )
    if records:
        check_walks(
            lambda: parse_single_sequence_example(records[0], context, lists),
            lambda: tf.io.parse_single_sequence_example(records[0], *theirs),
            seen,
            features,
            lambda: sound(records[0], True),
        )


def labelled(context: Mapping[str, Feature], lists: Mapping[str, Feature]) -> dict[str, Feature]:
    """Both parts as one description, for counting."""
    return {f"context {name}": one for name, one in context.items()} | {
        f"list {name}": one for name, one in lists.items()
    }


def numbers_of(features: Mapping[str, Feature]) -> dict[str, Feature]:
    return {name: feature for name, feature in features.items() if feature.dtype is not bytes}


@pytest.mark.parametrize("damage", [False, True])
def test_examples(damage: bool) -> None:
    seen = Compared()

    @many_examples
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        features = data.draw(example_descriptions)
        if not makes_sense(lambda: make_plan("examples", features)):
            assume(not damage and rarely(data.draw, 4))
        records = data.draw(
            st.lists(examples(features), min_size=int(damage), max_size=2 if damage else 3)
        )
        if damage:
            records[-1] = data.draw(damaged(records[-1]))
            assume(not LONG_VARINT.search(records[-1]))
            dense = [
                feature for feature in features.values() if isinstance(feature, FixedLenFeature)
            ]
            assume(
                b"\x0d" not in records[-1]
                or all(feature.dtype is not np.float32 for feature in dense)
            )
        check_examples(records, features, seen)

    compare()
    seen.require(OUTCOMES, EXAMPLES, {} if damage else SPARSE)


@pytest.mark.parametrize("kind", ALL_PARTITIONS)
def test_partitions(kind: type) -> None:
    seen = Compared()

    @settings(many_examples, max_examples=200)
    @given(partitioned(kind))
    def compare(case: tuple[RaggedFeature, list[bytes]]) -> None:
        feature, records = case
        check_examples(records, {"x": feature}, seen)

    compare()
    seen.require(
        {
            "parsed": 50,
            "refused": 5,
            "not sound": 1,
            kind.__name__: 50,
            "nested": 20,
            "validated": 20,
        }
    )


@pytest.mark.parametrize("damage", [False, True])
def test_sequences(damage: bool) -> None:
    seen = Compared()

    @many_examples
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        context, lists = data.draw(context_descriptions), data.draw(list_descriptions)
        if damage:
            context, lists = numbers_of(context), numbers_of(lists)
            assume(context or lists)
        if not makes_sense(lambda: (make_plan("context", context), make_plan("lists", lists))):
            assume(not damage and rarely(data.draw, 4))
        messages = sequences(context, lists)
        records = data.draw(st.lists(messages, min_size=int(damage), max_size=2 if damage else 3))
        if damage:
            records[-1] = data.draw(damaged(records[-1]))
            assume(not LONG_VARINT.search(records[-1]))
        check_sequences(records, context, lists, seen)

    compare()
    seen.require(OUTCOMES, CONTEXT, LISTS)
