"""Mixing: elements of several chains, in the order that a chain of choices says: `choose_from_datasets` and
`sample_from_datasets`, whose choices are drawn at random.

As in tf.data: each choice is the number of a chain, which gives its next element. Where that chain has no more, all
ends there (`stop_on_empty`), or the choice is passed over, until all chains have ended or the choices do.

Rules:
- Choices are followed by thousands: what they take of each chain is taken as windows, and joined by one copy.
- A position is that of each chain, and of the choices.
- A chain that fails is an error where it would have been chosen for the element that it failed to give; where only an
  element failed, that choice is used up.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from streamrec.arguments import describe_value
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns
from streamrec.pipeline.elements.merge import merge_windows
from streamrec.pipeline.elements.positions import Joined, Location, Origin, Position, Positions
from streamrec.pipeline.elements.specs import common_spec
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.sources.inputs import InputBuffer, run_inputs
from streamrec.pipeline.sources.interleave import CHUNK_BYTES

__all__ = ["Choose"]

Indices = npt.NDArray[np.int64]

FEWEST, MOST = 64, 1 << 14
"""How many choices are looked at together: not all of them again, each time that a chain gives a few more elements."""


@dataclass(frozen=True, slots=True)
class Choose(Source):
    """Elements of several chains, as a chain of choices says."""

    parts: tuple[Chain, ...]
    choices: Chain
    stop_on_empty: bool

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("sample_from_datasets and choose_from_datasets need at least one dataset")

    def lines(self) -> Iterator[str]:
        yield f"Choose({len(self.parts)}, stop_on_empty={self.stop_on_empty})"
        yield from (f"  {line}" for part in (self.choices, *self.parts) for line in part.lines())

    def element_spec(self) -> Any:
        return common_spec(part.element_spec() for part in self.parts)

    @property
    def is_endless(self) -> bool:
        several = all if self.stop_on_empty else any
        return self.choices.is_endless and several(part.is_endless for part in self.parts)

    async def chunks(self, state: Mapping[str, Any] | None, within: RunContext) -> AsyncGenerator[Chunk]:
        """Each chain runs in a task of its own, with an equal share of the budget; choices are small."""
        positions = state["parts"] if state else [None] * len(self.parts)
        choice = state["choices"] if state else None
        arrived = Signal()
        beside = within.apart(len(self.parts))
        few = replace(beside, budget=min(4 << 20, within.budget // (len(self.parts) + 1)))
        async with (
            run_inputs([self.choices], [choice], few, arrived) as (choices,),
            run_inputs(self.parts, positions, replace(within, budget=within.budget - few.budget), arrived) as parts,
        ):
            mixer = Sampler(choices, parts, self.stop_on_empty)
            while not mixer.ended:
                chunk = mixer.pull()
                if chunk is not None:
                    yield chunk
                elif not mixer.ended:
                    await arrived.wait()


class Sampler:
    """Follows choices, as far as elements have arrived. It never awaits.

    Attributes:
        ended: Nothing more comes.
    """

    def __init__(self, choices: InputBuffer, parts: Sequence[InputBuffer], stop_on_empty: bool) -> None:
        self.ended = False
        self._choices = choices
        self._parts = parts
        self._stop_on_empty = stop_on_empty

    def pull(self) -> Chunk | None:
        """The next elements; None where nothing can be taken yet, or all has ended.

        Raises:
            Exception: The error of a chain that was chosen, or of the choices.
            TypeError: The choices are not integers.
            ValueError: A choice is out of range.
        """
        while not self.ended:
            if self._choices.has_failure:
                return self._failure(self._choices.take_failure())
            if self._choices.is_exhausted:
                self._choices.check()
            if self._choices.is_exhausted or all(part.is_exhausted and part.error is None for part in self._parts):
                self.ended = True
            elif not self._choices.available:
                return None
            else:
                chunk, moved = self._follow()
                if chunk is not None or not moved:
                    return chunk
        return None

    def _follow(self) -> tuple[Chunk | None, bool]:
        """What the next choices take, and whether any of them was followed or passed over."""
        chosen, error = check_choices(self._choices.peek(self._most()), len(self._parts))
        available = np.array([part.available for part in self._parts])
        empty = np.array([part.ended and part.error is None and not part.failures for part in self._parts])
        rank = rank_choices(chosen, len(self._parts))
        short = rank >= available[chosen]
        passed = short & empty[chosen] & (not self._stop_on_empty)
        stops = np.flatnonzero(short & ~passed)
        count = int(stops[0]) if len(stops) else len(chosen)
        kept = np.flatnonzero(~passed[:count])
        if not count:
            return self._stop(chosen, error), False
        places = self._choices.take(count).places
        return (self._take(chosen[kept], rank[kept], kept, count, places) if len(kept) else None), True

    def _stop(self, chosen: Indices, error: Exception | None) -> Chunk | None:
        """The next choice cannot be followed: wait for its chain, end, or fail."""
        if not len(chosen):
            assert error is not None
            raise error
        part = self._parts[int(chosen[0])]
        if part.has_failure:
            self._choices.take(1)
            return self._failure(part.take_failure())
        if part.is_exhausted:
            part.check()
            self.ended = True
        return None

    def _failure(self, error: Exception) -> Chunk:
        none, parts = np.empty(0, np.int64), tuple(part.mark() for part in self._parts)
        return Chunk.failure(error, SampledPositions(self._choices.mark(), 0, none, none, parts), 0)

    def _most(self) -> int:
        """How many choices to look at: about as many as can be followed, and what they take should not leave caches."""
        available = sum(part.available for part in self._parts)
        fitting = CHUNK_BYTES // max(part.typical_bytes for part in self._parts)
        return max(1, min(FEWEST + 2 * available, fitting, MOST))

    def _take(self, chosen: Indices, rank: Indices, kept: Indices, count: int, choices: Joined) -> Chunk:
        """What these choices take, each of which is the `rank`-th of its part: what is passed over comes after it."""
        shares = np.bincount(chosen, minlength=len(self._parts))
        taken = [part.take(share) for part, share in zip(self._parts, shares.tolist(), strict=True)]
        windows = [window for part in taken for window in part.windows]
        positions = SampledPositions(choices, count, kept, chosen, tuple(part.places for part in taken))
        elements = windows[0]
        if len(windows) > 1:
            order = (np.cumsum(shares) - shares)[chosen] + rank
            elements = merge_windows(windows, order)
        return Chunk(elements, positions, sum(part.nbytes for part in taken))


def check_choices(windows: Sequence[Any], parts: int) -> tuple[Indices, Exception | None]:
    """Choices as an array, up to the first one that is none, and what is wrong with that."""
    known: list[Indices] = []
    for elements in windows:
        values = array_of(elements)
        if values is None:
            return join(known), TypeError(
                f"choose_from_datasets: a choice is {describe_value(elements[0])}: it must be the number of a dataset"
            )
        wrong = np.flatnonzero((values < 0) | (values >= parts))
        if len(wrong):
            known.append(values[: wrong[0]])
            return join(known), ValueError(
                f"choose_from_datasets: a choice is {values[wrong[0]]}: there are {parts} datasets, numbered from 0"
            )
        known.append(values)
    return join(known), None


def array_of(elements: Any) -> Indices | None:
    """Elements as an array; None unless they are integers."""
    if isinstance(elements, Columns):
        values = elements.nest
    else:
        values = np.array(list(elements)) if all(isinstance(one, Integral | np.ndarray) for one in elements) else None
    integers = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
    return values.astype(np.int64) if integers else None


def join(known: Sequence[Indices]) -> Indices:
    return np.concatenate(known) if known else np.empty(0, np.int64)


def rank_choices(chosen: Indices, parts: int) -> Indices:
    """How many choices of the same part precede each."""
    small = chosen.astype(np.uint16 if parts <= 1 << 16 else np.int64)  # NumPy sorts few bits by radix, in one go
    order = np.argsort(small, kind="stable")
    shares = np.bincount(chosen, minlength=parts)
    found = np.empty(len(chosen), np.int64)
    found[order] = np.arange(len(chosen)) - np.repeat(np.cumsum(shares) - shares, shares)
    return found


@dataclass(frozen=True, slots=True)
class SampledPositions(Positions):
    """Positions of elements that were mixed.

    Args:
        choices: The places of the choices.
        count: How many of them were followed or passed over.
        kept: Which of them gave an element.
        chosen: Which part gave it.
        parts: The places of the parts.
    """

    choices: Joined
    count: int
    kept: Indices
    chosen: Indices
    parts: tuple[Joined, ...]

    def at(self, index: int) -> Position:
        shares = np.bincount(self.chosen[:index], minlength=len(self.parts)).tolist()
        choice = int(self.kept[index]) if index < len(self.kept) else self.count
        parts = [places.at(share) for places, share in zip(self.parts, shares, strict=True)]
        return {"source": {"choices": self.choices.at(choice), "parts": parts}}

    def origins(self, index: int, row: int) -> Sequence[Origin | Location]:
        part = int(self.chosen[index])
        return self.parts[part].origins(int(np.count_nonzero(self.chosen[:index] == part)), row)
