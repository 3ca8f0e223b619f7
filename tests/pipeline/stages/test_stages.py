"""The stages that pick, split, join and bucket elements: what they give, and what stays
columnar.
"""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    FixedLenFeature,
    Frames,
    TFRecordDataset,
    VarLenFeature,
    encode_example,
    encode_records,
)
from streamrec.errors import PositionMismatchError
from streamrec.example.features import Feature
from tests.pipeline.stored_shards import ALL
from tests.runs import until_error
from tests.servers.resuming import assert_resumes_everywhere, plain, stop_after


def is_long(record: bytes) -> bool:
    return len(record) > 50


def as_dict(record: bytes) -> dict[str, Any]:
    return {"id": len(record), "pair": (np.arange(len(record) % 5), record)}


def as_arrays(record: bytes) -> dict[str, Any]:
    return {"a": np.arange(len(record) % 4), "b": (np.full(len(record) % 4, len(record)),)}


COLUMNAR: dict[str, Callable[[Dataset[bytes], list[str], str], Dataset[Any]]] = {
    "filter": lambda records, files, path: records.filter(is_long),
    "enumerate": lambda records, files, path: records.skip(3).enumerate(),
    "rebatch": lambda records, files, path: records.batch(7).rebatch(3).unbatch(),
    "padded_batch": lambda records, files, path: records.padded_batch(9).unbatch(),
    "bucket": lambda records, files, path: (
        records.enumerate()
        .bucket_by_sequence_length(length_of, [20, 60], [3, 4, 5], no_padding=True)
        .unbatch()
    ),
    "shuffle": lambda records, files, path: records.enumerate().shuffle(13, seed=1),
    "cache": lambda records, files, path: records.cache().repeat(2),
    "batches in a cache": lambda records, files, path: (
        records.batch(8, True).cache().repeat(2).unbatch()
    ),
    "cache in a file": lambda records, files, path: records.cache(path).repeat(2),
    "zip": lambda records, files, path: Dataset.zip(
        records.batch(2, True), Dataset.range(100), records
    ),
    "interleave": lambda records, files, path: Dataset.list_files(files).interleave(
        TFRecordDataset, 3, 2
    ),
    "interleave of pairs": lambda records, files, path: Dataset.list_files(files).interleave(
        numbered, 3
    ),
    "flat_map": lambda records, files, path: Dataset.list_files(files).flat_map(TFRecordDataset),
    "sample": lambda records, files, path: Dataset.sample_from_datasets([records, records], seed=1),
    "choose": lambda records, files, path: Dataset.choose_from_datasets(
        [records] * 2, Dataset.range(9).map(is_odd)
    ),
}


def length_of(number: Any, record: bytes) -> int:
    return len(record)


def numbered(name: bytes) -> Dataset[Any]:
    return TFRecordDataset(name).enumerate()


def is_odd(number: Any) -> Any:
    return number % 2


def record_of(element: Any) -> Any:
    return element[-1] if isinstance(element, tuple) else element


@pytest.mark.usefixtures("both_layouts")
@pytest.mark.parametrize("name", COLUMNAR)
def test_records_stay_frames(files: list[str], tmp_path: Path, name: str) -> None:
    """Also in pairs, and where a batch is of several chunks."""
    dataset = COLUMNAR[name](
        TFRecordDataset(files, "", 100), files, str(tmp_path / "cache")
    ).with_options(epoch=0)
    batches = [record_of(batch) for batch in dataset.batch(7)]
    assert all(isinstance(batch, Frames) for batch in batches)
    assert [record for batch in batches for record in batch] == [
        record_of(element) for element in dataset
    ]


