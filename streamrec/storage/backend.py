"""The interface of a backend: the operations that one kind of store implements, one attempt each.

Rules for every backend:

* A method makes **one** attempt. It never retries, and it switches off the retries of its client.
* A method waits as long as its client waits. The layer above enforces time limits for all backends,
  by cancelling the attempt (but see `Backend.may_stall`). A cancelled method frees its connection
  and never touches the caller's buffer again.
* A backend raises only our exceptions, `from` the original: `TransientError(Cause..., reason)` of
  `faults.py` if another attempt may succeed, else one of the final errors of `streamrec.errors`,
  with the path and the byte range. `faults.py` makes those that most stores share
  (`changed_error`, `exists_error`, ...).
* A backend delivers only the bytes that were requested: a wrong range from the server is a
  TransientError.
* Paths are full URLs, in arguments and results.
* A `FastPath` uses a client's private details, which change with each release of the client. It
  never fails a request that the client itself would complete. An error in it that is neither an
  answer of the store nor a network failure disables it permanently for its key (a bucket, a
  session); the log says so once per process, and the statistics count it (`Counts.fallbacks`).
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Final, Protocol

from streamrec.display import display_repr
from streamrec.errors import UnsupportedOperationError
from streamrec.storage.faults import changed_error
from streamrec.storage.urls import Glob


@display_repr
@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """Path, size and version of one object.

    Attributes:
        path: The full URL.
        size: The length in bytes, or None if the store does not report it.
        version: An opaque string that changes when the object is replaced (an etag, a generation, a
            modification time), or None if the store has no versions.
        modified: The time of the last modification as the store gave it: a datetime, seconds since
            1970, or a text (a Last-Modified header, ISO 8601). It identifies no version, and only
            counts where two versions differ. None if the store did not give it.
        encoding: The Content-Encoding of an answer, although the bytes were requested as they are
            stored: the object has it in its metadata, or a proxy has encoded the answer. None
            without one.
    """

    path: str
    size: int | None
    version: str | None
    modified: datetime | float | str | None = field(default=None, compare=False, repr=False)
    encoding: str | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Held:
    """What a name holds now.

    Attributes:
        info: Size and version.
        mark: What proves whose object it is; None if nothing in the store proves it. On S3 and GCS
            it is the token of the upload that wrote it (metadata), and copies keep it: an etag does
            not prove it, because two writers may write the same bytes. On local disks it is the
            file's identity.
    """

    info: ObjectInfo
    mark: str | None


class Precondition(Enum):
    """What a request may replace, if not exactly one version."""

    ANY = "whatever is there"
    ABSENT = "nothing"


Replaced = Precondition | str
"""What may be replaced: anything, nothing, or one version (`ObjectInfo.version`)."""


MARK: Final = "streamrec-upload"
"""The name of the metadata that holds an upload's token."""


