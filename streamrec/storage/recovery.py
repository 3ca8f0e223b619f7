"""Recovery: finishes or undoes what a killed Replacement has left in a directory.

Its journal tells which of the two (`journal.py`). While a journal's directories are locked, no
writer replaces objects in them, so a journal that is still there then belongs to a process that was
killed. A writer that is at work holds the lock, and is waited for.

An object is restored or removed only if its name still holds what the killed writer has put there
(`Held.mark`). An object that another writer has written since stays. Every step may be done twice,
so a recovery that is killed itself is run again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from streamrec.errors import NotFoundError, ObjectChangedError
from streamrec.storage.backend import Held, Precondition
from streamrec.storage.base import Storage
from streamrec.storage.directory_lock import LEASE_SECONDS, DirectoryLocks
from streamrec.storage.journal import (
    COMPLETE,
    UNDER_WAY,
    Journal,
    ReplacedObject,
    directory_of,
    journal_name,
)
from streamrec.storage.registry import Storages
from streamrec.storage.replacing_sinks import is_own
from streamrec.storage.tasks import for_each
from streamrec.storage.urls import is_journal, is_unfinished_copy, secured_object

AT_ONCE: Final = 8
"""Objects that are restored or removed concurrently."""

REQUESTS_SECONDS: Final = 10.0
"""How long the requests for a lock may take. Not tuned."""

SUPERSEDED: Final = "superseded"

JOURNAL_BYTES: Final = 64 << 20
"""The longest journal."""


@dataclass(slots=True, kw_only=True)
class Recovery:
    """What became of one replacement.

    Attributes:
        journal: The URL of its journal.
        state: What it was when its process was killed: "under way" or "complete"; or "superseded":
            other writers have replaced all of its objects since.
        restored: The objects whose old content is back.
        removed: The new objects that were removed, because there was none before.
        left: The objects that were left as they are, with the reason.
    """

    journal: str
    state: str
    restored: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


async def find_journals(storages: Storages, directory: str) -> AsyncIterator[tuple[str, Journal]]:
    """Yields the journals below a directory, each as its home has it; one of several directories
    only once.
    """
    storage = await storages.at(directory)
    seen: set[str] = set()
    names = [
        info.path async for info in storage.list(directory, hidden=True) if is_journal(info.path)
    ]
    for name in names:
        journal = await read_journal(storages, name)
        if journal is not None and journal.number not in seen:
            seen.add(journal.number)
            yield name, journal


async def read_journal(storages: Storages, name: str) -> Journal | None:
    """Reads a journal; None if its writer has removed it.

    The one at home decides. It is removed last, so without it, all objects are in place.
    """
    storage = await storages.at(name)
    try:
        journal = Journal.parse(name, await storage.read_range(name, 0, JOURNAL_BYTES))
    except NotFoundError:
        return None
    if journal.home == name:
        return journal
    home = await storages.at(journal.home)
    try:
        data = await home.read_range(journal.home, 0, JOURNAL_BYTES)
    except NotFoundError:
        return replace(journal, state=COMPLETE)
    return Journal.parse(journal.home, data)


async def recover(
    storages: Storages, directory: str, lease: float = LEASE_SECONDS
) -> AsyncIterator[Recovery]:
    """Finishes or undoes each replacement whose process was killed, below a directory.

    `lease` is how many seconds the lock of a writer in a store is watched: if nothing changes, its
    process was killed. A writer that is at work is a LockedError.
    """
    async for name, journal in find_journals(storages, directory):
        places = [(await storages.at(each), each) for each in journal.directories]
        async with DirectoryLocks(places, patience=patience_for(lease), lease=lease) as locks:
            now = await read_journal(storages, name)
            if now is not None:
                yield await recover_one(storages, name, now, locks)
    await remove_copies(storages, directory, lease)


def patience_for(lease: float) -> float:
    """Returns the seconds to wait for a lock that is watched for `lease` seconds.

    A writer may end and another one begin meanwhile, and the few requests take seconds where the
    machine or the store is busy.
    """
    return 2 * lease + REQUESTS_SECONDS


async def recover_one(
    storages: Storages, name: str, journal: Journal, locks: DirectoryLocks
) -> Recovery:
    """Undoes or finishes one replacement; `locks` are those of its directories."""
    done = Recovery(journal=name, state=journal.state)
    if journal.state != COMPLETE and await is_superseded(storages, journal):
        done.state = SUPERSEDED

    async def put_back(item: ReplacedObject) -> None:
        locks.check()
        await put_item_back(await storages.at(item.path), item, done)

    async def remove_old(item: ReplacedObject) -> None:
        locks.check()
        await (await storages.at(item.path)).remove(item.old)

    async def remove_new(item: ReplacedObject) -> None:
        await remove_staged(await storages.at(item.path), item)

    if done.state == UNDER_WAY:
        await for_each(put_back, journal.objects, AT_ONCE)
    # An old object stays where the new one could not be judged: a person must compare the two.
    spare = [item for item in journal.objects if item.path not in done.left]
    await for_each(remove_old, spare, AT_ONCE)
    await for_each(remove_new, journal.objects, AT_ONCE)
    if not done.left:
        # The journal of its home goes last: until then a second run finds it, and ends this one.
        for directory in sorted(
            journal.directories, key=lambda each: each == directory_of(journal.home)
        ):
            storage = await storages.at(directory)
            await storage.remove(journal_name(directory, journal.number))
    return done


async def finish_superseded(
    storages: Storages, directory: str, paths: Collection[str], number: str
) -> None:
    """Removes what killed replacements of these objects have left, after another one, with this
    number, has replaced all of them. Its caller holds the lock of the directory.
    """
    async for name, journal in find_journals(storages, directory):
        inside = journal.directories == [directory]
        if inside and journal.number != number and {o.path for o in journal.objects} <= set(paths):
            await recover_one(
                storages, name, replace(journal, state=COMPLETE), DirectoryLocks((), 0)
            )


async def is_superseded(storages: Storages, journal: Journal) -> bool:
    """Whether other writers have replaced every object of a replacement since."""
    for item in journal.objects:
        storage = await storages.at(item.path)
        held = await find_held(storage, item.path)
        old = await find_held(storage, item.old)
        if held is None or held.mark in (None, item.mark) or (old is not None and same(held, old)):
            return False
    return True


async def find_held(storage: Storage, path: str) -> Held | None:
    """What an object is and whose, or None if there is none."""
    with suppress(NotFoundError):
        return await storage.identify(path)
    return None


async def put_item_back(storage: Storage, item: ReplacedObject, done: Recovery) -> None:
    """Puts the old object back over the killed writer's, or where there is none."""
    held = await find_held(storage, item.path)
    old = await find_held(storage, item.old)
    if held is not None and (held.mark is None or held.mark != item.mark):
        if old is not None and not same(held, old):
            done.left[item.path] = describe_foreign(held, item)
        return
    if item.keeps:
        return
    replaces = Precondition.ABSENT if held is None else held.info.version or Precondition.ANY
    try:
        if old is not None:
            await storage.copy(item.old, item.path, replaces)
            done.restored.append(item.path)
        elif held is not None:
            await storage.remove(item.path, held.info.version)
            done.removed.append(item.path)
    except ObjectChangedError:
        done.left[item.path] = "another writer has written it since"


