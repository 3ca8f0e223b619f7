"""parse_example and parse_single_example, by both walks: what is read and refused, and the columns
of each feature.
"""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from streamrec import (
    Dataset,
    FeatureError,
    Frames,
    encode_examples,
    parse_example,
    parse_single_example,
)
from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.features import Feature
from tests.example.compare import assert_same_columns
from tests.example.parsing.test_parse_strings import as_frames
from tests.example.wire import example, feature, field, floats, ints, strings
from tests.runs import in_new_interpreter

pytestmark = pytest.mark.usefixtures("walk")
INT: dict[str, Feature] = {"x": FixedLenFeature([], np.int64)}
INTS: dict[str, Feature] = {"x": VarLenFeature(np.int64)}


def parse_one(record: bytes, **features: Feature) -> Any:
    (column,) = parse_single_example(record, features).values()
    return column


def parse_values(record: bytes, dtype: Any = np.int64) -> list[Any]:
    found: list[Any] = parse_one(record, x=VarLenFeature(dtype)).values.tolist()
    return found


def test_an_optional_feature_that_no_record_has_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Each record would give the default of a misspelt name. A name that some record has is not
    named.
    """
    wrong, batch = (
        f"label{uuid4().hex}",
        [example(("label", ints(1)), ("rare", ints(1))), example(("label", ints(2)))],
    )
    wanted: dict[str, Feature] = {
        wrong: FixedLenFeature([], np.int64, 0),
        "rare": VarLenFeature(np.int64),
    }
    for _ in range(499):
        parse_example(batch, wanted)
    assert not caplog.messages
    for _ in range(3):
        parse_example(batch, wanted)
    message = (
        f"no record so far has the feature '{wrong}': is that its name? The records have 'label', "
        "'rare'"
    )
    assert caplog.messages == [message]
    every = wanted | {"label": FixedLenFeature([], np.int64)}
    dataset = Dataset.from_tensor_slices(batch).batch(2).parse_example(every)
    assert len(list(dataset)) == 1  # all that the records have is described
    dataset = (
        Dataset.from_tensor_slices(batch)
        .batch(2)
        .parse_example({f"2{wrong}": FixedLenFeature([], np.int64, 0)})
    )
    assert len(list(dataset)) == 1
    assert caplog.messages == [message, message.replace(wrong, f"2{wrong}")]


@pytest.mark.parametrize("form", ["VarLenFeature(int)", "FixedLenSequenceFeature([], int, True)"])
def test_optional_features_with_values_are_noted_without_protobuf(form: str) -> None:
    """Importing protobuf took 25 ms of a process's first batch; a default tells nothing."""
    program = f"""
import sys
from streamrec import parse_example
from streamrec.example import FixedLenFeature, FixedLenSequenceFeature, VarLenFeature
records = [bytes.fromhex(sys.argv[1])]
parse_example(records, {{"x": {form}}})
before = "google.protobuf" in sys.modules
parse_example(records, {{"x": {form}, "y": FixedLenFeature([], int, 0)}})
print(before, "google.protobuf" in sys.modules)
"""
    record = example(("x", ints(1)), ("y", ints(2)))
    assert in_new_interpreter(program, record.hex()).split() == ["False", "True"]


def test_an_optional_feature_that_is_always_empty_is_not_named_as_absent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = f"x{uuid4().hex}"
    batch = [example((name, ints()), ("label", ints(1)))]
    for _ in range(1001):
        parse_example(batch, {name: VarLenFeature(np.int64)})
    assert not caplog.messages


def test_an_earlier_duplicate_is_not_looked_at() -> None:
    assert parse_values(example(("x", floats(1)), ("x", field(3, b"\xff")), ("x", ints(2)))) == [2]


def test_an_empty_duplicate_counts_in_batches_of_var_len_only() -> None:
    record = example(("x", ints(1)), ("x", b""))
    assert parse_values(record) == [1]
    assert parse_example([record], INT)["x"].tolist() == [1]
    assert parse_example([record], INTS)["x"].values.tolist() == []
    padded = FixedLenSequenceFeature([], np.int64, allow_missing=True)
    assert parse_example([record], {"x": padded})["x"].tolist() == [[1]]


def test_of_several_lists_the_first_counts() -> None:
    assert parse_values(example(("x", ints(1) + ints(2)))) == [1]
    assert parse_values(example(("x", ints(1) + floats(2)))) == [1]
    runs = field(3, field(1, b"\x01") + field(1, b"\x02"))
    assert parse_values(example(("x", runs))) == [1]


@pytest.mark.parametrize(
    "record",
    [
        b"\x0b",  # a group
        b"\x11" + bytes(7),  # a short fixed64
        field(1, field(1, field(1, b"x"))),  # an entry with a key only
        field(1, field(1, field(1, b"x") + b"\x12\x7f")),  # a value that runs past its entry
        b"\x0a" + b"\xff" * 10 + b"\x01",  # a varint without measure
    ],
)
def test_damaged_messages(record: bytes) -> None:
    with pytest.raises(FeatureError, match="record 1: the bytes are not a serialized message"):
        parse_example([b"", record], {"x": VarLenFeature(np.int64)})


