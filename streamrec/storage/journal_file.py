"""The journal of one Replacement, in the directories whose objects it replaces."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from streamrec.display import display_text
from streamrec.errors import ObjectChangedError, StreamrecError, UnsupportedOperationError
from streamrec.storage.backend import Precondition, Replaced
from streamrec.storage.base import Storage
from streamrec.storage.journal import (
    COMPLETE,
    UNDER_WAY,
    Journal,
    ReplacedObject,
    directory_of,
    journal_name,
)

logger = logging.getLogger("streamrec")


class JournalFile:
    """Writes, changes and removes a Replacement's journal.

    Attributes:
        state: UNDER_WAY or COMPLETE; None before `begin`.
        is_in_doubt: Whether a request that was to change the state has failed.
    """

    def __init__(self, number: str) -> None:
        self.state: str | None = None
        self.is_in_doubt = False
        self._number = number
        self._journal: Journal | None = None
        self._storages: dict[str, Storage] = {}
        self._version: str | None = None

    async def begin(
        self, storages: Mapping[str, Storage], objects: Sequence[ReplacedObject]
    ) -> None:
        """Writes the journal, before any of the objects is touched; or again, with what is known
        now. `storages` are those of the objects' directories.
        """
        self._storages = dict(storages)
        first = next(iter(self._storages))
        self._journal = Journal(
            number=self._number,
            home=journal_name(first, self._number),
            state=UNDER_WAY,
            objects=objects,
        )
        self.state = UNDER_WAY
        await self._write_home(Precondition.ANY)
        for directory, storage in self._storages.items():
            if directory != first:
                name = journal_name(directory, self._number)
                await storage.write_short(name, self._journal.to_json(), Precondition.ANY)

    async def complete(self) -> None:
        """Says that all objects are in place: from now on, the old ones are not needed."""
        await self._change(COMPLETE)

    async def reopen(self) -> bool:
        """Says again that it is under way, after `complete` has failed; returns whether that is
        certain.
        """
        try:
            await self._change(UNDER_WAY)
        except StreamrecError:
            return False
        self.is_in_doubt = False
        return True

    async def remove(self, cause: BaseException | None) -> None:
        """Removes the journal, at home last; an error is a note to the cause, or a warning."""
        if self._journal is None:
            return
        home = self._journal.home
        names = [
            (storage, journal_name(each, self._number)) for each, storage in self._storages.items()
        ]
        for storage, name in sorted(names, key=lambda place: place[1] == home):
            try:
                await storage.remove(name)
            except StreamrecError as error:
                said = display_text(f"{name} could not be removed ({error}): remove it yourself")
                if cause is None:
                    logger.warning("%s", said)
                else:
                    cause.add_note(said)
                return

    async def _change(self, state: str) -> None:
        assert self._journal is not None, "begin comes first"
        self._journal = replace(self._journal, state=state)
        self.is_in_doubt = True
        await self._write_home(Precondition.ANY if self._version is None else self._version)
        self.is_in_doubt = False
        self.state = state

    async def _write_home(self, replaces: Replaced) -> None:
        """Writes the journal that decides; a late request for an earlier state must not replace
        it.
        """
        assert self._journal is not None, "begin comes first"
        home = self._journal.home
        data = self._journal.to_json()
        storage = self._storages[directory_of(home)]
        try:
            self._version = await storage.write_short(home, data, replaces)
        except UnsupportedOperationError:  # the lock of the directory must do
            self._version = await storage.write_short(home, data, Precondition.ANY)
        except ObjectChangedError:
            # the answer to an attempt that succeeded may have been lost
            if await storage.read_range(home, 0, len(data) + 1) != data:
                raise
            self._version = (await storage.stat(home)).version
