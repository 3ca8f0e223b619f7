"""How the tests of parsing compare columns: dtypes, shapes, values and the order of keys."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from streamrec.example.columns import BytesColumn, RaggedTensor, SparseTensor


def assert_same_columns(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert list(found) == list(wanted)
    for name, column in wanted.items():
        assert_same(found[name], column, name)


def assert_same(found: Any, wanted: Any, name: str) -> None:
    """Both are the same array, scalar, SparseTensor or RaggedTensor."""
    found, wanted = as_array(found), as_array(wanted)
    assert type(found) is type(wanted), name
    if isinstance(wanted, SparseTensor):
        for part, one, other in zip(wanted.__match_args__, found.parts, wanted.parts, strict=True):
            assert_same_array(one, other, f"{name}.{part}")
    elif isinstance(wanted, RaggedTensor):
        assert len(found.nested_row_splits) == len(wanted.nested_row_splits), name
        assert_same_array(found.flat_values, wanted.flat_values, name)
        for level, (one, other) in enumerate(
            zip(found.nested_row_splits, wanted.nested_row_splits, strict=True)
        ):
            assert_same_array(one, other, f"{name}.splits{level}")
    else:
        assert_same_array(found, wanted, name)


def as_array(value: Any) -> Any:
    """A scalar of a single example as the array without dimensions that TensorFlow has in its
    place.
    """
    if not isinstance(value, bytes | np.generic):
        return value
    array = np.empty((), object if isinstance(value, bytes) else value.dtype)
    array[()] = value
    return array


def assert_same_array(found: Any, wanted: Any, name: str) -> None:
    """Both are the same array; a NaN equals a NaN."""
    assert isinstance(found, np.ndarray), name
    assert found.dtype == wanted.dtype, name
    assert found.shape == wanted.shape, name
    if found.dtype == object:
        assert all(isinstance(item, bytes) for item in found.flat), name
    np.testing.assert_array_equal(found, wanted, err_msg=name)


def materialised(column: Any) -> Any:
    """The same column with BytesColumns turned into object arrays."""
    if isinstance(column, BytesColumn):
        return column.to_numpy()
    if isinstance(column, SparseTensor):
        return replace(column, values=materialised(column.values))
    if isinstance(column, RaggedTensor):
        return replace(column, flat_values=materialised(column.flat_values))
    return column
