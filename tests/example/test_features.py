"""The feature configurations: what they take, what they become, what they refuse."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from streamrec.errors import FeatureError
from streamrec.example.features import (
    Dtype,
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    Partition,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
    as_dtype,
)


class NamedDtype:
    """What a DType of TensorFlow looks like from outside."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (np.int64, np.int64),
        (np.dtype("int64"), np.int64),
        ("int64", np.int64),
        (int, np.int64),
        (NamedDtype("int64"), np.int64),
        (np.float32, np.float32),
        ("float32", np.float32),
        (float, np.float32),
        (bytes, bytes),
        (str, bytes),
        ("string", bytes),
        ("bytes", bytes),
        (np.object_, bytes),
        (np.dtype("S7"), bytes),
        (NamedDtype("string"), bytes),
    ],
)
def test_dtypes(given: object, kind: Dtype) -> None:
    assert as_dtype(given) is kind


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
    ("given", "kind"),
    [
        (Shown("torch.int64"), np.int64),
        (Shown("torch.float32"), np.float32),
        ("torch.int64", np.int64),
        ("tf.string", bytes),
        (Shown("mlx.core.int64"), np.int64),
        (Shown("<class 'jax.numpy.float32'>"), np.float32),
        (ScalarType("int64", (), {}), np.int64),
        (NamedDtype("Int64"), np.int64),
    ],
)
def test_dtypes_of_other_libraries_go_by_their_names(given: object, kind: Dtype) -> None:
    assert as_dtype(given) is kind
    if kind is np.int64:
        assert RaggedFeature(np.int64, row_splits_dtype=given).row_splits_dtype is np.int64


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
    ("shape", "dtype", "default", "message"),
    [
        ([], np.int64, 1.5, "float, no int64"),
        ([], np.int64, "1", "str, no int64"),
        ([], np.int64, 2**63, "does not fit in int64"),
        ([], bytes, 1, "int, no bytes"),
        ([3], np.int64, 1, "1 values and the shape .3. wants 3"),
        ([2], np.int64, [1, 2, 3], "3 values and the shape .2. wants 2"),
        ([None], np.int64, None, "FixedLenSequenceFeature"),
        ([2, None], np.int64, None, "unknown size"),
        ([-1], np.int64, None, "negative size"),
    ],
)
def test_fixed_len_refuses(shape: Any, dtype: Any, default: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        FixedLenFeature(shape, dtype, default)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([None], np.int64), "only the first dimension"),
        (([0], np.int64), "no value"),
        (([], np.int64, True, [1, 2]), "2 values"),
        (([], np.int64, True, "x"), "str, no int64"),
    ],
)
def test_fixed_len_sequence_refuses(arguments: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        FixedLenSequenceFeature(*arguments)


@pytest.mark.parametrize(
    ("index", "value", "size", "message"),
    [
        ([], "v", [], "empty"),
        ("", "v", 3, "empty"),
        ("i", "", 3, "value_key"),
        (["i"], "v", 3, "both be lists"),
        ("i", "v", [3], "both be lists"),
        (["i", "j"], "v", [3], "2 index keys and 1 sizes"),
        (["i", ""], "v", [3, 3], "index_key"),
    ],
)
def test_sparse_refuses(index: Any, value: str, size: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        SparseFeature(index, value, np.int64, size)


def test_sparse_keys_and_sizes() -> None:
    assert SparseFeature("i", "v", np.int64, 3).index_keys == ("i",)
    assert SparseFeature("i", "v", np.int64, 3).sizes == (3,)
    assert SparseFeature(["i", "j"], "v", np.int64, [3, 4]).sizes == (3, 4)


@pytest.mark.parametrize(
    ("keywords", "error"),
    [
        ({"value_key": ""}, FeatureError),
        ({"value_key": 3}, FeatureError),
        ({"partitions": "k"}, TypeError),
        ({"partitions": ["k"]}, TypeError),
        ({"partitions": [RaggedFeature.UniformRowLength(0)]}, FeatureError),
        ({"row_splits_dtype": np.float32}, FeatureError),
        ({"validate": 1}, TypeError),
    ],
)
def test_ragged_refuses(keywords: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        RaggedFeature(np.int64, **keywords)


def test_every_configuration_is_a_feature() -> None:
    features: list[Feature] = [
        FixedLenFeature([], np.int64),
        VarLenFeature(np.int64),
        FixedLenSequenceFeature([], np.int64),
        SparseFeature("i", "v", np.int64, 3),
        RaggedFeature(np.int64, row_splits_dtype="int64"),
    ]
    assert len(set(features)) == 5
