"""Replacement: writes a set of objects together. The objects that they replace stay until the whole
set is complete.

The rules:

* An object whose name is free is written directly: it appears when it is complete. If another
  writer has taken the name by then, this one fails.
* From the first existing name on, objects are staged: each one is written, complete and verified,
  under a hidden name next to its own, `.NAME.streamrec-new-0000000000000000`. That name is always
  the same, so the next writer replaces what a killed one left.
* `commit` locks the directories (`directory_lock.py`) and writes a journal (`journal.py`). It
  secures each object that it will replace as `.NAME.streamrec-old-ID`, and compares the size. Then
  it removes the objects that describe others (manifests, indexes), puts the staged objects in
  place, those that describe others last, and marks the journal as complete. Then it removes the
  hidden names. Putting an object in place is a rename on local disks, and a copy within the store
  elsewhere.
* If `commit` fails or is cancelled, it restores the secured objects. One that it cannot restore
  stays secured, and the error names it.
* **Every object has an owner.** A writer removes, replaces or restores over an object only if the
  store proves that the object is its own (`Held.mark`), or is the one that it has secured. What it
  cannot compare, it leaves, and says so.
* `commit` succeeds only if all of the set's objects are in place, including those that were written
  directly. So another writer that replaces them later has secured them before.
* An object that exists and cannot be secured (this client may not read it) is not replaced, unless
  the caller says `overwrite="unsecured"`: then it is replaced directly.
* A killed process leaves all old objects: under their names, or secured. `recovery.py` undoes or
  finishes what it did; the log warns later writers about it.
* Several tasks of one event loop may share a Replacement.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
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
from streamrec.storage.backend import Held, ObjectInfo, Precondition
from streamrec.storage.base import (
    Existing,
    Overwrite,
    Storage,
    new_token,
    rival_error,
    unreadable_error,
)
from streamrec.storage.directory_lock import DirectoryLocks
from streamrec.storage.identity import Identity
from streamrec.storage.journal import COMPLETE, ReplacedObject, directory_of
from streamrec.storage.journal_file import JournalFile
from streamrec.storage.recovery import finish_superseded
from streamrec.storage.registry import Storages
from streamrec.storage.replacing_sinks import RIVAL, is_own
from streamrec.storage.tasks import CLEANUP_PATIENCE, finish, for_each
from streamrec.storage.upload import Upload
from streamrec.storage.urls import hidden_name, secured_object

logger = logging.getLogger("streamrec")

T = TypeVar("T")

LATE_SECONDS: Final = 0.3
"""How long to wait for an object whose request was broken off, before it counts as absent."""

COPIED_BYTES: Final = 4 << 20
"""Bytes that are read at a time when an object is uploaded again."""

AT_ONCE: Final = 8
"""Objects that are secured, put in place or removed concurrently."""


LOCK_PATIENCE: Final = 600.0
"""Seconds that a commit waits for other writers in its directories."""


@dataclass(slots=True, kw_only=True)
class WrittenObject:
    """One object of the set.

    Attributes:
        asked: The requested URL.
        path: The final URL, with symbolic links resolved.
        written: The URL under which it is written: `path`, or a hidden one.
        describes: Whether it describes others.
        existing: What the name held when the object joined the set.
        overwrite: What its caller allows to replace.
        upload: Its upload; None if another process writes it.
        adopted: The mark of an object that another process has written.
        placed: The mark of the object in place, if a copy has another one.
        old: The URL of the secured old object, or None.
        replaces: What `commit` may replace: the secured version, or nothing.
        touched: Whether `commit` has begun to change the object at `path`.
        keeps: Whether it stays if `commit` fails: the old object could not be secured.
    """

    asked: str
    storage: Storage
    path: str
    written: str
    describes: bool
    existing: Existing
    overwrite: Overwrite = True
    upload: Upload | None = None
    adopted: str | None = None
    placed: str | None = None
    old: str | None = None
    replaces: Precondition | str = Precondition.ABSENT
    touched: bool = False
    keeps: bool = False

    @property
    def is_staged(self) -> bool:
        """Whether it is written under a hidden name until `commit`."""
        return self.written != self.path

    @property
    def may_be_there(self) -> bool:
        """Whether an object may exist under the written URL."""
        return self.upload is None or self.upload.may_be_there

    @property
    def is_in_doubt(self) -> bool:
        """Whether its last request was broken off, and may still be carried out."""
        return self.upload is not None and self.upload.version is None

    @property
    def mark(self) -> str | None:
        """What proves that an object at the written URL is ours, or None."""
        return self.adopted if self.upload is None else self.upload.mark

    @property
    def version(self) -> str | None:
        """The version of the written object, or None."""
        return None if self.upload is None else self.upload.version


@dataclass(frozen=True, slots=True, kw_only=True)
class SetRules:
    """What a Replacement does about existing names and failures; see its arguments."""

    stages: bool
    creates: bool
    keeps: bool
    unsecured: bool
    spared: frozenset[Identity]


class Replacement:
    """A set of objects that are written together: `async with Replacement(storages) as objects`; a
    clean exit commits.

    Args:
        storages: Their stores.
        stages: Whether to stage objects if some of the names exist. If not, uploads go directly to
            their names.
        creates: Whether the caller has found all names free: an object that appears meanwhile is
            an ObjectChangedError.
        keeps: Whether complete objects stay if the block fails and none of the names existed
            before.
        unsecured: Whether every upload may replace an object that cannot be secured; see
            `overwrite` of `upload`.
        on_staging: Is called with the URL of the first existing object that the set will replace.
        spared: Identities (`Storages.identities`) of objects that must not be overwritten.
    """

    def __init__(
        self,
        storages: Storages,
        *,
        stages: bool = True,
        creates: bool = False,
        keeps: bool = True,
        unsecured: bool = False,
        on_staging: Callable[[str], object] = str,
        spared: Collection[Identity] = (),
    ) -> None:
        self._token = new_token()
        self.storages = storages
        self._rules = SetRules(
            stages=stages,
            creates=creates,
            keeps=keeps,
            unsecured=unsecured,
            spared=frozenset(spared),
        )
        self._names: dict[Identity, str] = {}
        self._members: list[WrittenObject] = []
        self._staging = False
        self._on_staging = on_staging
        self._littered: set[str] = set()  # directories with objects of killed writers
        self._lock = anyio.Lock()

    @property
    def staged(self) -> frozenset[str]:
        """The requested URLs of the objects that wait under hidden names for `commit`."""
        return frozenset(member.asked for member in self._members if member.is_staged)

    @property
    def _number(self) -> str:
        """The number in the names of its hidden objects."""
        return self._token[:16]

    async def upload(
        self, path: str, *, describes: bool = False, overwrite: Overwrite = True, **how: Any
    ) -> Upload:
        """Starts the upload of one object, as `Storage.upload`; a staged object is uploaded under
        another URL.

        `describes` says that it describes others, as a manifest does, and must be put in place
        after them. An object that is spared, or is already in the set, is a StorageError.
        """
        overwrite = self._allowed(overwrite)
        member = await self._join(path, describes, overwrite)
        try:
            member.upload = await member.storage.upload(
                member.written,
                overwrite=overwrite,
                existing=member.existing if self._rules.stages or self._rules.creates else None,
                token=self._token,
                **how,
            )
        except BaseException:
            self._members.remove(member)  # nothing was written
            raise
        return member.upload

    def settle(self, path: str) -> None:
        """Drops a complete object from the set, if nothing that may still happen concerns it.

        That is so if the set stages nothing: each object stands for itself. A service may write
        for months, and its set stays small.
        """
        if self._rules.stages or self._rules.creates:
            return
        self._members = [member for member in self._members if member.asked != path]
        self._names = {each: name for each, name in self._names.items() if name != path}

    async def name(self, path: str) -> str:
        """Returns the URL under which another process (a worker of a cluster) must write an object
        before `commit`.
        """
        return (await self._join(path, False, self._allowed(True))).written

    async def adopt(self, path: str, written: str) -> None:
        """Adds an object that another process has written, under its own URL or a hidden one."""
        storage = await self.storages.at(path)
        self._staging = self._staging or written != path
        existing, final = await storage.look_up(path)
        held = await storage.identify(written)
        self._members.append(
            WrittenObject(
                asked=path,
                storage=storage,
                path=final,
                written=written if written != path else final,
                describes=False,
                existing=existing,
                overwrite=self._allowed(True),
                adopted=held.mark,
            )
        )

    async def commit(self) -> dict[str, ObjectInfo]:
        """Puts all staged objects in place; returns the new ones' path, size and version, by their
        requested URLs.

        Raises:
            ObjectChangedError: Another writer has written, or replaced, some of the objects.
            StorageError: A store failed permanently. All objects are as before, except those that
                the error names.
        """
        staged = [member for member in self._members if member.is_staged]
        direct = [member for member in self._members if not member.is_staged]
        if not staged:
            await self._check_in_place(direct)
            self._members.clear()
            return {}
        # Not every store compares and acts in one step, so the directories are locked meanwhile.
        # The journal says how far it came: once it is complete, nothing is put back any more.
        places = ((member.storage, directory_of(member.path)) for member in staged)
        async with DirectoryLocks(places, LOCK_PATIENCE) as locks:
            journal = JournalFile(self._number)
            try:
                await self._begin(journal, staged)
                found = await self._replace(staged, locks, journal)
                await self._check_in_place(direct if locks.is_held else self._members)
                locks.check()
                await finish(journal.complete(), patience=CLEANUP_PATIENCE)
            except BaseException as cause:
                if journal.state != COMPLETE:
                    await finish(self._put_back(staged, journal, cause), patience=CLEANUP_PATIENCE)
                    raise
                self._members.clear()
                await finish(self._tidy(staged, journal), patience=math.inf)
                raise
            self._members.clear()
            await finish(self._tidy(staged, journal), patience=math.inf)
        return found

    async def abort(self, cause: BaseException | None = None) -> None:
        """Removes the written objects; keeps complete ones if `keeps` is True and none of the names
        existed before.

        It removes no object that another writer has written since. The `cause` gets a note about
        each object that cannot be removed.
        """
        members = self._members
        self._members = []
        # new objects among old ones, or among another writer's, would be neither data set
        keeps = (
            self._rules.keeps and not self._staging and not isinstance(cause, ObjectChangedError)
        )
        if keeps:
            try:
                complete = [member for member in members if member.mark is not None]
                await finish(self._check_in_place(complete), patience=CLEANUP_PATIENCE)
            except ObjectChangedError:
                keeps = False
            except StreamrecError:
                pass  # the store fails: what is there stays
        left = [
            member
            for member in members
            if member.may_be_there and not member.keeps and not (keeps and not member.is_staged)
        ]
        await finish(self._remove_own(left, cause), patience=CLEANUP_PATIENCE)

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

    def _allowed(self, overwrite: Overwrite) -> Overwrite:
        """Returns what a caller allows to replace, where the set may replace more."""
        return "unsecured" if overwrite and self._rules.unsecured else overwrite

    async def _named_twice(self, identities: frozenset[Identity]) -> str | None:
        """Returns the object of this set that has one of the identities, or None."""
        other = next((self._names[each] for each in identities if each in self._names), None)
        if other is None:
            return None
        # The number of a file that was replaced belongs to the next file that any process makes.
        [now] = await self.storages.identities([other])
        return other if now & identities else None

    async def _join(self, path: str, describes: bool, overwrite: Overwrite) -> WrittenObject:
        """Adds an object, and decides under which URL it is written."""
        storage = await self.storages.at(path)
        [identities] = await self.storages.identities([path])
        existing = Existing.ABSENT
        final = path
        if self._rules.stages:
            existing, final = await storage.look_up(path)
        keeps = stays_unsecured(path, existing, overwrite)
        # One object after the other: whether this one is staged depends on those before it.
        async with self._lock:
            if identities & self._rules.spared:
                raise StorageError(
                    "this object is read, and would be overwritten: choose another name", path
                )
            if other := await self._named_twice(identities):
                raise StorageError(
                    f"this is the same object as {other}, which is written, too: rename one", path
                )
            self._names |= dict.fromkeys(identities, path)
            if existing is Existing.PRESENT and not self._staging:
                self._staging = True
                self._on_staging(path)
                await self._warn(storage, final)
            staging = self._staging and identities and not keeps
            member = WrittenObject(
                asked=path,
                storage=storage,
                path=final,
                written=hidden_name(final, "new-") if staging else path,
                describes=describes,
                existing=existing,
                overwrite=overwrite,
                keeps=keeps,
            )
            if not staging:
                member.path = path
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
            self._littered.add(directory)
            logger.warning(
                "%s is the old content of %s: a run that replaces it was killed, or is still at "
                "work; %d such objects are in this directory: streamrec recover %s puts them back, "
                "or removes them if that run was complete",
                display_name(found[0]),
                display_name(secured_object(found[0]) or ""),
                len(found),
                display_name(directory or "."),
            )

    async def _begin(self, journal: JournalFile, staged: list[WrittenObject]) -> None:
        """Writes what the set replaces into the journal."""
        storages = {directory_of(member.path): member.storage for member in staged}
        objects = [
            ReplacedObject(
                path=member.path,
                written=member.written,
                old=hidden_name(member.path, "old-", self._number),
                mark=member.mark,
                version=member.version,
                keeps=member.keeps,
            )
            for member in staged
        ]
        await journal.begin(storages, objects)

    async def _check_in_place(self, members: Iterable[WrittenObject]) -> None:
        """Raises an ObjectChangedError if another writer has replaced one of the objects."""

        async def check(member: WrittenObject) -> None:
            if member.keeps or member.mark is None or not member.may_be_there:
                return  # nothing to compare
            mark: str | None = None
            try:
                mark = (await member.storage.identify(member.path)).mark
            except PermissionDeniedError:
                return
            except NotFoundError:
                pass
            else:
                if mark is None:
                    return  # this store keeps no marks
            if mark != (member.placed or member.mark):
                raise rival_error(member.path)

        if self._rules.stages or self._rules.creates:
            await for_each(check, list(members), AT_ONCE)

    async def _replace(
        self, staged: list[WrittenObject], locks: DirectoryLocks, journal: JournalFile
    ) -> dict[str, ObjectInfo]:
        found: dict[str, ObjectInfo] = {}

        async def put(member: WrittenObject) -> None:
            held = await find_held(member.storage, member.written)
            if held is None or not owns_hidden(member, held):
                raise ObjectChangedError(RIVAL, member.path)
            try:
                info = await put_in_place(member, held.info.version, locks.check)
            except ObjectChangedError:
                if locks.is_held:
                    locks.check()
                    await claim_copy(member)
                raise
            found[member.asked] = info

        # Secured first, all of them; then what describes the set is taken away, and is put back
        # last, so that at no time it names shards that are not there.
        await each(staged, self._secure)
        if any(member.keeps for member in staged):
            await self._begin(journal, staged)
        describing = [member for member in staged if member.describes]
        await each(describing, partial(take_away, check=locks.check))
        await each([member for member in staged if not member.describes], put)
        await each(describing, put)
        return found

    async def _secure(self, member: WrittenObject) -> None:
        """Keeps a copy of the object that will be replaced."""
        # Without the right to read or copy, only "unsecured" allows to go on without a copy.
        held = None
        if member.existing is not Existing.UNKNOWN:
            try:
                held = await find_held(member.storage, member.path)
            except PermissionDeniedError as error:
                member.keeps = member.overwrite == "unsecured"
                member.replaces = Precondition.ANY
                if not member.keeps:
                    raise unreadable_error(member.path, error.reason) from error
                return
        if held is None:
            return
        version = held.info.version
        size = held.info.size
        member.replaces = Precondition.ANY if version is None else version
        member.old = hidden_name(member.path, "old-", self._number)
        try:
            await member.storage.copy(member.path, member.old)
        except PermissionDeniedError as error:
            member.keeps = member.overwrite == "unsecured"
            if not member.keeps:
                raise unreadable_error(member.path, error.reason) from error
            await self._remove([(member.storage, member.old)], None)
            member.old = None
            return
        if size is not None and (await member.storage.stat(member.old)).size != size:
            raise IntegrityError(
                "the copy that was to secure this object has another size", member.path
            )

    async def _put_back(
        self, staged: list[WrittenObject], journal: JournalFile, cause: BaseException
    ) -> None:
        """Restores the objects from before `commit`."""
        kept: list[str] = []

        async def restore(member: WrittenObject) -> None:
            try:
                left = await put_old_back(member)
            except StreamrecError as error:
                left = f"could not be put back ({error})"
            if left is not None:
                there = f"; what was there before is kept as {member.old}" if member.old else ""
                cause.add_note(display_text(f"{member.path} {left}{there}"))
                kept.append(member.path)
                member.old = None

        touched = [member for member in staged if member.touched]
        if journal.is_in_doubt and not await journal.reopen():
            kept = [member.old for member in staged if member.old]
            cause.add_note(
                "The store does not say whether all objects are in place: run streamrec recover. "
                f"The old objects are kept as {', '.join(kept)}"
            )
            self._members.clear()
            return
        # What describes the set comes last here, too.
        for describes in (False, True):
            await each([member for member in touched if member.describes == describes], restore)
        if touched and isinstance(cause, StorageTimeoutError):
            old = ", ".join(member.old for member in staged if member.old)
            cause.add_note(
                "A request without an answer may still be carried out, so the old objects are "
                f"kept as {old}"
            )
        else:
            names = [(member.storage, member.old) for member in staged if member.old]
            if await self._remove(names, cause) and not kept:
                await journal.remove(cause)

    async def _tidy(self, staged: list[WrittenObject], journal: JournalFile) -> None:
        """Removes the hidden objects of a complete set."""
        names = [(member.storage, member.old) for member in staged if member.old]
        removed = await self._remove(names, None)
        await self._remove_own(staged, None)
        for directory in sorted(self._littered):
            with suppress(StreamrecError):  # streamrec recover does the same
                paths = [member.path for member in staged]
                await finish_superseded(self.storages, directory, paths, self._number)
        if removed:  # else it says that the hidden objects left are not needed
            await journal.remove(None)

    async def _remove_own(self, members: list[WrittenObject], cause: BaseException | None) -> None:
        """Removes what the members have written, where it is still theirs.

        Visible objects are removed under the locks of their directories: not every store removes an
        object on a condition.
        """

        async def remove(member: WrittenObject, locks: DirectoryLocks | None = None) -> None:
            storage = member.storage
            name = member.written
            try:
                held = await find_held(storage, name)
                if held is None and member.is_in_doubt:  # its last request may still be on its way
                    await anyio.sleep(LATE_SECONDS)
                    held = await find_held(storage, name)
                if held is None:
                    return
                if not (owns_hidden(member, held) if member.is_staged else owns(member, held)):
                    why = (
                        "the store does not say whose it is"
                        if held.mark is None
                        else "another writer has written it since"
                    )
                    report(f"{name} was not removed: {why}", cause)
                    return
                if locks is not None:
                    await locks.confirm()
                await storage.remove(name, held.info.version)
            except ObjectChangedError:
                report(f"{name} was not removed: another writer has written it since", cause)
            except StreamrecError as error:
                report(f"{name} could not be removed ({error}): remove it yourself", cause)

        await each([member for member in members if member.is_staged], remove)
        visible = [member for member in members if not member.is_staged]
        if not visible:
            return
        places = ((member.storage, directory_of(member.path)) for member in visible)
        try:
            async with DirectoryLocks(places, CLEANUP_PATIENCE) as locks:
                await each(visible, partial(remove, locks=locks))
        except StreamrecError as error:
            names = ", ".join(member.path for member in visible)
            report(f"{names} could not be removed ({error}): remove it yourself", cause)

    async def _remove(self, names: list[tuple[Storage, str]], cause: BaseException | None) -> bool:
        """Removes hidden objects whose names no other writer uses; returns whether all are gone."""
        left: list[str] = []

        async def remove(place: tuple[Storage, str]) -> None:
            storage, name = place
            try:
                await storage.remove(name)
            except StreamrecError as error:
                left.append(name)
                report(f"{name} could not be removed ({error}): remove it yourself", cause)

        await each(names, remove)
        return not left


def stays_unsecured(path: str, existing: Existing, overwrite: Overwrite) -> bool:
    """Whether an object that cannot be secured is replaced directly: only if its caller says so."""
    if existing in (Existing.UNREADABLE, Existing.UNKNOWN) and overwrite == "unsecured":
        return True
    if existing is Existing.UNREADABLE:
        raise unreadable_error(path)
    return False


def report(said: str, cause: BaseException | None) -> None:
    """Adds a note to an error, or logs a warning."""
    if cause is None:
        logger.warning("%s", display_text(said))
    else:
        cause.add_note(display_text(said))


async def find_held(storage: Storage, path: str) -> Held | None:
    """Returns what a name holds; None for nothing."""
    with suppress(NotFoundError):
        return await storage.identify(path)
    return None


def owns(member: WrittenObject, held: Held) -> bool:
    """Whether the store proves that a visible object is this member's."""
    return held.mark is not None and held.mark == (member.placed or member.mark)


