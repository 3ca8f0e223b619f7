"""Where the work of stages is done: on the loop, or in a thread."""

import threading
import time
from collections.abc import Iterator

import pytest

from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.offload import HOP_SECONDS, Offloader
from streamrec.pipeline.engine.stage import Offload
from streamrec.pipeline.engine.threads import Threads

NBYTES = 1000


@pytest.fixture
def threads() -> Iterator[Threads]:
    threads = Threads()
    yield threads
    threads.close()


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


async def test_long_work_goes_to_a_thread_and_short_work_does_not(threads: Threads) -> None:
    work, offloader = Work(), Offloader([Offload.NEVER, Offload.LONG], threads)
    for seconds in (0.0, 0.0, 4 * HOP_SECONDS, 4 * HOP_SECONDS, 0.0, 0.0):
        await offloader.through(work.outputs(seconds), NBYTES)
    assert work.here == [False, True, True, False, False, True], "the piece before tells how long one takes"


async def test_long_goes_by_the_bytes(threads: Threads) -> None:
    work, offloader = Work(), Offloader([Offload.LONG], threads)
    await offloader.through(work.outputs(HOP_SECONDS / 4), NBYTES)
    await offloader.through(work.outputs(HOP_SECONDS / 4), 100 * NBYTES)
    assert work.here == [False, False]


async def test_work_of_the_users_always_goes_to_a_thread_and_none_never(threads: Threads) -> None:
    work = Work()
    for offload in (Offload.ALWAYS, Offload.NEVER):
        offloader = Offloader([offload], threads)
        for _ in range(2):
            await offloader.through(work.outputs(0.0), NBYTES)
    assert work.here == [False, False, True, True]


async def test_what_is_left_at_the_end_may_be_long(threads: Threads) -> None:
    work, offloader = Work(), Offloader([Offload.LONG], threads)
    await offloader.through(work.outputs(0.0), NBYTES)
    await offloader.through(work.outputs(0.0))
    assert work.here == [False, False]
