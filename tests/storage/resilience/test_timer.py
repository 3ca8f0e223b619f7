"""The timer that all waits of a store share, and what it checks in a wait."""

import asyncio
import math
from collections.abc import Callable

import pytest

from streamrec.storage.timer import SharedTimer, Wait, WaitClock, WaitRules


class FakeLoop:
    """An event loop's clock and its timers, which the test steps through."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, call: Callable[[], None]) -> None:
        self.timers.append((due, call))

    def step(self, late: float = 0.0) -> None:
        due, call = self.timers.pop(0)
        self.now = due + late
        call()


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
    loop = FakeLoop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    return loop


def test_timer_checks_a_wait_again_when_it_says_so(loop: FakeLoop) -> None:
    seen: list[tuple[float, float]] = []

    def check(now: float, blocked: float) -> float | None:
        seen.append((now, blocked))
        return now + 0.2 if len(seen) < 3 else None

    SharedTimer().add(check, 0.5)
    loop.step()
    loop.step(late=10.0)
    loop.step()
    assert seen == [pytest.approx(each) for each in ((0.5, 0.0), (10.7, 10.0), (10.9, 0.0))]
    assert not loop.timers


class Waiting:
    """A wait that has begun at 0 s, and what it has called."""

    def __init__(
        self, *, limit: float = 100.0, late_after: float = 2.0, again: bool = True
    ) -> None:
        self.late_after = late_after
        self.late: list[int] = []
        self.silent: list[float] = []
        self._again = again
        self.wait = Wait(
            SharedTimer(),
            WaitRules(
                limit=limit,
                floor=0.5,
                late_after=lambda: self.late_after,
                on_late=self._on_late,
                on_silent=self.silent.append,
                silent_after=10.0,
            ),
        )
        self.wait._clock = WaitClock(0.0)  # as if it had begun, without a loop

    def _on_late(self, times: int, mark: int) -> bool:
        self.late.append(times)
        return self._again


def test_wait_is_looked_at_before_its_limit_has_passed_because_the_limit_may_fall() -> None:
    waiting = Waiting()
    assert waiting.wait.check(0.5, 0.0) == 1.0
    waiting.late_after = 0.8
    assert waiting.wait.check(1.0, 0.0) == 1.5, "it was late, and may be so again after the floor"
    assert waiting.late == [0]


def test_a_late_wait_is_told_how_often_it_was_late_before() -> None:
    waiting = Waiting()
    for now in (2.0, 3.0, 4.0, 6.0):
        waiting.wait.check(now, 0.0)
    assert waiting.late == [0, 1, 2]


def test_wait_that_cannot_be_late_again_is_only_checked_for_silence_and_its_limit() -> None:
    waiting = Waiting(again=False)
    assert waiting.wait.check(2.0, 0.0) == 10.0
    assert waiting.wait.check(10.0, 0.0) == 100.0
    assert waiting.silent == [10.0]


def test_time_in_which_the_loop_was_blocked_does_not_count() -> None:
    waiting = Waiting(limit=0.9, late_after=math.inf)
    assert waiting.wait.check(10.5, 10.0) == pytest.approx(10.9)
    assert waiting.wait.check(30.9, 20.0) is None, "its limit has passed"
    assert waiting.late == waiting.silent == []


def patient(limit: float = 1000.0) -> Wait:
    """A wait of the running loop that is neither late nor silent."""
    rules = WaitRules(
        limit=limit,
        floor=1.0,
        late_after=lambda: math.inf,
        on_late=lambda times, mark: True,
        on_silent=lambda seconds: None,
        silent_after=math.inf,
    )
    return Wait(SharedTimer(), rules)


async def test_wait_ends_at_its_limit_with_a_timeout_error() -> None:
    with pytest.raises(TimeoutError), patient(limit=0.01):
        await asyncio.Event().wait()


async def test_an_interrupted_wait_can_begin_again() -> None:
    wait = patient()
    for _ in range(2):
        with pytest.raises(TimeoutError), wait:
            wait.interrupt()
            await asyncio.Event().wait()
        with wait:
            await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_arrives_together_with_an_interruption_is_delivered() -> None:
    wait = patient()
    arrival = asyncio.get_running_loop().create_future()
    arrival.get_loop().call_soon(arrival.set_result, "bytes")
    arrival.get_loop().call_soon(wait.interrupt)
    with wait:
        assert await arrival == "bytes"
    await asyncio.sleep(0)
    with wait:
        await asyncio.sleep(0)


async def test_a_cancelled_task_is_cancelled_although_its_wait_was_interrupted() -> None:
    wait = patient()
    both = asyncio.Event()

    async def waits() -> None:
        with wait:
            both.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(waits())
    await both.wait()
    wait.interrupt()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def test_an_error_is_raised_although_the_wait_was_interrupted() -> None:
    wait = patient()

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionResetError from None

    with pytest.raises(ConnectionResetError), wait:
        wait.interrupt()
        await fails()
    await asyncio.sleep(0)  # the task is not cancelled any more
