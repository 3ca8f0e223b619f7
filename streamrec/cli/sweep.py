"""What `streamrec bench` measures, and what follows from it: pure, without a store.

A BenchPlan says what is read, and at most how much; a Sweep holds what was measured. The knee is
the fewest connections that give nine tenths of the best speed. A SideBySide holds the same requests
made by several clients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median_low
from typing import Final

import click

from streamrec.cli.options import COMPARISONS
from streamrec.cli.output import format_bytes, plural
from streamrec.cli.reading import total_bytes
from streamrec.cli.sources import Item

CONNECTIONS: Final = (1, 2, 4, 8, 16, 32)
SIZES: Final = {"64 KiB": 1 << 16, "256 KiB": 1 << 18, "1 MiB": 1 << 20, "4 MiB": 1 << 22}
QUANTILES: Final = (0.5, 0.9, 0.99)
GET_DOLLARS: Final = 4e-7
"""What S3 and GCS ask for one GET of their standard class, in November 2026."""

BUSY: Final = 0.9
"""A share of one core from which on the processor may be the limit: Python uses one."""

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
        against: Names of the clients that are compared with.
    """

    connections: Sequence[int] = CONNECTIONS
    seconds: float = 1.0
    repeats: int = 1
    budget: int = 2 * 10**9
    against: Sequence[str] = ()

    @property
    def sides(self) -> int:
        """How many clients are compared, ours included; 0 without a comparison."""
        return 1 + len(self.against) if self.against else 0

    @property
    def passes(self) -> int:
        """How often each size of requests is measured."""
        return (len(self.connections) + self.sides) * self.repeats

    @property
    def measurements(self) -> int:
        """How many there are, without that of the data set."""
        return self.passes * len(SIZES)

    @property
    def dataset_bytes(self) -> int:
        """Bytes that the data set may read."""
        return max(1, self.budget // 7)

    @property
    def least(self) -> int:
        """Bytes of all measurements if each connection makes two requests in each."""
        connections = sum(self.connections) + self.sides * max(self.connections)
        return 2 * connections * sum(SIZES.values()) * self.repeats

    def requests(self, connections: int, size: int) -> int:
        """How many requests of a size one measurement may begin; a shorter object counts as one.

        They are two for each connection, if the budget allows, and a share of what it leaves.
        """
        left = self.budget - self.dataset_bytes
        if self.least > left:
            return max(1, int(2 * connections * left / self.least))
        share = (left - self.least) // self.measurements
        return 2 * connections + share // size

    @property
    def most_requests(self) -> int:
        """At most so many GETs are sent, hedges and retries not included.

        Each connection asks for one byte before its measurement begins.
        """
        numbers = [*self.connections, *[max(self.connections)] * self.sides]
        requests = sum(self.requests(number, size) for number in numbers for size in SIZES.values())
        return (requests + sum(numbers) * len(SIZES)) * self.repeats

    def check(self, largest: int) -> None:
        """Checks that the budget is enough for one request in each measurement.

        Args:
            largest: The size of the largest object in bytes.

        Raises:
            click.UsageError: It is not.
        """
        once = self.passes * sum(min(size, largest) for size in SIZES.values())
        if once > self.budget - self.dataset_bytes:
            raise click.UsageError(
                f"--budget {format_bytes(self.budget)} is not enough for one request in each of "
                f"{self.measurements} measurements: give at least {format_bytes(2 * once)}, or "
                "fewer --connections"
            )

    @property
    def caution(self) -> str | None:
        """What the budget is too small for; None if it is large enough."""
        most = max(self.connections)
        requests = self.requests(most, max(SIZES.values()))
        if requests >= most:
            return None
        enough = format_bytes(-(-7 * self.least // (6 * 10**8)) * 10**8)
        return (
            f"--budget {format_bytes(self.budget)} is {plural(requests, 'request')} for {most} "
            f"connections, so their speed is not measured: --budget {enough.replace(' ', '')} "
            "would be enough, or fewer --connections"
        )

    def __str__(self) -> str:
        cost = self.most_requests * GET_DOLLARS
        seconds = (self.measurements + 2) * self.seconds
        return (
            f"reads about {format_bytes(self.budget)} at most, in {self.most_requests:,} GETs at "
            f"most ({cost:.4f} dollars at S3's price), for about {seconds:.0f} s"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One measurement.

    Attributes:
        nbytes: Bytes that arrived.
        seconds: The time they took.
        cpu_seconds: Processor time that this process spent on them.
        first_byte: How many seconds each request took to its first byte; empty where that was not
            measured.
        whole: How many seconds each took to its last byte.
        requests: Requests that were sent.
        retries: Requests that were made again, or sent because another was late.
        throttled: Answers that asked for fewer requests.
        rates: MB/s of all repeats.
    """

    nbytes: int
    seconds: float
    cpu_seconds: float
    first_byte: Sequence[float] = ()
    whole: Sequence[float] = ()
    requests: int = 0
    retries: int = 0
    throttled: int = 0
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
        return quantile(self.first_byte, share)


def quantile(seconds: Sequence[float], share: float) -> float | None:
    """What this share of the requests did not exceed; None without requests.

    Examples:
        >>> quantile([0.4, 0.1, 0.3, 0.2], 0.5), quantile([0.4, 0.1, 0.3, 0.2], 0.99)
        (0.2, 0.4)
        >>> quantile([], 0.5)
    """
    return sorted(seconds)[max(0, ceil(share * len(seconds)) - 1)] if seconds else None


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
class SideBySide:
    """The same requests, made by several clients in turn.

    Attributes:
        connections: How many requests were made at the same time.
        cells: The measurements by the name of the request size and the label of the client. The
            first client is streamrec.
    """

    connections: int
    cells: Mapping[tuple[str, str], Measured]

    @property
    def clients(self) -> list[str]:
        """The labels of the clients, streamrec first."""
        return list(dict.fromkeys(client for _, client in self.cells))

    def said(self, size: str) -> list[str]:
        """A line for each other client, with requests of one size.

        Examples:
            >>> ours = Measured(nbytes=4 * 10**6, seconds=1.0, cpu_seconds=0.1)
            >>> other = Measured(nbytes=2 * 10**6, seconds=1.0, cpu_seconds=0.1)
            >>> cells = {("1 MiB", "streamrec"): ours, ("1 MiB", "s3fs"): other}
            >>> SideBySide(connections=8, cells=cells).said("1 MiB")
            ['requests of 1 MiB: streamrec has 2.0 times the speed of s3fs, 0.5 of its CPU-s/GB']
        """
        first, *others = self.clients
        ours = self.cells[size, first]
        lines = []
        for client in others:
            other = self.cells[size, client]
            if not (other.nbytes and other.cpu_seconds):
                lines.append(f"requests of {size}: {client} read nothing")
                continue
            lines.append(
                f"requests of {size}: streamrec has {ours.rate / other.rate:.1f} times the speed "
                f"of {client}, {ours.cpu_per_gb / other.cpu_per_gb:.1f} of its CPU-s/GB"
            )
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All measurements of one run.

    Attributes:
        objects: The objects that were read.
        cells: The measurements by the number of connections and the name of the request size.
        dataset: The same objects read as records, with the connections at the knee.
        writing: The upload of the test objects; None if none were written.
        comparison: The same requests by other clients, with the connections at the knee; None if
            no other was named.
    """

    objects: Sequence[Item]
    cells: Mapping[tuple[int, str], Measured]
    dataset: Measured = Measured(nbytes=0, seconds=1.0, cpu_seconds=0.0)
    writing: Measured | None = None
    comparison: SideBySide | None = None

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
    def throttled(self) -> int:
        """Answers that asked for fewer requests, of all measurements that count."""
        return sum(cell.throttled for cell in self.cells.values())

    @property
    def read(self) -> str:
        """What the run has read, as the plan announced it."""
        compared = self.comparison.cells.values() if self.comparison else ()
        cells = [*self.cells.values(), *compared]
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


def advice(sweep: Sweep) -> list[str]:
    """What to set, and what limits the speed as far as the measurements tell."""
    best = sweep.cells[sweep.best]
    most = max(sweep.connections)
    found = f"the knee is at {plural(sweep.knee, 'connection')}"
    if sweep.grows:
        found = (
            f"the knee is at more than {most}: try --connections {most},{2 * most},{4 * most}; "
            "until then"
        )
    lines = [f"{found}: set num_parallel_reads={sweep.knee}"]
    objects = len(sweep.objects)
    if sweep.knee > objects:
        lines.append(
            f"there are {sweep.knee} connections for {plural(objects, 'object')}: a data set "
            "begins with one for each, and opens more while it runs"
        )
    if best.core >= BUSY:
        lines.append(
            f"this process used {best.core:.0%} of a core at the best speed: the processor may be "
            "the limit, not the store"
        )
    if sweep.throttled:
        lines.append(
            f"the store asked {sweep.throttled:,} times for fewer requests: the limit is its own; "
            "fewer connections or larger requests stay below it"
        )
    return lines


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
