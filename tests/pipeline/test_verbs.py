"""The verbs that tf.data has beside those of `stages`: what they give, where they go on, and what
they refuse.
"""

import inspect
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    RaggedTensor,
    TensorSpec,
    TFRecordDataset,
    encode_example,
    encode_records,
)
from streamrec.pipeline import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    RaggedTensorSpec,
    SparseTensorSpec,
    stages,
)
from streamrec.pipeline.elements.chunk import weigh
from streamrec.pipeline.engine.stage import Stage
from tests.pipeline import chains as random_chains
from tests.runs import until_error, write_shards
from tests.servers.resuming import assert_resumes_everywhere, plain

numbers = Dataset.range(23)
floats = Dataset.from_tensor_slices(np.arange(3.0))
strings = Dataset.from_tensor_slices([b"a", b"b", b"", b"d", b"e"])
ragged = Dataset.from_tensor_slices(RaggedTensor(np.arange(9), (np.array([0, 2, 3, 3, 9]),)))


def add_to_total(state: Any, number: Any) -> tuple[Any, Any]:
    return state + number, (state, number)


def appended(state: Any, number: Any) -> tuple[Any, Any]:
    """Changes its state in place."""
    state["seen"][number % 3] += 1
    return state, state["seen"].copy()


def as_batches(window: Dataset[Any]) -> Dataset[Any]:
    return window.batch(100)


def in_turn(one: Dataset[Any], other: Dataset[Any]) -> Dataset[Any]:
    return random_chains.in_turn(Dataset, [one, other])  # type: ignore[no-any-return]


def as_pair(number: Any, record: Any) -> tuple[Any, Any]:
    return number, record


def first_of_pair(pair: Any, other: Any) -> Dataset[Any]:
    return Dataset.zip(pair, other).batch(100)


def remainder(number: Any) -> Any:
    return number % 3


def labelled(key: Any, window: Dataset[Any]) -> Dataset[Any]:
    return window.batch(100).map(lambda batch: (key, batch))


@pytest.fixture
def records(tmp_path: Path) -> Dataset[bytes]:
    shards = [[b"%d" % (n * n % 7) for n in range(9 + shard)] for shard in range(3)]
    return TFRecordDataset(write_shards(tmp_path, shards), num_parallel_reads=2)


