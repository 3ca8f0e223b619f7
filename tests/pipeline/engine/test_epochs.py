"""Iterating a Dataset again is its next epoch, as in tf.data:
`for epoch in range(3): for batch in dataset: ...`.
"""

import asyncio
import gc
import pickle
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import streamrec
from streamrec import Dataset, TFRecordDataset
from tests.pipeline.sources.test_cache import CountingSource
from tests.runs import write_shards
from tests.servers.resuming import stop_after


def shuffled() -> Dataset[Any]:
    return Dataset.range(50).shuffle(20, seed=7)


def numbers(dataset: Any) -> list[int]:
    return [int(number) for number in dataset]


def test_each_iteration_is_the_next_epoch() -> None:
    """Another order each time, the same in the next program; `repeat` gives the same epochs."""
    dataset = shuffled()
    epochs = [numbers(dataset) for _ in range(3)]
    assert all(sorted(epoch) == list(range(50)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    again = shuffled()
    assert [numbers(again) for _ in range(3)] == epochs
    assert numbers(shuffled().repeat(3)) == [number for epoch in epochs for number in epoch]
    fixed = Dataset.range(50).shuffle(20, seed=7, reshuffle_each_iteration=False)
    assert numbers(fixed) == numbers(fixed) == epochs[0]


def test_epochs_of_a_repeat_count_on() -> None:
    """The second iteration of repeat(2) is the third epoch and the fourth, nested ones too."""
    epochs = numbers(shuffled().repeat(8))
    twice = shuffled().repeat(2)
    assert numbers(twice) + numbers(twice) == epochs[:200]
    nested = shuffled().repeat(2).repeat(2)
    assert numbers(nested) + numbers(nested) == epochs


def test_the_epoch_option_says_where_counting_begins() -> None:
    dataset = shuffled()
    epochs = [numbers(dataset) for _ in range(5)]
    later = shuffled().with_options(epoch=3)
    assert [numbers(later), numbers(later)] == epochs[3:5]
    assert numbers(later.with_options(epoch=0)) == epochs[0]


def test_states_carry_the_epoch_and_counting_continues_after_it() -> None:
    """In a new program, as `for epoch in range(start, 5)` after a resumed epoch wants it."""
    dataset = shuffled().batch(4)
    epochs = [[batch.tolist() for batch in dataset] for _ in range(4)]
    stopped = shuffled().batch(4)
    assert [batch.tolist() for batch in stopped] == epochs[0]
    before, state = stop_after(stopped, 5)
    assert state["epoch"] == 1
    resumed = shuffled().batch(4)
    assert [batch.tolist() for batch in (*before, *resumed.iterate(state))] == epochs[1]
    assert [batch.tolist() for batch in resumed] == epochs[2]
    assert [batch.tolist() for batch in resumed] == epochs[3]


def test_iterations_at_the_same_time_are_epochs_in_the_order_in_which_they_began() -> None:
    dataset = shuffled()
    expected = [numbers(dataset), numbers(dataset)]
    both = shuffled()
    first, second = iter(both), iter(both)
    found = zip(*zip(first, second, strict=True), strict=True)
    assert list(map(numbers, found)) == expected


def test_threads_that_begin_at_once_get_an_epoch_each() -> None:
    dataset = shuffled()
    expected = sorted(numbers(dataset) for _ in range(8))
    shared, ready = shuffled(), threading.Barrier(8)

    def work(_: int) -> list[int]:
        ready.wait()
        return numbers(shared)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(work, range(8))) == expected


def test_a_dataset_is_a_value_all_the_same() -> None:
    """Equality, hash and copies do not look at how often it was iterated."""
    dataset = shuffled()
    first = numbers(dataset)
    assert dataset == shuffled()
    assert hash(dataset) == hash(shuffled())
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy == dataset
    assert numbers(copy) == first
    assert repr(dataset) == repr(shuffled())
    assert numbers(dataset.take(50)) == first  # another Dataset: it has epochs of its own


def test_without_a_seed_orders_differ_in_each_epoch_and_program() -> None:
    dataset = Dataset.range(50).shuffle(20)
    found = [numbers(dataset) for _ in range(3)]
    found.append(numbers(Dataset.range(50).shuffle(20)))
    assert len({tuple(order) for order in found}) == 4


def test_without_a_seed_what_keeps_its_order_keeps_it_everywhere() -> None:
    """In other epochs, on other ranks, and after a resume in another program."""
    kept = Dataset.range(50).shuffle(20, reshuffle_each_iteration=False)
    order = numbers(kept)
    assert (
        numbers(kept.with_options(epoch=3))
        == numbers(kept.with_options(rank=0, world_size=2))
        == order
    )
    head, state = stop_after(kept, 10)
    elsewhere = Dataset.range(50).shuffle(20, reshuffle_each_iteration=False)
    assert head + numbers(elsewhere.iterate(state)) == order
    assert numbers(elsewhere) == order


def test_a_cache_in_memory_is_filled_once() -> None:
    """By whichever of the Datasets that were made of it is read first, with `for`, `async for` and
    after a state.
    """
    source = CountingSource("numbers", 1000)
    cached = Dataset.from_generator(source).cache()
    batched = cached.shuffle(100, seed=1).batch(10)
    orders = [[batch.tolist() for batch in batched] for _ in range(3)]
    assert source.made == 1000
    assert orders[0] != orders[1]
    assert numbers(cached) == list(range(1000))

    async def beside() -> list[int]:
        return [int(number) async for number in cached.skip(990)]

    assert asyncio.run(beside()) == list(range(990, 1000))
    head, state = stop_after(cached, 500)
    assert head + numbers(cached.iterate(state)) == list(range(1000))
    assert (source.calls, source.made) == (1, 1000)
    numbers(pickle.loads(pickle.dumps(Dataset.range(3).cache())))


def test_a_cache_goes_with_its_dataset() -> None:
    cached = Dataset.from_generator(CountingSource("numbers", 1000)).cache()
    numbers(cached)
    source: Any = cached.chain.source
    (kept,) = source.memo.values()
    gone = weakref.ref(kept)
    assert gone() is not None
    del cached, source, kept
    gc.collect()
    assert gone() is None


def test_ranks_have_caches_of_their_own(tmp_path: Path) -> None:
    files = write_shards(tmp_path, [[b"%d" % shard] * 10 for shard in range(4)])
    dataset = TFRecordDataset(files).distribute().cache()
    for _ in range(2):
        shares = [set(dataset.with_options(rank=rank, world_size=2)) for rank in range(2)]
        assert shares[0].isdisjoint(shares[1])
        assert shares[0] | shares[1] == {b"0", b"1", b"2", b"3"}


def test_globs_are_asked_once(tmp_path: Path) -> None:
    """All epochs have the same shards: one that comes meanwhile is of a Dataset made later."""
    write_shards(tmp_path, [[b"a"] * 10])
    dataset = TFRecordDataset(f"{tmp_path}/*")
    names = Dataset.list_files(f"{tmp_path}/*")
    assert len(list(dataset)) == 10
    assert len(list(names)) == 1
    write_shards(tmp_path, [[b"b"] * 10], "other-{}")
    assert len(list(dataset)) == 10
    assert len(list(dataset.batch(3).unbatch())) == 10
    assert len(list(names)) == 1
    assert len(list(TFRecordDataset(f"{tmp_path}/*"))) == 20
    assert len(list(pickle.loads(pickle.dumps(dataset)))) == 20


def test_a_glob_that_failed_is_asked_again(tmp_path: Path) -> None:
    dataset = TFRecordDataset(f"{tmp_path}/*")
    with pytest.raises(streamrec.NotFoundError):
        list(dataset)
    write_shards(tmp_path, [[b"b"] * 10])
    assert len(list(dataset)) == 10


class SometimesEmpty:
    """A generator of which only some runs give something."""

    def __init__(self, *counts: int) -> None:
        self.counts = iter(counts)

    def __call__(self) -> Iterator[int]:
        yield from range(next(self.counts, 0))


def test_repeat_runs_empty_epochs_too() -> None:
    assert numbers(Dataset.from_generator(SometimesEmpty(0, 0, 2, 0, 1)).repeat(12)) == [0, 1, 0]
    assert numbers(Dataset.from_generator(SometimesEmpty(0, 5)).repeat()) == []
    assert numbers(Dataset.from_generator(SometimesEmpty(1, 0, 0, 2, 0, 3)).repeat().take(5)) == [
        0,
        0,
        1,
        0,
        1,
    ]
    assert numbers(Dataset.from_generator(SometimesEmpty(1)).repeat(0)) == []


def test_an_endless_repeat_of_nothing_says_so_and_can_be_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    iterator = Dataset.from_generator(SometimesEmpty(1)).repeat().iterate()
    assert next(iterator) == 0

    def leave() -> None:
        while not caplog.records:
            threading.Event().wait(0.01)
        iterator.close()

    thread = threading.Thread(target=leave)
    thread.start()
    with pytest.raises(streamrec.errors.ClosedError):
        next(iterator)
    thread.join()
    assert "100 epochs in a row had no element" in caplog.text


@pytest.mark.peer
def test_as_tensorflow_counts() -> None:
    """What is the same in each iteration, what is not, and how often a cache is filled."""
    tensorflow = pytest.importorskip("tensorflow")

    def facts(dataset: Any, make: Any, counted: Any) -> list[Any]:
        """What holds of tf.data's datasets, or of ours."""
        found = []
        for options in ({}, {"reshuffle_each_iteration": False}):
            one = dataset.range(50).shuffle(20, seed=7, **options)
            orders = [numbers(one) for _ in range(3)]
            found.append((orders[0] == orders[1], orders[1] == orders[2]))
            repeated = dataset.range(50).shuffle(20, seed=7, **options).repeat(2)
            orders = [numbers(repeated) for _ in range(2)]
            found.append(
                (
                    orders[0] == orders[1],
                    orders[0][:50] == orders[0][50:],
                    orders[0][50:] == orders[1][:50],
                )
            )
        parts = [dataset.range(100), dataset.range(100, 200)]
        for rerandomize in (None, False, True):
            mixed = dataset.sample_from_datasets(
                parts, [0.5, 0.5], 3, rerandomize_each_iteration=rerandomize
            )
            repeated = numbers(mixed.repeat(2))
            found.append((numbers(mixed) == numbers(mixed), repeated[:200] == repeated[200:]))
        found.append(numbers(dataset.sample_from_datasets(parts, [0.0, 0.0])))
        cached = make(counted).cache()
        found.append(
            [numbers(cached.take(10)), numbers(cached), numbers(cached.skip(3)), counted.calls]
        )
        found.append(numbers(make(SometimesEmpty(0, 0, 2, 0, 1)).repeat(12)))
        found.append(numbers(make(SometimesEmpty(0, 5)).repeat()))
        return found

    def made(generator: Any) -> Any:
        return tensorflow.data.Dataset.from_generator(generator, output_types=tensorflow.int64)

    theirs = facts(tensorflow.data.Dataset, made, CountingSource("numbers", 5))
    assert facts(Dataset, Dataset.from_generator, CountingSource("numbers", 5)) == theirs
