"""One piece of async work, on the loop thread, that a thread outside the loop started.

Rules:

- The work runs in a copy of the caller's context variables, in a task of its own on the loop
  thread.
- It is cancelled at most once, however often callers ask for it (close, Ctrl-C, garbage collection,
  exit), so that its cleanup runs undisturbed. `stop` returns when the cleanup is done.
- One exception: an interrupt (Ctrl-C) *while* `stop` waits cancels the work again, and `stop`
  returns when the work has ended or after GRACE seconds. A further interrupt makes it return at
  once. Such abandoned work continues on the loop thread; a note on the exception says so.
- It always reports its end, exactly once, even when the loop was stopped before the work began.
- `stop` raises an error that cleanup raised after a cancellation. During an interrupt that error
  becomes a note on the interrupt. Where no caller waits (garbage collection, exit), the loop's
  exception handler logs it.
- No interrupt is lost, and none leaves a lock held: outside the loop thread a job only posts to the
  loop (which takes no lock) and waits for a latch. The loop makes posted calls in order, so a
  cancellation that arrives before the start means that the start was never posted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import copy_context
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

from streamrec.bridge.channel import Channel
from streamrec.bridge.loop import (
    EXITING,
    GRACE,
    Latch,
    LoopThread,
    is_inherited,
    loop_thread,
    raise_unless_exiting,
)
from streamrec.display import display_text, logger
from streamrec.errors import ClosedError
from streamrec.tracebacks import border

sniffio: Any
try:
    import sniffio
except ModuleNotFoundError:  # then nothing in this process can have set its variable
    sniffio = None

P = ParamSpec("P")
T = TypeVar("T")

CANCELLED = (
    "other code cancelled this work before it had ended: the items so far are not all of them"
)
ABANDONED = (
    f"streamrec: cleanup was still running {GRACE:g} s after it was interrupted, and was abandoned"
)


class Work(Generic[T]):
    """`await function(*args)` in a copy of the context variables of the thread that makes it."""

    def __init__(self, function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> None:
        self._function = function
        self._args = args
        self._context = copy_context()
        # A trio program's context says "trio", and anyio on our loop would believe it.
        if sniffio is not None:
            self._context.run(sniffio.current_async_library_cvar.set, None)

    def begin(self, loop: asyncio.AbstractEventLoop) -> asyncio.Task[T]:
        """Makes a task of it, in the loop's thread."""
        function = self._function
        name = f"streamrec: {getattr(function, '__qualname__', type(function).__qualname__)}"
        return loop.create_task(_await(function, self._args), name=name, context=self._context)


class Ending(Generic[T]):
    """How some work ended: its result or its error, which the loop thread sets once.

    >>> ending = Ending()
    >>> ending.set(None, result=5)
    >>> ending.wait(), ending.get()
    (True, 5)
    """

    def __init__(self) -> None:
        self._latch = Latch()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def is_set(self) -> bool:
        """Whether the work has ended."""
        return self._latch.is_open

    def set(self, error: BaseException | None, result: T | None = None) -> None:
        """Keeps the outcome, and releases all who wait."""
        self._error = error
        self._result = result
        self._latch.open()

    def wait(self, timeout: float = -1) -> bool:
        """Blocks until the work has ended, or for `timeout` seconds; returns whether it has."""
        return self._latch.wait(timeout)

    def get(self) -> T:
        """Returns the result of work that has ended, or raises its error with its traceback."""
        if self._error is not None:
            raise_unless_exiting(self._error)
        return cast(T, self._result)

    def take_error(self) -> BaseException | None:
        """Returns the error of work that has ended, the first time."""
        error = self._error
        self._error = None
        return error


