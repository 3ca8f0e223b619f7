"""Elements between a generator (the maker) and its consumer (the taker).

Contract of this queue: one maker, in a thread or in a task, and one taker on the loop; bounded in
bytes, where one element always fits; all that waits is taken at once. The queues of
`engine/queue.py` are for two tasks of one loop, and would take a lock for each element here.

Neither side takes a lock for an element. Each first writes its own step (an element, what was
taken, "I wait") and then reads the other's, and the GIL orders the writes, so neither can miss the
other. A spurious wake-up is harmless: both look again. Each number has one writer.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

Item = tuple[Any, int, str | None]
"""An element, its weight in bytes, and the JSON of the generator's state after it, or None."""


class ElementBuffer:
    """The elements that the maker adds and the taker takes.

    Args:
        limit: Bytes at which the maker waits; one element always fits.

    Attributes:
        closed: Whether the taker has left.
        failed: The error of a generator in a thread, or None.
        maker: The maker's task if it is async and can be cancelled.
    """

    def __init__(self, limit: int) -> None:
        self.closed = False
        self.failed: Exception | None = None
        self.maker: asyncio.Task[Any] | None = None
        self._items: deque[Item] = deque()
        self._room = MakerRoom(limit)
        self._taker = TakerWait()
        self._ended = False
        self._error: BaseException | None = None

    # The maker's side.

    def add(self, item: Item) -> bool:
        """Adds an element from a thread, and waits for room; False if the taker has left."""
        if self._append(item):
            self._room.wait_in_thread()
        return not self.closed

    async def add_async(self, item: Item) -> None:
        """Adds an element from a task of the loop, and waits for room."""
        if self._append(item):
            await self._room.wait()

    def end(self, error: BaseException | None) -> None:
        """Ends the elements, possibly with an error. Called on the loop."""
        self._ended = True
        self._error = error
        self._taker.arrived.set()

    def _append(self, item: Item) -> bool:
        """Adds an element; returns whether the maker must wait."""
        self._items.append(item)
        is_full = self._room.enter(item[1])
        if self._taker.waits:
            self._taker.wake()
        return is_full

    # The taker's side, on the loop.

    async def take(self) -> list[Item] | None:
        """Waits for elements, and takes all; None at the end.

        Raises the error that ended them, once.
        """
        items = self._items
        while not items and not self._ended:
            await self._taker.wait(unless=items.__len__)
        if not items:
            self.check()
            return None
        taken = [items.popleft() for _ in range(len(items))]
        self._room.leave(sum(nbytes for _, nbytes, _ in taken))
        return taken

    def close(self) -> None:
        """The taker leaves.

        This drops all elements and a later error, and ends the maker as soon as possible.
        """
        self.closed = True
        self._error = None
        self._items.clear()
        self._room.open()
        if self.maker is not None:
            self.maker.cancel()

    def check(self) -> None:
        """Raises the error that ended the elements, once."""
        error = self._error
        self._error = None
        if error is not None:
            raise error


class MakerRoom:
    """How many bytes wait for the taker. The maker waits here, in a thread or a task, while that is
    `limit` or more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._entered = 0  # written by the maker only
        self._left = 0  # written by the taker only
        self._in_thread = threading.Condition()
        self._in_task = asyncio.Event()

    @property
    def full(self) -> bool:
        """Whether the maker must wait."""
        return self._entered - self._left >= self._limit

    def enter(self, nbytes: int) -> bool:
        """The maker added bytes; returns whether it is `full` now."""
        self._entered += nbytes
        return self._entered - self._left >= self._limit

    def wait_in_thread(self) -> None:
        """Waits in the maker's thread while it is `full`."""
        with self._in_thread:
            while self.full:
                self._in_thread.wait()

    async def wait(self) -> None:
        """Waits in the maker's task while it is `full`."""
        while self.full:
            self._in_task.clear()
            await self._in_task.wait()

    def leave(self, nbytes: int) -> None:
        """The taker took bytes."""
        self._left += nbytes
        self._wake()

    def open(self) -> None:
        """The taker has left: the maker never waits again."""
        self._limit = sys.maxsize
        self._wake()

    def _wake(self) -> None:
        self._in_task.set()
        with self._in_thread:
            self._in_thread.notify()


class TakerWait:
    """A wait of the taker, which the maker may end from another thread.

    The loop is woken only if the taker `waits`: that costs more than an element.
    """

    def __init__(self) -> None:
        self.waits = False
        self.arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def wake(self) -> None:
        """Ends the wait; from any thread, once for each wait."""
        self.waits = False
        self._loop.call_soon_threadsafe(self.arrived.set)

    async def wait(self, unless: Callable[[], object]) -> None:
        """Waits for `wake`, unless the maker was faster."""
        self.arrived.clear()
        self.waits = True
        if not unless():  # asked after the maker can see the flag
            await self.arrived.wait()
        self.waits = False
