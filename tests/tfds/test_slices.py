"""Split expressions: which records of which shards they mean."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.tfds.slices import resolve_split

SHARDS = {"train": [8, 7, 8], "test": [2, 1, 2], "none": []}


def records(expression: str, shards: Any = None) -> list[tuple[str, int]]:
    """The records of an expression, numbered within their splits."""
    lengths = SHARDS if shards is None else shards
    found = []
    for part in resolve_split(expression, lengths):
        start = sum(lengths[part.split][: part.shard])
        found += [(part.split, start + number) for number in range(part.first, part.last)]
    return found


@pytest.mark.parametrize(
    ("expression", "first", "last"),
    [
        ("train", 0, 23),
        ("train[:]", None, None),
        ("train[5:]", 5, 23),
        ("train[:-5]", 0, 18),
        ("train[-5:-2]", 18, 21),
        ("train[:50%]", 0, 12),
        ("train[:10%]", 0, 2),
        ("train[-10%:]", 21, 23),
        ("train[12.5%:37.5%]", 3, 9),
        ("train[10:50%]", 2, 12),
        ("train[:100%]", 0, 23),
        ("train[1shard]", 8, 15),
        ("train[-1shard]", 15, 23),
        ("train[:2shard]", 0, 15),
        ("train[-2shard:]", 8, 23),
        ("train[1_0:2_0]", 10, 20),
    ],
)
def test_slice_means_these_records(expression: str, first: int | None, last: int | None) -> None:
    if first is None or last is None:
        with pytest.raises(ValueError, match="no slice"):
            resolve_split(expression, SHARDS)
    else:
        assert records(expression) == [("train", number) for number in range(first, last)]


def test_sum_reads_one_split_after_the_other() -> None:
    assert records("test[:2] + train[:1]+test[4:]") == [
        ("test", 0),
        ("test", 1),
        ("train", 0),
        ("test", 4),
    ]
    assert records("all") == records("train+test")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("trian", "there is no split 'trian': the data set has train .23 records., test"),
        ("train[:24]", "reaches beyond the 23 records"),
        ("train[-24:]", "reaches beyond"),
        ("train[5:5]", "has no records"),
        ("train[9:3]", "has no records"),
        ("none", "has no records"),
        ("train[3]", "only a shard is taken by one number"),
        ("train[10%]", "only a shard"),
        ("train[1.5:]", "not a whole number"),
        ("train[:101%]", "not between -100% and 100%"),
        ("train[1:2:3]", "no slice that can be read"),
        ("train[", "is not a split"),
        ("all[:10%]", "all takes no slice"),
        ("", "is not a split"),
        ("train+", "is not a split"),
    ],
)
def test_refused_expression_says_why(expression: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        resolve_split(expression, SHARDS)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any),
    st.lists(st.integers(0, 100), max_size=4),
)
def test_percentages_divide_a_split_without_gap_or_overlap(
    shards: list[int], cuts: list[int]
) -> None:
    bounds = [0, *sorted(cuts), 100]
    found: list[Any] = []
    for first, last in zip(bounds, bounds[1:], strict=False):
        with suppress(ValueError):  # a part without records
            found += records(f"train[{first}%:{last}%]", {"train": shards})
    assert found == records("train", {"train": shards})
