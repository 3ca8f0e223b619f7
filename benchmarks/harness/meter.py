"""What a process measures of itself: seconds, processor seconds, and memory."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Figures = dict[str, float]


class Meter:
    """The wall-clock and processor seconds of a `with` block.

    with Meter() as meter:
        nbytes = read()
    return meter.rates(nbytes)
    """

    def __enter__(self) -> Meter:
        self.restart()
        return self

    def restart(self) -> None:
        """Forgets what came before in the block, such as a pass that does not count."""
        self._began = time.perf_counter()
        self._used = cpu_seconds()

    def __exit__(self, *_: Any) -> None:
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = cpu_seconds() - self._used

    def rates(self, nbytes: int) -> Figures:
        """MB/s, and processor seconds for each GB."""
        return {
            "mb_s": nbytes / self.seconds / 1e6,
            "cpu_s_gb": self.cpu_seconds / nbytes * 1e9,
        }

    def each(self, count: int) -> Figures:
        """Microseconds of each of so many things, and those of the processor."""
        return {"us": self.seconds / count * 1e6, "cpu_us": self.cpu_seconds / count * 1e6}


def cpu_seconds() -> float:
    """Processor seconds of this process, and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_mb() -> float:
    """The greatest resident memory of this process so far, in MB of 10^6 bytes."""
    # `ru_maxrss` begins with the memory of the parent, because the process is a copy of it first.
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


def peak_of_children_mb() -> float:
    """The greatest resident memory of any child that has ended."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e6


def pin(cores: Iterable[int] = (0,)) -> None:
    """Keeps this process on these cores; servers have the last one (`benchmarks.stores`)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def passes(read: Callable[[], int], count: int = 2) -> Figures:
    """A first pass, and so many more, on the first core.

    Args:
        read: One pass; returns how many bytes it read.
        count: The passes after the first one. They are what a long run costs. The first one also
            loads modules and touches memory for the first time, some 0.2 s.

    Returns:
        `mb_s` and `cpu_s_gb`; the same of the first pass as `first_mb_s` and `first_cpu_s_gb`;
        `peak_mb`, and `before_mb`, the memory before the first pass.
    """
    pin()
    before = peak_mb()
    with Meter() as first:
        size = read()
    figures = {f"first_{name}": value for name, value in first.rates(size).items()}
    with Meter() as others:
        size = sum(read() for _ in range(count))
    return {**figures, **others.rates(size), "peak_mb": peak_mb(), "before_mb": before}
