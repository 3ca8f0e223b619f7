"""What a run knows of the objects of a store: their versions, and which blocks are on the disk.

A version is that of a listing, of a HEAD or of an answer. Where many objects of one directory are
asked for one by one, a listing of it is cheaper: `DirectoryRequests` says when.
"""

from __future__ import annotations

import asyncio
from typing import Final

from streamrec.storage.backend import ObjectInfo
from streamrec.storage.cache.disk_cache import DiskCache
from streamrec.storage.cache.names import ObjectKey, identifies_bytes
from streamrec.storage.cache.set_index import SetIndex
from streamrec.storage.tasks import finish

ASKED: Final = 4
"""After so many HEADs in one directory, it is listed."""


class DirectoryRequests:
    """How often objects of each directory were asked for, and which directories were listed.

    Attributes:
        listing: Held while a directory is listed, so that others wait for what it says.

    >>> requests = DirectoryRequests(most=1)
    >>> requests.prefers_listing("a/"), requests.prefers_listing("a/")
    (False, True)
    >>> requests.begin_listing("a/"), requests.begin_listing("a/")
    (True, False)
    """

    def __init__(self, most: int = ASKED) -> None:
        self.listing = asyncio.Lock()
        self._most = most
        self._asked: dict[str, int] = {}
        self._listed: set[str] = set()

    def prefers_listing(self, directory: str) -> bool:
        """Counts an object that must be asked for, and returns whether to list its directory."""
        asked = self._asked[directory] = self._asked.get(directory, 0) + 1
        return asked > self._most

    def begin_listing(self, directory: str) -> bool:
        """Whether the directory was not listed yet; from now on, it was."""
        first = directory not in self._listed
        self._listed.add(directory)
        return first


class KnownObjects:
    """The versions of a store's objects, as far as this run has seen them, and what identifies
    their bytes on a disk.

    Args:
        disk: The disk of the cache.
        store: What tells this store from others with the same URLs.
    """

    def __init__(self, disk: DiskCache, store: str) -> None:
        self._disk = disk
        self._store = store
        self._infos: dict[str, ObjectInfo] = {}
        self._keys: dict[str, ObjectKey] = {}
        self._indexes: dict[str, SetIndex | None] = {}

    def get(self, path: str) -> ObjectInfo | None:
        """Size and version of an object; None while they are not known."""
        return self._infos.get(path)

    def note(self, path: str, info: ObjectInfo) -> None:
        """Notes what a store has said of an object."""
        self._infos[path] = info

    def forget(self, path: str) -> None:
        """The object is written: its version counts no longer."""
        self._infos.pop(path, None)

    def key_of(self, info: ObjectInfo) -> ObjectKey | None:
        """Returns what identifies an object's bytes; None if they are not cached."""
        key = self._keys.get(info.path)
        if key is not None and (key.version, key.size) == (info.version, info.size):
            return key
        if info.version is None or info.size is None or info.encoding:
            return None
        if not identifies_bytes(info.version):
            return None
        key = self._keys[info.path] = ObjectKey(self._store, info.path, info.version, info.size)
        return key

    async def find_index(self, key: ObjectKey) -> SetIndex | None:
        """Returns what is known of the blocks of a data set; None if the cache is off."""
        name = key.set_name
        if name not in self._indexes:
            self._indexes[name] = await finish(asyncio.to_thread(self._disk.index, key))
        return self._indexes[name]

    async def directory_to_ask_in(self, path: str) -> str | None:
        """The directory of an object whose version is worth a request before its bytes; else None.

        It is where some version has blocks on the disk, and where other processes use the cache:
        they may be fetching this object, and a GET that is given up then has sent much of it.
        """
        key = ObjectKey(self._store, path, "", 0)
        index = await self.find_index(key)
        if index is None:
            return None
        asks = index.has_path(key.path_name) or self._disk.may_have_others()
        return key.directory if asks else None
