"""Records written from mappings and from columns, against what protobuf writes and reads."""

import itertools
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example.columns import BytesColumn, RaggedTensor, SparseTensor
from streamrec.example.encode import (
    encode_example,
    encode_examples,
    encode_sequence_example,
    feature_of,
)
from streamrec.example.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    VarLenFeature,
)
from streamrec.example.messages import Example, Feature, Features, SequenceExample
from streamrec.example.parse import parse_example, parse_single_example
from streamrec.example.values import to_values
from streamrec.kernels import _native
from streamrec.tfrecord import encode_records
from tests.example.compare import assert_same, assert_same_columns, materialised

int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 200)
floats = st.floats(width=32, allow_nan=False) | st.just(float("nan"))
kinds_of_values = [int64s, floats, st.binary(max_size=20), st.text(max_size=8)]
feature_values = st.one_of(
    [*kinds_of_values, *(st.lists(items, max_size=5) for items in kinds_of_values)]
)
names = st.text(max_size=5).filter(lambda name: name.isprintable()) | st.sampled_from("abc")


def kind_and_values(feature: Feature) -> tuple[str | None, list[Any]]:
    kind = feature.WhichOneof("kind")
    return kind, [] if kind is None else list(getattr(feature, kind).value)


def assume_order_of_protobuf(features: dict[str, Any]) -> None:
    """Upb sorts a name and its prefix in another way."""
    assume(not any(a != b and a.startswith(b) for a in features for b in features))


@given(st.dictionaries(names, feature_values, max_size=5))
def test_deterministic_output_is_protobufs(features: dict[str, Any]) -> None:
    assume_order_of_protobuf(features)
    made = {name: feature_of(*to_values(value)) for name, value in features.items()}
    wanted = Example(features=Features(feature=made)).SerializeToString(deterministic=True)
    assert encode_example(features, deterministic=True) == wanted


def test_the_mappings_order_is_kept() -> None:
    z, a = (encode_example({name: 1})[2:] for name in "za")
    assert encode_example({"z": 1, "a": 1})[2:] == z + a
    assert encode_example({"z": 1, "a": 1}, deterministic=True)[2:] == a + z
    sequence = encode_sequence_example({}, {"z": [], "a": []})
    assert sequence == b"\n\x00\x12\x0e\n\x05\n\x01z\x12\x00\n\x05\n\x01a\x12\x00"


def test_an_example_without_features_is_an_empty_message() -> None:
    assert encode_example({}) == b"\n\x00"
    assert len(encode_examples({})) == 0
    assert len(encode_examples({"a": []})) == 0
    assert list(encode_examples({"a": np.zeros((0, 3))})) == []


def sparse_tensor(indices: Any, values: Any, shape: list[int]) -> SparseTensor:
    return SparseTensor(np.array(indices), np.array(values, np.int64), np.array(shape))


@st.composite
def column_batches(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.integers(0, 5))
    columns: dict[str, Any] = {}
    for name in draw(st.lists(names, max_size=4, unique=True)):
        items = draw(st.sampled_from(kinds_of_values))
        form = draw(st.sampled_from(["scalars", "lists", "array", "ragged", "spans"]))
        lists = draw(st.lists(st.lists(items, max_size=4), min_size=rows, max_size=rows))
        flat = list(itertools.chain(*lists))
        if form == "scalars":
            columns[name] = draw(st.lists(items, min_size=rows, max_size=rows))
        elif form == "lists":
            columns[name] = lists
        elif form == "array":
            values = draw(st.lists(items, min_size=rows * 2, max_size=rows * 2))
            columns[name] = np.array(values, dtype=_dtype(values)).reshape(rows, 2, 1)
        elif form == "ragged":
            splits = np.cumsum([0, *map(len, lists)])
            columns[name] = RaggedTensor(np.array(flat, dtype=_dtype(flat)), (splits,))
        else:
            blobs = draw(st.lists(st.binary(max_size=5), min_size=rows, max_size=rows))
            ends = np.cumsum([0, *map(len, blobs)])
            columns[name] = BytesColumn(b"".join(blobs), np.stack([ends[:-1], ends[1:]], axis=1))
    return columns


def _dtype(values: list[Any]) -> Any:
    return object if any(isinstance(value, bytes | str) for value in values) else None


def rows_of(columns: dict[str, Any]) -> list[dict[str, tuple[str | None, list[Any]]]]:
    """Each record's features, taken from the columns one by one."""
    count = max(map(len, columns.values()), default=0)
    return [
        {
            name: kind_and_values(feature_of(*to_values(column[row])))
            for name, column in columns.items()
        }
        for row in range(count)
    ]


