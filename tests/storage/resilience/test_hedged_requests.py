"""Requests for the same bytes that run against each other: `storage.request`."""

import asyncio

import pytest

from streamrec.errors import PermissionDeniedError, StorageError
from streamrec.storage import RetryPolicy
from streamrec.storage.backend import Body, ObjectInfo
from streamrec.storage.faults import Cause, TransientError
from streamrec.storage.request import Race
from streamrec.storage.stream import ResumingStream
from streamrec.storage.traffic import FIRST_BYTE_FLOOR, Hedging, Traffic
from tests.storage.reading.scattered import Scattered

DATA = bytes(1000)


class Opened:
    """A body that says whether it was closed."""

    info = ObjectInfo("x", 0, None)
    keeps_time = True
    splits = False

    def __init__(self) -> None:
        self.closed = False

    async def readinto(self, buffer: memoryview) -> int:
        return 0

    async def aclose(self) -> None:
        self.closed = True


async def after(event: asyncio.Event, outcome: Opened | Exception) -> Opened:
    await event.wait()
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


FAULT = TransientError(Cause.SERVER, "a 500")


async def test_the_first_answer_counts_and_the_other_is_closed() -> None:
    before = asyncio.all_tasks()
    requests, go, bodies = Race(), asyncio.Event(), [Opened(), Opened(), Opened()]
    for body in bodies[:2]:
        requests.send(after(go, body))
    never = asyncio.Event()
    requests.send(after(never, bodies[2]))
    go.set()
    answer = await requests.answer
    requests.taken = True
    assert answer is bodies[0]
    await requests.settle()
    assert [body.closed for body in bodies] == [False, True, False]
    assert asyncio.all_tasks() == before


async def test_an_answer_that_nobody_took_is_closed() -> None:
    requests, go, body = Race(), asyncio.Event(), Opened()
    requests.send(after(go, body))
    go.set()
    await asyncio.wait([requests.answer])
    await requests.settle()
    assert [body.closed] == [True]


async def test_a_fault_waits_for_the_other_request() -> None:
    requests, first, second, body = Race(), asyncio.Event(), asyncio.Event(), Opened()
    requests.send(after(first, FAULT))
    requests.send(after(second, body))
    first.set()
    await asyncio.sleep(0)
    second.set()
    assert await requests.answer is body
    await requests.settle()
    assert body.closed


@pytest.mark.parametrize("error", [FAULT, PermissionError("final")])
async def test_an_error_counts_when_it_is_the_last_or_final(error: Exception) -> None:
    before = asyncio.all_tasks()
    requests, go, never = Race(), asyncio.Event(), asyncio.Event()
    requests.send(after(go, error))
    if error is not FAULT:
        requests.send(after(never, Opened()))
    go.set()
    with pytest.raises(type(error)):
        await requests.answer
    await requests.settle()
    assert asyncio.all_tasks() == before


class Rivals(Scattered):
    """The first request is answered when a second one has come, which takes until `cleaned` to be cancelled."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rivalled, self.settling, self.cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """The answer to the first."""
        if not self.log:
            body = await super().open(path, start, end, version)
            await self.rivalled.wait()
            return body
        self.rivalled.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            self.settling.set()
            await self.cleaned.wait()


async def test_an_answer_that_was_taken_is_closed_if_its_opening_is_cancelled() -> None:
    """The loser's cancellation takes its time: who is cancelled meanwhile left the winner's connection open."""
    backend = Rivals(DATA)
    traffic = Traffic(hedging=Hedging(1.0, first_byte_guess=FIRST_BYTE_FLOOR, stall_guess=20.0))
    stream = ResumingStream(backend, RetryPolicy(), "memory://x", 0, None, None, traffic)
    opening = asyncio.create_task(stream.open())
    await backend.settling.wait()
    opening.cancel()
    await asyncio.sleep(0)
    backend.cleaned.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert [asked.closed for asked in backend.log] == [True]


class Outcomes(Scattered):
    """The first request fails when a second one has come, or never ends; the second fails, or is answered."""

    first: Exception | None = None
    second: Exception | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rivalled, self.failed = asyncio.Event(), asyncio.Event()

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Either."""
        body = await super().open(path, start, end, version)
        try:
            await (self._first() if len(self.log) == 1 else self._second())
        except BaseException:
            await body.aclose()
            raise
        return body

    async def _first(self) -> None:
        await self.rivalled.wait()
        self.failed.set()
        if self.first is None:
            await asyncio.get_running_loop().create_future()
        else:
            raise self.first

    async def _second(self) -> None:
        self.rivalled.set()
        await self.failed.wait()
        if self.second is not None:
            raise self.second


