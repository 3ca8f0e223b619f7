"""Runs of a virtual machine that had its processors for itself.

A hypervisor takes processors away for milliseconds at a time and gives them to other machines.
Linux counts that as "steal". Where two threads or processes take turns, one that is stopped so
keeps the other waiting too, and the measurement then shows the neighbours: half a stolen core once
halved the speed of a loop that one core was enough for.

So a run is measured again where more than `FREE` of a core was stolen, whatever the run showed.
Without a hypervisor, or without Linux, nothing is ever stolen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")

FREE = 0.05
TRIES = 2


@dataclass(frozen=True)
class Calm(Generic[T]):
    """The calmest of several runs.

    Attributes:
        results: Their results, in the order in which they were measured.
        runs: How many runs there were, with those that do not count.
        stolen_cores: What was stolen from the worst run that counts.
    """

    results: list[T]
    runs: int
    stolen_cores: float

    @property
    def figures(self) -> dict[str, float]:
        """As a row of the data has them."""
        return {"runs": self.runs, "stolen_cores": round(self.stolen_cores, 3)}


def calmest(
    run: Callable[[int], T],
    wanted: int,
    stolen: Callable[[], float] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Calm[T]:
    """Runs until `wanted` runs were calm, or `TRIES` times as many were made; the calmest count.

    Args:
        run: One run; it is told how many runs came before it.
        wanted: How many results are needed.
        stolen: Seconds stolen so far; `stolen_seconds` by default.
        clock: Seconds.
    """
    stolen = stolen or stolen_seconds
    shares: list[float] = []
    results: list[T] = []
    while sum(share <= FREE for share in shares) < wanted and len(shares) < TRIES * wanted:
        began, before = clock(), stolen()
        results.append(run(len(shares)))
        shares.append((stolen() - before) / (clock() - began))
    kept = sorted(sorted(range(len(shares)), key=shares.__getitem__)[:wanted])
    worst = max(shares[number] for number in kept)
    return Calm([results[number] for number in kept], len(shares), worst)


def stolen_seconds() -> float:
    """What other machines had of this one's processors since it started, in steps of 10 ms."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    ticks = counters.read_text().split(maxsplit=9)[8]
    return int(ticks) / os.sysconf("SC_CLK_TCK")
