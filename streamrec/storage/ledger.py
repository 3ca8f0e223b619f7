"""The ledger of memory: what each part of a run holds, and whether it may read more now.

A run has one `Ledger`. Its parts have accounts in it, which may have accounts in them: one for the
queues of a source and one in that for each shard, one for ranges ahead of their turn and one in
that for each stream. What an account holds counts in all accounts around it.

Rules:
- **May this be read now?** `Account.fits` answers, for an account and all around it: within the
  limit of each; within the run's budget; and with all runs of the process together within twice the
  largest budget. Nothing else decides about bytes that are read ahead.
- Shares are not asked for: the buffers on which an order or an object depends (shuffles, caches,
  parts of uploads) have their share of the budget to themselves, and it is taken off before the
  shards get theirs. They have accounts that only say so (`Ledger.set_aside`).
- Accounts change on the loop's thread, and may be read in any.

See docs/internals/memory.md.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Final
from weakref import WeakSet, WeakValueDictionary

COUNT_INTERVAL: Final = 0.001
"""Seconds between two counts of the bytes of all runs; each run knows its own bytes exactly."""


class Account:
    """What one part of a run holds; the parts of it have accounts within it.

    Attributes:
        name: What holds it: "queues", "ranges", ...
        limit: Bytes that it may hold; None for as many as the account around it.
        around: The account that it is in; None for none.
        held: Bytes that are there, or have room. Those of accounts within it count.
        reading: Those of them that it was admitted for, and that are not there yet.
        promised: Further bytes that were requested, and have no room yet. They count nowhere else.

    Examples:
        >>> ranges = Account("ranges", limit=100)
        >>> one, other = ranges.open("range"), ranges.open("range")
        >>> one.hold(70)
        >>> ranges.held, other.fits(30), other.fits(31)
        (70, True, False)
    """

    def __init__(self, name: str, limit: int | None = None, around: Account | None = None) -> None:
        self.name = name
        self.limit = limit
        self.around = around
        self.held = 0
        self.reading = 0
        self.promised = 0

    def open(self, name: str, limit: int | None = None) -> Account:
        """An account within this one."""
        return Account(name, limit, self)

    def close(self) -> None:
        """Takes it, and what it holds, out of the account around it. May be called twice."""
        if self.around is not None:
            if self.held:
                self.around.release(self.held)
            if self.promised:
                self.around.withdraw(self.promised)
            self.around = None

    def fits(self, nbytes: int) -> bool:
        """Whether this many more bytes may be read now: here, and in all accounts around it."""
        if self.limit is not None and self.held + nbytes > self.limit:
            return False
        return self.around is None or self.around.fits(nbytes)

    def hold(self, nbytes: int) -> None:
        """It holds this many more."""
        account: Account | None = self
        while account is not None:
            account.held += nbytes
            account = account.around

    def release(self, nbytes: int) -> None:
        """It holds this many less."""
        self.hold(-nbytes)

    def settle(self, nbytes: int) -> None:
        """This many are there, in place of those that it was admitted for."""
        more = nbytes - self.reading
        self.reading = 0
        self.hold(more)

    def promise(self, nbytes: int) -> None:
        """This many more were requested, and have no room."""
        account: Account | None = self
        while account is not None:
            account.promised += nbytes
            account = account.around

    def withdraw(self, nbytes: int) -> None:
        """Takes back a promise for bytes that got room, or will not arrive ahead of their turn."""
        self.promise(-nbytes)


class UnwrittenBytes:
    """Bytes that wait until another thread has written them: at most `limit`, set aside before.

    It has a count of its own, because accounts change on the loop's thread alone.

    >>> unwritten = UnwrittenBytes(10)
    >>> unwritten.take(8), unwritten.take(3), unwritten.give_back(8), unwritten.take(3)
    (True, False, None, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._taken = 0
        self._lock = threading.Lock()

    @property
    def is_half_empty(self) -> bool:
        """Whether at least half of the bytes that could wait do not."""
        return 2 * self._taken <= self.limit

    def take(self, nbytes: int) -> bool:
        """Adds bytes, if they fit; from any thread."""
        with self._lock:
            fits = self._taken + nbytes <= self.limit
            if fits:
                self._taken += nbytes
        return fits

    def give_back(self, nbytes: int) -> None:
        """Takes away bytes that are written, or will not be; from any thread."""
        with self._lock:
            self._taken -= nbytes


@dataclass(frozen=True, eq=False)
class SetAside:
    """The account of a share: `nbytes` of a budget that a buffer has to itself.

    Its owner never asks, keeps within it, and keeps the account as long as the buffer.
    """

    name: str
    nbytes: int


class AllRuns:
    """The accounts of all runs of a process: together they have twice the largest budget.

    The first may fill its own, and each further one takes at most half of what the others leave.
    The bytes of all runs are counted again after an interval, or after twenty times the time that
    it takes if that is longer, so that thousands of runs cost a twentieth of a core at most.

    Args:
        clock: Gives the time in seconds.
        interval: Seconds between two counts.
    """

    def __init__(
        self, clock: Callable[[], float] = perf_counter, interval: float = COUNT_INTERVAL
    ) -> None:
        self._clock = clock
        self._interval = interval
        self._accounts: WeakValueDictionary[int, RunAccount] = WeakValueDictionary()
        self._total = 0
        self._largest = 0
        self._count_at = 0.0

    def add(self, account: RunAccount) -> None:
        """Adds a run; it counts as long as its account exists."""
        self._accounts[id(account)] = account
        self._largest = max(self._largest, account.budget)

    def allow(self, account: RunAccount, own: int, nbytes: int) -> bool:
        """Whether a run may hold `own` bytes, `nbytes` more than now; if so, these are counted."""
        now = self._clock()
        if now >= self._count_at:
            self._count()
            self._count_at = now + max(self._interval, 20 * (self._clock() - now))
        if self._total - account.counted + 2 * own > 2 * self._largest:
            return False
        self._total += nbytes
        account.counted += nbytes
        return True

    def _count(self) -> None:
        references = self._accounts.valuerefs()
        accounts = [account for reference in references if (account := reference()) is not None]
        for account in accounts:
            account.counted = account.nbytes
        self._total = sum(account.counted for account in accounts)
        self._largest = max(account.budget for account in accounts)


ALL_RUNS: Final = AllRuns()


class RunAccount(Account):
    """What one run holds: the account around all others of the run.

    A run holds at most its budget, and at most as much as other runs leave (`AllRuns`). A 64th of
    its budget it has in any case.

    Args:
        budget: Bytes that the run may hold.
        queued: Gives how many bytes wait for the consumer.
        runs: The runs of the process.

    Attributes:
        limit: What its reads may hold: the budget, without what another thread has.
        counted: Its bytes as of the last count of all runs, and those that it was allowed since.

    Examples:
        >>> account = RunAccount(1000, queued=lambda: 600)
        >>> account.fits(400), account.fits(401)
        (True, False)
    """

    limit: int

    def __init__(
        self, budget: int, queued: Callable[[], int] = int, runs: AllRuns = ALL_RUNS
    ) -> None:
        super().__init__("run", budget)
        self.budget = budget
        self.queued = queued
        self.counted = 0
        self._runs = runs
        runs.add(self)

    @property
    def nbytes(self) -> int:
        """How many it holds, or is about to; the consumer's queue belongs to two threads."""
        return self.queued() + self.held

    def fits(self, nbytes: int) -> bool:
        """Whether the budget, and the other runs, allow this many more."""
        own = self.nbytes + nbytes
        if own <= self.budget // 64:
            return True
        if own > self.limit:
            return False
        return self._runs.allow(self, own, nbytes)


class Ledger:
    """The ledger of one run: who wants to read ahead of its consumer asks here first.

    No read waits endlessly: while the consumer waits, and nothing is in its queue, what it waits
    for is read even where it does not fit (`admit`). Such reads follow each other, so that one
    record at most is too much.

    Args:
        budget, queued, runs: As of `RunAccount`.

    Attributes:
        account: What the run holds in all.
        accounts: Those directly in it, which exist.
        shares: What is set aside.
        is_wanted: Whether the consumer waits. Its thread sets it.
    """

    def __init__(
        self, budget: int, queued: Callable[[], int] = int, runs: AllRuns = ALL_RUNS
    ) -> None:
        self.account = RunAccount(budget, queued, runs)
        self.accounts: WeakSet[Account] = WeakSet()
        self.shares: WeakSet[SetAside] = WeakSet()
        self.is_wanted = False
        self._waiting: dict[Account, asyncio.Future[None]] = {}
        self._exceeding: Account | None = None

    def open(self, name: str) -> Account:
        """An account of a part of the run."""
        account = self.account.open(name)
        self.accounts.add(account)
        return account

    def adopt(self, account: Account) -> None:
        """Takes in an account that was made without a run, and holds nothing yet."""
        account.around = self.account
        self.accounts.add(account)

    def set_aside(self, name: str, nbytes: int) -> SetAside:
        """An account for a share of the budget; the ledger lists it as long as it exists."""
        share = SetAside(name, nbytes)
        self.shares.add(share)
        return share

    def reserve(self, name: str, nbytes: int) -> SetAside:
        """Sets aside a share that was not taken off the budget before: reads leave it free."""
        self.account.limit -= nbytes
        return self.set_aside(name, nbytes)

    async def admit(self, account: Account, nbytes: int, is_next: Callable[[], bool]) -> None:
        """Waits until an account may read this many bytes.

        They replace those that it was admitted for; `arrived` says that these are there. `is_next`
        tells whether the consumer waits for them, as far as the account's owner knows.
        """
        more = nbytes - account.reading
        if not self.admit_now(account, nbytes):
            await self._wait(account, more, is_next)
            if more:
                account.hold(more)
                account.reading = nbytes

    def admit_now(self, account: Account, nbytes: int) -> bool:
        """Admits an account as `admit` if that need not wait; most blocks need no more."""
        more = nbytes - account.reading
        if self._waiting or not account.fits(more):
            return False
        if more:
            account.hold(more)
            account.reading = nbytes
        return True

    async def _wait(self, account: Account, more: int, is_next: Callable[[], bool]) -> None:
        has_turn = not self._waiting  # first come, first served
        try:
            while True:
                waiter = self._waiting[account] = asyncio.get_running_loop().create_future()
                # Looked at after `_waiting` has the waiter, so that `notify` in the consumer's
                # thread finds it.
                if has_turn and account.fits(more):
                    return
                starves = self.is_wanted and not self.account.queued()
                if self._exceeding is None and starves and is_next():
                    self._exceeding = account
                if self._exceeding is account:
                    return
                await waiter
                has_turn = True
        finally:
            del self._waiting[account]

    def arrived(self, account: Account) -> None:
        """Ends the admission of an account.

        The bytes are there and count where they are now, or they will not come.
        """
        if account.reading:
            account.settle(0)
        if self._exceeding is account:
            self._exceeding = None
        self.notify()

    def notify(self) -> None:
        """Those that wait look again whether they may go on; from any thread."""
        if self._waiting:
            for waiter in list(self._waiting.values()):
                waiter.get_loop().call_soon_threadsafe(answer, waiter)


def answer(waiter: asyncio.Future[None]) -> None:
    """What is waited for is there; the task that waited may have been cancelled."""
    if not waiter.done():
        waiter.set_result(None)
