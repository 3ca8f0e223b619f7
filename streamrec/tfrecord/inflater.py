"""Inflating without I/O: a compressed stream of any number of members, in bounded memory.

Rules:
- An Inflater never returns more bytes than the caller asked for: a few kilobytes that expand to a
  terabyte need no more memory than any other shard.
- The bytes inflated before damage are returned, except for at most the last 120 KiB; the next call
  raises the error.
- Zero bytes after the last gzip member are padding, as in gzip itself.
- The compressed bytes wait in a `CompressedInput`, which knows nothing of members; `compression.py`
  opens the library's stream for each member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from streamrec.arguments import describe_value
from streamrec.errors import CorruptRecordError, TruncatedShardError
from streamrec.tfrecord.compression import (
    DETECT_BYTES,
    CompressionType,
    Decompressor,
    check_compression_type,
    detect_compression,
    is_record_header,
    looks_like,
    open_decompressor,
)
from streamrec.tracebacks import border

if TYPE_CHECKING:
    from typing_extensions import Buffer

INPUT_BYTES = 64 << 10
"""How much input is inflated at a time: the libraries copy the input that they do not use."""

OUTPUT_BYTES = 120 << 10
"""How much output is inflated at a time: it is still in the cache when it is copied to be framed.

From 128 KiB on, the C library may return memory to the kernel after each use, and the kernel clears
it for the next use.
"""


NO_INPUT = memoryview(b"")
"""For a member that has more output: some libraries accept no `None`."""


class CompressedInput:
    """The compressed bytes that were fed and not used yet.

    Attributes:
        head: The first `DETECT_BYTES` bytes of the stream, which describe its damage.
        total: How many bytes were fed.

    >>> fed = CompressedInput()
    >>> fed.feed(b"two members")
    >>> bytes(fed.take(5))
    b'two m'
    >>> fed.put_back(b"m")
    >>> bytes(fed.take(99)), fed.empty
    (b'members', True)
    """

    def __init__(self) -> None:
        self.head = b""
        self.total = 0
        self._bytes = memoryview(b"")
        self._at = 0

    @property
    def empty(self) -> bool:
        """Whether all bytes were used."""
        return self._at == len(self._bytes)

    def feed(self, data: Buffer) -> None:
        """Takes the next bytes; only while it is `empty`. They are used without a copy."""
        self._bytes = memoryview(data).cast("B")
        self._at = 0
        if len(self.head) < DETECT_BYTES:
            self.head += bytes(self._bytes[: DETECT_BYTES - len(self.head)])
        self.total += len(self._bytes)

    def take(self, limit: int) -> memoryview:
        """Removes and returns up to `limit` bytes."""
        data = self._bytes[self._at : self._at + limit]
        self._at += len(data)
        return data

    def put_back(self, data: bytes) -> None:
        """Returns bytes that a member did not use. The first may be from an earlier `feed`."""
        if len(data) <= self._at:
            self._at -= len(data)
        else:
            self._bytes = memoryview(data + bytes(self._bytes[self._at :]))
            self._at = 0

    def skip_zeros(self) -> None:
        """Skips zero bytes, in pieces: padding may be long."""
        while self._at < len(self._bytes) and not self._bytes[self._at]:
            padding = bytes(self._bytes[self._at : self._at + INPUT_BYTES])
            self._at += len(padding) - len(padding.lstrip(b"\0"))


class Inflater:
    """Inflates one shard's stream, member after member.

    Use: `feed` compressed bytes while `needs_input`; `read` until it returns b"", or `read_into`
    until it returns 0; and `close` at the end.
    """

    def __init__(self, compression_type: CompressionType, path: str | None = None) -> None:
        self._type = compression_type
        self._path = path
        self._stream: Decompressor | None  # None between two members
        self._stream, self._damage = open_decompressor(compression_type)
        self._has_more = False
        self._input = CompressedInput()
        self._produced = 0
        self._between = False
        self._error: CorruptRecordError | None = None

    @property
    def needs_input(self) -> bool:
        """Whether `read` can return nothing more before the next `feed`."""
        return (
            self._input.empty
            and (self._stream is None or self._starves(self._stream))
            and self._error is None
        )

    def feed(self, data: Buffer) -> None:
        """Takes the next compressed bytes; only while `needs_input`.

        `data` is used until it is true again.
        """
        self._input.feed(data)

    def read(self, limit: int) -> bytes:
        """Up to `limit` inflated bytes.

        It is `b""` if another `feed` is needed, or at the end of the stream.
        """
        if self._error is not None:
            raise self._error
        while not self.needs_input:
            stream = self._stream or self._start_member()
            if stream is None:
                return b""
            data = self._inflate(stream, limit)
            if data:
                self._produced += len(data)
                return data
        return b""

    def read_into(self, buffer: memoryview) -> int:
        """Fills a buffer of bytes from its start, until `read` would return `b""`.

        Returns how many bytes it filled.

        It raises an error only if it filled no bytes; else the next call does.
        """
        filled = 0
        try:
            while filled < len(buffer):
                data = self.read(min(OUTPUT_BYTES, len(buffer) - filled))
                if not data:
                    break
                buffer[filled : filled + len(data)] = data
                filled += len(data)
        except CorruptRecordError as error:
            if not filled:
                raise
            self._error = error
        return filled

    def close(self) -> None:
        """Ends the compressed bytes.

        Raises a TruncatedShardError if they ended within a compressed stream.
        """
        if not self._between and self._input.total:
            raise TruncatedShardError(
                f"the {self._type} stream ends unfinished after {self._input.total:,} compressed "
                "bytes: its writer did not finish, or the copy is incomplete; write or copy it "
                "again",
                self._path,
                self._produced,
            )

    def _starves(self, stream: Decompressor) -> bool:
        """Whether the member needs more input.

        After a full output it may have more, whatever it reports.
        """
        return stream.needs_input and not self._has_more

    def _inflate(self, stream: Decompressor, limit: int) -> bytes:
        data = self._input.take(INPUT_BYTES) if self._starves(stream) else NO_INPUT
        self._between = False
        try:
            head = self._input.head[:2]
            if self._type == "GZIP" and head not in (b"", b"\x1f", b"\x1f\x8b"):
                raise self._damage("no gzip header")  # ISA-L would wait for all of the header
            inflated = stream.decompress(data, limit)
        except self._damage as error:
            raise CorruptRecordError(self._reason(error), self._path, self._produced) from error
        self._has_more = len(inflated) == limit
        if stream.eof:
            self._input.put_back(stream.unused_data or b"")
            self._stream = None
            self._between = True
        return inflated

    def _reason(self, error: Exception) -> str:
        """Describes damage, or a file that is not such a stream."""
        head = self._input.head
        if detect_compression(head) == self._type:
            return (
                f"the {self._type} stream is damaged about {self._input.total:,} compressed bytes "
                f"in ({error}); fetch or write the shard again"
            )
        found = f"like {found}" if (found := looks_like(head)) else f"with {head.hex()}"
        if is_record_header(head):
            found = (
                "as a TFRecord file without compression: pass compression_type='', or leave it out"
            )
        return f"this is not a {self._type} stream: it begins {found}"

    def _start_member(self) -> Decompressor | None:
        """Begins the next member if bytes follow the last one; skips zero padding after gzip."""
        if self._type == "GZIP":
            self._input.skip_zeros()
        if self._input.empty:
            return None
        self._stream, self._damage = open_decompressor(self._type)
        self._has_more = False
        return self._stream


@border
def decode_compressed(bytes: Any, compression_type: str = "") -> Any:
    """Decompresses byte strings one by one, as `tf.io.decode_compressed` does.

    Args:
        bytes: One byte string, or an array or nested list of them.
        compression_type: "GZIP", "ZLIB" or "ZSTD"; "" returns them unchanged.

    Returns:
        `bytes` for one string; else an object array of the input's shape.

    Raises:
        TypeError: An item is not bytes.
        CorruptRecordError: A string is damaged, or has another compression.
        TruncatedShardError: A string ends before its compressed stream.

    Example:
        >>> import gzip
        >>> decode_compressed([gzip.compress(b"a"), gzip.compress(b"b")], "GZIP").tolist()
        [b'a', b'b']
    """
    kind = check_compression_type(compression_type) or ""
    array = np.array(bytes, object)
    inflated = np.empty(array.size, object)
    inflated[:] = [_inflate_string(string, kind) for string in array.ravel().tolist()]
    return inflated.reshape(array.shape) if array.ndim else inflated[0]


def _inflate_string(string: Any, compression_type: CompressionType) -> bytes:
    if not isinstance(string, bytes):
        raise TypeError(f"bytes contains {describe_value(string)}: it must be compressed bytes")
    if not compression_type:
        return string
    inflater = Inflater(compression_type)
    parts = []
    inflater.feed(string)
    while part := inflater.read(OUTPUT_BYTES):
        parts.append(part)
    inflater.close()
    return b"".join(parts)
