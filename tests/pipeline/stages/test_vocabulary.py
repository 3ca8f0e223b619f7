"""The vocabulary beside tf.data's: the same stages over the same files give the same elements."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrec import Dataset, Frames, TFRecordDataset, encode_records
from tests.effort import draws

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer

RECORDS = [[b"%d." % shard + b"x" * (index * 7 % 11) for index in range(size)] for shard, size in enumerate([9, 0, 20])]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("vocabulary")
    for shard, records in enumerate(RECORDS):
        (folder / str(shard)).write_bytes(encode_records(records))
    return [str(path) for path in sorted(folder.iterdir())]


def plain(element: Any) -> Any:
    """Elements of both as lists: Frames and ragged tensors too."""
    if isinstance(element, Frames):
        return list(element)
    if hasattr(element, "flat_values"):
        return [element.flat_values.tolist(), *(splits.tolist() for splits in element.nested_row_splits)]
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(map(plain, element))
    return element.tolist() if hasattr(element, "tolist") else element


def assert_same(mine: Any, theirs: Any) -> None:
    assert list(map(plain, mine)) == list(map(plain, theirs.as_numpy_iterator()))


Ours = Callable[[Any], Any]

same: Callable[[Ours], tuple[Ours, Ours]] = lambda both: (both, both)  # noqa: E731
"""A stage that is written alike for both."""


def pairs() -> st.SearchStrategy[tuple[Ours, Ours]]:
    """Stages from records to records: for us, and for tf.data."""
    counts = st.integers(0, 12)
    sizes = st.integers(1, 6)
    return st.one_of(
        counts.map(lambda n: same(lambda ds: ds.skip(n))),
        counts.map(lambda n: same(lambda ds: ds.take(n + 8))),
        sizes.map(lambda n: same(lambda ds: ds.shard(n, n // 2))),
        sizes.map(lambda n: same(lambda ds: ds.batch(n, drop_remainder=n % 2 == 0).unbatch())),
        sizes.map(lambda n: same(lambda ds: ds.batch(4).rebatch(n).unbatch())),
        st.integers(0, 2).map(lambda n: same(lambda ds: ds.repeat(n))),
        sizes.map(
            lambda n: (
                lambda ds: ds.filter(lambda record: len(record) % n),
                lambda ds: ds.filter(lambda record: tf.strings.length(record) % n != 0),
            )
        ),
        sizes.map(
            lambda n: (
                lambda ds: ds.take_while(lambda record: len(record) < n + 6),
                lambda ds: ds.take_while(lambda record: tf.strings.length(record) < n + 6),
            )
        ),
        sizes.map(
            lambda n: (
                lambda ds: ds.enumerate(n).filter(lambda number, _: number % 3).map(lambda _, record: record),
                lambda ds: ds.enumerate(n).filter(lambda number, _: number % 3 != 0).map(lambda _, record: record),
            )
        ),
    )


@given(chain=st.lists(pairs(), max_size=4), end=st.sampled_from(["", "batch", "enumerate", "padded_batch"]))
@draws(60, HealthCheck.function_scoped_fixture)
def test_random_chains_mean_the_same(files: list[str], chain: list[tuple[Ours, Ours]], end: str) -> None:
    mine, theirs = TFRecordDataset(files), tf.data.TFRecordDataset(files)
    for ours, tensorflows in chain:
        mine, theirs = ours(mine), tensorflows(theirs)
    if end == "enumerate":
        mine, theirs = mine.enumerate(3).batch(5), theirs.enumerate(3).batch(5)
    elif end:
        mine, theirs = getattr(mine, end)(5), getattr(theirs, end)(5)
    assert_same(mine, theirs)


@pytest.mark.parametrize("count", [-1, 0, 3, 100])
def test_skip_and_take_mean_the_same(files: list[str], count: int) -> None:
    mine, theirs = TFRecordDataset(files), tf.data.TFRecordDataset(files)
    assert_same(mine.skip(count), theirs.skip(count))
    assert_same(mine.take(count), theirs.take(count))


SHAPES: list[tuple[Any, Any]] = [
    (None, None),
    (([None, 3], ()), None),
    (([5, -1], []), (np.int64(-1), b"")),
    (([None, None], ()), (np.int64(7), b"?")),
]


@pytest.mark.parametrize(("shapes", "values"), SHAPES)
@pytest.mark.parametrize("drop", [False, True])
def test_padded_batch_means_the_same(files: list[str], shapes: Any, values: Any, drop: bool) -> None:
    mine = TFRecordDataset(files).map(lambda r: (np.full((len(r) % 5, 1 + len(r) % 3), len(r), np.int64), r))
    theirs = tf.data.TFRecordDataset(files).map(tensorflows_arrays)
    assert_same(mine.padded_batch(4, shapes, values, drop), theirs.padded_batch(4, shapes, values, drop))


def tensorflows_arrays(record: Any) -> Any:
    length = tf.strings.length(record)
    filled = tf.fill([length % 5, 1 + length % 3], tf.cast(length, tf.int64))
    return tf.ensure_shape(filled, [None, None]), record


def test_ragged_batch_means_the_same(files: list[str]) -> None:
    mine = TFRecordDataset(files).map(lambda r: (np.arange(len(r) % 5), r, np.full((len(r) % 2, 2, len(r) % 4), 1)))
    theirs = tf.data.TFRecordDataset(files).map(
        lambda r: (
            tf.ensure_shape(tf.range(tf.cast(tf.strings.length(r) % 5, tf.int64)), [None]),
            r,
            tf.ensure_shape(
                tf.ones([tf.strings.length(r) % 2, 2, tf.strings.length(r) % 4], tf.int64), [None, None, None]
            ),
        )
    )
    for drop in (False, True):
        found = list(mine.ragged_batch(6, drop))
        wanted = list(theirs.ragged_batch(6, drop))
        assert len(found) == len(wanted)
        for (one, records, cube), (their_one, their_records, their_cube) in zip(found, wanted, strict=True):
            assert plain(one) == plain_ragged(their_one)
            assert plain(cube) == plain_ragged(their_cube)
            assert records.tolist() == their_records.numpy().tolist()


def plain_ragged(ragged: Any) -> Any:
    return [ragged.flat_values.numpy().tolist(), *(splits.numpy().tolist() for splits in ragged.nested_row_splits)]


@pytest.mark.parametrize("size", [1, 4, 7])
@pytest.mark.parametrize("drop", [False, True])
def test_rebatch_means_the_same(files: list[str], size: int, drop: bool) -> None:
    mine, theirs = TFRecordDataset(files).batch(5), tf.data.TFRecordDataset(files).batch(5)
    assert_same(mine.rebatch(size, drop), theirs.rebatch(size, drop))
    mine, theirs = (both.take(5).enumerate().batch(2).rebatch(size, drop) for both in (mine, theirs))
    assert_same(mine, theirs)


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (9, 2), (2, 30, 7), (30, 2, -7)])
def test_range_means_the_same(arguments: tuple[int, ...]) -> None:
    assert_same(Dataset.range(*arguments), tf.data.Dataset.range(*arguments))


@pytest.mark.parametrize(
    "tensors",
    [[1, 2, 3], ["a", "b"], {"x": np.arange(6).reshape(3, 2), "y": (["a", b"b", "c"], [1.5, 2.5, 3.5])}],
)
def test_slices_mean_the_same(tensors: Any) -> None:
    mine, theirs = Dataset.from_tensor_slices(tensors), tf.data.Dataset.from_tensor_slices(tensors)
    assert_same(mine, theirs)
    assert_same(mine.batch(2), theirs.batch(2))


def test_concatenate_and_zip_mean_the_same(files: list[str]) -> None:
    mine, theirs = TFRecordDataset(files), tf.data.TFRecordDataset(files)
    assert_same(mine.concatenate(mine.skip(20)).batch(4), theirs.concatenate(theirs.skip(20)).batch(4))
    numbers, tensorflows = Dataset.range(20), tf.data.Dataset.range(20)
    assert_same(Dataset.zip(mine, numbers).batch(6), tf.data.Dataset.zip(theirs, tensorflows).batch(6))
    assert_same(Dataset.zip({"a": (mine.skip(3), numbers)}), tf.data.Dataset.zip({"a": (theirs.skip(3), tensorflows)}))
    assert_same(Dataset.zip(mine), tf.data.Dataset.zip(theirs))
