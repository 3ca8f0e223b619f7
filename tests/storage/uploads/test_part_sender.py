"""How many parts of an upload are in progress, and what their errors and cancellations leave."""

import asyncio

import pytest

from streamrec.errors import PermissionDeniedError
from streamrec.storage import RetryPolicy
from streamrec.storage.backend import ContentDigest, PartSink, Pieces
from streamrec.storage.part_cutter import UploadPart
from streamrec.storage.part_sender import LARGE_BYTES, PartSender, slots_for
from streamrec.storage.retry import ObjectRequests
from streamrec.storage.traffic import Traffic

PATH = "memory://parts/x"


class HeldSink(PartSink):
    """Parts wait for `let_go`; those of the indexes `refused` fail then."""

    def __init__(self, refused: tuple[int, ...] = (), parallel: int = 100) -> None:
        self.parallel = parallel
        self.let_go = asyncio.Event()
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._refused = refused

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        self.begun.append(index)
        try:
            await self.let_go.wait()
        finally:
            self.ended.append(index)
        if index in self._refused:
            raise PermissionDeniedError(f"part {index} is refused", PATH)


def sender_to(sink: PartSink, parallel: int) -> PartSender:
    return PartSender(sink, ObjectRequests(PATH, RetryPolicy(), Traffic()), parallel)


def part(index: int) -> UploadPart:
    return UploadPart(index=index, start=0, end=0, pieces=(), whole=None)


async def start(sender: PartSender, index: int, part_bytes: int = 1) -> None:
    sender.start(part(index), await sender.reserve(part_bytes))


async def run_all_ready_tasks() -> None:
    """Lets all tasks run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_large_part_takes_several_slots() -> None:
    sizes = (1, LARGE_BYTES, LARGE_BYTES + 1, 3 * LARGE_BYTES, 100 * LARGE_BYTES)
    assert [slots_for(size, 4) for size in sizes] == [1, 1, 2, 3, 4]


@pytest.mark.parametrize("of_sink", [False, True])
async def test_a_part_waits_for_a_slot(of_sink: bool) -> None:
    sink = HeldSink(parallel=2 if of_sink else 100)
    sender = sender_to(sink, 100 if of_sink else 2)
    await start(sender, 0)
    await start(sender, 1)
    third = asyncio.create_task(start(sender, 2))
    await run_all_ready_tasks()
    assert sink.begun == [0, 1]
    assert not third.done()
    sink.let_go.set()
    await third
    await sender.wait()
    assert sink.ended == [0, 1, 2]


async def test_a_large_part_waits_until_it_is_alone() -> None:
    sink = HeldSink()
    sender = sender_to(sink, 2)
    await start(sender, 0)
    second = asyncio.create_task(start(sender, 1, 2 * LARGE_BYTES))
    await run_all_ready_tasks()
    assert sink.begun == [0]
    sink.let_go.set()
    await second
    await sender.wait()


async def test_a_cancelled_wait_keeps_no_slot() -> None:
    sink = HeldSink()
    sender = sender_to(sink, 3)
    await start(sender, 0)
    waiting = asyncio.create_task(sender.reserve(3 * LARGE_BYTES))
    await run_all_ready_tasks()  # it holds two of three slots now
    waiting.cancel()
    await asyncio.wait([waiting])
    sink.let_go.set()
    async with asyncio.timeout(30):
        assert await sender.reserve(3 * LARGE_BYTES) == 3


async def test_the_first_error_stays_and_later_parts_are_still_sent() -> None:
    sink = HeldSink(refused=(0, 1))
    sink.let_go.set()
    sender = sender_to(sink, 1)
    for index in range(3):
        await start(sender, index)
    await sender.wait()
    assert sink.ended == [0, 1, 2]
    assert "part 0 is refused" in str(sender.error)


async def test_cancelling_waits_for_the_ends_of_all_parts() -> None:
    sink = HeldSink()
    sender = sender_to(sink, 3)
    for index in range(3):
        await start(sender, index)
    await run_all_ready_tasks()
    await sender.cancel()
    assert sorted(sink.ended) == [0, 1, 2]
    assert sender.error is None
