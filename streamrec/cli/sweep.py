"""What `streamrec bench` measures, and what follows from it: pure, without a store.

A BenchPlan says what is read, and at most how much; a Sweep holds what was measured. The knee is
the fewest connections that give nine tenths of the best speed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low
from typing import Final

import click

from streamrec.cli.library import Distribution
from streamrec.cli.options import COMPARISONS
from streamrec.cli.output import format_bytes, plural
from streamrec.cli.reading import total_bytes
from streamrec.cli.sources import Item

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
SIZES: Final = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
QUANTILES: Final = (0.5, 0.9, 0.99)
GET_DOLLARS: Final = 4e-7
"""What S3 and GCS ask for one GET of their standard class, in November 2026."""

GROWS: Final = 1.5
"""Twice the connections and at least so many times the speed: more connections would give more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What will be measured.

    Attributes:
        connections: Numbers of connections, ascending.
        seconds: The duration of each measurement.
        repeats: How often each is made.
        budget: At most so many bytes are read.
    """

    connections: Sequence[int] = CONNECTIONS
    seconds: float = 1.0
    repeats: int = 1
    budget: int = 2 * 10**9

    @property
    def measurements(self) -> int:
        """How many there are, without that of the data set."""
        return len(self.connections) * len(SIZES) * self.repeats

    @property
    def share(self) -> int:
        """Bytes that one measurement may read; the data set may read as many as four."""
        return max(1, self.budget // (self.measurements + 4))

    def requests(self, size: int) -> int:
        """How many requests of a size one measurement may begin; a shorter object counts as one."""
        return max(1, self.share // size)

    @property
    def most_requests(self) -> int:
        """At most so many GETs are sent, hedges and retries not included."""
        requests = sum(self.requests(size) for size in SIZES.values())
        return len(self.connections) * self.repeats * requests

    def __str__(self) -> str:
        cost = self.most_requests * GET_DOLLARS
        seconds = (self.measurements + 2) * self.seconds
        return (
            f"reads at most {format_bytes(self.budget)} in at most {self.most_requests:,} GETs "
            f"({cost:.4f} dollars at S3's price), for at most {seconds:.0f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
        nbytes: Bytes that arrived.
        seconds: The time they took.
        cpu_seconds: Processor time that this process spent on them.
        first_byte: How long requests took to their first byte; None where that was not measured.
        requests: Requests that were sent.
        retries: Requests that were made again, or sent because another was late.
        rates: MB/s of all repeats.
    """

    nbytes: int
    seconds: float
    cpu_seconds: float
    first_byte: Distribution | None = None
    requests: int = 0
    retries: int = 0
    rates: tuple[float, ...] = ()

    @property
    def rate(self) -> float:
        """Megabytes (10**6) a second."""
        return self.nbytes / self.seconds / 1e6

    @property
    def cpu_per_gb(self) -> float:
        """Seconds of processor time for each gigabyte (10**9)."""
        return self.cpu_seconds / self.nbytes * 1e9 if self.nbytes else 0.0

    @property
    def core(self) -> float:
        """The share of one core that this process took."""
        return self.cpu_seconds / self.seconds

    def quantile(self, share: float) -> float | None:
        """Seconds to the first byte that this share of the requests did not exceed."""
        return None if self.first_byte is None else self.first_byte.quantile(share)


