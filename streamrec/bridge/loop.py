"""The event-loop thread of this process.

Rules:

- One daemon thread per process runs one asyncio loop. It is made on first use and named
  "streamrec-loop". A running loop of the caller's thread (a notebook) is not touched.
- A call that would block the loop thread itself is refused with LoopThreadError.
- Fork: the child forgets the parent's thread and makes a new one on first use. All locks of this
  module are new in the child, so one that was held at the fork blocks no thread. The child never
  closes or frees the inherited loop: its epoll descriptor is shared with the parent, and closing
  the loop would remove the parent's registrations. The child never frees the inherited tasks
  either: their cleanup belongs to the parent.
- Exit: at interpreter exit (`atexit`, after the interpreter has joined all threads that are not
  daemons; in a child of multiprocessing, which skips `atexit`, through its finalizers) the thread
  cancels all tasks and awaits them for at most GRACE seconds. A task that was cancelled before
  finishes its cleanup. Errors of cleanup are logged. By then the interpreter does not let the pool
  of `asyncio.to_thread` take new work.
- A daemon thread that waits for the loop at exit keeps waiting, and dies with the process: an error
  would print a traceback on the way out, and an end of data would be wrong.
- If other code stops the loop (`loop.stop()`), every job on it ends with ClosedError, its tasks are
  cancelled and awaited, and the next use makes a new thread.
- SystemExit or KeyboardInterrupt in a task ends that task, as any exception does, never the loop.
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import multiprocessing
import multiprocessing.util
import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NoReturn

from streamrec.errors import ClosedError, LoopThreadError

GRACE = 5.0  # seconds for cleanup that no caller waits for; not tuned

STOPPED = (
    "other code stopped streamrec's event loop (loop.stop()): start again, and leave that loop "
    "alone"
)
EXITING = "the interpreter is exiting; end the iteration before the main thread ends"
FORKED = (
    "process {maker} made this object, and it does not work after a fork, in process {here}: make "
    "it again here"
)
ON_LOOP = (
    "this call blocks streamrec's own event-loop thread, which it would wait for: use the async "
    "interface there (`async for`), or make the call in a thread (asyncio.to_thread)"
)


class Latch:
    """Opens once and stays open.

    Any number of threads may wait; any thread may call `open`, more than once.

    Why not `threading.Event`: it is a Condition in Python. A KeyboardInterrupt between two of its
    lines can leave its lock held, and then the loop thread hangs in `set`. Here each waiter has a
    lock of its own that only the opener releases: an interrupted waiter leaves nothing but a lock
    that no thread uses.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._waiters: deque[threading.Lock] = deque()

    def open(self) -> None:
        """Releases all waiters, also later ones."""
        self.is_open = True
        with suppress(IndexError):  # no waiter is left, or a second opener took it
            while True:
                self._waiters.popleft().release()

    def wait(self, timeout: float = -1) -> bool:
        """Blocks until the latch is open, or for `timeout` seconds (-1: no limit).

        Returns whether it is open.
        """
        if self.is_open:
            return True
        lock = threading.Lock()
        lock.acquire()
        self._waiters.append(lock)
        # Checked again after joining the queue: an opener either finds this waiter, or has set
        # `is_open` before.
        return self.is_open or lock.acquire(timeout=timeout)


