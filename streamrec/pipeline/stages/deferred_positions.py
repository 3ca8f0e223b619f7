"""Positions of stages that delay some elements while later ones pass.

They refer to elements and hold no data.

Rules:
- Elements have ordinals, from 0 for the first that the step got. A position is that of the oldest
  waiting element.
- The stage's state is `span`, the number of elements seen from there on, and `waiting`, which of
  these still wait: the differences between their ordinals. The others in the span are skipped.
- A position is computed when it is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.positions import Origin, Position, Positions, with_state

Ordinals = npt.NDArray[np.int64]

NONE: Ordinals = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class InputChunks:
    """The positions of the chunks that a step got, and the ordinal of each one's first element."""

    firsts: tuple[int, ...] = ()
    positions: tuple[Positions, ...] = ()

    def append(self, first: int, positions: Positions) -> InputChunks:
        """These chunks and one more, which begins with the element of ordinal `first`."""
        return InputChunks((*self.firsts, first), (*self.positions, positions))

    def keep(self, ordinals: Ordinals) -> InputChunks:
        """The chunks of these elements, and the last chunk.

        The last one has the position after all elements.
        """
        chunks = {
            *(np.searchsorted(self.firsts, ordinals, side="right") - 1).tolist(),
            len(self.firsts) - 1,
        }
        kept = sorted(chunks)
        return InputChunks(
            tuple(self.firsts[chunk] for chunk in kept),
            tuple(self.positions[chunk] for chunk in kept),
        )

    def at(self, ordinal: int) -> Position:
        """The position before an element, or after the last one."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return self.positions[chunk].at(ordinal - self.firsts[chunk])

    def origin(self, ordinal: int, row: int = 0) -> Origin:
        """A reference to an element, or to a row of it."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return Origin(self.positions[chunk], ordinal - self.firsts[chunk], row)


class GroupOrigins:
    """Says what the elements of a window or batch were made of (`OriginsOf`).

    A window is a dataset, so no position of the chain has this.

    Not a dataclass, so that walks through descriptions skip it.
    """

    __slots__ = ("_inputs", "_ordinals")

    def __init__(self, inputs: InputChunks, ordinals: Ordinals) -> None:
        self._inputs = inputs
        self._ordinals = ordinals

    def __call__(self, index: int, row: int) -> Sequence[Origin]:
        return (self._inputs.origin(int(self._ordinals[index]), row),)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredPositions(Positions):
    """Positions of batches of elements that waited.

    The ordinals of each batch's elements are appended as it is made.

    Args:
        key: The key of the stage's state.
        inputs: The chunks of the elements.
        waiting: The ordinals of all elements that wait before the first batch, or come before the
            last one.
        ends: How many elements were seen before each batch, and after the last one.
        ended: Whether the input ended before the first batch.
        batches: The ordinals of each batch's elements.
    """

    key: str
    inputs: InputChunks
    waiting: Sequence[Ordinals]
    ends: Sequence[int]
    ended: bool
    batches: list[Ordinals]

    def at(self, index: int) -> Position:
        seen = self.ends[index]
        batched = np.concatenate([NONE, *self.batches[:index]])
        ordinals = np.sort(np.concatenate([NONE, *self.waiting]))
        left = np.setdiff1d(
            ordinals[: np.searchsorted(ordinals, seen)], batched, assume_unique=True
        )
        if len(left):
            oldest = int(left[0])
            state = {"span": seen - oldest, "waiting": np.diff(left, prepend=oldest).tolist()}
            return with_state(self.inputs.at(oldest), self.key, state)
        position = self.inputs.at(seen)
        return {**position, "ended": True} if self.ended else position

    def origins(self, index: int, row: int) -> Sequence[Origin]:
        ordinals = self.batches[index]
        return (self.inputs.origin(int(ordinals[row])),) if row < len(ordinals) else ()
