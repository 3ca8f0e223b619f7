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
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from streamrec.pipeline.elements.positions import Position, Positions, Precursor, with_state

__all__ = ["NONE", "CompletedPositions", "Ordinals", "Origins", "RemainderPositions", "WaitedElements"]

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

    def kept(self, ordinals: Ordinals) -> Origins:
        """Those chunks of which elements are among these."""
        chunks = np.unique(np.searchsorted(self.firsts, ordinals, side="right") - 1).tolist()
        return Origins(tuple(self.firsts[chunk] for chunk in chunks), tuple(self.positions[chunk] for chunk in chunks))

    def at(self, ordinal: int) -> Position:
        """The place before an element of one of the chunks, or after the last one's last."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return self.positions[chunk].at(ordinal - self.firsts[chunk])

    def precursor(self, ordinal: int) -> Precursor:
        """An element of one of the chunks."""
        chunk = bisect_right(self.firsts, ordinal) - 1
        return Precursor(self.positions[chunk], ordinal - self.firsts[chunk])

    def before(self, waiting: Sequence[Ordinals], seen: int, key: str) -> Position:
        """The place where these elements wait and `seen` were seen, for the stage `key`."""
        ordinals = np.sort(np.concatenate(waiting)) if waiting else NONE
        if not len(ordinals):
            return self.at(seen)
        oldest = int(ordinals[0])
        state = {"span": seen - oldest, "waiting": np.diff(ordinals, prepend=oldest).tolist()}
        return with_state(self.at(oldest), key, state)


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

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        return (replace(self._places.precursor(int(self._ordinals[index])), row=row),)


@dataclass(frozen=True, slots=True)
class CompletedPositions(Positions):
    """Positions of the batches that one chunk completed.

    Args:
        key: The stage.
        places: Where the elements came from.
        waiting: For each bucket the ordinals that waited before the chunk.
        sizes: The buckets' batch sizes.
        first: The ordinal of the chunk's first element.
        ids: The chunk's elements' buckets; -1 for none.
        ends: How many of the chunk's elements were seen at each of the places.
    """

    key: str
    places: Origins
    waiting: Sequence[Ordinals]
    sizes: Sequence[int]
    first: int
    ids: Ordinals
    ends: Sequence[int]

    def at(self, index: int) -> Position:
        seen = self.ends[index]
        left = []
        for bucket, (size, waiting) in enumerate(zip(self.sizes, self.waiting, strict=True)):
            came = np.concatenate([waiting, self.first + np.flatnonzero(self.ids[:seen] == bucket)])
            left.append(came[len(came) - len(came) % size :])
        return self.places.before(left, self.first + seen, self.key)

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        seen = self.ends[index + 1]
        bucket = int(self.ids[seen - 1])  # the element that completed the batch is its last
        came = np.concatenate([self.waiting[bucket], self.first + np.flatnonzero(self.ids[:seen] == bucket)])
        mine = came[len(came) - self.sizes[bucket] :]
        return (self.places.precursor(int(mine[row])),) if row < len(mine) else ()


@dataclass(frozen=True, slots=True)
class RemainderPositions(Positions):
    """Positions of the last, smaller batches, one for each bucket in which elements wait.

    Args:
        key: The stage.
        places: Where the elements came from.
        waiting: For each of the batches its elements' ordinals.
        seen: How many elements there were.
        last: The place after all of them.
        ended: Whether that is the end of the input.
    """

    key: str
    places: Origins
    waiting: Sequence[Ordinals]
    seen: int
    last: tuple[Positions, int]
    ended: bool

    def at(self, index: int) -> Position:
        if index < len(self.waiting):
            return self.places.before(self.waiting[index:], self.seen, self.key)
        positions, inner = self.last
        return {**positions.at(inner), **({"ended": True} if self.ended else {})}

    def made_of(self, index: int, row: int) -> Sequence[Precursor]:
        mine = self.waiting[index]
        return (self.places.precursor(int(mine[row])),) if row < len(mine) else ()