def describe_foreign(held: Held, item: ReplacedObject) -> str:
    """Says why an object that is not the killed writer's stays."""
    if held.mark is None and item.mark is not None:
        return "the store does not say whose it is"
    return "another writer has written it since"


def same(held: Held, old: Held) -> bool:
    """Whether a name still holds, or holds again, what was secured."""
    if held.mark is not None or old.mark is not None:
        return held.mark == old.mark
    return held.info.size == old.info.size and held.info.version == old.info.version


async def remove_staged(storage: Storage, item: ReplacedObject) -> None:
    """Removes the hidden new object, unless another writer has one there."""
    held = await find_held(storage, item.written)
    if held is not None and is_own(held, item.mark, item.version):
        with suppress(ObjectChangedError):
            await storage.remove(item.written, held.info.version)


async def remove_copies(storages: Storages, directory: str, lease: float) -> None:
    """Removes unfinished copies of secured objects and of journals: only a writer that holds the
    lock makes them.
    """
    storage = await storages.at(directory)
    names = [
        info.path
        async for info in storage.list(directory, hidden=True)
        if is_unfinished_copy(info.path)
    ]
    for folder in sorted({directory_of(name) for name in names}):
        async with DirectoryLocks([(storage, folder)], patience=patience_for(lease), lease=lease):
            for name in names:
                if directory_of(name) == folder:
                    await storage.remove(name)


async def find_unexplained(storages: Storages, directory: str) -> list[str]:
    """Returns secured old objects that no journal names: earlier versions wrote none."""
    storage = await storages.at(directory)
    names = [
        info.path
        async for info in storage.list(directory, hidden=True)
        if secured_object(info.path) is not None
    ]
    explained = {
        item.old
        async for _, journal in find_journals(storages, directory)
        for item in journal.objects
    }
    return [name for name in names if name not in explained]
