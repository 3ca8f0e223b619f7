"""Resample: elements are left out at random, so that their classes come as often as a target says.

Of a class of which there are too many, an element is kept with the probability that makes it as rare as wanted. How
often classes come is given, or counted as the elements pass, from ten of each class on, as tf.data does it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from streamrec.arguments import number
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Positions, StageState, shift
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.epochs import RANDOM_BITS
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling, Results, call_function
from streamrec.pipeline.stages.select import select_chunk

__all__ = ["Resample", "distribution"]

Shares = npt.NDArray[np.float64]
NO_CLASSES: Final[npt.NDArray[np.int64]] = np.empty(0, np.int64)


def distribution(name: str, shares: Any) -> tuple[float, ...]:
    """How likely each class is: numbers that sum up to 1.

    Raises:
        ValueError: There are none, or they are negative, or sum up to something else.
    """
    parts = tuple(number(name, share, 0) for share in shares)
    if not parts or not np.isclose(sum(parts), 1):
        raise ValueError(f"{name}={list(parts)} must be a probability for each class, 1.0 in all")
    return parts


@dataclass(frozen=True, slots=True)
class Resample(Stage):
    """Of pairs of a random number below 2**32 and an element, those that are kept, as pairs of a class and an element.

    Args:
        class_func: Gives an element's class, from 0 on.
        target: How likely each class is to be.
        initial: How likely each is in the input; None to count.
    """

    class_func: Callable[..., Any]
    target: tuple[float, ...]
    initial: tuple[float, ...] | None
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        if self.initial is None:
            return
        if len(self.initial) != len(self.target):
            raise ValueError(f"{len(self.initial)} classes in initial_dist and {len(self.target)} in target_dist")
        for index, (there, wanted) in enumerate(zip(self.initial, self.target, strict=True)):
            if wanted and not there:
                raise ValueError(f"target_dist wants class {index}, of which initial_dist has nothing")

    def __repr__(self) -> str:
        """As in positions: functions differ from run to run but for their names."""
        return f"Resample({name_of(self.class_func)}, {list(self.target)}, {self.initial and list(self.initial)})"

    def start(self, key: str, state: Sequence[int] | None) -> Step:
        return _Resampling(self, key, state)


class _Resampling(Calling):
    def __init__(self, stage: Resample, key: str, state: Sequence[int] | None) -> None:
        super().__init__(self._classify)
        self._stage = stage
        self._key = key
        self._counts = np.array([10] * len(stage.target) if state is None else state, np.int64)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """An element that failed is of no class."""
        return [replace(chunk, positions=self._positions(chunk.positions, NO_CLASSES))]

    def _make(self, chunk: Chunk, results: Results) -> list[Chunk]:
        """Those that are kept of some elements, all of which are counted."""
        inner, classified = shift(chunk.positions, results.first), results.results
        classes = np.array([kind for kind, _, _ in classified], np.int64)
        numbers = np.array([drawn for _, drawn, _ in classified], np.float64)
        kept = np.flatnonzero(numbers < self._chances(classes) * 2.0**RANDOM_BITS)
        positions = self._positions(inner, classes)
        self._counts = self._counts + np.bincount(classes, minlength=len(self._counts))
        pairs = [pair for _, _, pair in classified]
        return select_chunk(Chunk.weigh(pairs, positions), kept, len(pairs))

    def _positions(self, inner: Positions, classes: npt.NDArray[np.int64]) -> Positions:
        """Positions of elements of these classes, with how many of each class had come before."""
        before = self._counts

        def counts(index: int) -> list[int]:
            return (before + np.bincount(classes[:index], minlength=len(before))).tolist()  # type: ignore[no-any-return]

        return StageState(inner, self._key, counts)

    def _classify(self, drawn: Any, element: Any) -> tuple[int, int, tuple[Any, Any]]:
        found = call_function(self._stage.class_func, element)
        kind = int(found)
        if not 0 <= kind < len(self._stage.target):
            raise ValueError(
                f"{name_of(self._stage.class_func)} gave the class {kind}, and target_dist has "
                f"{len(self._stage.target)} classes, from 0 on"
            )
        return kind, int(drawn), (found, element)

    def _chances(self, classes: npt.NDArray[np.int64]) -> Shares:
        """How likely each element is to be kept."""
        target = np.array(self._stage.target)
        if self._stage.initial is not None:
            return shares_to_keep(target, np.array(self._stage.initial))[classes]
        came = np.zeros((len(classes), len(target)), np.int64)
        came[np.arange(len(classes)), classes] = 1
        counts = self._counts + np.cumsum(came, axis=0)
        chances: Shares = shares_to_keep(target, counts / counts.sum(axis=1, keepdims=True))[
            np.arange(len(classes)), classes
        ]
        return chances


def shares_to_keep(target: Shares, initial: Shares) -> Shares:
    """The share of each class that is kept: all of the class that is rarest relative to its target."""
    ratios = np.divide(target, initial, out=np.zeros(np.broadcast(target, initial).shape), where=initial > 0)
    shares: Shares = ratios / ratios.max(axis=-1, keepdims=True)
    return shares
