"""The bridge inside a trio program."""

import anyio
import anyio.lowlevel
import trio
from support import counting, endless, leftovers, run_chosen_function, say

from streamrec.bridge import Put, SyncIterator, run

numbers = counting(1_000)


def blocking() -> None:
    """Sync iteration in a trio task blocks the trio loop, and works."""

    async def main() -> None:
        say(sum(SyncIterator(numbers, 10)))

    trio.run(main)
    say(leftovers())


def cancelled() -> None:
    """A trio timeout lets go of the thread; the `with` block then cancels the producer and waits
    for it.
    """

    async def main() -> None:
        with SyncIterator(endless(""), 1) as iterator:
            say(await trio.to_thread.run_sync(next, iterator, None))
            with trio.move_on_after(0.01):
                await trio.to_thread.run_sync(next, iterator, None, abandon_on_cancel=True)
            say("timeout")
        say("left")

    trio.run(main)


def interrupted() -> None:
    async def main() -> None:
        with SyncIterator(endless(), 1) as iterator:
            for item in iterator:
                say(item)

    try:
        trio.run(main)
    except KeyboardInterrupt:
        say("interrupted")
    say(leftovers())


def interrupted_in_a_thread() -> None:
    async def main() -> None:
        with SyncIterator(endless(""), 1) as iterator:
            next(iterator)  # the producer runs: there is something to clean up
            say("ready")
            await trio.to_thread.run_sync(list, iterator, abandon_on_cancel=True)

    try:
        trio.run(main)
    except KeyboardInterrupt:
        say("interrupted")


def anyio_inside() -> None:
    """A caller under anyio on trio carries a variable that says so; anyio on our loop must not
    believe it.
    """

    async def produce(put: Put[str]) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(put, "first", 1)
            await anyio.lowlevel.checkpoint()

    async def work() -> str:
        await anyio.lowlevel.checkpoint()
        return await anyio.to_thread.run_sync(str.upper, "done")

    async def main() -> None:
        say(*SyncIterator(produce, 1))
        say(run(work))

    anyio.run(main, backend="trio")


if __name__ == "__main__":
    run_chosen_function(globals())
