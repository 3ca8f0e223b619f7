"""parse_example and parse_single_example, on both walkers: what is read and what is refused, byte by byte."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example import messages
from streamrec.example.columns import RaggedTensor
from streamrec.example.encoding.encode import encode_examples
from streamrec.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.parsing.native import NativeWalker
from streamrec.example.parsing.parse import parse_example, parse_single_example, parse_single_with
from streamrec.tfrecord.frames import Frames
from tests.example import wire
from tests.example.compare import assert_same_columns
from tests.example.conftest import WALKERS
from tests.example.parsing.calls import INT, INTS, one, parse
from tests.example.wire import example, feature, field, floats, ints, strings


def values(walker: NativeWalker, record: bytes, dtype: Any = np.int64) -> list[Any]:
    """The values under x."""
    found: list[Any] = one(walker, record, x=VarLenFeature(dtype)).values.tolist()
    return found


def test_the_last_duplicate_counts(walker: NativeWalker) -> None:
    assert values(walker, example(("x", ints(1)), ("y", ints(5)), ("x", ints(2, 3)))) == [2, 3]


def test_an_earlier_duplicate_is_not_looked_at(walker: NativeWalker) -> None:
    assert values(walker, example(("x", floats(1)), ("x", field(3, b"\xff")), ("x", ints(2)))) == [2]


def test_an_empty_duplicate_counts_in_batches_of_var_len_only(walker: NativeWalker) -> None:
    record = example(("x", ints(1)), ("x", b""))
    assert values(walker, record) == [1]
    assert parse(walker, [record], INT)["x"].tolist() == [1]
    assert parse(walker, [record], INTS)["x"].values.tolist() == []
    padded = FixedLenSequenceFeature([], np.int64, allow_missing=True)
    assert parse(walker, [record], {"x": padded})["x"].tolist() == [[1]]


def test_features_messages_are_merged(walker: NativeWalker) -> None:
    assert values(walker, example(("y", ints(1))) + example(("x", ints(2)))) == [2]


def test_packed_and_unpacked(walker: NativeWalker) -> None:
    many = list(range(200))
    assert values(walker, example(("x", feature(np.int64, many, packed=False)))) == many
    assert values(walker, example(("x", feature(np.int64, many)))) == many
    assert values(walker, example(("x", feature(np.float32, [1, 2], packed=False))), np.float32) == [1, 2]


def test_of_several_lists_the_first_counts(walker: NativeWalker) -> None:
    assert values(walker, example(("x", ints(1) + ints(2)))) == [1]
    assert values(walker, example(("x", ints(1) + floats(2)))) == [1]
    runs = field(3, field(1, b"\x01") + field(1, b"\x02"))
    assert values(walker, example(("x", runs))) == [1]


def test_unknown_fields_at_the_top_are_skipped(walker: NativeWalker) -> None:
    for unknown in (
        b"\x10\x05",
        b"\x1d\1\2\3\4",
        b"\x11" + bytes(8),
        b"\x1a\x03abc",
        b"\xfa\x7f\x01z",
        b"\0\7",
    ):
        assert values(walker, unknown + example(("x", ints(2))) + unknown) == [2]


@pytest.mark.parametrize(
    "record",
    [
        b"\x0b",  # a group
        b"\x12",  # no length
        b"\x11" + bytes(7),  # a short fixed64
        field(1, b"\x10\x05"),  # an unknown field among the entries
        field(1, field(1, field(1, b"x"))),  # an entry with a key only
        field(1, field(1, field(1, b"x") + field(2, b"") + b"\x18\x01")),  # an entry with a third field
        field(1, field(1, field(1, b"x") + b"\x12\x7f")),  # a value that runs past its entry
        field(1, field(1, b"\x0a\x80")),  # a varint without an end
        b"\x0a" + b"\xff" * 10 + b"\x01",  # a varint without measure
    ],
)
def test_damaged_messages(walker: NativeWalker, record: bytes) -> None:
    with pytest.raises(FeatureError, match="record 1: the bytes are not a serialized message"):
        parse(walker, [b"", record], {"x": VarLenFeature(np.int64)})


@pytest.mark.parametrize(
    ("dtype", "damaged"),
    [
        (np.int64, b"\x1a\x03\x0a\x01\x80"),  # a varint without an end
        (np.int64, b"\x1a\x02\x10\x01"),  # another field
        (np.int64, b"\x1a\x02\x08"),  # no value behind a tag
        (np.float32, b"\x12\x05\x0a\x04abc"),  # packed floats cut off
        (np.float32, b"\x12\x04\x0dabc"),  # an unpacked float cut off
        (bytes, b"\x0a\x03\x0a\x02a"),  # a string that runs past its list
        (bytes, b"\x0a\x02\x10\x01"),  # another field
        (bytes, b"\x0a"),  # no length
    ],
)
def test_damaged_values(walker: NativeWalker, dtype: Any, damaged: bytes) -> None:
    with pytest.raises(FeatureError, match=r"record 0, feature 'x': the .* values are damaged"):
        parse(walker, [example(("x", damaged))], {"x": VarLenFeature(dtype)})


def test_a_length_past_the_end_is_cut(walker: NativeWalker) -> None:
    assert values(walker, example(("x", b"\x1a\x7f\x0a\x7f\x05"))) == [5]
    assert values(walker, example(("x", b"\x12\x7f\x0a\x07" + bytes(7))), np.float32) == [0]


def test_kinds_are_told(walker: NativeWalker) -> None:
    record = example(("x", floats(1.5)))
    with pytest.raises(FeatureError, match="found float32 values where int64 is wanted") as raised:
        parse(walker, [example(("x", ints(1))), record], INT, ["first", "second"])
    error = raised.value
    assert (error.record, error.feature, error.example) == (1, "x", "second")
    assert str(error).startswith("example 'second', record 1, feature 'x': ")
    with pytest.raises(FeatureError, match="found an unknown kind of values where bytes"):
        parse(walker, [example(("x", b"\x22\x00"))], {"x": VarLenFeature(bytes)})
    with pytest.raises(FeatureError, match=r"^feature 'x': found float32 values") as raised:  # one has no number
        parse(walker, record, INT)
    assert raised.value.record is None


def test_an_unknown_kind_is_an_error_only_where_it_is_asked_for(walker: NativeWalker) -> None:
    assert values(walker, example(("y", b"\x22\x00"), ("x", ints(1)))) == [1]
    with pytest.raises(FeatureError, match="unknown kind"):
        values(walker, example(("x", b"\x22\x00"), ("x", ints(1))))


@pytest.mark.parametrize(
    ("config", "value", "message"),
    [
        (FixedLenFeature([2], np.int64), ints(1), r"found 1 values where the shape \[2\] wants 2"),
        (FixedLenFeature([2], np.int64), ints(*range(99)), r"found 99 values where the shape \[2\] wants 2"),
        (FixedLenFeature([2], np.float32), floats(), r"found 0 values where the shape \[2\] wants 2"),
        (FixedLenFeature([], np.float32), feature(np.float32, [1] * 9, packed=False), "found 9 values"),
        (FixedLenFeature([2], bytes), strings(b"a"), r"found 1 values where the shape \[2\] wants 2"),
        (
            FixedLenSequenceFeature([2], np.int64, True),
            ints(1, 2, 3),
            r"wants a multiple of 2",
        ),
    ],
)
def test_counts_are_told(walker: NativeWalker, config: Feature, value: bytes, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        one(walker, example(("x", value)), x=config)


def test_every_form_of_serialized(walker: NativeWalker) -> None:
    records = [example(("x", ints(n))) for n in range(3)]
    objects = np.array(records, dtype=object)
    ends = np.cumsum([len(record) + 16 for record in records])
    starts = ends - [len(record) for record in records]
    framed = b"".join(bytes(16) + record for record in records)
    frames = SimpleNamespace(buffer=framed, spans=np.stack([starts, ends], axis=1))
    batch = encode_examples({"x": np.arange(3)})
    for serialized in (records, tuple(records), iter(records), objects, frames, Frames.of(records), batch):
        assert parse(walker, serialized, INT)["x"].tolist() == [0, 1, 2]
    for scalar in (records[2], memoryview(records[2]), bytearray(records[2]), objects[2:].reshape(())):
        assert parse(walker, scalar, INT)["x"].item() == 2
        assert parse_single_with(walker, scalar, INT, "name", False)["x"].item() == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("serialized", "error", "message"),
    [
        (["text"], TypeError, "str where bytes"),
        (None, TypeError, "NoneType where messages are wanted"),
        ("text", TypeError, "str where messages are wanted"),
        (np.array([b"a\0"]), TypeError, "trailing NULs"),
        (np.array([[b"a"]], dtype=object), FeatureError, "must be a vector"),
        (SimpleNamespace(buffer=b"abc", spans=np.array([[0, 4]])), ValueError, "leaves a buffer of 3 bytes"),
        (SimpleNamespace(buffer=b"abc", spans=np.array([[2, 1]])), ValueError, "leaves a buffer of 3 bytes"),
    ],
)
def test_serialized_that_is_refused(
    walker: NativeWalker, serialized: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        parse(walker, serialized, INTS)


def test_names_must_fit() -> None:
    with pytest.raises(FeatureError, match=r"2 names, one for each example"):
        parse_example([b"", b""], INTS, ["one"])
    with pytest.raises(FeatureError, match="it must be a str"):
        parse_single_example(b"", INTS, ["one"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="one message is bytes"):
        parse_single_example([b""], INTS)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({}, "describe at least one"),
        ({"x": FixedLenSequenceFeature([], np.int64)}, "allow_missing=True"),
        ({"x": "int64"}, "str where one of VarLenFeature"),
        ({"x": ["int64"]}, "list where one of VarLenFeature"),
        ({3: VarLenFeature(np.int64), "x": VarLenFeature(np.int64)}, "it must be a str"),
        ({"\ud800": VarLenFeature(np.int64)}, "no UTF-8 form"),
        ({"x": VarLenFeature(bytes), "s": SparseFeature("x", "v", bytes, 3)}, "different dtypes"),
        ({"x": VarLenFeature(bytes), "r": RaggedFeature(bytes, "x")}, "different forms"),
        ({"x": FixedLenFeature([], bytes), "r": RaggedFeature(bytes, "x")}, "different forms"),
        (
            {"x": RaggedFeature(bytes), "r": RaggedFeature(bytes, "x", row_splits_dtype=np.int64)},
            "row_splits_dtypes",
        ),
    ],
)
def test_descriptions_that_are_refused(features: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        parse_example([b""], features)


numbers = st.lists(st.integers(-(2**63), 2**63 - 1))

reals = st.lists(st.floats(width=32))


@given(st.lists(st.tuples(numbers, reals, st.lists(st.binary())), max_size=5))
def test_what_protobuf_writes_is_read(rows: list[tuple[list[int], list[float], list[bytes]]]) -> None:
    """On well-formed messages the walkers read what protobuf reads."""
    records = []
    for ints_, floats_, strings_ in rows:
        message = messages.Example()
        message.features.feature["i"].int64_list.value.extend(ints_)
        message.features.feature["f"].float_list.value.extend(floats_)
        message.features.feature["s"].bytes_list.value.extend(strings_)
        records.append(message.SerializeToString())
    features: dict[str, Feature] = {
        "i": RaggedFeature(np.int64),
        "f": RaggedFeature(np.float32),
        "s": RaggedFeature(bytes),
    }
    for walker in WALKERS.values():
        found = parse(walker, records, features)
        for name, place in (("i", 0), ("f", 1), ("s", 2)):
            tensor = found[name]
            assert isinstance(tensor, RaggedTensor)
            wanted = [value for row in rows for value in row[place]]
            np.testing.assert_array_equal(tensor.flat_values.tolist(), wanted)  # type: ignore[union-attr]
            assert np.diff(tensor.nested_row_splits[0]).tolist() == [len(row[place]) for row in rows]


def test_threads_share_a_description() -> None:
    records = [example(("x", ints(n)), ("s", strings(b"%d" % n))) for n in range(2000)]
    features: dict[str, Feature] = {"x": FixedLenFeature([], np.int64), "s": VarLenFeature(bytes)}
    wanted, failures = parse_example(records, features), []

    def work() -> None:
        try:
            for _ in range(5):
                assert_same_columns(parse_example(records, features), wanted)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_wire_forms_agree_with_protobuf() -> None:
    """The tests' own writer writes what protobuf reads."""
    record = example(("i", ints(1, -1)), ("s", strings(b"a")), ("f", wire.feature(np.float32, [1.5], False)))
    message = messages.Example.FromString(record)
    assert list(message.features.feature["i"].int64_list.value) == [1, -1]
    assert list(message.features.feature["s"].bytes_list.value) == [b"a"]
    assert list(message.features.feature["f"].float_list.value) == [1.5]


@pytest.mark.parametrize(
    ("wanted", "value", "advice"),
    [
        (np.float32, 7, "found int64 values where float32 is wanted: write np.int64 as the feature's dtype"),
        (bytes, 0.5, "found float32 values where bytes is wanted: write np.float32 as the feature's dtype"),
        (np.int64, b"x", "found bytes values where int64 is wanted: write bytes as the feature's dtype"),
    ],
)
def test_the_dtype_that_the_file_has_is_named(wanted: Any, value: Any, advice: str) -> None:
    with pytest.raises(FeatureError, match=advice):
        parse_example(encode_examples({"x": [value]}), {"x": FixedLenFeature([], wanted)})
