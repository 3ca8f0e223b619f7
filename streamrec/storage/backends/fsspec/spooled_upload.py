"""Uploads for stores that only take whole files: parts are gathered in a local temporary file.

The file goes to a temporary name in the store; when it has the right size there, it is moved to its final one.
Where the store moves in one step, so does the object appear. Memory is bounded by the parts, disk space by the
object. A process that is killed leaves its temporary names: `.NAME.streamrec-*` in the store, which no listing
shows, and `streamrec-*` among this machine's temporary files. Nobody can tell whether their writer lives, so
nobody removes them.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from typing import IO

from streamrec.storage.backend import ObjectInfo, Sent
from streamrec.storage.resilience.shield import finish

__all__ = ["SpooledUpload"]

Deliver = Callable[[str, int], Awaitable[ObjectInfo]]


class SpooledUpload:
    """An upload by way of a local file.

    Args:
        file: A local temporary file, deleted when closed.
        deliver: Puts the local file of that name and size into the store, under the final name; may be called
            again.
        discard: Removes what an unfinished `deliver` may have left in the store.
    """

    parallel = 1

    def __init__(
        self,
        file: IO[bytes],
        deliver: Deliver,
        discard: Callable[[], Awaitable[None]],
    ) -> None:
        self._file = file
        self._deliver = deliver
        self._discard = discard
        self._delivering = False

    @classmethod
    async def start(cls, deliver: Deliver, discard: Callable[[], Awaitable[None]]) -> SpooledUpload:
        """Makes the local file."""
        return cls(await asyncio.to_thread(tempfile.NamedTemporaryFile, prefix="streamrec-"), deliver, discard)

    async def put_part(self, index: int, offset: int, pieces: Sequence[memoryview], whole: Sent | None) -> None:
        """Writes to the local file."""
        await finish(asyncio.to_thread(self._write, offset, pieces))

    async def complete(self, sent: Sent) -> ObjectInfo:
        """Delivers the file."""
        self._delivering = True
        info = await self._deliver(self._file.name, sent.size)
        await asyncio.to_thread(self._file.close)
        return info

    async def abort(self) -> None:
        """Deletes the local file, and what may lie in the store."""
        await asyncio.to_thread(self._file.close)
        if self._delivering:
            await self._discard()

    def _write(self, offset: int, pieces: Sequence[memoryview]) -> None:
        self._file.seek(offset)
        self._file.writelines(pieces)
        self._file.flush()
