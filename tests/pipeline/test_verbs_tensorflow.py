"""The verbs of `test_verbs.py` beside tf.data's: the same elements, numbers and specs."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import Dataset, TensorSpec
from streamrec.pipeline import RaggedTensorSpec, SparseTensorSpec
from tests.effort import draws

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.peer


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(map(plain, element))
    return element.tolist() if hasattr(element, "tolist") else element


def assert_same(ours: Any, theirs: Any) -> None:
    both = ours.cardinality(), int(theirs.cardinality())
    assert list(map(plain, ours.as_numpy_iterator())) == list(map(plain, theirs.as_numpy_iterator()))
    assert streamrec.pipeline.UNKNOWN_CARDINALITY in (*both, 0) or both[0] == both[1]


counts = st.integers(0, 30)
sizes = st.integers(1, 9)


@given(counts, sizes, sizes, st.integers(1, 4), st.booleans())
@draws(60)
def test_windows(count: int, size: int, shift: int, stride: int, drop: bool) -> None:
    def windows(dataset: Any) -> Any:
        return dataset.window(size, shift, stride, drop)

    ours, theirs = windows(Dataset.range(count)), windows(tf.data.Dataset.range(count))
    assert ours.cardinality() == theirs.cardinality().numpy()
    assert_same(ours.flat_map(lambda window: window), theirs.flat_map(lambda window: window))
    assert [list(map(int, window)) for window in ours] == [
        [int(number) for number in window.as_numpy_iterator()] for window in theirs
    ]


@given(counts, sizes, st.integers(1, 5))
@draws(30)
def test_windows_of_one_key(count: int, size: int, keys: int) -> None:
    def grouped(dataset: Any, length: Any) -> Any:
        return dataset.group_by_window(lambda number: number % keys, lambda key, window: window.batch(4), **length)

    fixed: dict[str, Any] = {"window_size": size}
    assert_same(grouped(Dataset.range(count), fixed), grouped(tf.data.Dataset.range(count), fixed))
    by_key: dict[str, Any] = {"window_size_func": lambda key: key + size}
    assert_same(grouped(Dataset.range(count), by_key), grouped(tf.data.Dataset.range(count), by_key))


@given(counts, sizes, st.lists(sizes, min_size=1, max_size=4), st.booleans())
@draws(30)
def test_rebatch_of_a_list(count: int, size: int, batch_sizes: list[int], drop: bool) -> None:
    def again(dataset: Any) -> Any:
        return dataset.batch(size).rebatch(batch_sizes, drop)

    assert_same(again(Dataset.range(count)), again(tf.data.Dataset.range(count)))


def test_windows_of_parts() -> None:
    values = {"a": [1, 2, 3, 4, 5], "b": [b"v", b"w", b"x", b"y", b"z"]}

    def paired(module: Any) -> Any:
        windows = module.from_tensor_slices(values).window(2, 1)
        return windows.flat_map(lambda window: module.zip((window["a"].batch(2), window["b"].batch(2))))

    assert_same(paired(Dataset), paired(tf.data.Dataset))


def test_scan_and_reduce() -> None:
    def summed(state: Any, number: Any) -> Any:
        return state + number, state * number

    assert_same(
        Dataset.range(9).scan(np.int64(1), summed), tf.data.Dataset.range(9).scan(tf.constant(1, tf.int64), summed)
    )
    both = [module.range(9).enumerate() for module in (Dataset, tf.data.Dataset)]
    sums = [dataset.reduce(np.int64(0), lambda state, pair: state + pair[0] * pair[1]) for dataset in both]
    assert int(sums[0]) == int(sums[1])


@pytest.mark.parametrize("values", [[3, 1, 3, 2, 1], [b"a", b"", b"a"], []])
def test_unique(values: list[Any]) -> None:
    given_values = np.array(values, np.int64 if values[:1] != [b"a"] else object)
    assert_same(
        Dataset.from_tensor_slices(given_values).unique(), tf.data.Dataset.from_tensor_slices(given_values).unique()
    )


@pytest.mark.parametrize("value", [5, np.arange(3), {"a": (b"x", [[1, 2]])}, [b"x", b"y"]])
def test_from_tensors(value: Any) -> None:
    ours, theirs = Dataset.from_tensors(value), tf.data.Dataset.from_tensors(value)
    assert_same(ours, theirs)
    assert_same(ours.repeat(2).batch(3), theirs.repeat(2).batch(3))
    assert_same(ours.repeat(-5).take(9).skip(5), theirs.repeat(-5).take(9).skip(5))
    assert len(list(ours.take(-5))) == 1 == len(list(theirs.take(-5).as_numpy_iterator()))
    assert plain(ours.get_single_element()) == plain(
        tf.nest.map_structure(lambda part: part.numpy(), theirs.get_single_element())
    )


@pytest.mark.parametrize("arguments", [(), (5,), (5, -3), (0, 0), (1, 2, np.int32)])
def test_counter(arguments: tuple[Any, ...]) -> None:
    assert_same(Dataset.counter(*arguments).take(4), tf.data.Dataset.counter(*arguments).take(4))
    assert Dataset.counter(*arguments).cardinality() == tf.data.INFINITE_CARDINALITY


def test_random_is_of_the_same_kind() -> None:
    for rerandomize in (None, False, True):
        for module in (Dataset, tf.data.Dataset):
            dataset = module.random(seed=3, rerandomize_each_iteration=rerandomize).take(4)
            one, other = [[int(number) for number in dataset.as_numpy_iterator()] for _ in range(2)]
            assert (one != other) == bool(rerandomize)
            assert all(0 <= number < 2**32 for number in one)


@pytest.mark.parametrize("initial", [None, [0.75, 0.25]])
def test_rejection_resample(initial: Any) -> None:
    for module in (Dataset, tf.data.Dataset):
        numbers = module.range(8000)
        resampled = numbers.rejection_resample(
            (lambda n: int(n % 4 == 0)) if module is Dataset else (lambda n: tf.cast(n % 4 == 0, tf.int32)),
            [0.5, 0.5],
            initial,
            seed=4,
        )
        kinds, kept = zip(*resampled.as_numpy_iterator(), strict=True)
        assert abs(np.mean(kinds) - 0.5) < 0.04
        assert all((number % 4 == 0) == kind for kind, number in zip(kinds, kept, strict=True))


def test_signatures_are_read() -> None:
    signature = (tf.TensorSpec([None], tf.float32), {"a": tf.TensorSpec((), tf.string)})

    def generator() -> Any:
        yield [1, 2], {"a": "x"}
        yield np.zeros(0, np.float32), {"a": b""}

    ours = Dataset.from_generator(generator, output_signature=signature)
    assert_same(ours, tf.data.Dataset.from_generator(generator, output_signature=signature))
    assert ours.element_spec == (TensorSpec([None], np.float32), {"a": TensorSpec([], bytes)})
    others = (tf.RaggedTensorSpec([None, None], tf.int64), tf.SparseTensorSpec([3], tf.string))
    assert Dataset.from_generator(list, output_signature=others).element_spec == (
        RaggedTensorSpec([None, None], np.int64, 1),
        SparseTensorSpec([3], bytes),
    )


def spec_of(spec: Any) -> Any:
    """TensorFlow's as ours."""
    return tf.nest.map_structure(
        lambda part: TensorSpec(None if part.shape.rank is None else part.shape.as_list(), part.dtype), spec
    )


