"""One piece of async work that a thread outside the loop answers for.

What holds:

- The work runs in a copy of the caller's context variables, in a task of its own on the loop thread.
- It is cancelled at most once, however many callers ask, however often (close, Ctrl-C, garbage collection, exit): its
  cleanup, slow `finally` blocks included, is not disturbed. `stop` returns when the cleanup is done.
- Insistence is the exception: an interrupt (a Ctrl-C) *while* `stop` waits cancels the work again, and
  `stop` returns when it has ended or after GRACE seconds. A further interrupt makes it return at once. Work
  abandoned that way continues on the loop thread; a note on the exception says so.
- It reports exactly once, when it has ended, and always: also when the loop was stopped or never saw it.
- An error that cleanup raises after a cancellation is raised by `stop`; where an interrupt is under way it
  becomes a note on that; where no caller waits (garbage collection, exit) the loop's exception handler logs
  it.
- No interrupt is lost and none leaves a lock held: outside the loop thread a job only posts to the loop
  (which takes no lock) and waits at a latch (see there). The loop calls what is posted in order, so a
  cancellation that arrives before the start means that the start was never posted.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import Context, copy_context
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

from streamrec.bridge.channel import Channel
from streamrec.bridge.loop import EXITING, GRACE, Latch, LoopThread, is_inherited, loop_thread, raise_unless_exiting
from streamrec.display import display_text
from streamrec.errors import ClosedError

sniffio: Any
try:
    import sniffio
except ModuleNotFoundError:  # then nothing in this process can have set its variable
    sniffio = None

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("streamrec")

CANCELLED = "the work was cancelled from outside before it had ended; what it gave so far is not all of it"
LEFT_BEHIND = f"streamrec: cleanup was still running {GRACE:g} s after it was interrupted, and was abandoned"


class Job(Generic[T]):
    """`await function(*args)` on a loop thread; an orphan's errors are logged, because no caller waits for it.

    Args:
        failures: Errors of the work itself, which it adds to while it runs: these are not errors of its cleanup, and
            are not logged.

    Attributes:
        thread: The loop thread.
        maker: Process that made the job.
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
        self._call = function, args
        self._context = _copy_context()
        self._channel = channel
        self._latch = Latch()
        # Below: written on the loop thread only.
        self._task: asyncio.Task[T] | None = None
        self._cancelled = False
        self._orphan = orphan
        self._failures = failures
        self._result: T | None = None
        self._error: BaseException | None = None

    # Called by the thread that answers for the job.

    def start(self) -> None:
        """Makes the loop begin the work."""
        self.thread.jobs.add(self.end)
        if not self.thread.post(self._begin):
            self.end(ClosedError(self.thread.close_reason))

    def wait(self) -> None:
        """Blocks until the work has ended."""
        self._latch.wait()

    def outcome(self) -> T:
        """What the work returned; to be called when it has ended.

        Raises:
            BaseException: What the work raised, with its traceback.
        """
        if self._error is not None:
            raise_unless_exiting(self._error)
        return cast(T, self._result)

    def stop(self) -> None:
        """Cancels the work and blocks until its cleanup is done; no effect on work that has ended.

        Raises:
            BaseException: What cleanup raised; once.
        """
        self._post_cancel()
        self._await_cleanup()
        if self._cancelled and self._error is not None:
            error, self._error = self._error, None
            raise error

    def stop_for(self, interrupt: BaseException) -> None:
        """As `stop`, while `interrupt` is on its way: what cleanup raises becomes a note on it."""
        self._post_cancel()
        self._await_cleanup()
        if self._cancelled and self._error is not None:
            interrupt.add_note(display_text(f"streamrec: cleanup raised {self._error!r}"))

    def abandon(self) -> None:
        """Cancels the work and does not wait. Safe in a garbage collection."""
        self._post_cancel(orphan=True)

    def _post_cancel(self, again: bool = False, orphan: bool = False) -> None:
        if not self._latch.is_open and not is_inherited(self.maker):
            self.thread.post(self._cancel, again, orphan)

    def _await_cleanup(self) -> None:
        try:
            self._latch.wait()
        except BaseException as insistence:
            self._post_cancel(again=True)
            if not self._latch.wait(GRACE):
                insistence.add_note(LEFT_BEHIND)
            raise

    # Called on the loop thread.

    def _begin(self) -> None:
        if self.thread.dead:
            self.end(ClosedError(self.thread.close_reason))
            return
        function, args = self._call
        name = f"streamrec: {getattr(function, '__qualname__', type(function).__qualname__)}"
        self._task = self.thread.loop.create_task(_await(function, args), name=name, context=self._context)
        self._task.add_done_callback(self._on_done)

    def _cancel(self, again: bool, orphan: bool) -> None:
        self._orphan = self._orphan or orphan
        if self._latch.is_open or (self._cancelled and not again):
            return
        self._cancelled = True
        if self._channel is not None:
            self._channel.refuse_puts()
        if self._task is None:
            self.end(None)  # it was never posted, and won't be
        elif again or not self._task.cancelling():  # at exit the loop thread may have been first
            self._task.cancel()

    def _on_done(self, task: asyncio.Task[T]) -> None:
        error = _error_of(task)
        if isinstance(error, asyncio.CancelledError):
            error = None if self._cancelled else self._cut_short(error)
        elif self._cancelled and isinstance(error, ClosedError):
            error = None  # a put found the iterator closed before the cancellation reached the work
        elif error is None:
            self._result = task.result()
        elif (self._orphan or self.thread.close_reason is EXITING) and error not in self._failures:
            self._log(error)
        self.end(error)

    def _cut_short(self, cause: BaseException) -> ClosedError:
        error = ClosedError(self.thread.close_reason if self.thread.dead else CANCELLED)
        error.__cause__ = cause
        return error

    def _log(self, error: BaseException) -> None:
        if self.thread.close_reason is EXITING:
            logger.warning("cleanup failed while the program ended: %s: %s", type(error).__name__, error)
            return
        message = "streamrec: cleanup failed, and no caller waits for it"
        self.thread.loop.call_exception_handler({"message": message, "exception": error, "task": self._task})

    def end(self, error: BaseException | None) -> None:
        """Reports the end, unless it is reported already: of the work, or of its loop."""
        if self._latch.is_open:
            return
        self._error = error
        self.thread.jobs.discard(self.end)
        if self._channel is not None:
            self._channel.end(error)
        self._latch.open()


