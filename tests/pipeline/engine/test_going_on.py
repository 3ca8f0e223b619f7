"""An element that fails does not end a run: the next one follows, and both resume exactly."""

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamrec
from streamrec import (
    Dataset,
    FeatureError,
    FixedLenFeature,
    NotFoundError,
    TensorSpec,
    TFRecordDataset,
    encode_records,
)
from streamrec.errors import ClosedError
from streamrec.example import encode_example
from tests.pipeline.chains import BATCH, NUMBER, VERBS, Verb
from tests.runs import flip_bit, until_error

BAD_NUMBERS = {3, 4, 11, 19}
"""At these numbers functions fail."""


class BadNumberError(Exception):
    """What functions fail with."""


FAILURES = (BadNumberError, ValueError, TypeError)


def fail_if_bad(number: Any) -> Any:
    if int(number) in BAD_NUMBERS:
        raise BadNumberError(int(number))
    return number


async def fail_if_bad_later(number: Any) -> Any:
    return fail_if_bad(number)


def is_even(number: Any) -> bool:
    return bool(int(fail_if_bad(number)) % 2 == 0)


def is_below_15(number: Any) -> bool:
    return int(fail_if_bad(number)) < 15


def array_of_any_shape(number: Any) -> Any:
    """Arrays that make no batch where the number is bad."""
    return np.zeros(2 if int(number) in BAD_NUMBERS else 1, np.int64) + number


def add_to_total(total: Any, number: Any) -> Any:
    return total + int(fail_if_bad(number)), total


def generator_that_breaks_its_signature(numbers: Dataset[Any]) -> Dataset[Any]:
    """Of a generator of which some elements are not as its signature says."""
    return Dataset.from_generator(
        lambda: ["no number" if number in BAD_NUMBERS else number for number in range(23)],
        output_signature=TensorSpec((), np.int64),
    )


def batch_of_window(key: Any, window: Dataset[Any]) -> Dataset[Any]:
    return window.batch(100)


def two_elements(number: Any) -> Dataset[Any]:
    """Two elements, of which the second fails where the number is bad."""
    return Dataset.range(int(number) - 1, int(number) + 1).map(fail_if_bad)


def up_to_three_elements(number: Any) -> Dataset[Any]:
    return Dataset.range(int(fail_if_bad(number)) % 4)


def sample_of_failing(numbers: Dataset[Any]) -> Dataset[Any]:
    return Dataset.sample_from_datasets(
        [numbers.map(fail_if_bad), numbers.skip(2).map(fail_if_bad)], [0.5, 0.5], seed=1
    )


