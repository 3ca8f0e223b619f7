"""What is called when a wait takes too long, by one timer for all waits: `storage.resilience.deadlines`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from streamrec.storage.hedging import MovingDeadline, SharedTimer


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


def test_a_deadline_looks_at_doubled_times_until_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    limits = iter([1.5, 1.5, 0.3, 0.3])
    MovingDeadline(SharedTimer(), lambda: next(limits), 0.05, lambda: bool(calls.append(loop.now))).begin()
    seen = [loop.step() for _ in range(4)]
    assert seen == pytest.approx([0.05, 0.1, 0.2, 0.3])
    assert calls == pytest.approx([0.3])
    assert not loop.timers


def test_a_deadline_begins_anew_for_who_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)

    def sent() -> bool:
        calls.append(loop.now)
        return len(calls) < 3

    MovingDeadline(SharedTimer(), lambda: 0.3, 0.2, sent).begin()
    while loop.timers:
        loop.step()
    assert calls == pytest.approx([0.3, 0.6, 0.9])


def test_time_in_which_the_loop_stood_still_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    MovingDeadline(SharedTimer(), lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now))).begin()
    loop.step(late=10.0)
    assert calls == [10.5]
    MovingDeadline(SharedTimer(), lambda: 1.0, 0.5, lambda: bool(calls.append(loop.now))).begin()
    loop.step(late=10.0)
    assert calls == [10.5]
    loop.step()
    assert calls == pytest.approx([10.5, 21.5])


def test_one_timer_serves_many_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set anew when it is due, for the wait that is under way by then; where there is none, not at all."""
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    deadline = MovingDeadline(SharedTimer(), lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now)))
    for loop.now in (0.0, 0.1, 0.2, 0.3):
        deadline.begin()
        assert len(loop.timers) == 1
        if loop.now < 0.3:
            deadline.end()
    assert [loop.step(), loop.step()] == pytest.approx([0.5, 0.8])
    assert calls == pytest.approx([0.8])
    loop.now = 1.0
    deadline.begin()
    deadline.end()
    loop.step()
    assert not loop.timers
    assert calls == pytest.approx([0.8])


def test_a_wait_that_began_while_the_loop_was_late_has_all_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), []
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    deadline = MovingDeadline(SharedTimer(), lambda: 0.5, 0.5, lambda: bool(calls.append(loop.now)))
    deadline.begin()
    deadline.end()
    loop.now = 3.0
    deadline.begin()
    loop.step(late=2.6)
    assert [loop.step(), calls] == [pytest.approx(3.5), [pytest.approx(3.5)]]


def test_one_timer_serves_many_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is set for the first that is due, and looks at no other."""
    loop, calls = FakeLoop(), list[tuple[str, float]]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    timer = SharedTimer()

    def deadline(name: str, limit: float) -> MovingDeadline:
        return MovingDeadline(timer, lambda: limit, limit, lambda: bool(calls.append((name, loop.now))))

    slow, fast, over = deadline("slow", 20.0), deadline("fast", 0.5), deadline("over", 0.4)
    for each in (slow, fast, over):
        each.begin()
        assert len(loop.timers) == 1
    over.end()
    while loop.timers:
        loop.step()
    assert calls == [("fast", 0.5), ("slow", 20.0)]


def test_a_call_may_end_another_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, calls = FakeLoop(), list[str]()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    timer = SharedTimer()

    def ends_the_other() -> bool:
        calls.append("first")
        second.end()
        return False

    first = MovingDeadline(timer, lambda: 0.5, 0.5, ends_the_other)
    second = MovingDeadline(timer, lambda: 0.5, 0.5, lambda: bool(calls.append("second")))
    first.begin()
    second.begin()
    while loop.timers:
        loop.step()
    assert calls == ["first"]
