"""Element buffer: elements on their way from where they are made, a thread or a task, to the loop that takes them.

Neither side takes a lock for an element. Each first writes its own step (an element; what was taken; "I wait") and then
reads the other's, and the interpreter's lock orders the writes; so neither can miss the other. A wake-up too many is
harmless: both look again. The loop is woken only where it waits, so what is made meanwhile costs no wake-up.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar

__all__ = ["ElementBuffer", "Made", "in_own_thread"]

T = TypeVar("T")


Made = tuple[Any, int, str | None]
"""An element, its weight in bytes, and the JSON of its maker's state behind it, if that has one."""


class ElementBuffer:
    """Elements that were made and not taken yet: the maker waits where they are too many, the taker where none is.

    Args:
        limit: Bytes at which the maker waits; one element always fits.

    Attributes:
        closed: Whether the taker wants no more.
        failed: The error of an element that was made in a thread; None for none.
    """

    def __init__(self, limit: int) -> None:
        self.closed = False
        self.failed: Exception | None = None
        self._limit = max(1, limit)
        self._loop = asyncio.get_running_loop()
        self._made: deque[Made] = deque()
        self._bytes_in = 0  # written by the maker only
        self._bytes_out = 0  # written by the taker only
        self._taker_waits = False
        self._arrived = asyncio.Event()
        self._room = threading.Condition()
        self._room_async = asyncio.Event()
        self._maker: asyncio.Task[Any] | None = None
        self._ended = False
        self._error: BaseException | None = None

    # The maker's side.

    def add(self, made: Made) -> bool:
        """Adds an element from a thread, and waits where there are too many; tells whether more are wanted."""
        self._append(made)
        if self._bytes_in - self._bytes_out >= self._limit:
            with self._room:
                while self._full and not self.closed:
                    self._room.wait()
        return not self.closed

    async def add_async(self, made: Made) -> None:
        """The same from a task of the loop; where no more are wanted it is cancelled."""
        self._append(made)
        while self._full:
            self._room_async.clear()
            await self._room_async.wait()

    @contextmanager
    def cancelling(self) -> Iterator[None]:
        """Within this block, closing cancels the task that it runs in; the cancellation ends here."""
        self._maker = asyncio.current_task()
        try:
            yield
        except asyncio.CancelledError:
            if not self.closed:
                raise
        finally:
            self._maker = None

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes, because of an error or not. Called on the loop."""
        self._ended, self._error = True, error
        self._arrived.set()

    def _append(self, made: Made) -> None:
        self._made.append(made)
        self._bytes_in += made[1]
        if self._taker_waits:
            self._taker_waits = False
            self._loop.call_soon_threadsafe(self._arrived.set)

    @property
    def on_loop(self) -> bool:
        """Whether the maker is a task of the loop that can be cancelled."""
        return self._maker is not None

    @property
    def _full(self) -> bool:
        return self._bytes_in - self._bytes_out >= self._limit

    # The taker's side, on the loop.

    async def take(self) -> list[Made] | None:
        """All elements that were made, at least one; None at the end.

        Raises:
            BaseException: What ended them, once, behind all that came before.
        """
        while not self._made and not self._ended:
            self._arrived.clear()
            self._taker_waits = True
            if not self._made:  # again, now that the maker can see who waits
                await self._arrived.wait()
            self._taker_waits = False
        if not self._made:
            self.check()
            return None
        taken = [self._made.popleft() for _ in range(len(self._made))]
        self._bytes_out += sum(nbytes for _, nbytes, _ in taken)
        self._wake()
        return taken

    def close(self) -> None:
        """No more are wanted: the maker ends as soon as it can. An error that was not taken is of no element taken."""
        self.closed, self._error = True, None
        self._made.clear()
        self._wake()
        if self._maker is not None:
            self._maker.cancel()

    def check(self) -> None:
        """Raises the error that ended the elements, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _wake(self) -> None:
        self._room_async.set()
        with self._room:
            self._room.notify()


async def in_own_thread(work: Callable[[], T]) -> T:
    """What some work returns or raises that is done in a thread of its own.

    Not one of a pool: it may take as long as the run, and where it never ends it must not keep the interpreter from
    exiting. Cancelling leaves it behind.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[list[T], BaseException | None]] = loop.create_future()

    def run() -> None:
        outcome: tuple[list[T], BaseException | None]
        try:
            outcome = [work()], None
        except BaseException as error:
            outcome = [], error
        with suppress(RuntimeError):  # the loop may be gone by then
            loop.call_soon_threadsafe(tell, outcome)

    def tell(outcome: tuple[list[T], BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    threading.Thread(target=copy_context().run, args=(run,), name="streamrec generator", daemon=True).start()
    results, error = await done
    if error is not None:
        raise error
    return results[0]
