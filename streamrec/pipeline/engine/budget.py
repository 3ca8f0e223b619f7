"""The memory budget: one number of bytes for all that a run buffers, and how it is divided.

Rules:
- The consumer's queue takes its share first (`CONSUMER`), and a part is left for what is not counted (`UNCOUNTED`).
  What is left then goes to the chain's source.
- A source that buffers takes its share of the budget that it gets (`RunContext.take`), and hands the rest on to the
  chains that it holds. A source that runs several chains at once hands each an equal part (`RunContext.part`). So the
  shares never add up to more than the budget, however deep chains are nested; each owner keeps within its share.
- What reaches a source is the same in every run with the same options, be it resumed or not: how many elements a
  shuffle holds depends on it, and so does its order. Where the default is less than 1 GiB, since the machine has less
  memory than others, a shuffle whose order would depend on it is an error (`Options.follows_memory`).
- A share that is too small for one chunk holds one chunk, or nothing would move.

| what | share of what reaches it | at most |
|---|---|---|
| the queue to the consumer | a quarter | 64 MiB |
| what is not counted: free memory that is used again, what is being copied | a sixteenth | 64 MiB |
| `prefetch` | a half | what it was asked for |
| `prefetch(AUTOTUNE)` | a quarter | |
| `map` of several calls: what they hold, and their results | a quarter | |
| `shuffle`: its elements, and as much of what is dead among them; one more chunk that arrives | a half | |
| one of several chains (`zip`, `interleave`, `choose_from_datasets`): what it is ahead | a quarter of its part | |
| `cache()` in memory: what it keeps, for the whole run | a half | |
| `cache(filename)`: what is on its way into the file | a half | 40 MiB |
| `from_generator`: what was made ahead | a quarter | 4 MiB |
| `global_shuffle`: windows of blocks, requests ahead | all, save for two chunks | 8 MiB a chunk; 24 blocks ahead |
| shards: queues, ranges ahead of their turn | all | 6 MiB a queue; ranges as many as fill the wire |
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["CONSUMER", "DEFAULT", "UNCOUNTED", "Share", "cgroup_limits", "default_budget", "machine_memory"]


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a budget.

    Args:
        divisor: The part is `1 / divisor`; 2 or more.
        most: Bytes that it is at most; None for any number.
    """

    divisor: int
    most: int | None = None

    def of(self, budget: int) -> int:
        """How many bytes that is.

        >>> Share(4, most=100).of(1000), Share(4).of(1000)
        (100, 250)
        """
        part = budget // self.divisor
        return part if self.most is None else min(part, self.most)


CONSUMER: Final = Share(4, 64 << 20)
"""The queue between a run and its consumer."""

UNCOUNTED: Final = Share(16, 64 << 20)
"""What is left free: blocks keep some memory to use it again, and a copy and its original exist at the same time."""


DEFAULT: Final = Share(8, 1 << 30)
"""Of the machine's memory: the same from 8 GiB on. Only shuffle buffers of large records gain by more."""


def default_budget() -> int:
    """The bytes that a run may hold by default: an eighth of the machine's memory, 64 MiB to 1 GiB.

    An eighth, because several processes a machine are usual, and a model, its optimizer and the batches on their way to
    a device are there, too. With less than 64 MiB, sixteen shards have less than two blocks each. A machine with
    hundreds of gigabytes runs dozens of loaders.
    """
    memory = machine_memory()
    return 256 << 20 if memory is None else max(64 << 20, DEFAULT.of(memory))


@cache
def machine_memory() -> int | None:
    """Bytes of memory that this process may use: the machine's, or its container's; None where it is not known.

    Looked up once a process: reading these files takes 0.13 ms, a run of three elements 0.7 ms.
    """
    if not hasattr(os, "sysconf"):
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(membership: Path, root: Path) -> Iterator[int]:
    """The limits of memory of a process's control groups and of all groups around them; none off Linux.

    Args:
        membership: The process's `/proc/self/cgroup`; see cgroups(7).
        root: Where the groups are mounted.
    """
    for line in text_of(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            top, file = root, "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        inner = top / group.lstrip("/")
        for folder in [inner, *inner.parents]:  # within a container the group's own path may be of the host's tree
            if folder.is_relative_to(top):
                limit = text_of(folder / file).strip()
                if limit.isdecimal():  # "max" is no limit
                    yield int(limit)


def text_of(path: Path) -> str:
    """A file's text; empty if the file does not exist or we may not read it."""
    try:
        return path.read_text()
    except OSError:
        return ""
