"""`run` and `SyncIterator` in this process: results, order, errors, the limit."""

import asyncio
import gc
import threading
import traceback
import weakref
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamrec
from streamrec import Dataset, TFRecordDataset
from streamrec.bridge import Put, SyncIterator, run
from streamrec.errors import ClosedError
from tests.runs import flip_bit, until_error, write_shards

VARIABLE = ContextVar("VARIABLE", default="default")


async def put_three_letters(put: Put[str]) -> None:
    for item in "abc":
        await put(item, 1)


async def put_three_letters_and_fail(put: Put[str]) -> None:
    await put_three_letters(put)
    raise LookupError("after three")


def test_run_returns_and_raises() -> None:
    async def divide(a: int, b: int) -> float:
        return a / b

    assert run(divide, 6, 3) == 2
    with pytest.raises(ZeroDivisionError) as caught:
        run(divide, 1, 0)
    assert "divide" in [entry.name for entry in traceback.extract_tb(caught.tb)]


def test_run_of_work_that_other_code_cancels_is_an_error() -> None:
    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(ClosedError, match="other code cancelled this work"):
        run(cancels_itself)


def test_the_end_stays_the_end() -> None:
    iterator = SyncIterator(put_three_letters, 2)
    assert list(iterator) == ["a", "b", "c"]
    assert [next(iterator, "end") for _ in range(3)] == ["end"] * 3
    iterator.close()
    assert next(iterator, "end") == "end"


def test_an_error_comes_once_after_all_items_with_its_traceback() -> None:
    iterator = SyncIterator(put_three_letters_and_fail, 10)
    found, error = until_error(iterator, LookupError, "after three")
    assert found == ["a", "b", "c"]
    names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    assert "put_three_letters_and_fail" in names
    assert [next(iterator, "end") for _ in range(3)] == ["end"] * 3


def test_an_error_before_the_first_await_is_delivered() -> None:
    def not_even_async(put: Put[str]) -> "asyncio.Future[None]":
        raise TypeError("called wrongly")

    with pytest.raises(TypeError, match="called wrongly"):
        next(SyncIterator(not_even_async, 1))


def test_after_close_next_is_an_error_and_close_has_no_effect() -> None:
    iterator = SyncIterator(put_three_letters, 1)
    assert next(iterator) == "a"
    iterator.close()
    iterator.close()
    for _ in range(2):
        with pytest.raises(ClosedError, match="was closed"):
            next(iterator)


def test_a_put_after_close_is_refused_and_is_not_a_failure_of_the_cleanup() -> None:
    refused = []

    async def produce(put: Put[int]) -> None:
        await put(0, 1)
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        try:
            await put(1, 1)
        except ClosedError:
            refused.append(True)
            raise

    with SyncIterator(produce, 1) as iterator:
        assert next(iterator) == 0
    assert refused == [True]


def test_close_frees_what_is_queued() -> None:
    class Chunk:
        pass

    chunks: list[weakref.ref[Chunk]] = []
    full = threading.Event()

    async def produce(put: Put[Chunk]) -> None:
        for _ in range(3):
            chunk = Chunk()
            chunks.append(weakref.ref(chunk))
            await put(chunk, 1)
        del chunk
        full.set()

    iterator = SyncIterator(produce, 3)
    full.wait()
    assert [chunk() is not None for chunk in chunks] == [True] * 3
    iterator.close()
    gc.collect()
    assert [chunk() for chunk in chunks] == [None] * 3


@pytest.mark.parametrize("noted", [True, False])
def test_of_a_dropped_iterator_only_errors_of_cleanup_are_logged(
    noted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Errors of the work itself, which the consumer has not reached, are not logged."""
    error = LookupError("ahead")
    begun = threading.Event()
    ended = threading.Event()

    async def produce(put: Put[str]) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
            raise error

    iterator = SyncIterator(produce, 1, [error] if noted else [])
    begun.wait()
    del iterator
    gc.collect()
    ended.wait()
    run(asyncio.sleep, 0)  # the loop has handled the end, too
    assert ("cleanup failed" in caplog.text) is not noted


def test_a_limit_or_a_weight_out_of_range_is_refused() -> None:
    async def produce(put: Put[int]) -> None:
        await put(0, -1)

    with pytest.raises(ValueError, match="limit is 0"):
        SyncIterator(put_three_letters, 0)
    with pytest.raises(ValueError, match="weight is -1"):
        next(SyncIterator(produce, 1))


def test_context_variables_are_carried_and_not_changed() -> None:
    async def produce(put: Put[str]) -> None:
        await put(VARIABLE.get(), 1)
        VARIABLE.set("loop")

    token = VARIABLE.set("caller")
    assert list(SyncIterator(produce, 1)) == ["caller"]
    assert VARIABLE.get() == "caller"
    VARIABLE.reset(token)


@given(weights=st.lists(st.integers(0, 12), max_size=60), limit=st.integers(1, 10))
def test_order_and_limit_hold_for_any_weights(weights: list[int], limit: int) -> None:
    peaks = [0]
    begin = threading.Event()

    async def produce(put: Put[int]) -> None:
        await asyncio.to_thread(begin.wait)
        for index, weight in enumerate(weights):
            await put(index, weight)
            peaks.append(iterator.channel.queued)

    iterator = SyncIterator(produce, limit)
    begin.set()
    assert list(iterator) == list(range(len(weights)))
    assert max(peaks) <= max([limit, *weights])
    assert iterator.channel.queued == 0


@given(counts=st.lists(st.integers(0, 150), min_size=1, max_size=4), limit=st.integers(1, 5))
def test_several_tasks_may_put(counts: list[int], limit: int) -> None:
    async def produce(put: Put[tuple[int, int]]) -> None:
        async def part(task: int, count: int) -> None:
            for number in range(count):
                await put((task, number), 1)

        async with asyncio.TaskGroup() as group:
            for task, count in enumerate(counts):
                group.create_task(part(task, count))

    taken = list(SyncIterator(produce, limit))
    for task, count in enumerate(counts):
        assert [number for owner, number in taken if owner == task] == list(range(count))
    assert len(taken) == sum(counts)


def test_closing_raises_no_error_of_elements_not_yet_taken(tmp_path: Path) -> None:
    """The consumer stops before a damaged record, or before an element for which a function will
    fail.
    """
    [path] = write_shards(tmp_path, [[b"%d" % number for number in range(30_000)]])
    flip_bit(path, -5)
    for dataset in (
        TFRecordDataset(path),
        Dataset.range(10_000).map(lambda number: 1 // (9_000 - int(number))),
    ):
        for _ in range(10):
            with dataset.batch(10).iterate() as batches:
                next(batches)
        with pytest.raises((streamrec.CorruptRecordError, ZeroDivisionError)):
            list(dataset)