def owns_hidden(member: WrittenObject, held: Held) -> bool:
    """Whether a staged object is this member's. No data set is lost if that is wrong."""
    version = held.info.version if member.upload is None else member.version
    return is_own(held, member.mark, version)


async def put_in_place(
    member: WrittenObject, version: str | None, check: Callable[[], object]
) -> ObjectInfo:
    """Copies this version of a staged object to its name, if that still holds what was secured.

    `check` raises an error if another writer may have taken the lock over. It is called just before
    the copy, because not every store compares what a copy replaces.
    """
    storage = member.storage
    if member.existing is Existing.UNKNOWN:
        return await create_again(member, version)
    held = await find_held(storage, member.path)
    found = Precondition.ABSENT if held is None else held.info.version
    if member.replaces is not Precondition.ANY and found not in (None, member.replaces):
        raise rival_error(member.path)
    check()
    member.touched = True
    try:
        mark = await storage.copy(member.written, member.path, member.replaces, version)
    except ObjectChangedError:
        # the answer to an attempt that succeeded may have been lost
        held = await find_held(storage, member.path)
        if held is None or not owns(member, held):
            raise rival_error(member.path) from None
    else:
        member.placed = mark
    held = await storage.identify(member.path)
    if held.mark is not None and not owns(member, held):
        raise rival_error(member.path)
    size = None if member.upload is None else member.upload.sent.size
    if size is not None and held.info.size not in (None, size):
        raise IntegrityError(
            f"{held.info.size:,} bytes arrived of {size:,}: write it again", member.path
        )
    return held.info


