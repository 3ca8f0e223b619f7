"""What the runs of one Dataset object hand on to the next: its epochs, and what its sources keep; and random numbers.

Rules:
- It belongs to the object, and is freed with it. It is not part of the object's value: equality, hash and `repr`
  ignore it, and a pickled copy begins from scratch.
- Runs may go on at the same time, in several threads and on several event loops.
- Random numbers depend on a seed, an epoch and a step alone: raw words of the counter-based generator Philox-4x64
  (Salmon et al., 2011), keyed by (seed, epoch). Word n needs none before it, and is the same with any NumPy.
- Where no seed was given, the run's own counts, which is drawn once a run and kept in its state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from secrets import randbits
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["RANDOM_BITS", "SEED_BITS", "Epochs", "Memo", "words"]

T = TypeVar("T")

SEED_BITS = 48


class Epochs:
    """Counts the iterations of one Dataset: each is an epoch, in the order in which they began.

    Attributes:
        seed: What chance comes from where no seed was given; with the epoch, as a seed that was.
    """

    def __init__(self) -> None:
        self.seed = randbits(SEED_BITS)
        self._begun = 0
        self._lock = threading.Lock()

    def begin(self, first: int) -> int:
        """The epoch of an iteration that begins now, where counting begins at `first`."""
        with self._lock:
            self._begun += 1
            return first + self._begun - 1

    def next(self, first: int) -> int:
        """The epoch of the iteration that begins next, where counting begins at `first`."""
        return first + self._begun

    def resume(self, first: int, epoch: int, seed: int) -> None:
        """An iteration goes on in this epoch, by this seed: the one that begins after it is the next, by the same."""
        with self._lock:
            self._begun = epoch + 1 - first
            self.seed = seed

    def __reduce__(self) -> tuple[Callable[[], Epochs], tuple[()]]:
        return Epochs, ()


class Memo:
    """What a source keeps from run to run, by name."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = threading.Lock()

    def of(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under a name; made, and kept, where there is nothing yet."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            value: T = self._values[key]
            return value

    def get(self, key: Hashable) -> Any:
        """What is kept under a name; None for nothing."""
        return self._values.get(key)

    def keep(self, key: Hashable, value: Any) -> None:
        """Keeps something under a name."""
        self._values[key] = value

    def __reduce__(self) -> tuple[Callable[[], Memo], tuple[()]]:
        return Memo, ()


RANDOM_BITS: Final = 32
"""Random numbers of datasets are below 2**32, as tf.data's."""


def words(seed: int, epoch: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Random words first to first + count of a seed's epoch, uint64.

    Examples:
        >>> bool((words(7, 0, 0, 9)[5:] == words(7, 0, 5, 4)).all())
        True
    """
    step, skipped = divmod(first, 4)  # a step of the counter gives four words
    generator = np.random.Philox(counter=step, key=(seed & (1 << 64) - 1) | (epoch << 64))
    return np.asarray(generator.random_raw(skipped + count)[skipped:])
