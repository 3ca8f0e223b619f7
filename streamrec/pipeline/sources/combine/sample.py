"""Mixes elements of several chains, in the order of a chain of choices.

These are `choose_from_datasets`, and `sample_from_datasets`, whose choices are drawn at random.

As in tf.data, each choice is the number of the chain that gives the next element. If that chain has
ended, the output ends (`stop_on_empty`), or the choice is skipped, until all chains or the choices
have ended.

Rules:
- Thousands of choices are followed at a time: their elements are windows of each chain, joined by
  one copy.
- A position has the position of each chain and of the choices.
- The error of a chain is raised when the element that it failed to give is chosen. A failed element
  uses up its choice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from streamrec.arguments import describe_value
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.elements.columns import Columns, merge_windows
from streamrec.pipeline.elements.positions import (
    Joined,
    Numbers,
    Position,
    SeveralInputs,
)
from streamrec.pipeline.elements.specs import common_spec
from streamrec.pipeline.engine.description import Chain, Source
from streamrec.pipeline.engine.queue import Signal
from streamrec.pipeline.engine.ranks import Rank
from streamrec.pipeline.engine.run import RunContext
from streamrec.pipeline.engine.stage import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from streamrec.pipeline.sources.in_memory import Choices
from streamrec.pipeline.sources.inputs import InputBuffer, run_inputs
from streamrec.pipeline.sources.pulls import CHUNK_BYTES

MIN_CHOICES = 64
MAX_CHOICES = 1 << 14
"""How many choices are looked at together.

