"""What a consumer does and sees, in a process of its own."""

import asyncio
import errno
import resource
from collections.abc import Callable

from support import (
    counting,
    endless,
    leftovers,
    run_chosen_function,
    say,
    wait_until_alone,
    wait_until_blocked_in,
)

from streamrec.bridge import Put, SyncIterator, loop, run
from streamrec.errors import ClosedError, LoopThreadError

TASKS: list[asyncio.Task[None]] = []
numbers = counting(5_000)


def leaves_by_exception() -> None:
    try:
        for item in SyncIterator(endless(""), 1):
            raise LookupError(item)
    except LookupError as error:
        run(wait_until_alone)  # the cleanup has begun by itself; nobody waits for it
        say(error)
    say(leftovers())


def producer_never_waits() -> None:
    """One that puts without end is cancelled although it never has to wait for the consumer."""

    async def produce(put: Put[int]) -> None:
        try:
            while True:
                await put(0, 0)
        finally:
            say("cleaned")

    with SyncIterator(produce, 1) as iterator:
        say(next(iterator))
    say(leftovers())


def refusal(call: Callable[[], object]) -> str:
    try:
        call()
    except LoopThreadError as error:
        return "refused" if "asyncio.to_thread" in str(error) else str(error)
    return "not refused"


def loop_thread() -> None:
    iterator = SyncIterator(endless(""), 1)

    async def on_the_loop() -> list[str]:
        calls: list[Callable[[], object]] = [
            lambda: run(on_the_loop),
            lambda: SyncIterator(numbers, 1),
            lambda: next(iterator),
            iterator.close,
        ]
        return [refusal(call) for call in calls]

    async def beside_the_loop() -> str:
        return await asyncio.to_thread(next, iterator)

    say(run(on_the_loop) == ["refused"] * 4)
    say(run(beside_the_loop))
    iterator.close()


def stopped_loop() -> None:
    """Somebody stops the loop: those who wait are told, and the next use works."""

    async def stop() -> None:
        await wait_until_blocked_in("take")
        asyncio.get_running_loop().stop()

    async def stop_at_once() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    iterator = SyncIterator(endless(""), 1)
    next(iterator)
    stopper = loop.loop_thread()
    stopper.post(lambda: TASKS.append(stopper.loop.create_task(stop())))
    for call in (lambda: next(iterator), lambda: run(stop_at_once)):
        try:
            call()
        except ClosedError as error:
            say("loop.stop()" in str(error))
    stopper._gone.wait()
    say(sum(SyncIterator(numbers, 10)) == sum(range(5_000)))


def no_loop() -> None:
    """Too many open files: the loop cannot be made. The caller hears why, and may try again."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        SyncIterator(numbers, 10)
    except OSError as error:
        say(errno.errorcode[error.errno or 0])
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    say(sum(SyncIterator(numbers, 10)) == sum(range(5_000)))
    say(leftovers())


def exits_on_the_loop() -> None:
    """SystemExit in the producer, or in a task beside it, does not take the loop with it."""

    async def leave() -> None:
        raise SystemExit(3)

    async def produce(put: Put[str]) -> None:
        await put("first", 1)
        try:
            await asyncio.create_task(leave())
        except SystemExit:
            await put("caught", 1)
        raise KeyboardInterrupt

    iterator = SyncIterator(produce, 1)
    say(next(iterator))
    say(next(iterator))
    try:
        next(iterator)
    except KeyboardInterrupt:
        say("delivered")
    say(leftovers())


if __name__ == "__main__":
    run_chosen_function(globals())
