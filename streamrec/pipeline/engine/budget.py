"""The memory budget: the bytes that a run may buffer, and how they are divided.

Rules:
- The consumer's queue takes its share first (`CONSUMER`), and a part is left for memory that is not
  counted (`UNCOUNTED`). The rest goes to the chain's source.
- A source that buffers takes its share of the budget that it gets (`RunContext.take`), and passes
  the rest to its chains. A source that runs several chains at once passes each an equal part
  (`RunContext.part`). So the shares never add up to more than the budget, however deep chains are
  nested.
- A source gets the same budget in all runs with the same options, resumed or not: the number of
  elements in a shuffle's buffer, and so its order, depend on it. If the default is less than 1 GiB
  because of the machine's memory, a shuffle whose order would depend on it is an error
  (`RunContext.follows_memory`).
- A share that is too small for one chunk holds one chunk, or nothing would move.
- The bytes of shard sources and of the consumer's queue are also counted, for all runs of a process
  (`storage/ledger.py`). Shares do not depend on other runs; the ledger only lists them.

| buffer | share of the budget that reaches it | at most |
|---|---|---|
| the queue to the consumer | a quarter | 64 MiB |
| uncounted memory: free memory that is used again, copies in progress | a sixteenth | 64 MiB |
| `prefetch` | a half | its arguments |
| `prefetch(AUTOTUNE)` | a quarter | |
| `map` with several calls: elements in flight, and results | a quarter | |
| `shuffle`: its elements, as many bytes of dead ones, and an arriving chunk | a half | |
| one of several chains (`zip`, `interleave`, ...): elements ahead | a quarter of its part | |
| `cache()` in memory: stored elements, for the whole run | a half | |
| `cache(filename)`: parts of an upload | a half | 40 MiB |
| `from_generator`: elements made ahead | a quarter | 4 MiB |
| `global_shuffle`: windows of blocks, requests ahead | all but two chunks | see below |
| shards: queues, ranges ahead of their turn | all, together | see below |

A chunk of `global_shuffle` has at most 8 MiB, and 24 blocks are requested ahead. A shard queue
holds at most 6 MiB; ranges ahead of their turn are as many as keep the connections busy.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a budget: `1 / divisor` of it, but at most `most` bytes.

    `name` is that of its account in the ledger of the run.
    """

    divisor: int
    most: int | None = None
    name: str = ""

    def of(self, budget: int) -> int:
        """The share's bytes.

        >>> Share(4, most=100).of(1000), Share(4).of(1000)
        (100, 250)
        """
        part = budget // self.divisor
        return part if self.most is None else min(part, self.most)


CONSUMER: Final = Share(4, 64 << 20)
"""The queue between a run and its consumer."""

UNCOUNTED: Final = Share(16, 64 << 20)
"""Memory that is left free.

Blocks keep some memory for reuse, and a copy exists at the same time as its original.
"""

DEFAULT: Final = Share(8, 1 << 30)
"""The default share of the machine's memory, constant from 8 GiB on.

Only shuffles of large records gain by more.
"""


def default_budget() -> int:
    """The default budget of a run: an eighth of the machine's memory, 64 MiB to 1 GiB.

    An eighth, since machines usually run several processes, and a model, its optimizer and batches
    for a device need memory, too. With less than 64 MiB, sixteen shards have less than two blocks
    each. A machine with hundreds of gigabytes runs dozens of loaders.
    """
    memory = machine_memory()
    return 256 << 20 if memory is None else max(64 << 20, DEFAULT.of(memory))


@cache
def machine_memory() -> int | None:
    """The bytes of memory of the machine or the container of this process; None if unknown.

    Looked up once in a process: reading these files takes 0.13 ms, a run of three elements 0.7 ms.
    """
    if not hasattr(os, "sysconf"):
        return None
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *cgroup_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))])


def cgroup_limits(membership: Path, root: Path) -> Iterator[int]:
    """The memory limits of a process's control groups and of all enclosing groups.

    There are none except on Linux.
    """
    for line in text_of(membership).splitlines():
        number, controllers, group = line.split(":", 2)
        if number == "0" and not controllers:
            top = root
            file = "memory.max"
        elif "memory" in controllers.split(","):
            top = root / "memory"
            file = "memory.limit_in_bytes"
        else:
            continue
        inner = top / group.lstrip("/")
        # Within a container, the group's path may be that of the host, where no file is.
        for folder in [inner, *inner.parents]:
            if folder.is_relative_to(top):
                limit = text_of(folder / file).strip()
                if limit.isdecimal():  # "max" means unlimited
                    yield int(limit)


def text_of(path: Path) -> str:
    """A file's text; empty if the file cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