class LoopThread:
    """One asyncio loop on one daemon thread.

    `jobs` has the function that ends each running job with an error.
    """

    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self.ident = 0
        self.dead = False
        self.close_reason = STOPPED
        self.jobs: set[Callable[[BaseException], None]] = set()
        self._made = Latch()  # opens when the loop exists, or when making it has failed
        self._gone = Latch()
        self._failure: BaseException | None = None  # why the loop could not be made

    def start(self) -> None:
        """Starts the thread, waits until it has a loop, and makes it that of the process."""
        try:
            # _launch calls Thread.start(): an interrupt of it here could leave a lock held that the
            # new thread needs.
            _thread.start_new_thread(self._launch, ())
            self._made.wait()
            if self._failure is not None:
                raise self._failure
            if multiprocessing.parent_process() is not None:
                multiprocessing.util.Finalize(None, _at_exit, exitpriority=20)
                _before_threads_are_joined(_at_exit)
            _process.thread = self
        except BaseException:  # Ctrl-C: the thread may run already, and no caller would use it
            self.abandon()
            raise

    def abandon(self) -> None:
        """Ends a thread that has not been used yet, at any point of its start."""
        self.dead = True
        # Before that the thread checks `dead` itself.
        if self._made.is_open and self._failure is None:
            self.post(self.loop.stop)

    def post(self, callback: Callable[..., object], *args: object) -> bool:
        """Makes the loop call `callback(*args)` soon, from any thread, without a lock.

        Returns False if the loop is closed.
        """
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise
            return False
        return True

    def retire(self, close_reason: str) -> None:
        """Cancels all work, waits at most GRACE seconds for its cleanup, and ends the thread."""
        self.close_reason = close_reason
        if self.post(self.loop.stop):
            self._gone.wait(GRACE)

    def _launch(self) -> None:
        try:
            threading.Thread(target=self._main, name="streamrec-loop", daemon=True).start()
        except BaseException as error:
            self._fail(error)

    def _main(self) -> None:
        try:
            self.loop = asyncio.new_event_loop()
            self.loop.set_default_executor(_Pool(thread_name_prefix="asyncio"))
        except BaseException as error:
            self._fail(error)
            return
        self.ident = threading.get_ident()
        self._made.open()
        try:
            if not self.dead:
                self._serve()
        finally:
            # before jobs fail for the last time: a later job fails in _wind_down or in post
            self.dead = True
            self._wind_down()
            self.ident = 0  # the system may reuse it for the next thread

    def _serve(self) -> None:
        while True:
            try:
                self.loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # asyncio sends these through the loop as well as to the task that raised them
                continue
            return

    def _wind_down(self) -> None:
        try:
            drain = self.loop.create_task(self._drain())
            drain.add_done_callback(lambda _: self.loop.stop())
            while not drain.done():
                self._serve()
            drain.result()
        finally:
            self.loop.close()
            self._fail_jobs()  # after close: this ends jobs that were posted too late for the loop
            self._gone.open()

    async def _drain(self) -> None:
        tasks = await self._cancel_all()
        self._fail_jobs()
        if tasks:
            await asyncio.wait(tasks)  # no caller waits for them, and they must not be destroyed
        await self.loop.shutdown_asyncgens()
        # At exit the interpreter has joined the pool's threads.
        if self.close_reason is not EXITING:
            await self.loop.shutdown_default_executor()

    async def _cancel_all(self) -> set[asyncio.Task[Any]]:
        """Cancels every task, and those that cleanup starts.

        Returns the tasks that still run after GRACE seconds.

        A task is cancelled only after its first step: before that, anyio would never await the
        task's coroutine.
        """
        end = self.loop.time() + GRACE
        stepped: set[asyncio.Task[Any]] = set()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks & stepped:
                if not task.cancelling():  # a second cancellation would break its cleanup
                    task.cancel()
            if not tasks <= stepped:
                await asyncio.sleep(0)  # steps the new ones
                stepped = tasks
            elif (left := end - self.loop.time()) > 0:
                await asyncio.wait(tasks, timeout=left)
            else:
                break
        return tasks

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self.dead = True
        self._made.open()

    def _fail_jobs(self) -> None:
        for fail in list(self.jobs):
            fail(ClosedError(self.close_reason))


class _Pool(ThreadPoolExecutor):
    """The loop's threads.

    When the interpreter exits, they take no more work: `submit` calls the function itself.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            future: Future[Any] = Future()
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
            return future


class _Process:
    """The state of one process: a forked child makes its own."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.thread: LoopThread | None = None
        self.exiting = False


_process = _Process()
_inherited: list[_Process] = []  # the state of this process's parents, which is never freed


def loop_thread() -> LoopThread:
    """The loop thread of this process, made on first use.

    It is refused on that thread, and when the interpreter exits.
    """
    with _process.lock:
        if _process.exiting:
            raise ClosedError(EXITING)
        thread = _process.thread
        if thread is None or thread.dead:
            thread = LoopThread()
            thread.start()
    if threading.get_ident() == thread.ident:
        raise LoopThreadError(ON_LOOP)
    return thread


def check_owner(maker: int, thread: LoopThread) -> None:
    """Refuses a blocking call on another process's object, or on the loop's own thread.

    `maker` is the process that made the object.
    """
    if maker != _process.pid:
        raise ClosedError(FORKED.format(maker=maker, here=_process.pid))
    if threading.get_ident() == thread.ident:
        raise LoopThreadError(ON_LOOP)


def is_inherited(maker: int) -> bool:
    """Whether a fork brought an object of process `maker` here."""
    return maker != _process.pid


def raise_unless_exiting(error: BaseException) -> NoReturn:
    """Raises an error of the work.

    In a daemon thread of a process that exits, it waits for the process's end instead.
    """
    if _process.exiting and threading.current_thread().daemon:
        Latch().wait()
    try:
        raise error
    finally:
        del error  # no cycle of this frame and the traceback


def _before_threads_are_joined(function: Callable[[], None]) -> None:
    """Makes the interpreter call a function when the main thread ends.

    From Python 3.13 on, a child of multiprocessing joins its threads before it calls finalizers,
    and would hang on a thread that waits for an element. concurrent.futures uses this hook, which
    has no public name.
    """
    register = getattr(threading, "_register_atexit", None)
    if register is not None:
        with suppress(RuntimeError):  # the main thread has ended
            register(function)


def _at_exit() -> None:
    _process.exiting = True
    if _process.thread is not None:
        with suppress(KeyboardInterrupt):  # the user does not want to wait for cleanup
            _process.thread.retire(EXITING)


def _after_fork() -> None:
    global _process
    _inherited.append(_process)
    _process = _Process()


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
