"""What infer_features proposes, and that it parses what it was inferred from; features that are
written by hand.
"""

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.encode import encode_example, encode_sequence_example, float_feature
from streamrec.example.features import Dtype
from streamrec.example.messages import Example, SequenceExample
from streamrec.example.parse import parse_example, parse_sequence_example
from streamrec.example.schema import Schema, infer_features, join_schemas

RECORDS = [
    encode_example(
        {"label": i, "box": np.ones(4) * i, "words": ["a"] * i, "kindless": []}
        | ({"maybe": 0.5, "pair": [1, 2]} if i else {})
    )
    for i in range(4)
]


def test_features() -> None:
    assert infer_features(RECORDS).features == {
        "box": FixedLenFeature([4], np.float32),
        "kindless": RaggedFeature(bytes),
        "label": FixedLenFeature([], np.int64),
        "maybe": RaggedFeature(np.float32),
        "pair": RaggedFeature(np.int64),
        "words": RaggedFeature(bytes),
    }


def test_a_proposal_parses_its_records_and_invents_no_value() -> None:
    columns = parse_example(RECORDS, infer_features(RECORDS).features)
    assert columns["maybe"].flat_values.tolist() == [0.5] * 3
    assert columns["maybe"].nested_row_splits[0].tolist() == [0, 0, 1, 2, 3]
    assert columns["pair"].nested_row_splits[0].tolist() == [0, 0, 2, 4, 6]


@given(
    parts=st.tuples(*[st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4)] * 2),
)
def test_the_schema_of_two_parts_is_that_of_all_records(parts: tuple[list[set[int]], ...]) -> None:
    """Each feature may lack, be without a kind, be empty, or have values."""
    forms: dict[int, dict[str, Any]] = {
        0: {"a": []},
        1: {"a": [1]},
        2: {"b": [0.5, 1.5]},
        3: {"b": float_feature([])},
        4: {"c": [b"x"]},
        5: {"c": [b"x", b"y", b"z"]},
    }
    records = [
        [
            encode_example({k: v for form in record for k, v in forms[form].items()})
            for record in part
        ]
        for part in parts
    ]
    joined = join_schemas(infer_features(records[0]), infer_features(records[1]))
    assert joined == infer_features(records[0] + records[1])


def test_summaries() -> None:
    schema = infer_features(iter(RECORDS))
    assert schema.records == 4
    words = next(item for item in schema.summaries if item.name == "words")
    assert (words.shortest, words.longest, words.present, words.has_fixed_length) == (
        1,
        3,
        3,
        False,
    )
    assert words.missing_rate == 0.25
    assert (words.dtype, schema.summaries[1].dtype) == (bytes, None)
    assert [item.without_kind for item in schema.summaries] == [0, 4, 0, 0, 0, 1]


def check_pasted(schema: Schema, *wanted: str) -> None:
    """In a new session the code defines what is proposed."""
    names: dict[str, Any] = {}
    exec(str(schema), names)
    assert names.get("features", names.get("context_features")) == schema.features
    assert names.get("sequence_features", {}) == schema.sequence_features
    assert all(text in str(schema) for text in wanted)


def test_code_to_paste_is_the_proposal() -> None:
    pair = "'pair': RaggedFeature('int64'),  # 2 values, missing in 25.0%"
    check_pasted(
        infer_features(RECORDS),
        pair,
        "'kindless': RaggedFeature('string'),  # no record has it with a kind",
    )


NAMES = ["a", "", "it's", 'a\n"b"\\', "\u202e\x1b[2J\u2028", "{shard}"]
KINDS = ["int64_list", "float_list", "bytes_list"] * 2


@st.composite
def messages(draw: Any) -> SequenceExample:
    """Features of one kind or without any, in the context, in feature lists, or in both."""
    message = SequenceExample()
    names = st.lists(st.sampled_from(NAMES), unique=True)
    features = [(name, message.context.feature[name]) for name in draw(names)]
    for name in draw(names):
        steps = message.feature_lists.feature_list[name].feature
        features += [(name, steps.add()) for _ in range(draw(st.integers(0, 2)))]
    for name, feature in features:
        if (count := draw(st.none() | st.integers(0, 2))) is not None:
            values = getattr(feature, KINDS[NAMES.index(name)])
            values.SetInParent()
            values.value.extend([b"x" if "'" in name or "{" in name else 1] * count)
    return message


