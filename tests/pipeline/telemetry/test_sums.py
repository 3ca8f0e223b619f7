"""Sums of statistics over several readers."""

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.telemetry.sums import sum_counts, sum_snapshots
from streamrec.storage import Counts, Distribution, Snapshot
from streamrec.storage.statistics import Wait

NOT_SCALAR = {"retries", "first_byte"}
NUMBERS = [each.name for each in fields(Counts) if each.name not in NOT_SCALAR]
COUNTS = st.builds(
    lambda numbers, retries, buckets, seconds: Counts(
        **dict(zip(NUMBERS, numbers, strict=True)),
        retries=retries,
        first_byte=Distribution(buckets, seconds),
    ),
    st.lists(st.integers(0, 9), min_size=len(NUMBERS), max_size=len(NUMBERS)),
    st.dictionaries(st.sampled_from(["broken", "server", "stalled"]), st.integers(1, 9)),
    st.dictionaries(st.sampled_from([0.25, 0.5, 1.0]), st.integers(1, 9)),
    st.sampled_from([0.0, 0.5, 2.0]),
)


@given(parts=st.lists(COUNTS, min_size=1, max_size=4))
def test_counters_retries_and_times_are_added(parts: list[Counts]) -> None:
    total = sum_counts(parts)
    for name in NUMBERS:
        assert getattr(total, name) == sum(getattr(part, name) for part in parts), name
    for cause in {cause for part in parts for cause in part.retries}:
        assert total.retries[cause] == sum(part.retries.get(cause, 0) for part in parts)
    assert total.first_byte.total == sum(part.first_byte.total for part in parts)
    assert total.first_byte.count == sum(part.first_byte.count for part in parts)
    assert list(total.first_byte.counts) == sorted(total.first_byte.counts)


def test_stores_that_only_some_readers_used_are_in_the_sum() -> None:
    first = Snapshot({"s3": Counts(requests=2), "file": Counts(requests=1)}, (("a", Counts()),))
    second = Snapshot({"s3": Counts(requests=5)}, (("b", Counts()),))
    total = sum_snapshots([first, second])
    assert {name: counts.requests for name, counts in total.backends.items()} == {
        "s3": 7,
        "file": 1,
    }
    assert [url for url, _ in total.streams] == ["a", "b"]


def test_the_longest_wait_of_all_readers_comes_first() -> None:
    waits = [
        Wait(path=f"s3://b/{seconds}", reason="a 500", seconds=seconds, left=60.0)
        for seconds in (3.0, 9.0, 5.0)
    ]
    total = sum_snapshots([Snapshot({}, (), (wait,)) for wait in waits])
    assert [wait.seconds for wait in total.waits] == [9.0, 5.0, 3.0]
