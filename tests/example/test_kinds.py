"""Which message a record is: an Example only if nothing else is in it."""

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import FeatureError, encode_example, encode_sequence_example, infer_features
from streamrec.example import ExampleListWithContext, describe_other, kind_of
from tests.effort import drawn_examples
from tests.example.wire import feature, field, ints, varint

OTHER_FIELDS = [
    varint(15 << 3) + b"\x05",
    varint(9 << 3 | 1) + struct.pack("<d", 0.5),
    field(7, b"hello"),
    varint(2000 << 3 | 5) + b"abcd",
]
"""A field of each wire type, with numbers that no message of an Example has."""

LEVELS = ["Example", "Features", "entry", "Feature", "Int64List"]


def nested(levels: Sequence[str], place: str | None, other: bytes) -> bytes:
    """An Example `a: [1]`, with another field in one of its messages."""
    data = field(1, b"\x01")
    for level in reversed(levels):
        if level == place:
            data += other
        if level == "Int64List":
            data = field(3, data)
        elif level == "Feature":
            data = field(1, b"a") + field(2, data)
        elif level != "Example":
            data = field(1, data)
    return data


@pytest.mark.parametrize("other", OTHER_FIELDS, ids=["varint", "double", "bytes", "float"])
@pytest.mark.parametrize("level", LEVELS)
def test_field_at_any_level_makes_it_no_example(level: str, other: bytes) -> None:
    assert kind_of(nested(LEVELS, None, b"")) == "example"
    record = nested(LEVELS, level, other)
    assert kind_of(record) == "bytes"
    said = describe_other(record)
    assert f"{len(record):,} bytes, an Example ('a') with something else in it: field " in said
    with pytest.raises(FeatureError, match=r"record 1: .*something else in it"):
        infer_features([encode_example({"a": 1}), record])


def test_fields_of_a_sequence_example_and_an_example_list_count_too() -> None:
    record = encode_sequence_example({"id": 1}, {"x": [1, 2]})
    steps = field(1, ints(1) + OTHER_FIELDS[0])
    lists = field(2, field(1, field(1, b"x") + field(2, steps)))
    assert kind_of(record) == "sequence_example"
    assert kind_of(record + OTHER_FIELDS[2]) == kind_of(lists) == "bytes"
    query = ExampleListWithContext()
    query.context.features.feature["q"].int64_list.value.append(1)
    query.examples.add().features.feature["d"].bytes_list.value.append(b"text")
    data = query.SerializeToString()
    assert kind_of(data) == "example_list"
    assert kind_of(data + OTHER_FIELDS[1]) == "bytes"


def test_fields_that_protobuf_would_drop_mean_that_bytes_are_not_an_example() -> None:
    kinds = field(1, field(1, field(1, b"a") + field(2, feature(bytes, [b"x"]) + ints(1))))
    names = field(1, field(1, field(1, b"first") + field(1, b"second") + field(2, ints(1))))
    assert kind_of(kinds) == kind_of(names) == "bytes"
    assert "several kinds of values in the feature 'a'" in describe_other(kinds)
    assert "2 names of one feature, 'second'" in describe_other(names)
    step = field(1, feature(np.float32, [0.5]) + ints(1))
    assert kind_of(field(2, field(1, field(1, b"x") + field(2, step)))) == "bytes"


SCENARIO = b"".join(b"\x09" + struct.pack("<d", number / 10) for number in range(91))
SCENARIO += field(2, b"\x08\x05" + field(2, b"\x11" + struct.pack("<d", 1.0))) + field(5, b"id-1")
NODE = field(1, b"x") + field(2, b"Const") + field(5, field(1, b"dtype") + field(2, b"\x30\x01"))
GRAPH = field(1, NODE) * 3 + field(4, b"\x08\x19")
TENSOR = b"\x08\x01" + field(2, field(2, b"\x08\x02")) + field(4, bytes(8))
WORDS = field(1, b"first") + field(1, b"second")


@pytest.mark.parametrize(
    ("record", "numbers"),
    [(SCENARIO, "1, 2, 5"), (GRAPH, "1, 4"), (TENSOR, "1, 2, 4")],
    ids=["scenario", "graph", "tensor"],
)
def test_other_message_types_are_named_by_their_fields(record: bytes, numbers: str) -> None:
    assert kind_of(record) == "bytes"
    wanted = f"of another message type, with the fields {numbers}, not an Example"
    assert describe_other(record) == f"{len(record):,} bytes {wanted}"


def test_lists_of_words_and_text_are_no_examples() -> None:
    assert kind_of(WORDS) == kind_of(field(1, WORDS)) == kind_of(b"plain text") == "bytes"
    assert kind_of(field(1, field(1, WORDS))) == "bytes"


def test_a_name_that_occurs_twice_is_still_an_example() -> None:
    """Protobuf allows it for a map; parsers and TensorFlow take the last one."""
    entry = field(1, field(1, b"a") + field(2, ints(1)))
    assert kind_of(field(1, entry + entry)) == kind_of(field(1, entry) * 2) == "example"
    assert kind_of(field(1, field(1, field(2, ints(1))))) == "example"  # the name "" is left out


def test_infer_features_takes_no_sequence_example_for_an_example() -> None:
    record = encode_sequence_example({"id": 1}, {"x": [1, 2]})
    with pytest.raises(FeatureError, match='SequenceExample: give kind="sequence_example"'):
        infer_features([record])


VALUES = (
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)
    | st.lists(st.floats(width=32), min_size=1, max_size=3)
    | st.lists(st.binary(max_size=5), min_size=1, max_size=3)
)


@given(st.dictionaries(st.text(max_size=5), VALUES, min_size=1, max_size=4), st.data())
@drawn_examples(200)
def test_every_example_is_one_and_with_a_field_more_is_not(
    values: dict[str, list[object]], data: st.DataObject
) -> None:
    kinds = {name: "int64" for name, each in values.items() if not each}
    record = encode_example(values, kinds=kinds)
    assert kind_of(record) == "example"
    number = data.draw(st.integers(2, 1 << 20))
    assert (
        kind_of(record + field(number, data.draw(st.binary(min_size=1, max_size=9)))) != "example"
    )
