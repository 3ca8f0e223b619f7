"""Items of one call that idle threads of the run work on, too.

`map` with several calls at once gives each thread a batch. When no more batches come, as at the end
of an epoch, one thread may still decode dozens of images while the others have nothing to do:
measured with two threads and ten batches of 64 photographs, 7 % of an epoch. So a function that
works on many items, each of some 0.1 ms without the GIL, passes them to `for_each_item`; and a
thread without a batch takes items of a batch that another thread works on.

Rules:
- The thread of the call takes items until none are left, and waits for those that others took.
- Items are taken in order. After an error no more are taken. The error of the first item that
  failed is raised, which is the one that a loop would have raised.
- A helper may be asked to stop, and then finishes its item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from threading import Condition
from typing import Final

from streamrec.pipeline.engine.stage import Halt


class SharedItems:
    """The numbers of items of one call, which several threads take. `work` is called with each.

    Attributes:
        are_taken: Whether a thread found no item left.
    """

    def __init__(self, count: int, work: Callable[[int], object]) -> None:
        self.are_taken = False
        self._work = work
        self._numbers: Iterator[int] = iter(range(count))
        self._helpers = 0
        self._failed: tuple[int, BaseException] | None = None
        self._changed = Condition()

    def finish(self) -> None:
        """Works on items until none are left, and waits for helpers; raises the first error."""
        self._take_until(None)
        with self._changed:
            while self._helpers:
                self._changed.wait()
        if self._failed is not None:
            raise self._failed[1]

    def help(self, halt: Halt) -> None:
        """Works on items until none are left, or `halt` is asked for."""
        # Counted before an item is taken: the call, which finds none left, waits for this thread.
        with self._changed:
            self._helpers += 1
        try:
            self._take_until(halt)
        finally:
            with self._changed:
                self._helpers -= 1
                self._changed.notify_all()

    def _take_until(self, halt: Halt | None) -> None:
        while halt is None or not halt.asked:
            # One step under the GIL: no two threads take the same item, and without a lock an item
            # costs 30 ns instead of 430.
            item = next(self._numbers, None)
            if item is None:
                self.are_taken = True
                return
            try:
                self._work(item)
            # An item of a helper that was left out would be a hole in the result of the call.
            except BaseException as error:
                self._fail(item, error)

    def _fail(self, item: int, error: BaseException) -> None:
        with self._changed:
            self._numbers = iter(())
            # An earlier item may fail later, in another thread.
            if self._failed is None or item < self._failed[0]:
                self._failed = (item, error)


class Offers:
    """The items that the running calls of a run share, oldest first.

    Args:
        on_offer: Called in the thread of a call that offers items.
    """

    def __init__(self, on_offer: Callable[[], None]) -> None:
        self._items: list[SharedItems] = []
        self._on_offer = on_offer

    @property
    def are_taken(self) -> bool:
        """Whether no call has an item left for a helper."""
        return all(items.are_taken for items in self._items)

    def finish(self, items: SharedItems) -> None:
        """Offers the items of the current call while it works on them."""
        self._items.append(items)
        try:
            self._on_offer()
            items.finish()
        finally:
            self._items.remove(items)

    def help(self, halt: Halt) -> None:
        """Works on items until all are taken, or `halt` is asked for."""
        for items in list(self._items):
            items.help(halt)


offers: Final[ContextVar[Offers | None]] = ContextVar("streamrec_offers", default=None)
"""Where a call in a thread offers its items; None where no thread helps."""


def for_each_item(count: int, work: Callable[[int], object]) -> None:
    """Calls `work` with each number below `count`; idle threads of the run take part.

    Raises:
        Exception: That of the first number for which `work` failed.
    """
    offered = offers.get()
    if offered is None or count < 2:
        for item in range(count):
            work(item)
    else:
        offered.finish(SharedItems(count, work))
