"""A pseudorandom permutation of the numbers below any size, in O(1) memory: number i is permuted without the others.

`kernels.permute` is a Feistel network with cycle walking, in integers: the same on every machine. Its ten rounds are
more than what tells it from a true permutation; `tests/` look at that.
"""

from __future__ import annotations

from hashlib import shake_128
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec import kernels

__all__ = ["Numbers", "keys_of", "permuted"]

ROUNDS = 10
KEY_BYTES = 8

Numbers = npt.NDArray[np.int64]


def keys_of(*values: Any) -> Numbers:
    """The keys of a permutation, int64 [10]: of a seed, an epoch, a name, and whatever else tells one from another.

    >>> bool((keys_of(7, 0) == keys_of(7, 0)).all()), bool((keys_of(7, 0) == keys_of(7, 1)).any())
    (True, False)
    """
    return np.frombuffer(shake_128(repr(values).encode()).digest(ROUNDS * KEY_BYTES), "<i8").astype(np.int64)


def permuted(numbers: Numbers, size: Numbers | int, keys: Numbers, variant: Numbers | int = 0) -> Numbers:
    """Where a permutation of the numbers below `size` takes these.

    Args:
        numbers: int64 [n]: each from 0 to size, exclusive.
        size: How many numbers there are, 1 to 2**62; one for all, or int64 [n].
        keys: Which permutation; see `keys_of`.
        variant: Which of the permutations of these keys; one for all, or int64 [n].

    Returns:
        int64 [n].

    >>> permuted(np.arange(6), 6, keys_of("an example")).tolist()
    [3, 4, 5, 0, 1, 2]
    """
    sizes, variants = np.atleast_1d(np.asarray(size, np.int64)), np.atleast_1d(np.asarray(variant, np.int64))
    result: Numbers = np.frombuffer(
        memoryview(kernels.permute(np.ascontiguousarray(numbers), sizes, variants, keys)), np.int64
    )
    return result
