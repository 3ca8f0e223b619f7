"""Session: what one run keeps from epoch to epoch: clients, listings, caches and threads.

Making a client costs up to a second, and a listing costs a request for a thousand names. So both
are made when a source is first read, and reused in each epoch. Listed names are kept with the
description (`Memo`) for all runs of a Dataset: all epochs have the same shards, and a position
means the same in each of them.

Chains that come and go within a run (which the function of an `interleave` makes) have a branch
each, with which their listings end. Clients stay: sources that read from the same stores, in any
branch, share them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Hashable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from anyio.abc import TaskGroup

from streamrec.pipeline.engine.threads import Threads
from streamrec.shards import Filenames, Listing, NameListing
from streamrec.storage import MAX_CONNECTIONS, RetryPolicy, Storages
from streamrec.storage.cache_settings import UNWRITTEN_BYTES, UNWRITTEN_SHARE
from streamrec.storage.ledger import Ledger, SetAside
from streamrec.storage.tasks import background

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class Memo(dict[Hashable, Any]):
    """Values that a source keeps from run to run, by key.

    It belongs to the description, and is freed with it, but is not part of its value: a pickled
    copy is empty.
    """

    def __reduce__(self) -> tuple[Callable[[], Memo], tuple[()]]:
        return Memo, ()


@dataclass(frozen=True, slots=True)
class SourceStores:
    """The options of a source's stores; sources with equal options share clients."""

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    filesystem: AbstractFileSystem | None = None
    retry: RetryPolicy = RetryPolicy()
    max_connections: int = MAX_CONNECTIONS


@dataclass(frozen=True, slots=True)
class OpenSource:
    """An open source: its stores, and the shards known so far."""

    storages: Storages
    listing: Listing


class Session:
    """The open sources of one run, or of a branch of it, and its threads. Made by `session`."""

    def __init__(
        self, tasks: TaskGroup, stack: AsyncExitStack, ledger: Ledger, run: Session | None = None
    ) -> None:
        self.ledger = ledger
        self._tasks = tasks
        self._stack = stack
        self._run = self if run is None else run
        self._clients: list[tuple[SourceStores, Storages]] = []
        self._shares: list[SetAside] = []
        self._opened: dict[int, tuple[object, OpenSource]] = {}
        # What a source, by its id, keeps from epoch to epoch.
        self.kept: dict[int, tuple[object, Any]] = {}

    @cached_property
    def threads(self) -> Threads:
        """The run's threads, made when a source or a stage first needs one."""
        if self._run is not self:
            return self._run.threads
        threads = Threads()
        self._stack.callback(threads.close)
        return threads

    async def open(
        self,
        source: object,
        options: SourceStores,
        buffer_bytes: int,
        filenames: Filenames,
        memo: Memo,
        *,
        patterns: bool = False,
    ) -> OpenSource:
        """A source's stores and shards, opened in its first epoch.

        `buffer_bytes`, which its streams may read ahead, add up for shared stores. The memo keeps
        the listing for later runs.
        """
        # `_opened` holds the source, too, so that no other object gets its id.
        if id(source) in self._opened:
            return self._opened[id(source)][1]
        storages = await self._run.clients(options)
        storages.connections.room.widen(buffer_bytes)
        self._stack.callback(storages.connections.room.widen, -buffer_bytes)
        known = memo.get(NameListing)
        keep = partial(memo.__setitem__, NameListing)
        listing = NameListing(storages, filenames, known, keep, patterns=patterns)
        opened = OpenSource(storages, listing)
        self._opened[id(source)] = source, opened
        if listing.asks:
            self._tasks.start_soon(listing.run)
        return opened

    async def clients(self, options: SourceStores) -> Storages:
        """The run's clients for these options, made when first needed, and closed with the run."""
        for known, storages in self._clients:
            if known == options:
                return storages
        new = Storages(
            options.storage_options,
            filesystem=options.filesystem,
            retry=options.retry,
            buffer_bytes=0,
            max_connections=options.max_connections,
            cached=True,
            unwritten_bytes=self._unwritten_bytes(),
        )
        storages = await self._stack.enter_async_context(new)
        if storages.unwritten_bytes:
            self._shares.append(self.ledger.reserve("cache", storages.unwritten_bytes))
        self.ledger.adopt(storages.connections.room)
        self._stack.callback(storages.connections.room.close)
        self._clients.append((options, storages))
        return storages

    def _unwritten_bytes(self) -> int:
        """Returns how many bytes may wait to be written to the cache of the next clients."""
        left = self.ledger.account.limit
        return min(UNWRITTEN_BYTES, left // UNWRITTEN_SHARE)

    @asynccontextmanager
    async def branch(self) -> AsyncGenerator[Session]:
        """A session for a chain that ends before the run.

        Its listings end with it, clients stay.
        """
        async with AsyncExitStack() as stack, background() as tasks:
            yield Session(tasks, stack, self.ledger, self._run)


@asynccontextmanager
async def session(ledger: Ledger | None = None) -> AsyncGenerator[Session]:
    """A session.

    When its block is left in any way, listings are cancelled, stores closed, threads ended. The
    `ledger` counts the bytes that the run holds; it is None if no shard is read.
    """
    async with AsyncExitStack() as stack, background() as tasks:
        yield Session(tasks, stack, ledger or Ledger(0))
