"""Backends: what one kind of store must be able to do, one attempt at a time.

Rules that every backend keeps:

* A verb makes **one** attempt. It never retries, and it has the retries of its client switched off.
* A verb waits as long as the client waits. Time limits are kept above, once for all backends, by cancelling
  the attempt (but see `Body.keeps_time`). A cancelled verb frees its connection and never touches the
  caller's buffer again.
* Foreign exceptions stop here: what may succeed if tried again is `faults.TransientError`, all else is one of
  the final errors of `streamrec.errors`, raised `from` the original, with the path and the byte range.
* Bytes that were not asked for never reach the caller: a range that the server got wrong is a fault.
* Paths are full URLs, in and out.
* A `FastPath` over a client's private details, which change with each of its releases, never fails a request that the
  client itself would get answered. An error in it that is neither an answer of the store nor a failure of the network
  sends what it was for (a bucket, a session) to the client's own way permanently; the log says so once a process, and
  the statistics count it (`Counts.fallbacks`).
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamrec.display import display_repr
from streamrec.storage.urls import Glob

__all__ = [
    "BLOCK_BYTES",
    "Backend",
    "Body",
    "BytesBody",
    "ContentDigest",
    "FastPath",
    "ObjectInfo",
    "PartSink",
    "Pieces",
    "ShortObject",
]


@display_repr
@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What is known about one object.

    Attributes:
        path: Its full URL.
        size: Its length in bytes, or None where the store does not say before the end.
        version: An opaque string that changes when the object is replaced (an etag, a generation, a
            modification time), or None where the store has nothing of the kind.
    """

    path: str
    size: int | None
    version: str | None


class Body(Protocol):
    """The bytes of one response."""

    @property
    def keeps_time(self) -> bool:
        """Whether `readinto` fails by itself when nothing comes for the policy's `stall_timeout`.

        Where it does not, the stream sets a limit around each call, which costs more than a socket's own.
        """

    @property
    def splits(self) -> bool:
        """Whether other ranges of the object may be asked for at the same time, and make it faster."""

    @property
    def info(self) -> ObjectInfo:
        """The whole object's size and version, as this response tells them."""

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for at least one byte and copies what is there; 0 only where the response ends."""

    async def aclose(self) -> None:
        """Frees the connection, also where bytes are left. May be called twice."""


@dataclass(frozen=True, slots=True)
class ShortObject:
    """A small object, whole."""

    info: ObjectInfo
    data: bytes


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """All bytes of an object, as they were sent: what the store must have in the end.

    Attributes:
        size: How many.
        crc32c: Their CRC32C.
    """

    size: int
    crc32c: int


Pieces = Sequence[memoryview]
"""Bytes in order, not copied; nothing writes to them any more."""


class PartSink(Protocol):
    """One upload under way. Nothing is visible under its path before its last part, and never less than all of it.

    Attributes:
        parallel: How many parts may be under way at the same time. 1 means: in order, one by one.
        grows: Whether parts grow with their number, because the store limits it.
    """

    parallel: int = 1
    grows: bool = False

    async def put_part(self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None) -> None:
        """Stores one part; the same part may be put again after a fault.

        Args:
            index: Counted from 0.
            offset: Its first byte in the object.
            pieces: The bytes. Unless the sink says that parts grow, all but the last have the same size; the last may
                be empty.
            whole: The whole object, where it ends with this part; else None. Exactly one part is the last.
        """

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes the object visible, and compares what the store has with what was sent. May be called again.

        A lost answer is not a failure: where a second call finds the upload gone, the object tells.

        Args:
            sent: What was sent in all parts.

        Raises:
            IntegrityError: The store has something else. It was removed, unless it was replaced meanwhile.
            AlreadyExistsError: There is an object of this name, and it must not be replaced.
            ObjectChangedError: Another writer wrote the same name at the same time.
        """

    async def abort(self) -> None:
        """Frees what the store holds of it. May be called at any time, and twice."""


