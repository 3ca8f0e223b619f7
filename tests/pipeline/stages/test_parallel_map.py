"""map with several calls at once, as a user sees it: order, errors, async functions, leaving,
states.
"""

import asyncio
import gc
import math
import threading
import traceback
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrec import AUTOTUNE, Dataset, Frames, TFRecordDataset, encode_records
from streamrec.errors import ClosedError
from streamrec.pipeline.sources.parallel_map.autotune import (
    FIRST_DEPTH,
    MAX_SIZE,
    RUN_SECONDS,
    CallCount,
    PrefetchDepth,
    TaskSize,
)
from tests.effort import drawn_examples
from tests.pipeline.test_dataset import collect
from tests.runs import until_error
from tests.servers.resuming import stop_after

CALLS = [1, 2, 7, AUTOTUNE]
NUMBERS = list(range(40))


def square(number: Any) -> int:
    return int(number) ** 2


async def square_out_of_order(number: Any) -> int:
    """Its calls end in another order than they begin."""
    for _ in range(int(number) * 7 % 5):
        await asyncio.sleep(0)
    return int(number) ** 2


class Squaring:
    async def __call__(self, number: Any) -> int:
        return await square_out_of_order(number)


FUNCTIONS: list[Callable[..., Any]] = [
    square,
    square_out_of_order,
    Squaring(),
    partial(square_out_of_order),
    lambda n: square_out_of_order(n),
]


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_results_come_in_order_or_as_they_are_ready(
    function: Callable[..., Any], calls: int
) -> None:
    assert list(Dataset.range(40).map(function, num_parallel_calls=calls)) == [
        n * n for n in NUMBERS
    ]
    loose = Dataset.range(40).map(function, num_parallel_calls=calls, deterministic=False)
    assert sorted(loose) == [n * n for n in NUMBERS]


def test_unexpected_awaitables_are_refused() -> None:
    with pytest.raises(TypeError, match="async def"):
        list(Dataset.range(4).map(lambda number: square_out_of_order(number)))


@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_async_functions_from_trio() -> None:
    for function, calls in (
        (square_out_of_order, 4),
        *((function, None) for function in FUNCTIONS[1:4]),
    ):
        assert await collect(Dataset.range(40).map(function, calls)) == [n * n for n in NUMBERS]


async def test_async_functions_run_on_the_callers_own_loop() -> None:
    loop = asyncio.get_running_loop()

    async def where(_: Any) -> bool:
        return asyncio.get_running_loop() is loop

    assert [here async for here in Dataset.range(3).map(where, 2)] == [True] * 3


@pytest.mark.parametrize("calls", [None, 3])
def test_a_tuples_parts_are_the_arguments(calls: int | None) -> None:
    pairs = Dataset.zip(Dataset.range(20), Dataset.from_tensor_slices([b"x"] * 20))

    async def times_soon(number: Any, text: bytes) -> bytes:
        return text * int(number)

    assert list(pairs.map(lambda number, text: text * int(number), calls)) == [
        b"x" * n for n in range(20)
    ]
    assert list(pairs.map(times_soon, calls)) == [b"x" * n for n in range(20)]


def test_no_more_calls_than_asked_for_run_at_once() -> None:
    barrier = threading.Barrier(5)  # breaks, and the run fails, unless five calls are at once

    def meet(number: Any) -> int:
        barrier.wait(timeout=60)
        return int(number)

    assert list(Dataset.range(5).map(meet, 5)) == list(range(5))
    large = Dataset.from_tensor_slices([b"%d" % number + b" " * 99_999 for number in range(5)])
    assert list(large.map(meet, 5).with_options(memory_budget=1 << 18)) == list(range(5))
    running = most = 0

    async def count(number: Any) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return int(number)

    assert list(Dataset.range(60).map(count, 6)) == list(range(60))
    assert most == 6


class OneCallMoreEachWindow(CallCount):
    """One call more after each window, of one call each, up to six."""

    def __init__(self) -> None:
        super().__init__(1, 6)
        self.told: list[tuple[float, int, float]] = []

    def due(self, seconds: float, calls: int) -> bool:
        return calls > 0

    def end_window(self, seconds: float, calls: int, waited: float) -> None:
        self.told.append((seconds, calls, waited))
        self.target = min(self.target + 1, 6)


