"""Storages: one Storage per protocol, made when first asked for, in the loop that asks.

`protocols.py` says which backend serves a URL.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import astuple
from functools import partial
from itertools import starmap
from types import TracebackType
from typing import Any, Self, TypedDict

import fsspec

from streamrec.arguments import described
from streamrec.display import masked_cause
from streamrec.errors import ClosedError, StorageError, StreamrecError
from streamrec.storage.backend import Backend
from streamrec.storage.base import Storage
from streamrec.storage.clients import borrow, key_of
from streamrec.storage.connections import BUFFER_BYTES, MAX_CONNECTIONS, START, Connections, KneeSearch
from streamrec.storage.hedging import Hedging
from streamrec.storage.identity import Identity, identities
from streamrec.storage.options import ClientOptions
from streamrec.storage.protocols import load_backend, place_of
from streamrec.storage.retry import RetryPolicy, attempt
from streamrec.storage.statistics import Reporter, Statistics, current
from streamrec.storage.tasks import finish
from streamrec.storage.traffic import Traffic
from streamrec.storage.urls import protocol_of

__all__ = ["Storages", "StoreOptions", "check_keywords", "check_source"]


class StoreOptions(TypedDict, total=False):
    """How stores are reached: keyword arguments of all that reads or writes URLs.

    Attributes:
        storage_options: Keyword arguments of the fsspec filesystem's class, as in pandas: `key`, `secret`,
            `endpoint_url`, `token`, ... None: none.
        filesystem: Your own fsspec filesystem, for all URLs, instead of one made from `storage_options`. An async one
            is made again from its arguments, in the running loop; any other is used as it is. A path without a scheme
            is a path in it.
        retry: When a request is tried again and when to give up; see RetryPolicy. None: its defaults.
    """

    storage_options: Mapping[str, Any] | None
    filesystem: fsspec.AbstractFileSystem | None
    retry: RetryPolicy | None


class Storages:
    """The stores of one run: `async with Storages(options) as storages: await storages.at(url)`.

    Made inside the running loop, closed in it on exit. Not shared between loops, threads or processes.

    Args:
        storage_options, filesystem, retry: See StoreOptions.
        buffer_bytes: How much all streams together may hold of large objects ahead of what was read.
        max_connections: How many requests for ranges of large objects may be under way, in addition to one
            for each stream.
        report_interval: Seconds between two lines in the log, where its level is INFO; see `report`.

    Attributes:
        storage_options: As they were given.
        connections: What all streams share.
        statistics: What happened so far; `statistics.snapshot()` at any time, from any thread.
    """

    statistics: Statistics

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        filesystem: fsspec.AbstractFileSystem | None = None,
        retry: RetryPolicy | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        max_connections: int = MAX_CONNECTIONS,
        report_interval: float = 60.0,
    ) -> None:
        self._retry = check_source(storage_options, filesystem, retry)
        self.connections = Connections(buffer_bytes, KneeSearch(START, max_connections))
        self.storage_options = dict(storage_options or {})
        self._filesystem = filesystem
        self.statistics = current()
        self._reporter = Reporter(self.statistics, report_interval)
        self._stack = AsyncExitStack()
        self._made: dict[str, Storage] = {}
        self._making = asyncio.Lock()
        self._closed = False

    async def at(self, url: str) -> Storage:
        """The Storage for a URL: the same one for all URLs that one client serves.

        Raises:
            MissingExtraError: The client package is not installed; the message holds what to type.
            StorageError: The client cannot be made from these options, or no store can have this name.
        """
        _check_name(url)
        place = place_of(url) if self._filesystem is None else ""
        async with self._making:
            if self._closed:
                raise ClosedError(f"{url}: the storages are closed; make new ones")
            if place not in self._made:
                self._made[place] = await self._make(place, url)
            return self._made[place]

    def serves_together(self, urls: Collection[str]) -> bool:
        """Whether one client serves all of these URLs; a StorageError where no store can have one of these names."""
        for url in urls:
            _check_name(url)
        return self._filesystem is not None or len({place_of(url) for url in urls}) == 1

    async def identities(self, urls: Iterable[str]) -> list[frozenset[Identity]]:
        """What tells each object from all others: two URLs are of one object where they share an identity."""
        places = [(url, (await self.at(url)).endpoint) for url in urls]
        return await asyncio.to_thread(lambda: list(starmap(identities, places)))

    async def check_spared(self, url: str, read: Iterable[str]) -> None:
        """Lets an object not be written over one that is read, however both are spelled.

        Raises:
            StorageError: It would be; or as for `at`.
        """
        [own] = await self.identities([url])
        if any(own & other for other in await self.identities(read)):
            raise StorageError("this object is read, and would be overwritten: choose another name", url)

    async def __aenter__(self) -> Self:
        self._reporter.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        self._reporter.stop()
        await finish(self._stack.aclose())  # also in a scope that is cancelled: nothing stays open

    async def _make(self, place: str, url: str) -> Storage:
        protocol = protocol_of(url)
        source = ClientOptions(protocol, self.storage_options, self._filesystem, url)
        connect = await asyncio.to_thread(load_backend, source)  # an import takes up to a second
        key, kept = key_of(connect.__module__, place, self.storage_options, self._filesystem, astuple(self._retry))
        try:
            making = partial(borrow, key, kept, partial(connect, source, self._retry))
            backend, release = await attempt(self._retry, url, making, "connecting")
        except StreamrecError:
            raise
        except Exception as error:
            cause = masked_cause(error, self.storage_options)
            raise StorageError(
                f"no client can be made from these storage options ({type(error).__name__}: {cause}): check their "
                "names and values, and the environment that it looks at",
                url,
            ) from cause
        traffic = Traffic(
            self.statistics, protocol, _hedging(backend, self._retry), backend.endpoint if backend.remote else None
        )
        for fast_path in backend.fast_paths:
            traffic.tally.watch(fast_path)
        storage = Storage(backend, self._retry, self.connections, traffic, release)
        self._stack.push_async_callback(storage.aclose)
        return storage


def _check_name(url: str) -> None:
    """Refuses a name that is empty, or holds a NUL, or bytes that are not UTF-8, as only names of local files may."""
    if not url:
        raise StorageError("the name of a file is '': give a URL or path")
    if url.isascii() and "\0" not in url:
        return
    try:
        data = os.fsencode(url) if protocol_of(url) in ("file", "local") else url.encode()
    except UnicodeEncodeError as error:
        raise StorageError(f"this name cannot be written as UTF-8 ({error.reason}): choose another one", url) from error
    if b"\0" in data:
        raise StorageError("this name holds a NUL character, which no store allows: choose another one", url)


def _hedging(backend: Backend, policy: RetryPolicy) -> Hedging | None:
    """Second requests, for stores in a network; a file that is slow to open would only be slower twice."""
    if not backend.remote:
        return None
    guesses = policy.first_byte_timeout / 10, policy.stall_timeout / 10
    floors = policy.first_byte_floor, policy.stall_floor
    return Hedging(policy.hedge_share, *guesses, policy.hedge_allowance, *floors)


def check_keywords(caller: str, store: Mapping[str, Any]) -> None:
    """Refuses keyword arguments that are not StoreOptions, as Python does."""
    for name in store:
        if name not in StoreOptions.__annotations__:
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}")


def check_source(storage_options: object, filesystem: object, retry: object = None) -> RetryPolicy:
    """Refuses what is not as `StoreOptions` says, with a TypeError or ValueError; the policy, or the default one."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise TypeError(f"retry is {described(retry)}: it must be a RetryPolicy, such as RetryPolicy(attempts=2)")
    if storage_options is not None and not isinstance(storage_options, Mapping):  # its values may be secrets
        found = described(storage_options, secret=True)
        raise TypeError(f"storage_options is {found}: it must be a dict of arguments of the fsspec filesystem")
    if not isinstance(filesystem, fsspec.AbstractFileSystem | None):
        found = described(filesystem, secret=True)
        raise TypeError(f"filesystem is {found}: it must be an fsspec filesystem")
    if filesystem is not None and storage_options:
        raise ValueError(
            "filesystem= and storage_options= exclude each other: give the options to the filesystem when you make it"
        )
    return retry or RetryPolicy()
