"""TensorFlow as the oracle: descriptions for it, its results as ours, and which inputs it must be
spared.

TensorFlow's parser breaks on some inputs instead of raising: see `spared`. Those are tested without
it.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import pytest

from streamrec.example.columns import RaggedTensor, SparseTensor
from streamrec.example.features import (
    Feature,
    FixedLenFeature,
    FixedLenSequenceFeature,
    SparseFeature,
    VarLenFeature,
)

tf = pytest.importorskip("tensorflow")
tf.get_logger().setLevel("ERROR")


def dtype(kind: Any) -> Any:
    return {np.int64: tf.int64, np.float32: tf.float32, bytes: tf.string, np.int32: tf.int32}[kind]


def twin(feature: Feature) -> Any:
    kind = dtype(feature.dtype)
    if isinstance(feature, FixedLenFeature):
        return tf.io.FixedLenFeature(feature.shape, kind, feature.default_value)
    if isinstance(feature, FixedLenSequenceFeature):
        return tf.io.FixedLenSequenceFeature(
            feature.shape, kind, feature.allow_missing, feature.default_value
        )
    if isinstance(feature, VarLenFeature):
        return tf.io.VarLenFeature(kind)
    if isinstance(feature, SparseFeature):
        keys = feature.index_key if isinstance(feature.index_key, str) else list(feature.index_key)
        sizes = feature.size if isinstance(feature.size, int) else list(feature.size)
        return tf.io.SparseFeature(keys, feature.value_key, kind, sizes, feature.already_sorted)
    partitions = [
        getattr(tf.io.RaggedFeature, type(part).__name__)(*vars(part).values())
        for part in feature.partitions
    ]
    splits = dtype(feature.row_splits_dtype)
    return tf.io.RaggedFeature(kind, feature.value_key, partitions, splits, feature.validate)


def twins(features: Mapping[str, Feature] | None) -> Any:
    return (
        {name: twin(feature) for name, feature in features.items()}
        if features is not None
        else None
    )


def arrays(column: Any) -> Any:
    if isinstance(column, tf.SparseTensor):
        return SparseTensor(
            column.indices.numpy(), values(column.values), column.dense_shape.numpy()
        )
    if isinstance(column, tf.RaggedTensor):
        return RaggedTensor(
            values(column.flat_values), tuple(part.numpy() for part in column.nested_row_splits)
        )
    return values(column)


def values(tensor: Any) -> Any:
    """A tensor as an array; strings as an object array, also a scalar."""
    array = tensor.numpy()
    if tensor.dtype == tf.string and not isinstance(array, np.ndarray):
        scalar = np.empty((), dtype=object)
        scalar[()] = array
        return scalar
    return np.asarray(array)


def outcome(parse: Callable[[], Any]) -> Any:
    """What TensorFlow parses, as ours, or None where it raises."""
    try:
        result = parse()
    except (tf.errors.InvalidArgumentError, ValueError, TypeError):
        return None
    return tf.nest.map_structure(arrays, result, expand_composites=False)
