"""Threads: where a run's work is done outside its event loop. They live as long as the run.

A call is handed over in the very turn of the loop that asks for it. (anyio's `to_thread.run_sync` goes through the loop
twice first, and on a loop that was not started by `asyncio.run` it looks through all tasks for one that its threads end
with. Where sixteen shards are being read on that loop, this took most of a millisecond for 2 ms of work; measured
without it: 3 to 8 % less processor time, and 10 to 20 % more speed, where batches are shuffled or parsed.)

Rules:
- As many threads as there are calls at once; of those that are idle the last one is used first: its stack is warm.
- A call is never broken off. A caller that is cancelled waits for its end, for `LEAVE_SECONDS`: then the log says which
  function still runs, and where.
- A thread that is left ends after its call, if the run is closed by then.
- They are daemons: the interpreter does not wait for a function that never returns.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextvars import copy_context
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, TypeVar

import anyio

from streamrec.display import logger

__all__ = ["LEAVE_SECONDS", "Threads"]

T = TypeVar("T")

LEAVE_SECONDS = 5.0
"""How long a caller that is cancelled waits for a call. Not tuned."""

PACKAGE: Final = str(Path(__file__).parents[2])


class Call:
    """One call.

    Attributes:
        ended: Gets a result when the thread is done with it; on the loop.
        over: Whether it is; on the loop.
    """

    def __init__(self, work: Callable[[], Any], ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.over = False
        self._context = copy_context()
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """The thread's part."""
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:
            self._error = error

    def settle(self) -> None:
        """The loop's part."""
        self.over = True
        if not self.ended.done():  # it is where its task was cancelled
            self.ended.set_result(None)

    def outcome(self) -> Any:
        """What it returned.

        Raises:
            BaseException: What it raised.
        """
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


class Worker:
    """One thread, and the line of what it is to do; None tells it to end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, freed: Callable[[Worker], None]) -> None:
        self._line: SimpleQueue[Call | None] = SimpleQueue()
        self._loop = loop
        self._freed = freed
        self._thread = Thread(target=self._serve, name="streamrec-worker", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Does this next; then it is idle again, and says so to `freed` on the loop."""
        self._line.put(call)

    def end(self) -> None:
        """An idle one ends at once, and is waited for."""
        self._line.put(None)
        self._thread.join()

    def position(self) -> str:
        """The user's function that it is in, and the line."""
        frame, found = sys._current_frames().get(self._thread.ident or 0), None
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame, found = frame.f_back, frame
        if found is None:
            return "a function in a thread"
        return f"{found.f_code.co_qualname} (line {found.f_lineno} of {found.f_code.co_filename})"

    def _serve(self) -> None:
        while (call := self._line.get()) is not None:
            call.run()
            try:
                self._loop.call_soon_threadsafe(self._on_done, call)
            except RuntimeError:  # the loop is closed: no task waits
                return
            del call

    def _on_done(self, call: Call) -> None:
        self._freed(self)
        call.settle()


class Threads:
    """The threads of one run."""

    def __init__(self) -> None:
        self._idle: list[Worker] = []
        self._closed = False

    async def run(self, work: Callable[[], T], cancelled: Callable[[], object] | None = None) -> T:
        """What `work` returns, from a thread, in a copy of this context.

        Args:
            work: What is done.
            cancelled: Called when this task is cancelled meanwhile, so that the work can end sooner.

        Raises:
            BaseException: What it raises.
        """
        loop = asyncio.get_running_loop()
        call = Call(work, loop.create_future())
        worker = self._idle.pop() if self._idle else Worker(loop, self._free)
        worker.put(call)
        try:
            await call.ended
        except asyncio.CancelledError:
            if cancelled is not None:
                cancelled()
            if not call.over:
                call.ended = loop.create_future()
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await call.ended
            if not call.over:
                logger.warning("%s still runs after %g s; it is abandoned", worker.position(), LEAVE_SECONDS)
            raise
        return call.outcome()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends them."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    def _free(self, worker: Worker) -> None:
        if self._closed:
            worker.end()
        else:
            self._idle.append(worker)
