"""parse_sequence_example and parse_single_sequence_example, by both walks: the rules one by one."""

from typing import Any

import numpy as np
import pytest

from streamrec.errors import FeatureError
from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.features import Feature
from streamrec.example.parse import parse_sequence_example, parse_single_sequence_example
from tests.example.wire import entry, field, floats, ints, sequence, strings

pytestmark = pytest.mark.usefixtures("walk")
TOKENS: dict[str, Feature] = {"t": FixedLenSequenceFeature([], np.int64)}


def parse_lists(records: list[bytes], features: dict[str, Feature]) -> dict[str, Any]:
    return parse_sequence_example(records, None, features)[1]


def parse_context(records: list[bytes], features: dict[str, Feature]) -> dict[str, Any]:
    return parse_sequence_example(records, features, None)[0]


def test_partitions_of_another_number_of_steps_are_refused() -> None:
    config = RaggedFeature(np.int64, "v", [RaggedFeature.RowLengths("n")], validate=True)
    short = sequence([], [("v", [ints(1), ints(4)]), ("n", [ints(1)])])
    with pytest.raises(FeatureError, match="'n' has another number of steps"):
        parse_lists([short], {"r": config})


def test_an_empty_context_feature_is_not_missing() -> None:
    with pytest.raises(FeatureError, match="record 0, feature 'i': found 0 values"):
        parse_context([sequence([("i", b"")])], {"i": FixedLenFeature([], np.int64, 7)})


def test_a_step_ends_where_its_first_list_ends() -> None:
    """TensorFlow reads on after the first list, whatever the step's length says."""
    twice = strings(b"a") + strings(b"b")  # the second list looks like a step that holds a string
    with pytest.raises(FeatureError, match="feature 'w': "):
        parse_lists([sequence([], [("w", [twice])])], {"w": VarLenFeature(bytes)})
    hidden = ints(1) + field(1, ints(2))
    found = parse_lists([sequence([], [("t", [hidden])])], TOKENS)["t"]
    assert found.tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"", "record 0, feature 't': found nothing"),
        (sequence([], [("t", [ints(1, 2)])]), "found 2 values where the shape .. needs 1"),
        (sequence([], [("t", [b""])]), "found 0 values where the shape .. needs 1"),
        (sequence([], [("t", [floats(1)])]), "found float32 values where int64 is expected"),
        (sequence([], [("t", [b"\x1a"])]), "int64 values are damaged"),
        (field(2, entry("t", field(1, ints(1)), value_first=True)), "not a serialized message"),
        (field(1, b"\x10\x01"), "not a serialized message"),
    ],
)
def test_lists_that_are_refused(record: bytes, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        parse_lists([record], TOKENS)


def test_a_single_sequence_example_parses_without_a_batch_dimension() -> None:
    record = sequence([("i", ints(3))], [("t", [ints(1), ints(2)]), ("w", [strings(b"a")])])
    features: dict[str, Feature] = {**TOKENS, "w": VarLenFeature(bytes)}
    scalar: dict[str, Feature] = {"i": FixedLenFeature([], np.int64)}
    one, steps, lengths = parse_sequence_example(record, scalar, features)
    assert one["i"].shape == ()  # type: ignore[union-attr]
    assert steps["t"].tolist() == [1, 2]  # type: ignore[union-attr]
    assert steps["w"].indices.tolist() == [[0, 0]]  # type: ignore[union-attr]
    assert steps["w"].dense_shape.tolist() == [1, 1]  # type: ignore[union-attr]
    assert lengths["t"].shape == ()
    assert len(parse_single_sequence_example(record, scalar, features)) == 2
    assert parse_sequence_example(record, scalar, features)[2]["t"].item() == 2


@pytest.mark.parametrize(
    ("context_features", "sequence_features", "message"),
    [
        (None, None, "describe at least one"),
        ({}, {}, "describe at least one"),
        (
            {"x": FixedLenSequenceFeature([], np.int64)},
            None,
            "FixedLenSequenceFeature where one of",
        ),
        ({"x": SparseFeature("i", "v", np.int64, 3)}, None, "SparseFeature where one of"),
        (None, {"x": FixedLenFeature([], np.int64)}, "FixedLenFeature where one of"),
        (None, {"x": FixedLenSequenceFeature([], np.int64, True, 3)}, "leave default_value out"),
    ],
)
def test_descriptions_that_are_refused(
    context_features: Any, sequence_features: Any, message: str
) -> None:
    with pytest.raises(FeatureError, match=message):
        parse_sequence_example([b""], context_features, sequence_features)


def test_errors_of_sequence_examples_name_the_example() -> None:
    with pytest.raises(FeatureError, match="example 'b', record 1, feature 't'"):
        parse_sequence_example([sequence([], [("t", [])]), b""], None, TOKENS, ["a", "b"])
    with pytest.raises(FeatureError, match="2 names"):
        parse_sequence_example([b"", b""], None, TOKENS, ["a"])
