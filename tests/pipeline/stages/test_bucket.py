"""bucket_by_sequence_length: order, padding, resuming, errors. (Beside tf.data: test_tensorflow.py.)"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, Frames, TFRecordDataset, encode_records
from streamrec.errors import PositionMismatchError
from tests.effort import draws
from tests.servers.resuming import assert_resumes_everywhere


def sequences(lengths: list[int], chunk: int = 100) -> Dataset[Any]:
    """Arrays of these lengths with their numbers, so many in a chunk."""
    rows = [(np.full(length, index), index) for index, length in enumerate(lengths)]
    return Dataset.range(len(rows)).batch(chunk).unbatch().map(lambda number: rows[number])


def first_length(sequence: Any, number: int) -> int:
    return len(sequence)


def numbers(batches: Any) -> list[list[int]]:
    return [batch[1].tolist() for batch in batches]


def test_a_full_bucket_is_given_at_once_and_the_rest_in_bucket_order() -> None:
    dataset = sequences([5, 1, 9, 1, 2, 6, 3, 30, 1]).bucket_by_sequence_length(first_length, [3, 6], [3, 2, 2])
    batches = list(dataset)
    assert numbers(batches) == [[1, 3, 4], [2, 5], [0, 6], [8], [7]]
    assert batches[0][0].tolist() == [[1, 0], [3, 0], [4, 4]]
    dropped = sequences([5, 1, 9, 1, 2, 6, 3, 30, 1]).bucket_by_sequence_length(
        first_length, [3, 6], [3, 2, 2], drop_remainder=True
    )
    assert numbers(dropped) == [[1, 3, 4], [2, 5], [0, 6]]


def test_padding_to_the_boundary() -> None:
    dataset = sequences([1, 4, 2, 3]).bucket_by_sequence_length(
        first_length, [3, 6], [2, 2, 2], padding_values=-1, pad_to_bucket_boundary=True
    )
    assert [batch[0].shape for batch in dataset] == [(2, 2), (2, 5)]
    shapes = (
        dataset.take(0)
        .concatenate(sequences([1, 4, 2, 3]))
        .bucket_by_sequence_length(first_length, [3, 6], [2, 2, 2], ([None], []), pad_to_bucket_boundary=True)
    )
    assert [batch[0].shape for batch in shapes] == [(2, 2), (2, 5)]
    with pytest.raises(ValueError, match="as long as the last of bucket_boundaries"):
        list(sequences([6]).bucket_by_sequence_length(first_length, [3, 6], [2, 2, 2], pad_to_bucket_boundary=True))


def test_records_stay_frames_without_padding(tmp_path: Path) -> None:
    records = [b"x" * (index * 7 % 5) for index in range(40)]
    (tmp_path / "a").write_bytes(encode_records(records))
    dataset = TFRecordDataset(str(tmp_path / "a"), "", 90)
    batches = list(dataset.bucket_by_sequence_length(len, [1, 3], [4, 5, 6], no_padding=True))
    assert all(isinstance(batch, Frames) for batch in batches)
    assert sorted(record for batch in batches for record in batch) == sorted(records)
    pairs = dataset.enumerate().bucket_by_sequence_length(lambda _, record: len(record), [2], [3, 4], no_padding=True)
    assert all(isinstance(batch[1], Frames) for batch in pairs)
    assert_resumes_everywhere(dataset.bucket_by_sequence_length(len, [1, 3], [4, 5, 6], no_padding=True).repeat(2))
    assert_resumes_everywhere(pairs)


@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    boundaries=st.sets(st.integers(1, 11), max_size=4),
    sizes=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    drop=st.booleans(),
    chunk=st.integers(1, 7),
)
@draws(60)
def test_it_resumes_everywhere(
    lengths: list[int], boundaries: set[int], sizes: list[int], drop: bool, chunk: int
) -> None:
    bounds = sorted(boundaries)
    bucketed = sequences(lengths, chunk).bucket_by_sequence_length(
        first_length, bounds, sizes[: len(bounds) + 1], drop_remainder=drop
    )
    assert pickle.loads(pickle.dumps(bucketed.chain.stages[-1])) == bucketed.chain.stages[-1]
    assert_resumes_everywhere(bucketed)
    assert_resumes_everywhere(bucketed.enumerate().repeat(2))


def test_the_state_is_small_and_holds_no_data() -> None:
    dataset = Dataset.range(3_000).bucket_by_sequence_length(lambda number: int(number % 10), range(1, 10), [600] * 10)
    assert [len(batch) for batch in dataset] == [300] * 10
    iterator = (
        Dataset.range(3_001)
        .bucket_by_sequence_length(lambda number: int(number % 10), range(1, 10), [300, *[600] * 9])
        .iterate()
    )
    next(iterator)
    assert len(json.dumps(iterator.state_dict())) < 10_000


def failing(number: int) -> int:
    if number == 25:
        raise ZeroDivisionError("here")
    return int(number) % 3


def test_an_error_of_the_function_comes_behind_all_that_waits() -> None:
    dataset = Dataset.range(90).bucket_by_sequence_length(failing, [1, 2], [4, 4, 4])
    found: list[Any] = []
    iterator = dataset.iterate()
    states = [iterator.state_dict()]
    with pytest.raises(ZeroDivisionError):
        for batch in iterator:
            found.append(batch.tolist())
            states.append(iterator.state_dict())
    assert sorted(number for batch in found for number in batch) == list(range(25))
    assert sorted(number for batch in iterator for number in batch.tolist()) == list(range(26, 90))
    for index, state in enumerate(states):
        again: list[Any] = []
        with pytest.raises(ZeroDivisionError):
            again.extend(batch.tolist() for batch in dataset.iterate(json.loads(json.dumps(state))))
        assert again == found[index:]


def test_an_error_in_a_batch_comes_behind_the_batches_before_it() -> None:
    dataset = sequences([1, 1, 4, 5, 1, 1, 4, 4]).bucket_by_sequence_length(first_length, [2], [2, 2], no_padding=True)
    iterator = dataset.iterate()
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(ValueError, match="shapes"):
        next(iterator)


def test_arguments_that_do_not_fit_are_refused() -> None:
    dataset = Dataset.range(3)
    with pytest.raises(ValueError, match="2 bucket_batch_sizes for 2 bucket_boundaries"):
        dataset.bucket_by_sequence_length(len, [1, 2], [1, 2])
    with pytest.raises(ValueError, match="must grow"):
        dataset.bucket_by_sequence_length(len, [2, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="1 or more"):
        dataset.bucket_by_sequence_length(len, [2], [1, 0])
    state = dataset.bucket_by_sequence_length(len, [2], [1, 2]).iterate().state_dict()
    with pytest.raises(PositionMismatchError, match=r"Bucket\(builtins.len, \[2\]"):
        dataset.bucket_by_sequence_length(len, [3], [1, 2]).iterate(state)
