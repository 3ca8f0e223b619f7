"""Fair scheduling: one piece of work in each iteration of the event loop, first come, first served.

Work that does not wait, and takes some tenths of a millisecond, belongs on the loop. Sixteen such pieces at once
do not: whatever has come meanwhile waits until the last of them is done.
"""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["FairScheduler"]


class FairScheduler:
    """A line for one loop; who comes first goes first."""

    def __init__(self) -> None:
        self._taken = False
        self._line: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Waits for a turn of the loop that nobody has; at once where that is this one."""
        loop = asyncio.get_running_loop()
        if self._taken:
            place = loop.create_future()
            self._line.append(place)
            try:
                await place
            except asyncio.CancelledError:
                if not place.cancelled():
                    self._next()
                raise
        self._taken = True
        loop.call_soon(self._next)

    def _next(self) -> None:
        """The turn is over, or not wanted any more: the next in line has it."""
        while self._line:
            place = self._line.popleft()
            if not place.done():
                place.set_result(None)
                return
        self._taken = False
