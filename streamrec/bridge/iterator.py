"""The sync iterator over the items of a producer on the loop thread.

A consumer sees:

- Success: every item once, in order, then always StopIteration.
- A producer that raises: every item that it had put, then its exception once, with its traceback,
  then always StopIteration. A cancellation that the consumer did not ask for is a ClosedError,
  never an end of data.
- `close()`, the end of a `with` block, or an interrupt in `next` (Ctrl-C, or an exception from
  another signal handler) cancels the producer and returns when its cleanup is done. A second
  interrupt cuts the cleanup short (see job.py). Queued items are dropped. From then on `next`
  raises ClosedError, in other threads too.
- `break`, an exception in the loop's body, or any other way to drop the iterator cancels the
  producer without waiting for it. (`weakref.finalize`; the work on the loop holds no reference to
  the iterator.) A `with` block waits.
- Afterwards nothing is left: no task, no thread but the one loop thread, no item.
- Several threads may take from one iterator: each item goes to one of them. Iterators are
  independent of each other. A blocked `next` holds the iterator's lock; `close` from another thread
  takes no lock.
- After a fork, `next` in the child raises ClosedError, and `close` does nothing: the parent owns
  the work.
- On the loop's own thread, `next` and `close` raise LoopThreadError: they would wait for
  themselves.
- In a trio program `next(iterator)` blocks the trio loop, as any sync call does; use
  `await trio.to_thread.run_sync(next, iterator, None, abandon_on_cancel=True)` inside
  `with iterator`.

An interrupt at any point of `next` closes the iterator, so that no item gets lost silently. The
lock is a C lock in a `with` statement: CPython runs signal handlers before it takes the lock or
inside the block, so the lock is always released. It is re-entrant, so a signal handler may itself
call `next` or `close`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, Self, TypeVar

from streamrec.bridge.channel import Channel, End, Put
from streamrec.bridge.job import Job
from streamrec.bridge.loop import check_owner, is_inherited, loop_thread, raise_unless_exiting
from streamrec.errors import ClosedError

T = TypeVar("T")

CLOSED = (
    "this iterator was closed, by close(), at the end of its `with` block, or by an interrupt; "
    "make a new one"
)


class SyncIterator(Generic[T]):
    """Iterates in this thread over the items that `produce(put)` puts on the loop thread.

    See the top of this file.

    The producer starts at once, before the first `next`. It should end the tasks that it starts (a
    task group). Each `await put(item, weight)` queues one item, and waits while it does not fit in
    the limit, above 0. A heavier item is queued when the queue is empty.

    `failures` are the errors of the work itself, which it adds while it runs. They are not logged
    when the iterator is dropped before the consumer has reached them.
    """

    def __init__(
        self,
        produce: Callable[[Put[T]], Awaitable[None]],
        limit: int,
        failures: Sequence[BaseException] = (),
    ) -> None:
        if limit <= 0:
            raise ValueError(f"limit is {limit}; it must be above 0")
        thread = loop_thread()
        self.channel: Channel[T] = Channel(thread, limit)
        self._job = job = Job(thread, produce, (self.channel.put,), self.channel, failures=failures)
        self._turn = threading.RLock()  # one consumer takes at a time
        self._ended = False  # a consumer got the end, or the producer's error
        self._closed = False
        # Before the start: an interrupt from here on drops the iterator, and so cancels the job. At
        # exit the loop thread cancels all.
        weakref.finalize(self, job.cancel, orphan=True).atexit = False
        job.start()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        job = self._job
        check_owner(job.maker, job.thread)
        # CPython runs signal handlers before it takes the lock or within the block, never between,
        # so the lock is always released; an interrupt may have taken an item, so it closes the
        # iterator.
        try:
            with self._turn:
                if self._ended or self._closed:
                    error = None
                else:
                    entry = self.channel.take()
                    if not isinstance(entry, End):
                        return entry[0]
                    self._ended = not self._closed
                    error = entry.error
        except BaseException as interrupt:
            self._closed = self._closed or not self._ended
            job.stop_for(interrupt)
            self.channel.discard()
            raise
        if self._closed:
            raise ClosedError(CLOSED)
        if error is None:
            raise StopIteration
        return raise_unless_exiting(error)

    def close(self) -> None:
        """Cancels the producer, waits for its cleanup, and drops the queued items.

        No effect after the end.
        """
        job = self._job
        if is_inherited(job.maker):
            return
        check_owner(job.maker, job.thread)
        self._closed = self._closed or not self._ended
        try:
            job.stop()
        finally:
            self.channel.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
