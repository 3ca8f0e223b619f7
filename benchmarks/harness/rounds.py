"""Sides take turns, and what their rounds show: medians, and ratios of neighbours in time.

The speed of a machine changes from minute to minute. So each round has every side once, and a ratio
is that of two sides in the same round. The median of the rounds' ratios counts; the lowest and the
highest are its spread. Odd rounds go through the sides in the other direction, so that none is
always the first.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.harness.calm import calmest
from benchmarks.harness.meter import Figures, Meter

Side = Callable[[], Figures]
"""Measures one side once."""


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What all sides showed.

    Attributes:
        taken: The figures of each side, a mapping a round.
        runs: How many rounds were made, with those that were not calm.
        stolen_cores: What was stolen from the worst round that counts.
    """

    taken: Sequence[Mapping[str, Figures]]
    runs: int
    stolen_cores: float

    @property
    def calm(self) -> dict[str, float]:
        """How calm the rounds were, as a row of the data has it."""
        return {"runs": self.runs, "stolen_cores": round(self.stolen_cores, 3)}

    def median(self, side: str, figure: str) -> float:
        """The median of one figure of one side."""
        return median(taken[side][figure] for taken in self.taken)

    def medians(self, side: str, *figures: str) -> Figures:
        """The medians of these figures of one side; of all where none is named."""
        return {name: self.median(side, name) for name in figures or self.taken[0][side]}

    def by_side(self, figure: str) -> Figures:
        """The median of one figure for each side."""
        return {side: self.median(side, figure) for side in self.taken[0]}

    def ratio(self, figure: str, side: str, peer: str) -> float:
        """The median over the rounds of `side`'s figure, divided by `peer`'s."""
        return median(self.ratios(figure, side, peer))

    def spread(self, figure: str, side: str, peer: str) -> list[float]:
        """The lowest and the highest ratio of all rounds."""
        found = self.ratios(figure, side, peer)
        return [significant(min(found)), significant(max(found))]

    def ratios(self, figure: str, side: str, peer: str) -> list[float]:
        """The ratio of each round."""
        return [taken[side][figure] / taken[peer][figure] for taken in self.taken]


def in_turn(
    sides: Mapping[str, Side], rounds: int, *, once: Collection[str] = (), warm: int = 0
) -> Rounds:
    """Measures the sides in turn, until so many rounds were calm (`benchmarks.harness.calm`).

    Args:
        sides: The sides by name.
        rounds: How many rounds count.
        once: Sides that take minutes: they are measured once, before the rounds, and each round
            has the same figures of them.
        warm: Rounds that do not count, before the others: for sides in this process, which load
            modules and touch memory at first.
    """
    single = {name: sides[name]() for name in once if name in sides}
    repeated = [name for name in sides if name not in single]
    for _ in range(warm):
        for name in repeated:
            sides[name]()

    def run(number: int) -> dict[str, Figures]:
        order = reversed(repeated) if number % 2 else repeated
        taken = {name: sides[name]() for name in order}
        # the order of the sides is that of the table, not that of the round
        return {name: single[name] if name in single else taken[name] for name in sides}

    found = calmest(run, rounds)
    return Rounds(taken=found.results, runs=found.runs, stolen_cores=found.stolen_cores)


def seconds_of(works: Mapping[str, Callable[[], object]], rounds: int) -> Figures:
    """The median seconds of each of several works in this process.

    A round before the others does not count: it loads modules and touches memory.
    """

    def timed(work: Callable[[], object]) -> Figures:
        gc.collect()  # of what the work before this one left
        with Meter() as meter:
            work()
        return {"seconds": meter.seconds}

    sides = {name: partial(timed, work) for name, work in works.items()}
    return in_turn(sides, rounds, warm=1).by_side("seconds")


def median(values: Iterable[float]) -> float:
    """The median, to three significant digits."""
    return significant(statistics.median(values))


def significant(value: float, digits: int = 3) -> float:
    """A number with so many significant digits.

    >>> significant(1234.5), significant(0.98765), significant(7)
    (1230.0, 0.988, 7.0)
    """
    return float(f"{value:.{digits}g}")