CHAINS: dict[str, Callable[[Dataset[Any]], Dataset[Any]]] = {
    "from_tensors": lambda records: Dataset.from_tensors({"a": [1, 2], "b": "x"}).repeat(3),
    "counter": lambda records: Dataset.counter(5, -2).take(9),
    "random": lambda records: Dataset.random(rerandomize_each_iteration=True).take(5).repeat(2),
    "window with gaps": lambda records: numbers.window(2, 7).flat_map(as_batches),
    "window of pairs": lambda records: records.enumerate().window(5, 3).flat_map(first_of_pair),
    "window of joined records": lambda records: (
        Dataset.from_tensor_slices([b"a"]).concatenate(records).window(2).interleave(as_batches)
    ),
    "window of joined numbers": lambda records: (
        floats.concatenate(numbers).window(4, 1).flat_map(as_batches)
    ),
    "choose": lambda records: in_turn(strings, records).batch(1),
    "choose of pairs": lambda records: in_turn(strings.enumerate(), records.enumerate()).batch(2),
    "choose of rows": lambda records: in_turn(numbers.take(3).map(np.arange), ragged).batch(1),
    "padded choose": lambda records: in_turn(records, strings).padded_batch(1),
    "choose, enumerated": lambda records: (
        in_turn(records.enumerate(), strings.enumerate().map(as_pair)).enumerate().batch(1)
    ),
    "choose, zipped": lambda records: Dataset.zip(in_turn(strings, records), numbers).batch(1),
    "choose, in a cache": lambda records: in_turn(strings, records).cache().repeat(2).batch(1),
    "choose, filtered": lambda records: (
        in_turn(strings, records).filter(bool).shard(2, 0).skip(3).batch(1)
    ),
    "choose, then window": lambda records: (
        in_turn(strings, records).window(2, 1).flat_map(as_batches)
    ),
    "choose, then group_by_window": lambda records: in_turn(strings, records).group_by_window(
        len, labelled, 2
    ),
    "choose, then bucket": lambda records: in_turn(strings, records).bucket_by_sequence_length(
        len, [2], [1, 2], no_padding=True
    ),
    "choose, then shuffle": lambda records: in_turn(strings, records).shuffle(3, 1).batch(1),
    "interleave of both": lambda records: (
        Dataset.range(2)
        .interleave(lambda n: (records if n else strings).concatenate(strings), 2)
        .batch(1)
    ),
    "shuffle of joined records": lambda records: (
        strings.concatenate(records).shuffle(9, 1).batch(1)
    ),
    "shuffle of joined numbers": lambda records: numbers.concatenate(floats).shuffle(9, 1).batch(1),
    "batches of joined numbers": lambda records: in_turn(numbers, floats).batch(2),
    "window of objects": lambda records: records.map(bytes.upper).window(5, 3).flat_map(as_batches),
    "group_by_window of records": lambda records: records.group_by_window(len, labelled, 4),
    "scan of arrays": lambda records: numbers.scan({"seen": np.zeros(3)}, appended),
    "unique dicts": lambda records: numbers.map(lambda n: {"a": n % 4}).unique(),
    "rejection_resample": lambda records: Dataset.range(60).rejection_resample(
        remainder, [0.6, 0.2, 0.2], seed=2
    ),
    "rejection_resample, told": lambda records: records.rejection_resample(
        lambda record: record != b"1", [0.5, 0.5], [0.3, 0.7]
    ),
    "signature": lambda records: Dataset.from_generator(
        lambda: ((n, [n] * (n % 3)) for n in range(9)),
        output_signature=(TensorSpec((), np.int64), TensorSpec((None,), "float32")),
    ),
    "ignore_errors": lambda records: numbers.ignore_errors(),
    "shuffle(None)": lambda records: numbers.shuffle(None, seed=1),
}


def start(kind: str, records: Dataset[bytes]) -> Dataset[Any]:
    """Elements of a kind of the random chains."""
    single = {
        random_chains.RECORD: records,
        random_chains.NUMBER: numbers,
        random_chains.PAIR: records.enumerate(),
        random_chains.ROWS: records.map(random_chains.row_of),
    }[random_chains.unbatched(kind)]
    if kind == random_chains.ROWS + random_chains.BATCH:
        return single.ragged_batch(4)
    return single.batch(4) if kind.endswith(random_chains.BATCH) else single


for verb in random_chains.VERBS:
    CHAINS[f"{verb.name} in random chains"] = lambda records, verb=verb: verb.ours(
        start(verb.kinds[0], records), 3
    )  # type: ignore[misc]


IN_CHUNKS: list[Callable[[Dataset[Any]], Dataset[Any]]] = [
    lambda ds: ds.window(7, 3, 2).flat_map(as_batches),
    lambda ds: ds.group_by_window(remainder, labelled, 11),
    lambda ds: ds.scan(0, add_to_total),
    lambda ds: ds.map(lambda number: number % 50).unique(),
]
"""Of numbers: they deliver the same however the numbers are cut into chunks."""

UNKNOWN_COUNT_AND_SPEC = {"Bucket", "GroupByWindow", "IgnoreErrors", "Resample"}

UNCOUNTED = {*UNKNOWN_COUNT_AND_SPEC, "Filter", "TakeWhile", "Unbatch", "Unique"}
"""Stages that cannot know how many elements they make."""

UNSPECIFIED = {*UNKNOWN_COUNT_AND_SPEC, "PaddedBatch", "RaggedBatch", "Scan", "Window"}
"""Stages that cannot know which elements they make."""


