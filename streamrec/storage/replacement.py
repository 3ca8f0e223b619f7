"""Replacement: writes a set of objects together. The objects that they replace stay until the whole
set is complete.

The rules:

* An object whose name is free is written directly: it appears when it is complete.
* From the first existing name on, objects are staged: each one is written, complete and verified,
  under a hidden name next to its own, `.NAME.streamrec-new-0000000000000000`. That name is always
  the same, so the next writer replaces what a killed one left.
* `commit` secures each object that it will replace as `.NAME.streamrec-old-ID`, and compares the
  size. Then it removes the objects that describe others (manifests, indexes), puts the staged
  objects in place, those that describe others last, and removes the hidden names. Putting an object
  in place is a rename on local disks, and a copy within the store elsewhere.
* If `commit` fails or is cancelled, it restores the secured objects. One that it cannot restore
  stays secured, and the error names it.
* A killed process leaves all old objects: under their names, or secured. Only the Replacement that
  secured an object removes it; the log warns later writers about such objects.
* Several tasks of one event loop may share a Replacement.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import anyio

from streamrec.display import display_name, display_text
from streamrec.errors import (
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    PermissionDeniedError,
    StorageError,
    StorageTimeoutError,
    StreamrecError,
)
from streamrec.storage.backend import ObjectInfo
from streamrec.storage.base import Storage
from streamrec.storage.identity import Identity
from streamrec.storage.registry import Storages
from streamrec.storage.tasks import CLEANUP_PATIENCE, finish, for_each
from streamrec.storage.upload import Upload
from streamrec.storage.urls import hidden_name, secured_object

logger = logging.getLogger("streamrec")

T = TypeVar("T")

AT_ONCE: Final = 8
"""Objects that are secured, put in place or removed concurrently."""


@dataclass(slots=True)
class WrittenObject:
    """One object of the set.

    Attributes:
        asked: The requested URL.
        path: The final URL, with symbolic links resolved.
        written: The URL under which it is written: `path`, or a hidden one.
        describes: Whether it describes others.
        upload: Its upload; None if another process writes it.
        old: The URL of the secured old object, or None.
        touched: Whether `commit` has begun to change the object at `path`.
    """

    asked: str
    storage: Storage
    path: str
    written: str
    describes: bool
    upload: Upload | None = None
    old: str | None = None
    touched: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether it is written under a hidden name until `commit`."""
        return self.written != self.path

    @property
    def may_be_there(self) -> bool:
        """Whether an object may exist under the written URL."""
        return self.upload is None or self.upload.may_be_there


