"""Random streams: random numbers that depend on a seed, an epoch and a step alone, and the source of random choices.

Rules:
- Numbers are raw words of the counter-based generator Philox-4x64 (Salmon et al., 2011), keyed by (seed, epoch). Word n
  is had at once, whatever came before; and it is the same with every version of NumPy, which distributions are not.
- Where no seed was given, the run's own counts, which is drawn once a run and kept in its state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.engine.description import RunContext
from streamrec.pipeline.sources.in_memory import NumberedPositions

__all__ = ["Choices", "weights_of", "words"]

CHUNK_CHOICES = 1 << 14

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


def weights_of(weights: Any, count: int) -> list[float]:
    """The weights of so many datasets; all alike where none are given.

    Raises:
        ValueError: They are not as many, negative, or not finite.
    """
    if weights is None:
        return [1.0] * count
    shares = [float(weight) for weight in weights]
    if len(shares) != count:
        raise ValueError(f"weights={shares} are {len(shares)} for {count} datasets: there must be one for each")
    if not all(0 <= share < float("inf") for share in shares):
        raise ValueError(f"weights={shares} must be 0 or more")
    return shares


@dataclass(frozen=True, slots=True)
class Choices:
    """Numbers below `len(weights)`, int64, drawn at random without end.

    Args:
        weights: How likely each number is, relative to the others.
        seed: Two runs with one seed draw the same; None for the run's.
        rerandomize: Whether each epoch draws anew.
    """

    weights: tuple[float, ...]
    seed: int | None
    rerandomize: bool

    def lines(self) -> Iterator[str]:
        yield repr(self)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        seed = within.seed if self.seed is None else self.seed
        epoch = within.epoch if self.rerandomize else 0
        bounds = np.cumsum(self.weights) / np.sum(self.weights)
        first = state["next"] if state else 0
        while True:
            uniform = (words(seed, epoch, first, CHUNK_CHOICES) >> np.uint64(11)) * 2.0**-53
            choices = np.searchsorted(bounds[:-1], uniform, "right")
            await anyio.lowlevel.checkpoint()
            yield Chunk(Columns(choices), NumberedPositions(first), choices.nbytes)
            first += CHUNK_CHOICES
