"""Storages: one Storage per protocol, created on first use in the running loop."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import astuple, dataclass
from difflib import get_close_matches
from functools import partial
from itertools import starmap
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict

from streamrec.arguments import describe_value
from streamrec.display import mask_cause
from streamrec.errors import (
    ClosedError,
    StorageError,
    StreamrecError,
)
from streamrec.storage.backend import Backend
from streamrec.storage.base import Storage
from streamrec.storage.cache_settings import (
    UNWRITTEN_BYTES,
    CacheSettings,
    find_settings,
    without_settings,
)
from streamrec.storage.clients import borrow, make_key
from streamrec.storage.connections import MAX_CONNECTIONS, START, Connections
from streamrec.storage.faults import RetryPolicy
from streamrec.storage.hedging import Hedging
from streamrec.storage.identity import Identity, identities
from streamrec.storage.knee_search import KneeSearch
from streamrec.storage.ledger import UnwrittenBytes
from streamrec.storage.loading import client_scope, load_backend
from streamrec.storage.options import ClientOptions
from streamrec.storage.range_room import BUFFER_BYTES
from streamrec.storage.retry import attempt
from streamrec.storage.statistics import PeriodicReport, Statistics, run_statistics
from streamrec.storage.tasks import finish
from streamrec.storage.traffic import Traffic
from streamrec.storage.urls import protocol_of
from streamrec.store_kinds import kind_of_protocol

if TYPE_CHECKING:
    import fsspec


class StoreOptions(TypedDict, total=False):
    """How to reach stores: keyword arguments of everything that reads or writes URLs.

    Attributes:
        storage_options: Keyword arguments of the fsspec filesystem's class, as in pandas: `key`,
            `secret`, `endpoint_url`, `token`, ... None: none. `cache_dir` and `cache_bytes` keep
            what is read from a store in a directory of a local disk, up to this many bytes (a
            number, or a text such as "500GB"); their defaults are the variables
            STREAMREC_CACHE_DIR and STREAMREC_CACHE_BYTES.
        filesystem: Your own fsspec filesystem, for all URLs, instead of one made from
            `storage_options`. An async one is created again from its arguments, in the running
            loop; any other is used as it is. A path without a scheme is a path in it.
        retry: When requests are retried and when to give up; see RetryPolicy. None: its defaults.
    """

    storage_options: Mapping[str, Any] | None
    filesystem: fsspec.AbstractFileSystem | None
    retry: RetryPolicy | None


@dataclass(frozen=True, slots=True)
class ReadTerms:
    """How requests are repeated, and where their answers are kept; None: nowhere.

    `unwritten` are those that wait to be written there.
    """

    retry: RetryPolicy
    cache: CacheSettings | None
    unwritten: UnwrittenBytes


class Storages:
    """The stores of one run: `async with Storages(options) as storages: await storages.at(url)`.

    Create it in the running loop; the exit closes it. Do not share it between loops, threads or
    processes.

    Args:
        storage_options, filesystem, retry: See StoreOptions.
        buffer_bytes: How many bytes all streams together may read ahead of their consumers.
        max_connections: How many requests for ranges of large objects may be in progress, in
            addition to one for each stream.
        report_interval: Seconds between two reports in the log, if its level is INFO; see
            `statistics`.
        cached: Whether reads go through the cache on a local disk, if the options or the
            environment name one. Not for what writes, or must see what the store holds.
        unwritten_bytes: How many bytes may wait to be written to that cache.

    Attributes:
        connections: The connection budget that all streams share.
        statistics: The counters; `statistics.snapshot()` at any time, from any thread.
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
        cached: bool = False,
        unwritten_bytes: int = UNWRITTEN_BYTES,
    ) -> None:
        self._terms = ReadTerms(
            check_source(storage_options, filesystem, retry),
            find_settings(storage_options or {}) if cached else None,
            UnwrittenBytes(unwritten_bytes),
        )
        self.connections = Connections(buffer_bytes, KneeSearch(START, max_connections))
        self.storage_options = without_settings(storage_options or {})
        self._filesystem = filesystem
        self.statistics = run_statistics.get() or Statistics()
        self._report = PeriodicReport(self.statistics, report_interval)
        self._stack = AsyncExitStack()
        self._storages: dict[str, Storage] = {}
        self._lock = asyncio.Lock()
        self._closed = False

    @property
    def unwritten_bytes(self) -> int:
        """How many bytes may wait to be written to the cache; 0 without one."""
        return 0 if self._terms.cache is None else self._terms.unwritten.limit

    async def at(self, url: str) -> Storage:
        """Returns the Storage for a URL: the same one for all URLs that one client serves."""
        _check_name(url)
        scope = client_scope(url) if self._filesystem is None else ""
        known = self._storages.get(scope)
        if known is not None and not self._closed:
            return known  # a lock would cost each short shard 2 us
        async with self._lock:
            if self._closed:
                raise ClosedError(f"{url}: the storages are closed; create a new Storages")
            if scope not in self._storages:
                self._storages[scope] = await self._make(scope, url)
            return self._storages[scope]

    async def identities(self, urls: Iterable[str]) -> list[frozenset[Identity]]:
        """What objects each URL names, in any spelling; see `identity.py`."""
        located = [(url, (await self.at(url)).endpoint) for url in urls]
        return await asyncio.to_thread(lambda: list(starmap(identities, located)))

    async def check_not_input(self, url: str, inputs: Iterable[str]) -> None:
        """Refuses an output that is one of the inputs, in any spelling."""
        [output] = await self.identities([url])
        if any(output & each for each in await self.identities(inputs)):
            raise StorageError(
                "this object is read, and would be overwritten: choose another name", url
            )

    async def __aenter__(self) -> Self:
        self._report.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closed = True
        self._report.stop()
        await finish(self._stack.aclose())  # even in a cancelled scope

    async def _make(self, scope: str, url: str) -> Storage:
        protocol = protocol_of(url)
        source = ClientOptions(protocol, self.storage_options, self._filesystem, url)
        connect = await asyncio.to_thread(load_backend, source)  # an import takes up to a second
        key, kept = make_key(
            connect.__module__,
            scope,
            self.storage_options,
            self._filesystem,
            astuple(self._terms.retry),
        )
        try:
            connect_shared = partial(borrow, key, kept, partial(connect, source, self._terms.retry))
            backend, release = await attempt(self._terms.retry, url, connect_shared, "connecting")
        except StreamrecError:
            raise
        except Exception as error:
            cause = mask_cause(error, self.storage_options)
            raise StorageError(
                f"no client can be made from these storage options ({type(error).__name__}: "
                f"{cause}): check their "
                "names and values, and the environment variables of the client",
                url,
            ) from cause
        remote = backend.remote  # a second request for a slow local file would only be slower
        hedging, endpoint = (
            (Hedging(self._terms.retry), backend.endpoint) if remote else (None, None)
        )
        traffic = Traffic(self.statistics, protocol, hedging, endpoint, backend.fast_paths)
        parts = (backend, self._terms.retry, self.connections, traffic, release)
        storage = await self._in_front_of(source, backend, parts) or Storage(*parts)
        self._stack.push_async_callback(storage.aclose)
        return storage

    async def _in_front_of(
        self, source: ClientOptions, backend: Backend, parts: tuple[Any, ...]
    ) -> Storage | None:
        """Returns a Storage with a cache in front of it, if there is one for this kind of store.

        Local files and objects in memory need none: they are the backends that never stall.
        """
        if self._terms.cache is None or not backend.may_stall:
            return None
        cache = importlib.import_module("streamrec.storage.cache")  # only who caches loads it
        opened = await asyncio.to_thread(cache.open_cache, self._terms.cache)
        if opened is None:
            return None
        place = cache.CachePlace(
            cache=opened,
            store=cache.name_store(source, backend),
            unwritten=self._terms.unwritten,
            tally=self.statistics.backend(cache.STATISTICS),
        )
        storage: Storage = cache.CachedStorage(place, *parts)
        return storage