@pytest.mark.parametrize(
    ("dtype", "damaged"),
    [
        (np.int64, b"\x1a\x03\x0a\x01\x80"),  # a varint without an end
        (np.float32, b"\x12\x05\x0a\x04abc"),  # packed floats cut off
        (bytes, b"\x0a\x03\x0a\x02a"),  # a string that runs past its list
    ],
)
def test_damaged_values(dtype: Any, damaged: bytes) -> None:
    with pytest.raises(FeatureError, match=r"record 0, feature 'x': the .* values are damaged"):
        parse_example([example(("x", damaged))], {"x": VarLenFeature(dtype)})


def test_a_length_past_the_end_is_cut() -> None:
    assert parse_values(example(("x", b"\x1a\x7f\x0a\x7f\x05"))) == [5]
    assert parse_values(example(("x", b"\x12\x7f\x0a\x07" + bytes(7))), np.float32) == [0]


def test_a_feature_of_another_kind_is_an_error_with_both_kinds() -> None:
    record = example(("x", floats(1.5)))
    with pytest.raises(
        FeatureError, match="found float32 values where int64 is expected"
    ) as raised:
        parse_example([example(("x", ints(1))), record], INT, ["first", "second"])
    error = raised.value
    assert (error.record, error.feature, error.example) == (1, "x", "second")
    assert str(error).startswith("example 'second', record 1, feature 'x': ")
    with pytest.raises(FeatureError, match="found an unknown kind of values where bytes"):
        parse_example([example(("x", b"\x22\x00"))], {"x": VarLenFeature(bytes)})
    with pytest.raises(
        FeatureError, match=r"^feature 'x': found float32 values"
    ) as raised:  # one has no number
        parse_example(record, INT)
    assert raised.value.record is None


@pytest.mark.parametrize(
    ("config", "value", "message"),
    [
        (FixedLenFeature([2], np.int64), ints(1), r"found 1 values where the shape \[2\] needs 2"),
        (
            FixedLenFeature([2], np.int64),
            ints(*range(99)),
            r"found 99 values where the shape \[2\] needs 2",
        ),
        (
            FixedLenFeature([2], np.float32),
            floats(),
            r"found 0 values where the shape \[2\] needs 2",
        ),
        (
            FixedLenFeature([], np.float32),
            feature(np.float32, [1] * 9, packed=False),
            "found 9 values",
        ),
        (
            FixedLenFeature([2], bytes),
            strings(b"a"),
            r"found 1 values where the shape \[2\] needs 2",
        ),
        (FixedLenSequenceFeature([2], np.int64, True), ints(1, 2, 3), r"needs a multiple of 2"),
    ],
)
def test_counts_are_reported(config: Feature, value: bytes, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        parse_one(example(("x", value)), x=config)


def test_every_form_of_serialized() -> None:
    records = [example(("x", ints(n))) for n in range(3)]
    objects = np.array(records, dtype=object)
    frames = as_frames(records)
    batch = encode_examples({"x": np.arange(3)})
    for serialized in (
        records,
        tuple(records),
        iter(records),
        objects,
        frames,
        Frames.of(records),
        batch,
    ):
        assert parse_example(serialized, INT)["x"].tolist() == [0, 1, 2]
    for scalar in (
        records[2],
        memoryview(records[2]),
        bytearray(records[2]),
        objects[2:].reshape(()),
    ):
        assert parse_example(scalar, INT)["x"].item() == 2
        assert parse_single_example(scalar, INT, "name")["x"].item() == 2  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("serialized", "error", "message"),
    [
        (["text"], TypeError, "str where bytes"),
        (None, TypeError, "None where messages are expected"),
        ("text", TypeError, "str where messages are expected"),
        (np.array([b"a\0"]), TypeError, "trailing NULs"),
        (np.array([[b"a"]], dtype=object), FeatureError, "must be a vector"),
        (
            SimpleNamespace(buffer=b"abc", spans=np.array([[0, 4]])),
            ValueError,
            "leaves a buffer of 3 bytes",
        ),
        (
            SimpleNamespace(buffer=b"abc", spans=np.array([[2, 1]])),
            ValueError,
            "leaves a buffer of 3 bytes",
        ),
    ],
)
def test_serialized_that_is_refused(serialized: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        parse_example(serialized, INTS)


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
        ({"x": "int64"}, r"'int64' \(str\) where one of VarLenFeature"),
        ({"x": ["int64"]}, r"\(list\) where one of VarLenFeature"),
        ({3: VarLenFeature(np.int64), "x": VarLenFeature(np.int64)}, "it must be a str"),
        ({"\ud800": VarLenFeature(np.int64)}, "cannot be encoded as UTF-8"),
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


def test_threads_share_a_description() -> None:
    records = [example(("x", ints(n)), ("s", strings(b"%d" % n))) for n in range(2000)]
    features: dict[str, Feature] = {"x": FixedLenFeature([], np.int64), "s": VarLenFeature(bytes)}
    wanted = parse_example(records, features)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: parse_example(records, features), range(20)):
            assert_same_columns(found, wanted)


