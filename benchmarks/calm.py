"""Runs of a virtual machine that had its processors for itself.

A hypervisor takes processors away for milliseconds at a time and gives them to other machines.
Linux counts that as "steal". Where two threads or processes take turns, one that is stopped so
keeps the other waiting too, and what is measured then is the neighbours: here, half a core stolen
halved the speed of a loop that one core was enough for.

So a run is measured again when more than `FREE` of a core was stolen meanwhile, whatever it showed,
until as many as are wanted were free of that, or `TRIES` times as many have been made; the calmest
of them count. Without a hypervisor, or without Linux, nothing is ever stolen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FREE = 0.05
TRIES = 2


def calmest(run: Callable[[], T], wanted: int) -> tuple[list[T], dict[str, float]]:
    """The results of the `wanted` calmest of several runs; how many there were, and the cores
    stolen from the worst.
    """
    runs: list[tuple[float, T]] = []
    free = 0
    while free < wanted and len(runs) < TRIES * wanted:
        began, before = time.perf_counter(), stolen_seconds()
        result = run()
        share = (stolen_seconds() - before) / (time.perf_counter() - began)
        runs.append((share, result))
        free += share <= FREE
    best = sorted(runs, key=lambda one: one[0])[:wanted]
    return [result for _, result in best], {
        "runs": len(runs),
        "stolen_cores": round(best[-1][0], 3),
    }


def stolen_seconds() -> float:
    """What other machines had of this one's processors since it started, in steps of 10 ms."""
    counters = Path("/proc/stat")
    if not counters.exists():
        return 0.0
    ticks = counters.read_text().split(maxsplit=9)[8]
    return int(ticks) / os.sysconf("SC_CLK_TCK")
