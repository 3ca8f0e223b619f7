"""TensorFlow as the oracle: equal results where it gives one, an error where it raises; both walkers agree.

Descriptions of every kind, and messages that fit them or nearly fit them, well formed and damaged. Some
damaged inputs are not shown to TensorFlow, because it breaks on them instead of raising (2.21):
  - lengths of many bytes: it allocates gigabytes for them, and crashes on lengths of 2 GiB;
  - more unpacked floats than a FixedLenFeature holds: it writes past the end of its array;
  - in SequenceExamples, byte strings whose length runs past their list: it counts an endless list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example.features import Feature, FixedLenFeature
from streamrec.example.parse import parse_examples_with, parse_single_with
from streamrec.example.plan import plan_context, plan_examples, plan_lists
from streamrec.example.sequence import parse_sequences_with, parse_single_sequence_with
from streamrec.example.walk import Walker
from tests.example.compare import assert_same_columns
from tests.example.conftest import WALKERS
from tests.example.strategies import (
    context_descriptions,
    damaged,
    example_descriptions,
    examples,
    list_descriptions,
    makes_sense,
    rarely,
    sequences,
)

pytest.importorskip("tensorflow")

from tests.example.tf_twin import outcome, tf, twins

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]
many = settings(
    max_examples=1000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
LONG_VARINT = re.compile(rb"[\x80-\xff]{3}")


def check(ours: Callable[[Walker], Any], theirs: Callable[[], Any]) -> None:
    """Both walkers give what TensorFlow gives, or the same error where it raises."""
    wanted, messages = outcome(theirs), []
    for walker in WALKERS.values():
        if wanted is None:
            with pytest.raises(FeatureError) as raised:
                ours(walker)
            messages.append(str(raised.value))
        elif isinstance(wanted, dict):
            assert_same_columns(ours(walker), wanted)
        else:
            for part, other in zip(ours(walker), wanted, strict=True):
                assert_same_columns(part, other)
    event("refused" if wanted is None else "parsed")
    assert len(set(messages)) <= 1, "the walkers give different reasons"


def check_examples(records: list[bytes], features: dict[str, Feature]) -> None:
    """A batch, and its first record alone."""
    theirs = twins(features)
    batch = tf.constant(records, tf.string)
    check(
        lambda walker: parse_examples_with(walker, records, features, None, False),
        lambda: tf.io.parse_example(batch, theirs),
    )
    if records:
        check(
            lambda walker: parse_single_with(walker, records[0], features, None, False),
            lambda: tf.io.parse_single_example(records[0], theirs),
        )


def check_sequences(records: list[bytes], context: dict[str, Feature], lists: dict[str, Feature]) -> None:
    """A batch, and its first record alone."""
    theirs = twins(context), twins(lists)
    batch = tf.constant(records, tf.string)
    check(
        lambda walker: parse_sequences_with(walker, records, context, lists, None, False),
        lambda: tf.io.parse_sequence_example(batch, *theirs),
    )
    if records:
        check(
            lambda walker: parse_single_sequence_with(walker, records[0], context, lists, None, False)[:2],
            lambda: tf.io.parse_single_sequence_example(records[0], *theirs),
        )


def numbers_of(features: Mapping[str, Feature]) -> dict[str, Feature]:
    """The description without byte strings."""
    return {name: feature for name, feature in features.items() if feature.dtype is not bytes}


@many
@given(st.data())
def test_examples(data: st.DataObject) -> None:
    features = data.draw(example_descriptions)
    if not makes_sense(lambda: plan_examples(features, single=False)):
        assume(rarely(data.draw, 4))
    check_examples(data.draw(st.lists(examples(features), max_size=3)), features)


@many
@given(st.data())
def test_damaged_examples(data: st.DataObject) -> None:
    features = data.draw(example_descriptions)
    assume(makes_sense(lambda: plan_examples(features, single=False)))
    records = data.draw(st.lists(examples(features), min_size=1, max_size=2))
    records[-1] = data.draw(damaged(records[-1]))
    assume(not LONG_VARINT.search(records[-1]))
    dense = [feature for feature in features.values() if isinstance(feature, FixedLenFeature)]
    assume(b"\x0d" not in records[-1] or all(feature.dtype is not np.float32 for feature in dense))
    check_examples(records, features)


@many
@given(st.data())
def test_sequences(data: st.DataObject) -> None:
    context, lists = data.draw(context_descriptions), data.draw(list_descriptions)
    if not makes_sense(lambda: (plan_context(context), plan_lists(lists))):
        assume(rarely(data.draw, 4))
    check_sequences(data.draw(st.lists(sequences(context, lists), max_size=3)), context, lists)


@many
@given(st.data())
def test_damaged_sequences(data: st.DataObject) -> None:
    context = numbers_of(data.draw(context_descriptions))
    lists = numbers_of(data.draw(list_descriptions))
    assume(context or lists)
    assume(makes_sense(lambda: (plan_context(context), plan_lists(lists))))
    records = data.draw(st.lists(sequences(context, lists), min_size=1, max_size=2))
    records[-1] = data.draw(damaged(records[-1]))
    assume(not LONG_VARINT.search(records[-1]))
    check_sequences(records, context, lists)
