"""The stages that pick, split, join and bucket elements: what they give, and what stays columnar."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import (
    BytesColumn,
    Dataset,
    FixedLenFeature,
    Frames,
    RaggedTensor,
    SparseTensor,
    TFRecordDataset,
    VarLenFeature,
    encode_example,
    encode_records,
)
from streamrec.errors import PositionMismatchError
from streamrec.example.features import Feature
from tests.effort import draws
from tests.pipeline.small_shards import ALL
from tests.servers.resuming import assert_resumes_everywhere, plain


def long(record: bytes) -> bool:
    return len(record) > 50


def parts(record: bytes) -> dict[str, Any]:
    return {"id": len(record), "pair": (np.arange(len(record) % 5), record)}


def arrays(record: bytes) -> dict[str, Any]:
    return {"a": np.arange(len(record) % 4), "b": (np.full(len(record) % 4, len(record)),)}


def test_filter_keeps_records_as_frames(files: list[str]) -> None:
    kept = [record for record in ALL if long(record)]
    assert list(TFRecordDataset(files).filter(long)) == kept
    batches = list(TFRecordDataset(files).filter(long).batch(5))
    assert all(isinstance(batch, Frames) for batch in batches)
    assert [record for batch in batches for record in batch] == kept
    assert list(TFRecordDataset(files).map(len).filter(lambda size: size % 2)) == [len(r) for r in ALL if len(r) % 2]
    assert list(TFRecordDataset(files).filter(lambda record: False)) == []


def test_few_records_of_many_keep_no_block_alive(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(encode_records([b"%06d" % index * 100 for index in range(1000)]))
    (batch,) = TFRecordDataset(f"{tmp_path}/x").shard(100, 3).batch(1000)
    assert [record[:6] for record in batch] == [b"%06d" % index for index in range(3, 1000, 100)]
    assert memoryview(batch.buffer).nbytes < 2 * batch.nbytes


def test_skip_take_while_shard_and_enumerate(files: list[str]) -> None:
    dataset = TFRecordDataset(files)
    assert list(dataset.skip(9)) == ALL[9:]
    assert list(dataset.skip(0)) == ALL
    assert list(dataset.skip(1000)) == list(dataset.skip(-1)) == []
    assert list(dataset.take_while(lambda record: not record.startswith(b"2.5."))) == ALL[:12]
    assert list(dataset.take_while(lambda record: True)) == ALL
    assert list(dataset.take_while(lambda record: False)) == []
    assert list(dataset.repeat().take_while(lambda record: not record.startswith(b"4."))) == ALL[:20]
    for shards in (1, 3, 60):
        assert [list(dataset.shard(shards, index)) for index in range(shards)] == [
            ALL[i::shards] for i in range(shards)
        ]
    assert list(dataset.enumerate(5)) == list(enumerate(ALL, 5))
    ((numbers, records),) = dataset.skip(3).enumerate().take(4).batch(5)
    assert (numbers.dtype, numbers.tolist()) == (np.int64, [0, 1, 2, 3])
    assert isinstance(records, Frames)
    assert list(records) == ALL[3:7]


def test_what_ended_takes_nothing_that_earlier_stages_still_hold(files: list[str]) -> None:
    """The last, smaller batch comes when the input ends, behind the end that `take_while` found."""
    once = Dataset.range(10).batch(4).unbatch().take_while(lambda number: number in (0, 8))
    assert list(once) == [0]


def test_batches_of_pairs_are_of_one_kind_wherever_they_straddle(files: list[str]) -> None:
    batches = list(TFRecordDataset(files, "", 100).enumerate().batch(4))
    assert all(isinstance(records, Frames) for _, records in batches)
    assert [number for numbers, _ in batches for number in numbers.tolist()] == list(range(50))
    assert [record for _, records in batches for record in records] == ALL


def test_a_tuple_is_passed_as_arguments(files: list[str]) -> None:
    pairs = TFRecordDataset(files).enumerate()
    assert list(pairs.map(lambda number, record: (int(number), len(record)))) == [*enumerate(map(len, ALL))]
    assert [number for number, _ in pairs.filter(lambda number, record: number % 7 == 0)] == list(range(0, 50, 7))


def test_unbatch_and_rebatch(files: list[str]) -> None:
    dataset = TFRecordDataset(files)
    assert list(dataset.batch(7).unbatch()) == ALL
    assert list(dataset.batch(7).map(lambda batch: batch).unbatch()) == ALL
    rebatched = list(dataset.batch(7).rebatch(3))
    assert [list(batch) for batch in rebatched] == [ALL[i : i + 3] for i in range(0, 50, 3)]
    assert all(isinstance(batch, Frames) for batch in rebatched)
    assert len(list(dataset.batch(7).rebatch(4, drop_remainder=True))) == 12
    assert [plain(element) for element in dataset.map(parts).batch(1).unbatch()] == [
        {"id": len(record), "pair": ("tuple", ("<i8", list(range(len(record) % 5))), record)} for record in ALL
    ]
    columns = list(dataset.map(arrays).rebatch(6))
    assert np.concatenate([batch["b"][0] for batch in columns]).tolist() == [
        len(record) for record in ALL for _ in range(len(record) % 4)
    ]


def test_ragged_and_sparse_batches_have_rows() -> None:
    ragged = RaggedTensor(np.arange(6), (np.array([0, 2, 3]), np.array([0, 1, 3, 6])))
    sparse = SparseTensor(np.array([[0, 1], [2, 0], [2, 1]]), np.array([7, 8, 9]), np.array([3, 2]))
    rows = streamrec.pipeline.elements.columns.rows_of
    first, second = rows(ragged)
    assert (first.flat_values.tolist(), [s.tolist() for s in first.nested_row_splits]) == ([0, 1, 2], [[0, 1, 3]])
    assert (second.flat_values.tolist(), [s.tolist() for s in second.nested_row_splits]) == ([3, 4, 5], [[0, 3]])
    assert [row.tolist() for row in rows(first)] == [[0], [1, 2]]
    assert [(row.indices.tolist(), row.values.tolist(), row.dense_shape.tolist()) for row in rows(sparse)] == [
        ([[1]], [7], [2]),
        ([], [], [2]),
        ([[0], [1]], [8, 9], [2]),
    ]


def test_what_has_no_rows_is_not_unbatched(files: list[str]) -> None:
    with pytest.raises(TypeError, match="an int has no rows"):
        list(TFRecordDataset(files).map(len).unbatch())
    with pytest.raises(ValueError, match=r"the columns have \[1, 2\] rows"):
        list(TFRecordDataset(files).map(lambda record: (np.zeros(1), np.zeros(2))).unbatch())


def test_padded_batches(files: list[str]) -> None:
    dataset = TFRecordDataset(files).map(parts).take(3)  # lengths 4, 41, 78
    (batch,) = dataset.padded_batch(4, padding_values={"id": None, "pair": (-1, b"?")})
    assert batch["id"].tolist() == [4, 41, 78]
    assert batch["pair"][0].tolist() == [[0, 1, 2, 3], [0, -1, -1, -1], [0, 1, 2, -1]]
    assert batch["pair"][1].tolist() == ALL[:3]
    (batch,) = dataset.padded_batch(4, {"id": (), "pair": ((6,), ())})
    assert batch["pair"][0].tolist() == [[0, 1, 2, 3, 0, 0], [0] * 6, [0, 1, 2, 0, 0, 0]]
    with pytest.raises(ValueError, match=r"element\['pair'\]\[0\]: an array of up to \[4\] does not fit"):
        list(dataset.padded_batch(4, {"id": (), "pair": ((3,), ())}))
    with pytest.raises(ValueError, match="padded_shapes has 0 dimensions"):
        list(dataset.padded_batch(4, {"id": (), "pair": ((), ())}))
    with pytest.raises(ValueError, match=r"arrays of \[1, 2\] dimensions"):
        list(TFRecordDataset(files).take(3).map(lambda r: np.zeros((1,) * (1 + len(r) % 2))).padded_batch(2))
    assert all(isinstance(batch, Frames) for batch in TFRecordDataset(files).padded_batch(9))


def test_ragged_batches(files: list[str]) -> None:
    dataset = TFRecordDataset(files).map(parts).take(3)
    (batch,) = dataset.ragged_batch(4)
    assert batch["id"].tolist() == [4, 41, 78]
    assert batch["pair"][0].flat_values.tolist() == [0, 1, 2, 3, 0, 0, 1, 2]
    assert [splits.tolist() for splits in batch["pair"][0].nested_row_splits] == [[0, 4, 5, 8]]
    assert list(dataset.ragged_batch(4, drop_remainder=True)) == []
    with pytest.raises(ValueError, match=r"arrays of \[1, 2\] dimensions"):
        list(TFRecordDataset(files).take(3).map(lambda r: np.zeros((1,) * (1 + len(r) % 2))).ragged_batch(2))
    with pytest.raises(TypeError, match="a RaggedTensor is not an array"):
        list(dataset.ragged_batch(2).map(lambda batch: batch["pair"][0]).padded_batch(2))


FEATURES: dict[str, Feature] = {
    "id": FixedLenFeature([], np.int64),
    "name": FixedLenFeature([], bytes),
    "ids": VarLenFeature(np.int64),
}


@pytest.fixture
def examples(tmp_path: Path) -> str:
    records = [encode_example({"id": [i], "name": [b"%d" % i], "ids": list(range(i % 4))}) for i in range(40)]
    (tmp_path / "examples").write_bytes(encode_records(records))
    return str(tmp_path / "examples")


@pytest.mark.parametrize("calls", [None, 1, 3, streamrec.AUTOTUNE])
@pytest.mark.parametrize("string_columns", [False, True])
def test_examples_are_parsed_in_batches(examples: str, string_columns: bool, calls: int | None) -> None:
    batched = TFRecordDataset(examples, "", 300).batch(16)
    dataset = batched.parse_example(FEATURES, string_columns=string_columns, num_parallel_calls=calls)
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    batches = list(dataset)
    assert [batch["id"].tolist() for batch in batches] == [[*range(16)], [*range(16, 32)], [*range(32, 40)]]
    assert all(isinstance(batch["name"], BytesColumn) == string_columns for batch in batches)
    assert [name for batch in batches for name in np.asarray(batch["name"])] == [b"%d" % i for i in range(40)]
    assert batches[2]["ids"].dense_shape.tolist() == [8, 3]


@pytest.mark.parametrize("calls", [None, 2])
def test_parsed_batches_resume_and_have_rows(examples: str, calls: int | None) -> None:
    parsed = TFRecordDataset(examples, "", 300).batch(16).parse_example(FEATURES, num_parallel_calls=calls)
    assert_resumes_everywhere(parsed)
    assert_resumes_everywhere(parsed.unbatch().skip(7))
    rows = list(parsed.unbatch())
    assert [row["name"] for row in rows] == [b"%d" % i for i in range(40)]
    assert [row["ids"].values.tolist() for row in rows] == [list(range(i % 4)) for i in range(40)]
    first = next(iter(TFRecordDataset(examples).parse_example(FEATURES)))
    assert (first["id"], first["name"]) == (0, b"0")


def test_a_position_belongs_to_the_features_that_were_parsed(examples: str) -> None:
    """However many are parsed at once."""
    batched = TFRecordDataset(examples, "", 300).batch(16)
    iterator = batched.parse_example(FEATURES, num_parallel_calls=2).iterate()
    next(iterator)
    state = iterator.state_dict()
    iterator.close()
    following = batched.parse_example(FEATURES, num_parallel_calls=streamrec.AUTOTUNE).iterate(state)
    assert [batch["id"].tolist() for batch in following] == [[*range(16, 32)], [*range(32, 40)]]
    with pytest.raises(PositionMismatchError):
        batched.parse_example({"id": FEATURES["id"]}, num_parallel_calls=2).iterate(state)


def test_a_record_that_is_not_an_example_is_an_error_after_those_before(examples: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(encode_records([b"no example"]))
    found = []
    with pytest.raises(streamrec.FeatureError):
        for batch in TFRecordDataset([examples, f"{tmp_path}/bad"]).batch(10).parse_example(FEATURES):
            found += batch["id"].tolist()
    assert found == list(range(40))


def failing(record: bytes) -> bool:
    if record == ALL[17]:
        raise ZeroDivisionError("here")
    return True


@pytest.mark.parametrize("stage", ["filter", "take_while", "map"])
@pytest.mark.parametrize("last", [17, 49])
def test_an_error_comes_once_after_what_came_before(files: list[str], stage: str, last: int) -> None:
    dataset = getattr(TFRecordDataset(files).take(last + 1), stage)(failing).batch(10)
    found = []
    iterator = dataset.iterate()
    with pytest.raises(ZeroDivisionError) as caught:
        for batch in iterator:
            found += list(batch)
    assert "failing" in [entry.name for entry in caught.traceback]
    assert len(found) == 17
    assert sum(map(len, iterator)) == last - 17


def test_stages_are_values_and_check_their_arguments(files: list[str]) -> None:
    dataset = TFRecordDataset(files).skip(1).shard(2, 0).filter(long).padded_batch(2, [None], -1).unbatch().enumerate()
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    for stage, arguments in {"shard": (0, 0), "padded_batch": (0,), "ragged_batch": (0,), "rebatch": (0,)}.items():
        with pytest.raises(ValueError, match="must be a whole number, 1 or more"):
            getattr(dataset, stage)(*arguments)
    with pytest.raises(ValueError, match="less than num_shards=2"):
        dataset.shard(2, 2)
    with pytest.raises(PositionMismatchError, match=r"had Filter\(.*long\), and now there is TakeWhile"):
        TFRecordDataset(files).take_while(long).iterate(TFRecordDataset(files).filter(long).iterate().state_dict())


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


def failing_source(number: int) -> int:
    if number == 25:
        raise ZeroDivisionError("here")
    return int(number) % 3


def test_an_error_of_the_function_comes_after_all_that_waits() -> None:
    dataset = Dataset.range(90).bucket_by_sequence_length(failing_source, [1, 2], [4, 4, 4])
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


def test_an_error_in_a_batch_comes_after_the_batches_before_it() -> None:
    dataset = sequences([1, 1, 4, 5, 1, 1, 4, 4]).bucket_by_sequence_length(first_length, [2], [2, 2], no_padding=True)
    iterator = dataset.iterate()
    assert next(iterator)[1].tolist() == [0, 1]
    with pytest.raises(ValueError, match="shapes"):
        next(iterator)


def test_arguments_that_do_not_fit_are_refused() -> None:
    dataset = Dataset.range(3)
    with pytest.raises(ValueError, match="2 bucket_batch_sizes for 2 bucket_boundaries"):
        dataset.bucket_by_sequence_length(len, [1, 2], [1, 2])
    with pytest.raises(ValueError, match="must increase"):
        dataset.bucket_by_sequence_length(len, [2, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="1 or more"):
        dataset.bucket_by_sequence_length(len, [2], [1, 0])
    state = dataset.bucket_by_sequence_length(len, [2], [1, 2]).iterate().state_dict()
    with pytest.raises(PositionMismatchError, match=r"Bucket\(builtins.len, \[2\]"):
        dataset.bucket_by_sequence_length(len, [3], [1, 2]).iterate(state)
