"""The sync iterator over what a producer on the loop thread puts: the consumer's contract.

What a consumer sees:

- Success: every item once, in order; then StopIteration always.
- A producer that raises: every item that it had put; then its exception once, with its own traceback; then
  StopIteration permanently. A cancellation that the consumer did not ask for is ClosedError, never an end of data.
- `close()`, leaving a `with` block, any interrupt in `next` (Ctrl-C, or what another signal handler
  raises): the producer is cancelled, and control comes back when its cleanup is done. A second interrupt
  cuts the cleanup short (see job.py). Items still queued are dropped. From then on `next` raises
  ClosedError, in other threads too.
- `break`, an exception in the loop's body, or any other way to drop the iterator: it is cancelled at once,
  without waiting. A `with` block waits. (`weakref.finalize`; what runs on the loop holds no reference to
  the iterator.)
- Afterwards nothing is left: no task, no thread but the one loop thread, no item.
- Several threads may take from one iterator: each item goes to one of them. Several iterators do not touch
  each other. A blocked `next` holds the iterator's lock; `close` from another thread takes no lock.
- After a fork, `next` in the child raises ClosedError, and `close` does nothing: the parent owns the work.
- On the loop's own thread, `next` and `close` raise LoopThreadError: they would wait for themselves.
- In a trio program `next(iterator)` blocks the trio loop, as any sync call does; use
  `await trio.to_thread.run_sync(next, iterator, None, abandon_on_cancel=True)` inside `with iterator`.

Interrupts: whatever `next` was doing when one came, the iterator closes, so that no item can go missing in
silence. The lock is a C lock in a `with` statement: CPython runs signal handlers before it is taken or
inside the block, so it is always released. It is re-entrant, so a signal handler may itself call `next` or
`close`.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from streamrec.bridge.channel import Channel, End, Put
from streamrec.bridge.job import Job
from streamrec.bridge.loop import check_owner, is_inherited, loop_thread, raise_unless_exiting
from streamrec.errors import ClosedError

T = TypeVar("T")

CLOSED = "this iterator was closed, by close(), by leaving its `with` block, or by an interrupt; make a new one"


def iterate(
    produce: Callable[[Put[T]], Awaitable[None]], limit: int, failures: Sequence[BaseException] = ()
) -> SyncIterator[T]:
    """Iterate in this thread over what `produce` puts on the loop thread.

    The producer starts at once, before the first `next`. It should end the tasks that it starts (a task
    group).

    Args:
        produce: Called as `produce(put)`; each `await put(item, weight)` hands one item over, and waits
            while the item does not fit.
        limit: Weight that may be queued, above 0, in the unit of the weights. An item that is heavier
            passes when the queue is empty.
        failures: Where `produce` notes errors of its own while it runs. One that no consumer came to is not logged.

    Returns:
        The iterator; use it in a `with` block where its end should be waited for.

    Raises:
        ValueError: A limit of 0 or less.
        LoopThreadError: The caller runs on the loop thread itself.
        ClosedError: The interpreter is exiting.
    """
    if limit <= 0:
        raise ValueError(f"limit is {limit}; it must be above 0")
    thread = loop_thread()
    channel: Channel[T] = Channel(thread, limit)
    job = Job(thread, produce, (channel.put,), channel, failures=failures)
    iterator = SyncIterator(job, channel)  # before the start: from here on an interrupt drops and so cancels it
    job.start()
    return iterator


class SyncIterator(Generic[T]):
    """Made by `iterate`; the contract is at the top of this file."""

    def __init__(self, job: Job[None], channel: Channel[T]) -> None:
        self._job = job
        self._channel = channel
        self._turn = threading.RLock()  # consumers take one after another
        self._ended = False  # the end, or the producer's error, was seen
        self._closed = False
        weakref.finalize(self, job.abandon).atexit = False  # at exit the loop thread cancels all

    @property
    def waited(self) -> float:
        """Seconds that consumers spent blocked in `next` because nothing was queued."""
        return self._channel.waited

    @property
    def queued(self) -> int:
        """Weight of the items that wait to be taken."""
        return self._channel.queued

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        job = self._job
        check_owner(job.maker, job.thread)
        try:
            with self._turn:
                if self._ended or self._closed:
                    error = None
                else:
                    entry = self._channel.take()
                    if not isinstance(entry, End):
                        return entry[0]
                    self._ended = not self._closed
                    error = entry.error
        except BaseException as interrupt:
            self._closed = self._closed or not self._ended
            job.stop_for(interrupt)
            self._channel.discard()
            raise
        return self._finish(error)

    def close(self) -> None:
        """Cancel the producer, wait for its cleanup, free what is queued. No effect after the end or a close.

        Raises:
            BaseException: What the producer's cleanup raised.
            LoopThreadError: The caller runs on the loop thread itself.
        """
        job = self._job
        if is_inherited(job.maker):
            return
        check_owner(job.maker, job.thread)
        self._closed = self._closed or not self._ended
        try:
            job.stop()
        finally:
            self._channel.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _finish(self, error: BaseException | None) -> T:
        if self._closed:
            raise ClosedError(CLOSED)
        if error is None:
            raise StopIteration
        raise_unless_exiting(error)
