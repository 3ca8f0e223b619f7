"""Calls that take turns: their order, cancelled callers, errors, and the end."""

import asyncio

import pytest

from streamrec.errors import ClosedError
from streamrec.shards.turns import Turns


class Calls:
    """Calls that note when they begin and end; one waits until `let_go` is set."""

    def __init__(self) -> None:
        self.turns = Turns("s3://bucket/shard")
        self.log: list[str] = []
        self.let_go = asyncio.Event()

    async def short(self, name: str) -> None:
        self.log.append(name)

    async def failing(self, name: str) -> None:
        self.log.append(name)
        raise ValueError(name)

    async def long(self, name: str) -> None:
        self.log.append(f"{name} begins")
        await self.let_go.wait()
        self.log.append(f"{name} ends")


@pytest.fixture
async def calls() -> Calls:
    return Calls()


async def run_all_ready_tasks() -> None:
    """Lets all tasks run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_run_one_after_another_in_their_order(calls: Calls) -> None:
    first = asyncio.create_task(calls.turns.run(calls.long, "a"))
    others = [asyncio.create_task(calls.turns.run(calls.short, name)) for name in "bcd"]
    await run_all_ready_tasks()
    assert calls.log == ["a begins"]
    assert calls.turns.are_taken
    calls.let_go.set()
    await asyncio.gather(first, *others)
    assert calls.log == ["a begins", "a ends", "b", "c", "d"]
    assert not calls.turns.are_taken


async def test_a_caller_that_is_cancelled_before_its_turn_cancels_its_call(calls: Calls) -> None:
    first = asyncio.create_task(calls.turns.run(calls.long, "a"))
    await run_all_ready_tasks()
    second = asyncio.create_task(calls.turns.run(calls.short, "b"))
    await run_all_ready_tasks()
    second.cancel()
    await asyncio.wait([second])
    calls.let_go.set()
    await first
    assert calls.log == ["a begins", "a ends"]


async def test_a_call_that_has_begun_ends_without_its_caller(calls: Calls) -> None:
    first = asyncio.create_task(calls.turns.run(calls.long, "a"))
    await run_all_ready_tasks()
    first.cancel()
    await asyncio.wait([first])
    assert calls.turns.are_taken
    second = asyncio.create_task(calls.turns.run(calls.short, "b"))
    await run_all_ready_tasks()
    assert calls.log == ["a begins"]
    calls.let_go.set()
    await second
    assert calls.log == ["a begins", "a ends", "b"]


async def test_the_next_call_raises_the_error_of_a_call_without_a_caller(calls: Calls) -> None:
    async def fails_late() -> None:
        await calls.let_go.wait()
        raise ValueError("late")

    first = asyncio.create_task(calls.turns.run(fails_late))
    await run_all_ready_tasks()
    first.cancel()
    await asyncio.wait([first])
    calls.let_go.set()
    with pytest.raises(ValueError, match="late"):
        await calls.turns.run(calls.short, "b")
    assert calls.log == []
    await calls.turns.run(calls.short, "c")
    assert calls.log == ["c"]


async def test_an_error_is_that_of_its_call_alone(calls: Calls) -> None:
    with pytest.raises(ValueError, match="a"):
        await calls.turns.run(calls.failing, "a")
    await calls.turns.run(calls.short, "b")
    assert calls.log == ["a", "b"]


async def test_a_check_comes_in_turn_and_its_error_ends_the_call(calls: Calls) -> None:
    first = asyncio.create_task(calls.turns.run(calls.long, "a"))
    await run_all_ready_tasks()

    def check() -> None:
        calls.log.append("check")
        raise ClosedError("closed meanwhile")

    second = asyncio.create_task(calls.turns.run(calls.short, "b", check=check))
    await run_all_ready_tasks()
    assert calls.log == ["a begins"]
    calls.let_go.set()
    await first
    with pytest.raises(ClosedError, match="closed meanwhile"):
        await second
    assert calls.log == ["a begins", "a ends", "check"]


async def test_stopping_cancels_the_call_and_its_caller_is_told_why(calls: Calls) -> None:
    first = asyncio.create_task(calls.turns.run(calls.long, "a"))
    await run_all_ready_tasks()
    await calls.turns.stop()
    with pytest.raises(ClosedError, match="s3://bucket/shard: this writer was closed"):
        await first
    assert calls.log == ["a begins"]
    await calls.turns.stop()