def _check_name(url: str) -> None:
    """Refuses an empty name, a NUL, and bytes that are not UTF-8, which only names of local files
    may contain.
    """
    if not url:
        raise StorageError("a file name is empty: give a URL or path")
    if url.isascii() and "\0" not in url:
        return
    try:
        is_local = kind_of_protocol(protocol_of(url)).name == "file"
        data = os.fsencode(url) if is_local else url.encode()
    except UnicodeEncodeError as error:
        raise StorageError(
            f"this name cannot be written as UTF-8 ({error.reason}): choose another one", url
        ) from error
    if b"\0" in data:
        raise StorageError(
            "this name holds a NUL character, which no store allows: choose another one", url
        )


def check_keywords(
    caller: str, store: Mapping[str, Any], instead: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuses keyword arguments that are not StoreOptions, as Python does; `instead` has advice for
    names of other functions.
    """
    for name in store:
        if name not in StoreOptions.__annotations__:
            near = get_close_matches(name, [*StoreOptions.__annotations__, *instead], 1)
            advice = f": {instead.get(near[0], f'did you mean {near[0]}=?')}" if near else ""
            raise TypeError(f"{caller}() got an unexpected keyword argument {name!r}{advice}")


def check_source(storage_options: object, filesystem: object, retry: object = None) -> RetryPolicy:
    """Checks the values of `StoreOptions`, and returns the retry policy or the default one."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise TypeError(
            f"retry is {describe_value(retry)}: it must be a RetryPolicy, such as "
            "RetryPolicy(attempts=2)"
        )
    if storage_options is not None and not isinstance(
        storage_options, Mapping
    ):  # its values may be secrets
        found = describe_value(storage_options, secret=True)
        raise TypeError(
            f"storage_options is {found}: it must be a dict of arguments of the fsspec filesystem"
        )
    find_settings(storage_options or {})
    if filesystem is not None:
        import fsspec

        if not isinstance(filesystem, fsspec.AbstractFileSystem):
            found = describe_value(filesystem, secret=True)
            raise TypeError(f"filesystem is {found}: it must be an fsspec filesystem")
        if without_settings(storage_options or {}):
            raise ValueError(
                "filesystem= and storage_options= exclude each other: give the options to the "
                "filesystem when you "
                "make it"
            )
    return retry or RetryPolicy()
