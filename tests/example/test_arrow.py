"""Columns through the Arrow PyCapsule interface: to pyarrow, Polars and DuckDB, without a copy
where layouts agree.
"""

import gc
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
import streamrec.notebook
from streamrec import (
    ArrowBatch,
    FeatureError,
    FixedLenFeature,
    RaggedTensor,
    TFRecordDataset,
    encode_example,
)
from tests.example.strategies import ALL_PARTITIONS, partitioned
from tests.runs import flip_bit, write_shards

FEATURES = {
    "number": FixedLenFeature([], np.int64),
    "pair": FixedLenFeature([2], np.float32),
    "name": FixedLenFeature([], bytes),
    "ragged": streamrec.RaggedFeature(np.int64),
    "wide": streamrec.RaggedFeature(np.float32, row_splits_dtype=np.int64),
    "sparse": streamrec.VarLenFeature(bytes),
}


def example_row(index: int) -> dict[str, Any]:
    return {
        "number": index,
        "pair": [float(index), 0.5],
        "name": b"n%d" % index,
        "ragged": list(range(index % 4)),
        "wide": [0.25] * (index % 3),
        "sparse": [b"s"] * (index % 2),
    }


@given(count=st.integers(0, 20), string_columns=st.booleans())
def test_every_kind_of_column_gives_its_rows(count: int, string_columns: bool) -> None:
    rows = [example_row(index) for index in range(count)]
    columns = streamrec.parse_example(
        [encode_example(row) for row in rows], FEATURES, string_columns=string_columns
    )
    batch = pa.record_batch(ArrowBatch(columns))
    batch.validate(full=True)
    assert batch.to_pylist() == rows


def test_numbers_are_not_copied() -> None:
    columns = streamrec.parse_example(
        [encode_example(example_row(index)) for index in range(9)], FEATURES
    )
    batch = pa.record_batch(ArrowBatch(columns))
    assert batch["number"].buffers()[1].address == columns["number"].ctypes.data
    assert batch["ragged"].values.buffers()[1].address == columns["ragged"].flat_values.ctypes.data


def test_strings_back_to_back_are_not_copied() -> None:
    data = b"onetwothree"
    column = streamrec.BytesColumn(data, np.array([[3, 6], [6, 11]]))
    array = pa.record_batch(ArrowBatch({"s": column}))["s"]
    assert array.to_pylist() == [b"two", b"three"]
    assert array.buffers()[2].address == np.frombuffer(data, np.uint8).ctypes.data


def test_memory_outlives_the_columns_and_is_given_back_in_any_thread() -> None:
    freed = threading.Event()
    array = np.arange(1000)
    weakref.finalize(array, freed.set)
    batches = [pa.record_batch(ArrowBatch({"x": array}))]
    del array
    gc.collect()
    assert not freed.is_set()
    assert batches[0]["x"].to_pylist() == list(range(1000))
    thread = threading.Thread(target=batches.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert freed.is_set()


def test_shapes_and_dtypes() -> None:
    columns = {
        "flags": np.array([True, False, True]),
        "cube": np.arange(12, dtype=np.int16).reshape(3, 2, 2),
        "halves": np.array([1, 2, 3], np.float16),
        "strings": np.array([[b"a", b"b"], [b"c", b"d"], [b"", b"f"]], object),
        "nested": RaggedTensor(
            np.arange(6).reshape(3, 2), (np.array([0, 1, 1, 2]), np.array([0, 2, 3]))
        ),
    }
    batch = pa.record_batch(ArrowBatch(columns))
    batch.validate(full=True)
    assert batch.to_pydict() == {
        "flags": [True, False, True],
        "cube": columns["cube"].tolist(),
        "halves": [1, 2, 3],
        "strings": [[b"a", b"b"], [b"c", b"d"], [b"", b"f"]],
        "nested": [[[[0, 1], [2, 3]]], [], [[[4, 5]]]],
    }


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": np.zeros(2), "b": np.zeros(3)}, "different numbers of rows (a: 2, b: 3)"),
        ({"a": np.zeros(2, complex)}, "dtype complex128 has no counterpart"),
        ({"a": np.array([1, "x"], object)}, "unless it is of bytes"),
        (
            {"a": np.ma.array([1, 2], mask=[False, True])},
            "a masked array lacks some values",
        ),
        ({"a": pa.array([1, None])}, "unless it is of bytes"),
        ({"a": np.int64(3)}, "call batch first"),
        ({5: np.zeros(2)}, "a feature's name is 5 (int): it must be a str"),
        ({"\ud800": np.zeros(2)}, "cannot be encoded as UTF-8"),
        ({"a": {"\ud800": np.zeros(2)}}, "cannot be encoded as UTF-8"),
        (
            {
                "a": streamrec.SparseTensor(
                    np.zeros((1, 3), np.int64), np.ones(1), np.array([1, 1, 1])
                )
            },
            "RaggedFeature",
        ),
    ],
)
def test_a_value_without_an_arrow_type_is_an_error_that_says_so(
    columns: dict[Any, Any], message: str
) -> None:
    with pytest.raises(FeatureError, match=message.replace("(", r"\(").replace(")", r"\)")):
        ArrowBatch(columns)


