"""Positions where some elements wait although later ones have gone: as references, without their data.

Rules:
- Elements have ordinals, from 0 for the first that the step was given. A position is that of the oldest waiting one.
- A stage's state there is `span`, how many elements from there on had been seen, and `waiting`, which of these are
  still wanted: the differences between their ordinals. All others in the span are passed over.
- Nothing is worked out before a position is asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.positions import Position, Positions, Precursor, with_state

__all__ = ["NONE", "DeferredPositions", "Ordinals", "Origins", "WaitedElements"]

Ordinals = npt.NDArray[np.int64]

NONE: Ordinals = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Origins:
    """Where elements came from: the chunks that began at these ordinals."""

    firsts: tuple[int, ...] = ()
    positions: tuple[Positions, ...] = ()

    def then(self, first: int, positions: Positions) -> Origins:
        """The same and one chunk more."""
        return Origins((*self.firsts, first), (*self.positions, positions))

    def keep(self, ordinals: Ordinals) -> Origins:
        """Those chunks of which elements are among these; and the last one, which has the place after all."""
        chunks = {*(np.searchsorted(self.firsts, ordinals, side="right") - 1).tolist(), len(self.firsts) - 1}
        return Origins(*zip(*((self.firsts[chunk], self.positions[chunk]) for chunk in sorted(chunks)), strict=True))

    def at(self, ordinal: int) -> Position:
        """The place before an element of one of the chunks, or after the last one's last."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return self.positions[chunk].at(ordinal - self.firsts[chunk])

    def precursor(self, ordinal: int, row: int = 0) -> Precursor:
        """An element of one of the chunks, or a row of it."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return Precursor(self.positions[chunk], ordinal - self.firsts[chunk], row)


class WaitedElements(Positions):
    """What the elements of a window were made of: it is a dataset of its own, which no position of the chain knows.

    Not a dataclass, so that a walk through descriptions does not go through this.

    Args:
        places: Where they came from.
        ordinals: Which they are.
    """

    __slots__ = ("_ordinals", "_places")

    def __init__(self, places: Origins, ordinals: Ordinals) -> None:
        self._places = places
        self._ordinals = ordinals

    def precursors(self, index: int, row: int) -> Sequence[Precursor]:
        return (self._places.precursor(int(self._ordinals[index]), row),)


@dataclass(frozen=True, slots=True)
class DeferredPositions(Positions):
    """Positions of batches of elements that waited.

    Args:
        key: The stage.
        places: Where the elements came from.
        waiting: The ordinals of all that wait before the first batch, and of those that come up to the last one.
        ends: How many elements had been seen before each batch, and after the last one.
        ended: Whether the input ended before the first batch.
        batches: The ordinals of each one's elements, as they are made.
    """

    key: str
    places: Origins
    waiting: Sequence[Ordinals]
    ends: Sequence[int]
    ended: bool
    batches: list[Ordinals]

    def at(self, index: int) -> Position:
        seen, given = self.ends[index], np.concatenate([NONE, *self.batches[:index]])
        ordinals = np.sort(np.concatenate([NONE, *self.waiting]))
        left = np.setdiff1d(ordinals[: np.searchsorted(ordinals, seen)], given, assume_unique=True)
        if len(left):
            oldest = int(left[0])
            state = {"span": seen - oldest, "waiting": np.diff(left, prepend=oldest).tolist()}
            return with_state(self.places.at(oldest), self.key, state)
        position = self.places.at(seen)
        return {**position, "ended": True} if self.ended else position

    def precursors(self, index: int, row: int) -> Sequence[Precursor]:
        mine = self.batches[index]
        return (self.places.precursor(int(mine[row])),) if row < len(mine) else ()
