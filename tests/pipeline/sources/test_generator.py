"""Generators as a source: order, epochs, resuming, errors, closing; which thread or task they run
in.
"""

import asyncio
import gc
import pickle
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from streamrec import Dataset, Frames, bridge
from streamrec.errors import ClosedError, PositionMismatchError
from streamrec.pipeline.engine.description import Options
from streamrec.pipeline.iterators import Run
from tests.pipeline.test_dataset import collect
from tests.runs import in_new_interpreter, until_error
from tests.servers.resuming import assert_resumes_everywhere, plain, stop_after


def counting(stop: int) -> Iterator[Any]:
    yield from range(stop)


async def counting_async(stop: int) -> AsyncIterator[Any]:
    for number in range(stop):
        if number % 3 == 0:
            await asyncio.sleep(0)
        yield number


def records(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield b"%d" % number * (number % 4)


def nested_elements(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield {"x": np.full(3, number), "y": (b"%d" % number, float(number))}


def bytes_and_texts(stop: int) -> Iterator[Any]:
    for number in range(stop):
        yield b"%d" % number if number % 10 < 5 else f"{number}"


class Stateful:
    """Says where it stands, and goes on there without making again what came before."""

    def __init__(self, stop: int, made: list[int] | None = None) -> None:
        self._stop = stop
        self._next = 0
        self._made = made

    def __iter__(self) -> Iterator[int]:
        while self._next < self._stop:
            self._next += 1
            if self._made is not None:
                self._made.append(self._next - 1)
            yield self._next - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self._next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._next = state["at"]


class StatefulAsync(Stateful):
    __iter__ = None  # type: ignore[assignment]

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in super().__iter__():
            yield number


KINDS: list[tuple[Callable[[int], Any], Callable[[int], Any]]] = [
    *((counting, range), (counting_async, range), (Stateful, range), (StatefulAsync, range)),
    *(
        (records, records),
        (nested_elements, nested_elements),
        (bytes_and_texts, bytes_and_texts),
        (range, range),
    ),
]


@pytest.mark.parametrize(("generator", "same"), KINDS)
def test_elements_come_in_order_and_resume_everywhere(
    generator: Callable[[int], Any], same: Callable[[int], Any]
) -> None:
    dataset = Dataset.from_generator(generator, (17,))
    wanted = list(map(plain, same(17)))
    assert list(map(plain, dataset)) == wanted
    assert list(map(plain, asyncio.run(collect(dataset)))) == wanted
    assert pickle.loads(pickle.dumps(dataset)) == dataset
    assert_resumes_everywhere(dataset)
    assert_resumes_everywhere(dataset.repeat(2).skip(3).take(20))
    assert_resumes_everywhere(
        Dataset.from_generator(generator, (0,)).concatenate(dataset.enumerate().shard(3, 1))
    )


def test_records_are_frames_whichever_elements_were_taken_together() -> None:
    batches = list(Dataset.from_generator(records, (10_000,)).batch(300))
    assert all(isinstance(batch, Frames) for batch in batches)
    assert [record for batch in batches for record in batch] == list(records(10_000))
    kinds = [type(batch) for batch in Dataset.from_generator(bytes_and_texts, (4_000,)).batch(5)]
    assert kinds == [Frames, np.ndarray] * 400


def test_an_iterable_with_a_state_makes_nothing_again() -> None:
    made: list[int] = []
    dataset = Dataset.from_generator(lambda: Stateful(9, made))
    found, state = stop_after(dataset, 4)
    assert found == [0, 1, 2, 3]
    made.clear()
    assert list(dataset.iterate(state)) == [4, 5, 6, 7, 8] == made


def test_a_generator_that_does_not_fit_its_state_is_refused() -> None:
    sizes = [9, 3]
    dataset = Dataset.from_generator(lambda: iter(range(sizes[0])))
    found, state = stop_after(dataset, 5)
    assert found == [0, 1, 2, 3, 4]
    sizes.pop(0)
    with pytest.raises(
        PositionMismatchError, match="before element 5, but the generator ended after 3"
    ):
        list(dataset.iterate(state))
    with pytest.raises(PositionMismatchError, match="digest"):
        Dataset.from_generator(counting, (3,)).iterate(
            Dataset.from_generator(counting, (4,)).iterate().state_dict()
        )
    makers: list[Callable[[], Any]] = [lambda: Stateful(9), lambda: range(9)]
    dataset = Dataset.from_generator(lambda: makers[0]())
    _, state = stop_after(dataset, 1)
    makers.pop(0)
    with pytest.raises(PositionMismatchError, match="a range has no load_state_dict"):
        list(dataset.iterate(state))


def failing(at: int) -> Iterator[int]:
    yield from range(at)
    raise ZeroDivisionError("here")


async def failing_async(at: int) -> AsyncIterator[int]:
    for number in failing(at):
        yield number


def failing_call(at: int) -> Iterator[int]:
    raise ZeroDivisionError("here")


@pytest.mark.parametrize(
    ("generator", "before"),
    [(failing, 5_000), (failing_async, 5_000), (failing, 0), (failing_call, 0)],
)
def test_an_error_comes_once_after_the_elements_before_it(
    generator: Callable[[int], Any], before: int
) -> None:
    iterator = Dataset.from_generator(generator, (before,)).batch(300).unbatch().iterate()
    found, error = until_error(iterator, ZeroDivisionError)
    assert found == list(range(before))
    assert generator.__name__ in [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    with pytest.raises(ClosedError, match="this run ended with an error"):
        next(iterator)


async def no_generator() -> list[int]:
    return [1]


def test_a_generator_function_that_returns_no_iterable_is_an_error() -> None:
    with pytest.raises(TypeError, match="no_generator returned a coroutine"):
        list(Dataset.from_generator(no_generator))
    with pytest.raises(TypeError, match="not iterable"):
        list(Dataset.from_generator(lambda: 5))


def test_a_sync_generator_lives_and_is_closed_in_one_thread() -> None:
    threads: list[threading.Thread] = []

    def generator() -> Iterator[bytes]:
        try:
            while True:
                threads.append(threading.current_thread())
                yield bytes(100_000)
        finally:
            threads.append(threading.current_thread())
            threads.append(threading.current_thread())

    with (
        Dataset.from_generator(generator).with_options(memory_budget=8 << 20).iterate() as elements
    ):
        for _ in range(200):
            assert len(next(elements)) == 100_000
    assert len(set(threads)) == 1
    assert threads[0] is not threading.main_thread()
    closed = len(threads)
    assert 200 < closed < 300  # it did not run away from its consumer
    assert list(Dataset.from_generator(generator).take(3)) == [bytes(100_000)] * 3
    assert len(threads) > closed


async def test_an_async_generator_lives_and_is_closed_in_one_task_of_the_loop() -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def generator() -> AsyncIterator[bytes]:
        try:
            while True:
                tasks.append(asyncio.current_task())
                yield bytes(100_000)
        finally:
            await asyncio.sleep(0)
            tasks.append(asyncio.current_task())

    before = asyncio.all_tasks()
    async with (
        Dataset.from_generator(generator).with_options(memory_budget=8 << 20).aiterate() as elements
    ):
        for _ in range(200):
            assert len(await anext(elements)) == 100_000
    assert asyncio.all_tasks() == before
    assert len(set(tasks)) == 1
    assert 200 < len(tasks) < 300


async def test_closing_while_the_callable_is_called() -> None:
    called, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def generator() -> AsyncIterator[Any]:
        loop.call_soon_threadsafe(called.set)
        release.wait()
        return counting_async(5)

    chunks = Run(Dataset.from_generator(generator).chain, Options(memory_budget=1000), None).start()
    first = asyncio.ensure_future(anext(chunks))
    await called.wait()
    first.cancel()
    loop.call_soon(release.set)  # after the cancellation
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_one_that_waits_is_cancelled_and_its_cleanup_is_finished() -> None:
    seen: list[str] = []
    waits = asyncio.Event()

    async def generator() -> AsyncIterator[int]:
        try:
            yield 1
            waits.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # a cleanup may wait
            seen.append("cancelled")
            raise
        finally:
            seen.append("closed")

    async with Dataset.from_generator(generator).aiterate() as elements:
        assert await anext(elements) == 1
        await waits.wait()
    assert seen == ["cancelled", "closed"]


@pytest.mark.parametrize("count", [0, 1])
async def test_a_sync_generator_that_blocks_does_not_block_the_loop(count: int) -> None:
    told, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def generator() -> Iterator[int]:
        yield from range(count)
        loop.call_soon_threadsafe(told.set)
        release.wait()
        yield 7

    async with Dataset.from_generator(generator).aiterate() as elements:
        for number in range(count):  # what is ready is not held back
            assert await anext(elements) == number
        await told.wait()
        release.set()
        assert await anext(elements) == 7


def test_one_that_never_returns_is_abandoned_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    blocked = threading.Event()
    release = threading.Event()
    closed = threading.Event()

    def generator() -> Iterator[int]:
        try:
            yield from range(3)
            blocked.set()
            release.wait()
            yield 3
        finally:
            closed.set()

    iterator = Dataset.from_generator(generator).iterate()
    assert [next(iterator) for _ in range(3)] == [0, 1, 2]
    blocked.wait()
    iterator.close()
    (warning,) = caplog.messages
    assert "still works on an element" in warning
    assert not closed.is_set()
    release.set()
    assert closed.wait(10)  # it ends as soon as it can


def test_one_that_never_comes_back_does_not_keep_the_interpreter() -> None:
    program = """
import threading
from streamrec import Dataset

def generator():
    yield 1
    threading.Event().wait()

elements = iter(Dataset.from_generator(generator))
print(next(elements))
"""
    assert in_new_interpreter(program) == "1\n"


def test_an_error_in_its_cleanup_is_not_lost() -> None:
    def generator() -> Iterator[int]:
        try:
            yield from range(10**9)
        finally:
            raise ZeroDivisionError("in cleanup")

    iterator = Dataset.from_generator(generator).iterate()
    assert next(iterator) == 0
    with pytest.raises(ZeroDivisionError, match="in cleanup"):
        iterator.close()
    iterator.close()  # it was said


def test_an_error_after_the_last_element_taken_is_neither_raised_nor_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is the error of an element that comes after the last one taken."""
    for closes in (True, False):
        at_work = threading.Event()
        released = threading.Event()
        over = threading.Event()

        def generator(
            at_work: threading.Event = at_work,
            released: threading.Event = released,
            over: threading.Event = over,
        ) -> Iterator[int]:
            yield 0
            at_work.set()
            try:
                released.wait()
                raise LookupError("ahead")
            finally:
                over.set()

        elements = Dataset.from_generator(generator).iterate()
        assert next(elements) == 0
        at_work.wait()
        threading.Timer(0.05, released.set).start()  # while it is being closed
        if closes:
            elements.close()
        del elements
        gc.collect()
        over.wait()
        bridge.run(asyncio.sleep, 0)
    assert "cleanup failed" not in caplog.text
