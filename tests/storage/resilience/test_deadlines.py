"""What happens when a wait takes too long, by one timer for all waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from streamrec.storage import ObjectInfo, RetryPolicy, Tally
from streamrec.storage.request import HedgedRequest
from streamrec.storage.traffic import Hedging, SharedTimer, Traffic
from tests.storage.reading.scattered import Scattered


@dataclass
class Timer:
    """A handle of the loop below."""

    loop: FakeLoop
    entry: tuple[float, Callable[[], None]]

    def cancel(self) -> None:
        self.loop.timers.remove(self.entry)


class FakeLoop:
    """The clock of a timer, by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, call: Callable[[], None]) -> object:
        self.timers.append((due, call))
        return Timer(self, (due, call))

    def step(self, late: float = 0.0) -> float:
        due, call = self.timers.pop(0)
        self.now = due + late
        call()
        return due


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    loop = FakeLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


def test_a_wait_is_looked_at_again_when_it_says_so(loop: FakeLoop) -> None:
    seen: list[tuple[float, float]] = []

    def look(now: float, blocked: float) -> float | None:
        seen.append((now, blocked))
        return now + 0.2 if len(seen) < 3 else None

    SharedTimer().add(look, 0.5)
    loop.step()
    loop.step(late=10.0)
    loop.step()
    assert seen == [pytest.approx(each) for each in ((0.5, 0.0), (10.7, 10.0), (10.9, 0.0))]
    assert not loop.timers


def test_one_timer_serves_many_waits(loop: FakeLoop) -> None:
    """It is set again when it is due, for the wait that is under way by then; where there is none, not at all."""
    timer, calls = SharedTimer(), list[float]()

    def look(now: float, blocked: float) -> float | None:
        return calls.append(now)

    for loop.now in (0.0, 0.1, 0.2, 0.3):
        timer.add(look, loop.now + 0.5)
        assert len(loop.timers) == 1
        if loop.now < 0.3:
            timer.remove(look)
    assert [loop.step(), loop.step()] == pytest.approx([0.5, 0.8])
    assert calls == pytest.approx([0.8])
    timer.add(look, 1.5)
    timer.remove(look)
    loop.step()
    assert not loop.timers
    assert calls == pytest.approx([0.8])


def test_one_timer_is_set_for_the_first_that_is_due(loop: FakeLoop) -> None:
    timer, calls = SharedTimer(), list[tuple[str, float]]()

    def wait(name: str) -> Callable[[float, float], None]:
        return lambda now, blocked: calls.append((name, now))

    over = wait("over")
    for look, due in ((wait("slow"), 20.0), (wait("fast"), 0.5), (over, 0.4)):
        timer.add(look, due)
        assert len(loop.timers) == 1
    timer.remove(over)
    while loop.timers:
        loop.step()
    assert calls == [("fast", 0.5), ("slow", 20.0)]


def test_a_look_may_end_another_wait(loop: FakeLoop) -> None:
    timer, calls = SharedTimer(), list[str]()

    def first(now: float, blocked: float) -> None:
        calls.append("first")
        timer.remove(second)

    def second(now: float, blocked: float) -> None:
        calls.append("second")

    timer.add(first, 0.5)
    timer.add(second, 0.5)
    while loop.timers:
        loop.step()
    assert calls == ["first"]


def request_of(hedging: Hedging, limit: float) -> HedgedRequest:
    info = ObjectInfo("memory://x", 0, None)
    request = HedgedRequest(Scattered(b""), RetryPolicy(), Traffic(hedging=hedging), Tally(), info, 0, None)
    request._limit = limit
    return request


def test_a_wait_is_looked_at_at_doubled_times_until_it_is_late(loop: FakeLoop) -> None:
    hedging = Hedging(0.0, first_byte_guess=0.3, stall_guess=1.0, first_byte_floor=0.05)
    request, seen = request_of(hedging, limit=20.0), [0.05]
    while (again := request._look(seen[-1], 0.0)) is not None:
        seen.append(again)
    assert seen == pytest.approx([0.05, 0.1, 0.2, 0.3, 20.0])


def test_time_in_which_the_loop_was_blocked_does_not_count(loop: FakeLoop) -> None:
    hedging = Hedging(0.0, first_byte_guess=20.0, stall_guess=1.0, first_byte_floor=0.5)
    request = request_of(hedging, limit=0.9)
    assert request._look(10.5, 10.0) == pytest.approx(10.9)
    assert request._look(30.9, 20.0) is None