def test_there_are_as_many_calls_as_their_count_says(monkeypatch: pytest.MonkeyPatch) -> None:
    call_count = OneCallMoreEachWindow()
    monkeypatch.setattr(
        "streamrec.pipeline.sources.parallel_map.pace.call_count_for",
        lambda calls, awaits: call_count,
    )
    running, at_once = 0, []

    async def count(number: Any) -> int:
        nonlocal running
        running += 1
        at_once.append(running)
        for _ in range(9):
            await asyncio.sleep(0)
        running -= 1
        return int(number)

    assert list(Dataset.range(60).map(count, AUTOTUNE)) == list(range(60))
    assert at_once[0] == 1
    assert max(at_once) == 6
    assert sum(calls for _, calls, _ in call_count.told) == 60
    assert all(0 <= waited <= seconds + 1e-9 for seconds, _, waited in call_count.told)


def test_a_slow_call_holds_no_other_up_and_the_order_stays() -> None:
    others = threading.Semaphore(0)

    def first_waits_for_others(number: Any) -> int:
        if number:
            others.release()
        else:
            for _ in range(3):
                assert others.acquire(timeout=60)
        return int(number)

    assert list(Dataset.range(8).map(first_waits_for_others, 2)) == list(range(8))


def test_without_an_order_ready_results_overtake_a_slow_call() -> None:
    taken = threading.Event()

    def first_waits(number: Any) -> int:
        if not number:
            assert taken.wait(timeout=60)
        return int(number)

    for dataset in (
        Dataset.range(8).map(first_waits, 2, deterministic=False),
        Dataset.range(8).map(first_waits, 2).with_options(deterministic=False),
    ):
        taken.clear()
        with dataset.iterate() as elements:
            first = next(elements)
            taken.set()
            assert first != 0
            assert sorted([first, *elements]) == list(range(8))


def test_the_argument_of_a_stage_overrides_the_option() -> None:
    dataset = (
        Dataset.range(200).map(square, 4, deterministic=True).with_options(deterministic=False)
    )
    assert list(dataset) == [n * n for n in range(200)]


def fail_at(bad: int, number: Any) -> int:
    if number == bad:
        raise ValueError(f"no {number}")
    return int(number)


async def fail_later_at(bad: int, number: Any) -> int:
    await asyncio.sleep(0)
    return fail_at(bad, number)


@pytest.mark.parametrize("function", [fail_at, fail_later_at])
@pytest.mark.parametrize("calls", CALLS)
def test_an_error_comes_once_after_what_precedes_it_with_its_traceback(
    function: Callable[..., Any], calls: int
) -> None:
    iterator = Dataset.range(40).map(partial(function, 23), calls).iterate()
    found, error = until_error(iterator, ValueError, "no 23")
    assert found == list(range(23))
    assert "fail_at" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert list(iterator) == list(range(24, 40))


def test_a_function_that_is_cancelled_from_within_is_not_the_end_of_data() -> None:
    async def give_up(number: Any) -> int:
        if number == 3:
            raise asyncio.CancelledError
        return int(number)

    found, _ = until_error(Dataset.range(9).map(give_up, 2), ClosedError, "other code cancelled")
    assert found == [0, 1, 2]


async def test_leaving_cancels_async_calls_and_waits_for_them() -> None:
    begun, cleaned = anyio.Event(), []

    async def forever(number: Any) -> None:
        try:
            if number == 3:
                begun.set()
            await asyncio.sleep(math.inf if number else 0)
        finally:
            await asyncio.sleep(0)
            cleaned.append(int(number))

    async with Dataset.range(100).map(forever, 4).aiterate() as elements:
        assert await anext(elements) is None
        await begun.wait()
    assert set(cleaned) >= {0, 1, 2, 3}
    assert [task for task in asyncio.all_tasks() if "forever" in repr(task)] == []


def test_leaving_waits_for_threads_and_begins_no_call_any_more() -> None:
    going, running = threading.Event(), []

    def wait(number: Any) -> int:
        running.append(number)
        if number:
            assert going.wait(timeout=60)
        running.remove(number)
        return int(number)

    with Dataset.range(10_000).map(wait, 3).iterate() as elements:
        assert next(elements) == 0
        threading.Timer(0.01, going.set).start()
    assert running == []


def test_a_dropped_run_keeps_no_results() -> None:
    class Result:
        pass

    made: list[weakref.ref[Result]] = []

    async def make(_: Any) -> Result:
        result = Result()
        made.append(weakref.ref(result))
        return result

    with Dataset.range(1000).map(make, 2).iterate() as elements:
        next(elements)
    del elements
    gc.collect()
    assert not any(reference() for reference in made)


def test_records_reach_the_function_as_bytes(tmp_path: Any) -> None:
    records = [b"%d" % index * (index % 50) for index in range(3000)]
    (tmp_path / "x").write_bytes(encode_records(records))
    assert list(TFRecordDataset(str(tmp_path / "x")).map(bytes.upper, 3)) == records
    batches = TFRecordDataset(str(tmp_path / "x")).batch(100).map(len, 3)
    assert list(batches) == [100] * 30
    assert all(
        isinstance(batch, Frames)
        for batch in TFRecordDataset(str(tmp_path / "x")).batch(100).map(unchanged, 3)
    )