def check_replaced(path: str, found: Replaced | None, replaces: Replaced) -> None:
    """Raises an ObjectChangedError if something else is there than what may be replaced.

    `found` is the version that is there, or ABSENT; None if the store has no versions, so that
    nothing can be compared.
    """
    if replaces is not Precondition.ANY and found is not None and found != replaces:
        raise changed_error(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadTerms:
    """What an upload may replace, and whose it is.

    Attributes:
        overwrite: Whether to replace an existing object.
        guaranteed: Without `overwrite`: whether a store that cannot create an object only where
            there is none must refuse (UnsupportedOperationError); else it looks just before, and
            goes on.
        token: The writer's token, which the store keeps with the object if it can.
    """

    overwrite: bool = True
    guaranteed: bool = True
    token: str = ""

    @property
    def mark(self) -> str | None:
        """What a store that keeps tokens says of the object (`Held.mark`); None without a token."""
        return self.token or None

    def make_mark(self) -> str:
        """The token, or a new one, for a store in which each object has one."""
        return self.token or secrets.token_hex(16)


class Body(Protocol):
    """The bytes of one response."""

    @property
    def splits(self) -> bool:
        """Whether parallel requests for other ranges of the object are possible and make reading
        faster.
        """

    @property
    def info(self) -> ObjectInfo:
        """The whole object's size and version, from this response."""

    @property
    def has_arrived(self) -> bool:
        """Whether the next bytes, or the end, are here, so that `readinto` does not wait."""

    async def readinto(self, buffer: memoryview) -> int:
        """Waits for at least one byte and copies the bytes available; returns 0 only at the end of
        the response.
        """

    async def aclose(self) -> None:
        """Frees the connection, even if bytes are left. May be called twice."""


@dataclass(frozen=True, slots=True)
class ShortObject:
    """A small object with all its bytes."""

    info: ObjectInfo
    data: bytes | bytearray


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """Size in bytes and CRC32C of the data that was sent, for comparison with what the store
    has.
    """

    size: int
    crc32c: int


def encode_crc32c(crc32c: int) -> str:
    """Encodes a CRC32C as in S3 and GCS: base64 of its four bytes, big-endian.

    >>> encode_crc32c(0xE3069283)
    '4waSgw=='
    """
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


Pieces = Sequence[memoryview]
"""Consecutive buffers of a byte string, not copied; they must not be modified any more."""


class PartSink(Protocol):
    """An upload in progress. The object becomes visible with its last part, complete or not at all.

    Attributes:
        parallel: How many parts may be in progress at the same time. 1 means: in order, one by one.
        grows: Whether later parts are larger, because the store limits the number of parts.
        mark: What `Backend.identify` says of the object when it is complete; see `Held.mark`.
        hidden: The hidden object that `settle` removes, or None.
    """

    parallel: int = 1
    grows: bool = False
    mark: str | None = None
    hidden: str | None = None

    async def put_part(
        self, index: int, offset: int, pieces: Pieces, whole: ContentDigest | None
    ) -> None:
        """Stores one part; the same part may be stored again after a fault.

        Parts are counted from 0. Unless `grows` is True, all but the last have the same size; the
        last may be empty, and it alone comes with the digest of the whole object.
        """

    async def complete(self, sent: ContentDigest) -> ObjectInfo:
        """Makes the object visible, and compares what the store has with what was sent. May be
        called again.

        A lost answer is not a failure: if a second call finds the upload gone, the object shows the
        outcome.

        Raises:
            IntegrityError: The store has other bytes. They were removed, unless they were replaced
                meanwhile.
            AlreadyExistsError: An object of this name exists and must not be replaced.
            ObjectChangedError: Another writer wrote the same name at the same time.
        """

    async def abort(self) -> None:
        """Frees what the store holds of the upload. May be called at any time, and twice."""

    async def settle(self) -> None:
        """Removes what a complete upload no longer needs; an error of it is not one of the
        upload.
        """
        return


BLOCK_BYTES = 2 << 20
"""How many bytes of an object a reader should request at a time."""


class Backend(Protocol):
    """One kind of store, one attempt per method, with the defaults that most stores share.

    Attributes:
        remote: Whether the store answers over a network, so that a second request may help when an
            answer is late, and parallel ones may be faster than one.
        may_stall: Whether a body may give nothing for a while, or break off, so that each read of
            it has a time limit, and is tried again.
        splits: Whether each object has a version, and can be read by ranges of it.
        verifies_first: Whether an upload is verified before its object becomes visible.
        reads_short: Whether `read_short` is implemented.
        fast_paths: The fast paths that this backend uses.
        endpoint: The URL of the server; "" if the objects' URLs contain it, or it is the default
            one.
    """

    remote: bool = False
    may_stall: bool = True
    splits: bool = False
    verifies_first: bool = True
    reads_short: bool = False
    fast_paths: Sequence[FastPath] = ()
    endpoint: str = ""

    async def list_page(
        self, prefix: str, token: str | None, glob: Glob | None
    ) -> tuple[Sequence[ObjectInfo], str | None]:
        """Returns one page of the objects whose URL begins with `prefix`, in any order, and the
        next page's token.

        The prefix need not end at a slash. The first page has no token, and the last one gives
        none. A store with directories lists only those that the glob enters.
        """

    async def stat(self, path: str) -> ObjectInfo:
        """Returns size and version of one object."""

    async def open(self, path: str, start: int, end: int | None, version: str | None) -> Body:
        """Requests the bytes from `start` to `end`; returns when the response's head has arrived.

        A `start` at or after the end of the object gives an empty body. `end` is None for all the
        rest, or greater than `start`, and may be past the end. With a version, another one is an
        ObjectChangedError.
        """

    async def identify(self, path: str) -> Held:
        """Returns size and version of one object, and what proves whose it is."""
        return Held(await self.stat(path), None)

    async def begin_upload(self, path: str, terms: UploadTerms) -> PartSink:
        """Starts an upload, and cleans up what a killed writer left unfinished under the same name.

        Without `terms.overwrite`, an existing object of this name is an AlreadyExistsError, here or
        in `complete`; a store that cannot guarantee that raises UnsupportedOperationError here, if
        `terms.guaranteed` demands it.
        """

    async def copy(
        self,
        source: str,
        target: str,
        replaces: Replaced = Precondition.ANY,
        source_version: str | None = None,
    ) -> str | None:
        """Copies an object within the store, replacing the target as a whole.

        A target that is not what it `replaces` is an ObjectChangedError, and so is a source that
        has another version, in one step if the store can do that; the caller has looked just
        before. Returns the mark of the copy if that is not the mark of the source.
        """

    async def remove(self, path: str, version: str | None = None) -> None:
        """Removes one object; with a version, no other one (ObjectChangedError), in one step if the
        store can do that.
        """

    async def write_short(self, path: str, data: bytes, replaces: Replaced) -> str | None:
        """Writes a short object in one request, and returns its version.

        A target that is not what it `replaces` is an ObjectChangedError. A store that cannot
        guarantee that raises UnsupportedOperationError.
        """
        raise UnsupportedOperationError("this store cannot write on a condition", path)

    async def try_lock(self, directory: str) -> Callable[[], None] | None:
        """Locks a directory against other writers that replace or remove objects in it.

        Returns the function that unlocks it, or None if another writer has it. The system frees the
        lock of a killed process. A store without such locks raises UnsupportedOperationError.
        """
        raise UnsupportedOperationError("this store cannot lock a directory", directory)

    async def read_short(self, paths: Sequence[str]) -> list[ShortObject | None]:
        """Reads many small objects in one step, if each costs little compared with the step.

        The result has None for an object that must be opened: it is long, empty, changing, special,
        or unreadable.
        """
        return [None] * len(paths)

    async def follow(self, path: str) -> str | None:
        """Returns the target of a symbolic link, else the path itself; None if it is not a regular
        file.
        """
        return path

    async def aclose(self) -> None:
        """Closes the client, in the loop that made it; a backend without a client does nothing."""
        return


class BytesBody:
    """A body in memory: the bytes of a short object, or none for a range after the object's end."""

    __slots__ = ("_left", "info")

    splits = False
    has_arrived = True

    def __init__(self, info: ObjectInfo, data: bytes | memoryview = b"") -> None:
        self.info = info
        self._left = memoryview(data)

    async def readinto(self, buffer: memoryview) -> int:
        """Copies the bytes left that fit; returns their number, 0 at the end."""
        count = min(len(buffer), len(self._left))
        buffer[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    async def aclose(self) -> None:
        """Does nothing: memory has no connection."""


logger = logging.getLogger("streamrec")

_logged: set[tuple[str, Hashable]] = set()


class FastPath:
    """One kind of fast path, and the keys (buckets, clients) for which it is disabled; `fallbacks`
    counts them.

    Its description is for the log: "repeating the client's GET".
    """

    def __init__(self, description: str) -> None:
        self.fallbacks = 0
        self._description = description
        self._disabled: set[Hashable] = set()

    def is_enabled(self, key: Hashable) -> bool:
        """Whether the fast path is taken for this key."""
        return key not in self._disabled

    def disable(self, key: Hashable, reason: BaseException | str) -> None:
        """Disables it for this key permanently, and logs the reason once per process."""
        if key in self._disabled:
            return
        self._disabled.add(key)
        self.fallbacks += 1
        if (self._description, key) not in _logged:
            _logged.add((self._description, key))
            logger.warning(
                "%s does not work here (%s: %s): from now on the client's own way is taken, which "
                "is slower",
                self._description,
                key,
                reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}",
            )