@pytest.mark.usefixtures("both_layouts")
@pytest.mark.parametrize("name", CHAINS)
def test_resumes_after_each_element(records: Dataset[bytes], name: str) -> None:
    assert_resumes_everywhere(CHAINS[name](records).with_options(memory_budget=1 << 14))


@pytest.mark.parametrize("name", CHAINS)
def test_cardinality_and_spec_are_true(records: Dataset[bytes], name: str) -> None:
    dataset = CHAINS[name](records)
    elements = list(dataset)
    assert dataset.cardinality() in (len(elements), UNKNOWN_CARDINALITY)
    if (spec := dataset.element_spec) is not None:
        assert list(
            map(plain, Dataset.from_generator(lambda: elements, output_signature=spec))
        ) == list(map(plain, elements))


def test_each_verb_that_is_a_stage_has_a_chain() -> None:
    """Here or in the random chains: so it is resumed, and its cardinality and element_spec are
    compared.
    """
    functions = [verb for verb in vars(Dataset).values() if isinstance(verb, FunctionType)]
    verbs = [
        verb.__name__ for verb in functions if {"stages", "_then"} <= {*verb.__code__.co_names}
    ]
    chains = inspect.getsource(sys.modules[__name__]) + inspect.getsource(random_chains)
    assert [name for name in verbs if f".{name}(" not in chains] == []


def test_each_stage_says_how_many_elements_it_makes_and_of_which_kind() -> None:
    """A stage that cannot know is named in `UNCOUNTED` or `UNSPECIFIED`."""
    found = [getattr(stages, name) for name in stages.__all__]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Stage)]
    uncounted = {
        kind.__name__
        for kind in kinds
        if kind.cardinality is Stage.cardinality and not kind.one_to_one
    }
    assert uncounted == UNCOUNTED
    unspecified = {
        kind.__name__
        for kind in kinds
        if kind.element_spec is Stage.element_spec and not kind.picks
    }
    assert unspecified == UNSPECIFIED


def test_many_elements_in_small_chunks() -> None:
    """Chunk by chunk and all together: the same windows, groups and sums."""
    small = (
        Dataset.range(500).batch(3).unbatch()
    )  # a chunk for each batch, however busy the machine is
    large = Dataset.range(500)
    for verb in IN_CHUNKS:
        assert list(map(plain, verb(small))) == list(map(plain, verb(large)))


def test_windows_are_datasets() -> None:
    windows = list(numbers.window(10))
    assert [window.cardinality() for window in windows] == [10, 10, 3]
    assert [list(map(int, window)) for window in windows[1:]] == [list(range(10, 20)), [20, 21, 22]]
    assert list(windows[0].shuffle(None, seed=1).batch(10).unbatch()) != list(windows[0])
    named = next(iter(Dataset.from_tensor_slices({"a": [1, 2], "b": [b"x", b"y"]}).window(2)))
    assert list(named["b"]) == [b"x", b"y"]
    number, (double, record) = next(
        iter(numbers.map(lambda n: (2 * n, b"%d" % n)).enumerate().window(3))
    )
    assert [list(part) for part in (number, double, record)] == [
        [0, 1, 2],
        [0, 2, 4],
        [b"0", b"1", b"2"],
    ]
    assert [list(map(len, part)) for part in [next(iter(numbers.window(4).window(2)))]] == [[4, 4]]


