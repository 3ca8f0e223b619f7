"""An upload that replaces an object, in a store where what arrived is compared with what was sent when it is visible.

The object goes to a hidden name beside its own, is compared there, and is copied to its name within the store. So what
was there before stays where something else arrived than was sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from streamrec.errors import IntegrityError, NotFoundError, StorageError
from streamrec.storage.backend import Backend, ObjectInfo, PartSink, Sent

__all__ = ["StagedSink"]


class StagedSink:
    """A PartSink for a name that is taken.

    Args:
        backend: The store.
        path: The URL of the object that is replaced.
        hidden: The URL beside it.
        sink: The upload to that one.
    """

    def __init__(self, backend: Backend, path: str, hidden: str, sink: PartSink) -> None:
        self.parallel = sink.parallel
        self.grows = bool(getattr(sink, "grows", False))
        self._backend = backend
        self._path = path
        self._hidden = hidden
        self._sink = sink
        self._compared = False

    async def put_part(self, index: int, offset: int, pieces: Sequence[memoryview], whole: Sent | None) -> None:
        """Stores a part."""
        with self._renamed():
            await self._sink.put_part(index, offset, pieces, whole)

    async def complete(self, sent: Sent) -> ObjectInfo:
        """Compares, copies, and removes the hidden object."""
        if not self._compared:
            with self._renamed():
                await self._sink.complete(sent)
            self._compared = True
        await self._backend.copy(self._hidden, self._path)
        info = await self._backend.stat(self._path)
        if info.size != sent.size:
            raise IntegrityError(f"the store copied {info.size} bytes of {sent.size:,}: write it again", self._path)
        with suppress(NotFoundError):
            await self._backend.remove(self._hidden)
        return info

    @contextmanager
    def _renamed(self) -> Iterator[None]:
        """An error names the object that the caller knows."""
        try:
            yield
        except StorageError as error:
            raise type(error)(error.reason, self._path, error.start, error.end) from error

    async def abort(self) -> None:
        """Frees what the store holds of it."""
        await self._sink.abort()
        if self._compared:
            with suppress(NotFoundError):
                await self._backend.remove(self._hidden)
