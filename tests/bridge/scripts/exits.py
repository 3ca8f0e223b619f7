"""The interpreter ends while work is pending."""

import asyncio
import atexit
import gc
import os
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

if sys.argv[1] == "exit_handlers":
    atexit.register(lambda: use_the_bridge_and_iterator())  # before the bridge's own: runs after it

import anyio
from support import (
    counting,
    endless,
    forever,
    run_chosen_function,
    say,
    wait_until_alone,
    wait_until_blocked_in,
)

import streamrec
from streamrec.bridge import Put, SyncIterator, run
from streamrec.errors import ClosedError

KEPT_ALIVE: list[Any] = []


def waiting_producer(how: str) -> None:
    """Leave in one of the ways that there are, an iterator being under way."""
    ready = threading.Event()
    KEPT_ALIVE.append(SyncIterator(endless("", ready.set), 1))
    ready.wait()
    say("leaving")
    leave(how)


def leave(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "exception":
        raise LookupError("nobody catches this")
    if how == "thread":
        thread = threading.Thread(target=sys.exit, args=(5,))
        thread.start()
        thread.join()


def blocked_daemon(how: str) -> None:
    iterator = SyncIterator(endless(""), 1)
    next(iterator)

    def consume() -> None:
        for _ in iterator:
            say("an item out of nowhere")
        say("a cut stream taken for a whole one")

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    run(wait_until_blocked_in, "take", thread)
    say("leaving")
    leave(how)


def blocked_run(how: str) -> None:
    thread = threading.Thread(target=run, args=(forever, "cleaned"), daemon=True)
    thread.start()
    run(wait_until_blocked_in, "wait", thread)
    say("leaving")
    leave(how)


def working_thread() -> None:
    """A thread that is no daemon goes on after the main thread's end, and gets everything."""

    async def numbers(put: Put[int]) -> None:
        await wait_until_blocked_in("_shutdown")  # the interpreter joins its threads
        await counting(1_000)(put)

    iterator = SyncIterator(numbers, 10)
    threading.Thread(target=lambda: say(sum(iterator))).start()
    say("leaving")


def cleanup_that_hangs(how: str) -> None:
    async def produce(put: Put[str]) -> None:
        await put("first", 1)
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                say("deaf")

    KEPT_ALIVE.append(SyncIterator(produce, 1))
    next(KEPT_ALIVE[0])
    say("leaving")
    leave(how)


def failing_cleanup() -> None:
    KEPT_ALIVE.append(SyncIterator(endless("", error=OSError("no upload to abort")), 1))
    next(KEPT_ALIVE[0])
    say("leaving")


def subtasks() -> None:
    """Tasks that the producer started and forgot, and asynchronous generators, end as well."""
    tasks = set()

    async def produce(put: Put[str]) -> None:
        tasks.add(asyncio.create_task(forever("task cleaned")))
        await asyncio.sleep(0)
        await put("first", 1)

    say(*SyncIterator(produce, 1))


def task_started_during_the_exit() -> None:
    """A task that is started while the others are being cancelled takes its first step, and is
    cancelled then.
    """

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            say("child cleaned")

    async def parent() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)

    async def produce(put: Put[int]) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(parent)
            asyncio.get_running_loop().stop()

    try:
        next(SyncIterator(produce, 1))
    except ClosedError:
        say("closed")


def use_the_bridge() -> None:
    async def answer() -> int:
        return 42

    try:
        say(run(answer))
    except ClosedError as error:
        say("exiting" in str(error))


def dropped_writer(path: str) -> None:
    """Nothing that it sent stays, and its user reads why."""
    writer = streamrec.TFRecordWriter(path)
    writer.write(b"a record")
    writer.flush()
    say(len(os.listdir(Path(path).parent)))
    del writer
    run(wait_until_alone)
    say(len(os.listdir(Path(path).parent)))


def something_open(folder: str, case: str, how: str) -> None:
    """Something is open, in a program that shows the warnings which users see."""
    warnings.simplefilter("ignore", ResourceWarning)
    if case == "cached":
        records = streamrec.TFRecordDataset(f"{folder}/x.tfrecord").repeat(
            10_000
        )  # so that no pass is whole
        KEPT_ALIVE.append(iter(records.cache(f"{folder}/cache")))
        next(KEPT_ALIVE[0])
    elif case == "sync_writer":
        KEPT_ALIVE.append(streamrec.TFRecordWriter(f"{folder}/new.tfrecord"))
        KEPT_ALIVE[0].write(bytes(3_000_000))
    else:
        asyncio.run(begin_writer(folder))
    leave(how)


async def begin_writer(folder: str) -> None:
    KEPT_ALIVE.append(await streamrec.ShardWriter(f"{folder}/new.tfrecord").__aenter__())
    await KEPT_ALIVE[0].write(bytes(3_000_000))


def dropped_iterators(folder: str) -> None:
    """They leave no file open."""

    async def main(steps: int) -> None:
        iterator = streamrec.TFRecordDataset(f"{folder}/x.tfrecord").aiterate()
        await anext(iterator)
        for _ in range(steps):
            await asyncio.sleep(0)

    for steps in range(20):
        asyncio.run(main(steps))
        gc.collect()


def exit_handlers() -> None:
    """Exit handlers: one that runs before the bridge's works as ever, those that run after it are
    told.
    """
    KEPT_ALIVE.append(SyncIterator(endless(""), 1))
    next(KEPT_ALIVE[0])
    atexit.register(use_the_bridge)
    say("leaving")


def use_the_bridge_and_iterator() -> None:
    use_the_bridge()
    KEPT_ALIVE[0].close()
    try:
        next(KEPT_ALIVE[0])
    except ClosedError:
        say("closed")


if __name__ == "__main__":
    run_chosen_function(globals())
