"""permute: a permutation of the numbers below any size."""

from itertools import permutations
from math import factorial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec import kernels
from streamrec.kernels import Int64s
from tests.effort import draws
from tests.oracle import kernels as oracle

KEYS = np.array([3, -5, 2**63 - 1, 0, 9, 1, 8, 2], np.int64)
MOST = 2**62


def one(value: int) -> Int64s:
    return np.array([value], np.int64)


def permuted(numbers: Any, size: int, variant: int = 0, keys: Int64s = KEYS) -> list[int]:
    result = memoryview(kernels.permute(np.array(numbers, np.int64), one(size), one(variant), keys))
    found: list[int] = np.frombuffer(result, np.int64).tolist()
    return found


@draws(60)
@given(size=st.integers(1, 300), variant=st.integers(-(2**63), 2**63 - 1), rounds=st.integers(0, 5))
def test_each_number_once(size: int, variant: int, rounds: int) -> None:
    assert sorted(permuted(range(size), size, variant, KEYS[: 2 * rounds])) == list(range(size))


numbers_below = st.integers(1, MOST).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@draws(300)
@given(
    pairs=st.lists(st.tuples(numbers_below, st.integers(-(2**63), 2**63 - 1)), min_size=2, max_size=20),
    keys=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8).filter(lambda keys: len(keys) % 2 == 0),
)
def test_the_same_as_the_oracle(pairs: list[tuple[tuple[int, int], int]], keys: list[int]) -> None:
    """Of numbers that have a size and a variant each."""
    sizes, numbers, variants = np.array([(*pair, variant) for pair, variant in pairs], np.int64).T.copy()
    arguments = numbers, sizes, variants, np.array(keys, np.int64)
    ours = np.frombuffer(memoryview(kernels.permute(*arguments)), np.int64)
    assert ours.tolist() == oracle.permute(*arguments)
    assert ((ours >= 0) & (ours < sizes)).all()


def test_what_it_gives_stays() -> None:
    """Seeds that somebody trained with give the same order for ever."""
    assert permuted(range(10), 10) == EXPECTED


EXPECTED = [2, 9, 1, 5, 6, 7, 3, 0, 4, 8]


@pytest.mark.parametrize(
    ("numbers", "sizes", "variants", "keys"),
    [
        ([0, 5], [5], [0], [1, 2]),
        ([-1], [5], [0], [1, 2]),
        ([0], [0], [0], [1, 2]),
        ([0], [MOST + 1], [0], [1, 2]),
        ([0], [5], [0], [1]),
        ([0], [5], [0], [1] * 66),
        ([0, 1, 2], [5, 5], [0], [1, 2]),
        ([0, 1, 2], [5], [0, 0], [1, 2]),
    ],
)
def test_out_of_range(numbers: Any, sizes: Any, variants: Any, keys: Any) -> None:
    with pytest.raises(ValueError):
        kernels.permute(*(np.array(each, np.int64) for each in (numbers, sizes, variants, keys)))


@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_permutations_come_alike(size: int) -> None:
    """Of a few numbers each permutation is as likely as the others: chi-squared, with many rounds."""
    each, kinds = 300, factorial(size)
    variants = np.repeat(np.arange(each * kinds), size)
    keys = np.concatenate([KEYS, KEYS[::-1] + 17, KEYS * 3])
    drawn = memoryview(kernels.permute(np.tile(np.arange(size), each * kinds), one(size), variants, keys))
    rows, counts = np.unique(np.frombuffer(drawn, np.int64).reshape(-1, size), axis=0, return_counts=True)
    assert len(rows) == kinds == len(list(permutations(range(size))))
    assert ((counts - each) ** 2 / each).sum() < kinds - 1 + 6 * np.sqrt(2 * kinds)