def median_of(repeats: Sequence[Measured]) -> Measured:
    """The repeat with the median speed, with the speeds of all.

    Examples:
        >>> found = median_of([Measured(nbytes=n, seconds=1, cpu_seconds=0) for n in (9, 5, 7)])
        >>> found.nbytes, len(found.rates)
        (7, 3)
    """
    rates = [measured.rate for measured in repeats]
    middle = repeats[rates.index(median_low(rates))]
    return replace(middle, rates=tuple(rates))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All measurements of one run.

    Attributes:
        objects: The objects that were read.
        cells: The measurements by the number of connections and the name of the request size.
        dataset: The same objects read as records, with the connections at the knee.
        writing: The upload of the test objects; None if none were written.
    """

    objects: Sequence[Item]
    cells: Mapping[tuple[int, str], Measured]
    dataset: Measured = Measured(nbytes=0, seconds=1.0, cpu_seconds=0.0)
    writing: Measured | None = None

    @property
    def connections(self) -> list[int]:
        """The numbers of connections, ascending."""
        return sorted({connections for connections, _ in self.cells})

    @property
    def summary(self) -> str:
        """The line above the table: the objects, and what the numbers are."""
        return (
            f"{plural(len(self.objects), 'object')}, "
            f"{format_bytes(total_bytes(self.objects))}; MB/s by request size"
        )

    @property
    def best(self) -> tuple[int, str]:
        """The number of connections and the name of the request size with the highest rate."""
        return max(self.cells, key=lambda cell: self.cells[cell].rate)

    def rates(self, name: str) -> dict[int, float]:
        """MB/s by the number of connections, for requests of one size."""
        return {number: self.cells[number, name].rate for number in self.connections}

    @property
    def knee(self) -> int:
        """The number of connections that is enough for requests of the best size."""
        return knee(self.rates(self.best[1]))

    @property
    def grows(self) -> bool:
        """Whether more connections than were tried would give more speed."""
        return grows(self.rates(self.best[1]))

    @property
    def chosen(self) -> Measured:
        """The measurement at the knee, for requests of the best size."""
        return self.cells[self.knee, self.best[1]]

    @property
    def read(self) -> str:
        """What the run has read, as the plan announced it."""
        cells = self.cells.values()
        nbytes = sum(cell.nbytes * max(1, len(cell.rates)) for cell in cells)
        requests = sum(cell.requests * max(1, len(cell.rates)) for cell in cells)
        return (
            f"read about {format_bytes(nbytes + self.dataset.nbytes)}, the measurements of "
            f"requests in about {requests:,} GETs"
        )


def knee(rates: Mapping[int, float]) -> int:
    """The fewest connections that give nine tenths of the best rate.

    Examples:
        >>> knee({1: 60, 2: 118, 4: 230, 8: 300, 16: 310})
        8
    """
    best = max(rates.values())
    return min(connections for connections, rate in rates.items() if rate >= 0.9 * best)


def grows(rates: Mapping[int, float]) -> bool:
    """Whether the largest number of connections is the best, by much more than half as many.

    Examples:
        >>> grows({16: 300, 32: 590}), grows({16: 300, 32: 320}), grows({32: 590})
        (True, False, False)
    """
    most = max(rates)
    fewer = [connections for connections in rates if 2 * connections <= most]
    if not fewer or rates[most] < max(rates.values()):
        return False
    return rates[most] >= GROWS * rates[max(fewer)]


METRICS: Final = {
    "p50": "ms to the first byte, median",
    "p90": "ms to the first byte, 90 %",
    "p99": "ms to the first byte, 99 %",
    "mb_s": "MB/s",
    "cpu_s_gb": "processor seconds for each GB",
}
"""What a condition may compare."""

CONDITION: Final = re.compile(r"\s*(\w+)\s*(<=|>=|<|>)\s*([0-9]*\.?[0-9]+)\s*(ms|s|MB/s)?\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A limit that fails a run, such as `p99 > 80ms`."""

    metric: str
    comparison: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Condition:
        """A condition as it is typed.

        Examples:
            >>> Condition.parse("p99 > 0.08s") == Condition.parse("p99>80 ms")
            True

        Raises:
            click.BadParameter: It is none.
        """
        found = CONDITION.fullmatch(text)
        if found is None or found[1] not in METRICS:
            names = ", ".join(METRICS)
            raise click.BadParameter(
                f"{text!r}: write one of {names}, a comparison and a number: 'p99 > 80ms'"
            )
        limit = float(found[3]) * (1000 if found[4] == "s" else 1)
        return cls(metric=found[1], comparison=found[2], limit=limit)

    def failure(self, measured: Measured) -> str | None:
        """The line that says why a run fails; None if it does not.

        Examples:
            >>> slow = Measured(nbytes=10**6, seconds=1.0, cpu_seconds=0.0)
            >>> Condition.parse("mb_s < 50").failure(slow)
            'mb_s is 1, and --fail-if has mb_s < 50 (MB/s)'
        """
        found = self.value(measured)
        if found is None or not COMPARISONS[self.comparison](found, self.limit):
            return None
        return (
            f"{self.metric} is {found:.4g}, and --fail-if has {self.metric} {self.comparison} "
            f"{self.limit:g} ({METRICS[self.metric]})"
        )

    def value(self, measured: Measured) -> float | None:
        """What a measurement has of the metric."""
        if self.metric == "mb_s":
            return measured.rate
        if self.metric == "cpu_s_gb":
            return measured.cpu_per_gb
        seconds = measured.quantile(int(self.metric[1:]) / 100)
        return None if seconds is None else 1000 * seconds
