"""Turns of the event loop: one at a time in each, first come first served."""

import asyncio
from collections.abc import Callable

from streamrec.storage.backends.local.backend import take_turn


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
    turns, now = asyncio.Lock(), turn_of_the_loop()
    taken: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        for _ in range(3):
            await take_turn(turns)
            taken.append((now(), number))

    await asyncio.gather(*map(work, range(5)))
    assert len({turn for turn, _ in taken}) == 15
    numbers = [number for _, number in taken]
    assert numbers[0] == 0, "it came before the others had begun"
    assert all(sorted(numbers[at : at + 5]) == [*range(5)] for at in range(1, 7))


async def test_alone_there_is_no_wait_for_the_first() -> None:
    turns, now = asyncio.Lock(), turn_of_the_loop()
    before = now()
    await take_turn(turns)
    assert now() == before
    await take_turn(turns)
    assert now() > before