Chain = Callable[[Dataset[Any]], Dataset[Any]]
CHAINS: dict[str, Chain] = {
    "map": lambda numbers: numbers.map(fail_if_bad),
    "map in threads": lambda numbers: numbers.map(fail_if_bad, num_parallel_calls=3),
    "async map": lambda numbers: numbers.map(fail_if_bad_later, num_parallel_calls=3),
    "filter": lambda numbers: numbers.filter(is_even),
    "take_while": lambda numbers: numbers.take_while(is_below_15),
    "enumerate": lambda numbers: numbers.map(fail_if_bad).enumerate(),
    "batch": lambda numbers: numbers.map(fail_if_bad).batch(4),
    "unequal": lambda numbers: numbers.map(array_of_any_shape).batch(2),
    "map of batches": lambda numbers: numbers.batch(3).map(
        lambda batch: [fail_if_bad(each) for each in batch]
    ),
    "unbatch": lambda numbers: (
        numbers.batch(3).map(lambda b: np.array([fail_if_bad(n) for n in b])).unbatch()
    ),
    "bucket": lambda numbers: numbers.map(fail_if_bad).bucket_by_sequence_length(
        lambda n: int(n) % 5, [2], [3, 2]
    ),
    "prefetch": lambda numbers: numbers.map(fail_if_bad).prefetch(3).map(lambda n: n * 2),
    "concatenate": lambda numbers: numbers.map(fail_if_bad).concatenate(numbers.map(fail_if_bad)),
    "unique between": lambda numbers: (
        numbers.map(lambda n: int(n) // 2).map(fail_if_bad).unique().map(fail_if_bad)
    ),
    "scan of batches": lambda numbers: (
        numbers.map(fail_if_bad).batch(2).scan(0, lambda t, b: (t + int(b.sum()), t))
    ),
    "two stages": lambda numbers: numbers.map(fail_if_bad).map(lambda n: fail_if_bad(n - 1) + 1),
    "ignored": lambda numbers: numbers.map(fail_if_bad).ignore_errors().batch(4),
    "ignored in threads": lambda numbers: (
        numbers.map(fail_if_bad, num_parallel_calls=4).ignore_errors().enumerate()
    ),
    "ignored before a shuffle": lambda numbers: (
        numbers.map(fail_if_bad).ignore_errors().shuffle(5, seed=1)
    ),
    "scan's function": lambda numbers: numbers.scan(0, add_to_total),
    "scan's function, after an error": lambda numbers: numbers.map(
        lambda n: fail_if_bad(n + 1)
    ).scan(0, add_to_total),
    "signature": generator_that_breaks_its_signature,
    "class_func": lambda numbers: numbers.rejection_resample(is_even, [0.3, 0.7], seed=1),
    "rejection_resample": lambda numbers: numbers.map(fail_if_bad).rejection_resample(
        lambda n: n % 2, [0.3, 0.7], seed=1
    ),
    "key_func": lambda numbers: numbers.group_by_window(
        lambda n: fail_if_bad(n) % 3, batch_of_window, 3
    ),
    "length_func": lambda numbers: numbers.bucket_by_sequence_length(
        lambda n: int(fail_if_bad(n)) % 5, [2], [3, 2]
    ),
    "buckets that do not fit": lambda numbers: numbers.map(
        array_of_any_shape
    ).bucket_by_sequence_length(len, [9], [4, 1], padded_shapes=[1]),
    "unequal at the end": lambda numbers: numbers.take(20).map(array_of_any_shape).batch(3),
    "parse in threads": lambda numbers: numbers.map(lambda n: fail_if_bad(n + 3)).map(
        fail_if_bad, num_parallel_calls=2
    ),
    "cache": lambda numbers: numbers.map(fail_if_bad).cache().repeat(2),
    "zip": lambda numbers: Dataset.zip(
        numbers.map(fail_if_bad), numbers.skip(1).map(fail_if_bad), numbers
    ),
    "interleave": lambda numbers: numbers.interleave(two_elements, cycle_length=3),
    "interleave, its function": lambda numbers: numbers.interleave(
        up_to_three_elements, cycle_length=3, block_length=2
    ),
    "flat_map": lambda numbers: numbers.flat_map(up_to_three_elements),
    "sample_from_datasets": sample_of_failing,
    "choose_from_datasets": lambda numbers: Dataset.choose_from_datasets(
        [numbers, numbers.map(fail_if_bad)], numbers.map(lambda n: fail_if_bad(n) % 2)
    ),
    "shuffled before": lambda numbers: numbers.shuffle(5, seed=1).map(fail_if_bad),
}


def after_errors(verb: Verb, numbers: Dataset[Any]) -> Dataset[Any]:
    failing = numbers.map(fail_if_bad)
    return verb.ours(failing if NUMBER in verb.kinds else failing.batch(2), 2)


for verb in VERBS:
    if {NUMBER, NUMBER + BATCH} & {*verb.kinds}:
        CHAINS[f"{verb.name} in random chains"] = partial(after_errors, verb)


def numbers() -> Dataset[Any]:
    return Dataset.range(23)


def as_json(element: Any) -> Any:
    return json.dumps(element, default=lambda part: part.tolist())


def events_and_states(
    iterator: Any, show: Callable[[Any], Any] = as_json
) -> tuple[list[Any], list[Any]]:
    """Elements and errors, to the end, and the states around them."""
    found, states = list[Any](), [iterator.state_dict()]
    while True:
        try:
            found.append(show(next(iterator)))
        except StopIteration:
            return found, states
        except FAILURES as error:
            found.append(repr(error))
        states.append(json.loads(json.dumps(iterator.state_dict())))


def events(iterator: Any, show: Callable[[Any], Any] = as_json) -> list[Any]:
    return events_and_states(iterator, show)[0]


@pytest.mark.parametrize(
    ("name", "factor"), [("map", 1), ("map in threads", 1), ("async map", 1), ("prefetch", 2)]
)
def test_the_next_element_follows(name: str, factor: int) -> None:
    expected = [repr(BadNumberError(n)) if n in BAD_NUMBERS else str(factor * n) for n in range(23)]
    assert events(CHAINS[name](numbers()).iterate()) == expected


def test_a_batch_that_an_error_cuts_short_comes_before_it() -> None:
    assert events(CHAINS["batch"](numbers()).iterate())[:5] == [
        *("[0, 1, 2]", "BadNumberError(3)", "BadNumberError(4)", "[5, 6, 7, 8]", "[9, 10]")
    ]


@pytest.mark.parametrize("name", CHAINS)
def test_it_resumes_exactly_after_each_element_and_each_error(name: str) -> None:
    dataset = CHAINS[name](numbers())
    whole, states = events_and_states(dataset.iterate())
    assert any("Odd" in event or "Error" in event for event in whole) or "ignored" in name
    for index, state in enumerate(states):
        with dataset.iterate(state) as resumed:
            assert events(resumed) == whole[index:], index
            again = resumed.state_dict()
        assert events(dataset.iterate(again)) == []


@pytest.mark.parametrize("calls", [None, 3])
async def test_async_iterators_go_on_too(calls: int | None) -> None:
    iterator = numbers().map(fail_if_bad, num_parallel_calls=calls).aiterate()
    found: list[int] = []
    for _ in range(23):
        try:
            found.append(int(await anext(iterator)))
        except BadNumberError as error:
            found.append(error.args[0])
    assert found == list(range(23))


def test_results_that_come_in_any_order_lose_nothing() -> None:
    dataset = numbers().map(fail_if_bad, num_parallel_calls=4, deterministic=False)
    assert sorted(events(dataset.iterate())) == sorted(events(CHAINS["map"](numbers()).iterate()))


def test_all_elements_may_fail() -> None:
    def fails(number: Any) -> Any:
        raise BadNumberError(int(number))

    for calls in (None, 1, 4):
        dataset = Dataset.range(1500).map(fails, num_parallel_calls=calls)
        assert events(dataset.iterate()) == [repr(BadNumberError(n)) for n in range(1500)]
        assert list(dataset.ignore_errors()) == []
    assert next(iter(Dataset.range(3).map(fails).ignore_errors().repeat()), None) is None


# What is told of errors that are left out.


def fails_at_7(record: bytes) -> bytes:
    if b".7." in record:
        raise BadNumberError(record[:3].decode())
    return record


RECORD_CHAINS: dict[str, Callable[[Dataset[Any], Path], Dataset[Any]]] = {
    "shuffle": lambda records, path: records.shuffle(
        8, seed=1
    ),  # its states say where its records lie
    "cache in a file": lambda records, path: records.cache(path / "cache").repeat(2),
    "in any order": lambda records, path: records.map(
        bytes.upper, num_parallel_calls=2, deterministic=True
    ).shuffle(5),
}


@pytest.mark.parametrize("name", RECORD_CHAINS)
def test_records_of_shards_go_on_too(files: list[str], tmp_path: Path, name: str) -> None:
    failing = TFRecordDataset(files, num_parallel_reads=3).map(fails_at_7)
    dataset = RECORD_CHAINS[name](failing, tmp_path)
    whole, states = events_and_states(dataset.with_options(epoch=0).iterate(), bytes)
    assert sum(isinstance(event, str) for event in whole) == (4 if "cache" in name else 2)
    assert not (tmp_path / "cache").exists()  # a pass in which an element failed is not kept
    for index in {
        *range(0, len(states), 7),
        *(n + 1 for n, event in enumerate(whole) if isinstance(event, str)),
    }:
        with dataset.with_options(epoch=0).iterate(states[index]) as resumed:
            assert events(resumed, bytes) == whole[index:], index


def test_errors_that_are_left_out_are_counted_and_reported(
    files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    records = TFRecordDataset(files, num_parallel_reads=3)
    everything = list(records)
    list(records.map(fails_at_7).ignore_errors())
    assert caplog.messages == []  # nothing is logged unasked
    with caplog.at_level(logging.WARNING, "streamrec"):
        iterator = records.map(fails_at_7).ignore_errors(log_warning=True).iterate()
        assert list(iterator) == [record for record in everything if b".7." not in record]
    numbers = [number for number, record in enumerate(everything) if b".7." in record]
    stage = iterator.stats().stages[-1]
    assert stage.errors_ignored == len(numbers) == len(caplog.messages) == 2
    for number, message in zip(numbers, caplog.messages, strict=True):
        shard, record, _ = everything[number].decode().split(".")
        assert message == (
            f"an element is left out: BadNumberError: {shard}.{record} (in map: your function "
            "fails_at_7, "
            f"element {number} of this run: {files[int(shard)]}, record {record})"
        )


def test_a_record_that_cannot_be_parsed_is_one_error(tmp_path: Path) -> None:
    records = [encode_example({"x": n}) for n in range(10)]
    records[4] = b"no Example"
    (tmp_path / "x").write_bytes(encode_records(records))
    parsed = TFRecordDataset(str(tmp_path / "x")).parse_example(
        {"x": FixedLenFeature([], np.int64)}
    )
    assert [int(row["x"]) for row in parsed.ignore_errors()] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    iterator = parsed.skip(4).iterate()
    with pytest.raises(FeatureError) as caught:
        next(iterator)
    assert caught.value.__notes__[-1].endswith(f"element 4 of this run: {tmp_path}/x, record 4")
    assert int(next(iterator)["x"]) == 5


# What a run cannot go on from.


def test_a_source_that_failed_says_so_whenever_it_is_asked(files: list[str]) -> None:
    flip_bit(files[2], -6)
    dataset = TFRecordDataset(files).map(len)
    for damaged in (dataset, dataset.ignore_errors()):
        iterator = damaged.iterate()
        with pytest.raises(streamrec.CorruptRecordError):
            list(iterator)
        for _ in range(2):
            with pytest.raises(
                ClosedError, match=r"ended with an error \(CorruptRecordError: .*s-2.tf"
            ):
                next(iterator)


async def test_a_source_that_failed_says_so_in_async_code(tmp_path: Path) -> None:
    iterator = TFRecordDataset(str(tmp_path / "missing")).aiterate()
    for kind in (NotFoundError, ClosedError, ClosedError):
        with pytest.raises(kind):
            await anext(iterator)


def test_a_generator_that_failed_is_over() -> None:
    def made() -> Any:
        yield 1
        raise BadNumberError

    iterator = Dataset.from_generator(made).iterate()
    assert [
        until_error(iterator, kind)[0] for kind in (BadNumberError, ClosedError, ClosedError)
    ] == [
        [1],
        [],
        [],
    ]


# As in tf.data.


TENSORFLOW = ["map", "filter", "enumerate", "take", "repeat", "concatenate", "prefetch", "unbatch"]


@pytest.mark.peer
@pytest.mark.parametrize(
    "name", [*TENSORFLOW, "ignored", "ignored after filter", "scan", "zip", "interleave"]
)
def test_tensorflow_continues_in_the_same_way(name: str) -> None:
    tf = pytest.importorskip("tensorflow")

    def check(number: Any) -> Any:
        with tf.control_dependencies(
            [tf.debugging.Assert(tf.reduce_all([number != bad for bad in BAD_NUMBERS]), [number])]
        ):
            return tf.identity(number)

    chains: dict[str, Callable[[Any, Any], Any]] = {
        "map": lambda ds, f: ds.map(f),
        "filter": lambda ds, f: ds.filter(lambda n: f(n) % 2 == 0),
        "enumerate": lambda ds, f: ds.map(f).enumerate(),
        "take": lambda ds, f: ds.map(f).take(9),
        "repeat": lambda ds, f: ds.map(f).repeat(2),
        "concatenate": lambda ds, f: ds.map(f).concatenate(ds.map(f)),
        "prefetch": lambda ds, f: ds.map(f).prefetch(3),
        "unbatch": lambda ds, f: ds.map(f).batch(1).unbatch(),
        "scan": lambda ds, f: ds.scan(np.int64(0), lambda total, n: (total + f(n), total)),
        "zip": lambda ds, f: type(ds).zip((ds.map(f), ds.skip(1).map(f), ds)),
        "interleave": lambda ds, f: ds.interleave(lambda n: ranged(ds, n).map(f), cycle_length=3),
        "ignored": lambda ds, f: ds.map(f).ignore_errors().batch(4),
        "ignored after filter": lambda ds, f: (
            ds.filter(lambda n: f(n) % 2 == 0).ignore_errors().take(5)
        ),
    }

    def ranged(dataset: Any, number: Any) -> Any:
        if isinstance(dataset, Dataset):
            return Dataset.range(int(number), int(number) + 2)
        return tf.data.Dataset.range(number, number + 2)

    def theirs() -> list[Any]:
        found: list[Any] = []
        iterator = iter(chains[name](tf.data.Dataset.range(23), check))
        while True:
            try:
                found.append(
                    tf.nest.map_structure(lambda part: part.numpy().tolist(), next(iterator))
                )
            except StopIteration:
                return found
            except tf.errors.InvalidArgumentError:
                found.append("error")

    ours = events(chains[name](numbers(), fail_if_bad).iterate())
    assert [
        "error" if event.startswith("BadNumberError") else json.loads(event) for event in ours
    ] == json.loads(json.dumps(theirs()))


@pytest.mark.parametrize("calls", [None, 2])
def test_stop_iteration_of_a_function_is_an_error_of_one_element(calls: int | None) -> None:
    """It ends no loop, and loses no element: neither in the middle nor at the end of what is called
    together.
    """

    def stops(number: int) -> int:
        if number % 1024 in (5, 1023):
            raise StopIteration
        return int(number)

    iterator = iter(Dataset.range(2048).map(stops, calls))
    for first, last in ((0, 5), (6, 1023), (1024, 1029), (1030, 2047)):
        assert [next(iterator) for _ in range(first, last)] == list(range(first, last))
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(iterator)
    assert list(iterator) == []