THREE_NUMBERS = np.arange(3)


def sparse_tensor(indices: Any, shape: list[int]) -> streamrec.SparseTensor:
    return streamrec.SparseTensor(
        np.array(indices, np.int64).reshape(-1, len(shape)),
        THREE_NUMBERS[: len(indices)],
        np.array(shape),
    )


UNSOUND = [
    (
        RaggedTensor(THREE_NUMBERS, (np.array([0, 12]),)),
        "row splits from 0 to 12 must go from 0 to 3",
    ),
    (
        RaggedTensor(THREE_NUMBERS, (np.array([0, 2**40]),)),
        "row splits from 0 to 1,099,511,627,776",
    ),
    (
        RaggedTensor(THREE_NUMBERS, (np.array([0, 2]),)),
        "row splits from 0 to 2 must go from 0 to 3",
    ),
    (RaggedTensor(THREE_NUMBERS, (np.array([1, 3]),)), "row splits from 1 to 3"),
    (RaggedTensor(THREE_NUMBERS, (np.array([0, 9, 3]),)), "record 1, .*row splits descend"),
    (RaggedTensor(THREE_NUMBERS, (np.array([0, -1, 3]),)), "record 0, .*row splits descend"),
    (RaggedTensor(THREE_NUMBERS, (np.zeros(0, np.int64),)), "row splits of shape .0."),
    (RaggedTensor(THREE_NUMBERS, (np.array([0.0, 3.0]),)), "dtype float64"),
    (
        RaggedTensor(THREE_NUMBERS, (np.array([0, 2]), np.array([0, 3]))),
        "row splits from 0 to 2 must go from 0 to 1",
    ),
    (RaggedTensor(THREE_NUMBERS, ()), "has no row splits"),
    (
        sparse_tensor([[0, 0], [0, 7]], [1, 5]),
        r"the index \[0, 7\] of a sparse tensor is outside its dense_shape \[1, 5\]",
    ),
    (sparse_tensor([[5, 0]], [1, 5]), "outside its dense_shape"),
    (sparse_tensor([[-1, 0]], [1, 5]), "outside its dense_shape"),
    (
        streamrec.SparseTensor(np.zeros((1, 2), np.int64), THREE_NUMBERS, np.array([1, 1])),
        "are not a sparse tensor",
    ),
]
OUT_OF_ORDER = [
    (sparse_tensor([[0, 0], [0, 2]], [1, 5]), "a list are in order, without gaps"),
    (sparse_tensor([[1, 0], [0, 0]], [2, 1]), "out of order"),
    (sparse_tensor([], [2**62, 1]), "4,611,686,018,427,387,904 rows has only 0 values"),
]


@pytest.mark.parametrize(("column", "message"), UNSOUND + OUT_OF_ORDER)
def test_a_tensor_that_leads_outside_of_its_values_never_leaves(column: Any, message: str) -> None:
    for leave in (ArrowBatch, streamrec.encode_examples):
        with pytest.raises(FeatureError, match=message):
            leave({"x": column})
    rows = streamrec.Dataset.from_generator(lambda: iter([{"x": column}])).unbatch()
    if "gaps" not in message:
        with pytest.raises(FeatureError):
            list(rows)


@pytest.mark.parametrize(("column", "message"), UNSOUND)
def test_a_notebook_does_not_show_a_value_without_an_arrow_type(column: Any, message: str) -> None:
    with pytest.raises(FeatureError, match=message):
        streamrec.notebook.show({"x": column})


@given(st.sampled_from(ALL_PARTITIONS).flatmap(partitioned), st.booleans())
def test_every_feature_that_makes_records_also_parses_them(
    case: tuple[streamrec.RaggedFeature, list[bytes]], string_columns: bool
) -> None:
    """Partitions come from the record: most fit, and the others are an error when they are
    parsed.
    """
    feature, records = case
    for data, parse in [
        (records, streamrec.parse_example),
        *((record, streamrec.parse_single_example) for record in records),
    ]:
        with suppress(FeatureError):
            found = parse(data, {"x": feature}, string_columns=string_columns)
            pa.array(ArrowBatch(found)).validate(full=True)