def unchanged(element: Any) -> Any:
    return element


async def test_a_run_of_elements_that_takes_long_is_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call lasts longer than a run may, so each run is of one element."""
    monkeypatch.setattr("streamrec.pipeline.sources.parallel_map.calls.CUT_SECONDS", 0)
    loop, counts = asyncio.get_running_loop(), []
    monkeypatch.setattr(
        TaskSize, "update", lambda self, count, seconds, nbytes: counts.append(count)
    )

    def slow(number: Any) -> int:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(60)
        return int(number)

    assert [number async for number in Dataset.range(300).map(slow, 1)] == list(range(300))
    assert counts == [1] * 300


@given(stop=st.integers(0, 59), calls=st.integers(1, 5))
@drawn_examples(20, HealthCheck.too_slow)
def test_results_delivered_out_of_order_are_not_repeated_after_resuming(
    stop: int, calls: int
) -> None:
    dataset = Dataset.range(60).map(square_out_of_order, calls, deterministic=False)
    found, state = stop_after(dataset, stop)
    assert sorted(found + list(dataset.iterate(state))) == [n * n for n in range(60)]


def test_after_an_input_without_an_order_results_keep_their_order() -> None:
    """What was delivered of an input is told by numbers, which would mean other elements in another
    run.
    """
    unordered = Dataset.range(40).map(square_out_of_order, 3, False)
    positions = []
    with unordered.map(square_out_of_order, 3, False).iterate() as elements:
        for _ in elements:
            positions.append(elements.state_dict()["position"]["source"])
    assert all(position["done"] == [] for position in positions)


@given(stop=st.integers(0, 19), then=st.booleans())
@drawn_examples(20)
def test_batches_of_what_came_out_of_order_hold_each_element_once(stop: int, then: bool) -> None:
    batches = (
        Dataset.range(40)
        .map(square_out_of_order, 3, False)
        .batch(4)
        .map(np.negative, 2, False)
        .repeat(2)
    )
    found, state = stop_after(batches, stop)
    resumed = batches.with_options(deterministic=then).iterate(state)
    assert sorted(-np.concatenate([*found, *resumed])) == sorted([n * n for n in range(40)] * 2)


@pytest.mark.parametrize(
    ("seconds", "nbytes"), [(1e-7, 8), (1e-5, 8), (1e-4, 8), (1e-3, 8), (0.1, 8), (1e-6, 1 << 18)]
)
def test_runs_last_about_as_long_as_a_thread_should_be_busy_and_hold_no_more_than_they_may(
    seconds: float, nbytes: int
) -> None:
    task_size = TaskSize(1 << 20)
    for _ in range(30):
        task_size.update(task_size.size, task_size.size * seconds, task_size.size * nbytes)
    assert task_size.size == max(
        1, min(round(RUN_SECONDS / seconds), MAX_SIZE, (1 << 20) // nbytes)
    )


def simulate(
    call_count: CallCount, windows: int, useful: int, demand: float = float("inf")
) -> None:
    """Windows of a second in which each of `useful` calls gives 100 elements, and the consumer
    takes `demand`.
    """
    for _ in range(windows):
        able = min(call_count.target, useful) * 100.0
        rate = min(able, demand)
        call_count.end_window(
            1.0, int(rate), waited=0.0 if able > demand else 1 - able / (2 * demand)
        )


@pytest.mark.parametrize("useful", [1, 3, 8, 100])
def test_calls_grow_as_far_as_they_help(useful: int) -> None:
    call_count = CallCount(2, 16)
    simulate(call_count, 40, useful)
    assert min(16, useful) * 2 / 3 <= call_count.target <= max(2, useful * 3 / 2)


def test_calls_shrink_while_the_consumer_never_waits_and_grow_back() -> None:
    call_count = CallCount(16, 16)
    simulate(call_count, 400, useful=16, demand=300)
    assert 3 <= call_count.target <= 5
    simulate(call_count, 60, useful=16)
    assert call_count.target >= 12


def test_depth_grows_only_when_it_was_full_before_it_was_empty() -> None:
    depth = PrefetchDepth(most=5 * FIRST_DEPTH)
    for _ in range(50):
        assert depth.observe(empty=True, full=False) == FIRST_DEPTH
    limits = []
    for _ in range(4):
        depth.observe(empty=False, full=True)
        limits.append(depth.observe(empty=True, full=False))
    assert limits == [2 * FIRST_DEPTH, 4 * FIRST_DEPTH, 5 * FIRST_DEPTH, 5 * FIRST_DEPTH]
    assert PrefetchDepth(most=1000).limit == 1000
