"""CachedStorage: a Storage whose streams read blocks from a local disk where it has them.

Rules:
- The bytes are those of one version, as without the cache. The version is that of a listing, of a
  HEAD or of an answer of this run; a state's or an index's own version is compared with it first.
- Blocks that are missing are read by the store's own streams, with all their retries and parallel
  requests, and written by another thread while they pass.
- Objects without version or size are not cached.
- Only what is read is cached: everything that writes uses the Storage as it is.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from streamrec.display import SENSITIVE, warn_once
from streamrec.errors import StreamrecError
from streamrec.storage.backend import Backend, ObjectInfo, Replaced, ShortObject
from streamrec.storage.base import ByteStream, Storage
from streamrec.storage.cache.disk_cache import CacheMode
from streamrec.storage.cache.known_objects import DirectoryRequests, KnownObjects
from streamrec.storage.cache.names import ObjectKey, identifies_bytes
from streamrec.storage.cache.opening import OpenCache
from streamrec.storage.cache.packs import SHORT_BYTES
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.cache.stream import CachedStream, StreamContext
from streamrec.storage.ledger import UnwrittenBytes
from streamrec.storage.options import ClientOptions
from streamrec.storage.statistics import Tally
from streamrec.storage.tasks import finish
from streamrec.storage.upload import Upload
from streamrec.storage.urls import Glob
from streamrec.store_kinds import kind_of_protocol

FLUSH_SECONDS: Final = 5.0
"""How long the end of a run waits for what is still being written."""

LISTED: Final = 20_000
"""A directory with more objects is not listed to learn their versions."""

STATISTICS: Final = "cache"
"""The name of the cache's disk among the stores of the statistics."""


@dataclass(frozen=True, slots=True)
class CachePlace:
    """Where the bytes of a store are kept.

    Attributes:
        cache: The cache of this process.
        store: What tells this store from others with the same URLs.
        unwritten: The bytes of the run that wait to be written.
        tally: The counters of the cache's disk.
    """

    cache: OpenCache
    store: str
    unwritten: UnwrittenBytes
    tally: Tally


