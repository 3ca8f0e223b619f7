"""The threads of a run: what comes of calls, when they are left, when work leaves the loop."""

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import pytest

from streamrec import Dataset
from streamrec.errors import ClosedError
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.stage import Offload
from streamrec.pipeline.engine.threads import HOP_SECONDS, Offloader, Threads

setting: ContextVar[str] = ContextVar("setting", default="none")


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


def workers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "streamrec-worker"]


def test_exit_within_map_ends_the_program() -> None:
    for calls in (None, 2):
        with pytest.raises(SystemExit):
            list(Dataset.range(5).map(sys.exit, calls).batch(2))


async def test_work_has_a_copy_of_the_context(threads: Threads) -> None:
    def work() -> str:
        found = setting.get()
        setting.set("the thread's own")
        return found

    setting.set("the caller's")
    assert [await threads.run(work), setting.get()] == ["the caller's", "the caller's"]


async def test_a_thread_that_is_idle_is_used_again(threads: Threads) -> None:
    assert len({await threads.run(threading.get_ident) for _ in range(10)}) == 1
    meet = threading.Barrier(3, timeout=10)
    await asyncio.gather(*(threads.run(meet.wait) for _ in range(3)))
    assert len(workers()) == 3, "as many as there are calls at once"


async def test_cancelled_in_the_turn_in_which_the_call_ends(threads: Threads) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(20):
        task = asyncio.create_task(threads.run(lambda: loop.call_soon_threadsafe(task.cancel)))  # noqa: B023
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await threads.run(lambda: 1) == 1


async def test_a_call_that_is_left_ends_its_thread_when_the_run_is_closed() -> None:
    threads = Threads()
    begun = threading.Event()
    go = threading.Event()
    task = asyncio.create_task(threads.run(lambda: (begun.set(), go.wait(10))))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):  # the second one breaks what the first one waits for
        task.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    threads.close()
    [worker] = workers()
    go.set()
    await asyncio.to_thread(worker.join, 10)
    assert not workers()


@pytest.mark.parametrize("parallel", [None, 2])
def test_closing_does_not_wait_for_a_function_that_never_returns(
    parallel: int | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begun, go = threading.Event(), threading.Event()

    def stuck(number: int) -> int:
        begun.set()
        go.wait(60)
        return number

    monkeypatch.setattr("streamrec.pipeline.engine.threads.LEAVE_SECONDS", 0.05)
    elements = Dataset.range(5).map(stuck, parallel).iterate()

    def take() -> None:
        with suppress(ClosedError):
            list(elements)

    taker = threading.Thread(target=take)
    taker.start()
    begun.wait(60)
    elements.close()
    assert "stuck (line" in caplog.text
    assert "still runs after 0.05 s" in caplog.text
    go.set()
    for thread in (taker, *workers()):
        thread.join(60)
    assert not workers()


NBYTES = 1000


class Work:
    """Outputs that take a while to work out; notes the threads in which that was done."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def outputs(self, seconds: float) -> Iterator[Chunk]:
        self.threads.append(threading.get_ident())
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        yield from ()

    @property
    def here(self) -> list[bool]:
        """Whether it was done in the loop's thread, piece by piece."""
        return [thread == threading.get_ident() for thread in self.threads]


LONG_SECONDS, SHORT_SECONDS = 4 * HOP_SECONDS, HOP_SECONDS / 4


@pytest.mark.parametrize(
    ("offload", "pieces", "here"),
    [
        (
            Offload.LONG,
            [(0.0,), (0.0,), (LONG_SECONDS,), (LONG_SECONDS,), (0.0,), (0.0,)],
            [0, 1, 1, 0, 0, 1],
        ),
        (
            Offload.LONG,
            [(SHORT_SECONDS,), (SHORT_SECONDS, 100 * NBYTES)],
            [0, 0],
        ),  # it goes by the bytes
        (Offload.LONG, [(0.0,), (0.0, None)], [0, 0]),  # what is left at the end may be long
        (Offload.ALWAYS, [(0.0,), (0.0,)], [0, 0]),
    ],
    ids=["before", "bytes", "end", "always"],
)
async def test_long_work_goes_to_a_thread_and_short_work_does_not(
    threads: Threads, offload: Offload, pieces: list[Any], here: list[bool]
) -> None:
    """The piece before tells how long one takes."""
    work, offloader = Work(), Offloader(offload, threads)
    for seconds, *nbytes in pieces:
        await offloader.through(work.outputs(seconds), *(nbytes or [NBYTES]))
    assert work.here == here


def test_a_run_makes_threads_when_a_stage_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamrec.pipeline.engine.session.Threads", None)
    assert len(list(Dataset.range(9).batch(3))) == 3
    with pytest.raises(TypeError, match="not callable"):
        list(Dataset.range(9).map(str).batch(3))
