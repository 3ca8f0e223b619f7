"""Requests for the same bytes that run against each other, and when the next one is sent: `storage.openings`."""

import asyncio
from collections.abc import Callable

import pytest

from streamrec.storage import RetryPolicy
from streamrec.storage.backend import Body, ObjectInfo
from streamrec.storage.reading.stream import ResumingStream
from streamrec.storage.resilience.faults import Cause, TransientError
from streamrec.storage.resilience.hedged_requests import HedgedRequests, MovingDeadline
from streamrec.storage.resilience.hedging import FIRST_BYTE_FLOOR, Hedging
from streamrec.storage.resilience.traffic import Traffic
from tests.storage.reading.scattered import Scattered

DATA = bytes(1000)


class Opened:
    """A body that says whether it was closed."""

    info = ObjectInfo("x", 0, None)
    keeps_time = True
    stop = None
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
    requests, go, bodies = HedgedRequests(), asyncio.Event(), [Opened(), Opened(), Opened()]
    for body in bodies[:2]:
        requests.send(after(go, body))
    never = asyncio.Event()
    requests.send(after(never, bodies[2]))
    go.set()
    answer = await requests.answer
    requests.taken = True
    assert answer is bodies[0]
    await requests.settle()
    assert requests.settled
    assert [body.closed for body in bodies] == [False, True, False]
    assert asyncio.all_tasks() == before


async def test_an_answer_that_nobody_took_is_closed() -> None:
    requests, go, body = HedgedRequests(), asyncio.Event(), Opened()
    requests.send(after(go, body))
    go.set()
    await asyncio.wait([requests.answer])
    await requests.settle()
    assert [body.closed] == [True]


async def test_a_fault_waits_for_the_other_request() -> None:
    requests, first, second = HedgedRequests(), asyncio.Event(), asyncio.Event()
    requests.send(after(first, FAULT))
    requests.send(after(second, Opened()))
    first.set()
    await asyncio.sleep(0)
    second.set()
    assert await requests.answer
    requests.taken = True
    assert requests.hedged
    assert requests.settled


@pytest.mark.parametrize("error", [FAULT, PermissionError("final")])
async def test_an_error_counts_when_it_is_the_last_or_final(error: Exception) -> None:
    before = asyncio.all_tasks()
    requests, go, never = HedgedRequests(), asyncio.Event(), asyncio.Event()
    requests.send(after(go, error))
    if error is not FAULT:
        requests.send(after(never, Opened()))
    go.set()
    with pytest.raises(type(error)):
        await requests.answer
    await requests.settle()
    assert asyncio.all_tasks() == before


class FakeLoop:
    """The clock of a Watch, by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, call: Callable[[], None]) -> object:
        self.timers.append((due, call))
        return object()

    def step(self, late: float = 0.0) -> float:
        due, call = self.timers.pop(0)
        self.now = due + late
        call()
        return due


def test_a_watch_looks_at_doubled_times_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    limits = iter([1.5, 1.5, 0.3, 0.3])
    MovingDeadline(lambda: next(limits), 0.05, lambda: bool(calls.append(loop.now))).begin()
    seen = [loop.step() for _ in range(4)]
    assert seen == pytest.approx([0.05, 0.1, 0.2, 0.3])
    assert calls == pytest.approx([0.3])
    assert not loop.timers


def test_a_watch_begins_anew_for_who_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def sent() -> bool:
        calls.append(loop.now)
        return len(calls) < 3

    MovingDeadline(lambda: 0.3, 0.2, sent).begin()
    while loop.timers:
        loop.step()
    assert calls == pytest.approx([0.3, 0.6, 0.9])


def test_time_in_which_the_loop_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    MovingDeadline(lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now))).begin()
    loop.step(late=10.0)
    assert calls == [10.5]
    MovingDeadline(lambda: 1.0, 0.5, lambda: bool(calls.append(loop.now))).begin()
    loop.step(late=10.0)
    assert calls == [10.5]
    loop.step()
    assert calls == pytest.approx([10.5, 21.5])


def test_one_timer_serves_many_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set anew when it is due, for the wait that is under way by then; where there is none, not at all."""
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    watch = MovingDeadline(lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now)))
    for loop.now in (0.0, 0.1, 0.2, 0.3):
        watch.begin()
        assert len(loop.timers) == 1
        if loop.now < 0.3:
            watch.end()
    assert [loop.step(), loop.step()] == pytest.approx([0.5, 0.8])
    assert calls == pytest.approx([0.8])
    loop.now = 1.0
    watch.begin()
    watch.end()
    loop.step()
    assert not loop.timers
    assert calls == pytest.approx([0.8])


def test_a_wait_that_began_while_the_loop_was_late_has_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    watch = MovingDeadline(lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now)))
    watch.begin()
    watch.end()
    loop.now = 3.0
    watch.begin()
    loop.step(late=2.6)
    assert [loop.step(), calls] == [pytest.approx(3.5), [pytest.approx(3.5)]]


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
    stop = None

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
        hedging.requested()
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