@pytest.mark.parametrize("dtype", [">i8", ">f4", ">u2"])
def test_the_other_byte_order_is_turned(dtype: str) -> None:
    splits = np.array([0, 3, 3], ">i4")
    batch = pa.record_batch(
        ArrowBatch({"x": np.array([1, 2], dtype), "r": RaggedTensor(THREE_NUMBERS, (splits,))})
    )
    batch.validate(full=True)
    assert batch.to_pydict() == {"x": [1, 2], "r": [[0, 1, 2], []]}


def test_strings_that_changed_are_checked() -> None:
    places = np.array([[0, 3], [3, 6]])
    column = streamrec.BytesColumn(b"onetwo", places)
    places[1] = 3, 2**40
    for leave in (lambda: ArrowBatch({"s": column}), lambda: pa.array(column)):
        with pytest.raises(ValueError, match="span"):
            leave()


def write_shard(folder: Path, count: int = 100) -> str:
    [path] = write_shards(
        folder, [map(encode_example, map(example_row, range(count)))], "x.tfrecord"
    )
    return path


def test_a_dataset_is_a_table(tmp_path: Path) -> None:
    dataset = TFRecordDataset(write_shard(tmp_path)).batch(7).parse_example(FEATURES)
    table = pa.table(dataset)
    assert table.to_pylist() == [example_row(index) for index in range(100)]
    assert [len(batch) for batch in dataset.to_arrow()] == [7] * 14 + [2]


def test_polars_and_duckdb_take_a_dataset(tmp_path: Path) -> None:
    dataset = TFRecordDataset(write_shard(tmp_path)).batch(10).parse_example(FEATURES)
    assert polars.DataFrame(dataset)["number"].sum() == 4950
    reader = dataset.to_arrow()
    assert duckdb.from_arrow(reader).aggregate("sum(number), count(name)").fetchall() == [
        (4950, 100)
    ]


def test_records_are_one_column(tmp_path: Path) -> None:
    table = pa.table(TFRecordDataset(write_shard(tmp_path, 5)).batch(2))
    assert table["record"].to_pylist() == [encode_example(example_row(index)) for index in range(5)]


def test_a_dataset_without_elements_has_the_schema_of_its_features(tmp_path: Path) -> None:
    whole, nothing = (
        pa.table(TFRecordDataset(write_shard(tmp_path, count)).batch(7).parse_example(FEATURES))
        for count in (9, 0)
    )
    assert nothing.num_rows == 0
    assert nothing.schema == whole.schema


def test_damage_comes_out_of_arrow_with_its_place(tmp_path: Path) -> None:
    path = write_shard(tmp_path)
    flip_bit(path, -5)
    reader = TFRecordDataset(path).batch(10).parse_example(FEATURES).to_arrow()
    with pytest.raises(streamrec.CorruptRecordError, match=r"x\.tfrecord, record 99, byte"):
        reader.read_all()


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_missing_feature_comes_out_of_arrow_with_its_place(
    tmp_path: Path, shuffled: bool
) -> None:
    shards = [[encode_example({"id": 0})] * 100 for _ in range(3)]
    shards[1][57] = encode_example({"other": 1})
    files = write_shards(tmp_path, shards)
    records = TFRecordDataset(files)
    if shuffled:
        records = records.shuffle(100, seed=1)
    batches = records.batch(16).parse_example({"id": FixedLenFeature([], "int64")})
    place = f": {files[1]}, record 57"
    with pytest.raises(FeatureError, match=r"record \d+, feature 'id': found nothing") as caught:
        batches.to_arrow().read_all()
    assert caught.value.__notes__[-1].endswith(place)
    with pytest.raises(pa.ArrowInvalid, match=r"feature 'id': found nothing") as other:
        pa.table(batches)
    assert place in str(other.value)


