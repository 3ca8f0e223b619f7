"""The sink: what goes in comes out, in shards that are whole or not there."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamrec
from streamrec import (
    Dataset,
    FeatureError,
    FixedLenFeature,
    Frames,
    RaggedFeature,
    TFRecordDataset,
    VarLenFeature,
)
from streamrec.pipeline import WriteProgress
from tests.example.compare import assert_same_columns
from tests.shards.test_writer import names, place

__all__ = ["place"]

RECORDS = [b"%d:" % index * (index % 97) for index in range(5000)]


def records() -> Dataset[Any]:
    return Dataset.from_tensor_slices(RECORDS)


def read(pattern: str, **options: Any) -> list[bytes]:
    return list(TFRecordDataset(pattern, **options))


def test_shards_one_after_the_other_keep_the_order(place: str) -> None:
    shards = records().write_sync(
        f"{place}/x-{{shard:03d}}", max_shard_records=700, manifest=f"{place}/m.json"
    )
    assert [shard.records for shard in shards] == [700] * 7 + [100]
    assert read(f"{place}/x-*") == RECORDS
    assert streamrec.verify_sync(f"{place}/m.json").ok


@pytest.mark.parametrize("compression", ["", "GZIP"])
@pytest.mark.parametrize("count", [1, 3, 7])
def test_shards_at_the_same_time_give_the_order_back(
    place: str, count: int, compression: str
) -> None:
    shards = records().write_sync(
        f"{place}/x-{{shard}}", compression, num_shards=count, manifest=f"{place}/m.json"
    )
    assert [shard.records for shard in shards] == [
        len(range(number, 5000, count)) for number in range(count)
    ]
    assert read(f"{place}/x-*", num_parallel_reads=count) == RECORDS
    assert streamrec.verify_sync(f"{place}/m.json").ok


def test_shards_that_get_nothing_are_there(place: str) -> None:
    shards = Dataset.from_tensor_slices([b"one"]).write_sync(
        f"{place}/{{shard}}-of-{{shards:02d}}", num_shards=3
    )
    assert [shard.records for shard in shards] == [1, 0, 0]
    assert [shard.path for shard in shards] == [f"{place}/{number}-of-03" for number in range(3)]
    assert Dataset.from_tensor_slices([b"x"]).take(0).write_sync(f"{place}/none-{{shard}}") == ()
    assert [
        shard.records
        for shard in Dataset.from_tensor_slices([b"x"]).take(0).write_sync(f"{place}/one")
    ] == [0]


def test_shards_are_copied_through_every_kind_of_chunk(place: str) -> None:
    records().write_sync(f"{place}/x-{{shard}}", num_shards=4)
    source = TFRecordDataset(f"{place}/x-*", num_parallel_reads=4)
    for number, dataset in enumerate(
        [
            source,
            source.batch(64),
            source.batch(7).map(lambda frames: frames),
            source.map(lambda record: record),
        ]
    ):
        dataset.write_sync(f"{place}/copy{number}-{{shard}}", num_shards=3)
        assert read(f"{place}/copy{number}-*", num_parallel_reads=3) == RECORDS
    source.map(lambda record: record).batch(9).write_sync(
        f"{place}/strings"
    )  # an array of bytes objects
    assert read(f"{place}/strings") == RECORDS


def test_dicts_are_examples(place: str) -> None:
    rows = Dataset.from_tensor_slices({"x": np.arange(10), "name": [b"%d" % n for n in range(10)]})
    expected = [streamrec.encode_example({"x": n, "name": b"%d" % n}) for n in range(10)]
    rows.write_sync(f"{place}/columns")
    rows.map(lambda row: dict(row)).write_sync(f"{place}/dicts")
    rows.batch(4).write_sync(f"{place}/batches", batched=True)
    for name in ("columns", "dicts", "batches"):
        assert read(f"{place}/{name}") == expected, name


def test_a_dict_of_arrays_says_what_it_is(place: str) -> None:
    rows = Dataset.from_tensor_slices({"x": np.arange(6).reshape(3, 2)})
    for ambiguous in (rows, rows.batch(2), rows.map(lambda row: row)):
        with pytest.raises(
            TypeError, match=r"^element 0 of this run is a dict with arrays, .*: pass batched=False"
        ):
            ambiguous.write_sync(f"{place}/x")
    assert names(place) == []
    rows.write_sync(f"{place}/x", batched=False)
    rows.batch(2).write_sync(f"{place}/y", batched=True)
    assert read(f"{place}/x") == read(f"{place}/y")
    parsed = (
        TFRecordDataset(f"{place}/x").batch(3).parse_example({"x": FixedLenFeature([2], np.int64)})
    )
    assert next(iter(parsed))["x"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_sparse_and_ragged_columns_are_written_again(place: str) -> None:
    columns = {
        "s": [[7], [8, 9], [], [3]],
        "r": [[1.5], [], [2.5, 0.5], []],
        "t": [[b"a"], [], [], [b"b", b"c"]],
    }
    columns["n"] = [1, 2, 3, 4]
    Dataset.from_tensor_slices(streamrec.encode_examples(columns)).write_sync(f"{place}/in")
    features: dict[str, Any] = {
        "n": FixedLenFeature([], np.int64),
        "s": VarLenFeature(np.int64),
        "r": RaggedFeature(np.float32, row_splits_dtype=np.int64),
        "t": VarLenFeature(bytes),
    }
    parsed = TFRecordDataset(f"{place}/in").batch(3).parse_example(features)
    parsed.write_sync(f"{place}/batches", batched=True)
    parsed.unbatch().write_sync(f"{place}/rows", batched=False)
    parsed.map(lambda batch: batch).write_sync(f"{place}/mapped", batched=True)
    [wanted] = TFRecordDataset(f"{place}/in").batch(4).parse_example(features)
    for name in ("batches", "rows", "mapped"):
        [found] = TFRecordDataset(f"{place}/{name}").batch(4).parse_example(features)
        assert_same_columns(found, wanted)
    for ambiguous in (parsed, parsed.unbatch()):
        with pytest.raises(
            TypeError, match=r"^element 0 of this run is a dict with arrays, .*: pass batched=False"
        ):
            ambiguous.write_sync(f"{place}/x")
    rows = TFRecordDataset(f"{place}/in").batch(3).map(lambda _: {"s": SPARSE, "n": np.arange(2)})
    with pytest.raises(FeatureError, match="feature 'n': 2 rows where 3 are expected, as in 's'"):
        rows.write_sync(f"{place}/x", batched=True)


SPARSE = streamrec.SparseTensor(np.array([[0, 0], [2, 0]]), np.array([1, 2]), np.array([3, 1]))


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (
            "text",
            r"is 'text' \(str\): a record .* or a dict of features is expected; map it to one by "
            r".encode\(\)",
        ),
        (7, r"is 7 \(int\): a record \(bytes\), a batch of records, or a dict"),
        (np.zeros(3), r"is array.* map it to one, as by serialize_tensor"),
        (np.int64(3), r"is np.int64\(3\)"),
        ((b"a", b"b"), r"is \(b'a', b'b'\) \(tuple\)"),
    ],
)
def test_an_element_that_is_not_a_record_is_named(place: str, element: Any, message: str) -> None:
    dataset = Dataset.from_generator(lambda: iter([b"a", b"b", element]))
    with pytest.raises(TypeError, match=f"element 2 of this run {message}"):
        dataset.write_sync(f"{place}/x")
    assert names(place) == []


def test_a_value_that_is_not_a_feature_is_named(place: str) -> None:
    dataset = Dataset.from_generator(lambda: iter([{"x": 1}, {"x": None}]))
    with pytest.raises(FeatureError) as caught:
        dataset.write_sync(f"{place}/x", batched=False)
    assert caught.value.__notes__ == ["in write: element 1 of this run"]
    assert names(place) == []


def test_nothing_is_replaced_where_that_is_not_wanted(place: str) -> None:
    records().write_sync(f"{place}/1")
    with pytest.raises(streamrec.errors.AlreadyExistsError):
        Dataset.from_tensor_slices([b"new"] * 4).write_sync(
            f"{place}/{{shard}}", num_shards=3, overwrite=False
        )
    assert read(f"{place}/1") == RECORDS


def fails_at_300(record: bytes) -> bytes:
    if record == RECORDS[300]:
        raise ZeroDivisionError
    return record


@pytest.mark.parametrize("layout", [{"num_shards": 3}, {"max_shard_bytes": 1 << 20}])
def test_an_error_leaves_nothing(place: str, layout: dict[str, int]) -> None:
    with pytest.raises(ZeroDivisionError):
        records().map(fails_at_300).write_sync(
            f"{place}/{{shard}}", manifest=f"{place}/m", **layout
        )  # type: ignore[arg-type]
    assert names(place) == []


def test_progress_is_reported(place: str) -> None:
    told: list[WriteProgress] = []
    shards = records().write_sync(
        f"{place}/{{shard}}", max_shard_records=1000, progress=told.append
    )
    assert told[-1] == WriteProgress(5000, sum(map(len, RECORDS)) + 16 * 5000, 5)
    assert told[-1].bytes == sum(shard.bytes for shard in shards)


def test_progress_is_shown(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    records().write_sync(f"{place}/x", progress=True)
    assert capfd.readouterr().err.startswith("streamrec: 5,000 elements")


def test_a_write_is_one_epoch(place: str) -> None:
    shuffled = records().shuffle(10_000, seed=3)
    shuffled.write_sync(f"{place}/first")
    assert read(f"{place}/first") == list(records().shuffle(10_000, seed=3)) != list(shuffled)


CHUNKS = st.lists(st.lists(st.integers(0, 50).map(bytes), max_size=20), max_size=8)


@given(CHUNKS, st.none() | st.integers(1, 200), st.none() | st.integers(1, 7))
@settings(max_examples=50, deadline=None)
def test_shards_are_as_full_as_they_may(
    chunks: list[list[bytes]], max_bytes: int | None, max_records: int | None
) -> None:
    async def write() -> list[str]:
        options: dict[str, Any] = {"max_shard_bytes": max_bytes, "max_shard_records": max_records}
        async with streamrec.ShardWriter("memory://chunks/{shard}", **options) as writer:
            for chunk in chunks:
                await writer.write_batch(Frames.of(chunk))
        return [shard.path for shard in writer.shards]

    shards = [read(path) for path in asyncio.run(write())]
    flat = [record for chunk in chunks for record in chunk]
    assert [record for shard in shards for record in shard] == flat
    for number, records in enumerate(shards):
        assert 1 <= len(records) <= (max_records or len(flat))
        size = sum(map(len, records)) + 16 * len(records)
        assert max_bytes is None or size <= max_bytes or len(records) == 1
        if number + 1 < len(shards):
            full = max_bytes is not None and size + len(shards[number + 1][0]) + 16 > max_bytes
            assert full or len(records) == max_records


@pytest.fixture(autouse=True)
def _tidy() -> Iterator[None]:
    yield
    fsspec.filesystem("memory").store.clear()


THREE_NUMBERS = Dataset.range(3)
SHARDS = TFRecordDataset("shards-*")

ENDLESS_DATASETS: dict[str, Dataset[Any]] = {
    "repeat": THREE_NUMBERS.repeat(),
    "repeat of an unknown number": SHARDS.repeat(),
    "counter": Dataset.counter(),
    "random": Dataset.random(seed=1),
    "filter": THREE_NUMBERS.repeat().filter(bool),
    "batch and unbatch": THREE_NUMBERS.repeat().batch(2).unbatch(),
    "parallel map": THREE_NUMBERS.repeat().map(abs, num_parallel_calls=2),
    "shuffle": THREE_NUMBERS.repeat().shuffle(4).prefetch(2).cache(),
    "concatenate": THREE_NUMBERS.concatenate(SHARDS.repeat()),
    "zip": Dataset.zip((THREE_NUMBERS.repeat(), SHARDS.repeat())),
    "interleave": THREE_NUMBERS.repeat().interleave(lambda _: THREE_NUMBERS),
    "sample": Dataset.sample_from_datasets(
        [THREE_NUMBERS.repeat(), THREE_NUMBERS], stop_on_empty_dataset=False
    ),
    "skip": THREE_NUMBERS.repeat().skip(5),
    "repeat again": THREE_NUMBERS.repeat().repeat(2),
}

WAYS_TO_READ_ALL: dict[str, Callable[[Dataset[Any], str], object]] = {
    "write": lambda dataset, place: dataset.write_sync(f"{place}/x-{{shard}}"),
    "save": lambda dataset, place: dataset.save(f"{place}/x"),
    "cache": lambda dataset, place: dataset.cache(f"{place}/x"),
    "reduce": lambda dataset, place: dataset.reduce(0, max),
    "list": lambda dataset, place: list(dataset),
}


@pytest.mark.parametrize("drain", WAYS_TO_READ_ALL)
def test_an_endless_dataset_is_refused_where_all_of_it_would_be_read(
    tmp_path: Path, drain: str
) -> None:
    for name, dataset in ENDLESS_DATASETS.items():
        with pytest.raises(
            ValueError,
            match=rf"{drain} would never end: .* has no end; put take\(count\) before it",
        ):
            WAYS_TO_READ_ALL[drain](dataset, str(tmp_path))
            pytest.fail(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (THREE_NUMBERS.repeat().take(4), 4),
        (THREE_NUMBERS.repeat().filter(bool).take(4), 4),
        (THREE_NUMBERS.repeat().take_while(lambda element: element < 2), 2),
        (THREE_NUMBERS.repeat().skip(-1), 0),
        (THREE_NUMBERS.repeat(0), 0),
        (THREE_NUMBERS.repeat(2), 6),
        (Dataset.range(0).repeat(), 0),
        (Dataset.zip((THREE_NUMBERS, THREE_NUMBERS.repeat())), 3),
        (
            Dataset.sample_from_datasets(
                [THREE_NUMBERS.repeat(), THREE_NUMBERS],
                [0.5, 0.5],
                stop_on_empty_dataset=True,
                seed=1,
            ),
            None,
        ),
    ],
)
def test_a_dataset_that_ends_is_not_refused_as_endless(
    tmp_path: Path, dataset: Dataset[Any], count: int | None
) -> None:
    elements = list(dataset)
    assert count is None or len(elements) == count
    dataset.save(f"{tmp_path}/x")
    assert len(list(streamrec.Dataset.load(f"{tmp_path}/x"))) == len(elements)


@pytest.mark.parametrize(
    "dataset",
    [
        THREE_NUMBERS.flat_map(lambda _: Dataset.counter()),
        THREE_NUMBERS.interleave(lambda _: THREE_NUMBERS.repeat(), cycle_length=2)
        .map(abs)
        .batch(2),
        THREE_NUMBERS.flat_map(lambda _: Dataset.counter()).shuffle(4).prefetch(1),
        THREE_NUMBERS.flat_map(lambda _: Dataset.counter()).repeat(2),
    ],
)
@pytest.mark.parametrize("drain", ["write", "save", "reduce"])
def test_a_function_that_makes_a_dataset_without_an_end(
    tmp_path: Path, drain: str, dataset: Dataset[Any]
) -> None:
    with pytest.raises(
        ValueError, match=rf"{drain} would never end: .*lambda> makes an endless dataset"
    ):
        WAYS_TO_READ_ALL[drain](dataset, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert len(list(dataset.take(3))) == 3
    dataset.take(3).save(f"{tmp_path}/three")
