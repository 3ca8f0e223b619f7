"""map of several calls, prefetch and options beside tf.data's: the same elements, in order where it is kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrec import AUTOTUNE, Dataset, TFRecordDataset, encode_records
from tests.effort import draws

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer

Verb = Callable[[Any], Any]
CALLS = st.sampled_from([1, 2, 5, AUTOTUNE])


def test_autotune_is_the_same_number() -> None:
    assert tf.data.AUTOTUNE == AUTOTUNE


def verbs() -> st.SearchStrategy[Verb]:
    """Stages from numbers to numbers, written alike for both."""
    counts = st.integers(0, 25)
    return st.one_of(
        CALLS.map(lambda calls: lambda ds: ds.map(lambda number: number * 3 + 1, num_parallel_calls=calls)),
        CALLS.map(lambda calls: lambda ds: ds.map(lambda number: number + 5, calls, deterministic=True)),
        counts.map(lambda count: lambda ds: ds.skip(count)),
        counts.map(lambda count: lambda ds: ds.take(count + 9)),
        st.integers(1, 3).map(lambda count: lambda ds: ds.repeat(count)),
        st.sampled_from([1, AUTOTUNE]).map(lambda size: lambda ds: ds.prefetch(size)),
        st.integers(1, 7).map(lambda size: lambda ds: ds.batch(size).map(lambda batch: batch * 2, 2).unbatch()),
    )


@given(chain=st.lists(verbs(), min_size=1, max_size=5), size=st.integers(1, 9))
@draws(50, HealthCheck.too_slow)
def test_random_chains_mean_the_same(chain: list[Verb], size: int) -> None:
    mine: Any = Dataset.range(40)
    theirs: Any = tf.data.Dataset.range(40)
    for verb in chain:
        mine, theirs = verb(mine), verb(theirs)
    batches = [batch.tolist() for batch in mine.batch(size)]
    assert batches == [batch.tolist() for batch in theirs.batch(size).as_numpy_iterator()]


@given(calls=CALLS, loose=st.booleans())
@draws(20)
def test_results_as_they_are_ready_are_the_same_set(calls: int, loose: bool) -> None:
    def squared(ds: Any) -> Any:
        return ds.map(lambda number: number * number, num_parallel_calls=calls, deterministic=None if loose else False)

    options = tf.data.Options()
    options.deterministic = not loose
    mine = squared(Dataset.range(99)).with_options(deterministic=not loose)
    theirs = squared(tf.data.Dataset.range(99)).with_options(options)
    assert sorted(mine) == sorted(theirs.as_numpy_iterator())


@pytest.mark.parametrize("calls", [2, AUTOTUNE])
def test_records_of_interleaved_shards_mean_the_same(tmp_path: Path, calls: int) -> None:
    for shard in range(5):
        records = [b"%d.%d" % (shard, index) * 9 for index in range(17 * shard)]
        (tmp_path / str(shard)).write_bytes(encode_records(records))
    files = sorted(map(str, tmp_path.iterdir()))
    theirs = tf.data.Dataset.from_tensor_slices(files).interleave(
        tf.data.TFRecordDataset, cycle_length=3, block_length=2, num_parallel_calls=tf.data.AUTOTUNE
    )
    mine = TFRecordDataset(files, cycle_length=3, block_length=2)
    lengths = theirs.map(tf.strings.length, num_parallel_calls=calls).prefetch(tf.data.AUTOTUNE)
    assert list(mine.map(len, num_parallel_calls=calls).prefetch(AUTOTUNE)) == list(lengths.as_numpy_iterator())