BLOCK_BYTES = 2 << 20
"""How much of an object is best read at a time."""


class Backend(Protocol):
    """One kind of store, one attempt per verb. What most stores have in common is here.

    Attributes:
        remote: Whether it answers over a network, so that a late answer is worth asking again for.
        compares_first: Whether an upload is compared with what was sent before its object is visible.
        reads_short: Whether `read_short` can give anything.
        fast_paths: Those that it takes.
        endpoint: The URL of its server; "" where the URLs of objects say it, or it is the usual one.
    """

    remote: bool = False
    compares_first: bool = True
    reads_short: bool = False
    fast_paths: Sequence[FastPath] = ()
    endpoint: str = ""

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """One page of the objects whose URL begins with `prefix`, in any order, and the next page's token.

        Args:
            prefix: A URL prefix; it need not end at a slash.
            token: What the page before returned, or None for the first one.
            glob: Which of them are wanted: a store that has directories lists no others than it enters.

        Returns:
            The objects, and None after the last page.
        """

    async def stat(self, path: str) -> ObjectInfo:
        """Size and version of one object."""

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """The bytes from `start` to `end`; returns when the response's head has arrived.

        Args:
            path: The object's URL.
            start: First byte; at or after the end of the object gives an empty body.
            end: One past the last byte, greater than `start`, or None: to the end. May be past the end.
            version: If given and the object has another one, ObjectChangedError.
        """

    async def begin_upload(self, path: str, overwrite: bool) -> PartSink:
        """Starts an upload, and ends what a killed writer left unfinished under the same name.

        Args:
            path: The object's URL.
            overwrite: Whether an object of this name is replaced. If not, and there is one, then here or in
                `complete` an AlreadyExistsError; where the store cannot promise that, an
                UnsupportedOperationError here.
        """

    async def copy(self, source: str, target: str) -> None:
        """Puts an object under another name, too, within the store: whole, in place of what is there."""

    async def remove(self, path: str) -> None:
        """Removes one object."""

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        """Many small objects in one step, if each costs little compared with the step.

        Returns:
            Each object; None where it has to be opened: it is long, empty, changing, special, or not to be read.
        """
        return [None] * len(paths)

    async def follow(self, path: str) -> str | None:
        """The name of what a symbolic link leads to, else the same; None for what is not a plain file."""
        return path

    async def aclose(self) -> None:
        """Closes the client, in the loop that made it; does nothing where there is none."""
        return


class BytesBody:
    """A body whose bytes are here already: those of a short object; or none, of a range after the object's end."""

    __slots__ = ("_left", "info")

    keeps_time = True
    splits = False

    def __init__(self, info: ObjectInfo, data: bytes | memoryview = b"") -> None:
        self.info = info
        self._left = memoryview(data)

    async def readinto(self, buffer: memoryview) -> int:
        """Copies; never waits."""
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def aclose(self) -> None:
        """Holds nothing that must be freed."""


logger = logging.getLogger("streamrec")

_said: set[tuple[str, Hashable]] = set()


class FastPath:
    """One kind of fast path, and what it is not taken for any more.

    Args:
        what: What it does, for the log: "repeating the client's GET".

    Attributes:
        fallbacks: How often it was left for the client's own way.
    """

    def __init__(self, what: str) -> None:
        self.fallbacks = 0
        self._what = what
        self._left: set[Hashable] = set()

    def is_open(self, key: Hashable) -> bool:
        """Whether it may be taken for this."""
        return key not in self._left

    def leave(self, key: Hashable, reason: BaseException | str) -> None:
        """It is not taken for this any more."""
        if key not in self._left:
            self._left.add(key)
            self.fallbacks += 1
            if (self._what, key) in _said:
                return
            _said.add((self._what, key))
            told = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
            logger.warning(
                "%s does not work here (%s: %s): from now on the client's own way is taken, which is slower",
                self._what,
                key,
                told,
            )