def test_a_function_that_fails_comes_after_what_came_before() -> None:
    def fails(state: int, number: Any) -> Any:
        return (state, 1 // (5 - int(number)))

    assert len(until_error(numbers.scan(0, fails), ZeroDivisionError)[0]) == 5
    keyed = numbers.group_by_window(lambda number: 1 // (5 - int(number)), labelled, 2)
    assert until_error(keyed, ZeroDivisionError)[0]


def test_reduce_folds_all_elements_into_the_initial_state() -> None:
    assert numbers.reduce(0, lambda state, number: state + int(number)) == sum(range(23))
    pairs = numbers.enumerate()
    assert pairs.reduce(0, lambda state, pair: state + int(pair[0] == pair[1])) == 23
    assert Dataset.range(0).reduce("nothing", lambda state, number: "something") == "nothing"


def test_get_single_element() -> None:
    assert Dataset.from_tensors(5).get_single_element() == 5
    for wrong, what in ((Dataset.range(0), "none"), (numbers, "more than one")):
        with pytest.raises(ValueError, match=f"one element, but .* has {what}"):
            wrong.get_single_element()


def test_as_numpy_iterator(records: Dataset[bytes]) -> None:
    found = next(records.batch(3).as_numpy_iterator())
    assert found.dtype == object
    assert found.tolist() == [b"0", b"0", b"1"]
    mixed = Dataset.from_generator(lambda: [1, 2.5, "a", b"b"])
    assert list(map(type, mixed.as_numpy_iterator())) == [np.int64, np.float64, bytes, bytes]
    with numbers.batch(4).as_numpy_iterator() as elements:
        next(elements)
        state = elements.state_dict()
    assert (
        next(numbers.batch(4).iterate(state)).tolist()
        == next(numbers.batch(4).as_numpy_iterator(state)).tolist()
    )


def test_apply_calls_its_function_with_the_dataset() -> None:
    assert numbers.apply(lambda dataset: dataset.batch(3)) == numbers.batch(3)


def test_random_numbers() -> None:
    drawn = np.concatenate(list(Dataset.random(seed=1).batch(10_000).take(2)))
    assert drawn.dtype == np.int64
    assert 0 <= drawn.min() < 1e6
    assert 4e9 < drawn.max() < 2**32
    same, fresh = (
        Dataset.random(seed=1).take(3),
        Dataset.random(seed=1, rerandomize_each_iteration=True).take(3),
    )
    assert list(same) == list(same)
    assert list(fresh) != list(fresh)


def test_len_is_the_cardinality_or_an_error_that_says_why_not() -> None:
    assert len(numbers.batch(4)) == 6
    assert bool(Dataset.range(0))
    assert bool(numbers.filter(bool))
    with pytest.raises(
        TypeError, match=r"depends on its data\. A torch DataLoader needs streamrec\.torch\.Iter"
    ):
        len(numbers.filter(bool))


def test_a_dataset_of_unknown_length_has_no_len_attribute() -> None:
    assert hasattr(numbers, "__len__")
    assert not hasattr(numbers.filter(bool), "__len__")
    assert not hasattr(numbers.repeat(), "__len__")
    assert list(numbers.filter(bool))  # list() asks for the length


def test_a_shuffle_of_a_cardinality_is_of_all_elements() -> None:
    unknown = numbers.filter(lambda number: True)
    shuffled = [
        list(map(int, each.shuffle(each.cardinality(), seed=1))) for each in (numbers, unknown)
    ]
    assert shuffled[0] != sorted(shuffled[0])
    assert shuffled[0] == shuffled[1]
    with pytest.raises(ValueError, match="a shuffle of all elements would never end"):
        numbers.repeat().shuffle(UNKNOWN_CARDINALITY)


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (numbers.skip(3).take(100), 20),
        (numbers.shard(4, 3), 5),
        (numbers.batch(4, drop_remainder=True).unbatch(), 20),
        (numbers.batch(4).rebatch(5), 5),
        (numbers.repeat(3).concatenate(numbers), 92),
        (numbers.repeat().concatenate(numbers), INFINITE_CARDINALITY),
        (Dataset.zip(numbers, Dataset.counter()), 23),
        (Dataset.counter().take(4), 4),
        (numbers.window(5, 2), 12),
        (numbers.window(5, 2, drop_remainder=True), 10),
        (numbers.cache().prefetch(2).shuffle(5).map(abs).map(abs, 2), 23),
        (numbers.filter(bool), UNKNOWN_CARDINALITY),
        (numbers.filter(bool).take(0), 0),
        (Dataset.range(0).repeat(), 0),
        (numbers.repeat(0), 0),
    ],
)
def test_cardinality(dataset: Dataset[Any], count: int) -> None:
    assert dataset.cardinality() == count
    if count >= 0:
        assert len(list(dataset)) == count