class Replacement:
    """A set of objects that are written together: `async with Replacement(storages) as objects`; a
    clean exit commits.

    Args:
        storages: Their stores.
        stages: Whether to stage objects if some of the names exist. If not, uploads go directly to
            their names.
        keeps: Whether complete objects stay if the block fails and none of the names existed
            before.
        spared: Identities (`Storages.identities`) of objects that must not be overwritten.
    """

    def __init__(
        self,
        storages: Storages,
        *,
        stages: bool = True,
        keeps: bool = True,
        spared: Collection[Identity] = (),
    ) -> None:
        self._number = token_hex(8)
        self.storages = storages
        self._stages = stages
        self._keeps = keeps
        self._spared = frozenset(spared)
        self._names: dict[Identity, str] = {}
        self._members: list[WrittenObject] = []
        self._staging = False
        self._lock = anyio.Lock()

    @property
    def staged(self) -> frozenset[str]:
        """The requested URLs of the objects that wait under hidden names for `commit`."""
        return frozenset(member.asked for member in self._members if member.is_staged)

    async def upload(self, path: str, *, describes: bool = False, **how: Any) -> Upload:
        """Starts the upload of one object, as `Storage.upload`; a staged object is uploaded under
        another URL.

        `describes` says that it describes others, as a manifest does, and must be put in place
        after them. An object that is spared, or is already in the set, is a StorageError.
        """
        member = await self._join(path, describes)
        try:
            member.upload = await member.storage.upload(member.written, free=self._stages, **how)
        except BaseException:
            self._members.remove(member)  # nothing was written
            raise
        return member.upload

    async def name(self, path: str) -> str:
        """Returns the URL under which another process (a worker of a cluster) must write an object
        before `commit`.
        """
        return (await self._join(path, False)).written

    async def adopt(self, path: str, written: str) -> None:
        """Adds an object that another process has written, under its own URL or a hidden one."""
        storage = await self.storages.at(path)
        self._staging = self._staging or written != path
        self._members.append(
            WrittenObject(path, storage, await storage.find_replaced(path) or path, written, False)
        )

    async def commit(self) -> dict[str, ObjectInfo]:
        """Puts all staged objects in place; returns the new ones' path, size and version, by their
        requested URLs.

        Raises:
            StorageError: A store failed permanently. All objects are as before, except those that
                the error names.
        """
        staged = [member for member in self._members if member.is_staged]
        try:
            found = await self._replace(staged)
        except BaseException as cause:
            await finish(self._put_back(staged, cause), patience=CLEANUP_PATIENCE)
            raise
        self._members.clear()
        names = [
            (member.storage, name)
            for member in staged
            for name in (member.old, member.written)
            if name
        ]
        await finish(self._remove(names, None), patience=math.inf)
        return found

    async def abort(self, cause: BaseException | None = None) -> None:
        """Removes the written objects; keeps complete ones if `keeps` is True and none of the names
        existed before.

        The `cause` gets a note about each object that cannot be removed.
        """
        members, self._members = self._members, []
        keeps = (
            self._keeps and not self._staging
        )  # new objects among old ones would be neither data set
        left = [member for member in members if member.may_be_there and not keeps]
        removing = self._remove([(member.storage, member.written) for member in left], cause)
        await finish(removing, patience=CLEANUP_PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            await self.abort(error)
            return
        try:
            await self.commit()
        except BaseException as cause:
            await self.abort(cause)
            raise

    async def _join(self, path: str, describes: bool) -> WrittenObject:
        """Adds an object, and decides under which URL it is written."""
        storage = await self.storages.at(path)
        [identities] = await self.storages.identities([path])
        final = await storage.find_replaced(path) if self._stages else None
        async with self._lock:
            if identities & self._spared:
                raise StorageError(
                    "this object is read, and would be overwritten: choose another name", path
                )
            if other := next(
                (self._names[each] for each in identities if each in self._names), None
            ):
                raise StorageError(
                    f"this would overwrite {other}, which is written as well: rename one", path
                )
            self._names |= dict.fromkeys(identities, path)
            if final is not None and not self._staging:
                self._staging = True
                await self._warn(storage, final)
            hidden = hidden_name(final or path, "new-")
            written = hidden if self._staging and identities else path
            member = WrittenObject(path, storage, final or path, written, describes)
            self._members.append(member)
        return member

    async def _warn(self, storage: Storage, path: str) -> None:
        """Logs a warning about objects that a killed Replacement has left secured in this
        directory.
        """
        directory = path[: path.rfind("/") + 1]
        try:
            found = [
                info.path
                async for info in storage.list(f"{directory}.", hidden=True)
                if secured_object(info.path)
            ]
        except StreamrecError:
            return  # the client may not list
        if found:
            logger.warning(
                "%s is the old content of %s: a run that replaces it was killed, or is still at "
                "work; %d such objects "
                "are in this directory: streamrec doctor says what to do",
                display_name(found[0]),
                display_name(secured_object(found[0]) or ""),
                len(found),
            )

    async def _replace(self, staged: list[WrittenObject]) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}

        async def put(member: WrittenObject) -> None:
            version: str | None = None
            with suppress(NotFoundError):
                version = (await member.storage.stat(member.written)).version
            if member.upload is not None and version != member.upload.version:
                reason = (
                    "another writer writes this object at the same time: run one of them, and then "
                    "the other"
                )
                raise ObjectChangedError(reason, member.path)
            member.touched = True
            await member.storage.copy(member.written, member.path)
            found[member.asked] = info = await member.storage.stat(member.path)
            if member.upload is not None and info.size not in (None, member.upload.sent.size):
                raise IntegrityError(
                    f"{info.size:,} bytes arrived of {member.upload.sent.size:,}: write it again",
                    member.path,
                )

        await each(staged, self._secure)
        describing = [member for member in staged if member.describes]
        await each(describing, take_away)
        await each([member for member in staged if not member.describes], put)
        await each(describing, put)
        return found

    async def _secure(self, member: WrittenObject) -> None:
        """Keeps a copy of the object that will be replaced."""
        size: int | None = None
        with suppress(
            PermissionDeniedError
        ):  # it does not exist, or the copy shows whether it does
            try:
                size = (await member.storage.stat(member.path)).size
            except NotFoundError:
                return
        member.old = hidden_name(member.path, "old-", self._number)
        try:
            await member.storage.copy(member.path, member.old)
        except PermissionDeniedError:
            if size is not None:
                raise
            member.old = None
            return
        if size is not None and (await member.storage.stat(member.old)).size != size:
            raise IntegrityError(
                "the copy that was to secure this object has another size", member.path
            )

    async def _put_back(self, staged: list[WrittenObject], cause: BaseException) -> None:
        """Restores the objects from before `commit`."""

        async def restore(member: WrittenObject) -> None:
            try:
                if member.old is None:
                    await member.storage.remove(member.path)
                else:
                    await member.storage.copy(member.old, member.path)
            except StreamrecError as error:
                kept = (
                    "it is new"
                    if member.old is None
                    else f"what was there before is kept as {member.old}"
                )
                cause.add_note(
                    display_text(f"{member.path} could not be put back ({error}): {kept}")
                )
                member.old = None

        touched = [member for member in staged if member.touched]
        for describes in (False, True):
            await each([member for member in touched if member.describes == describes], restore)
        if touched and isinstance(cause, StorageTimeoutError):
            kept = ", ".join(member.old for member in staged if member.old)
            cause.add_note(
                "A request without an answer may still be carried out, so the old objects are "
                f"kept as {kept}"
            )
        else:
            await self._remove(
                [(member.storage, member.old) for member in staged if member.old], cause
            )

    async def _remove(self, names: list[tuple[Storage, str]], cause: BaseException | None) -> None:
        async def remove(place: tuple[Storage, str]) -> None:
            storage, name = place
            try:
                await storage.remove(name)
            except StreamrecError as error:
                said = display_text(f"{name} could not be removed ({error}): remove it yourself")
                if cause is None:
                    logger.warning("%s", said)
                else:
                    cause.add_note(said)

        await each(names, remove)


async def take_away(member: WrittenObject) -> None:
    """Removes an old object that describes others, before these change."""
    if member.old is not None:
        member.touched = True
        await member.storage.remove(member.path)


async def each(items: Collection[T], call: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Calls a function for each item, several concurrently. After the first error or a
    cancellation, no call begins.

    Calls in progress run to their end: a store may still execute a request whose answer is ignored.
    """
    await for_each(lambda item: finish(call(item), patience=math.inf), items, AT_ONCE)
