"""Locks of directories: one writer at a time replaces or removes objects in a directory.

Uploads need no lock. A writer locks only while it puts complete objects in the place of others, or
removes its own after a failure: seconds. So writers of different data sets in one directory wait
for each other briefly, and never fail because of each other.

* On local disks the lock is on the directory itself (flock). The kernel frees it when the process
  ends, however it ends.
* In a store that can write on a condition (S3, GCS, memory), the lock is a short hidden object that
  is created only where there is none. Its writer changes it every BEAT_SECONDS. Another writer that
  sees no change for LEASE_SECONDS, by its own clock, takes it over: the process was killed, or its
  event loop stands still. The first one stops when it notices that its own lease has run out.
* The object names its owner. So a writer whose answer was lost asks the object whose it is.
* Elsewhere there is no lock, and a client that may not write there works without one. Then the
  comparisons just before each step must do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, suppress
from typing import Final, Self

from streamrec.display import display_name
from streamrec.errors import (
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StreamrecError,
    UnsupportedOperationError,
)
from streamrec.storage.backend import Precondition, Replaced
from streamrec.storage.base import Storage, new_token, read_full
from streamrec.storage.tasks import CLEANUP_PATIENCE, finish
from streamrec.storage.urls import hidden_name

logger = logging.getLogger("streamrec")

BEAT_SECONDS: Final = 5.0
"""How often the holder changes the object."""

LEASE_SECONDS: Final = 30.0
"""How long a lock is respected that does not change. Not tuned."""

LOOK_SECONDS: Final = 0.2
"""How often a writer looks whether a lock is free."""

WARN_SECONDS: Final = 10.0

FREE: Final = b"{}"
"""What a holder without the right to remove objects leaves."""

READ_BYTES: Final = 1 << 10
"""Bytes of a lock that are read; ours has less than a hundred."""


def uptime() -> float:
    """Returns seconds of a clock that goes on while the machine sleeps, if the system has one.

    Other writers do not sleep with it, so the lease of a lock runs out.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class LockedError(StorageError):
    """Another writer holds the lock."""


def lock_name(directory: str) -> str:
    """Returns the URL of a directory's lock in a store.

    >>> lock_name("s3://b/d/")
    's3://b/d/.streamrec.streamrec-lock-0000000000000000'
    """
    return hidden_name(f"{directory}streamrec", "lock-")