def test_element_spec() -> None:
    def several(module: Any) -> Any:
        numbers = module.range(9)
        slices = module.from_tensor_slices({"a": np.zeros((3, 2), np.float32), "b": [b"x", b"y", b"z"]})
        yield numbers
        yield numbers.batch(2)
        yield numbers.batch(2, drop_remainder=True).enumerate().take(3)
        yield slices.batch(2).repeat().shuffle(3).prefetch(1)
        yield slices.batch(2).unbatch().filter(lambda element: True).cache()
        yield module.zip((numbers, slices)).skip(1).shard(2, 1)
        yield numbers.concatenate(numbers).take_while(lambda number: True)
        yield module.counter().unique()
        yield module.random()
        yield module.from_tensors(np.zeros((2, 3)))

    for ours, theirs in zip(several(Dataset), several(tf.data.Dataset), strict=True):
        assert ours.element_spec == spec_of(theirs.element_spec)


def test_specs_of_parsed_examples() -> None:
    def features(module: Any) -> Any:
        return {
            "one": module.FixedLenFeature([2], np.int64),
            "many": module.FixedLenSequenceFeature([], np.float32, allow_missing=True),
            "text": module.FixedLenFeature([], tf.string),
        }

    records = tf.data.TFRecordDataset([]).batch(4).map(lambda batch: tf.io.parse_example(batch, features(tf.io)))
    ours = streamrec.TFRecordDataset("none").batch(4).parse_example(features(streamrec))
    assert ours.element_spec == spec_of(records.element_spec)


def test_numbers_are_tensorflows() -> None:
    assert streamrec.pipeline.INFINITE_CARDINALITY == tf.data.INFINITE_CARDINALITY
    assert streamrec.pipeline.UNKNOWN_CARDINALITY == tf.data.UNKNOWN_CARDINALITY
