"""Hedged requests: requests for the same bytes, of which the first to be answered counts.

Rules:

* A request that fails leaves the others running; its error counts when it was the last one, or when it is final,
  because a final error would be the same for all.
* `settle` leaves nothing behind: requests under way are cancelled, and a response that came after the first is
  closed, with its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from streamrec.storage.backend import Body
from streamrec.storage.resilience.faults import TransientError

__all__ = ["HedgedRequests"]


class HedgedRequests:
    """Requests that run against each other.

    Attributes:
        answer: The first response, or the error that all came to.
        taken: Set by who took the answer: `settle` then leaves it open.
    """

    def __init__(self) -> None:
        self.answer: asyncio.Future[Body] = asyncio.get_running_loop().create_future()
        self.taken = False
        self._running: set[asyncio.Task[Body]] = set()
        self._late: list[Body] = []

    def send(self, request: Coroutine[Any, Any, Body]) -> None:
        """Sends one more request."""
        task = asyncio.get_running_loop().create_task(request)
        self._running.add(task)
        task.add_done_callback(self._done)

    @property
    def failed(self) -> bool:
        """Whether all of them failed, in a way that another one may not; nothing is left to settle then."""
        answer = self.answer
        failed = answer.done() and not answer.cancelled() and isinstance(answer.exception(), TransientError)
        return failed and not self._running and not self._late

    async def settle(self) -> None:
        """Cancels and closes all but an answer that was taken."""
        answer = self.answer
        if not answer.cancel() and not answer.cancelled() and answer.exception() is None and not self.taken:
            self._late.append(answer.result())
        for task in self._running:
            task.cancel()
        while self._running:
            await asyncio.wait(self._running)
            await asyncio.sleep(0)  # their callbacks come after
        while self._late:
            await self._late.pop().aclose()

    def _done(self, task: asyncio.Task[Body]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            return
        if self.answer.done():
            if error is None:
                self._late.append(task.result())
        elif error is None:
            self.answer.set_result(task.result())
        elif not self._running or not isinstance(error, TransientError):
            self.answer.set_exception(error)
