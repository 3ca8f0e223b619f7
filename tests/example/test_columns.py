"""Columns: strings in buffers, and sparse tensors, which are checked when they are used."""

from typing import Any

import numpy as np
import pytest

from streamrec import FeatureError
from streamrec.example.columns import (
    BytesColumn,
    RaggedTensor,
    SparseTensor,
    check_indices,
    check_splits,
    holds_nan,
    list_splits,
    row_splits,
)

STRINGS = [b"a", b"", b"ccc", b"dd", b"e", b"f" * 20]


def string_column(*shape: int) -> BytesColumn:
    return BytesColumn.of(STRINGS, shape or (-1,))


def test_a_column_has_the_strings_in_its_shape() -> None:
    found = string_column(2, 3)
    assert found.shape == (2, 3)
    assert len(found) == 2
    assert found.to_numpy().tolist() == [STRINGS[:3], STRINGS[3:]]
    assert found.lengths.tolist() == [[1, 0, 3], [2, 1, 20]]
    assert found.nbytes == found.pinned == 27
    assert [list(row) for row in found] == [STRINGS[:3], STRINGS[3:]]
    assert list(found.reshape(-1)) == STRINGS
    assert found[1, 2] == STRINGS[5]
    assert found[:, 1].to_numpy().tolist() == [b"", b"e"]
    assert found[1].compact().nbytes == found[1].nbytes == 23
    assert bytes(found[1].compact().buffer) == b"".join(STRINGS[3:])


def test_a_scalar_column_has_no_length() -> None:
    scalar = BytesColumn(b"abc", np.array([0, 2]))
    assert scalar.shape == ()
    assert scalar.to_numpy()[()] == b"ab"
    with pytest.raises(TypeError, match="no length"):
        len(scalar)


def test_spans_stay_within_their_buffer() -> None:
    BytesColumn(b"abc", np.array([[0, 3], [3, 3]]))
    for spans in ([[0, 4]], [[2, 1]], [[-1, 2]]):
        with pytest.raises(ValueError, match="leaves the buffer of 3 bytes"):
            BytesColumn(b"abc", np.array(spans))
    for spans in ([0, 1, 2], 5):
        with pytest.raises(ValueError, match="start and end"):
            BytesColumn(b"abc", np.array(spans))


def test_an_array_is_always_a_copy() -> None:
    assert np.asarray(string_column()).tolist() == STRINGS
    assert np.array(string_column(), copy=True).tolist() == STRINGS
    assert np.asarray(string_column(), dtype="S3").tolist() == [string[:3] for string in STRINGS]
    with pytest.raises(ValueError, match="leave copy=False out"):
        np.array(string_column(), copy=False)


def sparse_tensor(indices: Any, shape: Any) -> SparseTensor:
    table = np.array(indices, np.int64).reshape(-1, len(shape))
    return SparseTensor(table, np.arange(len(table)), np.array(shape, np.int64))


def test_indices_of_a_sparse_tensor_are_checked() -> None:
    good = sparse_tensor([[0, 0], [1, 2]], [2, 3])
    assert check_indices(good).tolist() == [[0, 0], [1, 2]]
    for index in ([2, 0], [0, 3], [-1, 0], [0, -1]):
        with pytest.raises(FeatureError, match="outside its dense_shape") as caught:
            check_indices(sparse_tensor([[0, 0], index], [2, 3]), "x")
        assert str(index) in str(caught.value)
        assert "'x'" in str(caught.value)
    with pytest.raises(FeatureError, match="negative size"):
        check_indices(sparse_tensor([], [2, -1]))
    with pytest.raises(FeatureError, match="are not a sparse tensor"):
        check_indices(SparseTensor(np.zeros((2, 2), int), np.zeros(3), np.array([9, 9])))


def test_rows_of_a_sparse_tensor() -> None:
    assert row_splits(sparse_tensor([[0, 0], [0, 1], [2, 5]], [4, 9])).tolist() == [0, 2, 2, 3, 3]
    assert row_splits(sparse_tensor([], [2, 3])).tolist() == [0, 0, 0]
    with pytest.raises(FeatureError, match="sort them by their indices") as caught:
        row_splits(sparse_tensor([[0, 0], [2, 0], [1, 0]], [3, 3]))
    assert caught.value.record == 1


def test_only_so_many_rows_may_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few values that claim a billion rows allocate nothing."""
    monkeypatch.setattr("streamrec.example.columns.MAX_EMPTY_ROWS", 5)
    assert len(row_splits(sparse_tensor([[0], [1]], [7]))) == 8
    with pytest.raises(FeatureError, match="only 5 rows may be empty"):
        row_splits(sparse_tensor([[0], [1]], [8]))


def test_lists_of_a_sparse_tensor_have_no_gaps() -> None:
    assert list_splits(sparse_tensor([[0, 0], [0, 1], [2, 0]], [3, 9])).tolist() == [0, 2, 2, 3]
    for indices in ([[0, 1]], [[0, 0], [0, 2]], [[0, 0], [1, 1]]):
        with pytest.raises(FeatureError, match="is not a list"):
            list_splits(sparse_tensor(indices, [2, 9]))
    for shape, index in (([2], [0]), ([2, 3, 4], [0, 0, 0])):
        with pytest.raises(FeatureError, match=f"has {len(shape)} dimensions: it must have 2"):
            list_splits(sparse_tensor([index], shape))


def test_nan_is_found_at_any_depth() -> None:
    nan = np.array([1.0, np.nan])
    nested = np.empty(2, object)
    nested[:] = [np.array([1.0]), nan]
    assert holds_nan(nan)
    assert holds_nan(nested)
    nested[1] = np.array([2.0, 3.0])
    assert not holds_nan(nested)
    assert not holds_nan(np.array([1, 2]))
    assert not holds_nan(np.array([float("nan"), "text"], object))


def test_tensors_show_and_convert_their_parts() -> None:
    ragged = RaggedTensor(np.arange(3), (np.array([0, 1, 3]),))
    doubled = ragged.map_parts(lambda part: part if isinstance(part, tuple) else part * 2)
    assert isinstance(doubled, RaggedTensor)
    assert doubled.flat_values.tolist() == [0, 2, 4]
    assert repr(ragged).startswith("RaggedTensor(flat_values=")


def test_splits_of_a_ragged_tensor_are_checked() -> None:
    def splits_of(*splits: Any) -> list[list[int]]:
        tensor = RaggedTensor(np.arange(4), tuple(map(np.array, splits)))
        return [found.tolist() for found in check_splits(tensor, "x")]

    assert splits_of([0, 1, 4]) == [[0, 1, 4]]
    assert splits_of([0, 0, 2], [0, 3, 4]) == [[0, 0, 2], [0, 3, 4]]
    for wrong in ([[0, 4]], [], [0.0, 4.0]):
        with pytest.raises(FeatureError, match=r"must be integers of shape \[rows \+ 1\]"):
            splits_of(wrong)
    for wrong in ([0, 3], [1, 4], [0, 5]):
        with pytest.raises(FeatureError, match="must go from 0 to 4, the number of values"):
            splits_of(wrong)
    with pytest.raises(FeatureError, match="must go from 0 to 2"):
        splits_of([0, 1], [0, 2, 4])
    with pytest.raises(FeatureError, match="splits descend") as caught:
        splits_of([0, 3, 2, 4])
    assert caught.value.record == 1
    with pytest.raises(FeatureError, match="no row splits"):
        splits_of()