def impatient(backend: Outcomes) -> ResumingStream:
    traffic = Traffic(hedging=Hedging(1.0, first_byte_guess=FIRST_BYTE_FLOOR, stall_guess=20.0))
    return ResumingStream(backend, RetryPolicy(attempts=1), "memory://x", 0, None, None, traffic)


async def test_a_second_request_is_waited_for_when_the_first_failed() -> None:
    backend = Outcomes(DATA)
    backend.first = FAULT
    stream = impatient(backend)
    await stream.open()
    buffer = memoryview(bytearray(len(DATA)))
    assert (await stream.readinto(buffer), bytes(buffer)) == (len(DATA), DATA)
    await stream.aclose()
    counts = stream.tally.counts()
    assert (counts.hedges, counts.hedges_won, sum(counts.retries.values())) == (1, 1, 0)
    assert all(asked.closed for asked in backend.log)


async def test_a_final_error_of_a_second_request_ends_the_wait_for_the_first() -> None:
    before = asyncio.all_tasks()
    backend = Outcomes(DATA)
    backend.second = PermissionDeniedError("no", "memory://x")
    async with asyncio.timeout(15):  # the first request alone would be given up later
        with pytest.raises(PermissionDeniedError):
            await impatient(backend).open()
    assert asyncio.all_tasks() == before
    assert all(asked.closed for asked in backend.log)


async def test_both_requests_may_fail() -> None:
    backend = Outcomes(DATA)
    backend.first = backend.second = FAULT
    with pytest.raises(StorageError, match="a 500"):
        await impatient(backend).open()
    assert len(backend.log) == 2
    assert all(asked.closed for asked in backend.log)


class Refusing(Scattered):
    """Its first body stands still, its next two requests are refused, and all others are answered."""

    remote = True

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """The next answer."""
        body = await super().open(path, start, end, version)
        if len(self.log) == 1:
            return StandingStill(body)
        if len(self.log) <= 3:
            await body.aclose()
            raise TransientError(Cause.SERVER, "a 500")
        return body


class StandingStill:
    """A body that never gives anything."""

    keeps_time = True

    def __init__(self, body: Body) -> None:
        self.info, self.splits = body.info, body.splits
        self._body = body

    async def readinto(self, buffer: memoryview) -> int:
        await asyncio.get_running_loop().create_future()
        return 0

    async def aclose(self) -> None:
        await self._body.aclose()


async def test_a_stalled_body_is_overtaken_though_second_requests_were_refused() -> None:
    """What a refused one came to said for ever that nobody had won: the body stood still until its time limit."""
    backend = Refusing(DATA)
    hedging = Hedging(1.0, first_byte_guess=20.0, stall_guess=0.01, stall_floor=0.01)
    for _ in range(10):
        hedging.earn()
    traffic = Traffic(hedging=hedging)
    stream = ResumingStream(backend, RetryPolicy(stall_timeout=20.0), "memory://x", 0, None, None, traffic)
    await stream.open()
    buffer = memoryview(bytearray(len(DATA)))
    async with asyncio.timeout(15):
        assert await stream.readinto(buffer) == len(DATA)
    counts = stream.tally.counts()
    assert (counts.stalls, counts.hedges_won) == (1, 1)
    assert counts.hedges >= 3
    await stream.aclose()
    assert all(asked.closed for asked in backend.log)