def test_a_sequence_feature_is_what_was_written_without_padding(tmp_path: Path) -> None:
    features: dict[str, Any] = {
        "ragged": streamrec.FixedLenSequenceFeature([], np.int64, allow_missing=True),
        "pair": streamrec.FixedLenSequenceFeature([2], np.float32, allow_missing=True),
        "sparse": streamrec.FixedLenSequenceFeature([], bytes, allow_missing=True),
    }
    dataset = TFRecordDataset(write_shard(tmp_path, 6)).batch(4).parse_example(features)
    wanted = [example_row(index) for index in range(6)]
    assert pa.table(dataset).to_pylist() == [
        {"ragged": row["ragged"], "pair": [row["pair"]], "sparse": row["sparse"]} for row in wanted
    ]
    parallel = (
        TFRecordDataset(write_shard(tmp_path, 6))
        .batch(4)
        .parse_example(features, num_parallel_calls=2)
    )
    assert pa.table(parallel) == pa.table(dataset)
    uneven = {"ragged": streamrec.FixedLenSequenceFeature([2], np.int64, allow_missing=True)}
    with pytest.raises(
        FeatureError, match=r"^record 1, feature 'ragged': found 1 values, but the shape"
    ) as caught:
        TFRecordDataset(write_shard(tmp_path, 4)).batch(4).parse_example(uneven).to_arrow()
    assert caught.value.__notes__[0].endswith(f"{tmp_path}/x.tfrecord, record 1")


def test_batches_of_another_shape_are_refused(tmp_path: Path) -> None:
    features = {"ragged": streamrec.FixedLenSequenceFeature([], np.int64, allow_missing=True)}
    dataset = TFRecordDataset(write_shard(tmp_path, 4)).batch(2).parse_example(features).map(dict)
    with pytest.raises(
        streamrec.StreamrecError,
        match=r"column 'ragged' is fixed_size_list<item: int64 not null>\[3\], but was .*\[1\]",
    ):
        dataset.to_arrow().read_all()


@pytest.mark.parametrize("string_columns", [False, True])
def test_text_is_a_string_for_all_that_read_arrow(tmp_path: Path, string_columns: bool) -> None:
    rows = [{"name": "Zoë" * (n % 3), "tags": ["ü"] * (n % 4), "raw": b"\xff"} for n in range(10)]
    files = write_shards(tmp_path, [[encode_example(row, kinds={"tags": bytes}) for row in rows]])
    features: dict[str, Any] = {
        "name": FixedLenFeature([], bytes),
        "tags": streamrec.RaggedFeature(bytes),
        "raw": FixedLenFeature([], bytes),
    }
    dataset = TFRecordDataset(files).batch(4).parse_example(features, string_columns=string_columns)
    reader = dataset.to_arrow(text=["name", "tags"])
    types = ", ".join(f"any_value(typeof({name}))" for name in features)
    assert duckdb.from_arrow(reader).aggregate(types).fetchall() == [
        ("VARCHAR", "VARCHAR[]", "BLOB")
    ]
    frame = polars.DataFrame(dataset.to_arrow(text=["name", "tags"]))
    assert dict(frame.schema) == {
        "name": polars.String,
        "tags": polars.List(polars.String),
        "raw": polars.Binary,
    }
    assert frame.to_dicts() == rows


def test_text_that_is_none_is_named_with_its_record(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"name": "a", "tags": ["b", "c"], "id": 1}] * 100
    rows[57] = {"name": b"\xe9", "tags": ["b", b"\xe9"], "id": 1}
    files = write_shards(tmp_path, [map(encode_example, rows[:50]), map(encode_example, rows)])
    features: dict[str, Any] = {
        "name": FixedLenFeature([], bytes),
        "tags": streamrec.RaggedFeature(bytes),
    }
    features["id"] = FixedLenFeature([], "int64")
    dataset = TFRecordDataset(files).batch(16).parse_example(features)
    for name in ("name", "tags"):
        with pytest.raises(
            FeatureError, match=rf"record \d+, feature '{name}': bytes that are not UTF-8"
        ) as error:
            dataset.to_arrow(text=[name]).read_all()
        assert error.value.__notes__[-1].endswith(f": {files[1]}, record 57")
    unknown = "feature 'nmae': text= names a column that does not exist: choose from id, name, tags"
    for text, kind, said in (
        (["nmae"], FeatureError, unknown),
        (["id"], FeatureError, "feature 'id': this column has no byte strings"),
        ("name", TypeError, "give a list of names"),
    ):
        with pytest.raises(kind, match=said):
            dataset.to_arrow(text=text)
    halves = streamrec.BytesColumn("éé".encode(), np.array([[0, 1], [1, 4]]))
    with pytest.raises(FeatureError, match="record 0, feature 'half'"):
        ArrowBatch({"half": halves}, text=["half"])


def test_each_stream_is_an_epoch(tmp_path: Path) -> None:
    dataset = (
        TFRecordDataset(write_shard(tmp_path))
        .shuffle(100, seed=1)
        .batch(50)
        .parse_example(FEATURES)
    )
    first, second = (pa.table(dataset)["number"].to_pylist() for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)