class DirectoryLock:
    """The lock of one directory. `is_held` is False where there are no locks.

    Args:
        directory: A URL that ends at a slash, or "".
        lease: Seconds without a change after which another writer's lock is taken over; None:
            LEASE_SECONDS.
    """

    def __init__(self, storage: Storage, directory: str, lease: float | None = None) -> None:
        self.is_held = False
        self._storage = storage
        self._directory = directory
        self._path = lock_name(directory)
        self._lease = LEASE_SECONDS if lease is None else lease
        self._owner = new_token()
        self._unlock: Callable[[], None] | None = None
        self._version: str | None = None
        self._beaten = 0.0
        self._beating: asyncio.Task[None] | None = None

    async def acquire(self, patience: float) -> None:
        """Waits for the lock, at most `patience` seconds: then it is a LockedError."""
        began = warned = time.monotonic()
        seen: tuple[str | None, float] = (None, began)
        refused = False
        while True:
            try:
                seen = await self._try(seen)
            except UnsupportedOperationError:
                return  # a store without conditions
            except PermissionDeniedError as error:
                # One refusal may be a fault of the store. To work without the lock because of it
                # would be dangerous.
                if refused:
                    logger.info("%s is not locked: %s", display_name(self._directory), error)
                    return
                refused = True
                continue
            refused = False
            if self.is_held:
                return
            now = time.monotonic()
            if now > began + patience:
                raise LockedError(
                    f"another writer has been replacing objects in this directory for "
                    f"{now - began:.0f} s: wait until it has ended, and run this one again",
                    self._directory or ".",
                )
            if now > warned + WARN_SECONDS:
                warned = now
                logger.warning(
                    "%s: waiting until another writer has put its objects in place",
                    display_name(self._directory),
                )
            await asyncio.sleep(LOOK_SECONDS)

    def check(self) -> None:
        """Raises an ObjectChangedError if another writer may have taken the lock over."""
        if self._version is not None and self._may_be_over:
            raise self._over_error()

    async def confirm(self) -> None:
        """As `check`, but where the lease may be over, the store says whose the lock is.

        A store whose answers are lost gives a lock late, and nobody may have taken it over.
        """
        if self._version is not None and self._may_be_over:
            is_own, _ = await self._look()
            if not is_own:
                raise self._over_error()

    def _over_error(self) -> ObjectChangedError:
        return ObjectChangedError(
            "this process stood still for so long that another writer may have begun: run it again",
            self._directory or ".",
        )

    @property
    def _may_be_over(self) -> bool:
        """Whether another writer may see no change for so long that it takes the lock over."""
        return uptime() > self._beaten + 0.7 * LEASE_SECONDS

    async def release(self) -> None:
        """Frees the lock; an error is not raised, because the lease ends by itself."""
        beating, self._beating = self._beating, None
        if beating is not None:
            beating.cancel()
            await asyncio.wait([beating])
        if self._unlock is not None:
            self._unlock()
        version = self._version
        self._version = None
        self.is_held = False
        if version is None:
            return
        with suppress(StreamrecError):
            try:
                # Not every store compares the version of what it removes.
                if self._may_be_over and (await self._look()) != (True, version):
                    raise ObjectChangedError("another writer has this lock", self._path)
                await self._storage.remove(self._path, version)
            except ObjectChangedError:
                # The last beat may have been carried out, and its answer lost.
                is_own, version = await self._look()
                if is_own and version is not None:
                    await self._storage.remove(self._path, version)
            except StreamrecError:
                await self._storage.write_short(self._path, FREE, version)

    async def _try(self, seen: tuple[str | None, float]) -> tuple[str | None, float]:
        """Takes the lock if it is free; returns the version of another writer's, and since when."""
        try:
            self._unlock = await self._storage.try_lock(self._directory)
        except UnsupportedOperationError:
            # the holder may free or change it between two of these requests
            with suppress(NotFoundError, ObjectChangedError):
                if await self._create(Precondition.ABSENT):
                    return seen
                return await self._watch(seen)
            return None, time.monotonic()
        self.is_held = self._unlock is not None
        return seen

    async def _create(self, replaces: Replaced) -> bool:
        """Writes the object; returns whether the lock is ours."""
        began = uptime()
        try:
            version = await self._write(replaces)
        except ObjectChangedError:
            return False
        self._version = version
        self._beaten = began
        self.is_held = True
        self._beating = asyncio.get_running_loop().create_task(self._beat())
        return True

    async def _watch(self, seen: tuple[str | None, float]) -> tuple[str | None, float]:
        """Looks whether the holder lives; takes the lock over if it is free, or its lease over."""
        version, since = seen
        found = (await self._storage.stat(self._path)).version
        now = time.monotonic()
        if found != version:
            if await self._storage.read_range(self._path, 0, len(FREE) + 1) != FREE:
                return found, now
        elif now < since + self._lease:
            return seen
        if found is not None:
            await self._create(found)
        return None, now

    async def _beat(self) -> None:
        """Changes the object until it is cancelled, or another writer has the lock."""
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            began = uptime()
            with suppress(StorageError):
                assert self._version is not None
                self._version = await finish(self._write(self._version), patience=BEAT_SECONDS)
                self._beaten = began

    async def _write(self, replaces: Replaced) -> str | None:
        """Writes the object, and returns its version; an ObjectChangedError if another writer has
        it.
        """
        # Each content is new, so that its etag is, too.
        body = json.dumps({"owner": self._owner, "beat": new_token()}).encode()
        try:
            version = await self._storage.write_short(self._path, body, replaces)
            return version or (await self._storage.stat(self._path)).version
        except (PermissionDeniedError, UnsupportedOperationError):
            raise
        except StorageError:
            # The store may have done it, and only its answer was lost.
            is_own, version = await self._look()
            if not is_own or version == replaces:
                raise
            return version

    async def _look(self) -> tuple[bool, str | None]:
        """Returns whether the object is there and ours, and its version."""
        try:
            stream = await self._storage.stream(self._path, 0, READ_BYTES)
        except NotFoundError:
            return False, None
        try:
            buffer = memoryview(bytearray(READ_BYTES))
            content = bytes(buffer[: await read_full(stream, buffer)])
        finally:
            await stream.aclose()
        return self._owner.encode() in content, stream.info.version


class DirectoryLocks:
    """The locks of several directories: `async with DirectoryLocks(places, patience) as locks`.

    They are taken in the order of their names, so that two writers never wait for each other.
    """

    def __init__(
        self,
        places: Iterable[tuple[Storage, str]],
        patience: float,
        lease: float | None = None,
    ) -> None:
        by_directory = {directory: storage for storage, directory in places}
        self._locks = [
            DirectoryLock(by_directory[directory], directory, lease)
            for directory in sorted(by_directory)
        ]
        self._patience = patience
        self._stack = AsyncExitStack()

    @property
    def is_held(self) -> bool:
        """Whether every directory is locked."""
        return all(lock.is_held for lock in self._locks)

    def check(self) -> None:
        """Raises an ObjectChangedError if another writer may have taken a lock over."""
        for lock in self._locks:
            lock.check()

    async def confirm(self) -> None:
        """As `check`, by the locks' objects where a lease may be over."""
        for lock in self._locks:
            await lock.confirm()

    async def __aenter__(self) -> Self:
        try:
            for lock in self._locks:
                self._stack.push_async_callback(release, lock)
                await lock.acquire(self._patience)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._stack.aclose()


async def release(lock: DirectoryLock) -> None:
    """Frees a lock, even if the caller is cancelled."""
    await finish(lock.release(), patience=CLEANUP_PATIENCE)