With all at once, all would be looked at again when a few more elements arrive.
"""


@dataclass(frozen=True, slots=True)
class Choose(Source):
    """Elements of several chains, in the order of a chain of choices."""

    parts: tuple[Chain, ...]
    choices: Chain
    stop_on_empty: bool

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError(
                "sample_from_datasets and choose_from_datasets need at least one dataset"
            )

    def lines(self) -> Iterator[str]:
        yield f"Choose({len(self.parts)}, stop_on_empty={self.stop_on_empty})"
        yield from (f"  {line}" for part in (self.choices, *self.parts) for line in part.lines())

    def element_spec(self) -> Any:
        return common_spec(part.element_spec() for part in self.parts)

    def cardinality(self, rank: Rank | None) -> int:
        return count_mixed(
            [part.cardinality(rank) for part in self.parts],
            self.choices.cardinality(rank),
            stop_on_empty=self.stop_on_empty,
            all_are_drawn=isinstance(self.choices.source, Choices)
            and not self.choices.stages
            and self.choices.source.draws_all,
        )

    @property
    def is_endless(self) -> bool:
        several = all if self.stop_on_empty else any
        return self.choices.is_endless and several(part.is_endless for part in self.parts)

    async def chunks(
        self, state: Mapping[str, Any] | None, context: RunContext
    ) -> AsyncGenerator[Chunk]:
        """Runs each chain in a task of its own, with an equal share of the budget.

        Choices are small.
        """
        positions = state["parts"] if state else [None] * len(self.parts)
        choice = state["choices"] if state else None
        arrived = Signal()
        budget = min(4 << 20, context.budget // (len(self.parts) + 1))
        small = replace(context.fork_seed(len(self.parts)), budget=budget)
        rest = replace(context, budget=context.budget - budget)
        async with (
            run_inputs([self.choices], [choice], small, arrived) as (choices,),
            run_inputs(self.parts, positions, rest, arrived) as parts,
        ):
            sampler = Sampler(choices, parts, self.stop_on_empty)
            while not sampler.ended:
                chunk = sampler.pull()
                if chunk is not None:
                    yield chunk
                elif not sampler.ended:
                    await arrived.wait()


def count_mixed(
    counts: Sequence[int], choices: int, *, stop_on_empty: bool, all_are_drawn: bool
) -> int:
    """The number of elements of a mixture, by those of its parts and of the choices.

    It is known only if it is the same for all choices that there may be; `all_are_drawn` says that
    these are random and endless, so that each part is drawn again and again.

    >>> count_mixed([3, 4], -1, stop_on_empty=False, all_are_drawn=True)
    7
    >>> count_mixed([3, 4], -1, stop_on_empty=True, all_are_drawn=True)
    -2
    """
    if choices == 0 or not any(counts):
        return 0
    if len(counts) == 1:
        return smaller(counts[0], choices)
    if all(count == INFINITE_CARDINALITY for count in counts):
        return choices
    if stop_on_empty or not all_are_drawn:
        return UNKNOWN_CARDINALITY
    if INFINITE_CARDINALITY in counts:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in counts else sum(counts)


def smaller(count: int, other: int) -> int:
    """The smaller one of two cardinalities."""
    if INFINITE_CARDINALITY in (count, other):
        return other if count == INFINITE_CARDINALITY else count
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in (count, other) else min(count, other)


class Sampler:
    """Follows choices as far as elements have arrived, until all were given (`ended`).

    It never awaits.
    """

    def __init__(
        self, choices: InputBuffer, parts: Sequence[InputBuffer], stop_on_empty: bool
    ) -> None:
        self.ended = False
        self._choices = choices
        self._parts = parts
        self._stop_on_empty = stop_on_empty

    def pull(self) -> Chunk | None:
        """The next elements; None if none can be taken yet, or all were given."""
        while not self.ended:
            if self._choices.has_failure:
                return self._failure(self._choices.take_failure())
            if self._choices.is_exhausted:
                self._choices.check()
            all_given = all(part.is_exhausted and part.error is None for part in self._parts)
            if self._choices.is_exhausted or all_given:
                self.ended = True
            elif not self._choices.available:
                return None
            else:
                chunk, moved = self._follow()
                if chunk is not None or not moved:
                    return chunk
        return None

    def _follow(self) -> tuple[Chunk | None, bool]:
        """The elements of the next choices, and whether any of these was followed or skipped."""
        available = np.array([part.available for part in self._parts])
        # As many as fit in the processor's caches.
        fitting = CHUNK_BYTES // max(part.typical_bytes for part in self._parts)
        count = max(1, min(MIN_CHOICES + 2 * int(available.sum()), fitting, MAX_CHOICES))
        chosen, error = check_choices(self._choices.peek(count), len(self._parts))
        empty = np.array(
            [part.ended and part.error is None and not part.failures for part in self._parts]
        )
        # The choices that can be followed are those before the first one whose part has no element
        # for it yet. A part that has ended does not stop them: its choices are skipped.
        rank = rank_choices(chosen, len(self._parts))
        short = rank >= available[chosen]
        skipped = short & empty[chosen] & (not self._stop_on_empty)
        stops = np.flatnonzero(short & ~skipped)
        count = int(stops[0]) if len(stops) else len(chosen)
        kept = np.flatnonzero(~skipped[:count])
        if not count:
            return self._stop(chosen, error), False
        positions = self._choices.take(count).positions
        if not len(kept):
            return None, True
        return self._take(chosen[kept], rank[kept], kept, count, positions), True

    def _stop(self, chosen: Numbers, error: Exception | None) -> Chunk | None:
        """Handles a next choice that cannot be followed.

        It gives the choice's failure, ends, or returns None to wait.
        """
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
        none = np.empty(0, np.int64)
        marks = [part.mark() for part in self._parts]
        positions = positions_of_choices(
            marks, choices=self._choices.mark(), count=0, kept=none, chosen=none
        )
        return Chunk.failure(error, positions, 0)

    def _take(
        self, chosen: Numbers, rank: Numbers, kept: Numbers, count: int, choices: Joined
    ) -> Chunk:
        """The elements of choices; each choice is the `rank`-th one of its part."""
        shares = np.bincount(chosen, minlength=len(self._parts))
        taken = [part.take(share) for part, share in zip(self._parts, shares.tolist(), strict=True)]
        windows = [window for part in taken for window in part.windows]
        parts = [part.positions for part in taken]
        positions = positions_of_choices(
            parts, choices=choices, count=count, kept=kept, chosen=chosen
        )
        elements = windows[0]
        if len(windows) > 1:
            order = (np.cumsum(shares) - shares)[chosen] + rank
            elements = merge_windows(windows, order)
        return Chunk(elements, positions, sum(part.nbytes for part in taken))


def check_choices(windows: Sequence[Any], parts: int) -> tuple[Numbers, Exception | None]:
    """Choices as an array, up to the first invalid one, and its error."""
    known: list[Numbers] = [np.empty(0, np.int64)]
    for elements in windows:
        values = array_of(elements)
        if values is None:
            return np.concatenate(known), TypeError(
                f"choose_from_datasets: a choice is {describe_value(elements[0])}; it must be the "
                "number of a dataset"
            )
        wrong = np.flatnonzero((values < 0) | (values >= parts))
        if len(wrong):
            known.append(values[: wrong[0]])
            return np.concatenate(known), ValueError(
                f"choose_from_datasets: a choice is {values[wrong[0]]}, but the {parts} datasets "
                "have numbers from 0 on"
            )
        known.append(values)
    return np.concatenate(known), None


def array_of(elements: Any) -> Numbers | None:
    """Elements as an int64 array; None unless they are integers."""
    values: Any = None
    if isinstance(elements, Columns):
        values = elements.nest
    elif all(isinstance(one, Integral | np.ndarray) for one in elements):
        values = np.array(list(elements))
    integers = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "iu"
    return values.astype(np.int64) if integers else None


def rank_choices(chosen: Numbers, parts: int) -> Numbers:
    """How many choices of the same part precede each."""
    # NumPy sorts uint16 by radix, in linear time.
    small = chosen.astype(np.uint16 if parts <= 1 << 16 else np.int64)
    order = np.argsort(small, kind="stable")
    shares = np.bincount(chosen, minlength=parts)
    ranks = np.empty(len(chosen), np.int64)
    ranks[order] = np.arange(len(chosen)) - np.repeat(np.cumsum(shares) - shares, shares)
    return ranks


def positions_of_choices(
    parts: Sequence[Joined], *, choices: Joined, count: int, kept: Numbers, chosen: Numbers
) -> SeveralInputs:
    """Positions of mixed elements: a choice says which part gives each.

    Args:
        parts: The positions of each part.
        choices: The positions of the choices, of which `count` were followed or skipped.
        kept: The indices of the choices that gave an element.
        chosen: The part that gave each element.
    """

    def shares(index: int) -> list[int]:
        found: list[int] = np.bincount(chosen[:index], minlength=len(parts)).tolist()
        return found

    def source(index: int, cursors: Sequence[Position | None]) -> dict[str, Any]:
        choice = int(kept[index]) if index < len(kept) else count
        return {"choices": choices.at(choice), "parts": list(cursors)}

    return SeveralInputs(inputs=parts, shares=shares, source=source)
