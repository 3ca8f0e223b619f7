"""Data that the runs of one Dataset object share: the epoch count, and values that sources keep; and random numbers.

Rules:
- The data belongs to the object, and is freed with it. It is not part of the object's value: equality, hash and `repr`
  ignore it, and a pickled copy has none.
- Runs may be concurrent, in several threads and on several event loops.
- Random numbers depend only on a seed, an epoch and a step: raw words of the counter-based generator Philox-4x64
  (Salmon et al., 2011), keyed by (seed, epoch). Word n does not need earlier words, and is the same with any NumPy.
- Without a seed from the user, the run's seed is used, which is drawn once and kept in states.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from secrets import randbits
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SEED_BITS = 48


class Epochs:
    """Counts the iterations of one Dataset: each is the next epoch, in the order in which they begin. `seed` is for
    sources and stages without their own.
    """

    def __init__(self) -> None:
        self.seed = randbits(SEED_BITS)
        self._begun = 0
        self._lock = threading.Lock()

    def begin(self, first: int) -> int:
        """Begins an iteration and returns its epoch; counting begins at `first`."""
        with self._lock:
            self._begun += 1
            return first + self._begun - 1

    def next(self, first: int) -> int:
        """The epoch of the next iteration; counting begins at `first`."""
        return first + self._begun

    def resume(self, first: int, epoch: int, seed: int) -> None:
        """Resumes an iteration of this epoch and seed; the next iteration has the next epoch and the same seed."""
        with self._lock:
            self._begun = epoch + 1 - first
            self.seed = seed

    def __reduce__(self) -> tuple[Callable[[], Epochs], tuple[()]]:
        return Epochs, ()


class Memo(dict[Hashable, Any]):
    """Values that a source keeps from run to run, by key."""

    def __reduce__(self) -> tuple[Callable[[], Memo], tuple[()]]:
        return Memo, ()


RANDOM_BITS: Final = 32
"""Random numbers of datasets are below 2**32, as in tf.data."""


def words(seed: int, epoch: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Random words first to first + count of a seed's epoch, uint64.

    Examples:
        >>> bool((words(7, 0, 0, 9)[5:] == words(7, 0, 5, 4)).all())
        True
    """
    step, skipped = divmod(first, 4)  # a step of the counter gives four words
    generator = np.random.Philox(counter=step, key=(seed & (1 << 64) - 1) | (epoch << 64))
    return np.asarray(generator.random_raw(skipped + count)[skipped:])