class CachedStorage(Storage):
    """A Storage in front of which there is a cache, with the arguments of Storage as `others`."""

    def __init__(self, place: CachePlace, *others: Any) -> None:
        super().__init__(*others)
        self._place = place
        self._objects = KnownObjects(place.cache.disk, place.store)
        self._requests = DirectoryRequests()

    @property
    def reads_short(self) -> bool:
        return True

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        """Reads from the disk those that are short and whole there, in one thread; None for others.

        Switching to a thread for each of them would be most of their cost.
        """
        self._check_open(paths[0])
        found: list[ShortObject | None] = [None] * len(paths)
        wanted: list[tuple[int, ObjectInfo, ObjectKey]] = []
        for number, path in enumerate(paths):
            info = self._objects.get(path)
            key = await self._key_of_short(info)
            if info is not None and key is not None:
                wanted.append((number, replace(info, path=path), key))
        if not wanted:
            return found
        disk = self._place.cache.disk
        tally = self._place.tally
        began = time.monotonic()
        keys = [key for _, _, key in wanted]
        contents = await finish(asyncio.to_thread(disk.read_whole, keys))
        seconds = (time.monotonic() - began) / len(wanted)
        for (number, info, _), data in zip(wanted, contents, strict=True):
            if data is not None:
                found[number] = ShortObject(info, data)
                tally.request()
                tally.first_byte(seconds)
                tally.block(len(data), seconds, 0.0)
                disk.speeds.disk.record(len(data), seconds)
        return found

    async def _key_of_short(self, info: ObjectInfo | None) -> ObjectKey | None:
        """Returns what identifies an object that is short and one block; None for any other."""
        key = None if info is None else self._objects.key_of(info)
        if key is None or not 0 < key.size <= SHORT_BYTES:
            return None
        index = await self._objects.find_index(key)
        if index is None or index.covering(key, 0) != (0, key.size):
            return None
        return key if self._place.cache.disk.speeds.takes_disk() else None

    async def list(
        self, prefix: str, glob: Glob | None = None, hidden: bool = False, most: int | None = None
    ) -> AsyncIterator[ObjectInfo]:
        """Lists as Storage does, and remembers the versions."""
        async for info in super().list(prefix, glob, hidden, most):
            self._objects.note(info.path, info)
            yield info

    async def stat(self, path: str) -> ObjectInfo:
        """Asks as Storage does, and remembers the version."""
        info = await super().stat(path)
        self._objects.note(path, info)
        return info

    async def stream(
        self,
        path: str,
        start: int = 0,
        end: int | None = None,
        version: str | None = None,
        tally: Tally | None = None,
        *,
        size: int | None = None,
    ) -> ByteStream:
        """Opens one object as Storage does; its bytes come from the disk or from the store."""
        if self._place.cache.disk.state is CacheMode.OFF or "::" in path or start == end:
            return await super().stream(path, start, end, version, tally, size=size)
        info = await self._find_version(path)
        key = None if info is None else self._objects.key_of(info)
        inner = None
        if info is None or key is None or version not in (None, info.version):
            # if the version differs, the store's own error says that the object was changed
            inner = await super().stream(path, start, end, version, tally, size=size)
            info = inner.info
            self._objects.note(path, info)
        index = await self._find_index_of(info)
        if index is None:
            return inner or await super().stream(path, start, end, version, tally, size=size)
        context = StreamContext(
            cache=self._place.cache,
            unwritten=self._place.unwritten,
            index=index,
            open_store=self._open_store,
            key_of=self._objects.key_of,
            statistics=self._traffic.statistics,
            tally=inner.tally if inner else tally or Tally(self._traffic.tally),
            disk_tally=self._place.tally,
            end=end,
            size=size,
        )
        stream = CachedStream(context, replace(info, path=path), start)
        stream.pinned = version
        if inner is not None:
            await stream.begin_with(inner)
        return stream

    async def upload(self, path: str, **terms: Any) -> Upload:
        """Uploads as Storage does; the version of the old object counts no longer."""
        self._objects.forget(path)
        return await super().upload(path, **terms)

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        """Writes as Storage does; the version of the old object counts no longer."""
        self._objects.forget(path)
        return await super().write_short(path, data, replaces)

    async def aclose(self) -> None:
        """Waits a moment for what is being written, and closes as Storage does."""
        with suppress(RuntimeError):  # the interpreter ends, and starts no threads
            await finish(asyncio.to_thread(self._place.cache.writer.flush, FLUSH_SECONDS))
        await super().aclose()

    async def _open_store(
        self,
        path: str,
        start: int,
        tally: Tally,
        *,
        end: int | None,
        version: str | None,
        size: int | None,
    ) -> ByteStream:
        """Opens the store's own stream, and remembers the version."""
        stream = await super().stream(path, start, end, version, tally, size=size)
        self._objects.note(path, stream.info)
        return stream

    async def _find_index_of(self, info: ObjectInfo) -> SetIndex | None:
        """Returns the known blocks next to an object; None if it is not cached."""
        key = self._objects.key_of(info)
        if key is None:
            say_why(info)
            return None
        return await self._objects.find_index(key)

    async def _find_version(self, path: str) -> ObjectInfo | None:
        """Returns size and version as this run knows them; it asks if there are blocks of this
        object, or may be soon.
        """
        known = self._objects.get(path)
        if known is not None:
            return known
        directory = await self._objects.directory_to_ask_in(path)
        if directory is None:
            return None
        with suppress(StreamrecError):  # the stream's own request reports it
            if self._requests.prefers_listing(directory):
                await self._list_once(directory)
            return self._objects.get(path) or await self.stat(path)
        return None

    async def _list_once(self, directory: str) -> None:
        """Lists the directory of an object, which is cheaper than asking for each one in it."""
        async with self._requests.listing:
            if self._requests.begin_listing(directory):
                with suppress(StreamrecError):  # the client may not list
                    async for _ in self.list(directory, most=LISTED):
                        pass


def say_why(info: ObjectInfo) -> None:
    """Warns once for each store whose objects cannot be cached."""
    if info.version is None or not identifies_bytes(info.version):
        scheme, _, rest = info.path.partition("://")
        warn_once(
            f"{scheme}://{rest.partition('/')[0]} gives its objects no ETags and no "
            "generations, so that the cache could not tell when one was replaced: they are not "
            "cached"
        )


def name_store(source: ClientOptions, backend: Backend) -> str:
    """Returns what tells this store from others with the same URLs.

    That is the server's URL, and for filesystems of fsspec the options that may say which server or
    account it is. Secrets are not among them, because they change.
    """
    if source.filesystem is None and kind_of_protocol(source.protocol).module:
        return backend.endpoint
    options = {} if source.filesystem is None else source.filesystem.storage_options
    told = {
        name: value
        for name, value in {**options, **source.options}.items()
        if isinstance(value, str | int) and not re.search(SENSITIVE, name, re.IGNORECASE)
    }
    return f"{backend.endpoint} {sorted(told.items())}"
