"""Sources that are no shards: ranges, slices of arrays, and datasets one after the other or side by
side.
"""

import pickle
from typing import Any

import numpy as np
import polars
import pyarrow
import pytest

import streamrec
from streamrec import Dataset, Frames, RaggedTensor
from tests.effort import thorough
from tests.servers.resuming import plain

ONE = [b"one %d" % index * (index % 5) for index in range(23)]
TWO = [b"two %d" % index for index in range(31)]


@pytest.mark.parametrize(
    "arguments", [(0,), (5,), (100_000,), (2, 9), (9, 2), (2, 30, 7), (30, 2, -7), (-5, 5)]
)
def test_range_is_pythons(arguments: tuple[int, ...]) -> None:
    found = list(Dataset.range(*arguments))
    assert found == list(range(*arguments))
    assert {type(number) for number in found} <= {np.int64}
    assert [
        number for batch in Dataset.range(*arguments).batch(7) for number in batch.tolist()
    ] == found


def test_a_range_has_the_dtype_that_is_asked_for() -> None:
    assert next(iter(Dataset.range(3, output_type=np.float32))).dtype == np.float32


MANY = 2_000


@pytest.mark.parametrize("count", [0, 7, None, *thorough(1, 900)])
def test_short_epochs_are_those_of_long_ones(count: int | None) -> None:
    names = Dataset.from_tensor_slices(
        {"x": np.arange(3), "y": (Frames.of([b"a", b"b", b"c"]), [[1.5], [2], [3]])}
    )
    for short in (
        names,
        Dataset.range(5),
        Dataset.from_tensor_slices(Frames.of([b"a", b"", b"ccc"])),
    ):
        one_by_one = short.take(-1)  # a stage: its epochs are run
        found, wanted = (list(ds.repeat(count).take(MANY)) for ds in (short, one_by_one))
        assert list(map(plain, found)) == list(map(plain, wanted))
        assert len(found) == (MANY if count is None else min(MANY, count * len(list(short))))
    assert list(map(type, names.repeat(2).batch(4).take(1).map(lambda batch: batch["y"][0]))) == [
        Frames
    ]


def test_slices_are_rows_of_nested_arrays() -> None:
    tensors = {"x": np.arange(6).reshape(3, 2), "y": (["a", b"b\0", "c"], [1.5, 2.5, 3.5])}
    dataset = Dataset.from_tensor_slices(tensors)
    rows = list(dataset)
    assert [row["x"].tolist() for row in rows] == [[0, 1], [2, 3], [4, 5]]
    assert [row["y"] for row in rows] == [(b"a", 1.5), (b"b\0", 2.5), (b"c", 3.5)]
    first, last = dataset.batch(2)
    assert (first["x"].shape, last["y"][0].tolist()) == ((2, 2), [b"c"])
    assert list(Dataset.from_tensor_slices(Frames.of(ONE))) == ONE
    ragged = Dataset.from_tensor_slices(RaggedTensor(np.arange(3), (np.array([0, 2, 3]),)))
    assert [row.tolist() for row in ragged] == [[0, 1], [2]]


def test_slices_do_not_change_with_the_array() -> None:
    array = np.arange(4)
    dataset = Dataset.from_tensor_slices(array)
    array[:] = 9
    (batch,) = dataset.batch(4)
    assert batch.tolist() == [0, 1, 2, 3]
    batch[:] = 9
    assert list(dataset) == [0, 1, 2, 3]


def test_slices_of_other_values_are_another_dataset() -> None:
    dataset = Dataset.from_tensor_slices({"x": [1, 2], "y": [b"a", b"b"]})
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    assert dataset == Dataset.from_tensor_slices({"x": [1, 2], "y": [b"a", b"b"]})
    state = dataset.iterate().state_dict()
    for other in (
        {"x": [1, 3], "y": [b"a", b"b"]},
        {"x": [1, 2], "y": [b"ab", b""]},
        {"y": [1, 2], "x": [b"a", b"b"]},
    ):
        with pytest.raises(streamrec.errors.PositionMismatchError, match="with Slices"):
            Dataset.from_tensor_slices(other).iterate(state)


@pytest.mark.parametrize(
    "column",
    [
        np.ma.array([1, 2], mask=[False, True]),
        pyarrow.array([1, None]),
        pyarrow.array(["a", None]),
        polars.Series([1.5, None]),
        [1, None],
        ["a", None],
        np.array([b"a", None]),
    ],
    ids=["masked", "arrow", "arrow-text", "polars", "numbers", "text", "objects"],
)
def test_none_and_masked_values_are_refused(column: Any) -> None:
    for make in (Dataset.from_tensor_slices, Dataset.from_tensors):
        with pytest.raises(TypeError, match=r"None \(NoneType\) in an?|a masked array"):
            make({"x": column})
    with pytest.raises(TypeError, match="a masked array"):
        list(Dataset.from_generator(lambda: [np.ma.array([1, 2], mask=[0, 1])]).batch(1))


def test_nested_datasets_are_side_by_side() -> None:
    one, two = Dataset.from_tensor_slices(ONE), Dataset.from_tensor_slices(TWO).batch(5).unbatch()
    nested = list(Dataset.zip({"a": one, "b": (two, Dataset.range(10**12))}))
    assert nested == [
        {"a": a, "b": (b, index)} for index, (a, b) in enumerate(zip(ONE, TWO, strict=False))
    ]
    assert list(Dataset.zip(one)) == ONE
