"""Names of the cache's files, and what identifies the bytes in them. Pure.

    DIR/streamrec-cache.json                    says that the directory is a cache, and its format
    DIR/usage                                   how many bytes it takes; locked to count
    DIR/runs/RUN.run                            the data sets that a process uses; locked by it
    DIR/sets/SET/about.json                     which data set this is; touched when it is used
    DIR/sets/SET/journal                        the names that its processes added of late
    DIR/sets/SET/PATH-VERSION-START-LENGTH.block    bytes of one version of one object
    DIR/sets/SET/PATH-VERSION-START.RUN.tmp     a block that a process is writing
    DIR/sets/SET/TIME-RUN-COUNT-LENGTH.pack     blocks of COUNT short objects
    DIR/sets/SET/TIME-RUN.pack.tmp              such a pack that a process is writing
    DIR/sets/SET/PATH-VERSION-START.lock        a process is fetching these bytes

A data set is a directory of a store. SET, PATH and VERSION are hashes; RUN is random; TIME (in
nanoseconds), START, COUNT and LENGTH are hexadecimal. Only files whose names match are ever
removed.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

MARKER: Final = "streamrec-cache.json"
USAGE: Final = "usage"
RUNS: Final = "runs"
SETS: Final = "sets"
ABOUT: Final = "about.json"
JOURNAL: Final = "journal"

CHARGE: Final = 4 << 10
"""A file counts as a multiple of this many bytes, as on most disks."""

MIN_CHARGE: Final = 16 << 10
"""What a file counts at least, so that the limit bounds the number of files, too."""

_BLOCK: Final = re.compile(r"([0-9a-f]{20})-([0-9a-f]{20})-([0-9a-f]+)-([0-9a-f]+)\.block")
_TEMPORARY: Final = re.compile(r"[0-9a-f]{20}-[0-9a-f]{20}-[0-9a-f]+\.([0-9a-f]{16})\.tmp")
_PACK: Final = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-([0-9a-f]+)-([0-9a-f]+)\.pack")
_TEMPORARY_PACK: Final = re.compile(r"[0-9a-f]{16}-([0-9a-f]{16})\.pack\.tmp")
_LOCK: Final = re.compile(r"[0-9a-f]{20}-[0-9a-f]{20}-[0-9a-f]+\.lock")
_SET: Final = re.compile(r"[0-9a-f]{32}")
_RUN: Final = re.compile(r"([0-9a-f]{16})\.run")


class BlockName(NamedTuple):
    """A parsed name: the hash of the object's path, that of its version, and a byte range."""

    path: str
    version: str
    start: int
    length: int


class PackName(NamedTuple):
    """A parsed name: how many blocks a pack has, and the length of its file."""

    blocks: int
    length: int


@dataclass(frozen=True)
class ObjectKey:
    """One version of one object of one store. Its hashes are computed once.

    Attributes:
        store: What tells two stores with the same URLs apart: the server's URL, an account.
        path: The object's URL.
        version: The version as the store names it.
        size: Its bytes.
    """

    store: str
    path: str
    version: str
    size: int

    @property
    def directory(self) -> str:
        """The URL of the data set, with the slash.

        >>> ObjectKey("", "s3://b/train/x-1", "v", 3).directory
        's3://b/train/'
        """
        return self.path[: self.path.rfind("/") + 1]

    @cached_property
    def digest(self) -> bytes:
        """Identifies all of it, within each block."""
        return _hash(self.store, self.path, self.version, str(self.size))

    @cached_property
    def set_name(self) -> str:
        return _hash(self.store, self.directory).hex()[:32]

    @cached_property
    def path_name(self) -> str:
        return _hash(self.path).hex()[:20]

    @cached_property
    def version_name(self) -> str:
        return _hash(self.version, str(self.size)).hex()[:20]

    def block(self, start: int, length: int) -> str:
        """The name of a block of `length` bytes from `start` on."""
        return f"{self.path_name}-{self.version_name}-{start:x}-{length:x}.block"

    def temporary(self, start: int, run: str) -> str:
        """The name of a block that a process is writing."""
        return f"{self.path_name}-{self.version_name}-{start:x}.{run}.tmp"

    def lock(self, start: int) -> str:
        """The name of the lock of bytes from `start` on."""
        return f"{self.path_name}-{self.version_name}-{start:x}.lock"


def _hash(*parts: str) -> bytes:
    """A hash that no two lists of parts share."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    digest = hashlib.sha256()
    for part in encoded:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def parse_block(name: str) -> BlockName | None:
    """Parses the name of a block; None for any other file."""
    match = _BLOCK.fullmatch(name)
    if match is None:
        return None
    return BlockName(match[1], match[2], int(match[3], 16), int(match[4], 16))


def temporary_pack(time_ns: int, run: str) -> str:
    """The name of a pack that a process is writing; names of later ones are greater.

    >>> pack_of(temporary_pack(1, "0123456789abcdef"), count=3, length=500)
    '0000000000000001-0123456789abcdef-3-1f4.pack'
    """
    return f"{time_ns:016x}-{run}.pack.tmp"


def pack_of(temporary: str, *, count: int, length: int) -> str:
    """The name of a complete pack."""
    return f"{temporary.removesuffix('.pack.tmp')}-{count:x}-{length:x}.pack"


def parse_pack(name: str) -> PackName | None:
    """Parses the name of a complete pack; None for any other file."""
    match = _PACK.fullmatch(name)
    return None if match is None else PackName(int(match[1], 16), int(match[2], 16))


def count_blocks(name: str) -> int:
    """How many blocks a file of this name has: that of a block has one.

    >>> count_blocks("0000000000000001-0123456789abcdef-3-1f4.pack")
    3
    """
    pack = parse_pack(name)
    return 1 if pack is None else pack.blocks


def writer_of(name: str) -> str | None:
    """Returns the run that writes a temporary file; None for any other file."""
    match = _TEMPORARY.fullmatch(name) or _TEMPORARY_PACK.fullmatch(name)
    return None if match is None else match[1]


def is_lock(name: str) -> bool:
    """Whether this is the lock of a block."""
    return _LOCK.fullmatch(name) is not None


def is_set(name: str) -> bool:
    """Whether this is the directory of a data set."""
    return _SET.fullmatch(name) is not None


def run_of(name: str) -> str | None:
    """Returns the run of a file in `runs`; None for any other file."""
    match = _RUN.fullmatch(name)
    return None if match is None else match[1]


_TIMES: Final = ("mtime=", "last_modified=", "LastModified=", "modified=", "modify=")


def identifies_bytes(version: str) -> bool:
    """Whether two objects of this version and of one size have the same bytes.

    An ETag or a generation does. A time does not: an object may be written twice in a second; nor
    does a weak ETag, which bytes of the same meaning may share.

    >>> [identifies_bytes(version) for version in ('"5d41"', "1752", 'W/"5d41"', "mtime=7.0")]
    [True, True, False, False]
    >>> identifies_bytes("Tue, 01 Jul 2025 10:00:00 GMT")
    False
    """
    return not version.startswith(("W/", *_TIMES)) and not version.endswith(" GMT")


def charge_of(size: int) -> int:
    """Returns what a file of this size counts.

    >>> charge_of(1), charge_of(16 << 10), charge_of((16 << 10) + 1)
    (16384, 16384, 20480)
    """
    return max(MIN_CHARGE, -(-size // CHARGE) * CHARGE)
