"""The ledger of what runs hold: how much one may hold, alone and next to others."""

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from streamrec.pipeline.engine.budget import HeldBytes, Share


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """No run of an earlier test counts, and each question counts all runs."""
    gc.collect()
    HeldBytes._runs.clear()
    HeldBytes._largest = HeldBytes._total = 0
    HeldBytes._count_at = 0.0
    yield
    HeldBytes._count_at = 0.0


def fits(held: HeldBytes, nbytes: int) -> bool:
    HeldBytes._count_at = 0.0  # counts now, instead of after a while
    return held.fits(nbytes)


def test_a_share_is_a_part_and_at_most_its_limit() -> None:
    assert [Share(4, 100).of(budget) for budget in (0, 3, 399, 400, 10**9)] == [0, 0, 99, 100, 100]
    assert Share(3).of(10**9) == 333_333_333


def test_a_run_counts_its_parts_its_queue_and_what_it_admitted() -> None:
    held = HeldBytes(1000, queued=lambda: 100)
    held.parts += [SimpleNamespace(held=20), SimpleNamespace(held=3)]
    assert held.nbytes == 123
    assert fits(held, 877)
    assert not fits(held, 878)


def test_a_run_alone_may_fill_its_budget() -> None:
    held = HeldBytes(1000)
    assert fits(held, 1000)
    assert not fits(held, 1001)


def test_all_runs_together_hold_at_most_twice_the_largest_budget() -> None:
    """Each further run takes at most half of what the others leave."""
    first, second = HeldBytes(1000, lambda: 1000), HeldBytes(1000)
    assert fits(second, 500)
    assert not fits(second, 501)
    third = HeldBytes(1000, lambda: 500)
    assert fits(second, 250)
    assert not fits(second, 251)
    assert first.nbytes + third.nbytes == 1500


def test_the_largest_budget_counts_for_all() -> None:
    large, small = HeldBytes(4000, lambda: 4000), HeldBytes(1000)
    assert fits(small, 1000)
    assert large.nbytes == 4000


def test_a_run_may_hold_a_64th_of_its_budget_in_any_case() -> None:
    others = [HeldBytes(6400, lambda: 6400) for _ in range(3)]
    held = HeldBytes(6400)
    assert fits(held, 100)
    assert not fits(held, 101)
    assert len(others) == 3


def test_a_run_that_ended_does_not_count() -> None:
    first, second = HeldBytes(1000, lambda: 2000), HeldBytes(1000)
    assert not fits(second, 900)
    del first
    gc.collect()
    assert fits(second, 900)


def test_what_another_run_was_allowed_since_the_last_count_is_added() -> None:
    first, second, third = HeldBytes(1000, lambda: 1000), HeldBytes(1000), HeldBytes(1000)
    assert fits(second, 500)
    HeldBytes._count_at = float("inf")  # no count until the end of this test
    assert not third.fits(251)
    assert third.fits(250)
    assert first.nbytes == 1000


async def settled(*tasks: asyncio.Task[None]) -> list[bool]:
    """Whether each task ended, once all have had their turns."""
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def reading(held: HeldBytes, holder: str, nbytes: int, wanted: bool = False) -> asyncio.Task[None]:
    HeldBytes._count_at = 0.0
    return asyncio.create_task(held.admit(holder, nbytes, lambda: wanted))


async def test_reads_wait_for_room_in_the_order_in_which_they_came() -> None:
    held = HeldBytes(100)
    await held.admit("a", 90, bool)
    large, small = reading(held, "b", 50), reading(held, "c", 5)
    assert await settled(large, small) == [False, False]
    held.arrived("a")
    assert await settled(large, small) == [True, True]
    assert held.nbytes == 55


async def test_a_holder_asks_again_in_place_of_what_it_was_admitted_for() -> None:
    held = HeldBytes(100)
    await held.admit("a", 60, bool)
    await held.admit("a", 100, bool)
    assert held.nbytes == 100


async def test_what_the_consumer_waits_for_is_read_even_if_it_does_not_fit() -> None:
    """One at a time, and only if nothing is in the consumer's queue."""
    queued = [10]
    held = HeldBytes(100, lambda: queued[0])
    next_, other = reading(held, "next", 1000, wanted=True), reading(held, "other", 1000)
    assert await settled(next_, other) == [False, False]
    held.is_wanted = True
    held.notify()
    assert await settled(next_, other) == [False, False]
    queued[0] = 0
    held.notify()
    assert await settled(next_, other) == [True, False]
    another = reading(held, "another", 1000, wanted=True)
    assert await settled(another, other) == [False, False]
    held.arrived("next")
    assert await settled(another, other) == [True, False]
    other.cancel()
    held.arrived("another")
    assert held.nbytes == 0