@given(st.lists(messages(), min_size=1, max_size=4))
def test_a_proposal_parses_what_was_drawn(drawn: list[SequenceExample]) -> None:
    records = [message.SerializeToString() for message in drawn]
    schema = infer_features(records, kind="sequence_example")
    check_pasted(schema)
    if schema.summaries or schema.list_summaries:
        parse_sequence_example(records, schema.features, schema.sequence_features)
    records = [Example(features=message.context).SerializeToString() for message in drawn]
    if features := infer_features(records).features:
        assert parse_example(records, features).keys() == features.keys()


def test_features_are_inferred_from_a_sample_and_not_from_no_records() -> None:
    assert infer_features(RECORDS, sample=1).features.keys() == {
        "box",
        "kindless",
        "label",
        "words",
    }
    assert infer_features(RECORDS, sample=0) == infer_features([]) == Schema(0, ())
    assert str(infer_features([])) == "features = {\n}"
    with pytest.raises(ValueError, match="sample is -1"):
        infer_features(RECORDS, sample=-1)


def test_empty_lists_are_ragged() -> None:
    typed = encode_example({"x": float_feature([])})
    assert infer_features([typed, typed]).features == {"x": RaggedFeature(np.float32)}


def test_sequence_examples() -> None:
    records = [
        encode_sequence_example(
            {"id": 1},
            {
                "frames": np.ones((steps, 2)),
                "words": [["a"] * step for step in range(steps)],
                **({"rare": [3]} if steps > 1 else {}),
            },
        )
        for steps in (1, 3)
    ]
    schema = infer_features(records, kind="sequence_example")
    assert schema.features == {"id": FixedLenFeature([], np.int64)}
    assert schema.sequence_features == {
        "frames": FixedLenSequenceFeature([2], np.float32),
        "rare": FixedLenSequenceFeature([], np.int64, allow_missing=True),
        "words": RaggedFeature(bytes),
    }
    check_pasted(schema, "2 values a step, 1 to 3 steps")


def test_records_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(
        FeatureError, match=r"record 1, feature 'x': float32, but earlier records have int64"
    ):
        infer_features([encode_example({"x": 1}), encode_example({"x": 0.5})])
    with pytest.raises(FeatureError, match="record 1: 1 bytes that are not an Example"):
        infer_features([b"", b"\xff"])


@dataclass
class NamedDtype:
    """What a DType of TensorFlow looks like from outside."""

    name: str


@dataclass(repr=False)
class DtypeWithARepr:
    """What a dtype of another library looks like from outside: nothing but its repr."""

    shown: str

    def __repr__(self) -> str:
        return self.shown


class ScalarType(type):
    """What `jax.numpy.int64` is: a class without a type of NumPy above it, which has a `dtype`."""

    dtype = np.dtype("int64")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (
            np.int64,
            [np.int64, np.dtype("int64"), "int64", int, NamedDtype("int64"), NamedDtype("Int64")],
        ),
        (
            np.int64,
            [
                DtypeWithARepr("torch.int64"),
                "torch.int64",
                DtypeWithARepr("mlx.core.int64"),
                ScalarType("int64", (), {}),
            ],
        ),
        (
            np.float32,
            [
                np.float32,
                "float32",
                float,
                DtypeWithARepr("torch.float32"),
                DtypeWithARepr("<class 'jax.numpy.float32'>"),
            ],
        ),
        (
            bytes,
            [
                bytes,
                str,
                "string",
                "bytes",
                np.object_,
                np.dtype("S7"),
                NamedDtype("string"),
                "tf.string",
            ],
        ),
    ],
)
def test_dtypes(kind: Dtype, given: list[object]) -> None:
    for dtype in given:
        assert VarLenFeature(dtype).dtype is kind
        if kind is np.int64 and dtype is not int:
            assert RaggedFeature(np.int64, row_splits_dtype=dtype).row_splits_dtype is np.int64


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        (np.int32, "integers only as int64: write np.int64, and convert after parsing"),
        ("uint8", "write np.int64"),
        (DtypeWithARepr("torch.int32"), "write np.int64"),
        (NamedDtype("bool"), "write np.int64"),
        (bool, "write np.int64"),
        (np.float64, "floats only as float32: write np.float32, and convert after parsing"),
        ("float16", "write np.float32"),
        (DtypeWithARepr("torch.bfloat16"), "write np.float32"),
        ("nonsense", "write np.int64, np.float32 or bytes"),
        (None, "write np.int64, np.float32 or bytes"),
    ],
)
def test_other_dtypes_are_refused(given: object, advice: str) -> None:
    with pytest.raises(FeatureError, match=f"not a kind that an Example holds.*{advice}"):
        VarLenFeature(given)


