"""Credentials that expire in the middle of a run are renewed once for all requests, off the event loop.

Rules:

* Whoever finds that a request was refused names the generation of credentials that it was sent with. If others
  have renewed them since, there is nothing to do; if somebody is at it, one waits for that; else one begins.
* A waiter that is cancelled does not cancel the renewal: others wait for it too.
* A renewal that fails fails for those who waited; the next one who asks begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

__all__ = ["Renewal"]


class Renewal:
    """One store's credentials.

    Args:
        renew: Gets new ones. It must not block the loop.

    Attributes:
        generation: How often they were renewed; a request notes it when it is sent.
    """

    def __init__(self, renew: Callable[[], Awaitable[None]]) -> None:
        self.generation = 0
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    async def since(self, generation: int) -> None:
        """Returns when the credentials are newer than those of a generation.

        Raises:
            Exception: What `renew` raised.
        """
        if generation == self.generation:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run())
                self._task.add_done_callback(self._ended)
            await asyncio.shield(self._task)

    async def aclose(self) -> None:
        """Waits for nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        await self._renew()
        self.generation += 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # looked at, so that nothing is logged where all waiters are gone
