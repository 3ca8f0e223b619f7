"""What the scripts share."""

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter

from streamrec.bridge import Put, SyncIterator, run
from streamrec.errors import ClosedError

MAIN = threading.main_thread()
SAID_LINES: set[str] = set()
Producer = Callable[[Put[str]], Awaitable[None]]

# asyncio's debug mode reports slow callbacks; on a busy machine these say nothing about the bridge.
logging.getLogger("asyncio").addFilter(
    lambda record: not record.getMessage().startswith("Executing ")
)


def say(line: object) -> None:
    """Tell the test how far this process is, in one write."""
    os.write(1, f"{line}\n".encode())
    SAID_LINES.add(str(line))


def run_chosen_function(rows: Mapping[str, object]) -> None:
    """Run the function that the command line names, with the rest of the command line."""
    row = rows[sys.argv[1]]
    assert callable(row)
    row(*sys.argv[2:])


async def count_other_tasks() -> int:
    """Number of tasks on this loop besides the one that asks."""
    return len(asyncio.all_tasks()) - 1


async def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what no event tells: the state of another thread, the end of all other tasks."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0)


async def wait_until_alone() -> None:
    """Wait until no other task runs on this loop."""
    await wait_until(lambda: len(asyncio.all_tasks()) == 1)


async def wait_until_blocked_in(function: str, thread: threading.Thread = MAIN) -> None:
    """Wait until a thread is blocked in `function`: a signal does not end a call that is only about
    to block.
    """
    place, since = ("", 0), perf_counter()
    while place[0] != function or perf_counter() - since < 4 * sys.getswitchinterval():
        await asyncio.sleep(0)
        frame = sys._current_frames().get(thread.ident or 0)
        found = (frame.f_code.co_name, frame.f_lasti) if frame else ("", 0)
        place, since = (place, since) if found == place else (found, perf_counter())


def thread_in_next(iterator: SyncIterator[str]) -> threading.Thread:
    """A thread that is blocked in the next(); it says whether the error that it gets there tells of
    the exit.
    """

    def consume() -> None:
        try:
            next(iterator)
        except ClosedError as error:
            say("exiting" in str(error))

    thread = threading.Thread(target=consume)
    thread.start()
    run(wait_until_blocked_in, "take", thread)
    return thread


def leftovers() -> str:
    """What is left besides the main thread and the loop thread: "nothing", if all is well."""
    threads = sorted({t.name for t in threading.enumerate()} - {MAIN.name, "streamrec-loop"})
    loops = sum(t.name == "streamrec-loop" for t in threading.enumerate())
    tasks = run(count_other_tasks)
    return "nothing" if (threads, loops, tasks) == ([], 1, 0) else f"{threads} {loops} {tasks}"


def counting(count: int) -> Callable[[Put[int]], Awaitable[None]]:
    """A producer of the numbers below `count`."""

    async def produce(put: Put[int]) -> None:
        for number in range(count):
            await put(number, 1)

    return produce


def endless(
    ready: str = "take", then: Callable[[], object] | None = None, error: Exception | None = None
) -> Producer:
    """A producer of one item that then waits without end; its cleanup takes a while and says when
    it is done.

    Args:
        ready: Function in which the main thread must be, after it has said "first", before this one
            says "ready"; "" neither waits nor says it.
        then: Called before the wait.
        error: What the cleanup fails with at its end.
    """

    async def produce(put: Put[str]) -> None:
        try:
            await put("first", 1)
            if ready:
                await wait_until(lambda: "first" in SAID_LINES)
                await wait_until_blocked_in(ready)
                say("ready")
            if then is not None:
                then()
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            say("cleaned")
            if error is not None:
                raise error

    return produce


async def forever(word: str) -> None:
    """Waits without end; its cleanup takes a turn of the loop, and says a word."""
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        say(word)
