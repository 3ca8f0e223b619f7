"""exchange and permute: the rows of a shuffle buffer, and permutations of any size."""

from itertools import permutations
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from streamrec.kernels import Int64s
from tests.effort import drawn_examples
from tests.oracle import kernels as oracle

Rows = npt.NDArray[np.int64]

WIDE_ROW = 1 << 40


def rows_of(weights: list[int], first: int = 0) -> Rows:
    return np.array(
        [[7, 7 + weight, 0, first + i] for i, weight in enumerate(weights)], np.int64
    ).reshape(-1, 4)


class ShuffleRun:
    def __init__(
        self, capacity: int, limit: int = WIDE_ROW, key: int = 5, exchange: Any = kernels.exchange
    ) -> None:
        self.exchange = exchange
        self.limit = limit
        self.key = key
        self.slots = np.full((capacity, 4), -1, np.int64)
        self.held = self.weight = self.step = 0

    def feed(self, rows: Rows, most: int, *, ended: bool = False) -> tuple[int, list[int]]:
        out = np.full((most, 4), -1, np.int64)
        taken, given, self.held, self.weight = self.exchange(
            self.slots,
            self.held,
            self.weight,
            self.limit,
            rows,
            out,
            most,
            self.key,
            self.step,
            ended,
        )
        self.step += given
        assert (out[given:] == -1).all()
        return taken, out[:given, 3].tolist()

    def order(self, rows: Rows, cuts: list[int], most: int) -> list[int]:
        found: list[int] = []
        for first, last in zip([0, *cuts], [*cuts, len(rows)], strict=True):
            while first < last:
                taken, gone = self.feed(rows[first:last], most)
                first, found = first + taken, found + gone
        while self.held:
            found += self.feed(rows[:0], most, ended=True)[1]
        return found


@given(
    weights=st.lists(st.integers(0, 99), max_size=40),
    capacity=st.integers(1, 50),
    limit=st.one_of(st.just(WIDE_ROW), st.integers(0, 2000)),
    most=st.integers(1, 9),
    key=st.integers(0, 2**64 - 1),
    cuts=st.lists(st.integers(0, 40), max_size=3),
)
def test_the_order_does_not_depend_on_how_rows_come(
    weights: list[int], capacity: int, limit: int, most: int, key: int, cuts: list[int]
) -> None:
    rows = rows_of(weights)
    pieces = sorted(min(cut, len(rows)) for cut in cuts)
    found = ShuffleRun(capacity, limit, key).order(rows, pieces, most)
    assert sorted(found) == list(range(len(rows)))
    assert found == ShuffleRun(capacity, limit, key, oracle.exchange).order(rows, [], 1000)
    assert all(place >= number - capacity + 1 for place, number in enumerate(found))


def test_a_shuffle_buffer_stays_within_its_limit_of_bytes() -> None:
    """But an empty buffer takes any row."""
    run = ShuffleRun(100, limit=500)
    for number, weight in enumerate([10, 300, 5, 5, 2000, 1, 100, 100, 100]):
        run.feed(rows_of([weight], number), 50)
        assert (
            run.weight
            == int((run.slots[: run.held, 1] - run.slots[: run.held, 0]).sum()) + 64 * run.held
        )
        assert run.weight <= 500 or run.held == 1
    assert run.step + run.held == 9


def test_a_row_leaves_for_each_that_comes() -> None:
    """The buffer is filled first; `out` may be None, and then nothing but the numbers differs."""
    run, blind = ShuffleRun(10), ShuffleRun(10)
    assert run.feed(rows_of([1] * 10), 50) == (10, [])
    taken, gone = run.feed(rows_of([1] * 15, 10), 50)
    assert (taken, len(gone), run.held) == (15, 15, 10)
    rows = rows_of([1] * 25)
    assert kernels.exchange(blind.slots, 0, 0, WIDE_ROW, rows, None, 15, 5, 0, False) == (
        25,
        15,
        10,
        650,
    )
    assert (run.slots == blind.slots).all()
    assert kernels.exchange(
        np.empty((10, 4), np.int64), 0, 0, WIDE_ROW, rows, None, 3, 5, 0, False
    )[:2] == (13, 3)


KEYS = np.array([3, -5, 2**63 - 1, 0, 9, 1, 8, 2], np.int64)
MAX_SIZE = 2**62


def one_number(value: int) -> Int64s:
    return np.array([value], np.int64)


def permuted(numbers: Any, size: int, variant: int = 0, keys: Int64s = KEYS) -> list[int]:
    result = memoryview(
        kernels.permute(np.array(numbers, np.int64), one_number(size), one_number(variant), keys)
    )
    found: list[int] = np.frombuffer(result, np.int64).tolist()
    return found


@drawn_examples(60)
@given(size=st.integers(1, 300), variant=st.integers(-(2**63), 2**63 - 1), rounds=st.integers(0, 5))
def test_each_number_once(size: int, variant: int, rounds: int) -> None:
    assert sorted(permuted(range(size), size, variant, KEYS[: 2 * rounds])) == list(range(size))


numbers_below = st.integers(1, MAX_SIZE).flatmap(
    lambda size: st.tuples(st.just(size), st.integers(0, size - 1))
)


@drawn_examples(300)
@given(
    pairs=st.lists(
        st.tuples(numbers_below, st.integers(-(2**63), 2**63 - 1)), min_size=2, max_size=40
    ),
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8).filter(
        lambda keys: len(keys) % 2 == 0
    ),
)
def test_the_same_as_the_oracle(pairs: list[tuple[tuple[int, int], int]], keys: list[int]) -> None:
    """Of numbers that have a size and a variant each."""
    sizes, numbers, variants = np.array(
        [(*pair, variant) for pair, variant in pairs], np.int64
    ).T.copy()
    arguments = numbers, sizes, variants, np.array(keys, np.int64)
    ours = np.frombuffer(memoryview(kernels.permute(*arguments)), np.int64)
    assert ours.tolist() == oracle.permute(*arguments)
    assert ((ours >= 0) & (ours < sizes)).all()


@pytest.mark.parametrize("at", [0, 7, 8, 9, 39])
def test_the_error_names_the_first_number_that_is_out_of_range(at: int) -> None:
    """Several numbers are permuted at the same time, and others may be out of range, too."""
    numbers = [*range(at), 100, *range(5), 100]
    with pytest.raises(ValueError, match=f"^number {at} or its size is out of range"):
        permuted(numbers, 100)


def test_a_seed_gives_the_same_order_in_all_releases() -> None:
    """Seeds of finished trainings give the same order in all later releases."""
    assert permuted(range(10), 10) == [2, 9, 1, 5, 6, 7, 3, 0, 4, 8]


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_come_alike(size: int) -> None:
    """Of a few numbers each permutation is as likely as the others: chi-squared, with many
    rounds.
    """
    each, kinds = 300, factorial(size)
    variants = np.repeat(np.arange(each * kinds), size)
    keys = np.concatenate([KEYS, KEYS[::-1] + 17, KEYS * 3])
    drawn = memoryview(
        kernels.permute(np.tile(np.arange(size), each * kinds), one_number(size), variants, keys)
    )
    rows, counts = np.unique(
        np.frombuffer(drawn, np.int64).reshape(-1, size), axis=0, return_counts=True
    )
    assert len(rows) == kinds == len(list(permutations(range(size))))
    assert ((counts - each) ** 2 / each).sum() < kinds - 1 + 6 * np.sqrt(2 * kinds)
