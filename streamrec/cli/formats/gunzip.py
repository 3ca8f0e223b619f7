"""Decompresses a file of another format, and refuses a record that is far larger than what it was
compressed from.

A few hundred kilobytes of GZIP can hold a gigabyte of zeros. A decoder has a record in memory as a
whole, and up to three times. So the size of a file would say nothing about the memory that it
needs.
"""

from __future__ import annotations

import gzip
import io
from typing import Any, BinaryIO, Final, cast

from streamrec import FeatureError

MAX_RATIO: Final = 100
"""The largest ratio of a record's bytes to the compressed ones. Text reaches about 20, and zeros
1,030."""

SMALL_BYTES: Final = 64 << 20
"""Records up to this size may have any ratio."""


class BoundedGzip(io.RawIOBase):
    """The decompressed bytes of a file, which is read from its beginning.

    Args:
        file: The compressed file; `tell` must say how much of it was read.

    Examples:
        >>> file = BoundedGzip(io.BytesIO(gzip.compress(bytes(1000))))
        >>> len(file.buffered().read())
        1000
    """

    def __init__(self, file: BinaryIO) -> None:
        self._compressed = file
        self._plain = cast(BinaryIO, gzip.GzipFile(fileobj=file))
        self._taken = 0
        self._began = (0, 0)

    def readable(self) -> bool:
        return True

    def buffered(self) -> io.BufferedReader:
        """The same with a buffer, as decoders need it."""
        return io.BufferedReader(self, 1 << 16)

    def begin_record(self) -> None:
        """Called where a record begins, give or take a buffer."""
        self._began = self._taken, self._compressed.tell()

    def readinto(self, buffer: Any) -> int:
        count = cast(Any, self._plain).readinto(buffer)
        self._taken += count
        size = self._taken - self._began[0]
        if size > SMALL_BYTES:
            compressed = max(1, self._compressed.tell() - self._began[1])
            if size > MAX_RATIO * compressed:
                raise FeatureError(
                    f"a record of more than {size:,} bytes out of {compressed:,} compressed ones, "
                    f"and above {SMALL_BYTES >> 20} MiB the limit is {MAX_RATIO} times as many: if "
                    "it is as it should be, unpack the file with gunzip first"
                )
        return cast(int, count)
