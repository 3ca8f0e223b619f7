"""What TensorFlow parses out of our records equals what went in."""

import string
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.errors import FeatureError
from streamrec.example.encode import encode_example, encode_examples, encode_sequence_example
from tests.effort import drawn_examples
from tests.example.compare import assert_same

tf = pytest.importorskip("tensorflow")
from tests.example.tf_twin import arrays  # noqa: E402

pytestmark = pytest.mark.peer

NAMES = [*string.ascii_lowercase[:4], "snö", ""]
int64s = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6).map(lambda v: np.array(v, np.int64))
floats = st.lists(st.floats(width=32), max_size=6).map(lambda v: np.array(v, np.float32))
strings = st.lists(st.binary(max_size=9), max_size=6).map(lambda v: np.array(v, object))
values = st.one_of(int64s, floats, strings)
records = st.dictionaries(st.sampled_from(NAMES), values, max_size=5)


def tensorflow_features(features: dict[str, Any]) -> dict[str, Any]:
    kinds = {"i": tf.int64, "f": tf.float32, "O": tf.string}
    return {
        name: tf.io.RaggedFeature(kinds[value.dtype.kind])
        for name, value in features.items()
        if name
    }


def assert_same_values(found: Any, wanted: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(np.asarray(found).tolist(), wanted.tolist())


@drawn_examples(100)
@given(records, st.dictionaries(st.sampled_from("xyz"), int64s, min_size=1, max_size=3))
def test_sequence_examples(context: dict[str, Any], lists: dict[str, Any]) -> None:
    record = encode_sequence_example(context, lists, deterministic=True)
    message = tf.train.SequenceExample.FromString(record)
    assert set(message.context.feature) == set(context)
    specs = {name: tf.io.FixedLenSequenceFeature([], tf.int64) for name in lists}
    found_context, found = tf.io.parse_single_sequence_example(
        record, tensorflow_features(context) or None, specs or None
    )
    for name, value in found_context.items():
        assert_same_values(value, context[name])
    for name, value in found.items():
        assert_same_values(value, lists[name])


def test_an_empty_list_is_a_missing_feature() -> None:
    features = {"x": tf.io.FixedLenFeature([2], tf.int64, [7, 8])}
    assert tf.io.parse_single_example(encode_example({"x": []}), features)[
        "x"
    ].numpy().tolist() == [7, 8]


def test_tensorflows_tensors_and_messages_are_taken() -> None:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[1, 2]))
    record = encode_example(
        {"a": tf.constant([[1, 2]]), "b": tf.constant("x"), "c": feature}, deterministic=True
    )
    assert record == encode_example({"a": [1, 2], "b": "x", "c": [1, 2]})
    ragged = tf.ragged.constant([[1, 2], [], [3]])
    assert list(encode_examples({"x": ragged})) == list(
        encode_examples({"x": [[1, 2], [], [3]]}, kinds={"x": tf.int64})
    )


def test_tensorflows_sparse_tensors_are_their_rows() -> None:
    ragged = tf.ragged.constant([[b"a", b"b"], [], [b"c"]])
    assert list(encode_examples({"x": ragged.to_sparse()})) == list(encode_examples({"x": ragged}))
    assert encode_example({"x": tf.sparse.from_dense([7, 8])}) == encode_example({"x": [7, 8]})


@pytest.mark.parametrize(
    ("indices", "shape"),
    [
        ([[0, 0], [0, 1], [2, 0]], [3, 4]),
        ([[0, 0], [0, 2]], [1, 3]),
        ([[0, 1]], [1, 3]),
        ([[0, 0], [0, 0]], [1, 3]),
        ([[0, 1], [0, 0]], [1, 3]),
        ([[1, 0], [0, 0]], [2, 3]),
        (np.zeros((0, 2), np.int64), [0, 0]),
    ],
)
def test_rows_are_lists_where_tensorflow_says_so(indices: Any, shape: list[int]) -> None:
    """As tf.RaggedTensor.from_sparse; it also takes rows out of order, and gives their values to
    the wrong ones.
    """
    sparse = tf.SparseTensor(indices, np.arange(len(indices)), shape)
    try:
        wanted = list(encode_examples({"x": tf.RaggedTensor.from_sparse(sparse)}))
    except tf.errors.InvalidArgumentError:
        wanted = None
    if wanted is None or not np.array_equal(
        np.asarray(indices)[:, 0], np.sort(np.asarray(indices)[:, 0])
    ):
        with pytest.raises(FeatureError):
            encode_examples({"x": sparse})
    else:
        assert list(encode_examples({"x": sparse})) == wanted


@pytest.mark.parametrize(
    "rows",
    [[[1, 2], [], [3]], [[[1, 2], [3]], []], [[b"x", b"y\0"], []], np.arange(6).reshape(3, 2)],
    ids=str,
)
def test_rows_as_lists_and_arrays(rows: Any) -> None:
    if isinstance(rows, np.ndarray):
        theirs = tf.RaggedTensor.from_row_splits(rows, [0, 2, 3])
    else:
        theirs = tf.ragged.constant(rows)
    ours = arrays(theirs)
    assert ours.to_list() == theirs.to_list()
    assert len(ours) == len(list(ours)) == theirs.nrows()
    for index in (
        0,
        1,
        -1,
        slice(1, None),
        slice(-2, 1),
        slice(2, 1),
        slice(None, None, 2),
        slice(None, None, -1),
    ):
        assert_same(ours[index], arrays(theirs[index]), str(index))
    with pytest.raises(IndexError):
        ours[len(ours)]
    default = b"-\0" if theirs.dtype == tf.string else -1
    for missing in (None, default):
        assert_same_values(ours.to_dense(missing), theirs.to_tensor(missing).numpy())
    if theirs.ragged_rank == 1 and theirs.flat_values.shape.rank == 1:
        sparse = arrays(theirs.to_sparse())
        assert sparse.to_list() == ours.to_list()
        assert [row.values.tolist() for row in sparse] == ours.to_list()
        unbatched = [
            arrays(row) for row in tf.data.Dataset.from_tensors(theirs.to_sparse()).unbatch()
        ]
        for row, wanted in enumerate(unbatched):
            assert_same(sparse[row - len(sparse)], wanted, "row")
            assert [
                sparse[row][place] for place in range(len(wanted))
            ] == wanted.to_dense().tolist()
            sliced = tf.sparse.slice(theirs.to_sparse(), [row, 0], [2, len(wanted)])
            assert_same(sparse[row : row + 2], arrays(sliced), "slice")
        assert_same_values(
            sparse.to_dense(default), tf.sparse.to_dense(theirs.to_sparse(), default).numpy()
        )
