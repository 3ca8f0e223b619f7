"""RequestAhead: the request for what follows a body that ends early, sent while that body's last bytes come.

So no first byte is waited for between the two. Nothing of its body is read before its turn has come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from streamrec.storage.backend import Body
from streamrec.storage.resilience.shield import finish

__all__ = ["RequestAhead"]


class RequestAhead:
    """One such request.

    Args:
        start: Its first byte.
        answer: Sends it; gives the response to what it is called with, which owns it from then on.

    Attributes:
        start: Its first byte.
    """

    def __init__(self, start: int, answer: Callable[[int, Callable[[Body], None]], Coroutine[Any, Any, None]]) -> None:
        self.start = start
        self._bodies: list[Body] = []
        work = answer(start, self._bodies.append)
        self._task = asyncio.get_running_loop().create_task(work, name="streamrec request ahead")

    async def take(self) -> Body:
        """The response, which is the caller's from now on, or what the request failed with."""
        await asyncio.wait([self._task])
        self._task.result()
        return self._bodies.pop()

    async def aclose(self) -> None:
        """Ends it, and closes a response that was not taken. May be called twice."""
        self._task.cancel()
        await finish(self._gone())

    async def _gone(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that nothing is logged
        while self._bodies:
            await self._bodies.pop().aclose()
