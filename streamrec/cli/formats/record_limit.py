"""Refuses a record of another format that is too large for the memory that it needs.

A decoder has a record in memory as a whole: its value, the Example around it, the block that is
written, and for JSON lines the text. A member of a tar took 3.2 times its size on the way to
TFRecord, and 8 times on the way to JSON lines. A record of a shard took 7 times its size on the way
to tar.
"""

from __future__ import annotations

import io
from typing import Any, BinaryIO, Final, cast

from streamrec import FeatureError

RECORD_BYTES: Final = 128 << 20
"""The largest record by default."""


def describe_limit(limit: int) -> str:
    return (
        f"a record of more than {limit:,} bytes, which is the limit, because a record takes up to "
        "8 times its size in memory: if there is enough of it, raise the limit with --record-limit"
    )


class LimitedFile(io.RawIOBase):
    """A file that is read from its beginning, up to a number of bytes for each record.

    Examples:
        >>> file = LimitedFile(io.BytesIO(bytes(1000)), limit=2000)
        >>> len(file.buffered().read())
        1000
    """

    def __init__(self, file: BinaryIO, limit: int) -> None:
        self._file = file
        self._limit = limit
        self._taken = 0

    def readable(self) -> bool:
        return True

    def buffered(self) -> io.BufferedReader:
        """The same with a buffer, as decoders need it."""
        return io.BufferedReader(self, 1 << 16)

    def begin_record(self) -> None:
        """Called where a record begins, give or take a buffer."""
        self._taken = 0

    def readinto(self, buffer: Any) -> int:
        count = cast(Any, self._file).readinto(buffer)
        self._taken += count
        if self._taken > self._limit:
            raise FeatureError(describe_limit(self._limit))
        return cast(int, count)
