"""BytesColumn: strings that stay in the buffer, alone and as parsing gives them."""

import pickle
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.columns import BytesColumn
from streamrec.example.features import Feature
from streamrec.example.parse import parse_example, parse_sequence_example
from tests.example.compare import assert_same_columns, materialised
from tests.example.wire import example, ints, sequence, strings

pytestmark = pytest.mark.usefixtures("walk")
BUFFER = b"onetwothree"
SPANS = np.array([[0, 3], [3, 6], [6, 11], [11, 11]])


def test_indexing() -> None:
    column = BytesColumn(BUFFER, SPANS)
    assert len(column) == 4
    assert list(column) == [b"one", b"two", b"three", b""]
    assert column[-2] == b"three"
    assert list(column[1:3]) == [b"two", b"three"]
    assert list(column[[2, 0]]) == [b"three", b"one"]
    assert list(column[column.lengths == 3]) == [b"one", b"two"]
    with pytest.raises(IndexError):
        column[4]


def test_more_dimensions() -> None:
    column = BytesColumn(BUFFER, SPANS).reshape(2, 2)
    assert column.shape == (2, 2)
    assert column[1, 0] == b"three"
    assert list(column[0]) == [b"one", b"two"]
    assert list(column[:, 1]) == [b"two", b""]
    assert column.to_numpy().tolist() == [[b"one", b"two"], [b"three", b""]]
    assert np.asarray(column).shape == (2, 2)
    assert repr(column) == "BytesColumn(shape=[2, 2], bytes=11)"


def test_a_scalar_string_column_converts_to_bytes_and_has_no_length() -> None:
    column = BytesColumn(BUFFER, np.array([3, 6]))
    assert column.shape == ()
    assert column[()] == b"two"
    assert column.to_numpy().item() == b"two"
    with pytest.raises(TypeError, match="no length"):
        len(column)


@pytest.mark.parametrize("spans", [0, [0, 1, 2], [[0, 1, 2]], [[-1, 2]], [[2, 1]], [[0, 12]]])
def test_spans_that_are_refused(spans: Any) -> None:
    with pytest.raises(ValueError, match="span"):
        BytesColumn(BUFFER, np.array(spans))


@given(st.lists(st.binary(max_size=40)))
def test_an_arrow_array_has_the_strings_of_a_column(items: list[bytes]) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    ends = np.cumsum([len(item) + 3 for item in items], dtype=np.int64)
    starts = ends - np.array([len(item) for item in items], dtype=np.int64)
    spans = np.stack([starts, ends], axis=1)
    column = BytesColumn(b"".join(b"..." + item for item in items), spans)
    array = pyarrow.array(column)
    array.validate(full=True)
    assert array.type == pyarrow.large_binary()
    assert array.to_pylist() == items


RECORDS = [
    example(
        ("s", strings(b"a\0", b"bb")), ("v", strings(b"v")), ("i", ints(3)), ("d", strings(b"here"))
    ),
    example(("s", strings(b"", b"c")), ("v", strings(b"x", b"y")), ("i", ints(1, 0))),
]
FEATURES: dict[str, Feature] = {
    "s": FixedLenFeature([2], bytes),
    "d": FixedLenFeature([], bytes, "default"),
    "e": FixedLenFeature([1], bytes, [""]),
    "q": FixedLenSequenceFeature([], bytes, allow_missing=True, default_value="pad"),
    "sp": SparseFeature("i", "v", bytes, 5),
    "i": VarLenFeature(np.int64),
}
OTHER_FEATURES: dict[str, Feature] = {
    "v": RaggedFeature(bytes),
    "s": FixedLenSequenceFeature([], bytes, allow_missing=True, default_value="pad"),
}


def as_frames(records: list[bytes]) -> Any:
    ends = np.cumsum([len(record) + 16 for record in records])
    spans = np.stack([ends - [len(record) for record in records], ends], axis=1)
    return SimpleNamespace(buffer=b"".join(bytes(16) + record for record in records), spans=spans)


def as_scattered(records: list[bytes]) -> Any:
    """The records as they lie in many buffers, of which some overlap, and some hold nothing."""
    whole = b"".join(bytes(4) + record for record in records) + bytes(4)
    ends = np.cumsum([len(record) + 4 for record in records])
    rows = np.zeros((len(records), 4), np.int64)
    buffers: list[Any] = []
    for index, (record, end) in enumerate(zip(records, ends.tolist(), strict=True)):
        buffers += [b"", memoryview(whole)[end - len(record) - index % 4 :]]
        rows[index] = index % 4, index % 4 + len(record), len(buffers) - 1 << 32, 99
    return SimpleNamespace(buffers=buffers, places=rows)


