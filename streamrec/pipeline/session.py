"""Session: what one run keeps open from epoch to epoch: clients with their connections, and what globs matched.

Making a client costs up to a second, and a listing costs a request for every thousand names. So both are made when
a source is first read, and used again by each repeat. A glob is answered once a run, as in tf.data: every epoch
has the same shards, and a position means the same in each of them.
"""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from anyio.abc import TaskGroup

from streamrec.pipeline.background import background
from streamrec.shards import Filenames, Listing, Portion
from streamrec.storage import Storages

__all__ = ["Listed", "Opened", "Session", "session"]

T = TypeVar("T")


class Listed(Protocol):
    """The shards, or portions of shards, that are read, as far as they are known; see `shards.Listing`."""

    @property
    def paths(self) -> Sequence[str]: ...

    @property
    def sizes(self) -> Mapping[str, int]: ...

    @property
    def complete(self) -> bool: ...

    @property
    def error(self) -> Exception | None: ...

    async def until(self, count: int) -> None: ...

    def portion(self, number: int) -> Portion: ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A source that is open: its stores, and its shards as far as they are known."""

    storages: Storages
    listing: Listed


class Session:
    """The open sources of one run. Made by `session`."""

    def __init__(self, tasks: TaskGroup, stack: AsyncExitStack) -> None:
        self._tasks = tasks
        self._stack = stack
        self._opened: list[tuple[object, Opened]] = []
        self._kept: dict[int, tuple[weakref.ref[object], Any]] = {}

    def remember(self, source: object, make: Callable[[], T]) -> T:
        """What a source keeps from epoch to epoch; it goes with the source, or with the run.

        Args:
            source: The description of the source; the same object means the same source.
            make: Makes what is kept, at first.
        """
        key = id(source)
        if key not in self._kept:
            self._kept[key] = (weakref.ref(source, lambda _: self._kept.pop(key, None)), make())
        kept: T = self._kept[key][1]
        return kept

    async def open(self, source: object, storages: Callable[[], Storages], filenames: Filenames) -> Opened:
        """A source's stores and shards: those of the epoch before, where there was one.

        Args:
            source: The description of the source; the same object means the same source.
            storages: Makes its stores.
            filenames: The names of its shards.
        """
        for known, opened in self._opened:
            if known is source:
                return opened
        stores = await self._stack.enter_async_context(storages())
        listing = Listing(stores, filenames)
        opened = Opened(stores, listing)
        self._opened.append((source, opened))
        self._tasks.start_soon(listing.run)
        return opened


@asynccontextmanager
async def session() -> AsyncGenerator[Session]:
    """A session; when its block is left by any way, its listings are cancelled and its stores closed."""
    async with AsyncExitStack() as stack, background() as tasks:
        yield Session(tasks, stack)
