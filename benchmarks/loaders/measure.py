"""What one loader does, in a process of its own."""

from __future__ import annotations

import multiprocessing
import tempfile
import time

from benchmarks.harness.meter import cpu_seconds
from benchmarks.loaders.data import KINDS
from benchmarks.loaders.sides import SIDES

__all__ = ["measured"]


def measured(kind: str, side: str, url: str) -> dict[str, float]:
    """Reads everything once."""
    multiprocessing.set_start_method(
        "fork", force=True
    )  # workers are children of this process, whose time counts
    first, counts = 0.0, []
    with tempfile.TemporaryDirectory() as folder:
        begun = SIDES[side](kind, url, folder)
        before, began = cpu_seconds(), time.perf_counter()
        for batch in begun():
            first = first or time.perf_counter() - began
            counts.append(len(batch["tokens" if kind == "tokens" else "image"]))
        seconds, count = time.perf_counter() - began, sum(counts)
    assert count == KINDS[kind][0], f"{side} gave {count} samples"
    return {
        "samples_s": count / seconds,
        "first_s": first,
        "steady_s": (count - counts[0]) / (seconds - first),
        "cpu_ms": 1e3 * (cpu_seconds() - before) / count,
    }
