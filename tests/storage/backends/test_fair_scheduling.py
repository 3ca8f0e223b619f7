"""Turns of the event loop: one at a time in each, first come first served, and nobody is forgotten."""

import asyncio
from collections.abc import Callable

import pytest

from streamrec.storage.backends.local.backend import FairScheduler


def turn_of_the_loop() -> Callable[[], int]:
    """Counts the loop's turns from now on."""
    loop, count = asyncio.get_running_loop(), 0

    def tick() -> None:
        nonlocal count
        count += 1
        loop.call_soon(tick)

    tick()
    return lambda: count


async def test_one_in_each_turn_and_in_line() -> None:
    turns, now = FairScheduler(), turn_of_the_loop()
    taken: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await turns.take()
            taken.append((now(), number))

    await asyncio.gather(*map(work, range(5)))
    assert len({turn for turn, _ in taken}) == 15
    numbers = [number for _, number in taken]
    assert numbers[0] == 0, "it came before the others had begun"
    assert all(sorted(numbers[at : at + 5]) == [*range(5)] for at in range(1, 7))


async def test_alone_there_is_no_wait_for_the_first() -> None:
    turns, now = FairScheduler(), turn_of_the_loop()
    before = now()
    await turns.take()
    assert now() == before
    await turns.take()
    assert now() > before


@pytest.mark.parametrize("turns_before", range(4))
async def test_a_place_that_is_given_up_holds_nobody_up(turns_before: int) -> None:
    """Before its turn, and when the turn has just been given to it."""
    turns = FairScheduler()
    await turns.take()
    waiting = [asyncio.create_task(turns.take()) for _ in range(4)]
    for _ in range(turns_before):
        await asyncio.sleep(0)
    stopped = [task.cancel() for task in (waiting[0], waiting[2])]
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [isinstance(end, asyncio.CancelledError) for end in ended] == [stopped[0], False, stopped[1], False]
    await turns.take()
