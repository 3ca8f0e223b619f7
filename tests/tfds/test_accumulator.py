"""Statistics of numbers that come in blocks, and the values of a column of one row, repeated."""

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import RaggedTensor
from streamrec.tfds.episodes import repeat_row
from streamrec.tfds.statistics import QUANTILES, Accumulator

MODULE = sys.modules[Accumulator.__module__]  # `streamrec.tfds.statistics` is a function, too
BLOCKS = st.lists(st.integers(0, 7), min_size=1, max_size=12).filter(any)


@given(blocks=BLOCKS, seed=st.integers(0, 99))
def test_statistics_do_not_depend_on_where_blocks_end(blocks: list[int], seed: int) -> None:
    rows = np.random.default_rng(seed).normal(1e6, 1.0, (sum(blocks), 2))
    accumulator = Accumulator()
    for block in np.split(rows, np.cumsum(blocks)[:-1]):
        accumulator.add(block)
    found = accumulator.result()
    assert found.count == len(rows)
    np.testing.assert_allclose(found.mean, rows.mean(axis=0))
    np.testing.assert_allclose(found.std, rows.std(axis=0), atol=1e-9)
    np.testing.assert_array_equal(found.min, rows.min(axis=0))
    np.testing.assert_array_equal(found.max, rows.max(axis=0))
    np.testing.assert_allclose(found.quantiles[0.5], np.quantile(rows, 0.5, axis=0))


@given(blocks=BLOCKS)
def test_of_many_rows_each_nth_is_kept_however_they_come(blocks: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "MOST_KEPT", 8)
        accumulator = Accumulator()
        for block in np.split(np.arange(sum(blocks)), np.cumsum(blocks)[:-1]):
            accumulator.add(block)
    found = [float(accumulator.result().quantiles[share]) for share in QUANTILES]
    strides = [
        np.quantile(np.arange(0, sum(blocks), stride), QUANTILES).tolist()
        for stride in (1, 2, 4, 8, 16)
    ]
    assert any(np.allclose(found, wanted) for wanted in strides)


def test_no_values_have_no_statistics() -> None:
    accumulator = Accumulator()
    accumulator.add(np.empty((0, 3)))
    with pytest.raises(ValueError, match="there are no values"):
        accumulator.result()


@pytest.mark.parametrize(
    ("dtype", "filled"),
    [
        (np.float32, np.nan),
        (np.bool_, False),
        (np.uint8, 0),
        (np.int16, -(2**15)),
        (np.int64, -(2**63)),
    ],
)
def test_a_missing_number_has_a_value_of_its_dtype_in_each_step(dtype: Any, filled: Any) -> None:
    column = np.ma.MaskedArray(np.ones((1, 2), dtype), mask=[[False, True]])
    found = repeat_row(column, 3)
    assert (found.dtype, found.shape) == (np.dtype(dtype), (3, 2))
    np.testing.assert_array_equal(found, np.array([[1, filled]] * 3, dtype))


def test_a_missing_string_is_empty_and_ragged_rows_are_repeated() -> None:
    assert repeat_row(np.array([None], object), 2).tolist() == [b"", b""]
    row = RaggedTensor(np.arange(3), (np.array([0, 3]),))
    assert repeat_row(row, 2).to_list() == [[0, 1, 2], [0, 1, 2]]
