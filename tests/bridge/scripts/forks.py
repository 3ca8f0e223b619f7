"""Fork, spawn and forkserver: a child starts afresh, the parent goes on undisturbed."""

import asyncio
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Callable

from support import Producer, counting, endless, leftovers, run_chosen_function, say, thread_in_next

from streamrec.bridge import Put, SyncIterator, loop, run
from streamrec.errors import ClosedError

COUNT = 2_000
numbers = counting(COUNT)
KEPT_ALIVE: list[SyncIterator[str]] = []

# Python 3.12 and newer warn of a fork in a process with threads; forks beside threads are the
# subject here.
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)


async def answer() -> int:
    return 42


def in_child(function: Callable[[], object]) -> None:
    """Run `function` in a forked child that leaves through the interpreter's own exit; wait for
    it.
    """
    pid = os.fork()
    if pid == 0:
        function()
        sys.exit(7)
    say(f"child left with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")


def use_the_bridge_again() -> None:
    say(f"anew {sum(SyncIterator(numbers, 10)) == sum(range(COUNT))} {run(answer)}")


def while_iterating() -> None:
    iterator = SyncIterator(numbers, 10)

    def child() -> None:
        try:
            next(iterator)
        except ClosedError as error:
            say("after a fork" in str(error))
        iterator.close()
        use_the_bridge_again()
        say(leftovers())

    taken = []
    for number in iterator:
        taken.append(number)
        if number == COUNT // 2:
            in_child(child)
    say(taken == list(range(COUNT)))
    say(leftovers())


def while_work_waits() -> None:
    """The child must not run, close or destroy the parent's suspended work, nor cancel it by
    garbage.
    """
    ready = threading.Event()
    iterator = SyncIterator(endless("", ready.set), 1)
    ready.wait()

    def child() -> None:
        nonlocal iterator
        del iterator
        use_the_bridge_again()

    in_child(child)
    say(next(iterator))
    iterator.close()
    say(leftovers())


def with_locks_held() -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with loop._process.lock:
            held.set()
            release.wait()

    threading.Thread(target=hold).start()
    held.wait()
    in_child(use_the_bridge_again)
    release.set()
    use_the_bridge_again()


def while_a_thread_waits() -> None:
    iterator = SyncIterator(endless(""), 1)
    next(iterator)
    thread = thread_in_next(iterator)
    in_child(use_the_bridge_again)
    iterator.close()
    thread.join()
    say(leftovers())


def from_the_loop() -> None:
    async def produce(put: Put[int]) -> None:
        pid = os.fork()
        if pid == 0:
            use_the_bridge_again()
            os._exit(7)
        await put(pid, 1)

    for pid in SyncIterator(produce, 1):
        say(f"child left with {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
    say(leftovers())


def grandchild() -> None:
    use_the_bridge_again()

    def child() -> None:
        use_the_bridge_again()
        in_child(use_the_bridge_again)

    in_child(child)


def mp_target(words: list[str]) -> None:
    use_the_bridge_again()
    say(words[0])


def mp_pending(words: list[str]) -> None:
    pending: Producer = endless("")
    KEPT_ALIVE.append(SyncIterator(pending, 1))
    say(next(KEPT_ALIVE[0]))


def mp_threads(words: list[str]) -> None:
    """The target returns while a thread that is no daemon still waits."""
    iterator = SyncIterator(endless(""), 1)
    next(iterator)
    thread_in_next(iterator)


def processes(method: str, target: str) -> None:
    context = multiprocessing.get_context(method)
    iterator = SyncIterator(numbers, 10)
    taken = [next(iterator)]
    process = context.Process(target=globals()[target], args=(["word"],))  # type: ignore[attr-defined]
    process.start()
    process.join()
    say(f"child left with {process.exitcode}")
    say([*taken, *iterator] == list(range(COUNT)))
    say(leftovers())


async def pooled(number: int) -> int:
    await asyncio.sleep(0)
    return number * number


def square(number: int) -> int:
    return run(pooled, number)


def pool(method: str) -> None:
    with multiprocessing.get_context(method).Pool(2) as workers:
        say(workers.map(square, range(4)))
        workers.close()
        workers.join()


if __name__ == "__main__":
    run_chosen_function(globals())
