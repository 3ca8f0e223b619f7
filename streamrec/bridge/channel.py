"""The bounded queue between the loop thread and the consumers.

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


class Channel(Generic[T]):
    """A queue from one producer on the loop thread (and its subtasks) to one consumer at a time."""

    def __init__(self, thread: LoopThread, limit: int) -> None:
        self._thread = thread
        self._limit = limit
        self._entries: SimpleQueue[tuple[T, int] | End] = SimpleQueue()
        self._weight_in = 0  # written on the loop thread only
        self._weight_out = 0  # written by the consumer only
        self._resume_below: int | None = None  # wakes the waiting put at this weight or less
        self._order = asyncio.Lock()  # waiting puts take turns: first come, first served
        self._vacancy: asyncio.Future[None] | None = None
        self._puts = 0
        # The consumer sees these items after the loop's next turn.
        self._outbox: list[tuple[T, int]] = []
        self._shut = False

    @property
    def queued(self) -> int:
        """Weight of the items that wait for the consumer."""
        # Read first, so that a put in between never makes the weight negative.
        out = self._weight_out
        return self._weight_in - out

    # The consumer's side; one thread at a time.

    def take(self) -> tuple[T, int] | End:
        """The next entry; blocks while there is none."""
        entry = self._entries.get()
        if isinstance(entry, tuple):
            self._weight_out += entry[1]
            resume_below = self._resume_below
            if resume_below is not None and self._weight_in - self._weight_out <= resume_below:
                # One wake-up is enough; a put that still waits asks again.
                self._resume_below = None
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
        if self._order.locked() or not self._fits(weight):
            async with self._order:
                await self._wait_until_fits(weight)
        if self._shut:
            raise ClosedError(NO_CONSUMER)
        self._weight_in += weight
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

    def _fits(self, weight: int) -> bool:
        queued = self._weight_in - self._weight_out
        return queued == 0 or queued + weight <= self._limit

    async def _wait_until_fits(self, weight: int) -> None:
        while not self._shut and not self._fits(weight):
            self._vacancy = asyncio.get_running_loop().create_future()
            self._resume_below = max(0, min(self._limit // 2, self._limit - weight))
            try:
                # Checked again, now that the consumer can see this put wait.
                if not self._fits(weight):
                    await self._vacancy
            finally:
                self._resume_below = None
                self._vacancy = None

    def _resume(self) -> None:
        if self._vacancy is not None and not self._vacancy.done():
            self._vacancy.set_result(None)
