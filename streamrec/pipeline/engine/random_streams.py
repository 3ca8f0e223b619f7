"""Random streams: random numbers that depend on a seed, an epoch and a step alone.

Rules:
- Numbers are raw words of the counter-based generator Philox-4x64 (Salmon et al., 2011), keyed by (seed, epoch). Word n
  is had at once, whatever came before; and it is the same with every version of NumPy, which distributions are not.
- Where no seed was given, the run's own counts, which is drawn once a run and kept in its state.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["RANDOM_BITS", "words"]

RANDOM_BITS: Final = 32
"""Random numbers of datasets are below 2**32, as tf.data's."""

WORDS = 4
"""Words that one step of the generator's counter gives."""

MASK = (1 << 64) - 1


def words(seed: int, epoch: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Random words first to first + count of a seed's epoch, uint64.

    Examples:
        >>> bool((words(7, 0, 0, 9)[5:] == words(7, 0, 5, 4)).all())
        True
    """
    step, skipped = divmod(first, WORDS)
    generator = np.random.Philox(counter=step, key=(seed & MASK) | (epoch << 64))
    return np.asarray(generator.random_raw(skipped + count)[skipped:])
