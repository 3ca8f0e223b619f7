"""RequestAhead: the request for what follows a body that ends early, sent while that body's last bytes come.

So no first byte is waited for between the two. Nothing of its body is read before its turn has come.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from streamrec.storage.backend import Body
from streamrec.storage.resilience.shield import finish

__all__ = ["RequestAhead"]


class Unread(Protocol):
    """A stream of which nothing was read."""

    position: int

    async def open(self) -> None:
        """Waits for the response."""

    def release(self) -> Body:
        """Gives it away."""

    async def aclose(self) -> None:
        """Frees the connection."""


class RequestAhead:
    """One such request.

    Args:
        stream: What sends it, with retries and hedging of its own, and owns the response until that is taken.

    Attributes:
        start: Its first byte.
    """

    def __init__(self, stream: Unread) -> None:
        self.start = stream.position
        self._stream = stream
        self._task = asyncio.get_running_loop().create_task(stream.open(), name="streamrec request ahead")

    async def take(self) -> Body:
        """The response, which is the caller's from now on, or what the request failed with."""
        await asyncio.wait([self._task])
        self._task.result()
        return self._stream.release()

    async def aclose(self) -> None:
        """Ends it, and closes a response that was not taken. May be called twice."""
        self._task.cancel()
        await finish(self._gone())

    async def _gone(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # looked at, so that nothing is logged
        await self._stream.aclose()
