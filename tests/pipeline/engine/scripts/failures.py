"""Whole pipelines that end in every way, in a process of their own: says what is left of them.

    python failures.py WAYS URL OPTIONS

WAYS are the names of functions below, OPTIONS the storage options as JSON.
"""

import asyncio
import atexit
import contextlib
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Any

RUN_BEGAN = [0.0]
"""When the program had nothing more to do."""


def says_how_long() -> None:
    if RUN_BEGAN[0]:
        print(monotonic() - RUN_BEGAN[0])


atexit.register(says_how_long)  # before the bridge's own: what is registered first comes last

from streamrec import Dataset, TFRecordDataset  # noqa: E402
from streamrec.bridge import run  # noqa: E402
from streamrec.storage import clients  # noqa: E402

clients.IDLE = 0.5  # type: ignore[misc]  # clients that are not used are closed soon, not after five seconds
SECONDS = 20.0
"""What cleaning up may take where the program does not wait for it, on a machine with much else to
do."""

LASTING = ("MainThread", "streamrec-loop", "asyncio_")
"""Threads that the process keeps: its own, the bridge's, and those of the loops' executors."""


def pipeline(function: Callable[[Any], Any] = len) -> Dataset[Any]:
    """Shards through all kinds of stages that run tasks, threads or connections; without an end."""
    url, options = sys.argv[2], json.loads(sys.argv[3])
    records = TFRecordDataset(url, num_parallel_reads=3, storage_options=options)
    batches = records.batch(10).map(function).prefetch(1 << 16)
    return Dataset.zip(batches, records.filter(len).repeat()).batch(4).repeat().prefetch()


def fails(frames: Any) -> int:
    raise LookupError(len(frames))


# What is there, and what is left of it.


async def other_tasks() -> list[str]:
    """Tasks of this loop but for the one that asks."""
    return sorted(str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task())


def files() -> dict[str, str]:
    """What this process has open: files, sockets, pipes."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the directory itself
            found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if not thread.name.startswith(LASTING)]


def left_since(before: dict[str, str]) -> list[list[str]]:
    """Threads and files that were not there before."""
    return [
        threads(),
        sorted(name for number, name in files().items() if before.get(number) != name),
    ]


def says_what_is_left(way: Callable[[], None]) -> Callable[[], None]:
    """Says what is left of sync runs that end in a way, as soon as nothing is, or when time is
    up.
    """

    def main() -> None:
        with pipeline().iterate() as batches:
            next(batches)
        before = (
            files()
        )  # the loop's own, and what libraries keep: what is open when one run was there already
        way()
        until = monotonic() + SECONDS
        while any(found := [run(other_tasks), *left_since(before)]) and monotonic() < until:
            threading.Event().wait(0.01)
        print(json.dumps(found))

    return main


def says_what_is_left_here(way: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """The same of async runs, on their own loop."""

    async def main() -> None:
        async with pipeline().aiterate() as batches:
            await anext(batches)
        before = files()
        await way()
        until = monotonic() + SECONDS
        while any(found := [await other_tasks(), *left_since(before)]) and monotonic() < until:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(0.01)
        print(json.dumps(found))

    return main


# In a `for` loop.


@says_what_is_left
def breaks() -> None:
    for _ in pipeline():
        break


@says_what_is_left
def ends() -> None:
    assert len(list(pipeline().take(5))) == 5


@says_what_is_left
def stage_raises() -> None:
    with contextlib.suppress(LookupError):
        for _ in pipeline(fails):
            pass


@says_what_is_left
def closes() -> None:
    """The shared client keeps connections that may be used again, until it is closed."""
    batches = pipeline().iterate()
    next(batches)
    batches.close()
    assert (run(other_tasks), threads()) == ([], [])  # at once: closing waits


@says_what_is_left
def collected() -> None:
    cycle: list[Any] = [pipeline().iterate()]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()


@says_what_is_left
def interrupts() -> None:
    pressed = threading.Event()

    def interrupt(frames: Any) -> int:
        if not pressed.is_set():  # a second one would cut the cleanup short
            pressed.set()
            os.kill(os.getpid(), signal.SIGINT)
        return len(frames)

    with contextlib.suppress(KeyboardInterrupt):
        for _ in pipeline(interrupt):
            pass


@says_what_is_left
def leaves_a_long_chunk() -> None:
    """Thousands of calls are ahead when the consumer leaves: they are not made."""
    called = threading.Event()

    def slow(number: Any) -> Any:
        called.set()
        threading.Event().wait(0.01)
        return number

    with Dataset.range(10**6).map(slow).iterate():
        called.wait()


def exits_with_progress_and_trace() -> None:
    batches = pipeline().iterate(progress=True, trace=os.devnull)
    next(batches)
    RUN_BEGAN[0] = monotonic()


# In an `async for` loop.


@says_what_is_left_here
async def async_break() -> None:
    async for _ in pipeline():
        break


@says_what_is_left_here
async def async_end() -> None:
    assert len([batch async for batch in pipeline().take(5)]) == 5


@says_what_is_left_here
async def async_close() -> None:
    batches = pipeline().aiterate()
    await anext(batches)
    await batches.aclose()


@says_what_is_left_here
async def async_stage_raises() -> None:
    with contextlib.suppress(LookupError):
        async for _ in pipeline(fails):
            pass


@says_what_is_left_here
async def async_cancel() -> None:
    """The task that awaits the next element is cancelled."""
    started, stop = asyncio.Event(), threading.Event()

    def waits(frames: Any) -> int:
        loop.call_soon_threadsafe(started.set)
        stop.wait(20)
        return len(frames)

    async def consume(batches: AsyncIterator[Any]) -> None:
        async for _ in batches:
            pass

    loop = asyncio.get_running_loop()
    consumer = asyncio.create_task(consume(aiter(pipeline(waits))))
    await started.wait()
    consumer.cancel()
    stop.set()  # a call of the user's cannot be broken off
    await asyncio.wait([consumer])
    assert consumer.cancelled()


if __name__ == "__main__":
    for name in sys.argv[1].split():
        way = globals()[name]
        if asyncio.iscoroutinefunction(way):
            asyncio.run(way())
        else:
            way()
