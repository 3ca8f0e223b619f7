"""Sparse and ragged tensors as elements: batched, split, batched again and bucketed as tf.data does it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import Dataset, RaggedTensor, SparseTensor, TFRecordDataset
from streamrec.pipeline.elements.columns import Columns, join_windows, select
from streamrec.pipeline.elements.ragged_rows import SparseRows
from streamrec.pipeline.sources.shuffle.buffer_store import weights_of
from tests.servers.resuming import assert_resumes_everywhere

FEATURES: dict[str, Any] = {
    "a": streamrec.VarLenFeature(np.int64),
    "s": streamrec.VarLenFeature(bytes),
    "r": streamrec.RaggedFeature(np.float32, partitions=[streamrec.RaggedFeature.RowLengths("l")], value_key="r"),
    "t": streamrec.RaggedFeature(bytes, partitions=[streamrec.RaggedFeature.RowLengths("l")], value_key="t"),
    "id": streamrec.FixedLenFeature([], np.int64),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Examples whose lists have from 0 to 6 values."""
    path = tmp_path_factory.mktemp("composite") / "x.tfrecord"
    with streamrec.TFRecordWriter(str(path)) as writer:
        for number in range(23):
            count = number * 3 % 7
            example = {
                "id": number,
                "a": list(range(count)),
                "s": [b"%d" % value for value in range(count)],
                "r": [value / 2 for value in range(count)],
                "t": [b"%d" % value for value in range(count)],
                "l": [count - count // 2, count // 2],
            }
            kinds = {"a": np.int64, "s": bytes, "r": np.float32, "t": bytes, "l": np.int64, "id": np.int64}
            kept = {key: value for key, value in example.items() if not isinstance(value, list) or value}
            writer.write(streamrec.encode_example(kept, kinds={key: kinds[key] for key in kept}))
    return str(path)


def elements(path: str) -> Dataset[Any]:
    return TFRecordDataset(path).map(lambda record: streamrec.parse_single_example(record, FEATURES))


def told(value: Any) -> Any:
    """An element, of either library, as something that compares; dtypes of indices and splits included."""
    if hasattr(value, "numpy") and not hasattr(value, "nested_row_splits"):
        value = value.numpy()
    if isinstance(value, dict):
        return {key: told(part) for key, part in value.items()}
    if hasattr(value, "dense_shape"):
        return ("sparse", told(value.indices), told(value.values), told(value.dense_shape))
    if hasattr(value, "nested_row_splits"):
        return ("ragged", told(value.flat_values), [told(splits) for splits in value.nested_row_splits])
    if isinstance(value, tuple):
        return tuple(map(told, value))
    if isinstance(value, streamrec.BytesColumn):
        value = value.to_numpy()
    array = np.asarray(value)
    return (array.dtype.str, array.shape, array.tolist())


def test_the_pattern_of_every_tutorial(path: str) -> None:
    batches = list(elements(path).batch(3))
    assert [batch["a"].dense_shape.tolist() for batch in batches[:2]] == [[3, 6], [3, 5]]
    assert batches[0]["a"].indices.tolist() == [[1, 0], [1, 1], [1, 2], *([2, index] for index in range(6))]
    assert batches[0]["s"].values.tolist() == [b"0", b"1", b"2", b"0", b"1", b"2", b"3", b"4", b"5"]
    assert [splits.tolist() for splits in batches[0]["r"].nested_row_splits] == [[0, 2, 4, 6], [0, 0, 0, 2, 3, 6, 9]]
    assert len(batches[-1]["id"]) == 2


CHAINS: list[Callable[[Any], Any]] = [
    lambda ds: ds.batch(4),
    lambda ds: ds.batch(4, drop_remainder=True),
    lambda ds: ds.take(22).batch(2).batch(3),
    lambda ds: ds.batch(5).unbatch(),
    lambda ds: ds.batch(5).unbatch().batch(3),
    lambda ds: ds.batch(5).rebatch(2),
    lambda ds: ds.batch(2).rebatch(5, drop_remainder=True),
    lambda ds: ds.ragged_batch(4),
    lambda ds: ds.batch(3).take(2).repeat(2).unbatch().skip(1).batch(4),
]


@pytest.mark.peer
@pytest.mark.parametrize("chain", CHAINS)
def test_as_tensorflow_does(path: str, chain: Callable[[Any], Any]) -> None:
    """Values, shapes, and the dtypes of indices and splits."""
    tf = pytest.importorskip("tensorflow")
    features = {
        "a": tf.io.VarLenFeature(tf.int64),
        "s": tf.io.VarLenFeature(tf.string),
        "r": tf.io.RaggedFeature(tf.float32, value_key="r", partitions=[tf.io.RaggedFeature.RowLengths("l")]),
        "t": tf.io.RaggedFeature(tf.string, value_key="t", partitions=[tf.io.RaggedFeature.RowLengths("l")]),
        "id": tf.io.FixedLenFeature([], tf.int64),
    }
    parsed = tf.data.TFRecordDataset(path).map(lambda record: tf.io.parse_single_example(record, features))
    theirs = [told(element) for element in chain(parsed)]
    assert [told(element) for element in chain(elements(path))] == theirs


@pytest.mark.peer
def test_buckets_as_tensorflow_makes_them(path: str) -> None:
    tf = pytest.importorskip("tensorflow")
    lengths = [tf.io.RaggedFeature.RowLengths("l")]
    features = {
        "a": tf.io.VarLenFeature(tf.int64),
        "r": tf.io.RaggedFeature(tf.float32, value_key="r", partitions=lengths),
    }
    parsed = tf.data.TFRecordDataset(path).map(lambda record: tf.io.parse_single_example(record, features))
    theirs = parsed.bucket_by_sequence_length(
        lambda element: tf.shape(element["a"].values)[0], [2, 5], [3, 2, 4], no_padding=True
    )
    mine = (
        TFRecordDataset(path)
        .map(lambda record: streamrec.parse_single_example(record, {key: FEATURES[key] for key in features}))
        .bucket_by_sequence_length(lambda element: len(element["a"].values), [2, 5], [3, 2, 4], no_padding=True)
    )
    assert [told(element) for element in mine] == [told(element) for element in theirs]


@pytest.mark.parametrize(
    "chain", [*CHAINS, lambda ds: ds.batch(3).unbatch().shuffle(5, seed=1).batch(2), lambda ds: ds.batch(4).cache()]
)
def test_they_resume_everywhere(path: str, chain: Callable[[Any], Any]) -> None:
    assert_resumes_everywhere(chain(elements(path)))


@pytest.mark.parametrize("name", ["", "file"])
def test_caches_keep_their_kinds(tmp_path: Path, path: str, name: str) -> None:
    dataset = elements(path).batch(5).unbatch().cache(str(tmp_path / name) if name else "").batch(3)
    assert [told(batch) for batch in dataset] == [told(batch) for batch in dataset]
    assert [told(batch) for batch in dataset] == [told(batch) for batch in elements(path).batch(5).rebatch(3)]


def test_shapes_that_do_not_fit_are_named() -> None:
    def sparse(rank: int) -> SparseTensor:
        return SparseTensor(np.zeros((1, rank), np.int64), np.ones(1), np.ones(rank, np.int64))

    with pytest.raises(ValueError, match=r"sparse tensors of \[1, 2\] dimensions"):
        list(Dataset.range(1, 3).map(lambda number: sparse(int(number))).batch(2))

    def ragged(number: int) -> RaggedTensor:
        return RaggedTensor(np.zeros((2, number)), (np.array([0, 1, 2]),))

    with pytest.raises(ValueError, match=r"inner shape \(1,\) and 1 ragged dimensions, inner shape \(2,\)"):
        list(Dataset.range(1, 3).map(lambda number: ragged(int(number))).batch(2))


def test_rows_of_sparse_tensors_are_a_column() -> None:
    rng = np.random.default_rng(3)
    dense = [rng.integers(0, 2, (rng.integers(1, 6), 3, rng.integers(1, 5))) for _ in range(20)]
    parts = []
    for array in dense:
        indices = np.argwhere(array)
        parts.append(SparseRows.of(SparseTensor(indices, array[tuple(indices.T)], np.array(array.shape))))
    rows = [row for part in parts for row in part]
    column = join_windows([Columns(part) for part in parts])
    assert [told(row) for row in column] == [told(row) for row in rows]
    order = rng.permutation(len(rows))
    picked = select(column, order)
    assert [told(row) for row in picked] == [told(rows[index]) for index in order]
    assert told(picked.nest.tensor()) == told(streamrec.pipeline.stages.batch.stack([rows[i] for i in order]))
    assert told(picked[2:7].nest.tensor()) == told(streamrec.pipeline.stages.batch.stack([rows[i] for i in order[2:7]]))
    assert len(weights_of(column)) == len(rows)
