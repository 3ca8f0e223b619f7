"""The ledger of what runs hold: how much one may hold, alone and next to others."""

import asyncio
import gc
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from streamrec.storage.ledger import Account, AllRuns, Ledger, RunAccount


def run_counter() -> AllRuns:
    """The runs of a process of which each question counts all."""
    return AllRuns(clock=lambda: 1.0, interval=0.0)


def ledger_of_one_run(budget: int, queued: Callable[[], int] = int) -> Ledger:
    return Ledger(budget, queued, run_counter())


# Accounts.


def test_bytes_of_an_account_count_in_all_accounts_around_it() -> None:
    ledger = ledger_of_one_run(1000)
    queues, ranges = ledger.open("queues"), ledger.open("ranges")
    one, other = queues.open("queue"), queues.open("queue")
    one.hold(20)
    other.hold(3)
    ranges.hold(100)
    ranges.promise(50)
    assert (one.held, queues.held, ranges.held, ledger.account.held) == (20, 23, 100, 123)
    one.release(20)
    ranges.withdraw(50)
    assert (one.held, queues.held, ledger.account.held, ledger.account.promised) == (0, 3, 103, 0)


def test_an_account_may_hold_what_all_around_it_allow() -> None:
    ledger = ledger_of_one_run(100)
    ranges = ledger.account.open("ranges", limit=50)
    one, other = ranges.open("range", limit=40), ranges.open("range")
    assert one.fits(40)
    assert not one.fits(41)
    one.hold(40)
    assert other.fits(10)
    assert not other.fits(11)
    ledger.open("queues").hold(55)
    assert other.fits(5)
    assert not other.fits(6)


def test_promised_bytes_take_no_room() -> None:
    ranges = Account("ranges", limit=50)
    ranges.open("range").promise(50)
    assert ranges.promised == 50
    assert ranges.fits(50)


def test_a_closed_account_counts_no_more() -> None:
    """Nor does what comes or goes in it later, as its owner's tasks end."""
    ledger = ledger_of_one_run(100)
    queues = ledger.open("queues")
    queue = queues.open("queue")
    queue.hold(30)
    queue.promise(7)
    queues.close()
    assert (ledger.account.held, ledger.account.promised) == (0, 0)
    queue.release(30)
    queues.close()
    assert (ledger.account.held, queues.held) == (0, 0)


STEPS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from(["hold", "release", "close"]), st.integers(0, 99))
)


@given(STEPS)
def test_an_account_always_holds_the_sum_of_those_in_it(
    steps: list[tuple[int, str, int]],
) -> None:
    ledger = ledger_of_one_run(1000)
    groups = [ledger.open("group") for _ in range(2)]
    leaves = [groups[number % 2].open("leaf") for number in range(6)]
    for number, step, nbytes in steps:
        leaf = leaves[number]
        if step == "hold":
            leaf.hold(nbytes)
        elif step == "release":
            leaf.release(min(nbytes, leaf.held))
        else:
            leaf.close()
        for group in groups:
            assert group.held == sum(leaf.held for leaf in leaves if leaf.around is group)
        assert ledger.account.held == sum(leaf.held for leaf in leaves if leaf.around is not None)


def test_shares_are_listed_while_their_owners_keep_them() -> None:
    ledger = ledger_of_one_run(100)
    shuffle, cache = ledger.set_aside("shuffle", 60), ledger.set_aside("cache", 20)
    assert {(share.name, share.nbytes) for share in ledger.shares} == {
        ("shuffle", 60),
        ("cache", 20),
    }
    assert ledger.account.fits(100)  # what reads ahead has a budget without them
    del shuffle
    gc.collect()
    assert list(ledger.shares) == [cache]


def test_reads_leave_free_what_is_reserved_for_another_thread() -> None:
    ledger = ledger_of_one_run(6400)
    share = ledger.reserve("cache", 800)
    assert [(each.name, each.nbytes) for each in ledger.shares] == [("cache", 800)]
    assert ledger.account.fits(5600)
    assert not ledger.account.fits(5601)
    ledger.reserve("the rest", 5600)
    assert ledger.account.fits(100)  # a 64th it has in any case
    del share


# Runs.


def test_a_run_counts_its_accounts_its_queue_and_what_it_admitted() -> None:
    async def admitted() -> Ledger:
        ledger = ledger_of_one_run(1000, queued=lambda: 100)
        ledger.open("queues").hold(20)
        await ledger.admit(ledger.open("queue"), 3, bool)
        return ledger

    ledger = asyncio.run(admitted())
    assert ledger.account.nbytes == 123
    assert ledger.account.fits(877)
    assert not ledger.account.fits(878)


def test_a_run_alone_may_fill_its_budget() -> None:
    ledger = ledger_of_one_run(1000)
    assert ledger.account.fits(1000)
    assert not ledger.account.fits(1001)