@given(column_batches())
def test_rows_hold_what_the_columns_held(columns: dict[str, Any]) -> None:
    assume_order_of_protobuf(columns)
    records = encode_examples(columns, deterministic=True)
    for record, wanted in zip(records, rows_of(columns), strict=True):
        message = Example.FromString(record)
        assert message.SerializeToString(deterministic=True) == record
        found = {name: kind_and_values(item) for name, item in message.features.feature.items()}
        assert found.keys() == wanted.keys()
        for name, (kind, values) in wanted.items():
            assert repr(found[name][1]) == repr(values)
            assert found[name][0] == kind or not values  # an empty row takes its column's kind


def test_batches_are_sequences() -> None:
    batch = encode_examples({"a": range(5)})
    assert batch[1:3][0] == batch[1] == batch[-4]
    assert list(batch[::2]) == [batch[0], batch[2], batch[4]]
    assert batch[4] in batch
    assert not batch.spans.flags.writeable
    assert encode_records(batch) == encode_records(list(batch))
    assert bytes(batch.buffer) == b"".join(batch)
    with pytest.raises(IndexError):
        batch[5]


def test_inner_ragged_dimensions_are_a_feature_of_their_own() -> None:
    """A list of a feature has no inner rows: without their lengths they would be lost."""
    outer, inner = np.array([0, 2, 2, 3]), np.array([0, 1, 1, 3])
    nested = RaggedTensor(np.arange(6).reshape(3, 2), (outer, inner))
    with pytest.raises(
        FeatureError, match=r"feature 'x': a ragged tensor of 2 ragged dimensions.*RowLengths"
    ):
        encode_examples({"x": nested})
    flat = {
        "x": RaggedTensor(nested.flat_values, (inner[outer],)),
        "lengths": RaggedTensor(np.diff(inner), (outer,)),
    }
    partitions = [RaggedFeature.RowLengths("lengths"), RaggedFeature.UniformRowLength(2)]
    feature = RaggedFeature(np.int64, "x", partitions, np.int64)
    assert_same(
        parse_example(encode_examples(flat), {"nested": feature})["nested"], nested, "nested"
    )


@st.composite
def described_batches(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    rows = draw(st.integers(0, 5))
    features = {}
    columns = {}
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        dtype, items = draw(
            st.sampled_from(
                [(np.int64, int64s), (np.float32, floats), (bytes, st.binary(max_size=3))]
            )
        )
        kind = draw(st.sampled_from(["fixed", "pad_rows_of", "sparse", "ragged", "wide"]))
        count = st.just(2) if kind == "fixed" else st.integers(0, 3)
        columns[name] = [
            draw(count.flatmap(lambda n, items=items: st.lists(items, min_size=n, max_size=n)))
            for _ in range(rows)
        ]
        features[name] = {
            "fixed": FixedLenFeature([2], dtype),
            "pad_rows_of": FixedLenSequenceFeature([], dtype, allow_missing=True),
            "sparse": VarLenFeature(dtype),
            "ragged": RaggedFeature(dtype),
            "wide": RaggedFeature(dtype, row_splits_dtype=np.int64),
        }[kind]
    return features, list(encode_examples(columns, kinds=features))


@given(described_batches(), st.booleans())
def test_parsed_columns_survive_encoding(
    batch: tuple[dict[str, Any], list[bytes]], string_columns: bool
) -> None:
    features, records = batch
    parsed = parse_example(records, features, string_columns=string_columns)
    again = parse_example(encode_examples(parsed), features)
    assert_same_columns(again, {name: materialised(column) for name, column in parsed.items()})
    for record in records:
        one = parse_single_example(record, features, string_columns=string_columns)
        same = parse_single_example(encode_example(one), features)
        assert_same_columns(same, {name: materialised(column) for name, column in one.items()})


def test_a_sparse_tensor_is_its_rows() -> None:
    """What a VarLenFeature gives, and neither its indices nor its shape."""
    batch = encode_examples({"t": sparse_tensor([[0, 0], [2, 0], [2, 1]], [7, 8, 9], [4, 5])})
    assert [
        kind_and_values(Example.FromString(record).features.feature["t"])[1] for record in batch
    ] == [
        [7],
        [],
        [8, 9],
        [],
    ]
    words = SparseTensor(np.array([[0, 0]]), np.array([b"a"], object), np.array([1, 1]))
    assert list(encode_examples({"t": words})) == [encode_example({"t": b"a"})]
    assert len(encode_examples({"t": sparse_tensor(np.zeros((0, 2), int), [], [0, 0])})) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            sparse_tensor([[0, 0]], [7], [1, 1]),
            "a SparseTensor of several rows where one list is expected; encode_examples",
        ),
        (RaggedTensor(np.arange(3), (np.array([0, 3]),)), "a RaggedTensor of several rows"),
        (sparse_tensor([[0], [2]], [7, 8], [3]), "index 2 of a sparse tensor is not the next one"),
        (
            sparse_tensor([[5]], [7], [3]),
            r"the index .5. of a sparse tensor is outside its dense_shape",
        ),
        ([sparse_tensor([[0]], [7], [1])], "a SparseTensor within a list"),
    ],
)
def test_one_list_is_not_a_batch(value: Any, words: str) -> None:
    with pytest.raises(FeatureError, match=f"feature 'x': {words}"):
        encode_example({"x": value})
    assert encode_example({"x": sparse_tensor([[0], [1]], [7, 8], [2])}) == encode_example(
        {"x": [7, 8]}
    )


