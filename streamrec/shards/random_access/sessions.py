"""What random access keeps open: for each event loop its storages and the fetcher over them.

Rules:
- Storages belong to the loop that they were made in, so each loop that asks has its own; sync callers share the
  bridge's.
- They are closed when the source is dropped, and when their loop ends: an async generator holds them, and a loop closes
  its generators (`asyncio.run` and the bridge call `shutdown_asyncgens`).
- A forked child starts anew. What it inherits is never used and never freed: it belongs to loops of the parent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from weakref import WeakSet

from streamrec.shards.random_access.fetcher import RecordFetcher

__all__ = ["Sessions"]

Open = Callable[[], AsyncGenerator[RecordFetcher]]
"""Opens storages, gives the fetcher over them, and closes them when it is closed."""


class _Session:
    """One loop's."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.generator: AsyncGenerator[RecordFetcher] | None = None
        self.fetcher: RecordFetcher | None = None


class Sessions:
    """The fetchers of one source, one for each event loop.

    Args:
        opened: Opens one in the running loop.
    """

    def __init__(self, opened: Open) -> None:
        self._open = opened
        self._of_loop: dict[asyncio.AbstractEventLoop, _Session] = {}
        _all.add(self)

    async def here(self) -> RecordFetcher:
        """The fetcher of the running loop."""
        loop = asyncio.get_running_loop()
        session = self._of_loop.get(loop)
        if session is None:
            self._of_loop = {other: kept for other, kept in self._of_loop.items() if not other.is_closed()}
            session = self._of_loop[loop] = _Session()
        async with session.lock:
            if session.fetcher is None:
                session.generator = self._open()
                session.fetcher = await anext(session.generator)
            return session.fetcher

    async def close(self) -> None:
        """Closes what is open in the running loop; the next call opens it again."""
        session = self._of_loop.pop(asyncio.get_running_loop(), None)
        if session is not None and session.generator is not None:
            await session.generator.aclose()

    def forget(self) -> None:
        """In a forked child: starts anew."""
        _inherited.append(self._of_loop)
        self._of_loop = {}


_all: WeakSet[Sessions] = WeakSet()
_inherited: list[object] = []


def _after_fork() -> None:
    for sessions in list(_all):
        sessions.forget()


os.register_at_fork(after_in_child=_after_fork)