@pytest.mark.parametrize(
    ("wanted", "value", "has", "advice"),
    [
        (np.float32, 7, "int64", "np.int64"),
        (bytes, 0.5, "float32", "np.float32"),
        (np.int64, b"x", "bytes", "bytes"),
    ],
)
def test_the_dtype_that_the_file_has_is_named(
    wanted: Any, value: Any, has: str, advice: str
) -> None:
    said = (
        f"found {has} values where {wanted.__name__} is expected: write {advice} as the feature's "
        "dtype"
    )
    with pytest.raises(FeatureError, match=said):
        parse_example(encode_examples({"x": [value]}), {"x": FixedLenFeature([], wanted)})


def test_missing_and_empty() -> None:
    for record in (b"", example(("x", b"")), example(("X", ints(1)))):
        with pytest.raises(FeatureError, match="found nothing where 1 int64 values are expected"):
            parse_example([record], INT)
        assert parse_example([record], {"x": FixedLenFeature([], np.int64, 7)})["x"].tolist() == [7]
        assert parse_example([record], INTS)["x"].dense_shape.tolist() == [1, 0]


def test_an_empty_list_is_not_missing() -> None:
    with pytest.raises(FeatureError, match="found 0 values"):
        parse_example([example(("x", ints()))], {"x": FixedLenFeature([], np.int64, 7)})


def test_a_shape_without_elements_is_required_whatever_the_default() -> None:
    config = FixedLenFeature([0], np.int64, [])
    assert parse_one(example(("x", ints())), x=config).shape == (0,)
    with pytest.raises(FeatureError, match="found nothing"):
        parse_one(b"", x=config)


def test_sparse_needs_as_many_positions_as_values() -> None:
    record = example(("i", ints(1, 2)), ("v", floats(1)))
    with pytest.raises(
        FeatureError, match=r"^feature 's': 'i' has 2 positions, but 'v' has 1 values"
    ):
        parse_one(record, s=SparseFeature("i", "v", np.float32, 4))
    other = example(("i", ints(1)), ("v", floats(1, 2)))  # together as many positions as values
    with pytest.raises(
        FeatureError, match="record 1, feature 's': 'i' has 2 positions, but 'v' has 1 values"
    ):
        parse_example([b"", record, other], {"s": SparseFeature("i", "v", np.float32, 4)})


SPLITS, LENGTHS = RaggedFeature.RowSplits("n"), RaggedFeature.RowLengths("n")
STARTS, LIMITS = RaggedFeature.RowStarts("n"), RaggedFeature.RowLimits("n")
ROW_IDS = RaggedFeature.ValueRowIds("n")


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("partition", "numbers"),
    [
        (SPLITS, [0, 12]),
        (SPLITS, [0, 2**32 + 3]),
        (SPLITS, [0, 4, 3]),
        (SPLITS, [1, 3]),
        (LENGTHS, [2, 2]),
        (LENGTHS, [4, -1]),
        (LENGTHS, [2**63 - 1, 2**63 - 1, 5]),
        (LENGTHS, []),
        (STARTS, [0, 4]),
        (STARTS, [1, 2]),
        (STARTS, []),
        (LIMITS, [2]),
        (LIMITS, [2, 1, 3]),
        (LIMITS, []),
        (ROW_IDS, [0, 1, 0]),
        (ROW_IDS, [-1, 0, 0]),
        (ROW_IDS, [0, 0]),
        (ROW_IDS, [0, 0, 2**40]),
        (ROW_IDS, [0, 0, 2**63 - 1]),
        (RaggedFeature.UniformRowLength(2), []),
    ],
)
def test_a_partition_that_does_not_fit_its_record_is_named(
    partition: Any, numbers: list[int], dtype: Any, validate: bool
) -> None:
    """Where TensorFlow gives splits that lead outside of the values, or values of this record to
    the next one.
    """
    records = [b"", example(("x", ints(1, 2, 3)), ("n", ints(*numbers))), b""]
    features: dict[str, Feature] = {"r": RaggedFeature(np.int64, "x", [partition], dtype, validate)}
    with pytest.raises(FeatureError, match="record 1, feature 'r': "):
        parse_example(records, features)
    with pytest.raises(FeatureError, match=r"^feature 'r': "):
        parse_single_example(records[1], features)


def test_rows_that_no_value_needs_fill_no_memory() -> None:
    records = [example(("x", ints(1)), ("n", ints(number))) for number in (3, 2**25)]
    features: dict[str, Feature] = {"r": RaggedFeature(np.int64, "x", [ROW_IDS])}
    assert parse_example(records[:1], features)["r"].nested_row_splits[1].tolist() == [
        0,
        0,
        0,
        0,
        1,
    ]
    with pytest.raises(
        FeatureError, match=r"record 1, feature 'r': 33,554,432 rows, of which most are empty"
    ):
        parse_example(records, features)