def test_element_spec(records: Dataset[bytes]) -> None:
    batch = records.batch(8)
    features: dict[str, Any] = {
        "one": streamrec.FixedLenFeature([2], np.int64),
        "many": streamrec.FixedLenSequenceFeature([], np.float32, allow_missing=True),
        "ragged": streamrec.RaggedFeature(bytes),
        "sparse": streamrec.VarLenFeature(np.int64),
    }
    assert batch.element_spec == TensorSpec([None], bytes)
    assert batch.parse_example(features).element_spec == {
        "one": TensorSpec([None, 2], np.int64),
        "many": TensorSpec([None, None], np.float32),
        "ragged": RaggedTensorSpec([None, None], bytes, 1),
        "sparse": SparseTensorSpec([None, None], np.int64),
    }
    assert records.parse_example({"one": features["one"]}).element_spec == {
        "one": TensorSpec([2], np.int64)
    }
    assert batch.map(len).element_spec is None
    one = batch.parse_example({"one": features["one"]}, num_parallel_calls=2).unbatch().enumerate()
    assert one.element_spec == (TensorSpec((), np.int64), {"one": TensorSpec([2], np.int64)})


def test_fingerprints_are_equal_for_equal_chains_only() -> None:
    assert numbers.batch(3).fingerprint() == Dataset.range(23).batch(3).fingerprint()
    assert numbers.batch(3).fingerprint() != numbers.batch(4).fingerprint()


def test_shuffle_of_none_has_a_buffer_for_all_elements() -> None:
    assert numbers.shuffle(None, 1) == numbers.shuffle(23, 1)
    assert list(Dataset.range(0).shuffle(None)) == []


def test_batch_takes_tfdatas_arguments() -> None:
    assert numbers.batch(3, False, streamrec.AUTOTUNE, True) == numbers.batch(3)


SIGNATURES: list[tuple[Any, Any, str]] = [
    (
        TensorSpec([], np.int64),
        [1, 2, 2.5],
        "element 2 of the generator does not fit output_signature: it is 2.5",
    ),
    (TensorSpec([], np.int32), [1, 2**40], "element 1 .* does not fit in int32"),
    (
        TensorSpec([2], np.int64),
        [[1, 2], [1, 2, 3]],
        r"element 1 .* shape \[3\], where \[2\] is expected",
    ),
    (TensorSpec([], bytes), [b"a", 5], "element 1 .* where bytes are expected"),
    (
        (TensorSpec([], np.int64),) * 2,
        [(1, 2), 3],
        r"element 1 .* it is 3 \(int\), where a tuple of 2 parts",
    ),
    (
        {"a": TensorSpec([], np.int64)},
        [{"a": 1}, {"b": 2}],
        "element 1 .* where a dict of .'a'. is expected",
    ),
    (
        TensorSpec([None], np.float32),
        [np.zeros(2), np.zeros(2, int)],
        "element 0 .* of float64, which does not fit",
    ),
    (
        RaggedTensorSpec([None, None], np.int64),
        [5],
        "element 0 .* where a RaggedTensor is expected",
    ),
]


@pytest.mark.parametrize(("signature", "elements", "message"), SIGNATURES)
def test_elements_that_do_not_fit_the_signature(
    signature: Any, elements: list[Any], message: str
) -> None:
    given, error = until_error(
        Dataset.from_generator(lambda: elements, output_signature=signature), Exception, message
    )
    assert isinstance(error, TypeError | ValueError)
    assert f"element {len(given)} " in str(error)