def run(function: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run `await function(*args)` on the process's loop thread; block the caller.

    Ctrl-C cancels the work and waits for its cleanup before KeyboardInterrupt goes on; a second Ctrl-C cuts
    the cleanup short. In a trio or asyncio program it blocks that program's loop as any sync call does:
    wrap it in `trio.to_thread.run_sync` or `asyncio.to_thread`.

    Args:
        function: An async function, or any function that returns an awaitable; called on the loop thread.
        args: Its arguments.

    Returns:
        What the awaitable gives.

    Raises:
        BaseException: What it raises, with its traceback.
        LoopThreadError: The caller runs on the loop thread itself.
        ClosedError: The loop was stopped, the work was cancelled from outside, or the interpreter is exiting.
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
    """An async function for code that is not async: runs it on the background thread and waits; see `run`.

    Args:
        function: The function. The one made of it has its name with `_sync` after it, and takes its arguments.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(partial(function, *args, **kwargs))

    call.__name__ = call.__qualname__ = f"{function.__name__}_sync"
    call.__doc__ = f"`{function.__name__}` for code that is not async: runs it on the background thread and waits."
    return call


def detach(function: Callable[..., Awaitable[object]], *args: Any) -> Callable[[], bool]:
    """Work that may be wanted when no caller is left to wait for it.

    Args:
        function: An async function.
        args: Its arguments.

    Returns:
        A call that starts `await function(*args)` on the loop thread and returns at once; safe in a garbage collection.
        In a process that was forked since, it returns False and does nothing. What the work raises is logged.

    Raises:
        LoopThreadError, ClosedError: As for `run`.
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


def _copy_context() -> Context:
    context = copy_context()
    if sniffio is not None:  # a caller under trio carries "trio" here, and anyio on our loop would believe it
        context.run(sniffio.current_async_library_cvar.set, None)
    return context


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    try:
        return task.exception()
    except asyncio.CancelledError as cancelled:
        return cancelled
