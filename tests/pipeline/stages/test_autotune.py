"""The controllers, without clocks: they are told times and say what to do."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamrec.pipeline.stages.map.autotune import FIRST_DEPTH, MOST_GRAIN, RUN_SECONDS, Crew, Depth, Grain


@pytest.mark.parametrize("seconds", [1e-7, 1e-5, 1e-4, 1e-3, 0.1])
def test_runs_last_about_as_long_as_a_thread_should_be_busy(seconds: float) -> None:
    grain = Grain(1 << 40)
    for _ in range(30):
        grain.ran(grain.size, grain.size * seconds, grain.size * 8)
    assert grain.size == max(1, min(round(RUN_SECONDS / seconds), MOST_GRAIN))


def test_large_results_make_short_runs() -> None:
    grain = Grain(1 << 20)
    for _ in range(30):
        grain.ran(grain.size, grain.size * 1e-6, grain.size << 18)
    assert grain.size == 4


@settings(deadline=None)
@given(times=st.lists(st.tuples(st.floats(0, 10), st.integers(0, 1 << 30)), max_size=40))
def test_a_run_is_never_empty_nor_too_long(times: list[tuple[float, int]]) -> None:
    grain = Grain(1 << 20)
    for seconds, nbytes in times:
        before = grain.size
        grain.ran(before, seconds, nbytes)
        assert 1 <= grain.size <= min(8 * before, MOST_GRAIN)


def run(crew: Crew, windows: int, useful: int, demand: float = float("inf")) -> None:
    """Windows of a second in which each of `useful` calls gives 100 elements, and the consumer takes `demand`."""
    for _ in range(windows):
        able = min(crew.target, useful) * 100.0
        rate = min(able, demand)
        crew.measured(1.0, int(rate), waited=0.0 if able > demand else 1 - able / (2 * demand))


@pytest.mark.parametrize("useful", [1, 3, 8, 100])
def test_calls_grow_as_far_as_they_help(useful: int) -> None:
    crew = Crew(2, 16)
    run(crew, 40, useful)
    assert min(16, useful) * 2 / 3 <= crew.target <= max(2, useful * 3 / 2)


def test_calls_that_did_not_help_are_tried_less_and_less() -> None:
    crew, tried = Crew(2, 16), 0
    for _ in range(600):
        run(crew, 1, useful=2)
        tried += crew.target > 2
    assert 2 < tried < 12


def test_calls_shrink_while_the_consumer_never_waits_and_grow_back() -> None:
    crew = Crew(16, 16)
    run(crew, 400, useful=16, demand=300)
    assert 3 <= crew.target <= 5
    run(crew, 60, useful=16)
    assert crew.target >= 12


def test_a_number_stays() -> None:
    crew = Crew(4, 4, 4)
    run(crew, 50, useful=8)
    run(crew, 50, useful=8, demand=10)
    assert crew.target == 4


@settings(deadline=None)
@given(windows=st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 1)), max_size=60))
def test_calls_stay_within_their_bounds(windows: list[tuple[int, float]]) -> None:
    crew = Crew(3, 9, 2)
    for calls, waited in windows:
        crew.measured(1.0, calls, waited)
        assert 2 <= crew.target <= 9


def test_a_window_needs_time_and_calls() -> None:
    crew = Crew(4, 8)
    assert not crew.due(0.01, 1000)
    assert not crew.due(10.0, 7)
    assert crew.due(0.2, 8)


def test_depth_grows_only_when_it_was_full_before_it_was_empty() -> None:
    depth = Depth(most=5 * FIRST_DEPTH)
    for _ in range(50):
        assert depth.found(empty=True, full=False) == FIRST_DEPTH
    limits = []
    for _ in range(4):
        depth.found(empty=False, full=True)
        limits.append(depth.found(empty=True, full=False))
    assert limits == [2 * FIRST_DEPTH, 4 * FIRST_DEPTH, 5 * FIRST_DEPTH, 5 * FIRST_DEPTH]
    assert Depth(most=1000).limit == 1000
