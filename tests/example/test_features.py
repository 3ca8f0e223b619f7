"""The feature configurations: what they take, what they become, what they refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamrec.errors import FeatureError
from streamrec.example.features import (
    Dtype,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Partition,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)


class NamedDtype:
    """What a DType of TensorFlow looks like from outside."""

    def __init__(self, name: str) -> None:
        self.name = name


class Shown:
    """What a dtype of another library looks like from outside: nothing but its repr, and maybe a NumPy dtype."""

    def __init__(self, shown: str) -> None:
        self._shown = shown

    def __repr__(self) -> str:
        return self._shown


class ScalarType(type):
    """What `jax.numpy.int64` is: a class without a type of NumPy above it, which has a `dtype`."""

    dtype = np.dtype("int64")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (np.int64, [np.int64, np.dtype("int64"), "int64", int, NamedDtype("int64"), NamedDtype("Int64")]),
        (np.int64, [Shown("torch.int64"), "torch.int64", Shown("mlx.core.int64"), ScalarType("int64", (), {})]),
        (np.float32, [np.float32, "float32", float, Shown("torch.float32"), Shown("<class 'jax.numpy.float32'>")]),
        (bytes, [bytes, str, "string", "bytes", np.object_, np.dtype("S7"), NamedDtype("string"), "tf.string"]),
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
        (np.int32, "integers as int64 and nothing else: write np.int64, and convert after parsing"),
        ("uint8", "write np.int64"),
        (Shown("torch.int32"), "write np.int64"),
        (NamedDtype("bool"), "write np.int64"),
        (bool, "write np.int64"),
        (np.float64, "floats as float32 and nothing else: write np.float32, and convert after parsing"),
        ("float16", "write np.float32"),
        (Shown("torch.bfloat16"), "write np.float32"),
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
    parts: list[Partition] = [
        RaggedFeature.RowSplits("k"),
        RaggedFeature.RowStarts("k"),
        RaggedFeature.RowLengths("k"),
    ]
    features = {RaggedFeature(np.int64, partitions=[part]) for part in parts}
    assert len(features) == 3
    assert all(pickle.loads(pickle.dumps(feature)) in features for feature in features)


def test_defaults_of_other_kinds() -> None:
    assert FixedLenFeature([], np.int64, np.float64(1.0)).default_value == 1  # NumPy's are cast, as in TensorFlow
    assert FixedLenFeature([], np.int64, True).default_value == 1
    assert FixedLenFeature([], np.float32, 1).default_value == 1
    assert FixedLenFeature([], np.float32, np.float64(1e300)).default_value == float("inf")
    assert FixedLenFeature([], bytes, "snö").default_value == "snö"
    assert FixedLenFeature(3, np.int64, [1, 2, 3]).shape == (3,)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (FixedLenFeature, ([], np.int64, 1.5), "float, no int64"),
        (FixedLenFeature, ([], np.int64, "1"), "str, no int64"),
        (FixedLenFeature, ([], np.int64, 2**63), "does not fit in int64"),
        (FixedLenFeature, ([], bytes, 1), "int, no bytes"),
        (FixedLenFeature, ([3], np.int64, 1), "1 values and the shape .3. wants 3"),
        (FixedLenFeature, ([2], np.int64, [1, 2, 3]), "3 values and the shape .2. wants 2"),
        (FixedLenFeature, ([None], np.int64), "FixedLenSequenceFeature"),
        (FixedLenFeature, ([2, None], np.int64), "unknown size"),
        (FixedLenFeature, ([-1], np.int64), "negative size"),
        (FixedLenSequenceFeature, ([None], np.int64), "only the first dimension"),
        (FixedLenSequenceFeature, ([0], np.int64), "no value"),
        (FixedLenSequenceFeature, ([], np.int64, True, [1, 2]), "2 values"),
        (FixedLenSequenceFeature, ([], np.int64, True, "x"), "str, no int64"),
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
        (RaggedFeature, (np.int64, None, [], np.int32, 1), "validate must be a bool"),
    ],
)
def test_refusals(kind: Callable[..., object], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((FeatureError, TypeError), match=message):
        kind(*arguments)


def test_sparse_keys_and_sizes() -> None:
    assert SparseFeature("i", "v", np.int64, 3).index_keys == ("i",)
    assert SparseFeature("i", "v", np.int64, 3).sizes == (3,)
    assert SparseFeature(["i", "j"], "v", np.int64, [3, 4]).sizes == (3, 4)
