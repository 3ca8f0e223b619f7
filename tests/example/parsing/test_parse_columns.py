"""parse_example and parse_single_example, on both walkers: the columns of each kind of feature."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streamrec.errors import FeatureError
from streamrec.example.columns import SparseTensor
from streamrec.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.parsing.native import NativeWalker
from streamrec.example.parsing.parse import parse_single_with
from tests.example.parsing.calls import INT, INTS, one, parse
from tests.example.wire import example, floats, ints, strings


def test_missing_and_empty(walker: NativeWalker) -> None:
    for record in (b"", example(("x", b"")), example(("X", ints(1)))):
        with pytest.raises(FeatureError, match="found nothing where 1 int64 values are wanted"):
            parse(walker, [record], INT)
        assert parse(walker, [record], {"x": FixedLenFeature([], np.int64, 7)})["x"].tolist() == [7]
        assert parse(walker, [record], INTS)["x"].dense_shape.tolist() == [1, 0]


def test_an_empty_list_is_not_missing(walker: NativeWalker) -> None:
    with pytest.raises(FeatureError, match="found 0 values"):
        parse(walker, [example(("x", ints()))], {"x": FixedLenFeature([], np.int64, 7)})


def test_a_shape_without_elements_is_required_whatever_the_default(walker: NativeWalker) -> None:
    config = FixedLenFeature([0], np.int64, [])
    assert one(walker, example(("x", ints())), x=config).shape == (0,)
    with pytest.raises(FeatureError, match="found nothing"):
        one(walker, b"", x=config)


def test_defaults_of_every_kind(walker: NativeWalker) -> None:
    features: dict[str, Feature] = {
        "f": FixedLenFeature([2], np.float32, [1.5, -2]),
        "i": FixedLenFeature([1, 2], np.int64, [[3, -4]]),
        "s": FixedLenFeature([2], bytes, ["snö", b"a\0"]),
    }
    found = parse(walker, [b"", example(("f", floats(0, 0)), ("s", strings(b"", b"b"))), b""], features)
    assert found["f"].tolist() == [[1.5, -2], [0, 0], [1.5, -2]]
    assert found["i"].tolist() == [[[3, -4]]] * 3
    assert found["s"].tolist() == [["snö".encode(), b"a\0"], [b"", b"b"], ["snö".encode(), b"a\0"]]


def test_padding(walker: NativeWalker) -> None:
    records = [example(("x", ints(1, 2, 3, 4))), b"", example(("x", ints(5, 6)))]
    config = FixedLenSequenceFeature([2], np.int64, allow_missing=True, default_value=-7)
    found = parse(walker, records, {"x": config})["x"]
    assert found.tolist() == [[[1, 2], [3, 4]], [[-7, -7], [-7, -7]], [[5, 6], [-7, -7]]]
    texts = FixedLenSequenceFeature([], bytes, allow_missing=True, default_value="p\0")
    found = parse(walker, [example(("x", strings(b"a\0"))), b""], {"x": texts})["x"]
    assert found.tolist() == [[b"a\0"], [b"p\0"]]


def test_sparse(walker: NativeWalker) -> None:
    record = example(("i", ints(9, -1, 2, 2)), ("j", ints(1, 1, 3, 0)), ("v", floats(1, 2, 3, 4)))
    found = one(walker, record, s=SparseFeature(["i", "j"], "v", np.float32, [4, 5]))
    assert found.indices.tolist() == [[-1, 1], [2, 0], [2, 3], [9, 1]]
    assert found.values.tolist() == [2, 4, 3, 1]
    assert found.dense_shape.tolist() == [4, 5]
    asis = one(walker, record, s=SparseFeature("i", "v", np.float32, 4, already_sorted=True))
    assert asis.indices.tolist() == [[9], [-1], [2], [2]]


def test_sparse_needs_as_many_positions_as_values(walker: NativeWalker) -> None:
    record = example(("i", ints(1, 2)), ("v", floats(1)))
    with pytest.raises(FeatureError, match=r"^feature 's': found 2 positions in 'i' where 1 values in 'v'"):
        one(walker, record, s=SparseFeature("i", "v", np.float32, 4))
    other = example(("i", ints(1)), ("v", floats(1, 2)))  # together as many positions as values
    with pytest.raises(FeatureError, match="record 1, feature 's': found 2 positions in 'i' where 1 values in 'v'"):
        parse(walker, [b"", record, other], {"s": SparseFeature("i", "v", np.float32, 4)})


def test_ragged(walker: NativeWalker) -> None:
    records = [
        example(("x", ints(1, 2, 3)), ("n", ints(2, 1))),
        b"",
        example(("x", ints(4)), ("n", ints(0, 1))),
    ]
    config = RaggedFeature(np.int64, "x", [RaggedFeature.RowLengths("n")], np.int64, validate=True)
    found = parse(walker, records, {"r": config, "x": RaggedFeature(np.int64, row_splits_dtype=np.int64)})
    assert list(found) == ["x", "r"]
    assert found["r"].flat_values.tolist() == [1, 2, 3, 4]
    assert [splits.tolist() for splits in found["r"].nested_row_splits] == [[0, 2, 2, 4], [0, 2, 3, 3, 4]]
    assert found["x"].nested_row_splits[0].dtype == np.int64


SPLITS, LENGTHS = RaggedFeature.RowSplits("n"), RaggedFeature.RowLengths("n")
STARTS, LIMITS = RaggedFeature.RowStarts("n"), RaggedFeature.RowLimits("n")
ROW_IDS = RaggedFeature.ValueRowIds("n")


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("partition", "numbers"),
    [
        (SPLITS, [0, 12]),
        (SPLITS, [0, 2**40]),
        (SPLITS, [0, 2**32 + 3]),
        (SPLITS, [0, 4, 3]),
        (SPLITS, [0, -1, 3]),
        (SPLITS, [1, 3]),
        (SPLITS, [0, 2]),
        (LENGTHS, [2, 2]),
        (LENGTHS, [4, -1]),
        (LENGTHS, [2**63 - 1, 2**63 - 1, 5]),
        (LENGTHS, []),
        (STARTS, [0, 4]),
        (STARTS, [1, 2]),
        (STARTS, [0, 2, 1]),
        (STARTS, []),
        (LIMITS, [2]),
        (LIMITS, [4]),
        (LIMITS, [2, 1, 3]),
        (LIMITS, [-1, 3]),
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
    walker: NativeWalker, partition: Any, numbers: list[int], dtype: Any, validate: bool
) -> None:
    """Where TensorFlow gives splits that lead outside of the values, or values of this record to the next one."""
    records = [b"", example(("x", ints(1, 2, 3)), ("n", ints(*numbers))), b""]
    features: dict[str, Feature] = {"r": RaggedFeature(np.int64, "x", [partition], dtype, validate)}
    with pytest.raises(FeatureError, match="record 1, feature 'r': "):
        parse(walker, records, features)
    with pytest.raises(FeatureError, match=r"^feature 'r': "):
        parse_single_with(walker, records[1], features, None, False)


def test_rows_that_no_value_needs_fill_no_memory(walker: NativeWalker) -> None:
    records = [example(("x", ints(1)), ("n", ints(number))) for number in (3, 2**25)]
    features: dict[str, Feature] = {"r": RaggedFeature(np.int64, "x", [ROW_IDS])}
    assert parse(walker, records[:1], features)["r"].nested_row_splits[1].tolist() == [0, 0, 0, 0, 1]
    with pytest.raises(FeatureError, match=r"record 1, feature 'r': 33,554,432 rows, of which most are empty"):
        parse(walker, records, features)


def test_the_order_of_keys_is_tensorflows(walker: NativeWalker) -> None:
    features: dict[str, Feature] = {
        "z": FixedLenFeature([], np.int64, 1),
        "y": SparseFeature("y", "val", np.float32, 10),
        "b": VarLenFeature(np.int64),
        "ix": SparseFeature("ix", "val", np.float32, 10),
        "r": RaggedFeature(np.int64, value_key="q"),
        "q": RaggedFeature(np.int64),
        "val": VarLenFeature(np.float32),
    }
    assert list(parse(walker, [b""], features)) == ["b", "ix", "val", "y", "z", "q", "r"]


def test_an_empty_batch(walker: NativeWalker) -> None:
    features: dict[str, Feature] = {
        "a": FixedLenFeature([2], np.int64),
        "b": VarLenFeature(bytes),
        "c": RaggedFeature(np.int64),
        "d": FixedLenSequenceFeature([3], np.float32, allow_missing=True),
        "e": FixedLenFeature([], bytes),
    }
    found = parse(walker, [], features)
    assert found["a"].shape == (0, 2)
    assert found["b"].dense_shape.tolist() == [0, 0]
    assert found["c"].nested_row_splits[0].tolist() == [0]
    assert found["d"].shape == (0, 0, 3)
    assert found["e"].shape == (0,)


def test_singles_have_no_batch_dimension(walker: NativeWalker) -> None:
    record = example(("a", ints(7)), ("v", ints(1, 2)), ("s", strings(b"x")))
    found = parse_single_with(
        walker,
        record,
        {
            "a": FixedLenFeature([], np.int64),
            "v": VarLenFeature(np.int64),
            "r": RaggedFeature(np.int64),
            "q": FixedLenSequenceFeature([2], np.float32, allow_missing=True),
            "s": FixedLenFeature([], bytes),
        },
        None,
        False,
    )
    assert isinstance(found["a"], np.int64)
    assert isinstance(found["v"], SparseTensor)
    assert found["v"].indices.tolist() == [[0], [1]]
    assert found["v"].dense_shape.tolist() == [2]
    assert isinstance(found["r"], np.ndarray)
    assert found["q"].shape == (0, 2)  # type: ignore[union-attr]
    assert found["s"] == b"x"