class Job(Generic[T]):
    """Some work on a loop thread, from its start to its end or its cancellation.

    Errors are logged if no caller waits for the work (`orphan`), except those in `failures`: errors
    of the work itself, not of its cleanup, which it adds while it runs.

    Attributes:
        thread: The loop thread.
        maker: The process that made it.
    """

    def __init__(
        self,
        thread: LoopThread,
        function: Callable[..., Awaitable[T]],
        args: tuple[Any, ...] = (),
        channel: Channel[Any] | None = None,
        *,
        orphan: bool = False,
        failures: Sequence[BaseException] = (),
    ) -> None:
        self.thread = thread
        self.maker = os.getpid()
        self._work = Work(function, args)
        self._channel = channel
        self._failures = failures
        # Below: written on the loop thread only.
        self._ending: Ending[T] = Ending()
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._orphan = orphan

    # Called by the thread that started the job.

    def start(self) -> None:
        """Makes the loop begin the work."""
        self.thread.jobs.add(self.end)
        if not self.thread.post(self._begin):
            self.end(ClosedError(self.thread.close_reason))

    def wait(self) -> None:
        """Blocks until the work has ended."""
        self._ending.wait()

    def outcome(self) -> T:
        """Returns the result of work that has ended, or raises its error with its traceback."""
        return self._ending.get()

    def stop(self) -> None:
        """Cancels the work and blocks until its cleanup is done.

        Raises an error of the cleanup, once.
        """
        if (error := self._cancel_and_wait()) is not None:
            raise error

    def stop_for(self, interrupt: BaseException) -> None:
        """As `stop`, during an interrupt: an error of the cleanup becomes a note on it."""
        if (error := self._cancel_and_wait()) is not None:
            interrupt.add_note(display_text(f"streamrec: cleanup raised {error!r}"))

    def cancel(self, again: bool = False, orphan: bool = False) -> None:
        """Cancels the work and does not wait. Safe in a garbage collection."""
        if not self._ending.is_set and not is_inherited(self.maker):
            self.thread.post(self._cancel, again, orphan)

    def _cancel_and_wait(self) -> BaseException | None:
        """Cancels the work and waits for its end.

        Returns the error of its cleanup, the first time.
        """
        self.cancel()
        try:
            self._ending.wait()
        except BaseException as second_interrupt:
            self.cancel(again=True)
            if not self._ending.wait(GRACE):
                second_interrupt.add_note(ABANDONED)
            raise
        return self._ending.take_error() if self._cancelled else None

    # Called on the loop thread.

    def _begin(self) -> None:
        if self.thread.dead:
            self.end(ClosedError(self.thread.close_reason))
            return
        self._task = self._work.begin(self.thread.loop)
        self._task.add_done_callback(self._on_done)

    def _cancel(self, again: bool, orphan: bool) -> None:
        self._orphan = self._orphan or orphan
        if self._ending.is_set or (self._cancelled and not again):
            return
        self._cancelled = True
        if self._channel is not None:
            self._channel.refuse_puts()
        if self._task is None:
            self.end(None)  # the start was never posted, and will not be
        elif again or not self._task.cancelling():
            self._task.cancel()  # unless the loop thread cancelled it already, at exit

    def _on_done(self, task: asyncio.Task[T]) -> None:
        error: BaseException | None = None
        result: T | None = None
        try:
            error = task.exception()
        except asyncio.CancelledError as cause:
            if not self._cancelled:
                error = ClosedError(self.thread.close_reason if self.thread.dead else CANCELLED)
                error.__cause__ = cause
        else:
            if error is None:
                result = task.result()
            elif self._cancelled and isinstance(error, ClosedError):
                # A put found the iterator closed before the cancellation reached the work.
                error = None
            elif self._is_orphan and error not in self._failures:
                self._log(error)
        self.end(error, result)

    @property
    def _is_orphan(self) -> bool:
        """Whether no caller waits for the work."""
        return self._orphan or self.thread.close_reason is EXITING

    def _log(self, error: BaseException) -> None:
        if self.thread.close_reason is EXITING:
            logger.warning(
                "cleanup failed while the program ended: %s: %s", type(error).__name__, error
            )
            return
        message = "streamrec: cleanup failed, and no caller waits for it"
        self.thread.loop.call_exception_handler(
            {"message": message, "exception": error, "task": self._task}
        )

    def end(self, error: BaseException | None, result: T | None = None) -> None:
        """Reports the end of the work, or of its loop, unless an end was reported before."""
        if self._ending.is_set:
            return
        self.thread.jobs.discard(self.end)
        if self._channel is not None:
            self._channel.end(error)
        self._ending.set(error, result)


def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Runs `await function(*args)` on the process's loop thread.

    It blocks the caller, and returns the result.

    Ctrl-C cancels the work and waits for its cleanup before it raises KeyboardInterrupt; a second
    Ctrl-C cuts the cleanup short. In a trio or asyncio program it blocks that program's loop as any
    sync call does: wrap it in `trio.to_thread.run_sync` or `asyncio.to_thread`.

    A LoopThreadError says that the caller runs on the loop thread itself; a ClosedError, that the
    loop was stopped, other code cancelled the work, or the interpreter is exiting.
    """
    job = Job(loop_thread(), function, args)
    try:
        job.start()
        job.wait()
    except BaseException as interrupt:
        job.stop_for(interrupt)
        raise
    return job.outcome()


def synchronous(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Returns the sync twin of an async function.

    `name_sync` runs `name` on the loop thread and waits; see `run`.
    """

    @border
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(partial(function, *args, **kwargs))

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    call.__doc__ = (
        f"`{function.__name__}` for sync code: runs it on the background thread and waits."
    )
    return call


def detach(function: Callable[..., Awaitable[object]], *args: Any) -> Callable[[], bool]:
    """Returns a function that starts `await function(*args)` without a caller that waits for it.

    It starts the work on the loop thread and returns at once; it is safe in a garbage collection.
    In a process that was forked since, it returns False and does nothing. Errors of the work are
    logged.
    """
    job = Job(loop_thread(), function, args, orphan=True)

    def start() -> bool:
        if is_inherited(job.maker):
            return False
        job.start()
        return True

    return start


async def _await(function: Callable[..., Awaitable[T]], args: tuple[Any, ...]) -> T:
    return await function(*args)
