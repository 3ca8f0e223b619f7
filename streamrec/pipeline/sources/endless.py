"""Sources without an end: numbers that count, random numbers, and random choices. No I/O; a position is a number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio.lowlevel
import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.elements.specs import TensorSpec
from streamrec.pipeline.engine.description import Source
from streamrec.pipeline.engine.epochs import RANDOM_BITS, words
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY

__all__ = ["Choices", "Counter", "Random", "weights_of"]

CHUNK_NUMBERS: Final = 1 << 14


class EndlessNumbers(Source):
    """Numbers without an end."""

    __slots__ = ()

    def numbers(self, first: int, within: RunContext) -> npt.NDArray[Any]:
        """CHUNK_NUMBERS of them, from number `first` on."""
        raise NotImplementedError

    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    def cardinality(self, rank: Rank | None) -> int:
        return INFINITE_CARDINALITY

    @property
    def is_endless(self) -> bool:
        return True

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        first = state["next"] if state else 0
        while True:
            numbers = self.numbers(first, within)
            await anyio.lowlevel.checkpoint()
            yield Chunk(Columns(numbers), NumberedPositions(first), numbers.nbytes)
            first += CHUNK_NUMBERS


@dataclass(frozen=True, slots=True)
class Counter(EndlessNumbers):
    """The numbers `start`, `start + step`, ..., as scalars of a NumPy dtype."""

    start: int
    step: int
    dtype: str = "int64"

    def element_spec(self) -> Any:
        return TensorSpec((), self.dtype)

    def numbers(self, first: int, within: RunContext) -> npt.NDArray[Any]:
        return (self.start + self.step * np.arange(first, first + CHUNK_NUMBERS)).astype(self.dtype)


class RandomNumbers(EndlessNumbers):
    """Numbers that are drawn.

    Attributes:
        seed: Two runs with one seed draw the same; None for the run's.
        rerandomize: Whether each epoch draws other numbers.
    """

    __slots__ = ()
    seed: int | None
    rerandomize: bool

    def words(self, first: int, within: RunContext) -> npt.NDArray[np.uint64]:
        """The random words that CHUNK_NUMBERS of them are made of."""
        seed = within.seed if self.seed is None else self.seed
        return words(seed, within.epoch if self.rerandomize else 0, first, CHUNK_NUMBERS)


@dataclass(frozen=True, slots=True)
class Random(RandomNumbers):
    """Random numbers, int64, from 0 to 2**32 - 1."""

    seed: int | None
    rerandomize: bool

    def numbers(self, first: int, within: RunContext) -> npt.NDArray[Any]:
        return (self.words(first, within) >> np.uint64(64 - RANDOM_BITS)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Choices(RandomNumbers):
    """Numbers below `len(weights)`, int64: how likely each is, relative to the others, is its weight."""

    weights: tuple[float, ...]
    seed: int | None
    rerandomize: bool

    def numbers(self, first: int, within: RunContext) -> npt.NDArray[Any]:
        bounds = np.cumsum(self.weights) / np.sum(self.weights)
        uniform = (self.words(first, within) >> np.uint64(11)) * 2.0**-53
        return np.searchsorted(bounds[:-1], uniform, "right")


def weights_of(weights: Any, count: int) -> list[float]:
    """The weights of this many datasets; all equal where none are given.

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