async def claim_copy(member: WrittenObject) -> None:
    """Notes whether a copy, which shows another writer's mark, is nevertheless ours to undo.

    Two writers use the same hidden name. Between our look at it and the copy, the other one may
    have uploaded its own object, with the same bytes, or to a store that does not compare the
    source. Writers put staged objects in place only while they hold the lock. We hold it, so we
    have copied this one. If it stayed, the other writer would secure it as the old content, and
    restore it after a failure of its own.
    """
    if not member.touched:
        return
    held = await find_held(member.storage, member.path)
    staged = await find_held(member.storage, member.written)
    if held is not None and staged is not None and held.mark == staged.mark:
        member.placed = held.mark


async def create_again(member: WrittenObject, version: str | None) -> ObjectInfo:
    """Uploads a staged object again to a name that this client may not look at: only an upload can
    create an object where there is none in every such store.
    """
    assert member.upload is not None, "only uploads look at names"
    member.touched = True
    upload = await member.storage.upload(
        member.path, existing=Existing.UNKNOWN, token=member.mark or ""
    )
    buffer = memoryview(bytearray(COPIED_BYTES))
    stream = await member.storage.stream(member.written, version=version)
    try:
        async with upload:
            copied = 0
            while count := await stream.readinto(buffer):
                await upload.write(buffer[:count])
                copied += count
            if copied != member.upload.sent.size:
                raise IntegrityError("the staged object has changed: write it again", member.path)
    finally:
        await stream.aclose()
    return ObjectInfo(member.path, upload.sent.size, upload.version)