def test_configurations_are_values() -> None:
    one = FixedLenFeature([2, 1], np.float32, [[1], [2.5]])
    other = FixedLenFeature((np.int64(2), 1), "float32", np.array([[1], [2.5]]))
    assert one == other
    assert hash(one) == hash(other)
    assert one.shape == (2, 1)
    assert pickle.loads(pickle.dumps(one)) == one
    with pytest.raises(AttributeError):
        one.shape = ()  # type: ignore[misc]


def test_a_default_cannot_be_changed_from_outside() -> None:
    default = np.array([1, 2])
    feature = FixedLenFeature([2], np.int64, default)
    default[:] = 7
    assert feature.default_value == (1, 2)


def test_partitions_of_different_classes_differ() -> None:
    kinds = (RaggedFeature.RowSplits, RaggedFeature.RowStarts, RaggedFeature.RowLengths)
    features = {RaggedFeature(np.int64, partitions=[kind("k")]) for kind in kinds}
    assert len(features) == 3
    assert all(pickle.loads(pickle.dumps(feature)) in features for feature in features)


def test_defaults_of_other_kinds() -> None:
    assert (
        FixedLenFeature([], np.int64, np.float64(1.0)).default_value == 1
    )  # NumPy's are cast, as in TensorFlow
    assert FixedLenFeature([], np.int64, True).default_value == 1
    assert FixedLenFeature([], np.float32, 1).default_value == 1
    assert FixedLenFeature([], np.float32, np.float64(1e300)).default_value == float("inf")
    assert FixedLenFeature([], bytes, "snö").default_value == "snö"
    assert FixedLenFeature(3, np.int64, [1, 2, 3]).shape == (3,)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (FixedLenFeature, ([], np.int64, 1.5), ": it must be an int64"),
        (FixedLenFeature, ([], np.int64, "1"), ": it must be an int64"),
        (FixedLenFeature, ([], np.int64, 2**63), "does not fit in int64"),
        (FixedLenFeature, ([], bytes, 1), ": it must be bytes"),
        (FixedLenFeature, ([3], np.int64, 1), "1 values, but the shape .3. has 3"),
        (FixedLenFeature, ([2], np.int64, [1, 2, 3]), "3 values, but the shape .2. has 2"),
        (FixedLenFeature, ([None], np.int64), "FixedLenSequenceFeature"),
        (FixedLenFeature, ([2, None], np.int64), "unknown size"),
        (FixedLenFeature, ([-1], np.int64), "negative size"),
        (FixedLenSequenceFeature, ([None], np.int64), "only the first dimension"),
        (FixedLenSequenceFeature, ([0], np.int64), "no value"),
        (FixedLenSequenceFeature, ([], np.int64, True, [1, 2]), "2 values"),
        (FixedLenSequenceFeature, ([], np.int64, True, "x"), ": it must be an int64"),
        (SparseFeature, ([], "v", np.int64, []), "empty"),
        (SparseFeature, ("", "v", np.int64, 3), "empty"),
        (SparseFeature, ("i", "", np.int64, 3), "value_key"),
        (SparseFeature, (["i"], "v", np.int64, 3), "both be lists"),
        (SparseFeature, ("i", "v", np.int64, [3]), "both be lists"),
        (SparseFeature, (["i", "j"], "v", np.int64, [3]), "2 index keys and 1 sizes"),
        (SparseFeature, (["i", ""], "v", np.int64, [3, 3]), "index_key"),
        (RaggedFeature, (np.int64, ""), "value_key"),
        (RaggedFeature, (np.int64, 3), "value_key"),
        (RaggedFeature, (np.int64, None, "k"), "must be a list"),
        (RaggedFeature, (np.int64, None, ["k"]), "must be a list"),
        (RaggedFeature, (np.int64, None, [RaggedFeature.UniformRowLength(0)]), "at least 1"),
        (RaggedFeature, (np.int64, None, [], np.float32), "row_splits_dtype is"),
        (RaggedFeature, (np.int64, None, [], np.int32, 1), "validate is"),
    ],
)
def test_refused_features(
    kind: Callable[..., object], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises((FeatureError, TypeError), match=message):
        kind(*arguments)


def test_sparse_keys_and_sizes() -> None:
    one = SparseFeature("i", "v", np.int64, 3)
    assert (one.index_keys, one.sizes) == (("i",), (3,))
    assert SparseFeature(["i", "j"], "v", np.int64, [3, 4]).sizes == (3, 4)
