"""The controllers, without clocks: they are told times and say what to do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.pipeline.sources.parallel_map.autotune import (
    FIRST_DEPTH,
    MAX_SIZE,
    RUN_SECONDS,
    CallCount,
    PrefetchDepth,
    TaskSize,
)


@pytest.mark.parametrize("seconds", [1e-7, 1e-5, 1e-4, 1e-3, 0.1])
def test_runs_last_about_as_long_as_a_thread_should_be_busy(seconds: float) -> None:
    task_size = TaskSize(1 << 40)
    for _ in range(30):
        task_size.ran(task_size.size, task_size.size * seconds, task_size.size * 8)
    assert task_size.size == max(1, min(round(RUN_SECONDS / seconds), MAX_SIZE))


def test_large_results_make_short_runs() -> None:
    task_size = TaskSize(1 << 20)
    for _ in range(30):
        task_size.ran(task_size.size, task_size.size * 1e-6, task_size.size << 18)
    assert task_size.size == 4


@settings(deadline=None)
@given(times=st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 30)), max_size=40))
def test_a_run_is_never_empty_nor_too_long(times: list[tuple[float, int]]) -> None:
    task_size = TaskSize(1 << 20)
    for seconds, nbytes in times:
        before = task_size.size
        task_size.ran(before, seconds, nbytes)
        assert 1 <= task_size.size <= min(8 * before, MAX_SIZE)


def run(call_count: CallCount, windows: int, useful: int, demand: float = float("inf")) -> None:
    """Windows of a second in which each of `useful` calls gives 100 elements, and the consumer takes `demand`."""
    for _ in range(windows):
        able = min(call_count.target, useful) * 100.0
        rate = min(able, demand)
        call_count.measured(1.0, int(rate), waited=0.0 if able > demand else 1 - able / (2 * demand))


@pytest.mark.parametrize("useful", [1, 3, 8, 100])
def test_calls_grow_as_far_as_they_help(useful: int) -> None:
    call_count = CallCount(2, 16)
    run(call_count, 40, useful)
    assert min(16, useful) * 2 / 3 <= call_count.target <= max(2, useful * 3 / 2)


def test_calls_shrink_while_the_consumer_never_waits_and_grow_back() -> None:
    call_count = CallCount(16, 16)
    run(call_count, 400, useful=16, demand=300)
    assert 3 <= call_count.target <= 5
    run(call_count, 60, useful=16)
    assert call_count.target >= 12


def test_a_number_stays() -> None:
    call_count = CallCount(4, 4, 4)
    run(call_count, 50, useful=8)
    run(call_count, 50, useful=8, demand=10)
    assert call_count.target == 4


@settings(deadline=None)
@given(windows=st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 1)), max_size=60))
def test_calls_stay_within_their_bounds(windows: list[tuple[int, float]]) -> None:
    call_count = CallCount(3, 9, 2)
    for calls, waited in windows:
        call_count.measured(1.0, calls, waited)
        assert 2 <= call_count.target <= 9


def test_a_window_needs_time_and_calls() -> None:
    call_count = CallCount(4, 8)
    assert not call_count.due(0.01, 1000)
    assert not call_count.due(10.0, 7)
    assert call_count.due(0.2, 8)


def test_depth_grows_only_when_it_was_full_before_it_was_empty() -> None:
    depth = PrefetchDepth(most=5 * FIRST_DEPTH)
    for _ in range(50):
        assert depth.found(empty=True, full=False) == FIRST_DEPTH
    limits = []
    for _ in range(4):
        depth.found(empty=False, full=True)
        limits.append(depth.found(empty=True, full=False))
    assert limits == [2 * FIRST_DEPTH, 4 * FIRST_DEPTH, 5 * FIRST_DEPTH, 5 * FIRST_DEPTH]
    assert PrefetchDepth(most=1000).limit == 1000