def test_a_signature_makes_arrays_of_its_dtype() -> None:
    made = Dataset.from_generator(
        lambda: [([1, 2], "a")],
        output_signature=(TensorSpec([None], "float32"), TensorSpec([], bytes)),
    )
    [(array, text)] = made
    assert array.dtype == np.float32
    assert text == b"a"
    records = Dataset.from_generator(lambda: ["a", b"b"], output_signature=TensorSpec([], bytes))
    assert isinstance(next(iter(records.batch(2))), streamrec.Frames)


def test_save_and_load(tmp_path: Path, records: Dataset[bytes]) -> None:
    path = str(tmp_path / "saved" / "file")
    pairs = records.enumerate().batch(4)
    pairs.save(path)
    loaded: Dataset[Any] = Dataset.load(path)
    assert list(map(plain, loaded)) == list(map(plain, pairs))
    assert_resumes_everywhere(loaded.unbatch())
    with pytest.raises(streamrec.errors.AlreadyExistsError):
        numbers.save(path)
    with pytest.raises(streamrec.NotFoundError, match=r"save\(\) wrote no file of this name"):
        list(Dataset.load(str(tmp_path / "nothing")))
    (tmp_path / "else").write_bytes(encode_records([encode_example({"a": 1})]))
    with pytest.raises(
        streamrec.errors.CacheError, match=r"neither cache\(\) nor save\(\) of streamrec wrote"
    ):
        list(Dataset.load(str(tmp_path / "else")))


def test_windows_count_in_the_memory_of_a_run() -> None:
    window = next(iter(Dataset.from_generator(lambda: [np.zeros(1 << 20)] * 2).window(2)))
    assert weigh([window]) > 2 << 23


TEXT = (Path(__file__).parents[2] / "docs" / "tfdata.md").read_text()

TABLES = {
    heading: dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", rows, re.MULTILINE))
    for heading, rows in re.findall(r"^### (\S+)\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL)
}
"""By the module's or class's name: of each name what is said of it."""

RECORDS = {"Example", "SequenceExample"} | {"BytesList", "FloatList", "Int64List"}
RECORDS |= {"Feature", "Features", "FeatureList", "FeatureLists"}


@pytest.mark.parametrize("heading", TABLES)
def test_counterparts_exist(heading: str) -> None:
    for name, said in TABLES[heading].items():
        if not said.startswith("none: "):
            assert re.search(r"`|above", said), f"{heading}.{name}: which name stands for it?"
        for found in re.findall(r"`(Dataset|streamrec)\.(\w+)", said):
            there = hasattr(streamrec.Dataset if found[0] == "Dataset" else streamrec, found[1])
            assert there or find_spec(f"streamrec.{found[1]}"), found


def test_the_page_does_not_call_methods_missing_that_dataset_has() -> None:
    missing = {
        name for name, said in TABLES["tf.data.Dataset"].items() if said.startswith("none: ")
    }
    assert not missing & set(dir(streamrec.Dataset))


@pytest.mark.peer
def test_the_page_has_every_public_name_of_tf_data_and_tf_io() -> None:
    tf = pytest.importorskip("tensorflow")
    modules = {"tf.data.Dataset": tf.data.Dataset, "tf.data": tf.data, "tf.io": tf.io}
    modules["tf.data.experimental"] = tf.data.experimental
    for heading, module in modules.items():
        assert set(TABLES[heading]) == {name for name in dir(module) if not name.startswith("_")}
    assert set(TABLES["tf.train"]) == {name for name in dir(tf.train) if name in RECORDS} == RECORDS


def test_unique_compares_strings_in_columns() -> None:
    examples = [encode_example({"text": [b"%d" % (n % 6), b"x"]}) for n in range(9)]
    features = {"text": streamrec.FixedLenFeature([2], "string")}
    batches = (
        Dataset.from_tensor_slices(examples).batch(3).parse_example(features, string_columns=True)
    )
    assert [next(iter(batch["text"].reshape(-1))) for batch in batches.unique()] == [b"0", b"3"]