def test_all_runs_together_hold_at_most_twice_the_largest_budget() -> None:
    """Each further run takes at most half of what the others leave."""
    runs = run_counter()
    first, second = RunAccount(1000, lambda: 1000, runs), RunAccount(1000, runs=runs)
    assert second.fits(500)
    assert not second.fits(501)
    third = RunAccount(1000, lambda: 500, runs)
    assert second.fits(250)
    assert not second.fits(251)
    assert first.nbytes + third.nbytes == 1500


def test_the_largest_budget_counts_for_all() -> None:
    runs = run_counter()
    large, small = RunAccount(4000, lambda: 4000, runs), RunAccount(1000, runs=runs)
    assert small.fits(1000)
    assert large.nbytes == 4000


def test_a_run_may_hold_a_64th_of_its_budget_in_any_case() -> None:
    runs = run_counter()
    others = [RunAccount(6400, lambda: 6400, runs) for _ in range(3)]
    account = RunAccount(6400, runs=runs)
    assert account.fits(100)
    assert not account.fits(101)
    assert len(others) == 3


def test_a_run_that_ended_does_not_count() -> None:
    runs = run_counter()
    first, second = RunAccount(1000, lambda: 2000, runs), RunAccount(1000, runs=runs)
    assert not second.fits(900)
    del first
    gc.collect()
    assert second.fits(900)


def test_bytes_allowed_to_another_run_since_the_last_count_are_added() -> None:
    seconds = iter([0.0, 1.0])  # the first count takes one, so the next one is in twenty
    runs = AllRuns(clock=lambda: next(seconds, 2.0))
    first, second = RunAccount(1000, lambda: 1000, runs), RunAccount(1000, runs=runs)
    third = RunAccount(1000, runs=runs)
    assert second.fits(500)
    assert not third.fits(251)
    assert third.fits(250)
    assert first.nbytes == 1000


# Waiting.


async def which_tasks_ended(*tasks: asyncio.Task[None]) -> list[bool]:
    """Whether each task ended, once all have had their turns."""
    for _ in range(5):
        await asyncio.sleep(0)
    return [task.done() for task in tasks]


def start_read(
    ledger: Ledger, account: Account, nbytes: int, wanted: bool = False
) -> asyncio.Task[None]:
    return asyncio.create_task(ledger.admit(account, nbytes, lambda: wanted))


async def test_reads_wait_for_room_in_the_order_in_which_they_came() -> None:
    ledger = ledger_of_one_run(100)
    a, b, c = (ledger.open(name) for name in "abc")
    await ledger.admit(a, 90, bool)
    large, small = start_read(ledger, b, 50), start_read(ledger, c, 5)
    assert await which_tasks_ended(large, small) == [False, False]
    ledger.arrived(a)
    assert await which_tasks_ended(large, small) == [True, True]
    assert ledger.account.nbytes == 55


async def test_an_account_asks_again_in_place_of_what_it_was_admitted_for() -> None:
    ledger = ledger_of_one_run(100)
    account = ledger.open("queue")
    await ledger.admit(account, 60, bool)
    await ledger.admit(account, 100, bool)
    assert (ledger.account.nbytes, account.reading) == (100, 100)


async def test_a_read_that_is_cancelled_while_it_waits_holds_nothing() -> None:
    ledger = ledger_of_one_run(100)
    waits = start_read(ledger, ledger.open("queue"), 101)
    assert await which_tasks_ended(waits) == [False]
    waits.cancel()
    assert await which_tasks_ended(waits) == [True]
    assert ledger.account.nbytes == 0
    await ledger.admit(ledger.open("other"), 100, bool)


async def test_a_read_that_the_consumer_waits_for_starts_even_if_it_does_not_fit() -> None:
    """One at a time, and only if nothing is in the consumer's queue."""
    queued = [10]
    ledger = ledger_of_one_run(100, lambda: queued[0])
    first, second, third = (ledger.open("queue") for _ in range(3))
    next_, other = start_read(ledger, first, 1000, wanted=True), start_read(ledger, second, 1000)
    assert await which_tasks_ended(next_, other) == [False, False]
    ledger.is_wanted = True
    ledger.notify()
    assert await which_tasks_ended(next_, other) == [False, False]
    queued[0] = 0
    ledger.notify()
    assert await which_tasks_ended(next_, other) == [True, False]
    another = start_read(ledger, third, 1000, wanted=True)
    assert await which_tasks_ended(another, other) == [False, False]
    ledger.arrived(first)
    assert await which_tasks_ended(another, other) == [True, False]
    other.cancel()
    ledger.arrived(third)
    assert ledger.account.nbytes == 0


async def test_admission_at_once_only_where_it_fits_and_no_other_waits() -> None:
    ledger = Ledger(100)
    account, other = ledger.open("one"), ledger.open("other")
    assert ledger.admit_now(account, 60)
    assert (account.reading, ledger.account.held) == (60, 60)
    assert not ledger.admit_now(other, 60)
    assert (other.reading, ledger.account.held) == (0, 60)
    waiting = asyncio.create_task(ledger.admit(other, 60, bool))
    await asyncio.sleep(0)
    assert not ledger.admit_now(account, 61), "first come, first served"
    ledger.arrived(account)
    await waiting
    assert ledger.admit_now(account, 40)
