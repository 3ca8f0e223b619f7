"""Beside TensorFlow, where it is installed: the same files, records, elements, numbers and specs,
in the same order.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streamrec
from streamrec import (
    Dataset,
    TensorSpec,
    TFRecordDataset,
    TFRecordOptions,
    encode_records,
    matching_files,
)
from streamrec.pipeline import RaggedTensorSpec, SparseTensorSpec
from tests.effort import drawn_examples
from tests.pipeline.chains import ChainOfBoth, chains, comparable, shards

tf = pytest.importorskip("tensorflow")
from tests.example import compare, tf_twin  # noqa: E402

pytestmark = pytest.mark.peer

RECORDS = [b"", b"\0\0", b"x" * 100_000, *(b"%d" % index for index in range(2000))]


@pytest.mark.parametrize("parallel", [None, 1, 3])
def test_num_parallel_reads_means_the_same(files: list[str], parallel: int | None) -> None:
    theirs = tf.data.TFRecordDataset(files, num_parallel_reads=parallel)
    assert_same(TFRecordDataset(files, num_parallel_reads=parallel), theirs)


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_each_reads_what_the_other_writes(tmp_path: Path, kind: str) -> None:
    options = tf.io.TFRecordOptions(kind, compression_level=9)
    assert TFRecordOptions.of(options) == TFRecordOptions(kind, compression_level=9)
    for name, writer in (("ours", streamrec.TFRecordWriter), ("theirs", tf.io.TFRecordWriter)):
        with writer(str(tmp_path / name), options) as opened:
            for record in RECORDS:
                opened.write(record)
    assert (
        list(tf.data.TFRecordDataset(str(tmp_path / "ours"), kind).as_numpy_iterator()) == RECORDS
    )
    assert list(TFRecordDataset(tmp_path / "theirs")) == RECORDS


def test_options_have_tensorflows_fields() -> None:
    theirs = set(vars(tf.io.TFRecordOptions("GZIP")))
    assert theirs <= set(TFRecordOptions.__dataclass_fields__)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shards(tmp_path_factory.mktemp("chains"))


@given(data=st.data())
@settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_random_chains_mean_the_same(files: list[str], data: st.DataObject) -> None:
    made: ChainOfBoth = data.draw(chains(files, alike_only=True), "chain")
    ours = [comparable(element) for element in made.ours]
    theirs = [comparable(element) for element in made.theirs(tf).as_numpy_iterator()]
    assert ours == theirs if made.ordered else sorted(ours) == sorted(theirs)
    count = made.theirs(tf).cardinality().numpy()
    if count != tf.data.UNKNOWN_CARDINALITY:  # some are known here that are not there
        assert made.ours.cardinality() in (count, tf.data.UNKNOWN_CARDINALITY)
    assert made.ours.cardinality() in (len(ours), tf.data.UNKNOWN_CARDINALITY)


def assert_same(ours: Any, theirs: Any) -> None:
    both = ours.cardinality(), int(theirs.cardinality())
    assert list(map(comparable, ours.as_numpy_iterator())) == list(
        map(comparable, theirs.as_numpy_iterator())
    )
    assert streamrec.pipeline.UNKNOWN_CARDINALITY in (*both, 0) or both[0] == both[1]


@pytest.mark.parametrize("value", [5, np.arange(3), {"a": (b"x", [[1, 2]])}, [b"x", b"y"]])
def test_from_tensors(value: Any) -> None:
    ours, theirs = Dataset.from_tensors(value), tf.data.Dataset.from_tensors(value)
    assert_same(ours, theirs)
    assert_same(ours.repeat(2).batch(3), theirs.repeat(2).batch(3))
    assert_same(ours.repeat(-5).take(9).skip(5), theirs.repeat(-5).take(9).skip(5))
    assert len(list(ours.take(-5))) == 1 == len(list(theirs.take(-5).as_numpy_iterator()))
    assert comparable(ours.get_single_element()) == comparable(
        tf.nest.map_structure(lambda part: part.numpy(), theirs.get_single_element())
    )


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
        numbers = module.range(3000)
        resampled = numbers.rejection_resample(
            (lambda n: int(n % 4 == 0))
            if module is Dataset
            else (lambda n: tf.cast(n % 4 == 0, tf.int32)),
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
        lambda part: TensorSpec(
            None if part.shape.rank is None else part.shape.as_list(), part.dtype
        ),
        spec,
    )


SLICES = {"a": np.zeros((3, 2), np.float32), "b": [b"x", b"y", b"z"]}
PROGRAMS: list[Callable[[Any], Any]] = [
    lambda ds: ds.range(9).batch(2),
    lambda ds: ds.range(9).batch(2, drop_remainder=True).enumerate().take(3),
    lambda ds: ds.from_tensor_slices(SLICES).batch(2).repeat().prefetch(1),
    lambda ds: (
        ds.from_tensor_slices(SLICES).batch(2).unbatch().filter(lambda element: True).cache()
    ),
    lambda ds: ds.zip((ds.range(9), ds.from_tensor_slices(SLICES))).skip(1).shard(2, 1),
    lambda ds: ds.zip({"a": (ds.range(9).skip(3), ds.range(20))}),
    lambda ds: ds.zip(ds.range(9)),
    lambda ds: ds.range(9).concatenate(ds.range(9)).take_while(lambda number: True),
    lambda ds: ds.from_tensors(np.zeros((2, 3))),
    lambda ds: ds.from_tensor_slices(["a", "b"]).batch(2),
    lambda ds: ds.counter(),
    lambda ds: ds.counter(5),
    lambda ds: ds.counter(5, -3).unique(),
    lambda ds: ds.counter(0, 0),
    lambda ds: ds.counter(1, 2, np.int32),
]
"""Datasets that are written alike for both."""
OF_PYTHON: list[Callable[[Any], Any]] = [
    lambda ds: ds.from_tensor_slices([1, 2, 3]),
    lambda ds: ds.from_tensor_slices(
        {"x": np.arange(6).reshape(3, 2), "y": (["a", b"b", "c"], [1.5, 2.5, 3.5])}
    ),
]
"""Numbers of Python have 32 bits there."""


@pytest.mark.parametrize("program", PROGRAMS + OF_PYTHON)
def test_programs_give_what_tf_data_gives(program: Callable[[Any], Any]) -> None:
    ours, theirs = program(Dataset), program(tf.data.Dataset)
    assert program in OF_PYTHON or ours.element_spec == spec_of(theirs.element_spec)
    assert ours.cardinality() in (int(theirs.cardinality()), tf.data.UNKNOWN_CARDINALITY)
    assert_same(ours.take(12), theirs.take(12))


def test_the_spec_of_random_numbers() -> None:
    assert Dataset.random().element_spec == spec_of(tf.data.Dataset.random().element_spec)


def test_specs_of_parsed_examples() -> None:
    def features(module: Any) -> Any:
        return {
            "one": module.FixedLenFeature([2], np.int64),
            "many": module.FixedLenSequenceFeature([], np.float32, allow_missing=True),
            "text": module.FixedLenFeature([], tf.string),
        }

    records = (
        tf.data.TFRecordDataset([])
        .batch(4)
        .map(lambda batch: tf.io.parse_example(batch, features(tf.io)))
    )
    ours = streamrec.TFRecordDataset("none").batch(4).parse_example(features(streamrec))
    assert ours.element_spec == spec_of(records.element_spec)


def test_numbers_are_tensorflows() -> None:
    assert tf.data.AUTOTUNE == streamrec.AUTOTUNE
    assert streamrec.pipeline.INFINITE_CARDINALITY == tf.data.INFINITE_CARDINALITY
    assert streamrec.pipeline.UNKNOWN_CARDINALITY == tf.data.UNKNOWN_CARDINALITY


SHAPES: list[tuple[Any, Any]] = [
    (None, None),
    (([None, 3], ()), None),
    (([5, -1], []), (np.int64(-1), b"")),
    (([None, None], ()), (np.int64(7), b"?")),
]


@pytest.mark.parametrize(("shapes", "values"), SHAPES)
@pytest.mark.parametrize("drop", [False, True])
def test_padded_batch_means_the_same(
    files: list[str], shapes: Any, values: Any, drop: bool
) -> None:
    mine = TFRecordDataset(files).map(
        lambda r: (np.full((len(r) % 5, 1 + len(r) % 3), len(r), np.int64), r)
    )
    theirs = tf.data.TFRecordDataset(files).map(tensorflows_arrays)
    assert_same(
        mine.padded_batch(4, shapes, values, drop), theirs.padded_batch(4, shapes, values, drop)
    )


def tensorflows_arrays(record: Any) -> Any:
    length = tf.strings.length(record)
    filled = tf.fill([length % 5, 1 + length % 3], tf.cast(length, tf.int64))
    return tf.ensure_shape(filled, [None, None]), record


def test_ragged_batch_means_the_same(files: list[str]) -> None:
    mine = TFRecordDataset(files).map(
        lambda r: (np.arange(len(r) % 5), r, np.full((len(r) % 2, 2, len(r) % 4), 1))
    )
    theirs = tf.data.TFRecordDataset(files).map(
        lambda r: (
            tf.ensure_shape(tf.range(tf.cast(tf.strings.length(r) % 5, tf.int64)), [None]),
            r,
            tf.ensure_shape(
                tf.ones([tf.strings.length(r) % 2, 2, tf.strings.length(r) % 4], tf.int64),
                [None, None, None],
            ),
        )
    )
    for drop in (False, True):
        for found, wanted in zip(
            mine.ragged_batch(6, drop), theirs.ragged_batch(6, drop), strict=True
        ):
            for part, other in zip(found, wanted, strict=True):
                compare.assert_same(part, tf_twin.arrays(other), "a part")


def nested(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield {"x": np.full(number, number), "y": (b"%d" % number, np.float32(number))}


def test_from_generator_gives_what_tf_data_gives() -> None:
    signature = {
        "x": tf.TensorSpec([None], tf.int64),
        "y": (tf.TensorSpec([], tf.string), tf.TensorSpec([])),
    }
    mine = Dataset.from_generator(nested, (11,))
    theirs = tf.data.Dataset.from_generator(nested, args=(11,), output_signature=signature)
    assert_same(mine, theirs)
    assert_same(mine.skip(2).padded_batch(4).repeat(2), theirs.skip(2).padded_batch(4).repeat(2))
    assert_same(
        mine.repeat(3).take(25).enumerate().shard(3, 1),
        theirs.repeat(3).take(25).enumerate().shard(3, 1),
    )


def both(lengths: list[int]) -> tuple[Dataset[Any], Any]:
    """The same sequences, with their numbers, for us and for tf.data."""

    def generator() -> Iterator[Any]:
        for index, length in enumerate(lengths):
            yield np.full(length, index), index

    signature = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.int64))
    return Dataset.from_generator(generator), tf.data.Dataset.from_generator(
        generator, output_signature=signature
    )


@given(
    lengths=st.lists(st.integers(0, 12), max_size=40),
    boundaries=st.sets(st.integers(1, 11), max_size=4),
    sizes=st.lists(st.integers(1, 6), min_size=6, max_size=6),
    drop=st.booleans(),
    value=st.sampled_from([None, 7]),
    shapes=st.sampled_from([None, ([None], []), ([15], [])]),
    pad=st.booleans(),
)
@drawn_examples(80)
def test_bucketing_by_length_gives_what_tf_data_gives(
    lengths: list[int],
    boundaries: set[int],
    sizes: list[int],
    drop: bool,
    value: Any,
    shapes: Any,
    pad: bool,
) -> None:
    """With `pad`, to the boundary: then no sequence may reach the last one."""
    bounds = sorted({*boundaries, 12}) if pad else sorted(boundaries)
    options: dict[str, Any] = {"drop_remainder": drop, "padded_shapes": shapes}
    options["pad_to_bucket_boundary"] = pad
    if value is not None:
        options["padding_values"] = (np.int64(value), np.int64(0))
    mine, theirs = both([min(length, 11) for length in lengths] if pad else lengths)
    batch_sizes = sizes[: len(bounds) + 1]
    assert_same(
        mine.bucket_by_sequence_length(lambda row, _: len(row), bounds, batch_sizes, **options),
        theirs.bucket_by_sequence_length(
            lambda row, _: tf.shape(row)[0], bounds, batch_sizes, **options
        ),
    )


def test_patterns_match_what_tensorflow_matches(tmp_path: Path) -> None:
    names = [
        "run#1",
        "q?x",
        "p%20q",
        "p q",
        "[1]",
        "1",
        "x[1]y",
        "x1y",
        "{a,b}",
        "a*b",
        "axb",
        "a?b",
        "é",
        "-x",
        "^a",
    ]
    names += [
        "trailing ",
        ".hidden",
        "*",
        "?",
        "!a",
        "a-b",
        "]",
        "[",
        "sub/x",
        "sub/.h",
        "sub2/deep/x",
    ]
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
    ]
    patterns += [
        "[]]",
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
    ]
    patterns += ["a[!/]b", ".*"]
    for pattern in patterns:
        matched = [
            os.fsdecode(path) for path in tf.io.matching_files(f"{tmp_path}/{pattern}").numpy()
        ]
        files = sorted(path for path in matched if not os.path.isdir(path))
        assert matching_files(f"{tmp_path}/{pattern}") == files, pattern


LENGTHS = st.lists(st.integers(0, 9), max_size=9)


def slices_of_both(numbers: list[int]) -> tuple[Dataset[Any], Any]:
    """Numbers for us and for tf.data."""
    array = np.array(numbers, np.int64)
    return Dataset.from_tensor_slices(array), tf.data.Dataset.from_tensor_slices(array)


@given(LENGTHS, st.integers(1, 4))
@drawn_examples(20)
def test_parallel_interleave_and_flat_map_have_the_same_order(
    lengths: list[int], cycle: int
) -> None:
    mine, theirs = slices_of_both(lengths)
    wanted = theirs.interleave(
        tf.data.Dataset.range, cycle, 2, num_parallel_calls=cycle, deterministic=True
    )
    assert_same(mine.interleave(Dataset.range, cycle, 2, num_parallel_calls=cycle), wanted)
    assert_same(mine.flat_map(Dataset.range), theirs.flat_map(tf.data.Dataset.range))


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    drawn=st.lists(st.integers(0, 3), max_size=60),
    stop=st.booleans(),
)
@drawn_examples(80)
def test_choose_from_datasets_gives_what_tf_data_gives(
    lengths: list[int], drawn: list[int], stop: bool
) -> None:
    mine = [
        Dataset.range(at * 100, at * 100 + length).batch(2).unbatch()
        for at, length in enumerate(lengths)
    ]
    theirs = [
        tf.data.Dataset.range(at * 100, at * 100 + length) for at, length in enumerate(lengths)
    ]
    ours, choices = slices_of_both([draw % len(lengths) for draw in drawn])
    assert_same(
        Dataset.choose_from_datasets(mine, ours, stop),
        tf.data.Dataset.choose_from_datasets(theirs, choices, stop),
    )


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("weights", [None, [0.2, 0.0, 0.8], [0.0, 0.0, 1.0]])
def test_samples_of_both_end_alike(stop: bool, weights: list[float] | None) -> None:
    mine = [Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    theirs = [tf.data.Dataset.range(at * 100, at * 100 + 30) for at in range(3)]
    found = list(map(int, Dataset.sample_from_datasets(mine, weights, 5, stop)))
    wanted = list(
        tf.data.Dataset.sample_from_datasets(theirs, weights, 5, stop).as_numpy_iterator()
    )
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
