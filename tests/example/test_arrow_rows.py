"""Arrow's columns of features that records may lack: what is null, and what is an empty list."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from streamrec.errors import FeatureError
from streamrec.example.arrow_rows import nullable
from streamrec.example.feature_values import INT64, NO_KIND, FeatureValues
from streamrec.example.schema import FeatureSummary


def summary_of(shortest: int, longest: int) -> FeatureSummary:
    return FeatureSummary(
        name="x", dtype=None, records=9, present=9, shortest=shortest, longest=longest
    )


def no_features(row: int) -> Mapping[str, FeatureValues]:
    return {}


def test_a_row_without_values_is_null_or_an_empty_list_as_its_record_says() -> None:
    array = pa.array([[1], [], [2, 3], []], pa.list_(pa.int64()))
    features = {1: {"x": FeatureValues(INT64, [])}, 3: {"x": NO_KIND}}
    found = nullable(array, summary_of(0, 2), features.__getitem__)
    assert found.to_pylist() == [[1], [], [2, 3], None]


def test_a_feature_of_one_value_is_a_column_of_values_with_nulls() -> None:
    array = pa.array([[1], [], [3]], pa.list_(pa.int64()))
    assert nullable(array, summary_of(1, 1), no_features).to_pylist() == [1, None, 3]


def test_a_feature_of_k_values_is_a_column_of_lists_of_k_with_nulls() -> None:
    array = pa.array([[], [b"a", b"b"], [b"c", b"d"]], pa.list_(pa.binary()))
    found = nullable(array, summary_of(2, 2), no_features)
    assert found.to_pylist() == [None, [b"a", b"b"], [b"c", b"d"]]
    assert found.type.list_size == 2


def test_arrays_of_a_fixed_length_need_no_lists() -> None:
    assert nullable(pa.array([1, 2]), summary_of(1, 1), no_features).to_pylist() == [1, 2]
    pairs = pa.FixedSizeListArray.from_arrays(pa.array([1, 2, 3, 4]), 2)
    found = nullable(pairs, summary_of(2, 2), no_features)
    assert found.to_pylist() == [[1, 2], [3, 4]]


def test_another_number_of_values_than_sampled_names_the_row() -> None:
    array = pa.array([[1, 2], [], [3]], pa.list_(pa.int64()))
    with pytest.raises(FeatureError, match="found 1 values where 2 are expected") as caught:
        nullable(array, summary_of(2, 2), no_features)
    assert (caught.value.feature, caught.value.record) == ("x", 2)