def test_declared_kinds_hold_for_every_row() -> None:
    batch = encode_examples(
        {"x": [[], [1], [2.5]], "y": [1, 2, 3]}, kinds={"x": np.float32, "y": "float32"}
    )
    found = [kind_and_values(Example.FromString(record).features.feature["x"]) for record in batch]
    assert found == [("float_list", []), ("float_list", [1.0]), ("float_list", [2.5])]
    with pytest.raises(FeatureError, match="record 1, feature 'x': float where int64 is expected"):
        encode_examples({"x": [[1], [0.5]]}, kinds={"x": np.int64})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"a": [1, 2], "b": [1]}, "feature 'b': 1 rows where 2 are expected, as in 'a'"),
        (
            {"a": [[1], [0.5]]},
            "record 1, feature 'a': float32 where int64 is expected, as in the rows before",
        ),
        ({"a": [[1], None]}, "record 1, feature 'a': None where"),
        ({"a": [["b", 2.5]]}, "mixed types: str and float"),
        ({"a": np.array(3)}, "one int64 where a column"),
        ({"a": "abc"}, "a str where a column"),
        ({"a": 3}, "an int where a column"),
        ({"a": None}, "None where a column"),
        ({"a": RaggedTensor(np.arange(3), (np.array([[0, 3]]),))}, "row splits of shape"),
        (
            {"a": sparse_tensor([[0, 0], [0, 2]], [7, 8], [1, 3])},
            "record 0, .*row 0 is not a list .index 2 .*without gaps",
        ),
        ({"a": sparse_tensor([[0, 1], [0, 0]], [7, 8], [1, 2])}, "index 1 is not the next one"),
        ({"a": sparse_tensor([[0, 0], [0, 0]], [7, 8], [1, 2])}, "index 0 is not the next one"),
        (
            {"a": sparse_tensor([[1, 0], [0, 0]], [7, 8], [2, 1])},
            "record 0, feature 'a': sparse values are out of order",
        ),
        (
            {"a": sparse_tensor([[0, 0, 0]], [7], [2, 1, 1])},
            "a sparse tensor has 3 dimensions: it must have 2",
        ),
        ({"a": sparse_tensor([[0, 0]], [7, 8], [2, 1])}, "indices of shape .1, 2., 2 values"),
        ({"a": sparse_tensor([[0, 0]], [7], [-1, 1])}, "a negative size"),
        (
            {"a": sparse_tensor([[0, 0]], [7], [3, 1]), "b": [1]},
            "feature 'b': 1 rows where 3 are expected, as in 'a'",
        ),
        ({"a": BytesColumn.over(b"abc", np.array([[0, 4]]))}, "spans that leave their buffer"),
        ({"a": BytesColumn.over(b"abc", np.array([[2, 1]]))}, "spans that leave their buffer"),
        ({"a": BytesColumn(b"abc", np.array([0, 1]))}, r"spans of shape \[2\]"),
    ],
)
def test_columns_that_cannot_be_encoded_are_refused(columns: dict[str, Any], words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        encode_examples(columns)


@pytest.mark.parametrize("span", [[0, 4], [-1, 2], [2, 1]])
def test_a_batch_of_spans_that_leave_their_buffer_gives_no_record(span: list[int]) -> None:
    with pytest.raises(ValueError, match=r"a span leaves the buffer of 3 bytes|^span 0 is "):
        encode_records(BytesColumn.over(b"abc", np.array([span])))


def test_the_kernel_reports_the_place() -> None:
    kernel = _native.encode_examples
    good = (b"g", 3, np.arange(2), None, 1)
    splits = (b"s", 3, np.arange(2), None, np.array([0, 3, 2]))
    spans = (b"p", 1, b"ab", np.array([[0, 1], [0, 3]]), 1)
    assert kernel((good, splits), 2) == (1, 0, 1, None, None)
    assert kernel((spans,), 2)[0] == 2
    assert kernel((), 2) == (0, 0, 0, b"\n\x00\n\x00", np.array([0, 2, 2, 4]).tobytes())


@pytest.mark.parametrize(
    ("column", "error"),
    [
        ((b"x", 3, b"1234567", None, 1), ValueError),
        ((b"x", 3, np.arange(3), None, 1), ValueError),
        ((b"x", 3, np.arange(2), None, 2**62), ValueError),
        ((b"x", 3, np.arange(2), None, 2**70), OverflowError),
        ((b"x", 3, np.arange(2), None, -1), ValueError),
        ((b"x", 3, np.arange(2), None, np.array([0, 2])), ValueError),
        ((b"x", 3, np.arange(2), None, np.array([], np.int64)), ValueError),
        ((b"x", 4, np.arange(2), None, 1), ValueError),
        ((b"x", 1, [b"a", b"b"], None, 1), TypeError),
        ((b"x", 1, ("a", "b"), None, 1), TypeError),
        ((b"x", 1, b"ab", b"123", 1), ValueError),
        ((b"x", 3, np.arange(4)[::2], None, 1), (ValueError, BufferError)),
        (("x", 3, np.arange(2), None), TypeError),
        ([b"x"], TypeError),
    ],
)
def test_the_native_kernel_refuses_wrong_arguments(column: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.encode_examples((column,), 2)


def test_large_batches_equal_their_records() -> None:
    rng = np.random.default_rng(1)
    numbers, blobs = rng.integers(-(2**62), 2**62, (500, 20)), [rng.bytes(200) for _ in range(500)]
    batch = encode_examples({"a": numbers, "b": blobs})
    wanted = [
        encode_example({"a": row, "b": blob}) for row, blob in zip(numbers, blobs, strict=True)
    ]
    assert list(batch) == wanted
    assert batch[499] == wanted[499]
    assert memoryview(batch.buffer).readonly
    assert list(pickle.loads(pickle.dumps(batch))) == wanted


def test_columns_that_change_meanwhile_never_crash() -> None:
    values, splits = np.zeros(40_000, np.int64), np.arange(0, 40_001, 4)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            values[:] = 2**62
            splits[1:-1:3] = 40_000
            values[:] = 1
            splits[:] = np.arange(0, 40_001, 4)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        codes = {
            _native.encode_examples(((b"x", 3, values, None, splits),), 10_000)[0]
            for _ in range(50)
        }
    finally:
        stop.set()
        writer.join()
    assert codes <= {0, 1, 4}


def test_records_beyond_protobufs_limit() -> None:
    blob = bytes(2**20)
    column = BytesColumn(blob, np.tile(np.array([[0, len(blob)]]), (2048, 1)))
    packed = (b"x", 1, column.buffer, column.spans, 2048)
    assert _native.encode_examples((packed,), 1) == (3, 0, 0, None, None)


def test_sequence_examples() -> None:
    record = encode_sequence_example(
        {"id": 7, "name": "n"},
        {
            "tokens": [[1, 2], [], [3]],
            "frames": np.ones((2, 3), np.float32),
            "words": RaggedTensor(np.array([b"a", b"b"], dtype=object), (np.array([0, 0, 2]),)),
            "blobs": BytesColumn(b"abc", np.array([[0, 1], [1, 3]])),
            "none": [],
        },
        deterministic=True,
    )
    message = SequenceExample.FromString(record)
    assert message.SerializeToString(deterministic=True) == record
    assert kind_and_values(message.context.feature["id"]) == ("int64_list", [7])
    lists = {
        name: [kind_and_values(step) for step in item.feature]
        for name, item in message.feature_lists.feature_list.items()
    }
    assert lists == {
        "tokens": [("int64_list", [1, 2]), ("int64_list", []), ("int64_list", [3])],
        "frames": [("float_list", [1.0] * 3)] * 2,
        "words": [("bytes_list", []), ("bytes_list", [b"a", b"b"])],
        "blobs": [("bytes_list", [b"a"]), ("bytes_list", [b"bc"])],
        "none": [],
    }


def test_sequence_refusals() -> None:
    unsound = RaggedTensor(np.arange(3), (np.array([0, 2, 1, 3]),))
    for context, lists, words in (
        ({}, {"x": [[1], [0.5]]}, "record 1, feature 'x': float32 where int64"),
        ({"c": 0.5}, {}, "feature 'c': float where int64"),
        ({}, {"y": [0.5]}, "feature 'y': float where int64"),
        ({}, {"x": "abc"}, "a str where a column"),
        ({}, {"x": unsound}, "row splits descend"),
    ):
        with pytest.raises(FeatureError, match=words):
            encode_sequence_example(
                context, lists, context_kinds={"c": np.int64}, sequence_kinds={"y": np.int64}
            )
    assert encode_sequence_example({}, {}) == b"\n\x00\x12\x00"
