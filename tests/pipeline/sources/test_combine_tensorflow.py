"""Datasets of datasets beside tf.data's: the same order, whatever their lengths."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, TFRecordDataset, encode_records
from tests.effort import draws

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer

LENGTHS = st.lists(st.integers(0, 9), max_size=9)


def numbers(dataset: Any) -> list[int]:
    return [int(number) for number in dataset]


def tensorflows(dataset: Any) -> list[Any]:
    return list(dataset.as_numpy_iterator())


@given(LENGTHS, st.integers(1, 11), st.integers(1, 12))
@draws(60)
def test_interleave_has_tensorflows_order(lengths: list[int], cycle: int, block: int) -> None:
    mine = Dataset.from_tensor_slices(np.array(lengths, np.int64)).enumerate()
    theirs = tf.data.Dataset.from_tensor_slices(np.array(lengths, np.int64)).enumerate()
    wanted = theirs.interleave(lambda at, n: tf.data.Dataset.range(at * 100, at * 100 + n), cycle, block)
    found = mine.interleave(lambda at, n: Dataset.range(at * 100, at * 100 + n), cycle, block)
    assert numbers(found) == tensorflows(wanted)


@given(LENGTHS, st.integers(1, 4))
@draws(20)
def test_parallel_interleave_has_the_same_order(lengths: list[int], cycle: int) -> None:
    mine = Dataset.from_tensor_slices(np.array(lengths, np.int64))
    theirs = tf.data.Dataset.from_tensor_slices(np.array(lengths, np.int64))
    wanted = theirs.interleave(tf.data.Dataset.range, cycle, 2, num_parallel_calls=cycle, deterministic=True)
    assert numbers(mine.interleave(Dataset.range, cycle, 2, num_parallel_calls=cycle)) == tensorflows(wanted)


@given(LENGTHS)
@draws(20)
def test_flat_map_means_the_same(lengths: list[int]) -> None:
    mine = Dataset.from_tensor_slices(np.array(lengths, np.int64))
    theirs = tf.data.Dataset.from_tensor_slices(np.array(lengths, np.int64))
    assert numbers(mine.flat_map(Dataset.range)) == tensorflows(theirs.flat_map(tf.data.Dataset.range))


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    draws=st.lists(st.integers(0, 3), max_size=60),
    stop=st.booleans(),
)
@draws(80)
def test_choices_mean_the_same(lengths: list[int], draws: list[int], stop: bool) -> None:
    choices = np.array([draw % len(lengths) for draw in draws], np.int64)
    mine = [Dataset.range(at * 100, at * 100 + length) for at, length in enumerate(lengths)]
    theirs = [tf.data.Dataset.range(at * 100, at * 100 + length) for at, length in enumerate(lengths)]
    found = Dataset.choose_from_datasets(mine, Dataset.from_tensor_slices(choices), stop)
    wanted = tf.data.Dataset.choose_from_datasets(theirs, tf.data.Dataset.from_tensor_slices(choices), stop)
    assert numbers(found) == tensorflows(wanted)


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("weights", [None, [0.2, 0.0, 0.8], [0.0, 0.0, 1.0]])
def test_samples_of_both_end_alike(stop: bool, weights: list[float] | None) -> None:
    mine = [Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    theirs = [tf.data.Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    found = numbers(Dataset.sample_from_datasets(mine, weights, 5, stop))
    wanted = tensorflows(tf.data.Dataset.sample_from_datasets(theirs, weights, 5, stop))
    live = [at for at in range(3) if weights is None or weights[at]]
    for sampled in (found, wanted):
        shares = {at: [number for number in sampled if number // 100 == at] for at in range(3)}
        assert all(share == sorted(share) for share in shares.values())
        assert all(not share for at, share in shares.items() if at not in live)
        assert (len(sampled) == 30 * len(live)) == (not stop or len(live) == 1)
        assert max(map(len, shares.values())) == 30


def test_listed_names_are_tensorflows(tmp_path: Path) -> None:
    for name in ("b-1", "a-2", "a-1", "c"):
        (tmp_path / name).write_bytes(encode_records([name.encode(), b"2"]))
    patterns = [f"{tmp_path}/a-*", f"{tmp_path}/?-1"]
    mine = Dataset.list_files(patterns[0])
    theirs = tf.data.Dataset.list_files(patterns[0], shuffle=False)
    assert list(mine) == tensorflows(theirs)
    assert sorted(Dataset.list_files(patterns[0], shuffle=True, seed=3)) == tensorflows(theirs)
    names = mine.concatenate(Dataset.list_files(patterns[1]))
    wanted = theirs.concatenate(tf.data.Dataset.list_files(patterns[1], shuffle=False))
    found = names.interleave(TFRecordDataset, cycle_length=2)
    assert list(found) == tensorflows(wanted.interleave(tf.data.TFRecordDataset, cycle_length=2))
