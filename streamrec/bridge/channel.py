"""The bounded queue between the loop thread and the consumers.

Contract of this queue: tasks of the loop put items, and threads take them one by one. It is bounded
in bytes, and either side sleeps without holding a lock that the other needs.

Rules:

- `put` waits until the queue is empty or the item fits. The queued items never weigh more than
  `limit`, except a single item that is heavier than the limit. The items of one task arrive in the
  order of its puts.
- Crossing threads is expensive (waking the loop takes about 50 us), so one side wakes the other
  only if it sleeps. The loop wakes a consumer that found the queue empty. A consumer wakes a
  waiting `put` when half of the limit is free or the queue is empty, so that a full queue of small
  items costs one wake-up for many.
- The loop sends items together at its next turn: all puts of one step of a task wake a sleeping
  consumer once.
- `put` gives way to the loop's other tasks from time to time, so that a producer that never waits
  can be cancelled.
- After a cancellation, and after the end, `put` raises ClosedError: no consumer is left.
- Neither side can miss the other: each first writes its own step (an item; a weight taken; "I
  sleep") and then reads the other's, and the interpreter lock orders the writes. An extra wake-up
  is harmless: both sides check again.
- Interrupts: the consumers' lock is that of SimpleQueue, in C. CPython checks for signals before it
  takes such a lock or after the body has begun, never between. An interrupt after `take` took an
  item loses the item, so the iterator closes itself on any interrupt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Generic, TypeAlias, TypeVar

from streamrec.bridge.loop import LoopThread
from streamrec.errors import ClosedError

T = TypeVar("T")

PUTS_PER_TURN = 64  # a turn of the loop costs some 10 us, a put 1

NO_CONSUMER = (
    "put() after the iterator was closed, or after the producer's end: no consumer takes the item"
)

Put: TypeAlias = Callable[[T, int], Awaitable[None]]
"""Queues an item with its weight, 0 or more in the unit of the limit.

Waits while it does not fit.
"""


@dataclass(frozen=True, slots=True)
class End:
    """The last entry of a queue: the producer ended, with this error or None."""

    error: BaseException | None


class Load:
    """How much a queue holds, for the thread that puts and the one that takes. Pure.

    Attributes:
        limit: Weight that it may hold; one item always fits.
        resume_below: The weight from which on a waiting put is woken; None if none waits.

    Examples:
        >>> load = Load(limit=10)
        >>> load.put(8)
        >>> load.fits(3)
        False
        >>> load.wait_for(3)
        >>> load.take(1), load.take(7), load.fits(99)
        (False, True, True)
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.resume_below: int | None = None
        self._put = 0  # written on the loop thread only
        self._taken = 0  # written by the consumer only

    @property
    def queued(self) -> int:
        """Weight of the items that wait for the consumer."""
        # Read first, so that a put in between never makes the weight negative.
        taken = self._taken
        return self._put - taken

    def fits(self, weight: int) -> bool:
        """Whether an item may be put now; any may where none waits."""
        queued = self.queued
        return queued == 0 or queued + weight <= self.limit

    def put(self, weight: int) -> None:
        """An item is put. On the loop thread."""
        self._put += weight

    def wait_for(self, weight: int) -> None:
        """A put waits until half of the limit is free, and its item fits. On the loop thread."""
        self.resume_below = max(0, min(self.limit // 2, self.limit - weight))

    def take(self, weight: int) -> bool:
        """An item is taken, by the consumer. Whether it wakes the waiting put now."""
        self._taken += weight
        resume_below = self.resume_below
        if resume_below is None or self._put - self._taken > resume_below:
            return False
        # One wake-up is enough; a put that still waits asks again.
        self.resume_below = None
        return True


class Channel(Generic[T]):
    """A queue from one producer on the loop thread (and its subtasks) to one consumer at a time."""

    def __init__(self, thread: LoopThread, limit: int) -> None:
        self._thread = thread
        self._load = Load(limit)
        self._entries: SimpleQueue[tuple[T, int] | End] = SimpleQueue()
        self._order = asyncio.Lock()  # waiting puts take turns: first come, first served
        self._vacancy: asyncio.Future[None] | None = None
        self._puts = 0
        # The consumer sees these items after the loop's next turn.
        self._outbox: list[tuple[T, int]] = []
        self._shut = False

    @property
    def queued(self) -> int:
        """Weight of the items that wait for the consumer."""
        return self._load.queued

    # The consumer's side; one thread at a time.

    def take(self) -> tuple[T, int] | End:
        """The next entry; blocks while there is none."""
        entry = self._entries.get()
        if isinstance(entry, tuple) and self._load.take(entry[1]):
            self._thread.post(self._resume)
        return entry

    def discard(self) -> None:
        """Drops the queued items.

        The producer must have ended; a consumer that blocks meanwhile gets an End.
        """
        try:
            while True:
                self._entries.get_nowait()
        except Empty:
            self._entries.put(End(None))

    # The producer's side, on the loop thread.

    async def put(self, item: T, weight: int) -> None:
        """Queues `item`; waits while it does not fit.

        A ClosedError says that the iterator was closed.
        """
        if weight < 0:
            raise ValueError(f"weight is {weight}; it must be 0 or more")
        self._puts += 1
        if self._shut or self._puts % PUTS_PER_TURN == 0:
            await asyncio.sleep(0)
        if self._order.locked() or not self._load.fits(weight):
            async with self._order:
                await self._wait_until_fits(weight)
        if self._shut:
            raise ClosedError(NO_CONSUMER)
        self._load.put(weight)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._send)
        self._outbox.append((item, weight))

    def refuse_puts(self) -> None:
        """Makes all further puts fail."""
        self._shut = True
        self._resume()

    def end(self, error: BaseException | None) -> None:
        """Queues the end after all items."""
        self._shut = True
        self._send()
        self._entries.put(End(error))

    def _send(self) -> None:
        outbox = self._outbox
        self._outbox = []
        for entry in outbox:
            self._entries.put(entry)

    async def _wait_until_fits(self, weight: int) -> None:
        while not self._shut and not self._load.fits(weight):
            self._vacancy = asyncio.get_running_loop().create_future()
            self._load.wait_for(weight)
            try:
                # Checked again, now that the consumer can see this put wait.
                if not self._load.fits(weight):
                    await self._vacancy
            finally:
                self._load.resume_below = None
                self._vacancy = None

    def _resume(self) -> None:
        if self._vacancy is not None and not self._vacancy.done():
            self._vacancy.set_result(None)
