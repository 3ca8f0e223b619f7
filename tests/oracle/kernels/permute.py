"""A pseudorandom permutation of the numbers below any size; the twin of permute.c."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from streamrec.kernels.codes import Int64s
from tests.oracle.kernels.args import int64s

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["permute"]

MOST_ROUNDS = 64
WORD = 2**64 - 1


def permute(numbers: Int64s, sizes: Int64s, variants: Int64s, keys: Int64s) -> Buffer:
    """Says where a pseudorandom permutation of the numbers below a size takes each of these numbers.

    Args:
        numbers: int64 [n]: each from 0 to its size, exclusive.
        sizes: int64 [n] or [1]: of how many numbers each is one, 1 to 2**62.
        variants: int64 [n] or [1]: which permutation of those that the keys have.
        keys: int64 of an even number, 64 at the most: the key of each round.

    Returns:
        int64 [n], as bytes.

    Raises:
        ValueError: A number or a size is out of its range, or there are not as many as there must be.

    >>> import numpy as np
    >>> two_keys = np.array([5, 7])
    >>> np.frombuffer(permute(np.arange(6), np.array([6]), np.array([0]), two_keys), np.int64).tolist()
    [0, 2, 3, 5, 1, 4]
    """
    told = [int64s(value, 1, "row splits as an int64 array of shape [n]") for value in (numbers, sizes, variants, keys)]
    each, size_of_each, variant_of_each, rounds = (array.tolist() for array in told)
    if len(rounds) > MOST_ROUNDS or len(rounds) % 2:
        raise ValueError(f"keys are {len(rounds)}: wanted an even number, {MOST_ROUNDS} at the most")
    for name, values in (("sizes", size_of_each), ("variants", variant_of_each)):
        if len(values) not in (1, len(each)):
            raise ValueError(f"{name} are {len(values)} for {len(each)} numbers: wanted one, or as many")
    results = []
    for index, number in enumerate(each):
        size = size_of_each[index if len(size_of_each) > 1 else 0]
        variant = variant_of_each[index if len(variant_of_each) > 1 else 0]
        if not 0 <= number < size <= 2**62:
            raise ValueError(f"number {index} or its size is out of range: wanted 0 <= number < size <= 2**62")
        results.append(_permuted(number, size, _hash(variant * 0x9E3779B97F4A7C15 & WORD), rounds))
    return np.array(results, np.int64).tobytes()


def _permuted(number: int, size: int, tweak: int, keys: Sequence[int]) -> int:
    bits = ((size - 1).bit_length() + 1) // 2
    mask = (1 << bits) - 1
    above = (size - 1 >> bits) + 1
    while True:
        low, high = number & mask, number >> bits
        for first, second in zip(keys[::2], keys[1::2], strict=True):
            word = _hash(low + tweak & WORD ^ first & WORD)
            high = (high + ((word >> 32) * above >> 32)) % above
            low = low + _hash(high + tweak & WORD ^ second & WORD) & mask
        number = high << bits | low
        if number < size:
            return number


def _hash(word: int) -> int:
    """The finalizer of MurmurHash3."""
    word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & WORD
    word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & WORD
    return word ^ word >> 33
