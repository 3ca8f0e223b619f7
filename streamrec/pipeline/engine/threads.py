"""Worker threads of a run, which live as long as the run.

A call is handed to a thread immediately. (anyio's `to_thread.run_sync` takes two turns of the loop
first, and on a loop that was not started by `asyncio.run` it searches all tasks for one whose end
stops its threads. With sixteen shards being read on that loop, this took most of a millisecond for
2 ms of work. Without it, shuffling and parsing batches took 3 to 8 % less processor time and were
10 to 20 % faster.)

Rules:
- There are as many threads as concurrent calls. The last idle thread is used first, since its stack
  is warm.
- A call is never interrupted. A cancelled caller waits for its end up to `LEAVE_SECONDS`; then the
  log says which function still runs, and where.
- An abandoned thread ends after its call if the run is closed by then.
- Threads are daemons: the interpreter does not wait for a function that never returns.
- A closed run leaves no thread running: a task that awaits the user's functions in a thread asks it
  to halt between two calls, and waits until the current one returns.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextvars import copy_context
from functools import partial
from math import inf
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import thread_time
from typing import Any, Final, TypeVar

import anyio

from streamrec.display import logger
from streamrec.pipeline.elements.chunk import Chunk
from streamrec.pipeline.engine.stage import Halt, Offload, collect, halting

T = TypeVar("T")

HOP_SECONDS: Final = 0.5e-3
"""Shorter work runs on the event loop.

A hop to a thread and back takes a quarter of this time, and four changes of the GIL, for each of
which a training loop on the main thread may have to wait.
"""

LEAVE_SECONDS = 5.0
"""How long a cancelled caller waits for its call. Not tuned."""

PACKAGE: Final = str(Path(__file__).parents[2])


class Call:
    """One call. The loop sets the future `ended`, and `over`, when it has ended."""

    def __init__(self, work: Callable[[], Any], ended: asyncio.Future[None]) -> None:
        self.ended = ended
        self.over = False
        self._context = copy_context()
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Runs in the thread."""
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:
            self._error = error

    def settle(self) -> None:
        """Runs on the loop."""
        self.over = True
        if not self.ended.done():  # it is done if its task was cancelled
            self.ended.set_result(None)

    def outcome(self) -> Any:
        """Returns what the work returned, or raises what it raised."""
        error = self._error
        self._error = None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error  # its traceback holds this frame


class Worker:
    """One thread, and the queue of its calls; None ends it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, freed: Callable[[Worker], None]) -> None:
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._loop = loop
        self._freed = freed
        self._thread = Thread(target=self._serve, name="streamrec-worker", daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Runs a call; after it, calls `freed` on the loop."""
        self._calls.put(call)

    def end(self) -> None:
        """Ends the idle thread, and waits for it."""
        self._calls.put(None)
        self._thread.join()

    def position(self) -> str:
        """The user's function that the thread runs, and its line."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        user_frame = None
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            user_frame = frame
            frame = frame.f_back
        if user_frame is None:
            return "a function in a thread"
        return (
            f"{user_frame.f_code.co_qualname} (line {user_frame.f_lineno} of "
            f"{user_frame.f_code.co_filename})"
        )

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
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
        """Runs `work` in a thread, in a copy of this context; returns or raises what it does.

        If this task is cancelled meanwhile, `cancelled` is called, so that the work can end sooner.
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
                # The cancelled future is done: the thread's end needs another one.
                call.ended = loop.create_future()
                with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                    await call.ended
            if not call.over:
                logger.warning(
                    "%s still runs after %g s; it is abandoned", worker.position(), LEAVE_SECONDS
                )
            raise
        return call.outcome()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the idle threads and waits for them; a busy one ends when its call returns."""
        self._closed = True
        while self._idle:
            self._idle.pop().end()

    def _free(self, worker: Worker) -> None:
        if self._closed:
            worker.end()
        else:
            self._idle.append(worker)


async def run_in_thread(threads: Threads, work: Callable[[], T]) -> T:
    """Runs `work` in a thread and returns its result.

    If this task is cancelled, the thread ends first.
    """
    halt = Halt()

    def run() -> T:
        halting.set(halt)  # in the thread's own copy of the context
        return work()

    return await threads.run(run, halt.ask)


async def through(
    threads: Threads, outputs: Iterator[Chunk], offload: bool
) -> tuple[list[Chunk], Exception | None]:
    """Computes all outputs, in a thread or at once; returns them with the error that ended them."""
    return await run_in_thread(threads, partial(collect, outputs)) if offload else collect(outputs)


class Offloader:
    """Runs the stages of a chain that ask for a thread (`offload`).

    If this is faster, they run on the loop.

    LONG depends on the processor time for each byte of the last chunk; the first chunk goes to a
    thread.
    """

    def __init__(self, offload: Offload, threads: Threads) -> None:
        self._threads = threads
        self._offload = offload
        self._seconds_a_byte = inf

    async def through(
        self, outputs: Iterator[Chunk], nbytes: int = 0
    ) -> tuple[list[Chunk], Exception | None]:
        """Computes all outputs of `nbytes` of input (0 if unknown).

        Returns them with the error that ended them.
        """
        if self._offload is Offload.ALWAYS or not nbytes:
            return await run_in_thread(self._threads, partial(collect, outputs))
        timed = partial(self._run_timed, outputs, nbytes)
        return (
            await run_in_thread(self._threads, timed)
            if self._seconds_a_byte * nbytes > HOP_SECONDS
            else timed()
        )

    def _run_timed(
        self, outputs: Iterator[Chunk], nbytes: int
    ) -> tuple[list[Chunk], Exception | None]:
        began = thread_time()
        try:
            return collect(outputs)
        finally:
            self._seconds_a_byte = (thread_time() - began) / nbytes
