"""Ctrl-C, at every place where it can come."""

import asyncio
import gc
import logging
import os
import random
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

from support import (
    MAIN,
    counting,
    endless,
    leftovers,
    run_chosen_function,
    say,
    wait_until_alone,
    wait_until_blocked_in,
)

import streamrec
from streamrec.bridge import Put, SyncIterator, run
from streamrec.bridge.loop import loop_thread
from streamrec.errors import ClosedError

THOROUGH = (
    os.environ.get("STREAMREC_THOROUGH") == "1"
)  # tests.effort has it too, and imports pytest


def blocked_next() -> None:
    iterator = SyncIterator(endless(), 1)
    try:
        for item in iterator:
            say(item)
    except KeyboardInterrupt:
        say("interrupted")
    try:
        next(iterator)
    except ClosedError:
        say("closed")
    say(leftovers())


def not_caught() -> None:
    for item in SyncIterator(endless(), 1):
        say(item)


def blocked_run() -> None:
    async def work(word: str) -> None:
        try:
            await wait_until_blocked_in("wait")
            say(word)
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            say("cleaned")

    try:
        run(work, "ready")
    except KeyboardInterrupt:
        say("interrupted")
    say(leftovers())


def loop_body() -> None:
    try:
        with SyncIterator(endless("wait_for_input"), 1) as iterator:
            for item in iterator:
                say(item)
                wait_for_input()
    except KeyboardInterrupt:
        say("interrupted")
    say(leftovers())


def wait_for_input() -> None:
    """Waits for input, and looks for signals meanwhile: one that comes just before a read begins is
    seen behind it.
    """
    while not select.select([sys.stdin], [], [], 0.05)[0]:
        pass


def loop_is_made() -> None:
    pair = socket.socketpair

    def interrupted() -> tuple[socket.socket, socket.socket]:
        socket.socketpair = pair
        signal.raise_signal(signal.SIGINT)
        return pair()

    socket.socketpair = interrupted  # an event loop makes one for itself
    try:
        consume(0)
    except KeyboardInterrupt:
        say("interrupted")
    gc.collect()
    say(consume(0))
    say(leftovers())


async def ignores_the_first_interrupt(put: Put[str]) -> None:
    try:
        await wait_until_blocked_in("take")
        say("ready")
        await asyncio.Event().wait()
    finally:
        try:
            await wait_until_blocked_in("wait")
            say("cleaning")
            await asyncio.Event().wait()
        finally:
            say("cut short")


def second_interrupt() -> None:
    try:
        next(SyncIterator(ignores_the_first_interrupt, 1))
    except KeyboardInterrupt as interrupt:
        say(f"interrupted {getattr(interrupt, '__notes__', [])}")
    say(leftovers())


async def ignores_every_interrupt(put: Put[str]) -> None:
    await wait_until_blocked_in("take")
    say("ready")
    for heard in range(100):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await wait_until_blocked_in("wait")
            say(f"heard {heard}")


def abandoned_work() -> None:
    try:
        next(SyncIterator(ignores_every_interrupt, 1))
    except KeyboardInterrupt as interrupt:
        say(*getattr(interrupt, "__notes__", ["no note"]))
    os._exit(0)


def failing_cleanup() -> None:
    try:
        for item in SyncIterator(endless(error=OSError("no upload to abort")), 1):
            say(item)
    except KeyboardInterrupt as interrupt:
        say(*getattr(interrupt, "__notes__", ["no note"]))
    say(leftovers())


def consume(turn: int) -> int:
    """Consume until the interrupt; in turn with small and large queues, so that both sides get to
    sleep.
    """
    last = -1
    with SyncIterator(counting(10_000), 1 + 50 * (turn % 3)) as iterator:
        for number in iterator:
            if number != last + 1:
                raise AssertionError(f"{number} after {last}")
            last = number
    return last


def interrupts_at_random_moments() -> None:
    """Interrupts at random moments, hundreds of them: nothing may hang, get lost or stay."""
    seconds = random.Random(7)
    interrupted = 0
    for turn in range(300 if THOROUGH else 100):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds.uniform(0.0001, 0.01))
            last = consume(turn)
            signal.setitimer(signal.ITIMER_REAL, 0)
            if last != 9_999:
                raise AssertionError(f"ended at {last}")
        except KeyboardInterrupt:
            interrupted += 1
        run(wait_until_alone)
    say("often" if interrupted > turn / 3 else f"only {interrupted}")
    say(leftovers())


def interrupts_at_every_call() -> None:
    """Interrupts at every place where CPython may see one, from the making of the loop thread to
    its end.
    """
    say(places(consume_few, lambda: loop_thread().retire("a turn of the test has ended")))
    say(leftovers())


def interrupts_of_a_writer(path: str) -> None:
    """The same with a writer: the shard is whole, or nothing of it is there."""
    logging.getLogger("streamrec").disabled = True  # it tells of writers that were dropped
    folder, whole = Path(path).parent, [b"%d" % number for number in range(3)]
    reader, begin = (
        streamrec.TFRecordDataset,
        streamrec.TFRecordWriter,
    )  # imported before the first interrupt

    def write() -> None:
        with begin(path) as shard:
            for record in whole:
                shard.write(record)

    def check() -> None:
        run(wait_until_alone)
        found = os.listdir(folder)
        if found not in ([], [Path(path).name]) or (found and list(reader(path)) != whole):
            raise AssertionError(found)
        for name in found:
            os.unlink(folder / name)

    say(places(write, check))
    loop_thread().retire("the threads of its pool end with it")
    run(wait_until_alone)
    say(leftovers())


def places(work: Callable[[], None], after: Callable[[], None]) -> str:
    """Interrupts work at each place in turn, and calls `after` then; "often" where there are many.

    At all of them in CI; else at a quarter, and in development mode, which is slow, at an eighth.
    """
    sys.unraisablehook = lambda report: (
        None if report.exc_type is KeyboardInterrupt else sys.__unraisablehook__(report)
    )
    step = 1
    while interrupted_at(step, work):
        run(wait_until_alone)
        gc.collect()
        after()
        step += 8 if sys.flags.dev_mode else 1 if THOROUGH else 4
    return "often" if step > 50 else f"only {step}"


def consume_few() -> None:
    with SyncIterator(counting(3), 2) as iterator:
        if list(iterator) != [0, 1, 2]:
            raise AssertionError


def interrupted_at(step: int, work: Callable[[], None]) -> bool:
    """Interrupt work where this thread enters a Python function, or comes back from one in C, for
    the step-th time.

    These are the places where CPython looks for signals (save for the ends of loops). In a
    finalizer it reports the interrupt and goes on.

    Returns:
        Whether work had not ended before.
    """
    left = step

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sys.setprofile(count)
        work()
        sys.setprofile(None)
    return left <= 0


if __name__ == "__main__":
    assert MAIN.ident is not None
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    run_chosen_function(globals())
