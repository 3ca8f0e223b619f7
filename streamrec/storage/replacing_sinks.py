"""How an upload ends for names that other objects have: two wrappers of a backend's PartSink.

- `NewNameSink` is for a name that was free: if another writer took it meanwhile, the error says why
  that matters.
- `StagedSink` is for a name that is taken, in a store that verifies an object only after it became
  visible: the new content waits under a hidden name until it is verified, so that the old object
  stays if it is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from streamrec.errors import (
    AlreadyExistsError,
    IntegrityError,
    NotFoundError,
    ObjectChangedError,
    StorageError,
)
from streamrec.storage.backend import Backend, ContentDigest, Held, ObjectInfo, PartSink, Pieces

RIVAL: Final = (
    "another writer writes this object at the same time: run one of them, and then the other"
)


class NewNameSink(PartSink):
    """A PartSink for a name that should be free; if it is taken by then, `refused` makes the
    error.
    """

    def __init__(self, sink: PartSink, path: str, refused: Callable[[str], StorageError]) -> None:
        self.parallel = sink.parallel
        self.grows = sink.grows
        self.mark = sink.mark
        self._sink = sink
        self._path = path
        self._refused = refused

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        with self._explain():
            await self._sink.put_part(index, offset, pieces, whole)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        try:
            with self._explain():
                return await self._sink.complete(sent)
        finally:
            self.mark = self._sink.mark  # even after an error the object may have its name

    async def abort(self) -> None:
        await self._sink.abort()

    @contextmanager
    def _explain(self) -> Iterator[None]:
        try:
            yield
        except AlreadyExistsError as error:
            raise self._refused(self._path) from error


class StagedSink(PartSink):
    """A PartSink that replaces an object: it uploads under a hidden name, and copies the verified
    object.
    """

    def __init__(self, backend: Backend, path: str, hidden: str, sink: PartSink) -> None:
        self.parallel = sink.parallel
        self.grows = sink.grows
        self.mark = sink.mark
        self.hidden = hidden
        self._backend = backend
        self._path = path
        self._hidden = hidden
        self._sink = sink
        self._version: str | None = None
        self._compared = False

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        with self._rename_errors():
            await self._sink.put_part(index, offset, pieces, whole)

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Verifies and copies the hidden object."""
        if not self._compared:
            with self._rename_errors():
                self._version = (await self._sink.complete(sent)).version
            self._compared = True
        with self._rename_errors():
            held = await self._backend.identify(self._hidden)
            if not is_own(held, self.mark, self._version):
                raise ObjectChangedError(RIVAL)
        try:
            # Between this look and the copy, another writer may put its own object there.
            await self._backend.copy(self._hidden, self._path, source_version=held.info.version)
        except ObjectChangedError as error:
            raise ObjectChangedError(RIVAL, self._path) from error
        info = await self._backend.stat(self._path)
        if info.size != sent.size:
            raise IntegrityError(
                f"the store copied {info.size} bytes of {sent.size:,}: write it again", self._path
            )
        return info

    async def settle(self) -> None:
        """Removes the hidden object, if it is still this upload's: another writer of the same name
        uses the same hidden name.
        """
        with suppress(NotFoundError):
            held = await self._backend.identify(self._hidden)
            if is_own(held, self.mark, self._version):
                await self._backend.remove(self._hidden, self._version)

    @contextmanager
    def _rename_errors(self) -> Iterator[None]:
        """Replaces the hidden name in errors by the object's name."""
        try:
            yield
        except StorageError as error:
            raise type(error)(error.reason, self._path, error.start, error.end) from error

    async def abort(self) -> None:
        await self._sink.abort()
        if self._compared:
            await self.settle()


def is_own(held: Held, mark: str | None, version: str | None) -> bool:
    """Whether a hidden object is that of the upload with this mark, and of this version.

    In a store that keeps no marks the version decides: a hidden object that is removed by mistake
    costs another writer an error, and no data.
    """
    return held.mark == mark if held.mark is not None else held.info.version == version
