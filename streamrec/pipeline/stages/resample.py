"""Resample: leaves out elements at random, so that their classes get the target distribution.

An element of a class that is too frequent is kept with the probability that gives the class its
target share. The input's distribution is given, or counted while elements pass; as in tf.data,
counts begin at ten for each class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from streamrec.arguments import check_function, check_number
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.positions import Positions, shift, with_stage_state
from streamrec.pipeline.engine.description import name_of
from streamrec.pipeline.engine.seeds import RANDOM_BITS
from streamrec.pipeline.engine.stage import Offload, Stage, Step
from streamrec.pipeline.stages.calling import Calling, Results, call_function
from streamrec.pipeline.stages.select import select_chunk

Probabilities = npt.NDArray[np.float64]
NO_CLASSES: Final[npt.NDArray[np.int64]] = np.empty(0, np.int64)


def distribution(name: str, probabilities: Any) -> tuple[float, ...]:
    """The probability of each class, which must sum to 1; errors use `name`."""
    checked = tuple(check_number(name, probability, 0) for probability in probabilities)
    if not checked or not np.isclose(sum(checked), 1):
        raise ValueError(
            f"{name}={list(checked)} must hold a probability for each class; they must sum to 1.0"
        )
    return checked


@dataclass(frozen=True, slots=True)
class Resample(Stage):
    """Takes pairs of a random number below 2**32 and an element.

    Gives pairs of a class and an element that is kept.

    `target` and `initial` have the probability of each class in the output and in the input; None
    to count.
    """

    class_func: Callable[..., Any]
    target: tuple[float, ...]
    initial: tuple[float, ...] | None
    offload: ClassVar[Offload] = Offload.ALWAYS

    def __post_init__(self) -> None:
        check_function("class_func", self.class_func)
        if self.initial is None:
            return
        if len(self.initial) != len(self.target):
            raise ValueError(
                f"initial_dist has {len(self.initial)} classes and target_dist has "
                f"{len(self.target)}: pass a probability for each class in both"
            )
        for index, (initial, target) in enumerate(zip(self.initial, self.target, strict=True)):
            if target and not initial:
                raise ValueError(
                    f"class {index} has probability {target} in target_dist and 0 in initial_dist"
                )

    def __repr__(self) -> str:
        # Saved positions compare this text, so functions appear by their names.
        return (
            f"Resample({name_of(self.class_func)}, {list(self.target)}, "
            f"{self.initial and list(self.initial)})"
        )

    def start(self, key: str, state: Sequence[int] | None) -> Step:
        return _Resampling(self, key, state)


class _Resampling(Calling):
    def __init__(self, stage: Resample, key: str, state: Sequence[int] | None) -> None:
        super().__init__(self._classify)
        self._stage = stage
        self._key = key
        self._counts = np.array([10] * len(stage.target) if state is None else state, np.int64)

    def fail(self, chunk: Chunk) -> list[Chunk]:
        """Counts a failure in no class."""
        return [chunk.at(self._positions(chunk.positions, NO_CLASSES))]

    def _give(self, chunk: Chunk, results: Results) -> list[Chunk]:
        """Counts all elements; gives those that are kept."""
        inner = shift(chunk.positions, results.first)
        classified = results.results
        classes = np.array([kind for kind, _, _ in classified], np.int64)
        numbers = np.array([drawn for _, drawn, _ in classified], np.float64)
        kept = np.flatnonzero(numbers < self._keep_probabilities(classes) * 2.0**RANDOM_BITS)
        positions = self._positions(inner, classes)
        self._counts = self._counts + np.bincount(classes, minlength=len(self._counts))
        pairs = [pair for _, _, pair in classified]
        return select_chunk(Chunk.weigh(pairs, positions), kept, len(pairs))

    def _positions(self, inner: Positions, classes: npt.NDArray[np.int64]) -> Positions:
        """Positions of elements of these classes, with the counts of each class before."""
        before = self._counts

        def counts(index: int) -> list[int]:
            numbers: list[int] = (
                before + np.bincount(classes[:index], minlength=len(before))
            ).tolist()
            return numbers

        return with_stage_state(inner, self._key, counts)

    def _classify(self, drawn: Any, element: Any) -> tuple[int, int, tuple[Any, Any]]:
        result = call_function(self._stage.class_func, element)
        kind = int(result)
        if not 0 <= kind < len(self._stage.target):
            raise ValueError(
                f"{name_of(self._stage.class_func)} returned class {kind}, but target_dist has "
                f"{len(self._stage.target)} classes, from 0 on"
            )
        return kind, int(drawn), (result, element)

    def _keep_probabilities(self, classes: npt.NDArray[np.int64]) -> Probabilities:
        """The probability to keep each element."""
        target = np.array(self._stage.target)
        if self._stage.initial is not None:
            return keep_probabilities(target, np.array(self._stage.initial))[classes]
        counts = self._counts + np.cumsum(np.eye(len(target), dtype=np.int64)[classes], axis=0)
        each = keep_probabilities(target, counts / counts.sum(axis=1, keepdims=True))
        return each[np.arange(len(classes)), classes]


def keep_probabilities(target: Probabilities, initial: Probabilities) -> Probabilities:
    """The probability to keep an element of each class.

    It is 1 for the class that is rarest relative to its target.
    """
    ratios = np.divide(
        target, initial, out=np.zeros(np.broadcast(target, initial).shape), where=initial > 0
    )
    probabilities: Probabilities = ratios / ratios.max(axis=-1, keepdims=True)
    return probabilities
