"""Sources without an end: numbers that count, random numbers, and random choices. No I/O; a position is a number."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio.lowlevel
import numpy as np

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.positions import NumberedPositions
from streamrec.pipeline.elements.specs import TensorSpec
from streamrec.pipeline.engine.description import RunContext, Source
from streamrec.pipeline.engine.epochs import RANDOM_BITS, words

__all__ = ["Choices", "Counter", "Random", "weights_of"]

CHUNK_NUMBERS: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Counter(Source):
    """The numbers `start`, `start + step`, ..., as scalars of a NumPy dtype."""

    start: int
    step: int
    dtype: str = "int64"

    def element_spec(self) -> Any:
        return TensorSpec((), self.dtype)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        first = state["next"] if state else 0
        while True:
            numbers = self.start + self.step * np.arange(first, first + CHUNK_NUMBERS)
            await anyio.lowlevel.checkpoint()
            yield Chunk(Columns(numbers.astype(self.dtype)), NumberedPositions(first), numbers.nbytes)
            first += CHUNK_NUMBERS


@dataclass(frozen=True, slots=True)
class Random(Source):
    """Random numbers, int64, from 0 to 2**32 - 1.

    Args:
        seed: Two runs with one seed draw the same; None for the run's.
        rerandomize: Whether each epoch draws anew.
    """

    seed: int | None
    rerandomize: bool

    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        seed = within.seed if self.seed is None else self.seed
        epoch = within.epoch if self.rerandomize else 0
        first = state["next"] if state else 0
        while True:
            drawn = words(seed, epoch, first, CHUNK_NUMBERS) >> np.uint64(64 - RANDOM_BITS)
            await anyio.lowlevel.checkpoint()
            yield Chunk(Columns(drawn.astype(np.int64)), NumberedPositions(first), drawn.nbytes)
            first += CHUNK_NUMBERS


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
class Choices(Source):
    """Numbers below `len(weights)`, int64, drawn at random without end.

    Args:
        weights: How likely each number is, relative to the others.
        seed: Two runs with one seed draw the same; None for the run's.
        rerandomize: Whether each epoch draws anew.
    """

    weights: tuple[float, ...]
    seed: int | None
    rerandomize: bool

    def element_spec(self) -> Any:
        return TensorSpec((), np.int64)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        seed = within.seed if self.seed is None else self.seed
        epoch = within.epoch if self.rerandomize else 0
        bounds = np.cumsum(self.weights) / np.sum(self.weights)
        first = state["next"] if state else 0
        while True:
            uniform = (words(seed, epoch, first, CHUNK_NUMBERS) >> np.uint64(11)) * 2.0**-53
            choices = np.searchsorted(bounds[:-1], uniform, "right")
            await anyio.lowlevel.checkpoint()
            yield Chunk(Columns(choices), NumberedPositions(first), choices.nbytes)
            first += CHUNK_NUMBERS
