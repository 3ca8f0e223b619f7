"""The content of a pack: blocks of short objects, one after the other, then a table. Pure.

    block | block | ... | path, version, length, offset of each | magic, CRC32C of the table

Each block is what a file of its own would hold (`block_file.py`), so that it is read and checked in
the same way. A file for each short object would cost more than the bytes in it: creating, closing
and renaming took a thousand times 50 µs for 100 MB, and each call hands the GIL over twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from streamrec import kernels
from streamrec.storage.cache.block_file import DamagedBlockError

PACK_BYTES: Final = 8 << 20
"""A pack with so many bytes is complete: as many as a block of a long object has."""

MAGIC: Final = b"SRpack01"

_ENTRY: Final = struct.Struct("<10s10sII")
_TAIL: Final = struct.Struct("<8sI")

ENTRY_BYTES: Final = _ENTRY.size


class PackEntry(NamedTuple):
    """A whole object in a pack: its names, its bytes, and where its block begins."""

    path: str
    version: str
    length: int
    offset: int


def table_bytes(count: int) -> int:
    """Returns the size of the table of a pack with so many blocks.

    >>> table_bytes(0), table_bytes(2)
    (12, 68)
    """
    return count * ENTRY_BYTES + _TAIL.size


def build_table(entries: Sequence[PackEntry]) -> bytes:
    """Returns what follows the blocks.

    >>> entry = PackEntry("ab" * 10, "cd" * 10, 1_000, 0)
    >>> parse_table(build_table([entry]), 1) == [entry]
    True
    """
    table = b"".join(
        _ENTRY.pack(bytes.fromhex(path), bytes.fromhex(version), length, offset)
        for path, version, length, offset in entries
    )
    return table + _TAIL.pack(MAGIC, kernels.crc32c(table))


def parse_table(data: bytes, count: int) -> list[PackEntry]:
    """Returns the blocks of a pack; DamagedBlockError if it is not a table of so many."""
    if len(data) != table_bytes(count):
        raise DamagedBlockError("it is cut off")
    table = data[: -_TAIL.size]
    if _TAIL.unpack(data[-_TAIL.size :]) != (MAGIC, kernels.crc32c(table)):
        raise DamagedBlockError("its table differs from what was written")
    return [
        PackEntry(path.hex(), version.hex(), length, offset)
        for path, version, length, offset in _ENTRY.iter_unpack(table)
    ]
