"""Compares examples with what was written, or with what TensorFlow Datasets gives."""

from typing import Any

import numpy as np

from streamrec import RaggedTensor


def assert_same(found: Any, expected: Any, name: str = "") -> None:
    """Checks values, dtypes and shapes."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), name
        assert found.keys() == expected.keys(), name
        for key, value in expected.items():
            assert_same(found[key], value, f"{name}/{key}")
    elif isinstance(found, RaggedTensor):
        assert found.to_list() == to_list(expected), name
    elif expected is None or isinstance(expected, bytes):
        assert found == expected, name
        assert type(found) is type(expected), name
    else:
        array = np.asarray(found)
        wanted = np.asarray(expected)
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), name
        np.testing.assert_array_equal(array, wanted, name)


def to_list(value: Any) -> Any:
    """Nested lists of arrays or ragged tensors, also TensorFlow's."""
    return value.to_list() if hasattr(value, "to_list") else value
