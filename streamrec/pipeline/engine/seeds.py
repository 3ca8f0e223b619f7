"""Seeds, and the random numbers that are drawn from them.

Rules:
- Without a seed from the user, the run's seed is used, which is drawn once and kept in states.
- A part of a pipeline that needs a seed of its own derives it from another seed (`derive_seed`).
- Random numbers depend only on a seed, an epoch and a step: raw words of the counter-based
  generator Philox-4x64 (Salmon et al., 2011), keyed by (seed, epoch). Word n does not need earlier
  words, and is the same with any NumPy.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
import numpy.typing as npt

SEED_BITS = 48

RANDOM_BITS: Final = 32
"""Random numbers of datasets are below 2**32, as in tf.data."""


def derive_seed(*numbers: int | str) -> int:
    """A seed from 0 to 2**64 - 1, derived from numbers or texts; the same on every machine."""
    return int.from_bytes(blake2b(repr(numbers).encode(), digest_size=8).digest(), "little")


def words(seed: int, epoch: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Random words first to first + count of a seed's epoch, uint64.

    Examples:
        >>> bool((words(7, 0, 0, 9)[5:] == words(7, 0, 5, 4)).all())
        True
    """
    step, skipped = divmod(first, 4)  # a step of the counter gives four words
    generator = np.random.Philox(counter=step, key=(seed & (1 << 64) - 1) | (epoch << 64))
    return np.asarray(generator.random_raw(skipped + count)[skipped:])
