"""What TensorFlow wrote and parsed: the golden files give the same arrays, by both walks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamrec import Framer
from streamrec.example import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    SparseFeature,
    VarLenFeature,
)
from streamrec.example.columns import RaggedTensor, SparseTensor
from streamrec.example.features import Feature
from streamrec.example.parse import parse_example, parse_sequence_example, parse_single_example
from tests.example.compare import assert_same_columns, materialised

pytestmark = pytest.mark.usefixtures("walk")
GOLDEN = Path(__file__).parents[2] / "golden"
TUTORIAL: dict[str, Feature] = {
    "feature0": FixedLenFeature([], np.int64, 0),
    "feature1": FixedLenFeature([], np.int64, 0),
    "feature2": FixedLenFeature([], bytes, ""),
    "feature3": FixedLenFeature([], np.float32, 0.0),
}
FEATURES: dict[str, Feature] = {
    "dense": FixedLenFeature([2, 3], np.float32),
    "big": FixedLenFeature([3], np.int64),
    "maybe": FixedLenFeature([1], np.float32, [-1.5]),
    "var_i": VarLenFeature(np.int64),
    "var_s": VarLenFeature(bytes),
    "seq": FixedLenSequenceFeature([2], np.int64, allow_missing=True, default_value=-7),
    "sparse": SparseFeature(["sp_idx"], "sp_val", np.float32, [10]),
    "sparse2": SparseFeature(["sp_row", "sp_idx"], "sp_val", np.float32, [4, 10]),
}
RAGGED: dict[str, Feature] = {
    "ragged": RaggedFeature(np.int64, value_key="var_i"),
    "ragged64": RaggedFeature(np.int64, value_key="sp_idx", row_splits_dtype=np.int64),
    "ragged2": RaggedFeature(np.float32, "rg_val", [RaggedFeature.RowLengths("rg_len")]),
    "ragged_u": RaggedFeature(np.int64, "big", [RaggedFeature.UniformRowLength(3)]),
}
CONTEXT: dict[str, Feature] = {
    "id": FixedLenFeature([], np.int64),
    "name": FixedLenFeature([], bytes),
}
LISTS: dict[str, Feature] = {
    "tokens": FixedLenSequenceFeature([], np.int64),
    "frames": FixedLenSequenceFeature([4], np.float32),
    "words": VarLenFeature(bytes),
    "opt": FixedLenSequenceFeature([], np.int64, allow_missing=True),
}
RAGGED_LISTS: dict[str, Feature] = {
    "words": RaggedFeature(bytes),
    "tokens": RaggedFeature(np.int64),
}


def payloads(name: str) -> list[bytes]:
    return list(Framer().feed((GOLDEN / name).read_bytes()))


def expected(name: str) -> dict[str, Any]:
    """The columns that TensorFlow parsed, by key."""
    with np.load(GOLDEN / name) as arrays:
        flat = dict(arrays)
    columns: dict[str, Any] = {}
    for key in {name.split("|")[0] for name in flat}:
        if f"{key}|indices" in flat:
            parts = [
                array_of(flat, f"{key}|{part}") for part in ("indices", "values", "dense_shape")
            ]
            columns[key] = SparseTensor(*parts)
        elif f"{key}|row_splits0" in flat:
            count = sum(name.startswith(f"{key}|row_splits") for name in flat)
            splits = tuple(flat[f"{key}|row_splits{level}"] for level in range(count))
            columns[key] = RaggedTensor(array_of(flat, f"{key}|flat_values"), splits)
        else:
            columns[key] = array_of(flat, key)
    return columns


def array_of(flat: Mapping[str, Any], key: str) -> Any:
    """An array, or the object array of bytes that is stored as shape, lengths and blob."""
    if key in flat:
        return flat[key]
    blob, ends = flat[f"{key}|bytes_blob"].tobytes(), np.cumsum(flat[f"{key}|bytes_lengths"])
    array = np.empty(len(ends), dtype=object)
    lengths = flat[f"{key}|bytes_lengths"]
    array[:] = [blob[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return array.reshape(flat[f"{key}|bytes_shape"])


def assert_expected(found: Mapping[str, Any], name: str) -> None:
    """These are the columns of a file, which has no order."""
    wanted = expected(name)
    assert found.keys() == wanted.keys()
    found = {key: materialised(column) for key, column in found.items()}
    assert_same_columns(found, {key: wanted[key] for key in found})


@pytest.mark.parametrize("columns", [False, True], ids=["objects", "columns"])
@pytest.mark.parametrize(
    ("file", "features", "wanted"),
    [
        ("tutorial.tfrecord", TUTORIAL, "tutorial.expected.npz"),
        ("features.tfrecord", FEATURES, "features.expected.npz"),
        ("features.tfrecord", RAGGED, "ragged.expected.npz"),
    ],
    ids=["tutorial", "features", "ragged"],
)
def test_examples(file: str, features: dict[str, Feature], wanted: str, columns: bool) -> None:
    assert_expected(parse_example(payloads(file), features, string_columns=columns), wanted)


@pytest.mark.parametrize("columns", [False, True], ids=["objects", "columns"])
def test_sequences(columns: bool) -> None:
    records = payloads("sequence.tfrecord")
    context, lists, lengths = parse_sequence_example(
        records, CONTEXT, LISTS, string_columns=columns
    )
    for found, name in ((context, "context"), (lists, "lists"), (lengths, "lengths")):
        assert_expected(found, f"sequence.{name}.expected.npz")


def test_ragged_sequences() -> None:
    records = payloads("sequence.tfrecord")
    _, lists, _ = parse_sequence_example(records, None, RAGGED_LISTS)
    assert_expected(lists, "sequence.ragged.expected.npz")


def test_singles_are_the_rows_of_the_batch() -> None:
    records = payloads("tutorial.tfrecord")[:50]
    batch = parse_example(records, TUTORIAL)
    for row, record in enumerate(records):
        single = parse_single_example(record, TUTORIAL)
        for name, column in single.items():
            assert isinstance(column, bytes | np.generic)
            assert column == batch[name][row]
