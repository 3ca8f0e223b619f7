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
  (`HeldBytes`). Shares do not depend on other runs.

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

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Final
from weakref import WeakValueDictionary


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a budget: `1 / divisor` of it, but at most `most` bytes."""

    divisor: int
    most: int | None = None

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


class HeldBytes:
    """The ledger of what one run holds ahead of its consumer: who wants to read asks here first.

    A run holds at most its budget, and at most as much as is free, where all runs of the process
    together have twice the largest budget: the first may fill its own, and each further one takes
    at most half of what the others leave. A 64th of its budget it has in any case.

    No read waits endlessly: while the consumer waits, and nothing is in its queue, what it waits
    for is read even where it does not fit (`admit`). Such reads follow each other, so that one
    record at most is too much.

    Args:
        budget: Bytes that the run may hold.
        queued: Gives how many bytes wait for the consumer.

    Attributes:
        parts: What else holds bytes, each with how many in `held`: shards' queues, and ranges ahead
            of their turn.
        is_wanted: Whether the consumer waits. Its thread sets it.

    Examples:
        >>> held = HeldBytes(1000, queued=lambda: 600)
        >>> held.fits(400), held.fits(401)
        (True, False)
    """

    _runs: ClassVar[WeakValueDictionary[int, HeldBytes]] = WeakValueDictionary()
    _total: ClassVar[int] = 0
    _largest: ClassVar[int] = 0
    _count_at: ClassVar[float] = 0.0

    def __init__(self, budget: int, queued: Callable[[], int] = int) -> None:
        self.parts: list[Any] = []
        self.is_wanted = False
        self._budget = budget
        self.queued = queued
        self._admitted: dict[object, int] = {}
        self._waiting: dict[object, asyncio.Future[None]] = {}
        self._exceeding: object = None
        self._counted = 0
        self._runs[id(self)] = self
        HeldBytes._largest = max(HeldBytes._largest, budget)

    @property
    def nbytes(self) -> int:
        """How many it holds, or is about to."""
        held: int = sum(part.held for part in self.parts)
        return self.queued() + sum(self._admitted.values()) + held

    def fits(self, nbytes: int) -> bool:
        """Whether the run may hold this many more.

        The bytes of all runs are counted again after twenty times the time that it takes, so that
        thousands of runs cost a twentieth of a core at most.
        """
        own = self.nbytes + nbytes
        if own > self._budget or own <= self._budget // 64:
            return own <= self._budget
        now = perf_counter()
        if now >= HeldBytes._count_at:
            runs = [run for reference in self._runs.valuerefs() if (run := reference()) is not None]
            for run in runs:
                run._counted = run.nbytes
            HeldBytes._total = sum(run._counted for run in runs)
            HeldBytes._largest = max(run._budget for run in runs)
            HeldBytes._count_at = now + 20 * (perf_counter() - now)
        fits = HeldBytes._total - self._counted + 2 * own <= 2 * HeldBytes._largest
        if fits:
            HeldBytes._total += nbytes
            self._counted += nbytes
        return fits

    async def admit(self, holder: object, nbytes: int, is_next: Callable[[], bool]) -> None:
        """Waits until `holder` may read this many bytes.

        They replace those that it was admitted for; `arrived` says that these are there. `is_next`
        tells whether the consumer waits for them, as far as `holder` knows.
        """
        more = nbytes - self._admitted.get(holder, 0)
        if self._waiting or not self.fits(more):
            await self._wait(holder, more, is_next)
        self._admitted[holder] = nbytes

    async def _wait(self, holder: object, more: int, is_next: Callable[[], bool]) -> None:
        has_turn = not self._waiting  # first come, first served
        try:
            while True:
                waiter = self._waiting[holder] = asyncio.get_running_loop().create_future()
                # Looked at after `_waiting` has the waiter, so that `notify` in the consumer's
                # thread finds it.
                if has_turn and self.fits(more):
                    return
                if self._exceeding is None and self.is_wanted and not self.queued() and is_next():
                    self._exceeding = holder
                if self._exceeding is holder:
                    return
                await waiter
                has_turn = True
        finally:
            del self._waiting[holder]

    def arrived(self, holder: object) -> None:
        """Ends the admission of `holder`.

        The bytes are there and count where they are now, or they will not come.
        """
        self._admitted.pop(holder, None)
        if self._exceeding is holder:
            self._exceeding = None
        self.notify()

    def notify(self) -> None:
        """Those that wait look again whether they may go on; from any thread."""
        if self._waiting:
            for waiter in list(self._waiting.values()):
                waiter.get_loop().call_soon_threadsafe(answer, waiter)


def answer(waiter: asyncio.Future[None]) -> None:
    """What is waited for is there; the task that waited may have been cancelled."""
    if not waiter.done():
        waiter.set_result(None)


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