async def put_old_back(member: WrittenObject) -> str | None:
    """Puts the old object back, or removes the new one if there was none; returns why it did not.

    An object of another writer stays, and one that cannot be compared.
    """
    storage = member.storage
    held = await find_held(storage, member.path)
    if held is not None and held.info.version == member.replaces:
        return None  # it was not replaced
    if held is not None and not owns(member, held):
        return FOREIGN if held.mark is not None else NOT_COMPARED
    if member.keeps:
        return "is new: the old one could not be secured"
    if member.old is not None:
        return None if await restore_old(member, member.old, held) else FOREIGN
    if held is not None:
        await storage.remove(member.path, held.info.version)
    return None


async def restore_old(member: WrittenObject, secured: str, held: Held | None) -> bool:
    """Copies the secured object to its name; returns whether it is there."""
    replaces = Precondition.ABSENT if held is None else held.info.version or Precondition.ANY
    try:
        await member.storage.copy(secured, member.path, replaces)
    except ObjectChangedError:
        # the answer to an attempt that succeeded may have been lost
        back = await find_held(member.storage, member.path)
        old = await find_held(member.storage, secured)
        return (
            back is not None
            and old is not None
            and (back.mark, back.info.size) == (old.mark, old.info.size)
        )
    return True


FOREIGN: Final = "was left as it is: another writer has written it since"
NOT_COMPARED: Final = "was left as it is: the store does not say whose it is"


async def take_away(member: WrittenObject, check: Callable[[], object]) -> None:
    """Removes an old object that describes others, before these change; `check` is that of
    `put_in_place`.
    """
    if member.old is not None:
        check()
        member.touched = True
        version = member.replaces if isinstance(member.replaces, str) else None
        try:
            await member.storage.remove(member.path, version)
        except ObjectChangedError as error:
            raise rival_error(member.path) from error
        except PermissionDeniedError:
            return  # this client may only replace it: until then, it does not fit
        member.replaces = Precondition.ABSENT


async def each(items: Collection[T], call: Callable[[T], Coroutine[Any, Any, None]]) -> None:
    """Calls a function for each item, several concurrently. After the first error or a
    cancellation, no call begins.

    Calls in progress run to their end: a store may still execute a request whose answer is ignored.
    """
    await for_each(lambda item: finish(call(item), patience=math.inf), items, AT_ONCE)
