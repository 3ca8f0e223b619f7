"""What is counted of features, and the shuffle: against the plain way to work it out."""

import math
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import Frames, encode_example, infer_features
from streamrec.cli.commands.reshard import DiskShuffle
from streamrec.cli.commands.stat import DatasetStats, FrequentValues, Histogram, Moments
from streamrec.cli.output import Meter

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
PARTS = st.lists(st.lists(FLOATS, min_size=1, max_size=20), min_size=1, max_size=5)


@given(PARTS)
def test_a_histogram_counts_every_number_in_its_bin(parts: list[list[float]]) -> None:
    histogram = Histogram()
    for part in parts:
        histogram.add(np.array(part))
    numbers = [number for part in parts for number in part]
    for most in (512, 7):
        bins = histogram.bins(most)
        assert len(bins) <= most
        for start, end, count in bins:
            assert count == sum(start <= number < end for number in numbers)
        assert sum(count for *_, count in bins) == len(numbers)


@given(PARTS)
def test_a_histogram_does_not_depend_on_the_order_of_its_parts(parts: list[list[float]]) -> None:
    drawn = []
    for order in (parts, parts[::-1]):
        histogram = Histogram()
        histogram.add(
            np.array([number for part in parts for number in part])
        )  # the same range, at once
        for part in order:
            histogram.add(np.array(part))
        drawn.append(histogram.bins(20))
    assert drawn[0] == drawn[1]


def test_bins_of_whole_numbers_are_not_narrower_than_one() -> None:
    histogram = Histogram(whole=True)
    histogram.add(np.array([3, 3, 4]))
    assert histogram.bins(16) == [(3, 4, 2), (4, 5, 1)]


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=20), min_size=1, max_size=5))
def test_moments_are_those_of_all_numbers(parts: list[list[float]]) -> None:
    moments = Moments()
    for part in parts:
        moments.add(np.array(part, np.float32))
    numbers = np.array([number for part in parts for number in part])
    assert moments.count == len(numbers)
    if len(numbers):
        assert (moments.least, moments.most) == (numbers.min(), numbers.max())
        assert moments.mean == pytest.approx(numbers.mean(), abs=1e-6)
        assert moments.deviation == pytest.approx(numbers.std(), abs=1e-3)


@given(st.lists(st.lists(st.integers(0, 30), max_size=60), max_size=20))
def test_frequent_values_are_never_lost(parts: list[list[int]]) -> None:
    frequent = FrequentValues(capacity=5)
    for part in parts:
        frequent.add(Counter(part))
    truth = Counter(value for part in parts for value in part)
    told = dict(frequent.most(100))
    assert all(count <= truth[value] <= count + frequent.missed for value, count in told.items())
    assert all(value in told for value, count in truth.items() if count > 2 * frequent.missed)
    assert len(told) <= 10
    if frequent.exact:
        assert told == dict(truth)


def test_the_work_is_linear_in_the_number_of_features() -> None:
    def calls(features: int) -> int:
        frames = Frames.of(
            [encode_example({f"f{number}": number for number in range(features)})] * 10
        )
        seen: Counter[str] = Counter()
        sys.setprofile(lambda frame, event, argument: seen.update([event]))
        try:
            DatasetStats(infer_features(frames), lambda name: True).add(frames)
        finally:
            sys.setprofile(None)
        return seen["call"] + seen["c_call"]

    assert calls(800) < 4.2 * calls(200)


async def test_a_shuffle_deals_again_what_is_too_large_and_gives_each_record_once(
    tmp_path: Path,
) -> None:
    records = [b"%05d" % number * 10 for number in range(2000)]

    async def blocks() -> AsyncIterator[Frames]:
        for start in range(0, len(records), 100):
            yield Frames.of(records[start : start + 100])

    orders = []
    for told in (
        100,
        150_000,
    ):  # far less than they are, so that buckets are too large; and about what they are
        with DiskShuffle(7, str(tmp_path), bucket_bytes=4096) as shuffle:
            await shuffle.scatter(blocks(), told)
            assert shuffle.records == len(records)
            orders.append(
                [record async for frames in shuffle.read_shuffled(Meter()) for record in frames]
            )
    assert sorted(orders[0]) == sorted(orders[1]) == records
    assert os.listdir(tmp_path) == []
    moved = [abs(index - int(record[:5])) for index, record in enumerate(orders[1])]
    assert math.isclose(
        sum(moved) / len(moved), len(records) / 3, rel_tol=0.1
    )  # as of a uniform order
