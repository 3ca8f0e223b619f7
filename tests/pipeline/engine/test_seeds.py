"""Seeds and random words: published vectors, and values that saved states rest on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrec.pipeline.engine.seeds import derive_seed, words

PERIOD = 1 << 256
"""The number of values of Philox's counter."""

ALL_ONES = (1 << 64) - 1

VECTORS = [
    (
        0,
        0,
        0,
        ["16554d9eca36314c", "db20fe9d672d0fdc", "d7e772cee186176b", "7e68b68aec7ba23b"],
    ),
    (
        PERIOD - 1,
        ALL_ONES,
        ALL_ONES,
        ["87b092c3013fe90b", "438c3c67be8d0224", "9cc7d7c69cd777b6", "a09caebf594f0ba0"],
    ),
    (
        0x082EFA98EC4E6C89_A4093822299F31D0_13198A2E03707344_243F6A8885A308D3,
        0x452821E638D01377,
        0xBE5466CF34E90C6C,
        ["a528f45403e61d95", "38c72dbd566e9788", "a5a1610e72fd18b5", "57bd43b5e52b7fe6"],
    ),
]
"""Counter, both words of the key, and the output of Philox-4x64-10: the known answers of its
authors (`kat_vectors` of Random123)."""


@pytest.mark.parametrize(("counter", "seed", "epoch", "output"), VECTORS)
def test_words_are_those_of_philox(counter: int, seed: int, epoch: int, output: list[str]) -> None:
    """Step 0 has the counter 1, since NumPy counts before it draws."""
    first = 4 * ((counter - 1) % PERIOD)
    assert [f"{word:016x}" for word in words(seed, epoch, first, 4).tolist()] == output


@given(
    seed=st.integers(-(1 << 70), 1 << 70),
    epoch=st.integers(0, 1 << 40),
    first=st.integers(0, 1 << 66),
    count=st.integers(0, 20),
)
def test_a_word_needs_no_word_before_it(seed: int, epoch: int, first: int, count: int) -> None:
    start = max(0, first - 7)
    longer = words(seed, epoch, start, first - start + count)
    found = words(seed, epoch, first, count)
    assert found.dtype == np.uint64
    assert found.tolist() == longer[first - start :].tolist()
    assert found.tolist() == words(seed % (1 << 64), epoch, first, count).tolist()


def test_other_seeds_and_epochs_have_other_words() -> None:
    drawn = [tuple(words(seed, epoch, 0, 4).tolist()) for seed in range(5) for epoch in range(5)]
    assert len(set(drawn)) == 25


def test_derived_seeds_stay() -> None:
    """A state holds only the seed: a later release must derive the same seeds of it."""
    assert derive_seed() == 5694367389426422167
    assert derive_seed(7, "shuffle", 2) == 2158533504457478864


def test_derived_seeds_depend_on_each_number_and_their_order() -> None:
    several = [(1, 2), (2, 1), (12,), (1, 2, 0), ("1", 2), (-1, 2), ("12",), (1 << 80,)]
    derived = {derive_seed(*numbers) for numbers in several}
    assert len(derived) == len(several)
    assert all(0 <= seed < 1 << 64 for seed in derived)
    assert max(derived) >= 1 << 60
