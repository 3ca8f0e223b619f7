"""The content of a block: bytes of an object, then the CRC32C of each 64 KiB of them, then a foot.

    bytes of the object | CRC32Cs, 4 bytes each | digest, start, length, magic, CRC32C of the table

A reader checks what it reads and no more, straight in the caller's buffer. The foot is written
last, and the file gets its name after it; a file that lost bytes in a power failure has none, or
another CRC32C, and counts as missing.
"""

from __future__ import annotations

import os
import struct
from typing import Final

from streamrec import kernels

CHUNK: Final = 64 << 10
"""Bytes with one CRC32C."""

MAGIC: Final = b"SRcache1"

_FOOT: Final = struct.Struct("<32sQQ8sI")


class DamagedBlockError(Exception):
    """A block does not hold what was written; it counts as missing."""


def file_bytes(length: int) -> int:
    """Returns the size of the file of a block with this many bytes of an object.

    >>> file_bytes(1) - 1, file_bytes(65537) - 65537
    (64, 68)
    """
    return length + 4 * -(-length // CHUNK) + _FOOT.size


class Checksums:
    """The CRC32Cs of bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self.length = 0
        self._done = bytearray()
        self._crc = 0

    def add(self, data: memoryview) -> None:
        """Adds the next bytes."""
        while data:
            room = CHUNK - self.length % CHUNK
            piece = data[:room]
            self._crc = kernels.crc32c(piece, self._crc)
            self.length += len(piece)
            if self.length % CHUNK == 0:
                self._done += self._crc.to_bytes(4, "little")
                self._crc = 0
            data = data[len(piece) :]

    def foot(self, digest: bytes, start: int) -> bytes:
        """Returns all that follows the bytes in the file."""
        table = bytes(self._done)
        if self.length % CHUNK:
            table += self._crc.to_bytes(4, "little")
        fields = (digest, start, self.length, MAGIC)
        head = _FOOT.pack(*fields, 0)[:-4]
        return table + _FOOT.pack(*fields, kernels.crc32c(table + head))


def parse_foot(foot: bytes, digest: bytes, start: int, length: int) -> memoryview:
    """Returns the table of CRC32Cs; DamagedBlockError if the foot is not that of these bytes."""
    if len(foot) != file_bytes(length) - length:
        raise DamagedBlockError("it is cut off")
    table = foot[: -_FOOT.size]
    *fields, crc = _FOOT.unpack(foot[-_FOOT.size :])
    if fields != [digest, start, length, MAGIC] or crc != kernels.crc32c(foot[:-4]):
        raise DamagedBlockError("its foot is that of other bytes")
    return memoryview(table).cast("I") if _LITTLE else memoryview(_swapped(table)).cast("I")


_LITTLE: Final = struct.pack("=I", 1) == struct.pack("<I", 1)


def _swapped(table: bytes) -> bytes:
    count = len(table) // 4
    return struct.pack(f"={count}I", *struct.unpack(f"<{count}I", table))


def check_chunks(table: memoryview, data: memoryview, first: int) -> None:
    """Checks bytes that begin at a chunk; DamagedBlockError if any of them differ."""
    for index, offset in enumerate(range(0, len(data), CHUNK), first):
        if kernels.crc32c(data[offset : offset + CHUNK]) != table[index]:
            raise DamagedBlockError(f"bytes from {index * CHUNK:,} on differ from what was written")


class OpenBlock:
    """An open block: its file, and the CRC32Cs of its bytes. Close it.

    It begins `at` an offset of the file. OSError and DamagedBlockError while opening: the file is
    closed.
    """

    def __init__(self, file: int, digest: bytes, start: int, length: int, *, at: int = 0) -> None:
        self.start = start
        self.length = length
        self._file = file
        self._at = at
        try:
            foot = os.pread(file, file_bytes(length) - length, at + length)
            self._table = parse_foot(foot, digest, start, length)
        except BaseException:
            self.close()
            raise

    def read(self, buffers: list[memoryview], offset: int, *, wait: bool = True) -> bool:
        """Reads whole chunks from `offset` on into buffers of whole chunks, and checks them.

        Returns False if that would have to `wait` for the disk. Only the last chunk may be shorter.
        """
        wanted = sum(map(len, buffers))
        try:
            count = _read_vector(self._file, buffers, self._at + offset, wait)
        except BlockingIOError:
            return False
        if count != wanted:
            if not wait:
                return False
            raise DamagedBlockError("it is cut off")
        index = offset // CHUNK
        for buffer in buffers:
            check_chunks(self._table, buffer, index)
            index += -(-len(buffer) // CHUNK)
        return True

    def close(self) -> None:
        """Closes the file. May be called twice."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


def read_block(file: int, digest: bytes, start: int, length: int, *, at: int = 0) -> bytearray:
    """Reads and checks all of a block by one system call; `at` and errors as for OpenBlock."""
    data = bytearray(length)
    foot = bytearray(file_bytes(length) - length)
    with memoryview(data) as view:
        count = _read_vector(file, [view, memoryview(foot)], at, wait=True)
        if count != length + len(foot):
            raise DamagedBlockError("it is cut off")
        check_chunks(parse_foot(bytes(foot), digest, start, length), view, 0)
    return data


def _read_vector(file: int, buffers: list[memoryview], offset: int, wait: bool) -> int:
    """One preadv(2); without `wait`, BlockingIOError where the page cache has not all of it."""
    if not hasattr(os, "preadv"):
        return _read_copies(file, buffers, offset)
    if wait:
        return os.preadv(file, buffers, offset)
    if not hasattr(os, "RWF_NOWAIT"):
        raise BlockingIOError
    try:
        return os.preadv(file, buffers, offset, os.RWF_NOWAIT)
    except OSError as error:  # the filesystem does not say
        raise BlockingIOError from error


def _read_copies(file: int, buffers: list[memoryview], offset: int) -> int:
    """Reads without preadv(2), which macOS has from 11 on only."""
    total = 0
    for buffer in buffers:
        data = os.pread(file, len(buffer), offset + total)
        buffer[: len(data)] = data
        total += len(data)
    return total
