"""Histograms of seconds: quantiles within 1 %, merged and halved counts."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage.latency import BOUNDS, LatencyHistogram

SECONDS = st.floats(BOUNDS[0], BOUNDS[-1])


def filled(times: list[float], memory: int = 0) -> LatencyHistogram:
    """A histogram that has observed these times."""
    histogram = LatencyHistogram(memory)
    for seconds in times:
        histogram.observe(seconds)
    return histogram


@given(st.lists(SECONDS, min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_within_one_percent_of_the_observation(
    times: list[float], share: float
) -> None:
    distribution = filled(times).distribution()
    wanted = share * len(times)
    exact = next(seconds for seen, seconds in enumerate(sorted(times), start=1) if seen >= wanted)
    assert distribution.quantile(share) == pytest.approx(exact, rel=0.01)
    assert distribution.count == len(times)
    assert distribution.total == pytest.approx(sum(times))


@pytest.mark.parametrize("milliseconds", [33, 46, 65, 91, 130])
def test_equal_times_have_their_own_quantile(milliseconds: int) -> None:
    median = filled([milliseconds / 1000] * 1000).quantile(0.5)
    assert median * 1000 == pytest.approx(milliseconds, rel=0.01)


def test_times_outside_of_the_bounds_are_counted_at_the_ends() -> None:
    distribution = filled([0.0, 1e-9, 1e9, math.inf]).distribution()
    assert list(distribution.counts) == [BOUNDS[0], math.inf]
    assert (distribution.quantile(0.1), distribution.quantile(1.0)) == (BOUNDS[0], BOUNDS[-1])


def test_a_histogram_without_observations_has_zeros() -> None:
    distribution = LatencyHistogram().distribution()
    assert (distribution.count, distribution.quantile(0.5)) == (0, 0.0)


def test_old_observations_are_forgotten() -> None:
    histogram = filled([0.1] * 1000 + [2.0] * 300, memory=100)
    assert histogram.quantile(0.5) == pytest.approx(2.0, rel=0.01)
    assert histogram.seen < 100