def assert_same_strings(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert_same_columns({name: materialised(column) for name, column in found.items()}, wanted)


@pytest.mark.parametrize("features", [FEATURES, OTHER_FEATURES])
def test_columns_hold_the_same_strings(features: dict[str, Feature]) -> None:
    wanted = parse_example(RECORDS, features)
    for serialized in (RECORDS, as_frames(RECORDS), as_scattered(RECORDS)):
        assert_same_strings(parse_example(serialized, features, string_columns=True), wanted)


def test_columns_point_into_the_reader_s_buffer() -> None:
    frames = as_frames(RECORDS)
    found = parse_example(frames, {**FEATURES, "v": VarLenFeature(bytes)}, string_columns=True)
    assert found["s"].shape == (2, 2)
    assert found["s"].buffer.obj is frames.buffer
    assert found["v"].values.buffer.obj is frames.buffer
    assert found["e"].buffer.obj is frames.buffer  # an empty default needs no copy
    assert found["d"].buffer.obj is not frames.buffer  # "default" is not in the buffer
    assert isinstance(found["i"].values, np.ndarray)


LONG = [
    example(("s", strings(bytes([value]) * 500, b"%d" % value)), ("w", strings(b"%d" % value)))
    for value in range(9)
]
WIDE: dict[str, Feature] = {"s": FixedLenFeature([2], bytes), "w": FixedLenFeature([], bytes)}


def test_long_strings_stay_in_many_buffers_and_others_are_copied_out() -> None:
    serialized = as_scattered(LONG)
    found = parse_example(serialized, WIDE, string_columns=True)
    wanted = parse_example(LONG, WIDE)
    column, words = found["s"], found["w"]
    assert column.is_scattered
    assert [buffer.obj for buffer in column.buffers[1::2]] == [
        buffer.obj for buffer in serialized.buffers[1::2]
    ]
    assert not words.is_scattered, "a word of each record would keep all of it alive"
    assert words.buffer.nbytes == 9
    assert_same_strings(found, wanted)


def test_a_column_over_many_buffers_is_one_like_any_other() -> None:
    column = parse_example(as_scattered(LONG), WIDE, string_columns=True)["s"]
    assert column.is_scattered
    plain = column.to_numpy()
    assert column.shape == plain.shape == (9, 2)
    assert column.nbytes == sum(map(len, plain.flat)) == 9 * 501
    assert column[3, 1] == plain[3, 1]
    for index in (4, slice(2, 7, 2), [5, 1], (slice(None), 0), plain == b"7"):
        part = column[index]
        assert isinstance(part, BytesColumn)
        assert part.is_scattered
        assert part.to_numpy().tolist() == plain[index].tolist()
    assert column.reshape(3, 6).to_numpy().tolist() == plain.reshape(3, 6).tolist()
    assert [list(row) for row in column] == plain.tolist()
    assert repr(column) == "BytesColumn(shape=[9, 2], bytes=4,509)"
    flat = column.reshape(18)
    assert flat.buffer.obj is flat.buffer.obj, "it is joined once"
    assert flat.buffer.nbytes == column.nbytes
    assert list(BytesColumn(flat.buffer, flat.spans)) == plain.ravel().tolist()
    assert column.spans.shape == (9, 2, 2)
    compact = column.compact()
    assert not compact.is_scattered
    assert compact.to_numpy().tolist() == plain.tolist()
    pyarrow = pytest.importorskip("pyarrow")
    assert pyarrow.array(flat).to_pylist() == plain.ravel().tolist()


def test_nothing_over_many_buffers() -> None:
    found = parse_example(as_scattered([]), {**WIDE, **OTHER_FEATURES}, string_columns=True)
    assert_same_strings(found, parse_example([], {**WIDE, **OTHER_FEATURES}))
    words = found["w"]
    assert (words.spans.shape, words.compact().shape) == ((0, 2), (0,))


@settings(deadline=None)
@given(
    st.lists(st.lists(st.binary(max_size=80), max_size=4), max_size=6),
    st.sampled_from([VarLenFeature(bytes), RaggedFeature(bytes), OTHER_FEATURES["s"]]),
)
def test_any_strings_over_many_buffers(values: list[list[bytes]], feature: Feature) -> None:
    records = [example(("s", strings(*each))) for each in values]
    found = parse_example(as_scattered(records), {"s": feature}, string_columns=True)
    assert_same_strings(found, parse_example(records, {"s": feature}))


def test_compact_keeps_the_strings_alone() -> None:
    column = BytesColumn(BUFFER, SPANS)[1:3].compact()
    assert (bytes(column.buffer), column.spans.tolist()) == (b"twothree", [[0, 3], [3, 8]])


@pytest.mark.parametrize(
    "feature", [VarLenFeature(bytes), RaggedFeature(bytes), FixedLenSequenceFeature([], bytes)]
)
def test_strings_of_sequences(feature: Feature) -> None:
    steps = [[strings(b"a\0" * 50), strings(b"b")], [], [strings(b"c" * 9)]]
    records = [
        sequence([("c", strings(b"c\0"))] if number else [], [("w", each)])
        for number, each in enumerate(steps)
    ]
    context: dict[str, Feature] = {"c": FixedLenFeature([], bytes, "none")}
    wanted = parse_sequence_example(records, context, {"w": feature})
    for serialized in (as_frames(records), as_scattered(records)):
        found = parse_sequence_example(serialized, context, {"w": feature}, string_columns=True)
        for part, other in zip(found[:2], wanted[:2], strict=True):
            assert_same_strings(part, other)


def test_object_arrays_pickle() -> None:
    found = parse_example(RECORDS, FEATURES)
    assert_same_columns(pickle.loads(pickle.dumps(found)), found)