def test_few_records_of_many_keep_no_block_alive(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(encode_records([b"%06d" % index * 100 for index in range(1000)]))
    (batch,) = TFRecordDataset(f"{tmp_path}/x").shard(100, 3).batch(1000)
    assert [record[:6] for record in batch] == [b"%06d" % index for index in range(3, 1000, 100)]
    assert memoryview(batch.buffer).nbytes < 2 * batch.nbytes


def test_a_stage_that_has_ended_takes_no_elements_that_earlier_stages_still_hold(
    files: list[str],
) -> None:
    """The last, smaller batch comes when the input ends, after the end that `take_while` found."""
    once = Dataset.range(10).batch(4).unbatch().take_while(lambda number: number in (0, 8))
    assert list(once) == [0]


def test_unbatch_and_rebatch(files: list[str]) -> None:
    dataset = TFRecordDataset(files)
    assert [plain(element) for element in dataset.map(as_dict).batch(1).unbatch()] == [
        {"id": len(record), "pair": ("tuple", ("<i8", list(range(len(record) % 5))), record)}
        for record in ALL
    ]
    columns = list(dataset.map(as_arrays).rebatch(6))
    assert np.concatenate([batch["b"][0] for batch in columns]).tolist() == [
        len(record) for record in ALL for _ in range(len(record) % 4)
    ]


def test_unbatch_refuses_elements_without_rows(files: list[str]) -> None:
    with pytest.raises(TypeError, match="an int has no rows"):
        list(TFRecordDataset(files).map(len).unbatch())
    with pytest.raises(ValueError, match=r"the columns have \[1, 2\] rows"):
        list(TFRecordDataset(files).map(lambda record: (np.zeros(1), np.zeros(2))).unbatch())


def test_padded_batches(files: list[str]) -> None:
    dataset = TFRecordDataset(files).map(as_dict).take(3)  # lengths 4, 41, 78
    (batch,) = dataset.padded_batch(4, padding_values={"id": None, "pair": (-1, b"?")})
    assert batch["id"].tolist() == [4, 41, 78]
    assert batch["pair"][0].tolist() == [[0, 1, 2, 3], [0, -1, -1, -1], [0, 1, 2, -1]]
    assert batch["pair"][1].tolist() == ALL[:3]
    with pytest.raises(
        ValueError, match=r"element\['pair'\]\[0\]: an array of up to \[4\] does not fit"
    ):
        list(dataset.padded_batch(4, {"id": (), "pair": ((3,), ())}))
    with pytest.raises(ValueError, match="padded_shapes has 0 dimensions"):
        list(dataset.padded_batch(4, {"id": (), "pair": ((), ())}))
    with pytest.raises(TypeError, match="a RaggedTensor is not an array"):
        list(dataset.ragged_batch(2).map(lambda batch: batch["pair"][0]).padded_batch(2))


@pytest.mark.parametrize("verb", ["padded_batch", "ragged_batch"])
def test_arrays_of_several_dimensions_make_no_batch(files: list[str], verb: str) -> None:
    dataset = TFRecordDataset(files).take(3).map(lambda r: np.zeros((1,) * (1 + len(r) % 2)))
    with pytest.raises(ValueError, match=r"arrays of \[1, 2\] dimensions"):
        list(getattr(dataset, verb)(2))


FEATURES: dict[str, Feature] = {
    "id": FixedLenFeature([], np.int64),
    "name": FixedLenFeature([], bytes),
    "ids": VarLenFeature(np.int64),
}


@pytest.fixture
def examples(tmp_path: Path) -> str:
    records = [
        encode_example({"id": [i], "name": [b"%d" % i], "ids": list(range(i % 4))})
        for i in range(40)
    ]
    (tmp_path / "examples").write_bytes(encode_records(records))
    return str(tmp_path / "examples")


@pytest.mark.parametrize("calls", [None, 1, 3, streamrec.AUTOTUNE])
@pytest.mark.parametrize("string_columns", [False, True])
def test_examples_are_parsed_in_batches(
    examples: str, string_columns: bool, calls: int | None
) -> None:
    batched = TFRecordDataset(examples, "", 300).batch(16)
    dataset = batched.parse_example(
        FEATURES, string_columns=string_columns, num_parallel_calls=calls
    )
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    batches = list(dataset)
    assert [batch["id"].tolist() for batch in batches] == [
        [*range(16)],
        [*range(16, 32)],
        [*range(32, 40)],
    ]
    assert all(
        isinstance(batch["name"], streamrec.BytesColumn) == string_columns for batch in batches
    )
    assert [name for batch in batches for name in np.asarray(batch["name"])] == [
        b"%d" % i for i in range(40)
    ]
    assert batches[2]["ids"].dense_shape.tolist() == [8, 3]


@pytest.mark.parametrize("calls", [None, 2])
def test_parsed_batches_resume_and_have_rows(examples: str, calls: int | None) -> None:
    parsed = (
        TFRecordDataset(examples, "", 300)
        .batch(16)
        .parse_example(FEATURES, num_parallel_calls=calls)
    )
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
    _, state = stop_after(batched.parse_example(FEATURES, num_parallel_calls=2), 1)
    following = batched.parse_example(FEATURES, num_parallel_calls=streamrec.AUTOTUNE).iterate(
        state
    )
    assert [batch["id"].tolist() for batch in following] == [[*range(16, 32)], [*range(32, 40)]]
    with pytest.raises(PositionMismatchError):
        batched.parse_example({"id": FEATURES["id"]}, num_parallel_calls=2).iterate(state)


def test_a_record_that_is_not_an_example_is_an_error_after_those_before(
    examples: str, tmp_path: Path
) -> None:
    (tmp_path / "bad").write_bytes(encode_records([b"no example"]))
    parsed = TFRecordDataset([examples, f"{tmp_path}/bad"]).batch(10).parse_example(FEATURES)
    found, _ = until_error(parsed, streamrec.FeatureError)
    assert np.concatenate([batch["id"] for batch in found]).tolist() == list(range(40))


def sequences(lengths: list[int], chunk: int = 100) -> Dataset[Any]:
    """Arrays of these lengths with their numbers, `chunk` of them in a chunk."""
    rows = [(np.full(length, index), index) for index, length in enumerate(lengths)]
    return Dataset.range(len(rows)).batch(chunk).unbatch().map(lambda number: rows[number])


def length_of_sequence(sequence: Any, number: int) -> int:
    return len(sequence)


def test_the_state_is_small_and_holds_no_data() -> None:
    dataset = Dataset.range(3_000).bucket_by_sequence_length(
        lambda number: int(number % 10), range(1, 10), [600] * 10
    )
    assert [len(batch) for batch in dataset] == [300] * 10
    sizes = [300, *[600] * 9]
    dataset = Dataset.range(3_001).bucket_by_sequence_length(
        lambda number: int(number % 10), range(1, 10), sizes
    )
    assert len(json.dumps(stop_after(dataset, 1)[1])) < 10_000


def failing_source(number: int) -> int:
    if number == 25:
        raise ZeroDivisionError("here")
    return int(number) % 3


def test_an_error_of_the_function_comes_after_all_that_waits() -> None:
    dataset = Dataset.range(90).bucket_by_sequence_length(failing_source, [1, 2], [4, 4, 4])
    iterator = dataset.iterate()
    found, _ = until_error(iterator, ZeroDivisionError)
    assert sorted(np.concatenate(found)) == list(range(25))
    assert sorted(number for batch in iterator for number in batch.tolist()) == list(range(26, 90))


def test_an_error_in_a_batch_comes_after_the_batches_before_it() -> None:
    dataset = sequences([1, 1, 4, 5, 1, 1, 4, 4]).bucket_by_sequence_length(
        length_of_sequence, [2], [2, 2], no_padding=True
    )
    [(_, before)], _ = until_error(dataset, ValueError, "shapes")
    assert before.tolist() == [0, 1]


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="as long as the last of bucket_boundaries"):
        list(
            sequences([6]).bucket_by_sequence_length(
                length_of_sequence, [3, 6], [2, 2, 2], pad_to_bucket_boundary=True
            )
        )
    dataset = Dataset.range(3)
    state = dataset.bucket_by_sequence_length(len, [2], [1, 2]).iterate().state_dict()
    with pytest.raises(PositionMismatchError, match=r"Bucket\(builtins.len, \[2\]"):
        dataset.bucket_by_sequence_length(len, [3], [1, 2]).iterate(state)
