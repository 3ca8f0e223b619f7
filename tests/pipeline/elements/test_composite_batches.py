"""Sparse and ragged tensors as elements: batched, split, batched again and bucketed as tf.data does
it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import Dataset, RaggedTensor, SparseTensor, TFRecordDataset
from tests.example.compare import assert_same_columns
from tests.servers.resuming import assert_resumes_everywhere, plain

FEATURES: dict[str, Any] = {
    "a": streamrec.VarLenFeature(np.int64),
    "s": streamrec.VarLenFeature(bytes),
    "r": streamrec.RaggedFeature(
        np.float32, partitions=[streamrec.RaggedFeature.RowLengths("l")], value_key="r"
    ),
    "t": streamrec.RaggedFeature(
        bytes, partitions=[streamrec.RaggedFeature.RowLengths("l")], value_key="t"
    ),
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
            kinds = {
                "a": np.int64,
                "s": bytes,
                "r": np.float32,
                "t": bytes,
                "l": np.int64,
                "id": np.int64,
            }
            kept = {
                key: value for key, value in example.items() if not isinstance(value, list) or value
            }
            writer.write(streamrec.encode_example(kept, kinds={key: kinds[key] for key in kept}))
    return str(path)


def elements(path: str) -> Dataset[Any]:
    return TFRecordDataset(path).map(
        lambda record: streamrec.parse_single_example(record, FEATURES)
    )


def length(element: Any) -> Any:
    """Of either library."""
    values = element["a"].values
    return (
        len(values)
        if isinstance(values, np.ndarray)
        else pytest.importorskip("tensorflow").shape(values)[0]
    )


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
    lambda ds: ds.bucket_by_sequence_length(length, [2, 5], [3, 2, 4], no_padding=True),
]


@pytest.mark.peer
@pytest.mark.parametrize("chain", CHAINS)
def test_as_tensorflow_does(path: str, chain: Callable[[Any], Any]) -> None:
    """Values, shapes, and the dtypes of indices and splits."""
    pytest.importorskip("tensorflow")
    from tests.example.tf_twin import arrays, tf, twins

    features = twins(FEATURES)
    parsed = tf.data.TFRecordDataset(path).map(
        lambda record: tf.io.parse_single_example(record, features)
    )
    for found, theirs in zip(chain(elements(path)), chain(parsed), strict=True):
        assert_same_columns(found, {name: arrays(theirs[name]) for name in found})


@pytest.mark.parametrize(
    "chain",
    [
        *CHAINS,
        lambda ds: ds.batch(3).unbatch().shuffle(5, seed=1).batch(2),
        lambda ds: ds.batch(4).cache(),
    ],
)
def test_they_resume_everywhere(path: str, chain: Callable[[Any], Any]) -> None:
    assert_resumes_everywhere(chain(elements(path)))


@pytest.mark.parametrize("name", ["", "file"])
def test_caches_keep_their_kinds(tmp_path: Path, path: str, name: str) -> None:
    dataset = elements(path).batch(5).unbatch().cache(str(tmp_path / name) if name else "").batch(3)
    assert [plain(batch) for batch in dataset] == [plain(batch) for batch in dataset]
    assert [plain(batch) for batch in dataset] == [
        plain(batch) for batch in elements(path).batch(5).rebatch(3)
    ]


def test_shapes_that_do_not_fit_are_named() -> None:
    def sparse(rank: int) -> SparseTensor:
        return SparseTensor(np.zeros((1, rank), np.int64), np.ones(1), np.ones(rank, np.int64))

    with pytest.raises(ValueError, match=r"sparse tensors of \[1, 2\] dimensions"):
        list(Dataset.range(1, 3).map(lambda number: sparse(int(number))).batch(2))

    def ragged(number: int) -> RaggedTensor:
        return RaggedTensor(np.zeros((2, number)), (np.array([0, 1, 2]),))

    with pytest.raises(
        ValueError, match=r"inner shape \(1,\) and 1 ragged dimensions, inner shape \(2,\)"
    ):
        list(Dataset.range(1, 3).map(lambda number: ragged(int(number))).batch(2))


# Rows of a ragged tensor stay in a column: stages give what they give of the same rows as single
# arrays.

VALUES = np.arange(200, dtype=np.int64)
SPLITS = np.concatenate([[0], np.cumsum(np.arange(19) * 7 % 12)])


def token_rows(values: Any = VALUES) -> Dataset[Any]:
    """Rows of a ragged tensor next to numbers."""
    batch = {
        "tokens": RaggedTensor(values[: SPLITS[-1]], (SPLITS,)),
        "id": np.arange(len(SPLITS) - 1),
    }
    return (
        Dataset.from_tensor_slices(batch).concatenate(Dataset.from_tensor_slices(batch)).repeat(2)
    )


TOKENS: dict[str, Callable[[Dataset[Any]], Dataset[Any]]] = {
    "padded": lambda ds: ds.padded_batch(5),
    "to a shape": lambda ds: ds.padded_batch(
        4, {"tokens": [30], "id": []}, {"tokens": -1, "id": 0}
    ),
    "shuffled": lambda ds: ds.shuffle(7, seed=1).padded_batch(5),
    "ragged": lambda ds: ds.skip(3).ragged_batch(5),
    "rebatched": lambda ds: ds.padded_batch(3, {"tokens": [11], "id": []}).rebatch(7),
    "cached": lambda ds: ds.take(19).cache().repeat(2).padded_batch(4),
    "buckets": lambda ds: ds.bucket_by_sequence_length(
        lambda row: len(row["tokens"]), [3, 8], [4, 3, 2]
    ),
    "drawn": lambda ds: Dataset.sample_from_datasets([ds, ds.take(9)], [1, 2], seed=3).padded_batch(
        6
    ),
    "shards in turn": lambda ds: ds.shard(3, 1).padded_batch(2),
}


@pytest.mark.parametrize("chain", TOKENS.values(), ids=TOKENS)
def test_stages_give_what_they_give_of_single_arrays(
    chain: Callable[[Dataset[Any]], Dataset[Any]],
) -> None:
    wanted = [plain(batch) for batch in chain(token_rows().map(lambda element: element))]
    assert wanted
    assert [plain(batch) for batch in chain(token_rows())] == wanted


@pytest.mark.parametrize("shape", [(200,), (200, 2)])
@pytest.mark.parametrize("dtype", ["f4", "u1", "?", ">i4"])
def test_tokens_of_any_dtype_are_padded_and_joined(dtype: str, shape: tuple[int, ...]) -> None:
    rows = token_rows(np.resize(VALUES, shape).astype(dtype))
    for name in ("shuffled", "drawn", *(["ragged"] if dtype != ">i4" else [])):
        wanted = [plain(batch) for batch in TOKENS[name](rows.map(lambda element: element))]
        assert [plain(batch) for batch in TOKENS[name](rows)] == wanted


@pytest.mark.parametrize("name", ["shuffled", "buckets", "cached"])
def test_tokens_resume_everywhere(name: str) -> None:
    assert_resumes_everywhere(TOKENS[name](token_rows()))


def test_a_cache_file_keeps_tokens(tmp_path: Path) -> None:
    cached = token_rows().cache(str(tmp_path / "cache"))
    assert [plain(element) for element in cached] == [plain(element) for element in token_rows()]
    assert [plain(batch) for batch in cached.padded_batch(5)] == [
        plain(batch) for batch in token_rows().padded_batch(5)
    ]


def test_arrays_that_a_dataset_holds_are_read_only() -> None:
    assert not any(element["tokens"].flags.writeable for element in token_rows())


def test_an_array_that_does_not_fit_its_padded_shape_is_an_error() -> None:
    with pytest.raises(
        ValueError,
        match=r"element\['tokens'\]: an array of up to \[11\] does not fit into .* \(5,\)",
    ):
        list(token_rows().padded_batch(30, {"tokens": (5,), "id": ()}))
    with pytest.raises(ValueError, match=r"element\['tokens'\]: padded_shapes has 2 dimensions"):
        list(token_rows().padded_batch(30, {"tokens": (5, 5), "id": ()}))
