"""Beside tf.data: generators, buckets, caches, datasets of datasets."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Dataset, TFRecordDataset, encode_records, matching_files
from tests.effort import draws

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer


def listed(element: Any) -> Any:
    """Elements of both as lists."""
    if isinstance(element, dict):
        return {key: listed(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(map(listed, element))
    return element.tolist() if hasattr(element, "tolist") else element


def assert_same(mine: Any, theirs: Any) -> None:
    assert list(map(listed, mine)) == list(map(listed, theirs.as_numpy_iterator()))


def nested(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield {"x": np.full(number, number), "y": (b"%d" % number, np.float32(number))}


def test_generators_mean_the_same() -> None:
    signature = {"x": tf.TensorSpec([None], tf.int64), "y": (tf.TensorSpec([], tf.string), tf.TensorSpec([]))}
    mine = Dataset.from_generator(nested, (11,))
    theirs = tf.data.Dataset.from_generator(nested, args=(11,), output_signature=signature)
    assert_same(mine, theirs)
    assert_same(mine.skip(2).padded_batch(4).repeat(2), theirs.skip(2).padded_batch(4).repeat(2))
    assert_same(mine.repeat(3).take(25).enumerate().shard(3, 1), theirs.repeat(3).take(25).enumerate().shard(3, 1))


def both(lengths: list[int]) -> tuple[Dataset[Any], Any]:
    """The same sequences, with their numbers, for us and for tf.data."""

    def generator() -> Iterator[Any]:
        for index, length in enumerate(lengths):
            yield np.full(length, index), index

    signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    return Dataset.from_generator(generator), tf.data.Dataset.from_generator(generator, output_signature=signature)


@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    boundaries=st.sets(st.integers(1, 11), max_size=4),
    sizes=st.lists(st.integers(1, 6), min_size=5, max_size=5),
    drop=st.booleans(),
    value=st.sampled_from([None, 7]),
    shape=st.sampled_from([None, None, 15]),
)
@draws(60)
def test_buckets_mean_the_same(
    lengths: list[int], boundaries: set[int], sizes: list[int], drop: bool, value: int | None, shape: int | None
) -> None:
    options: dict[str, Any] = {"drop_remainder": drop}
    if value is not None:
        options["padding_values"] = (np.int64(value), np.int64(0))
    if shape is not None:
        options["padded_shapes"] = ([shape], [])
    mine, theirs = both(lengths)
    bounds = sorted(boundaries)
    batch_sizes = sizes[: len(bounds) + 1]
    assert_same(
        mine.bucket_by_sequence_length(lambda row, _: len(row), bounds, batch_sizes, **options),
        theirs.bucket_by_sequence_length(lambda row, _: tf.shape(row)[0], bounds, batch_sizes, **options),
    )


@given(lengths=st.lists(st.integers(0, 8), max_size=30), shapes=st.sampled_from([None, ([None], [])]))
@draws(20)
def test_padding_to_the_boundary_means_the_same(lengths: list[int], shapes: Any) -> None:
    mine, theirs = both(lengths)
    arguments = ([3, 5, 9], [2, 3, 4, 1], shapes, None, True)
    assert_same(
        mine.bucket_by_sequence_length(lambda row, _: len(row), *arguments),
        theirs.bucket_by_sequence_length(lambda row, _: tf.shape(row)[0], *arguments),
    )


@pytest.mark.parametrize("named", [False, True])
def test_caches_mean_the_same(tmp_path: Path, named: bool) -> None:
    """Elements, and how often the generator is called."""
    calls: list[str] = []

    def generator(whose: str) -> Iterator[int]:
        calls.append(whose)
        yield from range(9)

    signature = tf.TensorSpec([], tf.int64)
    mine = Dataset.from_generator(lambda: generator("ours"))
    theirs = tf.data.Dataset.from_generator(lambda: generator("theirs"), output_signature=signature)
    mine = mine.cache(tmp_path / "ours" if named else "").repeat(3).batch(4)
    theirs = theirs.cache(str(tmp_path / "theirs") if named else "").repeat(3).batch(4)
    assert_same(mine, theirs)
    assert sorted(calls) == ["ours", "theirs"]
    if named:
        assert_same(mine, theirs)
        assert sorted(calls) == ["ours", "theirs"]


@given(numbers=st.lists(st.integers(-5, 20), max_size=40))
@draws(20)
def test_buckets_without_padding_mean_the_same(numbers: list[int]) -> None:
    mine, theirs = slices_of_both(numbers)
    by: Callable[[Any], Any] = lambda number: number  # noqa: E731
    assert_same(
        mine.bucket_by_sequence_length(by, [0, 10], [3, 4, 2], no_padding=True),
        theirs.bucket_by_sequence_length(lambda n: tf.cast(n, tf.int32), [0, 10], [3, 4, 2], no_padding=True),
    )


def test_patterns_match_what_tensorflow_matches(tmp_path: Path) -> None:
    names = ["run#1", "q?x", "p%20q", "p q", "[1]", "1", "x[1]y", "x1y", "{a,b}", "a*b", "axb", "a?b", "é", "-x", "^a"]
    names += ["trailing ", ".hidden", "*", "?", "!a", "a-b", "]", "[", "sub/x", "sub/.h", "sub2/deep/x"]
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    patterns = [
        "*",
        "*/*",
        "*/*/*",
        "?",
        "[!a]*",
        "[^a]*",
        "[[]1]",
        "[[]*",
        "a[*]b",
        "a[?]b",
        "a*b",
        "a?b",
        "x[1]y",
        "[]]",
    ]
    patterns += [
        "x[0-9]y",
        "[!]]",
        "*x*",
        "sub*/*",
        "[a-c]*",
        "{a,b}",
        "*[ ]",
        "a[-]b",
        "s*/d*/x",
        "[1-",
        "a[!/]b",
        ".*",
    ]
    for pattern in patterns:
        matched = [os.fsdecode(path) for path in tf.io.matching_files(f"{tmp_path}/{pattern}").numpy()]
        files = sorted(path for path in matched if not os.path.isdir(path))
        assert matching_files(f"{tmp_path}/{pattern}") == files, pattern


LENGTHS = st.lists(st.integers(0, 9), max_size=9)


def slices_of_both(numbers: list[int]) -> tuple[Dataset[Any], Any]:
    """Numbers for us and for tf.data."""
    array = np.array(numbers, np.int64)
    return Dataset.from_tensor_slices(array), tf.data.Dataset.from_tensor_slices(array)


@given(LENGTHS, st.integers(1, 11), st.integers(1, 12))
@draws(60)
def test_interleave_has_tensorflows_order(lengths: list[int], cycle: int, block: int) -> None:
    mine, theirs = slices_of_both(lengths)
    wanted = theirs.enumerate().interleave(lambda at, n: tf.data.Dataset.range(at * 100, at * 100 + n), cycle, block)
    found = mine.enumerate().interleave(lambda at, n: Dataset.range(at * 100, at * 100 + n), cycle, block)
    assert_same(found, wanted)


@given(LENGTHS, st.integers(1, 4))
@draws(20)
def test_parallel_interleave_and_flat_map_have_the_same_order(lengths: list[int], cycle: int) -> None:
    mine, theirs = slices_of_both(lengths)
    wanted = theirs.interleave(tf.data.Dataset.range, cycle, 2, num_parallel_calls=cycle, deterministic=True)
    assert_same(mine.interleave(Dataset.range, cycle, 2, num_parallel_calls=cycle), wanted)
    assert_same(mine.flat_map(Dataset.range), theirs.flat_map(tf.data.Dataset.range))


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    drawn=st.lists(st.integers(0, 3), max_size=60),
    stop=st.booleans(),
)
@draws(80)
def test_choices_mean_the_same(lengths: list[int], drawn: list[int], stop: bool) -> None:
    mine = [Dataset.range(at * 100, at * 100 + length) for at, length in enumerate(lengths)]
    theirs = [tf.data.Dataset.range(at * 100, at * 100 + length) for at, length in enumerate(lengths)]
    ours, choices = slices_of_both([draw % len(lengths) for draw in drawn])
    assert_same(
        Dataset.choose_from_datasets(mine, ours, stop), tf.data.Dataset.choose_from_datasets(theirs, choices, stop)
    )


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("weights", [None, [0.2, 0.0, 0.8], [0.0, 0.0, 1.0]])
def test_samples_of_both_end_alike(stop: bool, weights: list[float] | None) -> None:
    mine = [Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    theirs = [tf.data.Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    found = list(map(int, Dataset.sample_from_datasets(mine, weights, 5, stop)))
    wanted = list(tf.data.Dataset.sample_from_datasets(theirs, weights, 5, stop).as_numpy_iterator())
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
    assert_same(mine, theirs)
    assert sorted(Dataset.list_files(patterns[0], shuffle=True, seed=3)) == list(mine)
    names = mine.concatenate(Dataset.list_files(patterns[1]))
    wanted = theirs.concatenate(tf.data.Dataset.list_files(patterns[1], shuffle=False))
    found = names.interleave(TFRecordDataset, cycle_length=2)
    assert_same(found, wanted.interleave(tf.data.TFRecordDataset, cycle_length=2))
